// Layout of a weight matrix: tiles of 16 outputs by 32 inputs, panel after panel, in the order in which products read
// them.
#pragma once
#include <cstdint>
#include <cstring>

#include "memory.h"
#include "simd.h"

namespace ssd {

constexpr int kPanel = 16;                 // outputs (rows of W) of a panel
constexpr int kDepth = 32;                 // inputs of a tile
constexpr int kTile = kPanel * kDepth;     // elements of a tile
constexpr int kVectors = kPanel / VL;      // vectors of a panel's sums

// A tile in 4 bits. The weight of an output is scale * v + minimum, where v is in 0..15; byte b of an output's word j has
// input 8 j + b in its low half and input 8 j + 4 + b in its high half.
struct Tile4 {
  uint32_t words[kDepth / 8][kPanel];
  f16 scale[kPanel], minimum[kPanel];
};

// Number of T in a tile.
template <class T>
constexpr int kUnits = kTile;
template <>
inline constexpr int kUnits<Tile4> = 1;

// Inputs that are adjacent for each output. bf16 comes in pairs: one instruction multiplies pairs, and each half of a
// 32-bit word becomes a float by one operation.
template <class T>
constexpr int kPair = 1;
template <>
inline constexpr int kPair<bf16> = 2;

// W [rows, width], padded with zeros to whole tiles. The index of element (r, c) runs over panel r / 16, tile c / 32,
// group of inputs, output r % 16, input of the group, the last one fastest.
template <class T>
struct Packed {
  using Type = T;
  const T* data;
  int64_t rows, width;

  int64_t panels() const { return ceil_div(rows, kPanel); }
  int64_t tiles() const { return ceil_div(width, kDepth); }
  const T* panel(int64_t p) const { return data + p * tiles() * kUnits<T>; }
  int64_t bytes() const { return panels() * tiles() * kUnits<T> * static_cast<int64_t>(sizeof(T)); }
  static int64_t inside(int64_t r, int64_t c) {
    const int64_t in = c % kDepth;
    return (in / kPair<T> * kPanel + r % kPanel) * kPair<T> + in % kPair<T>;
  }
};

// Packs the `count` row-major rows of one panel.
template <class T>
void pack_panel(const T* from, int64_t count, int64_t width, T* to) {
  constexpr int64_t kGroups = kDepth / kPair<T>;
  const int64_t tiles = ceil_div(width, kDepth);
  for (int64_t t = 0; t < tiles; t++, to += kTile) {
    const int64_t inputs = std::min<int64_t>(kDepth, width - t * kDepth);
    if (count == kPanel && inputs == kDepth) {  // a whole tile, group by group: 5 times as fast as the loop below
      for (int64_t g = 0; g < kGroups; g++)
        for (int64_t r = 0; r < kPanel; r++)
          std::memcpy(static_cast<void*>(to + (g * kPanel + r) * kPair<T>),
                      from + r * width + t * kDepth + g * kPair<T>, kPair<T> * sizeof(T));
      continue;
    }
    std::memset(static_cast<void*>(to), 0, kTile * sizeof(T));
    for (int64_t r = 0; r < count; r++)
      for (int64_t c = 0; c < inputs; c++) to[Packed<T>::inside(r, c)] = from[r * width + t * kDepth + c];
  }
}

// Packs the `count` rows of one panel in 4 bits: values [rows, tiles, 16], of which byte j has inputs j and j + 16.
inline void pack_panel(const uint8_t* values, const f16* scale, const f16* minimum, int64_t count, int64_t tiles,
                       Tile4* to) {
  for (int64_t t = 0; t < tiles; t++) {
    to[t] = {};
    for (int64_t r = 0; r < count; r++) {
      const int64_t at = r * tiles + t;
      for (int i = 0; i < kDepth; i++) {
        const uint32_t v = values[at * (kDepth / 2) + i % (kDepth / 2)] >> (i / (kDepth / 2) * 4) & 15;
        to[t].words[i / 8][r] |= v << (i % 4 * 8 + i / 4 % 2 * 4);
      }
      to[t].scale[r] = scale[at];
      to[t].minimum[r] = minimum[at];
    }
  }
}

// Row r as floats.
template <class T>
void unpack_row(const Packed<T>& W, int64_t r, float* to) {
  const T* panel = W.panel(r / kPanel);
  for (int64_t c = 0; c < W.width; c++)
    to[c] = static_cast<float>(panel[c / kDepth * kTile + Packed<T>::inside(r, c)]);
}

}  // namespace ssd
