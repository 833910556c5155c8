#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "strata/comm/progress_engine.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// Where a stage reads its samples; only the first stage reads inputs, only the last one targets.
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
  /// Rows of microbatch m that are samples; the rest is padding.
  [[nodiscard]] virtual std::int64_t valid_rows(std::int64_t m) = 0;
};

/// Time of one run. Units: seconds.
struct ExecutionTimes {
  double compute = 0.0;
  /// Waiting for a neighbouring stage to send or to receive.
  double pipeline_wait = 0.0;
};

/// Called after each action with its begin and end. Units: seconds of the steady clock.
using ActionObserver = std::function<void(const Action&, double begin, double end)>;

/// Called on the last stage, before each microbatch's loss, with its outputs and targets, of which
/// the first `valid` rows are samples.
using OutputObserver = std::function<void(const ConstTensorView& outputs,
                                          const ConstTensorView& targets, std::int64_t valid)>;

/// The slots that a stage needs for a training schedule; they suffice for evaluation. There is one
/// more receive buffer for activations than live microbatches, and two for gradients, so that
/// receives are posted ahead.
[[nodiscard]] nn::StageSlots slots_for(const Schedule& schedule, std::int64_t stage);

/// Runs the list of actions of one stage (design law 2).
class Executor {
 public:
  /// Pre: the rank in `pipeline_group` is the stage's number.
  Executor(nn::Stage& stage, comm::Communicator& pipeline_group, comm::ProgressEngine& engine);

  void set_observer(ActionObserver observer) { observer_ = std::move(observer); }

  /// Forward and backward of every microbatch; each row's gradient is multiplied by gradient_scale.
  /// A GPU may still be computing on return; read the losses from the stage. Pre: the schedule is
  /// sound (check). Throws: std::logic_error for a schedule of more than one chunk a stage.
  [[nodiscard]] ExecutionTimes train(const Schedule& schedule, MicrobatchSource& source,
                                     double gradient_scale, nn::GradientSink& sink);
  /// Forward only. `see` may be empty. Returns: nn::Stage::losses(). Throws: as train().
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
