#pragma once

#include <cstdint>

namespace strata::nn {

/// The weights of a stage, which may still be in flight when the first forward pass after an update
/// begins. A layer's number is its index in the whole model.
class WeightSource {
 public:
  WeightSource() = default;
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  /// Whether await(layer) waits for more than await() of an earlier layer; the same in every step.
  [[nodiscard]] virtual bool waits_before(std::int64_t layer) const = 0;
  /// Waits for the weights of `layer` and of the stage's earlier layers; on a GPU the compute
  /// stream waits, and not the host. Throws: Error(kPeer), as comm::Request::wait().
  /// Returns: whether some were in flight.
  virtual bool await(std::int64_t layer) = 0;
};

}  // namespace strata::nn
