// Memory in huge pages, through which a core can prefetch without an address translation every 4 KiB.
#pragma once
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace ssd {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kChunkBytes = 16 * kHugePage;  // size of a chunk, which holds one matrix after the other

// An allocation in huge pages, or explicitly not in huge pages; `given` is false if the system does not support that.
class Pages {
 public:
  Pages(int64_t bytes, bool huge) : size_(bytes + kHugePage) {
#if defined(MADV_HUGEPAGE)
    start_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(start_ != MAP_FAILED, "no memory for ", bytes, " bytes");
    const bool advised = madvise(start_, size_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0;
    given = advised || !huge;
#else
    start_ = ::operator new(size_);
    given = !huge;
#endif
    data = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(start_) + kHugePage - 1) & -uintptr_t{kHugePage});
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
#if defined(MADV_HUGEPAGE)
    munmap(start_, size_);
#else
    ::operator delete(start_);
#endif
  }

  char* data;
  bool given;

 private:
  void* start_;
  size_t size_;
};

// A part of an allocation, which lives as long as its last part.
struct Part {
  std::shared_ptr<Pages> pages;
  char* data = nullptr;
};

// Takes the next `bytes` of a chunk that many parts share, so that a small part does not take a huge page for itself.
inline Part take_part(int64_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<Pages> last;  // weak: a chunk without parts is freed
  static int64_t used = 0;
  const std::lock_guard<std::mutex> guard(mutex);
  const int64_t taken = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (taken > kChunkBytes) {
    auto own = std::make_shared<Pages>(taken, true);
    return {own, own->data};
  }
  auto pages = last.lock();
  if (!pages || used + taken > kChunkBytes) {
    pages = std::make_shared<Pages>(kChunkBytes, true);
    last = pages;
    used = 0;
  }
  used += taken;
  return {pages, pages->data + used - taken};
}

}  // namespace ssd
