#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace strata {

/// The size that operator new refused last, in any thread; 0 where it is not known.
[[nodiscard]] std::int64_t refused_bytes() noexcept;

/// A library got no memory. No reader takes it for damage of its file, as it would an Error.
class OutOfMemory : public std::bad_alloc {
 public:
  /// `what`: what was asked for.
  explicit OutOfMemory(const std::string& what) : what_(what) {}
  [[nodiscard]] const char* what() const noexcept override { return what_.what(); }

 private:
  std::runtime_error what_;  // whose copies do not throw
};

/// Whether the process cannot have so much more, by default more than the stack of a thread, as
/// under ulimit -v. A signal handler may call it.
[[nodiscard]] bool memory_is_short(std::size_t bytes = std::size_t{16} << 20) noexcept;

/// A size that Linux gives in a file, as "RssFile" in /proc/self/status; 0 where it gives none.
[[nodiscard]] std::int64_t proc_bytes(const char* file, std::string_view key);
/// Resident memory of this process besides mapped files, in bytes.
[[nodiscard]] std::int64_t private_bytes();

/// How much memory the process uses, its limit, and what to do where there is too little.
[[nodiscard]] std::string memory_advice();

}  // namespace strata
