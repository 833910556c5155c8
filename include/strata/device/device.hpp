#pragma once

#include <cstdint>
#include <string>

#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"

namespace strata::device {

/// What computes and holds memory.
enum class DeviceKind { kCpu, kCuda };

constexpr auto enum_names(DeviceKind) {
  return names_in_order("cpu", "cuda");
}

/// One processor with its memory: the host's cores, or the GPU with an index.
class Device {
 public:
  [[nodiscard]] static Device cpu() { return {DeviceKind::kCpu, 0}; }
  /// Planning device: tensors get addresses and no storage, and operations do nothing. A plan goes
  /// through the actions of a rank on it.
  [[nodiscard]] static Device planned() { return {DeviceKind::kCpu, kPlanned}; }
  [[nodiscard]] bool is_planned() const { return index_ == kPlanned; }
  /// Throws: Error(kPeer) where the build has no CUDA or there is no GPU with this index.
  [[nodiscard]] static Device cuda(std::int64_t index);

  [[nodiscard]] DeviceKind kind() const { return kind_; }
  [[nodiscard]] std::int64_t index() const { return index_; }
  /// Where this device's memory lives.
  [[nodiscard]] MemorySpace memory_space() const {
    return kind_ == DeviceKind::kCpu ? MemorySpace::kHost : MemorySpace::kCuda;
  }
  /// As in "cpu" or "cuda:1".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Device&, const Device&) = default;

 private:
  static constexpr std::int64_t kPlanned = -1;

  Device(DeviceKind kind, std::int64_t index) : kind_(kind), index_(index) {}

  DeviceKind kind_;
  std::int64_t index_;
};

/// GPUs that this process can use; 0 in a build without CUDA or on a node without a driver.
[[nodiscard]] std::int64_t cuda_device_count();

}  // namespace strata::device
