// The most likely entry of a row of logits, and the sum of the row's exponentials.
#pragma once
#include <limits>

#include "simd.h"

namespace ssd {

constexpr int64_t kStretch = 16 * VL;  // logits of a stretch: first its maximum is found, later the maximum's index

// Loads VL logits from p; beyond the last logit, -inf.
inline vf load_logits(const float* p, int64_t count) {
  if (count >= VL) return load(p);
  float row[VL];
  for (int i = 0; i < VL; i++) row[i] = i < count ? p[i] : -std::numeric_limits<float>::infinity();
  return load(row);
}

// Index of the largest of N logits, the lowest among equals.
inline int64_t top_of(const float* row, int64_t N) {
  float best = -std::numeric_limits<float>::infinity();
  int64_t begin = 0;
  for (int64_t s = 0; s < N; s += kStretch) {
    vf most = splat(best);
    for (int64_t i = s; i < std::min(N, s + kStretch); i += VL) most = vmax(load_logits(row + i, N - i), most);
    const float largest = hmax(most);
    if (largest > best) best = largest, begin = s;
  }
  for (int64_t i = begin; i < std::min(N, begin + kStretch); i++)
    if (row[i] == best) return i;
  return 0;
}

// Sum of e^(x - best) over N logits.
inline float mass_of(const float* row, int64_t N, float best) {
  constexpr int SUMS = 4;
  vf sums[SUMS] = {};
  for (int64_t i = 0; i < N; i += SUMS * VL)
#pragma GCC unroll 4
    for (int s = 0; s < SUMS; s++)
      if (i + s * VL < N) sums[s] += vexp(load_logits(row + i + s * VL, N - i - s * VL) - best);
  return hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace ssd
