#include "strata/device/stream.hpp"

#include <utility>

#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

Stream::Stream(const Device& device, StreamPriority priority) : device_(device) {
  if (device.kind() == DeviceKind::kCuda) {
    raw_ = cuda::make_stream(device.index(), priority);
  }
}

Stream::~Stream() {
  if (raw_ != nullptr) {
    cuda::destroy_stream(device_.index(), raw_);
  }
}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_), raw_(std::exchange(other.raw_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(raw_, other.raw_);
  return *this;
}

void Stream::synchronize() {
  if (raw_ != nullptr) {
    cuda::synchronize_stream(device_.index(), raw_);
  }
}

bool Stream::idle() const {
  return raw_ == nullptr || cuda::is_idle(device_.index(), raw_);
}

Event::Event(const Device& device, std::int64_t consumers)
    : device_(device), consumers_(consumers) {
  require(consumers >= 1, "an event with {} consumers", consumers);
  if (device.kind() == DeviceKind::kCuda) {
    raw_ = cuda::make_event(device.index());
  }
}

Event::~Event() {
  if (raw_ != nullptr) {
    cuda::destroy_event(device_.index(), raw_);
  }
}

Event::Event(Event&& other) noexcept
    : device_(other.device_),
      consumers_(other.consumers_),
      waits_due_(std::exchange(other.waits_due_, 0)),
      raw_(std::exchange(other.raw_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(consumers_, other.consumers_);
  std::swap(waits_due_, other.waits_due_);
  std::swap(raw_, other.raw_);
  return *this;
}

void Event::record(Stream& stream) {
  require(stream.device() == device_, "an event of {} was recorded on a stream of {}",
          device_.text(), stream.device().text());
  require(waits_due_ == 0,
          "an event was recorded again while {} of its {} consumers had not waited", waits_due_,
          consumers_);
  if (raw_ != nullptr) {
    cuda::record_event(device_.index(), raw_, stream.raw());
  }
  waits_due_ = consumers_;
}

void Event::wait(Stream& stream) {
  consume();
  if (raw_ != nullptr && stream.raw() != nullptr) {
    cuda::stream_waits_for(stream.device().index(), stream.raw(), raw_);
  } else if (raw_ != nullptr) {
    cuda::host_waits_for(device_.index(), raw_);
  }
}

void Event::wait_on_host() {
  consume();
  if (raw_ != nullptr) {
    cuda::host_waits_for(device_.index(), raw_);
  }
}

bool Event::reached() const {
  return raw_ == nullptr || cuda::is_reached(device_.index(), raw_);
}

void Event::consume() {
  require(waits_due_ > 0,
          "a wait for an event that is not recorded or whose {} consumers have all "
          "waited",
          consumers_);
  --waits_due_;
}

}  // namespace strata::device
