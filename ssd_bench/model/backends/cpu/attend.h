// Attention of n nodes over a key/value cache: flash-decoding over (kv head, split of the cache rows).
#pragma once
#include <cmath>
#include <limits>

#include "pairs.h"
#include "simd.h"
#include "team.h"

namespace ssd {

constexpr int UNIT = 2 * VL;                                     // columns of keys transposed at a time
constexpr int kBlock = 64;                                       // cache rows converted and scored at a time
constexpr int kQueries = kManyRegisters ? 6 : 2;                 // queries of one register tile
constexpr int kScored = kBlock / VL < 4 ? kBlock / VL : 4;       // vectors of cache rows in the score tile
constexpr int kWide = 4;                                         // vectors of columns in the gather tile
constexpr int64_t kChunk = 256;                   // rows of a chunk; chunks begin at multiples of it, so that a node's
                                                  // sums do not depend on the numbers of committed rows and nodes
constexpr int64_t kStates = 1 << 21;              // most floats of states (over all chunks) in memory at a time
constexpr int64_t kGroup = 192;                   // most queries of a group, for which a block is converted only once
constexpr int64_t kFewTasks = 3;                  // tasks per thread; with fewer, the nodes of a head are split too
constexpr int64_t kFewQueries = 12;               // least queries for which it is worth converting a block of rows
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
static_assert(kBlock % (VL * kScored) == 0 && kChunk % kBlock == 0, "blocks are whole tiles, chunks whole blocks");

// Rows [begin, end).
struct RowRange {
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
};

// Shapes and pointers of one call, or of a group of its nodes. Rows are numbered through prefix and nodes: row r of a
// head is row r of k and v, [Hkv, cap, D] with row stride D, if r < prefix, else row r - prefix of own_k and own_v, the
// scratch rows that the nodes wrote. Unread rows (outside a window) are left out at three levels: chunks that are
// entirely unread are no tasks, such blocks are skipped, and unread rows of a block that is read in part are zeros
// without weight. All three give the same bits, because online softmax adds exact zeros.
template <class T>
struct Attention {
  const float* q;  // [n, Hkv * G, D]
  const T *k, *v;
  int64_t k_head, v_head;  // strides of dimension 0, in elements
  const T *own_k, *own_v;
  int64_t own_k_head, own_v_head;
  const uint8_t* mask;   // tree mask [nodes, mask_stride], or null for a causal chain
  int64_t mask_stride;
  int64_t n, G, Hkv, D, prefix;
  int64_t first, own;    // index of the first node, and number of nodes' rows that these nodes may see
  float scale;
  RowRange unread;       // rows of the prefix that no node sees

  int64_t padded() const { return ceil_div(D, VL) * VL; }
  int64_t queries() const { return n * G; }
  int64_t rows() const { return prefix + own; }
  int64_t rows_read() const { return rows() - unread.count(); }
  // Chunks that are entirely unread; the chunk with the nodes' own rows is always read.
  RowRange unread_chunks() const {
    const int64_t begin = ceil_div(unread.begin, kChunk);
    return {begin, std::max(begin, unread.end / kChunk)};
  }
  int64_t chunks_read() const { return ceil_div(rows(), kChunk) - unread_chunks().count(); }
  // First row of the i-th chunk that is read.
  int64_t chunk_begin(int64_t i) const {
    const RowRange gap = unread_chunks();
    return (i < gap.begin ? i : i + gap.count()) * kChunk;
  }
  // Whether all of rows [begin, end) are unread, and whether only some of them are.
  bool skips(int64_t begin, int64_t end) const { return unread.begin <= begin && end <= unread.end; }
  bool reads_part(int64_t begin, int64_t end) const {
    return std::max(begin, unread.begin) < std::min(end, unread.end) && !skips(begin, end);
  }
  // Whether rows [begin, end) may include a row that some node does not see, so that scores must be masked.
  bool hides(int64_t begin, int64_t end) const { return end > prefix || reads_part(begin, end); }
  // State of one query in online softmax: weighted sum of values, then maximum and sum of weights, in whole vectors.
  int64_t state_size() const { return padded() + VL; }
  const float* query(int64_t head, int64_t i) const { return q + ((i / G) * Hkv * G + head * G + i % G) * D; }
  bool sees(int64_t node, int64_t row) const {
    return mask ? mask[(first + node) * mask_stride + row] != 0 : row <= first + node;
  }
  // The attention of `count` nodes from `begin` on; in a chain the rows of later nodes, which they do not see, are left
  // out.
  Attention group(int64_t begin, int64_t count) const {
    Attention part = *this;
    part.q += begin * Hkv * G * D;
    part.n = count;
    part.first += begin;
    if (!mask) part.own = part.first + count;
    return part;
  }
};

template <class T>
inline vf load_part(const T* p, int64_t count) {
  if (count >= VL) return load1(p);
  T tmp[VL];
  std::memset(static_cast<void*>(tmp), 0, sizeof(tmp));
  if (count > 0) std::memcpy(static_cast<void*>(tmp), p, count * sizeof(T));
  return load1(tmp);
}

// kT[d][r] = src[r][d] for VL rows and UNIT columns.
template <class T>
inline void transpose_unit(const T* src, int64_t D, float* kT) {
  for (int half = 0; half < UNIT; half += VL) {
    vf v[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) v[i] = load1(src + i * D + half);
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) store(kT + (half + i) * kBlock, v[i]);
  }
}
// bf16 pairs are transposed as 32-bit words and split afterwards, with half the shuffles.
template <>
inline void transpose_unit<bf16>(const bf16* src, int64_t D, float* kT) {
  vu v[VL];
#pragma GCC unroll 16
  for (int i = 0; i < VL; i++) v[i] = load_as<vu>(src + i * D);
  transpose(v);
#pragma GCC unroll 16
  for (int i = 0; i < VL; i++) {
    store(kT + 2 * i * kBlock, (vf)(v[i] << 16));
    store(kT + (2 * i + 1) * kBlock, (vf)(v[i] & 0xffff0000u));
  }
}

// Transposes keys to kT[d][r], r < count; rows up to the next multiple of VL are zero.
template <class T>
void load_keys(const T* src, int64_t count, int64_t D, float* kT) {
  for (int64_t r = 0; r < count; r += VL) {
    int64_t d = 0;
    if (r + VL <= count)
      for (; d + UNIT <= D; d += UNIT) transpose_unit(src + r * D + d, D, kT + d * kBlock + r);
    for (; d < D; d += VL) {
      vf v[VL];
      for (int i = 0; i < VL; i++) v[i] = r + i < count ? load_part(src + (r + i) * D + d, D - d) : vf{};
      transpose(v);
      for (int i = 0; i < VL; i++) store(kT + (d + i) * kBlock + r, v[i]);
    }
  }
}

template <class T>
void load_values(const T* src, int64_t count, int64_t D, int64_t padded, float* v) {
  for (int64_t r = 0; r < count; r++)
    for (int64_t d = 0; d < D; d += VL) store(v + r * padded + d, load_part(src + r * D + d, D - d));
}

// s[j][r] = q[j] . k[r] * scale; with `next`, prefetches D * kBlock elements of T from there meanwhile.
template <class T, int Q>
void score(const float* const* q, const float* kT, int64_t count, int64_t D, float scale, float (*s)[kBlock],
           const T* next) {
  for (int64_t r = 0; r < count; r += kScored * VL) {
    vf acc[Q][kScored] = {};
    for (int64_t d = 0; d < D; d++) {
      if (next && r == 0) fetch_ahead(reinterpret_cast<const char*>(next + d * kBlock), kBlock * sizeof(T));
      const float* k = kT + d * kBlock + r;
#pragma GCC unroll 4
      for (int w = 0; w < kScored; w++)
#pragma GCC unroll 8
        for (int j = 0; j < Q; j++) acc[j][w] += load(k + w * VL) * q[j][d];
    }
    for (int j = 0; j < Q; j++)
      for (int w = 0; w < kScored; w++) store(&s[j][r + w * VL], acc[j][w] * scale);
  }
}

// One step of online softmax (Milakov and Gimelshein 2018): turns the scores of Q queries (masked ones -inf, `count` a
// multiple of VL) into weights exp(score - new maximum); factor[j] = exp(old - new maximum) rescales the old state j.
// Interleaving the queries hides the latency of exp and of the reductions.
template <int Q>
inline void soften(float (*s)[kBlock], int64_t count, float* state_max, int64_t stride, float* factor) {
  constexpr int padded = (Q + VL - 1) / VL * VL;
  vf top[Q], sum[Q] = {};
  float base[Q], old[padded] = {}, sums[padded + VL];
#pragma GCC unroll 8
  for (int j = 0; j < Q; j++) top[j] = load(s[j]);
  for (int64_t r = VL; r < count; r += VL)
#pragma GCC unroll 8
    for (int j = 0; j < Q; j++) top[j] = vmax(load(s[j] + r), top[j]);
#pragma GCC unroll 8
  for (int j = 0; j < Q; j++) {
    const float before = state_max[j * stride], now = std::max(before, hmax(top[j]));
    base[j] = now == kMinusInf ? 0.0f : now;  // nothing visible yet: every weight below is exp(-inf) = 0
    old[j] = before - base[j];
    state_max[j * stride] = now;
  }
  for (int j = 0; j < Q; j += VL) store(old + j, vexp(load(old + j)));
  for (int64_t r = 0; r < count; r += VL)
#pragma GCC unroll 8
    for (int j = 0; j < Q; j++) {
      const vf p = vexp(load(s[j] + r) - base[j]);
      store(s[j] + r, p);
      sum[j] += p;
    }
  hsum_each<Q>(sum, sums);
  for (int j = 0; j < Q; j++) {
    factor[j] = old[j];
    state_max[j * stride + 1] = state_max[j * stride + 1] * factor[j] + sums[j];
  }
}

// state[j][d] = state[j][d] * factor[j] + sum_r s[j][r] v[r][d], for W vectors of d; with `ahead`, prefetches the same
// columns of the next block meanwhile. V is the cache's type or float.
template <class V, int Q, int W>
inline void gather_part(const float (*s)[kBlock], const float* factor, const V* v, int64_t stride_v, int64_t count,
                        bool ahead, float* state, int64_t stride) {
  vf acc[Q][W];
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W; w++) acc[j][w] = load(state + j * stride + w * VL) * factor[j];
  for (int64_t r = 0; r < count; r++) {
    const V* row = v + r * stride_v;
    if (ahead) fetch_ahead(reinterpret_cast<const char*>(row + kBlock * stride_v), W * VL * sizeof(V));
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) {
      const vf value = load1(row + w * VL);
#pragma GCC unroll 8
      for (int j = 0; j < Q; j++) acc[j][w] += value * s[j][r];
    }
  }
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W; w++) store(state + j * stride + w * VL, acc[j][w]);
}

template <class V, int Q>
inline void gather(const float (*s)[kBlock], const float* factor, const V* v, int64_t stride_v, int64_t count,
                   bool ahead, float* state, int64_t stride, int64_t padded) {
  int64_t d = 0;
  for (; d + kWide * VL <= padded; d += kWide * VL)
    gather_part<V, Q, kWide>(s, factor, v + d, stride_v, count, ahead, state + d, stride);
  for (; d < padded; d += VL) gather_part<V, Q, 1>(s, factor, v + d, stride_v, count, ahead, state + d, stride);
}

// One block of a head's rows. Keys are transposed floats. Values are read in place (`v`), or from a float copy
// (`copied`, else null) if they would be converted too often or read past the end of a row.
template <class T>
struct Rows {
  int64_t first, count;
  bool masked;
  const T *k, *v;
  const float *kT, *copied;
};

// Sets the scores of rows that a query does not see to -inf: padding up to `rounded`, unread rows, and masked rows.
template <int Q, class T>
inline void hide(const Attention<T>& a, int64_t first, int64_t first_row, int64_t count, int64_t rounded, bool masked,
                 float (*s)[kBlock]) {
  for (int j = 0; j < Q; j++) {
    for (int64_t r = count; r < rounded; r++) s[j][r] = kMinusInf;
    if (!masked) continue;
    for (int64_t r = std::max(first_row, a.unread.begin); r < std::min(first_row + count, a.unread.end); r++)
      s[j][r - first_row] = kMinusInf;
    const int64_t node = (first + j) / a.G;
    for (int64_t r = std::max<int64_t>(0, a.prefix - first_row); r < count; r++)
      if (!a.sees(node, first_row + r - a.prefix)) s[j][r] = kMinusInf;
  }
}

template <class T, int Q>
void query_tile(const Attention<T>& a, const float* const* q, int64_t first, const Rows<T>& rows, float* state) {
  alignas(64) float s[Q][kBlock];
  float factor[Q];
  const int64_t padded = a.padded(), stride = a.state_size(), rounded = ceil_div(rows.count, VL) * VL;
  const bool ahead = first == 0;
  score<T, Q>(q, rows.kT, rows.count, a.D, a.scale, s, ahead ? rows.k + kBlock * a.D : nullptr);
  hide<Q>(a, first, rows.first, rows.count, rounded, rows.masked, s);
  soften<Q>(s, rounded, state + padded, stride, factor);
  if (rows.copied)
    gather<float, Q>(s, factor, rows.copied, padded, rows.count, false, state, stride, padded);
  else
    gather<T, Q>(s, factor, rows.v, a.D, rows.count, ahead, state, stride, padded);
}

// query_tile for `size` queries, 1 <= size <= Q.
template <class T, int Q>
void sized_tile(const Attention<T>& a, const float* const* q, int64_t first, int64_t size, const Rows<T>& rows,
                float* state) {
  if constexpr (Q > 1) {
    if (size < Q) return sized_tile<T, Q - 1>(a, q, first, size, rows, state);
  }
  query_tile<T, Q>(a, q, first, rows, state);
}

#if defined(__AVX512BF16__) || defined(SSD_EMULATED_TILES)
// The same for products of bf16 pairs: keys and values in pairs, rounded queries [.., ldq], and rounded weights.
struct PairRows {
  int64_t first, count;
  bool masked;
  const uint32_t *kT, *v;
  int64_t stride_v;
};

template <int Q>
void pair_tile(const Attention<bf16>& a, const bf16* q, int64_t ldq, int64_t first, const PairRows& rows, float* state) {
  alignas(64) float s[kPairQueries][kRows];
  alignas(64) bf16 p[kPairQueries][kRows];
  float factor[Q];
  const int64_t padded = a.padded(), stride = a.state_size(), rounded = ceil_div(rows.count, VL) * VL;
  score_pairs<Q>(q, ldq, rows.kT, rows.count, a.D, a.scale, s);
  hide<Q>(a, first, rows.first, rows.count, rounded, rows.masked, s);
  soften<Q>(s, rounded, state + padded, stride, factor);
  for (int j = 0; j < Q; j++) {
    for (int64_t r = rounded; r < kRows; r++) s[j][r] = 0.0f;
    for (int r = 0; r < kRows; r += 32) convert32(s[j] + r, p[j] + r);
  }
  gather_pairs<Q>(p, factor, rows.v, rows.stride_v, rows.count, padded, state, stride);
}

template <int Q>
void sized_pair_tile(const Attention<bf16>& a, const bf16* q, int64_t ldq, int64_t first, int64_t size,
                     const PairRows& rows, float* state) {
  if constexpr (Q > 1) {
    if (size < Q) return sized_pair_tile<Q - 1>(a, q, ldq, first, size, rows, state);
  }
  pair_tile<Q>(a, q, ldq, first, rows, state);
}
#endif

// Initial states, over no rows.
template <class T>
void clear(const Attention<T>& a, float* state) {
  const int64_t padded = a.padded(), stride = a.state_size();
  for (int64_t i = 0; i < a.queries(); i++) {
    std::fill(state + i * stride, state + (i + 1) * stride, 0.0f);
    state[i * stride + padded] = kMinusInf;
  }
}

// Keys and values of `count` contiguous rows of a head, from r on. Rows that are not contiguous in memory (some of the
// prefix, some of nodes), or include unread rows, are copied to `joined`, the unread ones as zeros.
template <class T>
std::pair<const T*, const T*> rows_of(const Attention<T>& a, int64_t head, int64_t r, int64_t count,
                                      std::vector<T>& joined) {
  const T *k = a.k + head * a.k_head, *v = a.v + head * a.v_head;
  const T *own_k = a.own_k + head * a.own_k_head, *own_v = a.own_v + head * a.own_v_head;
  const int64_t before = a.prefix - r;
  const bool together = own_k == k + a.prefix * a.D && own_v == v + a.prefix * a.D;
  const bool part = a.reads_part(r, r + count);
  if (!part && (together || before >= count)) return {k + r * a.D, v + r * a.D};
  if (before <= 0) return {own_k - before * a.D, own_v - before * a.D};
  joined.resize(2 * kBlock * a.D);
  T *joined_k = joined.data(), *joined_v = joined_k + kBlock * a.D;
  const auto join = [&](T* target, const T* first, const T* second) {
    const int64_t shared = std::min(before, count);
    std::memcpy(static_cast<void*>(target), first + r * a.D, shared * a.D * sizeof(T));
    std::memcpy(static_cast<void*>(target + shared * a.D), second, (count - shared) * a.D * sizeof(T));
    if (!part) return;
    const int64_t begin = std::max(r, a.unread.begin), end = std::min(r + count, a.unread.end);
    std::memset(static_cast<void*>(target + (begin - r) * a.D), 0, (end - begin) * a.D * sizeof(T));
  };
  join(joined_k, k, own_k);
  join(joined_v, v, own_v);
  return {joined_k, joined_v};
}

// Adds rows [begin, end) to the states [queries, state_size] of one kv head's queries; all blocks but the last are
// whole.
template <class T>
void attend_range(const Attention<T>& a, int64_t head, int64_t begin, int64_t end, float* state) {
  static thread_local Scratch scratch;
  static thread_local std::vector<const float*> q;
  static thread_local std::vector<T> joined;
  const int64_t padded = a.padded(), stride = a.state_size(), queries = a.queries();
  const int64_t tiles = ceil_div(queries, kQueries);
  q.resize(queries);
  const bool copy = padded != a.D || (sizeof(T) < sizeof(float) && queries > 2 * kQueries);
  float* kT = scratch.get<float>((copy ? 2 : 1) * padded * kBlock);
  float* copied = copy ? kT + padded * kBlock : nullptr;
  for (int64_t i = 0; i < queries; i++) q[i] = a.query(head, i);
  for (int64_t r = begin; r < end; r += kBlock) {
    const int64_t count = std::min<int64_t>(kBlock, end - r);
    if (a.skips(r, r + count)) continue;
    const auto [k, v] = rows_of(a, head, r, count, joined);
    const Rows<T> rows{r, count, a.hides(r, r + count), k, v, kT, copied};
    load_keys(rows.k, count, a.D, kT);
    if (copy) load_values(rows.v, count, a.D, padded, copied);
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t first = queries * t / tiles, size = queries * (t + 1) / tiles - first;
      sized_tile<T, kQueries>(a, q.data() + first, first, size, rows, state + first * stride);
    }
  }
}

#if defined(__AVX512BF16__) || defined(SSD_EMULATED_TILES)
template <>
inline void attend_range(const Attention<bf16>& a, int64_t head, int64_t begin, int64_t end, float* state) {
  static thread_local Scratch of_q, of_row, of_keys, of_values;
  static thread_local std::vector<bf16> joined;
  const int64_t queries = a.queries(), tiles = ceil_div(queries, kPairQueries);
  const int64_t ldq = ceil_div(a.D, kPairDepth) * kPairDepth, stride_v = ceil_div(a.D, kPanelColumns) * kPanelColumns;
  bf16* q = of_q.get<bf16>((queries + kPairQueries) * ldq);  // a tile may reach beyond the last query
  float* row = of_row.get<float>(ldq);
  std::fill(row, row + ldq, 0.0f);
  for (int64_t i = 0; i < queries; i++) {
    std::memcpy(row, a.query(head, i), a.D * sizeof(float));
    for (int64_t d = 0; d < ldq; d += 32) convert32(row + d, q + i * ldq + d);
  }
  uint32_t *kT = of_keys.get<uint32_t>(ldq / 2 * kRows), *vT = of_values.get<uint32_t>(kRows / 2 * stride_v);
  for (int64_t r = begin; r < end; r += kRows) {
    const int64_t count = std::min<int64_t>(kRows, end - r);
    if (a.skips(r, r + count)) continue;
    const auto [k, v] = rows_of(a, head, r, count, joined);
    load_key_pairs(k, count, a.D, kT);
    load_value_pairs(v, count, a.D, stride_v, vT);
    const PairRows rows{r, count, a.hides(r, r + count), kT, vT, stride_v};
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t first = queries * t / tiles, size = queries * (t + 1) / tiles - first;
      sized_pair_tile<kPairQueries>(a, q + first * ldq, ldq, first, size, rows, state + first * a.state_size());
    }
  }
}
#endif

// Adds a later chunk's state to the state of the chunks before it. Not inlined, so that all callers round the same.
__attribute__((noinline)) inline void fold(float* state, const float* chunk, int64_t padded) {
  const float before = state[padded], now = std::max(before, chunk[padded]);
  const float base = now == kMinusInf ? 0.0f : now;
  const float kept = std::exp(before - base), added = std::exp(chunk[padded] - base);
  for (int64_t d = 0; d < padded; d += VL) store(state + d, load(state + d) * kept + load(chunk + d) * added);
  state[padded] = now;
  state[padded + 1] = state[padded + 1] * kept + chunk[padded + 1] * added;
}

template <class T>
void write(const Attention<T>& a, int64_t head, int64_t i, const float* state, float* out) {
  float* o = out + (a.query(head, i) - a.q);
  const float share = 1.0f / state[a.padded() + 1];
  int64_t d = 0;
  for (; d + VL <= a.D; d += VL) store(o + d, load(state + d) * share);
  for (; d < a.D; d++) o[d] = state[d] * share;
}

// A task is one chunk of rows and the queries of one kv head or, if there are few chunks, of some of its nodes. The
// states of the chunks are added in their order.
template <class T>
void attend_group(Member& member, const Attention<T>& a, float* states, float* out) {
  const int64_t chunks = a.chunks_read(), queries = a.queries(), stride = a.state_size(), size = queries * stride;
  const int64_t wanted = ceil_div(kFewTasks * member.size, a.Hkv * chunks);
  const int64_t parts = std::clamp<int64_t>(std::min(wanted, queries / kFewQueries), 1, a.n);
  member.each(a.Hkv * chunks * parts, [&](int64_t t) {
    const int64_t whole = t / parts, head = whole / chunks, begin = a.chunk_begin(whole % chunks);
    const int64_t node = a.n * (t % parts) / parts, last = a.n * (t % parts + 1) / parts;
    const Attention<T> part = a.group(node, last - node);
    float* state = states + whole * size + node * a.G * stride;
    clear(part, state);
    attend_range(part, head, begin, std::min(part.rows(), begin + kChunk), state);
    for (int64_t i = 0; chunks == 1 && i < part.queries(); i++)
      write(part, head, i, state + i * stride, out + node * a.Hkv * a.G * a.D);
  });
  if (chunks == 1) return;
  member.each(a.Hkv * a.n, [&](int64_t t) {
    const int64_t head = t / a.n, first = t % a.n * a.G;
    for (int64_t i = first; i < first + a.G; i++) {
      float* state = states + head * chunks * size + i * stride;
      for (int64_t c = 1; c < chunks; c++) fold(state, state + c * size, a.padded());
      write(a, head, i, state, out);
    }
  });
}

// Nodes of a group, which read the rows once: as many as their states fit in memory.
template <class T>
int64_t nodes_at_a_time(const Attention<T>& a) {
  const int64_t held = kStates / (a.Hkv * a.chunks_read() * a.state_size() * a.G);
  return std::max<int64_t>(1, std::min({held, kGroup / a.G, a.n}));
}

// Number of floats in `states` of `attend`.
template <class T>
int64_t states_size(const Attention<T>& a) {
  return a.Hkv * a.chunks_read() * nodes_at_a_time(a) * a.G * a.state_size();
}

template <class T>
void attend(Member& member, const Attention<T>& a, float* states, float* out) {
  const int64_t groups = ceil_div(a.n, nodes_at_a_time(a));
  for (int64_t g = 0; g < groups; g++) {
    const int64_t begin = a.n * g / groups, count = a.n * (g + 1) / groups - begin;
    attend_group(member, a.group(begin, count), states, out + begin * a.Hkv * a.G * a.D);
  }
}

// B = n / r branches of r nodes each: all see the prefix, no branch sees another. A task is one kv head's queries of
// some branches, for which the prefix is converted once; the block in which the prefix ends is read per branch.
template <class T>
void attend_branches(Member& member, const Attention<T>& a, int64_t r, float* out) {
  const int64_t branches = a.n / r, parts = ceil_div(kFewTasks * member.size, a.Hkv);
  const int64_t size = std::max<int64_t>(1, std::min(kGroup / (r * a.G), ceil_div(branches, parts)));
  const int64_t groups = ceil_div(branches, size), node = a.Hkv * a.G * a.D, stride = a.state_size();
  const int64_t shared = a.prefix / kBlock * kBlock, end = a.prefix + r;
  member.each(a.Hkv * groups, [&](int64_t t) {
    static thread_local Scratch scratch;
    const int64_t head = t / groups, begin = t % groups * size, count = std::min(size, branches - begin);
    Attention<T> all = a;
    all.q = a.q + begin * r * node;
    all.n = count * r;
    const int64_t floats = all.queries() * stride;
    float *states = scratch.get<float>(2 * floats), *chunk = states + floats;
    for (int64_t from = 0; from < end; from += kChunk) {
      float* into = from ? chunk : states;
      const int64_t to = std::min(end, from + kChunk);
      clear(all, into);
      if (from < shared) attend_range(all, head, from, std::min(shared, to), into);
      for (int64_t b = 0; to > shared && b < count; b++) {
        Attention<T> one = a;
        const int64_t at = (begin + b) * r;
        one.q = a.q + at * node;
        one.own_k = a.own_k + at * a.D;
        one.own_v = a.own_v + at * a.D;
        one.n = one.own = r;
        attend_range(one, head, std::max(from, shared), to, into + b * one.queries() * stride);
      }
      if (from)
        for (int64_t i = 0; i < all.queries(); i++) fold(states + i * stride, chunk + i * stride, a.padded());
    }
    for (int64_t i = 0; i < all.queries(); i++)
      write(all, head, i, states + i * stride, out + begin * r * node);
  });
}

}  // namespace ssd
