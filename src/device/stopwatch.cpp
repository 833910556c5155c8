#include "strata/device/stopwatch.hpp"

#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

Stopwatch::Stopwatch(const Device& device) : device_(device) {
  require(device.kind() == DeviceKind::kCuda, "a stopwatch on {}", device.text());
  for (Handle* const event : {&start_, &stop_}) {
    *event = {cuda::make_event(device.index(), cuda::EventTiming::kOn),
              {device.index(), cuda::destroy_event}};
  }
}

void Stopwatch::start(Stream& stream) {
  cuda::record_event(device_.index(), start_.get(), stream.raw());
}

void Stopwatch::stop(Stream& stream) {
  cuda::record_event(device_.index(), stop_.get(), stream.raw());
}

double Stopwatch::seconds() const {
  return cuda::seconds_between(device_.index(), start_.get(), stop_.get());
}

}  // namespace strata::device
