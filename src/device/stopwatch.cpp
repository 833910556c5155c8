#include "strata/device/stopwatch.hpp"

#include <utility>

#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

Stopwatch::Stopwatch(const Device& device) : device_(device) {
  require(device.kind() == DeviceKind::kCuda, "a stopwatch on {}", device.text());
  start_ = cuda::make_timed_event(device.index());
  stop_ = cuda::make_timed_event(device.index());
}

Stopwatch::~Stopwatch() {
  for (void* event : {start_, stop_}) {
    if (event != nullptr) {
      cuda::destroy_event(device_.index(), event);
    }
  }
}

Stopwatch::Stopwatch(Stopwatch&& other) noexcept
    : device_(other.device_),
      start_(std::exchange(other.start_, nullptr)),
      stop_(std::exchange(other.stop_, nullptr)) {}

Stopwatch& Stopwatch::operator=(Stopwatch&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(start_, other.start_);
  std::swap(stop_, other.stop_);
  return *this;
}

void Stopwatch::start(Stream& stream) {
  cuda::record_event(device_.index(), start_, stream.raw());
}

void Stopwatch::stop(Stream& stream) {
  cuda::record_event(device_.index(), stop_, stream.raw());
}

double Stopwatch::seconds() const {
  return cuda::seconds_between(device_.index(), start_, stop_);
}

}  // namespace strata::device
