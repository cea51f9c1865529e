// The threads of one call: the distribution of its tasks, and the barrier between two of its phases.
#pragma once
#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "tiles.h"

namespace ssd {

constexpr int kSpins = 4000;  // before a waiting thread yields: the thread that it waits for may need the core

// One thread of a team, in the parallel region. All members must call `each` and `wait` equally often.
class Member {
 public:
  struct alignas(64) Count {
    std::atomic<int64_t> taken{0};
  };
  // Numbers of taken tasks, by phase (of three in turn) and member; the slots of the next phase are cleared in advance.
  struct Shared {
    explicit Shared(int size) : counts(3 * size) {}
    std::vector<Count> counts;
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> generation{0};
  };

  Member(Shared& shared, int id, int size) : id(id), size(size), shared_(shared) {}

  // First of a member's own tasks out of `count`; for id = size, the end of all tasks.
  static int64_t begin(int64_t count, int id, int size) { return count * id / size; }

  // Runs f(0) .. f(count - 1), each by one member, and returns when all are done. A member first runs a contiguous
  // range of tasks, and then tasks that others have not started: a slow or busy core delays a call by one task, not by
  // its share.
  template <class F>
  void each(int64_t count, const F& f) {
    if (size == 1) {
      for (int64_t t = 0; t < count; t++) f(t);
      return;
    }
    Count *counts = shared_.counts.data() + phase_ % 3 * size, *next = shared_.counts.data() + (phase_ + 1) % 3 * size;
    next[id].taken.store(0, std::memory_order_relaxed);
    phase_++;
    for (int turn = 0; turn < size; turn++) {
      const int whose = (id + turn) % size;
      const int64_t first = begin(count, whose, size), end = begin(count, whose + 1, size);
      while (counts[whose].taken.load(std::memory_order_relaxed) < end - first) {
        const int64_t t = first + counts[whose].taken.fetch_add(1, std::memory_order_relaxed);
        if (t < end) f(t);
      }
    }
    wait();
  }

  // Barrier: returns when all members have called it.
  void wait() {
    if (size == 1) return;
    const int now = shared_.generation.load(std::memory_order_relaxed);
    if (shared_.arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      shared_.arrived.store(0, std::memory_order_relaxed);
      shared_.generation.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; shared_.generation.load(std::memory_order_acquire) == now; spins++) {
      if (spins >= kSpins) std::this_thread::yield();
#if defined(__SSE2__)
      else _mm_pause();
#endif
    }
  }

  const int id, size;

 private:
  Shared& shared_;
  int64_t phase_ = 0;
};

// Runs f(member) on all of torch's threads, or on this thread alone.
template <class F>
void with_team(bool parallel, const F& f) {
  const int threads = parallel && !omp_in_parallel() ? at::get_num_threads() : 1;
  Member::Shared shared(threads);
  if (threads == 1) {
    const TileRegisters registers;
    Member alone(shared, 0, 1);
    f(alone);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    // the system may give fewer threads than requested
    Member member(shared, omp_get_thread_num(), omp_get_num_threads());
    f(member);
  }
}

// Runs f(0) .. f(count - 1) by a team of its own.
template <class F>
void share_out(int64_t count, bool parallel, const F& f) {
  with_team(parallel && count > 1, [&](Member& member) { member.each(count, f); });
}

}  // namespace ssd
