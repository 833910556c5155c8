#include "strata/pipeline/executor.hpp"

#include <algorithm>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/pipeline/checker.hpp"

namespace strata::pipeline {

nn::StageSlots slots_for(const Schedule& schedule, std::int64_t stage) {
  const std::int64_t live = live_bound(schedule, stage);
  const std::int64_t ahead = std::min(live + 1, schedule.microbatches);
  return {.activations = live,
          .inputs = stage == 0 ? 0 : ahead,
          .gradients = schedule.stages == 1 ? 1 : std::min<std::int64_t>(2, schedule.microbatches)};
}

/// One pass through the list. Microbatches are begun and ended in ascending order, so slot m %
/// slots is free for microbatch m once microbatch m - slots is done with it.
class Executor::Run {
 public:
  Run(Executor& executor, const Schedule& schedule, MicrobatchSource& source, nn::Mode mode,
      double gradient_scale, nn::GradientSink* sink, const OutputObserver& see)
      : stage_(executor.stage_),
        group_(executor.group_),
        observer_(executor.observer_),
        source_(source),
        mode_(mode),
        gradient_scale_(gradient_scale),
        sink_(sink),
        see_(see),
        actions_(schedule.stage_actions[static_cast<std::size_t>(group_.rank())]),
        activation_receives_(of(schedule.microbatches)),
        gradient_receives_(of(schedule.microbatches)),
        activation_sends_(of(schedule.microbatches)),
        gradient_sends_(of(schedule.microbatches)) {}

  Execution finish() {
    for (std::size_t position = 0; position < actions_.size(); ++position) {
      const Action& action = actions_[position];
      post_receives();
      require(!is_receive(action.kind) || next_receive_ > position,
              "{} is due before its memory is free", text_of(action));
      const double begin = now_seconds();
      perform(action);
      const double end = now_seconds();
      if (observer_) {
        observer_(action, begin, end);
      }
    }
    const double begin = now_seconds();
    for (std::vector<comm::Request>* sends : {&activation_sends_, &gradient_sends_}) {
      for (comm::Request& send : *sends) {
        send.wait();
      }
    }
    execution_.times.pipeline_wait += now_seconds() - begin;
    return std::move(execution_);
  }

 private:
  static std::vector<comm::Request> of(std::int64_t microbatches) {
    return std::vector<comm::Request>(static_cast<std::size_t>(microbatches));
  }

  void perform(const Action& action) {
    const std::int64_t m = action.microbatch;
    const auto index = static_cast<std::size_t>(m);
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
        wait(activation_receives_[index]);
        break;
      case ActionKind::kReceiveGradient:
        wait(gradient_receives_[index]);
        break;
      case ActionKind::kForward:
        forward(m);
        break;
      case ActionKind::kSendActivation:
        activation_sends_[index] =
            group_.send(stage_.output_of(m, input(m)), action.peer, comm::Tag::kActivation);
        outputs_sent_ = m + 1;
        break;
      case ActionKind::kBackwardInput:
        backward_input(m);
        break;
      case ActionKind::kSendGradient:
        gradient_sends_[index] =
            group_.send(stage_.input_gradient_of(m), action.peer, comm::Tag::kGradient);
        break;
      case ActionKind::kBackwardWeight:
        timed([&] { stage_.backward_weight(m, input(m), source_.first_row(m), *sink_); });
        weights_done_ = m + 1;
        break;
      case ActionKind::kReduce:
        timed([&] { sink_->finish(); });
        break;
    }
  }

  void forward(std::int64_t m) {
    wait_for_slot(activation_sends_, m, stage_.slots().activations);
    timed([&] { stage_.forward(m, input(m), source_.first_row(m), mode_); });
    forwards_done_ = m + 1;
    if (mode_ == nn::Mode::kEvaluation && stage_.is_last()) {
      loss(m);
    }
  }

  void backward_input(std::int64_t m) {
    wait_for_slot(gradient_sends_, m, stage_.slots().gradients);
    if (stage_.is_last()) {
      loss(m);
    }
    timed([&] { stage_.backward_input(m, input(m), source_.first_row(m), *sink_); });
  }

  void loss(std::int64_t m) {
    timed([&] {
      if (see_) {
        see_(stage_.output_of(m, input(m)), source_.targets(m), source_.valid_rows(m));
      }
      execution_.losses.push_back(stage_.loss(m, input(m), source_.targets(m),
                                              source_.valid_rows(m), gradient_scale_, mode_));
    });
  }

  [[nodiscard]] ConstTensorView input(std::int64_t m) {
    return stage_.is_first() ? source_.inputs(m) : ConstTensorView(stage_.input_of(m));
  }

  /// Microbatches whose received input is no longer needed, but for sends that are under way.
  [[nodiscard]] std::int64_t inputs_done() const {
    if (mode_ == nn::Mode::kTraining) {
      return weights_done_;
    }
    return stage_.is_last() ? forwards_done_ : outputs_sent_;
  }

  /// Whether the stage sends the gradient that it received, under another shape.
  [[nodiscard]] bool passes_gradients_on(std::int64_t m) const {
    return stage_.input_gradient_of(m).raw() == stage_.output_gradient_of(m).raw();
  }

  /// Posts the receives that follow, in order, as far as their slots are free.
  void post_receives() {
    for (; next_receive_ < actions_.size(); ++next_receive_) {
      const Action& action = actions_[next_receive_];
      const std::int64_t m = action.microbatch;
      const auto index = static_cast<std::size_t>(m);
      if (action.kind == ActionKind::kReceiveActivation) {
        if (m - stage_.slots().inputs >= inputs_done()) {
          return;
        }
        // What this stage sent from the slot may be a view of the input.
        wait_for_slot(activation_sends_, m, stage_.slots().inputs);
        activation_receives_[index] =
            group_.receive(stage_.input_of(m), action.peer, comm::Tag::kActivation);
      } else if (action.kind == ActionKind::kReceiveGradient) {
        if (m - stage_.slots().gradients >= weights_done_) {
          return;
        }
        if (passes_gradients_on(m)) {
          wait_for_slot(gradient_sends_, m, stage_.slots().gradients);
        }
        gradient_receives_[index] =
            group_.receive(stage_.output_gradient_of(m), action.peer, comm::Tag::kGradient);
      }
    }
  }

  void wait_for_slot(std::vector<comm::Request>& sends, std::int64_t m, std::int64_t slots) {
    if (m >= slots) {
      wait(sends[static_cast<std::size_t>(m - slots)]);
    }
  }

  void wait(comm::Request& request) {
    const double begin = now_seconds();
    request.wait();
    execution_.times.pipeline_wait += now_seconds() - begin;
  }

  template <typename Work>
  void timed(const Work& work) {
    const double begin = now_seconds();
    work();
    execution_.times.compute += now_seconds() - begin;
  }

  nn::Stage& stage_;
  comm::Communicator& group_;
  const ActionObserver& observer_;
  MicrobatchSource& source_;
  nn::Mode mode_;
  double gradient_scale_;
  nn::GradientSink* sink_;
  const OutputObserver& see_;
  const std::vector<Action>& actions_;
  std::vector<comm::Request> activation_receives_;
  std::vector<comm::Request> gradient_receives_;
  std::vector<comm::Request> activation_sends_;
  std::vector<comm::Request> gradient_sends_;
  std::size_t next_receive_ = 0;
  std::int64_t forwards_done_ = 0;
  std::int64_t outputs_sent_ = 0;
  std::int64_t weights_done_ = 0;
  Execution execution_;
};

Executor::Executor(nn::Stage& stage, comm::Communicator& pipeline_group)
    : stage_(stage), group_(pipeline_group) {}

Execution Executor::train(const Schedule& schedule, MicrobatchSource& source, double gradient_scale,
                          nn::GradientSink& sink) {
  return Run(*this, schedule, source, nn::Mode::kTraining, gradient_scale, &sink, {}).finish();
}

Execution Executor::evaluate(const Schedule& schedule, MicrobatchSource& source,
                             const OutputObserver& see) {
  require(schedule.kind == ScheduleKind::kForwardOnly, "evaluation by the schedule {}",
          name_of(schedule.kind));
  return Run(*this, schedule, source, nn::Mode::kEvaluation, 0.0, nullptr, see).finish();
}

}  // namespace strata::pipeline
