#include "strata/io/mapped_files.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kLongestPath = 511;

struct Entry {
  /// Whether a thread owns the entry.
  std::atomic<bool> taken{false};
  /// The first and the end address; equal while the entry is not complete.
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::array<char, kLongestPath + 1> path{};
};

// A signal handler can only access global state.
std::array<Entry, 1024> entries;
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);

}  // namespace

void add_mapped_file(std::span<const std::byte> bytes, std::string_view path) {
  for (Entry& entry : entries) {
    if (!entry.taken.exchange(true, std::memory_order_acquire)) {
      const std::string text = printable(path, kLongestPath);
      const std::size_t length = std::min(text.size(), kLongestPath);
      std::copy_n(text.begin(), length, entry.path.begin());
      entry.path[length] = '\0';
      const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
      entry.begin.store(begin, std::memory_order_relaxed);
      entry.end.store(begin + bytes.size(), std::memory_order_release);
      return;
    }
  }
}

void remove_mapped_file(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  for (Entry& entry : entries) {
    if (entry.begin.load(std::memory_order_relaxed) == begin &&
        entry.end.load(std::memory_order_relaxed) == begin + bytes.size()) {
      entry.end.store(0, std::memory_order_relaxed);
      entry.begin.store(0, std::memory_order_relaxed);
      entry.taken.store(false, std::memory_order_release);
      return;
    }
  }
}

const char* mapped_file_at(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Entry& entry : entries) {
    if (at < entry.end.load(std::memory_order_acquire) &&
        at >= entry.begin.load(std::memory_order_relaxed)) {
      return entry.path.data();
    }
  }
  return nullptr;
}

}  // namespace strata::io
