#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/ops/observer.hpp"
#include "strata/pipeline/schedule.hpp"

#include "profile.hpp"
#include "run.hpp"

namespace strata::bench {

/// Operations of one microbatch on one rank.
struct Work {
  std::vector<ops::OperationWork> forward;
  std::vector<ops::OperationWork> backward;  ///< weight gradients are its products "matmul_tn"
};

/// What a stage has of a model.
struct StageBlocks {
  double layers = 0.0;
  bool embedding = false;
  bool head = false;
  bool loss = false;
  bool used = true;  ///< not left empty
};

/// Parameters of a layer, and of a matrix of the vocabulary.
[[nodiscard]] double layer_parameters(const Run& run);
[[nodiscard]] double vocabulary_parameters(const Run& run);
[[nodiscard]] std::vector<StageBlocks> blocks_of(const Run& run, Placing placing);
/// Parameters of a stage on one rank.
[[nodiscard]] double rank_parameters(const Run& run, const StageBlocks& blocks);

/// Predicts steps; remembers operations and schedules.
class Predictor {
 public:
  /// Seconds of a step.
  [[nodiscard]] double step_seconds(const Run& run, const Constants& constants);

 private:
  struct Layers {
    Work block;
    Work head;
  };
  class Step;

  const Layers& layers_of(const Run& run);
  const pipeline::Schedule& schedule_of(const Run& run);

  std::map<std::string, Layers> layers_;
  std::map<std::string, pipeline::Schedule> schedules_;
};

}  // namespace strata::bench
