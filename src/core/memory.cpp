#include "strata/core/memory.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "strata/core/text.hpp"

namespace strata {
namespace {

std::atomic<std::int64_t> refused{0};

/// What operator new returns.
[[maybe_unused]] void* checked(void* memory, std::size_t bytes) {
  if (memory == nullptr) {
    refused = static_cast<std::int64_t>(bytes);
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

std::int64_t refused_bytes() noexcept {
  return refused;
}

bool memory_is_short(std::size_t bytes) noexcept {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return true;
  }
  ::munmap(memory, bytes);
  return false;
}

std::int64_t proc_bytes(const char* file, std::string_view key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = split_words(line, ": \t");
    std::int64_t kibibytes = 0;
    if (words.size() > 1 && words[0] == key && parse_int64(words[1], kibibytes)) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

std::int64_t private_bytes() {
  return proc_bytes("/proc/self/status", "RssAnon") + proc_bytes("/proc/self/status", "RssShmem");
}

std::string memory_advice() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return fmt::format(
      "the process has {} of address space{}; raise the limit or ask the job for more memory, or "
      "use fewer ranks on a node, fewer threads, a smaller batch.micro or a smaller model",
      bytes_text(pages * ::sysconf(_SC_PAGESIZE)),
      limited ? fmt::format(" and the limit is {} (ulimit -v)",
                            bytes_text(static_cast<std::int64_t>(limit.rlim_cur)))
              : "");
}

}  // namespace strata

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STRATA_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRATA_SANITIZED
#endif

#ifndef STRATA_SANITIZED

// As the library's, and they note the size, which std::bad_alloc does not hold. Weak: a test
// program may have its own.

[[gnu::weak]] void* operator new(std::size_t bytes) {
  return strata::checked(std::malloc(std::max<std::size_t>(bytes, 1)), bytes);
}

[[gnu::weak]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
  return strata::checked(whole < bytes ? nullptr : std::aligned_alloc(unit, whole), bytes);
}

[[gnu::weak]] void operator delete(void* memory) noexcept {
  std::free(memory);
}

[[gnu::weak]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

[[gnu::weak]] void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

[[gnu::weak]] void operator delete(void* memory, std::size_t /*bytes*/,
                                   std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

#endif
