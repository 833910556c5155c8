#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "strata/device/graph.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

/// Captures repeated work as CUDA graphs and replays them, so that the host makes one launch
/// instead of one per operation. Bits are the same as without capture.
class GraphCache {
 public:
  /// Everything that varies between pieces of work: operation, addresses, numbers.
  using Key = std::vector<std::int64_t>;

  /// Runs work directly until enable(). The context outlives the object.
  explicit GraphCache(Context& context) : context_(context) {}

  /// Pre: the context is a GPU's.
  void enable();
  [[nodiscard]] bool is_enabled() const { return is_enabled_; }
  /// Until resume(), work runs eagerly and no graph is captured.
  void suspend() { is_suspended_ = true; }
  void resume() { is_suspended_ = false; }
  /// Whether run() is capturing: nothing else may be enqueued on the GPU meanwhile.
  [[nodiscard]] bool is_recording() const { return is_recording_; }
  /// Number of captured graphs.
  [[nodiscard]] std::int64_t graphs() const;

  /// Runs work(): the first call with a key runs it eagerly, the second captures and launches it,
  /// later calls replay the graph without calling `work`. Pre: what work() enqueues on the
  /// context's stream depends only on the key; it does not wait.
  /// Throws: what work() throws; Error(kPeer) that names run.cuda_graphs where capture fails.
  void run(const Key& key, const std::function<void()>& work);

 private:
  struct Piece {
    /// The context's scratch memory at capture, which the graph uses.
    std::int64_t scratch = 0;
    std::optional<device::Graph> graph;
  };

  Context& context_;
  bool is_enabled_ = false;
  bool is_suspended_ = false;
  bool is_recording_ = false;
  std::map<Key, Piece> pieces_;
};

}  // namespace strata::ops
