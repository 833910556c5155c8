#pragma once

#include <cstdint>
#include <memory>

#include "strata/device/device.hpp"

namespace strata::ops {

class Primitives;

/// What operations run with: a device, a number of threads, and the library primitives made so far.
/// One a rank; operations that share a Context must not run at the same time, operations with
/// different ones may.
class Context {
 public:
  /// A CPU context. Pre: threads >= 1.
  explicit Context(int threads);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&& other) noexcept;
  Context& operator=(Context&& other) noexcept;

  [[nodiscard]] const device::Device& device() const { return device_; }
  [[nodiscard]] int threads() const { return threads_; }
  /// The cache of library primitives; its type is known inside the room only.
  [[nodiscard]] Primitives& primitives() { return *primitives_; }

 private:
  device::Device device_;
  int threads_;
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace strata::ops
