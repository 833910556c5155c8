#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace standin {

/// The __shared__ variables of all kernels during one launch: the calling thread's thread_local
/// memory of the executable.
class SharedMemory {
 public:
  /// For a launch that asks for `asked_bytes` beside the variables of known size.
  explicit SharedMemory(std::size_t asked_bytes);

  /// Fills it with 0xFF bytes before a block: all of it before the first, before others what the
  /// first one wrote.
  void spoil();
  /// Whether the blocks wrote no more than what was asked for.
  [[nodiscard]] bool kept_its_size() const;

 private:
  using Bytes = std::span<std::byte>;

  void find_written();

  std::size_t asked_bytes_;
  Bytes all_;
  std::vector<Bytes> written_;
  int blocks_ = 0;
};

}  // namespace standin
