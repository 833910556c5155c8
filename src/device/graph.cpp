#include "strata/device/graph.hpp"

#include <utility>

#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

Graph::Graph(Stream& stream, const std::function<void()>& work) : device_(stream.device()) {
  require(device_.kind() == DeviceKind::kCuda, "a CUDA graph of work on {}", device_.text());
  cuda::begin_recording(device_.index(), stream.raw());
  try {
    work();
  } catch (...) {
    cuda::drop_recording(device_.index(), stream.raw());
    throw;
  }
  raw_ = cuda::end_recording(device_.index(), stream.raw());
}

Graph::~Graph() {
  if (raw_ != nullptr) {
    cuda::destroy_graph(device_.index(), raw_);
  }
}

Graph::Graph(Graph&& other) noexcept
    : device_(other.device_), raw_(std::exchange(other.raw_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(raw_, other.raw_);
  return *this;
}

void Graph::launch(Stream& stream) const {
  require(raw_ != nullptr && stream.device() == device_,
          "a graph captured on {} was launched on {}", device_.text(), stream.device().text());
  cuda::launch_graph(device_.index(), raw_, stream.raw());
}

}  // namespace strata::device
