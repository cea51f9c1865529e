// Limits of this machine, with the threads and the instruction level of the other kernels: bytes per second of pure
// reading, and operations per second of multiply-adds that stay in registers.
#pragma once
#include <c10/util/Exception.h>

#include <chrono>
#include <map>
#include <string>

#include "memory.h"
#include "simd.h"
#include "team.h"

namespace ssd {

using Speeds = std::map<std::string, std::vector<double>>;  // kernel -> speed of every round

constexpr int64_t kTask = 2 * kHugePage;  // bytes that a thread reads at a time

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline uint32_t sum_words(vu v) {
  uint32_t sum = 0;
  for (int i = 0; i < VL; i++) sum += v[i];
  return sum;
}

// Sum of the 32-bit words of a task, read as STREAMS equal parts in parallel, prefetched AHEAD bytes before their use.
template <int STREAMS, int AHEAD>
uint32_t read_task(const char* task) {
  constexpr int SUMS = 8 / STREAMS;  // sums of a stream
  constexpr int64_t part = kTask / STREAMS, step = SUMS * sizeof(vu);
  vu sums[STREAMS][SUMS] = {};
  for (int64_t at = 0; at < part; at += step) {
#pragma GCC unroll 8
    for (int s = 0; s < STREAMS; s++) {
      const char* p = task + s * part + at;
      if constexpr (AHEAD > 0)
        for (int64_t line = 0; line < step; line += kCacheLine) __builtin_prefetch(p + AHEAD + line);
#pragma GCC unroll 8
      for (int i = 0; i < SUMS; i++) sums[s][i] += load_as<vu>(p + i * sizeof(vu));
    }
  }
  vu total = {};
  for (const auto& stream : sums)
    for (const vu& sum : stream) total += sum;
  return sum_words(total);
}

struct Reader {
  const char* name;
  uint32_t (*read)(const char*);
};
constexpr Reader kReaders[] = {
    {"1 stream", &read_task<1, 0>},
    {"2 streams", &read_task<2, 0>},
    {"4 streams", &read_task<4, 0>},
    {"8 streams", &read_task<8, 0>},
    {"1 stream, 1 KiB ahead", &read_task<1, 1024>},
    {"1 stream, 4 KiB ahead", &read_task<1, 4096>},
    {"4 streams, 1 KiB ahead", &read_task<4, 1024>},
};

// Bytes per second of every reader over a buffer of about so many bytes. The readers take turns, so that a drift of the
// machine affects all of them equally. Empty if huge pages are requested and the system gives none.
inline Speeds read_speeds(int64_t bytes, bool huge, int64_t rounds) {
  const int64_t tasks = std::max<int64_t>(1, bytes / kTask), words = tasks * kTask / 4;
  const Pages pages(tasks * kTask, huge);
  Speeds speeds;
  if (!pages.given) return speeds;
  share_out(tasks, true, [&](int64_t t) {  // the threads that read them touch them first
    for (int64_t i = 0; i < kTask / 4; i++) {
      const auto word = static_cast<uint32_t>(t * (kTask / 4) + i);
      std::memcpy(pages.data + t * kTask + 4 * i, &word, 4);
    }
  });
  const auto expected = static_cast<uint32_t>(uint64_t(words) * uint64_t(words - 1) / 2);
  for (int64_t round = 0; round < rounds; round++)
    for (const Reader& reader : kReaders) {
      std::atomic<uint32_t> sum{0};
      const auto begin = std::chrono::steady_clock::now();
      share_out(tasks, true, [&](int64_t t) { sum += reader.read(pages.data + t * kTask); });
      speeds[reader.name].push_back(tasks * kTask / seconds_since(begin));
      TORCH_CHECK(sum == expected, reader.name, " did not read every word once");
    }
  return speeds;
}

// Multiply-adds on SUMS vectors, each of which depends only on its own last result.
template <int SUMS>
float multiply_add(int64_t steps, float factor, float term) {
  const vf a = splat(factor), b = splat(term);
  vf sums[SUMS], total = {};
  for (int i = 0; i < SUMS; i++) sums[i] = splat(factor * i);  // unequal, or one could stand for all
  for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 32
    for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * a + b;
  for (const vf& sum : sums) total += sum;
  return hsum(total);
}

#if defined(__AVX512BF16__)
// The same with bfloat16 products of pairs; the two products of a pair cancel, so that every sum keeps its value.
template <int SUMS>
float add_products(int64_t steps, float factor, float term) {
  vf opposite = splat(term);
  for (int i = 1; i < VL; i += 2) opposite[i] = -term;
  const __m512bh a = _mm512_cvtne2ps_pbh((__m512)splat(factor), (__m512)splat(factor));
  const __m512bh b = _mm512_cvtne2ps_pbh((__m512)opposite, (__m512)opposite);
  vf sums[SUMS], total = {};
  for (int i = 0; i < SUMS; i++) sums[i] = splat(factor * i);
  for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 32
    for (int i = 0; i < SUMS; i++) sums[i] = (vf)_mm512_dpbf16_ps((__m512)sums[i], a, b);
  for (const vf& sum : sums) total += sum;
  return hsum(total);
}
#endif

#if defined(__AMX_BF16__) || defined(SSD_EMULATED_TILES)
// The same on four tiles, the number in which products keep their sums.
inline float multiply_tiles(int64_t steps, float factor, float term) {
  alignas(64) bf16 nodes[kTileNodes][kTileRow / 2], outputs[kTileNodes][kTileRow / 2];
  alignas(64) float sums[4][kTileNodes][kTileRow / 4];
  for (int row = 0; row < kTileNodes; row++)
    for (int i = 0; i < kTileRow / 2; i++) {
      nodes[row][i] = factor;
      outputs[row][i] = i % 2 ? -term : term;
    }
  for (int tile = 0; tile < 4; tile++) std::fill_n(sums[tile][0], kTileNodes * kTileRow / 4, factor * tile);
  tile_load<0>(sums[0]);
  tile_load<1>(sums[1]);
  tile_load<2>(sums[2]);
  tile_load<3>(sums[3]);
  tile_load<4>(nodes);
  tile_load<5>(nodes);
  tile_load<6>(outputs);
  tile_load<7>(outputs);
  for (int64_t step = 0; step < steps; step++) {
    tile_multiply<0, 4, 6>();
    tile_multiply<1, 4, 7>();
    tile_multiply<2, 5, 6>();
    tile_multiply<3, 5, 7>();
  }
  tile_store<0>(sums[0][0]);
  tile_store<1>(sums[1][0]);
  tile_store<2>(sums[2][0]);
  tile_store<3>(sums[3][0]);
  float total = 0.0f;
  for (const auto& tile : sums)
    for (const auto& row : tile)
      for (const float sum : row) total += sum;
  return total;
}
constexpr int kTileLanes = kTileNodes * kTileRow / 4 / VL;  // vectors that a tile stands for
#endif

struct Product {
  const char* name;
  float (*run)(int64_t, float, float);
  int sums;
  double operations;  // per lane and step
  float lane;         // final value of a lane, averaged over all sums
};
// The number of sums that hides a unit's latency depends on the CPU, and so does the number that fits in registers.
constexpr Product kProducts[] = {
    {"8 sums", &multiply_add<8>, 8, 2, 2},
    {"12 sums", &multiply_add<12>, 12, 2, 2},
    {"16 sums", &multiply_add<16>, 16, 2, 2},
    {"24 sums", &multiply_add<24>, 24, 2, 2},
#if defined(__AVX512BF16__)
    {"8 sums of bfloat16 pairs", &add_products<8>, 8, 4, 1.75f},
    {"16 sums of bfloat16 pairs", &add_products<16>, 16, 4, 3.75f},
    {"24 sums of bfloat16 pairs", &add_products<24>, 24, 4, 5.75f},
#endif
#if defined(__AMX_BF16__) || defined(SSD_EMULATED_TILES)
    {"4 tiles of bfloat16 pairs", &multiply_tiles, 4 * kTileLanes, kTileRow, 0.75f},
#endif
};

// Operations per second of all threads, by kind and number of sums; the kinds take turns like the readers.
inline Speeds product_speeds(int64_t steps, int64_t rounds) {
  steps = std::max<int64_t>(steps, 64);  // by then every lane is at its limit, term / (1 - factor) = 2
  const volatile float factor = 0.5f, term = 1.0f;  // neither known to the compiler nor ever denormal or infinite
  const int64_t threads = at::get_num_threads();
  Speeds speeds;
  for (int64_t round = 0; round < rounds; round++)
    for (const Product& product : kProducts) {
      std::vector<float> results(threads);
      const auto begin = std::chrono::steady_clock::now();
      share_out(threads, true, [&](int64_t t) { results[t] = product.run(steps, factor, term); });
      const double operations = product.operations * VL * product.sums * static_cast<double>(steps * threads);
      speeds[product.name].push_back(operations / seconds_since(begin));
      const float exact = product.lane * VL * product.sums;
      for (const float result : results)
        TORCH_CHECK(result == exact, product.name, " computed ", result, " instead of ", exact);
    }
  return speeds;
}

}  // namespace ssd
