// Scores and sums of a block of cache rows when both operands of products are bfloat16: keys and values are laid out in
// pairs, as the instruction that multiplies pairs reads them.
#pragma once
#include "simd.h"
#include "tiles.h"

namespace ssd {

constexpr int kRows = 64;           // rows of a block
constexpr int kPanelColumns = 16;  // dimensions of values that a tile holds
constexpr int kPairDepth = 32;     // dimensions that keys and queries are padded to, with zeros

// Prefetches a row of the next block while the same row of this block is read.
inline void fetch_next(const bf16* row, int64_t D) {
  fetch_ahead(reinterpret_cast<const char*>(row + kRows * D), D * sizeof(bf16));
}

// Loads the first `there` elements at p, followed by zeros.
template <class V>
inline V load_some(const bf16* p, int64_t there) {
  constexpr int64_t all = sizeof(V) / sizeof(bf16);
  if (there >= all) return load_as<V>(p);
  V v = {};
  if (there > 0) std::memcpy(&v, p, there * sizeof(bf16));
  return v;
}

// kT[i][r] = dimensions 2 i and 2 i + 1 of row r; rows are padded with zeros to a whole vector, dimensions to a
// multiple of kPairDepth.
inline void load_key_pairs(const bf16* src, int64_t count, int64_t D, uint32_t* kT) {
  const int64_t padded = ceil_div(D, kPairDepth) * kPairDepth;
  for (int64_t r = 0; r < count; r += VL) {
    for (int64_t i = r; i < std::min(count, r + VL); i++) fetch_next(src + i * D, D);
    for (int64_t d = 0; d < padded; d += 2 * VL) {
      vu v[VL];
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++) v[i] = load_some<vu>(src + (r + i) * D + d, r + i < count ? D - d : 0);
      transpose(v);
#pragma GCC unroll 16
      for (int i = 0; i < VL; i++) std::memcpy(kT + (d / 2 + i) * kRows + r, &v[i], sizeof(vu));
    }
  }
}

// v[i][d] = dimension d of rows 2 i and 2 i + 1, `stride` words from one pair of rows to the next; rows are padded with
// zeros to a multiple of kPairDepth.
inline void load_value_pairs(const bf16* src, int64_t count, int64_t D, int64_t stride, uint32_t* v) {
  for (int64_t r = 0; r < ceil_div(count, kPairDepth) * kPairDepth; r += 2) {
    if (r < count) fetch_next(src + r * D, 2 * D);
    for (int64_t d = 0; d < D; d += VL) {
      const vh first = load_some<vh>(src + r * D + d, r < count ? D - d : 0);
      const vh second = load_some<vh>(src + (r + 1) * D + d, r + 1 < count ? D - d : 0);
      const vu both = __builtin_convertvector(first, vu) | __builtin_convertvector(second, vu) << 16;
      std::memcpy(v + r / 2 * stride + d, &both, sizeof(vu));
    }
  }
}

#if defined(__AMX_BF16__) || defined(SSD_EMULATED_TILES)
constexpr int kPairQueries = kTileNodes;  // queries of one tile of scores

// s[j][r] = q[j] . k[r] * scale for 16 queries, of which only the first Q are valid.
template <int Q>
void score_pairs(const bf16* q, int64_t ldq, const uint32_t* kT, int64_t count, int64_t D, float scale,
                 float (*s)[kRows]) {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int64_t d = 0; d < D; d += kPairDepth) {
    const uint32_t* k = kT + d / 2 * kRows;
    tile_load<4>(q + d, ldq * sizeof(bf16));
    tile_load<5>(k, kRows * 4);
    tile_multiply<0, 4, 5>();
    tile_load<6>(k + 16, kRows * 4);
    tile_multiply<1, 4, 6>();
    tile_load<5>(k + 32, kRows * 4);
    tile_multiply<2, 4, 5>();
    tile_load<6>(k + 48, kRows * 4);
    tile_multiply<3, 4, 6>();
  }
  tile_store<0>(s[0], kRows * 4);
  tile_store<1>(s[0] + 16, kRows * 4);
  tile_store<2>(s[0] + 32, kRows * 4);
  tile_store<3>(s[0] + 48, kRows * 4);
  for (int j = 0; j < Q; j++)
    for (int r = 0; r < count; r += VL) store(s[j] + r, load(s[j] + r) * scale);
}

// state[j] = state[j] * factor[j] + sum_r p[j][r] v[r] for Q queries, with `columns` columns of values in a state.
template <int Q>
void gather_pairs(const bf16 (*p)[kRows], const float* factor, const uint32_t* v, int64_t stride_v, int64_t count,
                  int64_t columns, float* state, int64_t stride) {
  for (int64_t d = 0; d < columns; d += kTileRow / 4) {
    alignas(64) float sums[kTileNodes][kTileRow / 4] = {};
    const int64_t bytes = std::min<int64_t>(kTileRow / 4, columns - d) * sizeof(float);
    for (int j = 0; j < Q; j++) {
      std::memcpy(sums[j], state + j * stride + d, bytes);
      for (float& sum : sums[j]) sum *= factor[j];
    }
    tile_load<0>(sums, kTileRow);
    for (int64_t r = 0; r < count; r += kPairDepth) {
      tile_load<4>(p[0] + r, kRows * sizeof(bf16));
      tile_load<5>(v + r / 2 * stride_v + d, stride_v * 4);
      tile_multiply<0, 4, 5>();
    }
    tile_store<0>(sums[0], kTileRow);
    for (int j = 0; j < Q; j++) std::memcpy(state + j * stride + d, sums[j], bytes);
  }
}
#elif defined(__AVX512BF16__)
constexpr int kPairQueries = 6;

SSD_INLINE vf add_pairs(vf sum, const bf16* pair, const uint32_t* words) {
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(load_as<int32_t>(pair)),
                              (__m512bh)load_as<__m512i>(words));
}

template <int Q>
void score_pairs(const bf16* q, int64_t ldq, const uint32_t* kT, int64_t count, int64_t D, float scale,
                 float (*s)[kRows]) {
  constexpr int W = kRows / VL;
  vf acc[Q][W] = {};
  for (int64_t d = 0; d < D; d += 2) {
#pragma GCC unroll 8
    for (int j = 0; j < Q; j++)
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) acc[j][w] = add_pairs(acc[j][w], q + j * ldq + d, kT + d / 2 * kRows + w * VL);
  }
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W && w * VL < count; w++) store(s[j] + w * VL, acc[j][w] * scale);
}

template <int Q, int W>
inline void gather_columns(const bf16 (*p)[kRows], const float* factor, const uint32_t* v, int64_t stride_v,
                           int64_t count, float* state, int64_t stride) {
  vf acc[Q][W];
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W; w++) acc[j][w] = load(state + j * stride + w * VL) * factor[j];
  for (int64_t r = 0; r < count; r += 2)
#pragma GCC unroll 8
    for (int j = 0; j < Q; j++)
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) acc[j][w] = add_pairs(acc[j][w], p[j] + r, v + r / 2 * stride_v + w * VL);
  for (int j = 0; j < Q; j++)
    for (int w = 0; w < W; w++) store(state + j * stride + w * VL, acc[j][w]);
}

template <int Q>
void gather_pairs(const bf16 (*p)[kRows], const float* factor, const uint32_t* v, int64_t stride_v, int64_t count,
                  int64_t columns, float* state, int64_t stride) {
  constexpr int wide = 4;
  int64_t d = 0;
  for (; d + wide * VL <= columns; d += wide * VL)
    gather_columns<Q, wide>(p, factor, v + d, stride_v, count, state + d, stride);
  for (; d < columns; d += VL) gather_columns<Q, 1>(p, factor, v + d, stride_v, count, state + d, stride);
}
#endif

}  // namespace ssd
