#include "strata/device/graph.hpp"

#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

Graph::Graph(Stream& stream, const std::function<void()>& work) : device_(stream.device()) {
  require(device_.kind() == DeviceKind::kCuda, "a CUDA graph of work on {}", device_.text());
  handle_ = {cuda::record_graph(device_.index(), stream.raw(), work),
             {device_.index(), cuda::destroy_graph}};
}

void Graph::launch(Stream& stream) const {
  require(handle_ != nullptr && stream.device() == device_,
          "a graph captured on {} was launched on {}", device_.text(), stream.device().text());
  cuda::launch_graph(device_.index(), handle_.get(), stream.raw());
}

}  // namespace strata::device
