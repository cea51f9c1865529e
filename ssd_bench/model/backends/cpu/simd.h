// Vector types, loads with conversion to float32, exp and reductions, through GCC/Clang vector extensions.
#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace ssd {

using bf16 = c10::BFloat16;
using f16 = c10::Half;

#if defined(__AVX512F__)
constexpr int VL = 16;  // float lanes of one vector
#elif defined(__AVX__)
constexpr int VL = 8;
#else
constexpr int VL = 4;
#endif
#if defined(__AVX__) && !defined(__AVX512F__)
constexpr bool kManyRegisters = false;  // 16 vector registers; AVX-512 and NEON have 32
#else
constexpr bool kManyRegisters = true;
#endif
constexpr int64_t kSerialWork = 1 << 15;  // multiply-adds below which a second thread costs more than it saves

typedef float vf __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef int8_t vb __attribute__((vector_size(VL)));

// Register tiles must stay in registers: the compiler must not give up on inlining them.
#define SSD_INLINE inline __attribute__((always_inline))

// One shuffle spelling for both compilers: GCC before 12 has no __builtin_shufflevector, Clang no __builtin_shuffle.
#if defined(__clang__)
#define SSD_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SSD_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ::ssd::vi{__VA_ARGS__})
#endif
#if defined(__AVX512F__)
#define SSD_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SSD_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define SSD_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define SSD_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX__)
#define SSD_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define SSD_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define SSD_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define SSD_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define SSD_LOW 0, 4, 1, 5
#define SSD_HIGH 2, 6, 3, 7
#define SSD_EVEN 0, 2, 4, 6
#define SSD_ODD 1, 3, 5, 7
#endif

template <class V>
inline V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}
inline vf load(const float* p) { return load_as<vf>(p); }
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof(v)); }
inline vf splat(float x) { return vf{} + x; }
inline vf vmax(vf a, vf b) { return a > b ? a : b; }

// VL consecutive elements as float32.
inline vf load1(const float* p) { return load(p); }
inline vf load1(const bf16* p) {
#if defined(__AVX512F__)
  // GCC would convert in two halves: it prefers 256-bit code for these cores.
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_as<__m256i>(p)), 16);
#else
  return (vf)(__builtin_convertvector(load_as<vh>(p), vu) << 16);
#endif
}
inline vf load1(const f16* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(load_as<__m256i>(p));
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps(load_as<__m128i>(p));
#elif defined(__aarch64__)
  return (vf)vcvt_f32_f16(load_as<float16x4_t>(p));
#else
  vf v;
  for (int i = 0; i < VL; i++) v[i] = static_cast<float>(p[i]);
  return v;
#endif
}

inline vf load1(const int8_t* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(p)));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(__builtin_convertvector(load_as<vb>(p), vi), vf);
#endif
}

#if defined(__AVX512BF16__) || defined(SSD_EMULATED_TILES)
constexpr bool kRounds = true;  // operands of products with bfloat16 are rounded to bfloat16
#else
constexpr bool kRounds = false;
#endif

// Converts 32 floats into operands of a product: unchanged, or rounded to nearest, ties to even.
inline void convert32(const float* from, float* to) { std::memcpy(to, from, 32 * sizeof(float)); }
inline void convert32(const float* from, bf16* to) {
#if defined(__AVX512BF16__)
  const __m512bh rounded = _mm512_cvtne2ps_pbh((__m512)load(from + 16), (__m512)load(from));
  std::memcpy(static_cast<void*>(to), &rounded, sizeof(rounded));
#else
  for (int i = 0; i < 32; i++) to[i] = static_cast<bf16>(from[i]);
#endif
}

// Converts floats to another type.
template <class T>
inline void convert(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (kRounds && std::is_same_v<T, bf16>)
    for (; i + 32 <= count; i += 32) convert32(from + i, to + i);
  for (; i < count; i++) to[i] = static_cast<T>(from[i]);
}

inline float hsum(vf v) {
  const vf zero = {};
  for (int lanes = VL; lanes > 1; lanes /= 2) v = SSD_SHUFFLE(v, zero, SSD_EVEN) + SSD_SHUFFLE(v, zero, SSD_ODD);
  return v[0];
}
inline float hmax(vf v) {
  for (int lanes = VL; lanes > 1; lanes /= 2) v = vmax(SSD_SHUFFLE(v, v, SSD_EVEN), SSD_SHUFFLE(v, v, SSD_ODD));
  return v[0];
}

// Sums of N vectors, each added in the order of hsum; together they cost a quarter of N calls of hsum.
template <int N>
inline void hsum_each(const vf* v, float* sums) {
  for (int first = 0; first < N; first += VL) {
    vf t[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) t[i] = first + i < N ? v[first + i] : vf{};
    int left = N - first < VL ? N - first : VL;
#pragma GCC unroll 4
    for (int lanes = VL; lanes > 1; lanes /= 2) {
      left = (left + 1) / 2;
#pragma GCC unroll 8
      for (int i = 0; i < left; i++)
        t[i] = SSD_SHUFFLE(t[2 * i], t[2 * i + 1], SSD_EVEN) + SSD_SHUFFLE(t[2 * i], t[2 * i + 1], SSD_ODD);
      if (left < VL) t[left] = vf{};  // partner of an odd last vector
    }
    store(sums + first, t[0]);
  }
}

// In-register transpose of a VL x VL block: each round interleaves row i with row i + VL/2.
template <class V>
inline void transpose(V (&v)[VL]) {
#pragma GCC unroll 4
  for (int round = 1; round < VL; round *= 2) {
    V t[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL / 2; i++) {
      t[2 * i] = SSD_SHUFFLE(v[i], v[i + VL / 2], SSD_LOW);
      t[2 * i + 1] = SSD_SHUFFLE(v[i], v[i + VL / 2], SSD_HIGH);
    }
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) v[i] = t[i];
  }
}

constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the lowest bits

// e^x to about 1e-7 relative on [-87, 88]; 0 below (so -inf gives 0), e^88 above, NaN stays NaN.
inline vf vexp(vf x) {
  const vf low = splat(-87.0f), high = splat(88.0f), magic = splat(kToInteger);
  const vi tiny = x < low;
  x = tiny ? low : x;
  x = x > high ? high : x;
  const vf shifted = x * 1.44269504088896341f + magic;
  const vf n = shifted - magic;
  vf r = x - n * 0.693359375f;  // ln 2 in two parts, the first exact in few bits
  r = r + n * 2.12194440e-4f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vf e = (vf)((vi)p + (((vi)shifted - (vi)magic) << 23));
  return tiny ? vf{} : e;
}

// Prefetches `bytes` at p, which are read soon, into the second-level cache; the first-level cache has no room for
// them. Always inlined: a call without any other effect would be dropped.
SSD_INLINE void fetch_ahead(const char* p, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
}

// Grow-only buffer of whole cache lines that is kept between calls, so that calls allocate nothing.
class Scratch {
 public:
  template <class T>
  T* get(int64_t count) {
    const size_t bytes = count * sizeof(T) + 64;
    if (data_.size() < bytes) data_.assign(bytes, 0);
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(data_.data()) + 63) & ~uintptr_t{63});
  }

 private:
  std::vector<char> data_;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace ssd
