// out[n, N] (+)= x[n, K] W[N, K]^T: each W vector is loaded and converted once per block of nodes.
#pragma once
#include <cmath>

#include "simd.h"

namespace ssd {

constexpr int kNodes = kManyRegisters ? 8 : 4;    // most nodes of one register tile
constexpr int64_t kPrefetchBytes = 8192;          // ahead in W, at least, line after line: rows side by side are read at half speed
constexpr int64_t kSerialFill = 1 << 14;          // likewise, elements of x to normalise or activate
constexpr int64_t kPanelBytes = 160 << 10;        // of W: one task, read again from the cache by each block of nodes
constexpr int64_t kTasks = 4;                     // at least, per thread, so that a busy core delays a call by little
constexpr int64_t kNodeBytes = 12 << 10;          // of x that stay in the first-level cache, for each of two threads
constexpr int64_t kPanelRows = 8;                 // of W that pass over one part of x
constexpr int64_t kStripBytes = 16 << 10;         // of W: what all blocks of nodes meet before they go on to the next
constexpr int64_t kFewBlocks = 4;                 // beyond which nodes are read so often that a strip is twice as long

// What a block of nodes fetches while it works: the bytes that are so far ahead of its own rows of W, of every
// `turns`-th four rows, this being its turn. So the blocks share the next strip among them, and memory works as long
// as arithmetic does.
struct Ahead {
  int64_t bytes, turns, turn;
  int64_t of(int64_t row) const { return row / 4 % turns == turn ? bytes : 0; }  // 0: what is there already
};

// Rows of W in a register tile of M nodes; the accumulators must leave registers for W and x.
constexpr int tile_rows(int m) { return m <= (kManyRegisters ? 4 : 2) ? 4 : 2; }

// One thread's target of a product: out[m, r] (+)= dot + bias[r].
struct Output {
  float* data;
  int64_t stride;
  const float* bias;
  bool add;

  void put(int64_t node, int64_t row, float dot) const {
    float* o = data + node * stride + row;
    const float v = bias ? dot + bias[row] : dot;
    *o = add ? *o + v : v;
  }
};

// How rows of T meet nodes: what a node's elements are stored as, and what is done with UNIT of each.
template <class T>
struct Dot {
  using X = float;
  using W = Pair;

  static W weights(const T* p) { return load2<T>(p); }

  // Turns UNIT floats into what `step` reads.
  static void prepare(const float* from, X* to) {
    std::memcpy(to, from, UNIT * sizeof(float));
    order_unit<T>(to);
  }

  template <int R, int M>
  SSD_INLINE static void step(const W (&w)[R], const X* x, int64_t ldx, vf (&acc)[M][R]) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const vf a = load(x + m * ldx), b = load(x + m * ldx + VL);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        acc[m][r] += w[r].a * a;
        acc[m][r] += w[r].b * b;
      }
    }
  }
};

#if defined(__AVX512BF16__)
// Nodes are rounded to bfloat16; a product of two pairs is added to its float32 sum by one instruction.
template <>
struct Dot<bf16> {
  using X = bf16;
  using W = __m512bh;

  static W weights(const bf16* p) { return (W)load_as<__m512i>(p); }

  static void prepare(const float* from, X* to) {
    const W rounded = _mm512_cvtne2ps_pbh((__m512)load(from + VL), (__m512)load(from));
    std::memcpy(static_cast<void*>(to), &rounded, sizeof(rounded));
  }

  template <int R, int M>
  SSD_INLINE static void step(const W (&w)[R], const X* x, int64_t ldx, vf (&acc)[M][R]) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const W node = weights(x + m * ldx);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) acc[m][r] = (vf)_mm512_dpbf16_ps((__m512)acc[m][r], node, w[r]);
    }
  }
};
#endif

template <class T>
using Node = typename Dot<T>::X;

// Accumulates R rows of W times M nodes over k in [begin, end). One accumulator per dot product, summed in the same
// order for every R, M and split of K, so that a node's result does not depend on how many nodes there are.
template <class T, int R, int M>
SSD_INLINE void accumulate(const T* w, int64_t K, int64_t begin, int64_t end, const Node<T>* x, int64_t ldx,
                           int64_t ahead, vf (&acc)[M][R]) {
  constexpr int64_t bytes = UNIT * sizeof(T);
  const int64_t full = std::min(end, K / UNIT * UNIT);
  for (int64_t k = begin; k < full; k += UNIT) {
    typename Dot<T>::W p[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      fetch_ahead(reinterpret_cast<const char*>(w) + ahead + (k / UNIT * R + r) * bytes, bytes);
      p[r] = Dot<T>::weights(w + r * K + k);
    }
    Dot<T>::template step<R, M>(p, x + k, ldx, acc);
  }
  if (full < end) {
    alignas(64) T rest[R][UNIT];
    std::memset(static_cast<void*>(rest), 0, sizeof(rest));
    typename Dot<T>::W p[R];
    for (int r = 0; r < R; r++) {
      std::memcpy(static_cast<void*>(rest[r]), w + r * K + full, (K - full) * sizeof(T));
      p[r] = Dot<T>::weights(rest[r]);
    }
    Dot<T>::template step<R, M>(p, x + full, ldx, acc);
  }
}

template <int R, int M>
SSD_INLINE void finish(const vf (&acc)[M][R], int64_t row, int64_t node, const Output& out) {
  float sums[M * R + VL];
  hsum_each<M * R>(&acc[0][0], sums);
  for (int m = 0; m < M; m++)
    for (int r = 0; r < R; r++) out.put(node + m, row + r, sums[m * R + r]);
}

template <int R, int M>
SSD_INLINE void move(const vf (&from)[M][R], vf (&to)[M][R]) {
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) to[m][r] = from[m][r];
}

// Rows [begin, end) of W, a multiple of R of them, times M nodes.
template <class T, int R, int M>
void tiles(const T* W, int64_t begin, int64_t end, int64_t K, const Node<T>* x, int64_t ldx, int64_t node,
           const Ahead& ahead, const Output& out) {
  x += node * ldx;
  const int64_t most = std::max<int64_t>(UNIT, kNodeBytes / (M * static_cast<int64_t>(sizeof(Node<T>))) / UNIT * UNIT);
  if (K <= 2 * most) {
    for (int64_t row = begin; row < end; row += R) {
      vf acc[M][R] = {};
      accumulate<T, R, M>(W + row * K, K, 0, K, x, ldx, ahead.of(row - begin), acc);
      finish<R, M>(acc, row, node, out);
    }
    return;
  }
  // All rows pass over one part of the nodes before the next, so that the part stays in the first-level cache.
  vf kept[kPanelRows / R][M][R];
  const vf zero[M][R] = {};
  for (int64_t first = begin; first < end; first += kPanelRows) {
    const int64_t last = std::min(end, first + kPanelRows);
    for (int64_t k = 0; k < K; k += most)
      for (int64_t row = first; row < last; row += R) {
        vf(&saved)[M][R] = kept[(row - first) / R];
        vf acc[M][R];
        move(k > 0 ? saved : zero, acc);
        accumulate<T, R, M>(W + row * K, K, k, std::min(K, k + most), x, ldx, ahead.of(row - begin), acc);
        move(acc, saved);
      }
    for (int64_t row = first; row < last; row += R) finish<R, M>(kept[(row - first) / R], row, node, out);
  }
}

template <class T, int M>
void rows_by_nodes(const T* W, int64_t begin, int64_t end, int64_t K, const Node<T>* x, int64_t ldx, int64_t node,
                   const Ahead& ahead, const Output& out) {
  constexpr int R = tile_rows(M);
  const int64_t whole = begin + (end - begin) / R * R;
  tiles<T, R, M>(W, begin, whole, K, x, ldx, node, ahead, out);
  tiles<T, 1, M>(W, whole, end, K, x, ldx, node, ahead, out);
}

template <class T>
void node_block(const T* W, int64_t begin, int64_t end, int64_t K, const Node<T>* x, int64_t ldx, int64_t node,
                int64_t m, const Ahead& ahead, const Output& out) {
  switch (m) {
    case 1: return rows_by_nodes<T, 1>(W, begin, end, K, x, ldx, node, ahead, out);
    case 2: return rows_by_nodes<T, 2>(W, begin, end, K, x, ldx, node, ahead, out);
    case 3: return rows_by_nodes<T, 3>(W, begin, end, K, x, ldx, node, ahead, out);
    case 4: return rows_by_nodes<T, 4>(W, begin, end, K, x, ldx, node, ahead, out);
  }
  if constexpr (kNodes > 4) {
    switch (m) {
      case 5: return rows_by_nodes<T, 5>(W, begin, end, K, x, ldx, node, ahead, out);
      case 6: return rows_by_nodes<T, 6>(W, begin, end, K, x, ldx, node, ahead, out);
      case 7: return rows_by_nodes<T, 7>(W, begin, end, K, x, ldx, node, ahead, out);
      case 8: return rows_by_nodes<T, 8>(W, begin, end, K, x, ldx, node, ahead, out);
    }
  }
}

// x: n prepared rows (padded to UNIT with zeros), ldx elements apart.
template <class T>
void multiply(const T* W, int64_t N, int64_t K, const Node<T>* x, int64_t ldx, int64_t n, const Output& out) {
  const int64_t blocks = ceil_div(n, kNodes);
  const int64_t bytes = std::max<int64_t>(1, K * static_cast<int64_t>(sizeof(T)));
  const int64_t share = ceil_div(N, kTasks * at::get_num_threads());
  const int64_t panel = std::max<int64_t>(std::min(kPanelBytes / bytes, share) / kPanelRows, 1) * kPanelRows;
  const int64_t panels = ceil_div(N, panel);
  const int64_t few = kStripBytes * (blocks > kFewBlocks ? 2 : 1) / bytes / kPanelRows * kPanelRows;
  const int64_t strip = blocks > 1 ? std::max(few, kPanelRows) : panel;
  const int64_t ahead = blocks > 1 ? strip * bytes : std::max(kPrefetchBytes, kPanelRows * bytes);
  run_tasks(panels, N * K * n >= kSerialWork, [&](int64_t p) {
    const int64_t last = std::min(N, (p + 1) * panel);
    for (int64_t begin = p * panel; begin < last; begin += strip) {
      const int64_t end = std::min(last, begin + strip);
      for (int64_t b = 0; b < blocks; b++) {
        const int64_t node = n * b / blocks, next = n * (b + 1) / blocks;
        node_block<T>(W, begin, end, K, x, ldx, node, next - node, Ahead{ahead, blocks, b}, out);
      }
    }
  });
}

// Prepares the rows that fill(node, row pointer) writes, padded, and multiplies.
template <class T, class Fill>
void prepare_and_multiply(const T* W, int64_t N, int64_t K, int64_t n, const Output& out, const Fill& fill) {
  static thread_local Scratch scratch;
  constexpr int64_t line = 64 / sizeof(Node<T>);
  const int64_t padded = ceil_div(K, UNIT) * UNIT;
  // An odd number of cache lines, so that the nodes of a tile do not compete for the same sets of the cache.
  const int64_t ldx = padded + (padded / line % 2 ? 0 : line);
  auto* x = reinterpret_cast<Node<T>*>(scratch.get(n * ldx * sizeof(Node<T>) / sizeof(float)));
  run_tasks(n, n * ldx >= kSerialFill, [&](int64_t i) {
    static thread_local Scratch filled;
    float* row = filled.get(padded);
    fill(i, row);
    std::fill(row + K, row + padded, 0.0f);
    for (int64_t k = 0; k < padded; k += UNIT) Dot<T>::prepare(row + k, x + i * ldx + k);
  });
  multiply<T>(W, N, K, x, ldx, n, out);
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
