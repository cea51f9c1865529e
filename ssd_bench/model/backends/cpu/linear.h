// out[n, N] (+)= x[n, K] W[N, K]^T, and what is done to x on the way.
#pragma once
#include <cmath>
#include <type_traits>

#include "matrix.h"
#include "simd.h"
#include "team.h"

namespace ssd {

#if defined(__AVX512F__)
constexpr int kSums = 24;  // vectors of sums in registers, besides those of W and x
#elif defined(__AVX__)
constexpr int kSums = 12;
#elif defined(__SSE2__)
constexpr int kSums = 8;
#else
constexpr int kSums = 24;
#endif
constexpr int64_t kAheadBytes = 16 << 10;  // prefetch distance in W of one block of nodes; several share the next group
constexpr int64_t kSerialFill = 1 << 14;   // elements to rotate, below which a second thread costs more than it saves
constexpr int64_t kManyBlocks = 16;        // blocks of nodes from which on a task has as many panels as fit kGroupBytes
constexpr int64_t kGroupBytes = 192 << 10;  // of the second-level cache, which also holds the next panels
constexpr int64_t kTasks = 4;              // least tasks per thread, so that a busy core delays a call only little
constexpr int64_t kFewElements = 1 << 12;  // elements of x up to which every thread prepares it for itself

// A product's target: out[node, row] (+)= scale[row] * sums + bias[row].
struct Output {
  float* data;
  int64_t stride;
  const float* bias;
  bool add;
  const float* scale = nullptr;  // of weights in 8 bits; null: 1

  // Writes a panel's sums of one node; the first `count` of them belong to rows of W, the others to padding.
  SSD_INLINE void put(int64_t node, int64_t row, int64_t count, const vf (&sums)[kVectors]) const {
    float* o = data + node * stride + row;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const int64_t left = std::min<int64_t>(VL, count - v * VL);
      const vf scaled = scale ? scaled_sums(sums[v], row + v * VL, left) : sums[v];
      if (left == VL) {
        vf value = bias ? scaled + load(bias + row + v * VL) : scaled;
        store(o + v * VL, add ? load(o + v * VL) + value : value);
      } else {
        for (int64_t i = 0; i < left; i++) {
          const float value = bias ? scaled[i] + bias[row + v * VL + i] : scaled[i];
          o[v * VL + i] = add ? o[v * VL + i] + value : value;
        }
      }
    }
  }

  // The scaled sums of `left` rows from `row` on; none is left for a vector of padding.
  SSD_INLINE vf scaled_sums(vf sums, int64_t row, int64_t left) const {
    vf factors = {};
    if (left >= VL) {
      factors = load(scale + row);
    } else {
      for (int64_t i = 0; i < left; i++) factors[i] = scale[row + i];
    }
    return sums * factors;
  }
};

// Product of a panel of T and a node: the type of the node's inputs, and one step over a group of inputs. The sum of an
// output is one chain of additions in the order of the inputs, so that its bits do not depend on how many nodes or
// panels are processed at once.
template <class T>
struct Dot {
  using X = float;
  struct Row {
    vf v[kVectors];
  };

  SSD_INLINE static Row row(const T* w) {
    Row r;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) r.v[v] = load1(w + v * VL);
    return r;
  }

  SSD_INLINE static void step(const Row& w, const X* x, vf (&acc)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[v] += w.v[v] * splat(x[0]);
  }
};

#if defined(__AVX512BF16__)
// One instruction adds the product of two pairs, a0 b0 + a1 b1, to a sum.
template <>
struct Dot<bf16> {
  using X = bf16;
  using Row = __m512bh;

  SSD_INLINE static Row row(const bf16* w) { return (Row)load_as<__m512i>(w); }

  SSD_INLINE static void step(const Row& w, const X* x, vf (&acc)[kVectors]) {
    acc[0] = (vf)_mm512_dpbf16_ps((__m512)acc[0], (Row)_mm512_set1_epi32(load_as<int32_t>(x)), w);
  }
};
#else
template <>
struct Dot<bf16> {
  using X = std::conditional_t<kRounds, bf16, float>;
  struct Row {
    vf even[kVectors], odd[kVectors];
  };

  SSD_INLINE static Row row(const bf16* w) {
    Row r;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const vu raw = load_as<vu>(w + 2 * v * VL);
      r.even[v] = (vf)(raw << 16);
      r.odd[v] = (vf)(raw & 0xffff0000u);
    }
    return r;
  }

  SSD_INLINE static void step(const Row& w, const X* x, vf (&acc)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      acc[v] += w.even[v] * splat(x[0]);
      acc[v] += w.odd[v] * splat(x[1]);
    }
  }
};
#endif

// A node's inputs of a tile in 4 bits: scale * values, and the sum of these.
struct Inputs4 {
  int8_t values[kDepth];
  float scale, sum;
};

template <>
struct Dot<Tile4> {
  using X = Inputs4;
};

template <class T>
using Node = typename Dot<T>::X;

// Number of Node<T> that products read of a node and a tile.
template <class T>
constexpr int kInputs = kDepth;
template <>
inline constexpr int kInputs<Tile4> = 1;

template <class T>
constexpr bool kByTiles = kTileUnit && std::is_same_v<T, bf16>;

// Most nodes of a block, which is multiplied by a group of panels at once.
template <class T>
constexpr int kNodes = kByTiles<T> ? 2 * kTileNodes : kSums / (kVectors == 1 ? 2 : kVectors);

// Panels of a group for blocks of up to m nodes.
template <class T>
constexpr int panels_of(int m) {
  if (kByTiles<T>) return 2;
  return 4 * m * kVectors <= kSums ? 4 : 2 * m * kVectors <= kSums ? 2 : 1;
}

// Weights that are read after a group of panels: the next panels of this matrix, or those of the next matrix.
struct Next {
  const char* data;
  int64_t panel;  // bytes
};

// A group of panels that is multiplied by a block of nodes, and the weights that the block prefetches meanwhile: the
// tiles `distance` ahead or, past the end of the group, those of `next`. Several blocks take turns in prefetching.
template <class T>
struct Group {
  const T* w;
  int64_t panel, tiles;  // elements from one panel to the next; tiles of a panel
  int64_t distance, turn, turns;
  Next next;

  // Address that tile t of panel `p` prefetches; the tile itself if it is not its turn.
  SSD_INLINE const char* ahead(int64_t t, int p) const {
    const char* own = reinterpret_cast<const char*>(w + p * panel);
    constexpr int64_t bytes = kUnits<T> * sizeof(T);
    if (turns > 1 && t % turns != turn) return own + t * bytes;
    if (t + distance < tiles) return own + (t + distance) * bytes;
    return next.data + p * next.panel + (t + distance - tiles) * bytes;
  }
};

template <class T, int M, int P>
void elements_by_nodes(const Group<T>& g, const Node<T>* x, int64_t ldx, int64_t node, int64_t row, const Output& out) {
  vf acc[M][P][kVectors] = {};
  for (int64_t t = 0; t < g.tiles; t++) {
    const T* w = g.w + t * kTile;
    const Node<T>* inputs = x + t * ldx;
    const char* ahead[P];
    for (int p = 0; p < P; p++) ahead[p] = g.ahead(t, p);
#pragma GCC unroll 4
    for (int k = 0; k < kDepth; k += kPair<T>) {
      typename Dot<T>::Row rows[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        constexpr int bytes = kPair<T> * kPanel * sizeof(T);  // of a step; several steps of 8-bit weights share a line
        if (bytes >= kCacheLine || k * kPanel * sizeof(T) % kCacheLine == 0)
          fetch_ahead(ahead[p] + k * kPanel * sizeof(T), bytes);
        rows[p] = Dot<T>::row(w + p * g.panel + k * kPanel);
      }
#pragma GCC unroll 12
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) Dot<T>::step(rows[p], inputs + m * kDepth + k, acc[m][p]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int p = 0; p < P; p++) out.put(node + m, row + p * kPanel, out.stride - row - p * kPanel, acc[m][p]);
}

// Sums of products of weights 0..15 and inputs of 8 bits over a tile, one for each lane's output. They are exact, so that
// every instruction level has the same.
#if defined(__AVX512VNNI__)
struct ExactSums {
  __m512i sums = _mm512_setzero_si512();
  // Adds four products per output: bytes of `weights` and the four inputs.
  SSD_INLINE void add(vu weights, int32_t inputs) {
    sums = _mm512_dpbusd_epi32(sums, (__m512i)weights, _mm512_set1_epi32(inputs));
  }
  SSD_INLINE vf total() const { return (vf)_mm512_cvtepi32_ps(sums); }
};
#elif defined(__AVX512BW__)
struct ExactSums {  // 16 bits hold a tile's: 16 products of at most 15 * 127 in each half
  __m512i halves = _mm512_setzero_si512();
  SSD_INLINE void add(vu weights, int32_t inputs) {
    halves = _mm512_add_epi16(halves, _mm512_maddubs_epi16((__m512i)weights, _mm512_set1_epi32(inputs)));
  }
  SSD_INLINE vf total() const { return (vf)_mm512_cvtepi32_ps(_mm512_madd_epi16(halves, _mm512_set1_epi16(1))); }
};
#elif defined(__AVX2__)
struct ExactSums {
  __m256i halves = _mm256_setzero_si256();
  SSD_INLINE void add(vu weights, int32_t inputs) {
    halves = _mm256_add_epi16(halves, _mm256_maddubs_epi16((__m256i)weights, _mm256_set1_epi32(inputs)));
  }
  SSD_INLINE vf total() const { return (vf)_mm256_cvtepi32_ps(_mm256_madd_epi16(halves, _mm256_set1_epi16(1))); }
};
#else
struct ExactSums {
  vi sums = {};
  SSD_INLINE void add(vu weights, int32_t inputs) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) sums += (vi)(weights >> 8 * b & 15u) * static_cast<int8_t>(inputs >> 8 * b);
  }
  SSD_INLINE vf total() const { return __builtin_convertvector(sums, vf); }
};
#endif

// Product with weights in 4 bits. Tile after tile, a node's exact sum times both scales is added, then the minimum times
// the sum of its inputs.
template <int M, int P>
void words_by_nodes(const Group<Tile4>& g, const Inputs4* x, int64_t ldx, int64_t node, int64_t row,
                    const Output& out) {
  vf acc[M][P][kVectors] = {};
  for (int64_t t = 0; t < g.tiles; t++) {
    const Inputs4* inputs = x + t * ldx;
    for (int p = 0; p < P; p++) fetch_ahead(g.ahead(t, p), sizeof(Tile4));
    ExactSums sums[M][P][kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kDepth / 8; j++) {
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) {
          const vu word = load_as<vu>(g.w[p * g.panel + t].words[j] + v * VL);
          const vu low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
#pragma GCC unroll 12
          for (int m = 0; m < M; m++) {
            sums[m][p][v].add(low, load_as<int32_t>(inputs[m].values + 8 * j));
            sums[m][p][v].add(high, load_as<int32_t>(inputs[m].values + 8 * j + 4));
          }
        }
      }
    }
    for (int p = 0; p < P; p++)
      for (int v = 0; v < kVectors; v++) {
        const Tile4& tile = g.w[p * g.panel + t];
        const vf scale = load1(tile.scale + v * VL), minimum = load1(tile.minimum + v * VL);
        for (int m = 0; m < M; m++) {  // two statements: the compiler has no choice of what to fuse
          acc[m][p][v] += sums[m][p][v].total() * (scale * splat(inputs[m].scale));
          acc[m][p][v] += minimum * splat(inputs[m].sum);
        }
      }
  }
  for (int m = 0; m < M; m++)
    for (int p = 0; p < P; p++) out.put(node + m, row + p * kPanel, out.stride - row - p * kPanel, acc[m][p]);
}

template <class T, int M, int P>
void vectors_by_nodes(const Group<T>& g, const Node<T>* x, int64_t ldx, int64_t node, int64_t row, const Output& out) {
  if constexpr (std::is_same_v<T, Tile4>) return words_by_nodes<M, P>(g, x, ldx, node, row, out);
  else return elements_by_nodes<T, M, P>(g, x, ldx, node, row, out);
}

// Product of `panels` panels and m nodes, both at most as many as registers hold.
template <class T, int M = kNodes<T>>
void block_product(int64_t m, int64_t panels, const Group<T>& g, const Node<T>* x, int64_t ldx, int64_t node,
                      int64_t row, const Output& out) {
  if constexpr (M > 1) {
    if (m < M) return block_product<T, M - 1>(m, panels, g, x, ldx, node, row, out);
  }
  if constexpr (panels_of<T>(M) >= 4) {
    if (panels == 4) return vectors_by_nodes<T, M, 4>(g, x, ldx, node, row, out);
  }
  if constexpr (panels_of<T>(M) >= 2) {
    if (panels == 2) return vectors_by_nodes<T, M, 2>(g, x, ldx, node, row, out);
  }
  vectors_by_nodes<T, M, 1>(g, x, ldx, node, row, out);
}

#if defined(__AMX_BF16__) || defined(SSD_EMULATED_TILES)
// Product of up to A x 16 nodes and P panels, with the sums in registers 2 a + p.
template <int A, int P>
void tiles_by_nodes(int64_t m, const Group<bf16>& g, const bf16* x, int64_t ldx, int64_t node, int64_t row,
                    const Output& out) {
  const auto each_sum = [](auto f) {
    f(std::integral_constant<int, 0>(), std::integral_constant<int, 0>());
    if constexpr (P > 1) f(std::integral_constant<int, 0>(), std::integral_constant<int, 1>());
    if constexpr (A > 1) f(std::integral_constant<int, 1>(), std::integral_constant<int, 0>());
    if constexpr (A > 1 && P > 1) f(std::integral_constant<int, 1>(), std::integral_constant<int, 1>());
  };
  each_sum([](auto a, auto p) { tile_zero<2 * a + p>(); });
  for (int64_t t = 0; t < g.tiles; t++) {
    tile_load<4>(x + t * ldx);
    if constexpr (A > 1) tile_load<5>(x + t * ldx + kTile);
    for (int p = 0; p < P; p++) fetch_ahead(g.ahead(t, p), kTile * sizeof(bf16));
    tile_load<6>(g.w + t * kTile);
    if constexpr (P > 1) tile_load<7>(g.w + g.panel + t * kTile);
    each_sum([](auto a, auto p) { tile_multiply<2 * a + p, 4 + a, 6 + p>(); });
  }
  each_sum([&](auto a, auto p) {
    alignas(64) float sums[kTileNodes * kPanel];
    tile_store<2 * a + p>(sums);
    const int64_t first = row + p * kPanel;
    for (int64_t i = 0; i < std::min<int64_t>(kTileNodes, m - a * kTileNodes); i++) {
      vf of_node[kVectors];
      for (int v = 0; v < kVectors; v++) of_node[v] = load(sums + i * kPanel + v * VL);
      out.put(node + a * kTileNodes + i, first, out.stride - first, of_node);
    }
  });
}

inline void block_product(int64_t m, int64_t panels, const Group<bf16>& g, const bf16* x, int64_t ldx, int64_t node,
                          int64_t row, const Output& out) {
  if (m > kTileNodes && panels == 2) return tiles_by_nodes<2, 2>(m, g, x, ldx, node, row, out);
  if (m > kTileNodes) return tiles_by_nodes<2, 1>(m, g, x, ldx, node, row, out);
  if (panels == 2) return tiles_by_nodes<1, 2>(m, g, x, ldx, node, row, out);
  tiles_by_nodes<1, 1>(m, g, x, ldx, node, row, out);
}
#endif

// Number of nodes, padded to whole tiles, for which x of n nodes has room.
template <class T>
int64_t room(int64_t n) {
  return kByTiles<T> ? ceil_div(n, kTileNodes) * kTileNodes : n;
}

// Division of a product over n nodes into tasks: groups of panels, each multiplied by one block of nodes after the
// other.
template <class T>
struct Shares {
  Packed<T> W;
  int64_t n, threads;

  static int64_t tile_bytes() { return kUnits<T> * static_cast<int64_t>(sizeof(T)); }
  int64_t blocks() const { return ceil_div(n, kNodes<T>); }
  // First node of a block; with tiles, blocks are full, with vectors they are of equal size.
  int64_t node(int64_t block) const {
    return kByTiles<T> ? std::min(n, block * kNodes<T>) : n * block / blocks();
  }
  // Panels by which a block is multiplied at once.
  int64_t step() const { return panels_of<T>(static_cast<int>(ceil_div(n, blocks()))); }
  // Panels of a task. Many nodes do not stay in the cache and are read again for every task, so there are few tasks.
  int64_t panels() const {
    const int64_t bytes = tile_bytes() * W.tiles() * step();
    const int64_t fit = blocks() < kManyBlocks ? 1 : kGroupBytes / bytes;
    return step() * std::max<int64_t>(1, std::min(fit, W.panels() / (step() * kTasks * threads)));
  }
  int64_t tasks() const { return ceil_div(W.panels(), panels()); }
  Next from(int64_t panel) const {
    return {reinterpret_cast<const char*>(W.panel(panel)), W.tiles() * tile_bytes()};
  }
  // Weights with which a member begins.
  Next start(const Member& member) const { return from(Member::begin(tasks(), member.id, member.size) * panels()); }
};

// Multiplies W by x, n prepared nodes [tiles, room(n), kInputs]; `next` are the weights that this member reads
// afterwards.
template <class T>
void multiply(Member& member, const Packed<T>& W, const Node<T>* x, int64_t n, const Output& out, Next next) {
  const Shares<T> shares{W, n, member.size};
  const int64_t blocks = shares.blocks(), step = shares.step(), panels = shares.panels(), tasks = shares.tasks();
  const int64_t ldx = room<T>(n) * kInputs<T>;
  const int64_t last = Member::begin(tasks, member.id + 1, member.size) - 1;
  const int64_t bytes = shares.tile_bytes() * step;
  const int64_t distance = blocks > 1 ? W.tiles() : std::clamp<int64_t>(kAheadBytes / bytes, 1, W.tiles());
  member.each(tasks, [&](int64_t task) {
    const int64_t end = std::min(W.panels(), (task + 1) * panels);
    Group<T> g{nullptr, W.tiles() * kUnits<T>, W.tiles(), distance, 0, blocks, {}};
    const Next after = task == last && next.data ? next : shares.from(end);
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t node = shares.node(b), m = shares.node(b + 1) - node;
      g.turn = b;
      for (int64_t p = task * panels, count; p < end; p += count) {
        count = end - p >= step ? step : end - p >= 2 ? 2 : 1;
        g.w = W.panel(p);
        g.next = {after.data + (p - task * panels) * after.panel, after.panel};
        const Node<T>* inputs = x + node * kInputs<T>;
        block_product(m, count, g, inputs, ldx, node, p * kPanel, out);
      }
    }
  });
}

// Writes a node's inputs of one tile as products read them; with weights in 4 bits, rounded to the nearest of 255
// multiples of their largest magnitude over 127.
template <class T>
void fill_inputs(const float* from, Node<T>* to) {
  if constexpr (std::is_same_v<T, Tile4>) {
    constexpr int kParts = kDepth / VL;
    vf parts[kParts], largest = {};
    for (int i = 0; i < kParts; i++) {
      parts[i] = load(from + i * VL);
      largest = vmax(largest, vmax(parts[i], -parts[i]));
    }
    const float most = hmax(largest), factor = most > 1e-30f ? 127.0f / most : 0.0f;  // finite
    vf sum = {};
    for (int i = 0; i < kParts; i++) {
      const vf shifted = parts[i] * factor + kToInteger, rounded = shifted - kToInteger;
      const vb values = __builtin_convertvector((vi)shifted - (vi)splat(kToInteger), vb);
      std::memcpy(to->values + i * VL, &values, VL);
      sum += rounded;
    }
    to->scale = most / 127.0f;
    to->sum = hsum(sum) * to->scale;
  } else {
    convert32(from, to);
  }
}

// Prepares x of `multiply` from rows of length K, which fill(node, row pointer) writes.
template <class T, class Fill>
const Node<T>* prepare(Member& member, int64_t n, int64_t K, Node<T>* shared, const Fill& fill) {
  static thread_local Scratch filled, own;
  const int64_t padded = ceil_div(K, kDepth) * kDepth, ldx = room<T>(n) * kInputs<T>;
  const bool alone = member.size == 1 || n * K <= kFewElements;
  Node<T>* x = alone ? own.get<Node<T>>(padded / kDepth * ldx) : shared;
  const auto one = [&](int64_t i) {
    float* row = filled.get<float>(padded);
    fill(i, row);
    std::fill(row + K, row + padded, 0.0f);
    for (int64_t t = 0; t < padded / kDepth; t++) fill_inputs<T>(row + t * kDepth, x + t * ldx + i * kInputs<T>);
  };
  if (alone)
    for (int64_t i = 0; i < n; i++) one(i);
  else
    member.each(n, one);
  return x;
}

// Bytes in `shared` of `prepare`.
template <class T>
int64_t prepared_bytes(int64_t n, int64_t K) {
  return ceil_div(K, kDepth) * kInputs<T> * room<T>(n) * static_cast<int64_t>(sizeof(Node<T>));
}

// out = x * rsqrt(mean(x^2) + eps) * weight over `size` elements; safe in place.
inline void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
  vf sum = {};
  int64_t k = 0;
  for (; k + VL <= size; k += VL) sum += load(x + k) * load(x + k);
  float total = hsum(sum);
  for (; k < size; k++) total += x[k] * x[k];
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
  for (k = 0; k + VL <= size; k += VL) store(out + k, load(x + k) * scale * load(weight + k));
  for (; k < size; k++) out[k] = x[k] * scale * weight[k];
}

// out = silu(gate) * up over `size` elements.
inline void swiglu(const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t k = 0; k < size; k += VL) {
    const int64_t count = std::min<int64_t>(VL, size - k);
    vf g = {}, u = {};
    if (count == VL) {
      g = load(gate + k), u = load(up + k);
    } else {
      std::memcpy(&g, gate + k, count * sizeof(float));
      std::memcpy(&u, up + k, count * sizeof(float));
    }
    const vf y = g / (vexp(-g) + 1.0f) * u;
    std::memcpy(out + k, &y, count * sizeof(float));
  }
}

}  // namespace ssd
