#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/progress_engine.hpp"
#include "strata/device/device.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::pipeline {

/// The samples of a rank. The chunk of the first layer reads inputs, the chunk of the last layer
/// targets, and each chunk places.
class MicrobatchSource {
 public:
  MicrobatchSource() = default;
  virtual ~MicrobatchSource() = default;
  MicrobatchSource(const MicrobatchSource&) = delete;
  MicrobatchSource& operator=(const MicrobatchSource&) = delete;

  [[nodiscard]] virtual ConstTensorView inputs(std::int64_t m) = 0;
  [[nodiscard]] virtual ConstTensorView targets(std::int64_t m) = 0;
  [[nodiscard]] virtual nn::RowPlaces places(std::int64_t /*m*/) { return {}; }
  /// nn::Microbatch::references.
  [[nodiscard]] virtual ConstTensorView references(std::int64_t /*m*/) { return {}; }
  /// Global index of the sample in row 0 of microbatch m.
  [[nodiscard]] virtual std::int64_t first_row(std::int64_t m) = 0;
  /// Valid rows; the others are padding.
  [[nodiscard]] virtual std::int64_t valid_rows(std::int64_t m) = 0;
};

/// The time of a run by category, in seconds.
struct ExecutionTimes {
  double compute = 0.0;
  /// Waiting for a neighbouring stage to send or to receive.
  double pipeline_wait = 0.0;
};

/// Called after each action with its begin and end, in seconds of the steady clock.
using ActionObserver = std::function<void(const Action&, double begin, double end)>;

/// Called with each activation or gradient that a chunk of this stage hands on in training.
using SendObserver =
    std::function<void(const ConstTensorView& tensor, comm::Tag kind, std::int64_t chunk)>;

/// Called on the last stage before the loss of each microbatch, in any order of their numbers `m`.
/// The first `valid` rows of outputs and targets count.
using OutputObserver = std::function<void(std::int64_t m, const ConstTensorView& outputs,
                                          const ConstTensorView& targets, std::int64_t valid)>;

/// The memory slots with which a chunk can run a training schedule and any evaluation. Received
/// activations and gradients have one slot more than are live, so that receives can be posted
/// early.
[[nodiscard]] nn::StageSlots slots_for(const Schedule& schedule, const StageChunk& position);

/// What each stage waits for if training under a sound schedule would deadlock; else nothing. A
/// send completes with its receive. On CPUs a stage waits for the send before it reuses the memory;
/// on GPUs before its next computation, as the host may have to wait for all that is enqueued.
/// Pre: actions of a kind ascend by microbatch in each chunk.
[[nodiscard]] std::string training_hang(const Schedule& schedule, device::DeviceKind device);

/// Runs the action list of one stage (design law 2).
class Executor {
 public:
  /// `chunks`: of this stage, in layer order; they outlive the executor.
  /// Pre: the rank in `pipeline_group` is the stage's index.
  Executor(std::vector<nn::Stage*> chunks, comm::Communicator& pipeline_group,
           comm::ProgressEngine& engine);

  void set_observer(ActionObserver observer) { observer_ = std::move(observer); }
  /// An empty observer ends the calls.
  void observe_sends(SendObserver observer) { send_observer_ = std::move(observer); }

  /// Runs forward and backward of every microbatch of a sound schedule; scales each row's gradient
  /// by gradient_scale. A GPU may still be running afterwards; nn::Stage::losses() synchronizes.
  /// Throws: std::logic_error for a schedule of another number of chunks.
  [[nodiscard]] ExecutionTimes train(const Schedule& schedule, MicrobatchSource& source,
                                     double gradient_scale, nn::GradientSink& sink);
  /// Runs the forward passes. `see` may be empty. Returns: the losses of all microbatches on the
  /// last stage, else nothing. Throws: as train().
  [[nodiscard]] std::vector<nn::MicrobatchLoss> evaluate(const Schedule& schedule,
                                                         MicrobatchSource& source,
                                                         const OutputObserver& see = {});

 private:
  class Run;

  std::vector<nn::Stage*> chunks_;
  comm::Communicator& group_;
  comm::ProgressEngine& engine_;
  ActionObserver observer_;
  SendObserver send_observer_;
};

}  // namespace strata::pipeline
