#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "strata/comm/progress_engine.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// Where a stage gets its samples from; only the first stage asks for inputs, only the last for
/// targets.
class MicrobatchSource {
 public:
  MicrobatchSource() = default;
  virtual ~MicrobatchSource() = default;
  MicrobatchSource(const MicrobatchSource&) = delete;
  MicrobatchSource& operator=(const MicrobatchSource&) = delete;

  [[nodiscard]] virtual ConstTensorView inputs(std::int64_t m) = 0;
  [[nodiscard]] virtual ConstTensorView targets(std::int64_t m) = 0;
  /// Global index of the sample in row 0 of microbatch m.
  [[nodiscard]] virtual std::int64_t first_row(std::int64_t m) = 0;
  /// Rows that count; the others are padding.
  [[nodiscard]] virtual std::int64_t valid_rows(std::int64_t m) = 0;
};

/// Where the time of a run went, in seconds.
struct ExecutionTimes {
  double compute = 0.0;
  /// Waiting for a neighbouring stage: for its message, or for it to take one.
  double pipeline_wait = 0.0;
};

/// Is told of each action and when it ran, in seconds of the steady clock.
using ActionObserver = std::function<void(const Action&, double begin, double end)>;

/// Is told of each microbatch's outputs on the last stage, of which the first `valid` rows count,
/// with their targets, before its loss is computed.
using OutputObserver = std::function<void(const ConstTensorView& outputs,
                                          const ConstTensorView& targets, std::int64_t valid)>;

/// The memory that a stage needs to run a training schedule, and with it any evaluation. Received
/// activations have one slot more than are live, and gradients two, so that receives can be posted
/// ahead.
[[nodiscard]] nn::StageSlots slots_for(const Schedule& schedule, std::int64_t stage);

/// Runs the list of actions of one stage (design law 2).
class Executor {
 public:
  /// Pre: the rank in `pipeline_group` is the stage's number.
  Executor(nn::Stage& stage, comm::Communicator& pipeline_group, comm::ProgressEngine& engine);

  void set_observer(ActionObserver observer) { observer_ = std::move(observer); }

  /// Forward and backward of every microbatch of a sound schedule; each row's gradient is
  /// multiplied by gradient_scale. The losses are the stage's to tell: a GPU may still be at work.
  [[nodiscard]] ExecutionTimes train(const Schedule& schedule, MicrobatchSource& source,
                                     double gradient_scale, nn::GradientSink& sink);
  /// Forward only. `see` may be empty. Returns the losses of all microbatches on the last stage,
  /// else nothing, as nn::Stage::losses() does.
  [[nodiscard]] std::vector<ops::LossSums> evaluate(const Schedule& schedule,
                                                    MicrobatchSource& source,
                                                    const OutputObserver& see = {});

 private:
  class Run;

  nn::Stage& stage_;
  comm::Communicator& group_;
  comm::ProgressEngine& engine_;
  ActionObserver observer_;
};

}  // namespace strata::pipeline
