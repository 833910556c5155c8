#include "strata/ops/graph_cache.hpp"

#include <algorithm>

#include "strata/core/error.hpp"

#include "cuda/resources.hpp"

namespace strata::ops {

void GraphCache::enable() {
  require(context_.device().kind() == device::DeviceKind::kCuda, "CUDA graphs on {}",
          context_.device().text());
  is_enabled_ = true;
}

std::int64_t GraphCache::graphs() const {
  return std::ranges::count_if(pieces_,
                               [](const auto& entry) { return entry.second.graph.has_value(); });
}

void GraphCache::run(const Key& key, const std::function<void()>& work) {
  if (!is_enabled_ || is_suspended_) {
    work();
    return;
  }
  const auto found = pieces_.find(key);
  if (found == pieces_.end() ||
      found->second.scratch != context_.cuda_resources().scratch_number()) {
    // Eagerly, so that libraries are opened, kernels loaded and scratch memory is large enough.
    work();
    pieces_[key] = {.scratch = context_.cuda_resources().scratch_number(), .graph = {}};
    return;
  }
  Piece& piece = found->second;
  if (!piece.graph) {
    is_recording_ = true;
    try {
      piece.graph.emplace(context_.stream(), work);
    } catch (const Error& error) {
      is_recording_ = false;
      if (error.code() != ExitCode::kPeer) {
        throw;
      }
      fail(error.code(),
           "{}; a pass could not be captured as a CUDA graph, set run.cuda_graphs = off",
           error.what());
    } catch (...) {
      is_recording_ = false;
      throw;
    }
    is_recording_ = false;
  }
  piece.graph->launch(context_.stream());
}

}  // namespace strata::ops
