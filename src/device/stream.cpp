#include "strata/device/stream.hpp"

#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

Stream::Stream(const Device& device, StreamPriority priority) : device_(device) {
  if (device.kind() == DeviceKind::kCuda) {
    handle_ = {cuda::make_stream(device.index(), priority), {device.index(), cuda::destroy_stream}};
  }
}

void Stream::synchronize() {
  if (handle_ != nullptr) {
    cuda::synchronize_stream(device_.index(), handle_.get());
  }
}

bool Stream::idle() const {
  return handle_ == nullptr || cuda::is_idle(device_.index(), handle_.get());
}

Event::Event(const Device& device, std::int64_t consumers)
    : device_(device), consumers_(consumers) {
  require(consumers >= 1, "an event with {} consumers", consumers);
  if (device.kind() == DeviceKind::kCuda) {
    handle_ = {cuda::make_event(device.index(), cuda::EventTiming::kOff),
               {device.index(), cuda::destroy_event}};
  }
}

void Event::record(Stream& stream) {
  require(stream.device() == device_, "an event of {} was recorded on a stream of {}",
          device_.text(), stream.device().text());
  require(waits_due_ == 0,
          "an event was recorded again while {} of its {} consumers had not waited", waits_due_,
          consumers_);
  if (handle_ != nullptr) {
    cuda::record_event(device_.index(), handle_.get(), stream.raw());
  }
  waits_due_ = consumers_;
}

void Event::wait(Stream& stream) {
  consume();
  if (handle_ != nullptr && stream.raw() != nullptr) {
    cuda::stream_waits_for(stream.device().index(), stream.raw(), handle_.get());
  } else if (handle_ != nullptr) {
    cuda::host_waits_for(device_.index(), handle_.get());
  }
}

void Event::wait_on_host() {
  consume();
  if (handle_ != nullptr) {
    cuda::host_waits_for(device_.index(), handle_.get());
  }
}

bool Event::reached() const {
  return handle_ == nullptr || cuda::is_reached(device_.index(), handle_.get());
}

void Event::consume() {
  require(waits_due_ > 0,
          "a wait for an event that is not recorded or whose {} consumers have all "
          "waited",
          consumers_);
  --waits_due_;
}

}  // namespace strata::device
