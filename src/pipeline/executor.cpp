#include "strata/pipeline/executor.hpp"

#include <algorithm>
#include <optional>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/device/profile_range.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/emulation.hpp"

#include "message_check.hpp"

namespace strata::pipeline {

namespace {

/// The most microbatches of a stage that hold a tensor at once. Microbatches ascend in each kind of
/// action.
struct MostHeld {
  std::int64_t activations = 0;  ///< from forward to backward-weight
  std::int64_t inputs = 0;       ///< from receive-activation to backward-weight
  /// From receive-gradient, or else backward-input, until both backward-weight and send-gradient.
  std::int64_t gradients = 1;
};

MostHeld most_held(const Schedule& schedule, std::int64_t stage) {
  MostHeld most;
  std::int64_t weights = 0;
  std::int64_t sent = stage == 0 ? schedule.microbatches : 0;
  for (const Action& action : schedule.stage_actions[static_cast<std::size_t>(stage)]) {
    const std::int64_t begun = action.microbatch + 1;
    switch (action.kind) {
      case ActionKind::kForward:
        most.activations = std::max(most.activations, begun - weights);
        break;
      case ActionKind::kReceiveActivation:
        most.inputs = std::max(most.inputs, begun - weights);
        break;
      case ActionKind::kReceiveGradient:
      case ActionKind::kBackwardInput:
        most.gradients = std::max(most.gradients, begun - std::min(weights, sent));
        break;
      case ActionKind::kSendGradient:
        sent = begun;
        break;
      case ActionKind::kBackwardWeight:
        weights = begun;
        break;
      case ActionKind::kSendActivation:
      case ActionKind::kReduce:
        break;
    }
  }
  return most;
}

}  // namespace

nn::StageSlots slots_for(const Schedule& schedule, std::int64_t stage) {
  const MostHeld held = most_held(schedule, stage);
  const std::int64_t live =
      schedule.kind == ScheduleKind::kFile ? held.activations : live_bound(schedule, stage);
  return {
      .activations = live,
      .inputs = stage == 0 ? 0 : std::min(std::max(live + 1, held.inputs), schedule.microbatches),
      .gradients = schedule.stages == 1 ? 1 : std::min(held.gradients + 1, schedule.microbatches),
      .losses = schedule.microbatches};
}

std::string training_hang(const Schedule& schedule, device::DeviceKind device) {
  std::vector<std::int64_t> gradient_slots;
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    gradient_slots.push_back(slots_for(schedule, stage).gradients);
  }
  return hang_of(schedule, device == device::DeviceKind::kCuda ? Sends::kHostWaits : Sends::kSlots,
                 gradient_slots);
}

namespace {

/// The unfinished messages of one action.
class Messages {
 public:
  void add(comm::Request request) { requests_.push_back(std::move(request)); }
  void wait() {
    for (comm::Request& request : requests_) {
      request.wait();
    }
  }
  [[nodiscard]] bool test() {
    return std::ranges::all_of(requests_, [](comm::Request& request) { return request.test(); });
  }

 private:
  std::vector<comm::Request> requests_;
};

}  // namespace

/// One pass through the list. An action's microbatch stands for one microbatch of each concurrent
/// lane. Actions start and end in ascending order, so microbatch m may use slot m % slots once
/// microbatch m - slots no longer needs it.
class Executor::Run {
 public:
  Run(Executor& executor, const Schedule& schedule, MicrobatchSource& source, nn::Mode mode,
      double gradient_scale, nn::GradientSink* sink, const OutputObserver& see)
      : stage_(executor.stage_),
        group_(executor.group_),
        engine_(executor.engine_),
        observer_(executor.observer_),
        send_observer_(executor.send_observer_),
        source_(source),
        mode_(mode),
        gradient_scale_(gradient_scale),
        sink_(sink),
        see_(see),
        actions_(schedule.stage_actions[static_cast<std::size_t>(group_.rank())]),
        lane_microbatches_(schedule.microbatches),
        forwards_gradients_(sink != nullptr && forwards_gradients()),
        activation_receives_(of(schedule.microbatches)),
        gradient_receives_(of(schedule.microbatches)),
        activation_sends_(of(schedule.microbatches)),
        gradient_sends_(of(schedule.microbatches)) {
    require(schedule.chunks == 1, "a schedule of {} chunks a stage; a stage runs one chunk",
            schedule.chunks);
    if (executor.emulated_) {
      device_.emplace(*executor.emulated_, engine_, [this] { return next_arrived(); });
    }
  }

  ExecutionTimes finish() {
    for (std::size_t position = 0; position < actions_.size(); ++position) {
      const Action& action = actions_[position];
      position_ = position;
      note(name_of(action.kind).data(), action.microbatch);
      post_receives();
      require(!is_receive(action.kind) || next_receive_ > position,
              "{} is due before its receive was posted", text_of(action));
      const double begin = now_seconds();
      {
        const device::ProfileRange range(text_of(action));
        perform(action);
        // Waits for the GPU's computation.
        timed([&] { engine_.throttle(); });
      }
      if (observer_) {
        // The launches are asynchronous; wait for the action itself.
        engine_.drain();
        stage_.synchronize();
      }
      const double end = now_seconds();
      if (observer_) {
        observer_(action, begin, end);
      }
    }
    const double begin = now_seconds();
    for (std::vector<Messages>* sends : {&activation_sends_, &gradient_sends_}) {
      for (Messages& send : *sends) {
        send.wait();
      }
    }
    times_.pipeline_wait += now_seconds() - begin;
    note("", 0);
    return times_;
  }

 private:
  /// For the reports of a run that hangs.
  void note(const char* action, std::int64_t microbatch) {
    if (comm::Activity* const activity = group_.activity()) {
      activity->set_action(action, microbatch);
    }
  }

  static std::vector<Messages> of(std::int64_t microbatches) {
    return std::vector<Messages>(static_cast<std::size_t>(microbatches));
  }

  [[nodiscard]] std::int64_t execution_index_of(std::int64_t m, std::int64_t lane) const {
    return m * stage_.concurrent_lanes() + lane;
  }

  /// The microbatches of an action: the m-th of each concurrent lane.
  [[nodiscard]] std::vector<nn::Microbatch> microbatches(std::int64_t m) {
    std::vector<nn::Microbatch> concurrent;
    for (std::int64_t k = 0; k < stage_.concurrent_lanes(); ++k) {
      const std::int64_t number = k * lane_microbatches_ + m;
      concurrent.push_back({.number = number,
                            .execution_index = execution_index_of(m, k),
                            .input = stage_.is_first() ? source_.inputs(number) : ConstTensorView(),
                            .first_sample = source_.first_row(number)});
    }
    return concurrent;
  }

  void perform(const Action& action) {
    const std::int64_t m = action.microbatch;
    const auto index = static_cast<std::size_t>(m);
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        wait(receives_of(action));
        if (device_) {
          device_->received();
        }
        break;
      case ActionKind::kForward:
        forward(m);
        break;
      case ActionKind::kSendActivation:
        for (const nn::Microbatch& microbatch : microbatches(m)) {
          for (const ConstTensorView& output : stage_.outputs_of(microbatch)) {
            send(output, action.peer, comm::Tag::kActivation, activation_sends_[index]);
          }
        }
        outputs_sent_ = m + 1;
        break;
      case ActionKind::kBackwardInput:
        backward_input(m);
        break;
      case ActionKind::kSendGradient:
        for (std::int64_t k = 0; k < stage_.concurrent_lanes(); ++k) {
          for (const TensorView& gradient : stage_.input_gradients_of(execution_index_of(m, k))) {
            send(gradient, action.peer, comm::Tag::kGradient, gradient_sends_[index]);
          }
        }
        gradients_sent_ = m + 1;
        break;
      case ActionKind::kBackwardWeight:
        timed([&] {
          if (device_) {
            device_->backward_weight(stage_, microbatches(m), *sink_);
          } else {
            stage_.backward_weight(microbatches(m), *sink_);
          }
        });
        weights_done_ = m + 1;
        break;
      case ActionKind::kReduce:
        timed([&] { sink_->finish(); });
        break;
    }
  }

  void send(const ConstTensorView& tensor, std::int64_t peer, comm::Tag tag, Messages& sends) {
    if (send_observer_) {
      timed([&] { send_observer_(tensor, tag); });
    }
    const double computed = engine_.computing_seconds();
    sends.add(group_.send(tensor, peer, tag));
    times_.compute += engine_.computing_seconds() - computed;
  }

  void forward(std::int64_t m) {
    wait_for_slot(activation_sends_, m, stage_.slots().activations);
    compute(ActionKind::kForward, [&] { stage_.forward(microbatches(m), mode_); });
    forwards_done_ = m + 1;
    if (mode_ == nn::Mode::kEvaluation && stage_.is_last()) {
      losses(m);
    }
  }

  void backward_input(std::int64_t m) {
    wait_for_slot(gradient_sends_, m, stage_.slots().gradients);
    if (stage_.is_last()) {
      losses(m);
    }
    compute(ActionKind::kBackwardInput, [&] { stage_.backward_input(microbatches(m), *sink_); });
  }

  void losses(std::int64_t m) {
    timed([&] {
      for (const nn::Microbatch& microbatch : microbatches(m)) {
        const ConstTensorView targets = source_.targets(microbatch.number);
        const std::int64_t valid = source_.valid_rows(microbatch.number);
        if (see_) {
          see_(stage_.outputs_of(microbatch).front(), targets, valid);
        }
        stage_.loss(microbatch, targets, valid, gradient_scale_, mode_);
      }
    });
  }

  /// Microbatches whose received input is no longer needed, apart from pending sends.
  [[nodiscard]] std::int64_t inputs_done() const {
    if (mode_ == nn::Mode::kTraining) {
      return weights_done_;
    }
    return stage_.is_last() ? forwards_done_ : outputs_sent_;
  }

  /// Whether the stage forwards a received gradient, because none of its layers reads the tensor.
  [[nodiscard]] bool forwards_gradients() const {
    const std::vector<TensorView> received = stage_.output_gradients_of(0);
    const std::vector<TensorView>& sent = stage_.input_gradients_of(0);
    return std::any_of(sent.begin(), sent.end(), [&](const TensorView& gradient) {
      return std::any_of(received.begin(), received.end(),
                         [&](const TensorView& other) { return other.raw() == gradient.raw(); });
    });
  }

  template <typename TensorsOf>
  void receive(const Action& action, Messages& messages, comm::Tag tag,
               const TensorsOf& tensors_of) {
    for (std::int64_t k = 0; k < stage_.concurrent_lanes(); ++k) {
      for (const TensorView& tensor : tensors_of(execution_index_of(action.microbatch, k))) {
        messages.add(group_.receive(tensor, action.peer, tag));
      }
    }
  }

  /// Posts the next receives, in order, while their slots are free.
  void post_receives() {
    for (; next_receive_ < actions_.size(); ++next_receive_) {
      const Action& action = actions_[next_receive_];
      const std::int64_t m = action.microbatch;
      const auto index = static_cast<std::size_t>(m);
      if (action.kind == ActionKind::kReceiveActivation) {
        if (m - stage_.slots().inputs >= inputs_done()) {
          return;
        }
        // A pending send may read a view of the slot's input.
        wait_for_slot(activation_sends_, m, stage_.slots().inputs);
        receive(action, activation_receives_[index], comm::Tag::kActivation,
                [&](std::int64_t execution_index) { return stage_.inputs_of(execution_index); });
      } else if (action.kind == ActionKind::kReceiveGradient) {
        if (m - stage_.slots().gradients >= weights_done_) {
          return;
        }
        if (forwards_gradients_) {
          if (m - stage_.slots().gradients >= gradients_sent_) {
            return;
          }
          wait_for_slot(gradient_sends_, m, stage_.slots().gradients);
        }
        receive(action, gradient_receives_[index], comm::Tag::kGradient,
                [&](std::int64_t execution_index) {
                  return stage_.output_gradients_of(execution_index);
                });
      }
    }
  }

  void wait_for_slot(std::vector<Messages>& sends, std::int64_t m, std::int64_t slots) {
    if (m >= slots && !sends[static_cast<std::size_t>(m - slots)].test()) {
      wait(sends[static_cast<std::size_t>(m - slots)]);
      if (device_) {
        device_->blocked();
      }
    }
  }

  void wait(Messages& messages) {
    const double begin = now_seconds();
    messages.wait();
    times_.pipeline_wait += now_seconds() - begin;
  }

  [[nodiscard]] Messages& receives_of(const Action& action) {
    return (action.kind == ActionKind::kReceiveActivation
                ? activation_receives_
                : gradient_receives_)[static_cast<std::size_t>(action.microbatch)];
  }

  /// Whether the messages between this computation and the next have arrived.
  [[nodiscard]] bool next_arrived() {
    for (std::size_t i = position_ + 1; i < next_receive_; ++i) {
      if (is_receive(actions_[i].kind)) {
        if (!receives_of(actions_[i]).test()) {
          return false;
        }
      } else if (!is_send(actions_[i].kind)) {
        return true;
      }
    }
    return false;
  }

  template <typename Work>
  void compute(ActionKind kind, const Work& work) {
    timed([&] {
      if (device_) {
        device_->run(kind);
      } else {
        work();
      }
    });
  }

  template <typename Work>
  void timed(const Work& work) {
    const double begin = now_seconds();
    work();
    times_.compute += now_seconds() - begin;
  }

  nn::Stage& stage_;
  comm::Communicator& group_;
  comm::ProgressEngine& engine_;
  const ActionObserver& observer_;
  const SendObserver& send_observer_;
  std::optional<EmulatedDevice> device_;
  MicrobatchSource& source_;
  nn::Mode mode_;
  double gradient_scale_;
  nn::GradientSink* sink_;
  const OutputObserver& see_;
  const std::vector<Action>& actions_;
  /// Microbatches of each concurrent lane; all microbatches where lanes run one after the other.
  std::int64_t lane_microbatches_;
  bool forwards_gradients_;
  std::vector<Messages> activation_receives_;
  std::vector<Messages> gradient_receives_;
  std::vector<Messages> activation_sends_;
  std::vector<Messages> gradient_sends_;
  std::size_t position_ = 0;
  std::size_t next_receive_ = 0;
  std::int64_t forwards_done_ = 0;
  std::int64_t outputs_sent_ = 0;
  std::int64_t gradients_sent_ = 0;
  std::int64_t weights_done_ = 0;
  ExecutionTimes times_;
};

Executor::Executor(nn::Stage& stage, comm::Communicator& pipeline_group,
                   comm::ProgressEngine& engine)
    : stage_(stage), group_(pipeline_group), engine_(engine) {}

ExecutionTimes Executor::train(const Schedule& schedule, MicrobatchSource& source,
                               double gradient_scale, nn::GradientSink& sink) {
  return Run(*this, schedule, source, nn::Mode::kTraining, gradient_scale, &sink, {}).finish();
}

std::vector<ops::LossSums> Executor::evaluate(const Schedule& schedule, MicrobatchSource& source,
                                              const OutputObserver& see) {
  require(schedule.kind == ScheduleKind::kForwardOnly, "evaluation with the schedule {}",
          name_of(schedule.kind));
  static_cast<void>(
      Run(*this, schedule, source, nn::Mode::kEvaluation, 0.0, nullptr, see).finish());
  engine_.drain();
  return stage_.losses();
}

}  // namespace strata::pipeline
