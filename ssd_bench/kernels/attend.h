// Attention of n nodes over a key/value cache: flash-decoding over (kv head, split of the cache rows).
#pragma once
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace ssd {

constexpr int kBlock = 64;                        // cache rows converted and scored at a time
constexpr int kQueries = kManyRegisters ? 4 : 2;  // queries of one register tile
constexpr int kWide = 4;                          // vectors of one register tile
constexpr int64_t kMaxSplits = 16;                // per kv head; fixed, so results do not depend on the thread count
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
static_assert(kBlock % (VL * kWide) == 0, "a block is a whole number of register tiles");

// Shapes and pointers of one call; k and v are [Hkv, cap, D] with row stride D.
template <class T>
struct Attention {
  const float* q;  // [n, Hkv * G, D]
  const T *k, *v;
  int64_t k_head, v_head;  // strides of dim 0, elements
  const uint8_t* mask;     // [n, n] or null for the causal chain
  int64_t n, G, Hkv, D, prefix, row;
  float scale;

  int64_t padded() const { return ceil_div(D, VL) * VL; }
  int64_t queries() const { return n * G; }
  int64_t chunk() const { return ceil_div(std::max<int64_t>(prefix, 1), kBlock * kMaxSplits) * kBlock; }
  int64_t prefix_splits() const { return ceil_div(prefix, chunk()); }
  int64_t splits() const { return prefix_splits() + 1; }  // the last one is the n new rows
  // Running state of one query: accumulated values, then maximum and sum (padded to a whole vector).
  int64_t state_size() const { return padded() + VL; }
  const float* query(int64_t head, int64_t i) const { return q + ((i / G) * Hkv * G + head * G + i % G) * D; }
};

template <class T>
inline vf load_part(const T* p, int64_t count) {
  if (count >= VL) return load1(p);
  T tmp[VL];
  std::memset(static_cast<void*>(tmp), 0, sizeof(tmp));
  if (count > 0) std::memcpy(static_cast<void*>(tmp), p, count * sizeof(T));
  return load1(tmp);
}

// keys: kT[d][r] for r < count, rows up to the next multiple of VL zero.
template <class T>
void load_keys(const T* src, int64_t count, int64_t D, float* kT) {
  for (int64_t r = 0; r < count; r += VL) {
    for (int64_t d = 0; d < D; d += VL) {
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

// s[j][r] = q[j] . k[r] * scale
template <int Q>
void score(const float* const* q, const float* kT, int64_t count, int64_t D, float scale, float (*s)[kBlock]) {
  for (int64_t r = 0; r < count; r += kWide * VL) {
    vf acc[Q][kWide] = {};
    for (int64_t d = 0; d < D; d++) {
      const float* k = kT + d * kBlock + r;
      for (int w = 0; w < kWide; w++)
        for (int j = 0; j < Q; j++) acc[j][w] += load(k + w * VL) * q[j][d];
    }
    for (int j = 0; j < Q; j++)
      for (int w = 0; w < kWide; w++) store(&s[j][r + w * VL], acc[j][w] * scale);
  }
}

// Turns one query's scores (kBlock of them, masked ones -inf) into weights; returns the factor for the old state.
inline float soften(float* s, int64_t count, float* state_max) {
  vf top = splat(kMinusInf);
  for (int64_t r = 0; r < count; r += VL) top = vmax(load(s + r), top);
  const float old = state_max[0], now = std::max(old, hmax(top));
  const float base = now == kMinusInf ? 0.0f : now;  // nothing visible yet: every weight below is exp(-inf) = 0
  vf sum = {};
  for (int64_t r = 0; r < count; r += VL) {
    const vf p = vexp(load(s + r) - base);
    store(s + r, p);
    sum += p;
  }
  const float factor = std::exp(old - base);
  state_max[0] = now;
  state_max[1] = state_max[1] * factor + hsum(sum);
  return factor;
}

// state[j][d] = state[j][d] * factor[j] + sum_r s[j][r] v[r][d], for W vectors of d.
template <int Q, int W>
inline void gather_part(const float (*s)[kBlock], const float* factor, const float* v, int64_t count, int64_t padded,
                        float* state, int64_t stride) {
  vf acc[Q][W];
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W; w++) acc[j][w] = load(state + j * stride + w * VL) * factor[j];
  for (int64_t r = 0; r < count; r++)
    for (int w = 0; w < W; w++) {
      const vf value = load(v + r * padded + w * VL);
      for (int j = 0; j < Q; j++) acc[j][w] += value * s[j][r];
    }
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W; w++) store(state + j * stride + w * VL, acc[j][w]);
}

struct Rows {
  int64_t first, count, padded_count;  // of this block within its range
  bool masked;
};

template <class T, int Q>
void query_tile(const Attention<T>& a, int64_t head, int64_t first, const Rows& rows, const float* kT, const float* v,
                float* state) {
  alignas(64) float s[Q][kBlock];
  const float* q[Q];
  float factor[Q];
  const int64_t padded = a.padded(), stride = a.state_size();
  for (int j = 0; j < Q; j++) q[j] = a.query(head, first + j);
  score<Q>(q, kT, rows.count, a.D, a.scale, s);
  for (int j = 0; j < Q; j++) {
    for (int64_t r = rows.count; r < rows.padded_count; r++) s[j][r] = kMinusInf;
    if (rows.masked) {
      const int64_t node = (first + j) / a.G;
      for (int64_t r = 0; r < rows.count; r++) {
        const int64_t other = rows.first + r;
        if (!(a.mask ? a.mask[node * a.n + other] != 0 : other <= node)) s[j][r] = kMinusInf;
      }
    }
    factor[j] = soften(s[j], rows.padded_count, state + j * stride + padded);
  }
  int64_t d = 0;
  for (; d + kWide * VL <= padded; d += kWide * VL)
    gather_part<Q, kWide>(s, factor, v + d, rows.count, padded, state + d, stride);
  for (; d < padded; d += VL) gather_part<Q, 1>(s, factor, v + d, rows.count, padded, state + d, stride);
}

// All of one kv head's queries over cache rows [begin, end); state: [queries, state_size].
template <class T>
void attend_range(const Attention<T>& a, int64_t head, int64_t begin, int64_t end, bool masked, float* state) {
  static thread_local Scratch scratch;
  const int64_t padded = a.padded(), stride = a.state_size(), queries = a.queries();
  float* kT = scratch.get(2 * padded * kBlock);
  float* v = kT + padded * kBlock;
  for (int64_t i = 0; i < queries; i++) {
    std::fill(state + i * stride, state + (i + 1) * stride, 0.0f);
    state[i * stride + padded] = kMinusInf;
  }
  for (int64_t r = begin; r < end; r += kBlock) {
    const int64_t count = std::min<int64_t>(kBlock, end - r);
    const Rows rows{r - begin, count, ceil_div(count, VL) * VL, masked};
    load_keys(a.k + head * a.k_head + r * a.D, count, a.D, kT);
    load_values(a.v + head * a.v_head + r * a.D, count, a.D, padded, v);
    for (int64_t i = 0; i < queries; i += kQueries) {
      float* st = state + i * stride;
      switch (std::min<int64_t>(kQueries, queries - i)) {
        case 1: query_tile<T, 1>(a, head, i, rows, kT, v, st); break;
        case 2: query_tile<T, 2>(a, head, i, rows, kT, v, st); break;
        case 3: query_tile<T, 3>(a, head, i, rows, kT, v, st); break;
        default: query_tile<T, kQueries>(a, head, i, rows, kT, v, st);
      }
    }
  }
}

// out[d] = sum_s exp(max_s - max) acc_s[d] / sum_s exp(max_s - max) sum_s
template <class T>
void merge(const Attention<T>& a, int64_t head, int64_t i, const float* states, float* out) {
  const int64_t padded = a.padded(), stride = a.state_size(), step = a.queries() * stride, splits = a.splits();
  const float* st = states + head * splits * step + i * stride;
  float factor[kMaxSplits + 1], top = kMinusInf, sum = 0.0f;
  for (int64_t s = 0; s < splits; s++) top = std::max(top, st[s * step + padded]);
  for (int64_t s = 0; s < splits; s++) {
    factor[s] = std::exp(st[s * step + padded] - top);
    sum += factor[s] * st[s * step + padded + 1];
  }
  float* o = out + (a.query(head, i) - a.q);
  for (int64_t d = 0; d < a.D; d += VL) {
    vf acc = {};
    for (int64_t s = 0; s < splits; s++) acc += load(st + s * step + d) * factor[s];
    acc = acc / sum;
    std::memcpy(o + d, &acc, std::min<int64_t>(VL, a.D - d) * sizeof(float));
  }
}

template <class T>
void attend(const Attention<T>& a, float* out) {
  static thread_local Scratch scratch;
  const int64_t splits = a.splits(), size = a.queries() * a.state_size(), chunk = a.chunk();
  float* states = scratch.get(a.Hkv * splits * size);
  at::parallel_for(0, a.Hkv * splits, 1, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) {
      const int64_t head = t / splits, split = t % splits;
      const bool tail = split == splits - 1;
      const int64_t begin = tail ? a.row : split * chunk;
      const int64_t end = tail ? a.row + a.n : std::min(a.prefix, begin + chunk);
      attend_range(a, head, begin, end, tail, states + t * size);
    }
  });
  const int64_t queries = a.queries(), grain = std::max<int64_t>(1, 16384 / (splits * a.padded()));
  at::parallel_for(0, a.Hkv * queries, grain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) merge(a, t / queries, t % queries, states, out);
  });
}

}  // namespace ssd
