#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "strata/device/graph.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

/// Gives work that repeats to a GPU as CUDA graphs, so that the host makes one call in place of one
/// an operation. Results have the bits that they have without it.
class GraphCache {
 public:
  /// All that a piece of work follows from and that is not always the same: what it does,
  /// addresses, numbers.
  using Key = std::vector<std::int64_t>;

  /// Does nothing of itself before enable(). The context outlives the object.
  explicit GraphCache(Context& context) : context_(context) {}

  /// Pre: the context is a GPU's.
  void enable();
  [[nodiscard]] bool is_enabled() const { return is_enabled_; }
  /// Whether run() is recording at the moment: then nothing may be given to the GPU that is not
  /// part of the work.
  [[nodiscard]] bool is_recording() const { return is_recording_; }
  /// Pieces of work that are kept as graphs.
  [[nodiscard]] std::int64_t graphs() const;

  /// Does the work: the first time under a key it is called, the second time recorded, from then on
  /// what was recorded is given again and `work` is not called. Pre: what work() puts on the
  /// context's stream follows from the key alone; it waits for nothing.
  /// Throws: what work() throws; Error(kPeer) that names run.cuda_graphs where it cannot be
  /// recorded.
  void run(const Key& key, const std::function<void()>& work);

 private:
  struct Piece {
    /// The context's scratch memory when it was last done; recorded work uses that.
    std::int64_t scratch = 0;
    std::optional<device::Graph> graph;
  };

  Context& context_;
  bool is_enabled_ = false;
  bool is_recording_ = false;
  std::map<Key, Piece> pieces_;
};

}  // namespace strata::ops
