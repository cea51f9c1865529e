// A CPU's matrix unit (AMX): eight registers of 16 rows by 64 bytes, and an instruction that multiplies two of them.
// SSD_EMULATED_TILES: the same in plain C++, so that kernels for this unit can be tested on any CPU.
#pragma once
#include <cstdint>

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(SSD_EMULATED_TILES)
#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstring>
#endif

namespace ssd {

constexpr int kTileNodes = 16;  // rows of a register
constexpr int kTileRow = 64;    // bytes of a row

#if defined(__AMX_BF16__)
constexpr bool kTileUnit = true;

// Requests the registers for this process from Linux, which is needed once; returns whether they were granted.
inline bool tiles_given() {
  constexpr int64_t request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

// Configures this thread's registers, all with their full size, for the lifetime of the object.
class TileRegisters {
 public:
  TileRegisters() {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    asm volatile("ldtilecfg %0" ::"m"(shape));
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { asm volatile("tilerelease"); }
};

template <int R>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(R));
}
// Rows are `stride` bytes from one to the next.
template <int R>
inline void tile_load(const void* p, int64_t stride = kTileRow) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(R) : "memory");
}
template <int R>
inline void tile_store(float* p, int64_t stride = kTileRow) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(R) : "memory");
}
// C [node][output] += A [node][pair] B [pair][output], pairs of bfloat16.
template <int C, int A, int B>
inline void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
#elif defined(SSD_EMULATED_TILES)
constexpr bool kTileUnit = true;
inline bool tiles_given() { return true; }

struct TileRegisters {
  TileRegisters() {}
};

inline thread_local float tile_registers[8][kTileNodes][kTileRow / 4];

template <int R>
inline void tile_zero() {
  std::memset(tile_registers[R], 0, sizeof(tile_registers[R]));
}
template <int R>
inline void tile_load(const void* p, int64_t stride = kTileRow) {
  for (int row = 0; row < kTileNodes; row++)
    std::memcpy(tile_registers[R][row], static_cast<const char*>(p) + row * stride, kTileRow);
}
template <int R>
inline void tile_store(float* p, int64_t stride = kTileRow) {
  for (int row = 0; row < kTileNodes; row++)
    std::memcpy(reinterpret_cast<char*>(p) + row * stride, tile_registers[R][row], kTileRow);
}
// In the unit's order of sums: a chain over even inputs, a chain over odd inputs, and their total is added to the
// register.
template <int C, int A, int B>
inline void tile_multiply() {
  constexpr int pairs = kTileRow / 4, outputs = kTileRow / 4;
  c10::BFloat16 a[kTileNodes][pairs][2], b[pairs][outputs][2];
  std::memcpy(static_cast<void*>(a), tile_registers[A], sizeof(a));
  std::memcpy(static_cast<void*>(b), tile_registers[B], sizeof(b));
  for (int node = 0; node < kTileNodes; node++)
    for (int output = 0; output < outputs; output++) {
      float sums[2] = {0.0f, 0.0f};
      for (int pair = 0; pair < pairs; pair++)
        for (int i = 0; i < 2; i++)
          sums[i] = std::fma(static_cast<float>(a[node][pair][i]), static_cast<float>(b[pair][output][i]), sums[i]);
      tile_registers[C][node][output] += sums[0] + sums[1];
    }
}
#else
constexpr bool kTileUnit = false;
inline bool tiles_given() { return true; }

struct TileRegisters {
  TileRegisters() {}
};
#endif

}  // namespace ssd
