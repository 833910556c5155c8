#include "strata/pipeline/executor.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/device/profile_range.hpp"

// Executor::Run is one class on more than 400 lines: what an action may do depends on the progress
// of all others.
namespace strata::pipeline {
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
/// lane. In each chunk actions start and end in ascending order, so microbatch m may use slot
/// m % slots once microbatch m - slots no longer needs it.
class Executor::Run {
 public:
  Run(Executor& executor, const Schedule& schedule, MicrobatchSource& source, nn::Mode mode,
      double gradient_scale, nn::GradientSink* sink, const OutputObserver& see)
      : executor_(executor),
        schedule_(schedule),
        group_(executor.group_),
        engine_(executor.engine_),
        source_(source),
        mode_(mode),
        gradient_scale_(gradient_scale),
        sink_(sink),
        see_(see),
        actions_(schedule.stage_actions[static_cast<std::size_t>(group_.rank())]),
        lane_microbatches_(schedule.microbatches) {
    for (nn::Stage* const stage : executor.chunks_) {
      chunks_.emplace_back(*stage, schedule.microbatches);
      chunks_.back().forwards_gradients = sink != nullptr && forwards_gradients(*stage);
    }
    std::size_t scheduled = 0;
    for (const StageChunk& position : schedule.order.chunks()) {
      if (position.stage == group_.rank()) {
        const auto next = downstream(schedule, position);
        if (scheduled + 1 < chunks_.size() && next && next->stage == position.stage) {
          chunks_[scheduled].downstream = &chunks_[scheduled + 1];
          chunks_[scheduled + 1].upstream = &chunks_[scheduled];
        }
        ++scheduled;
      }
    }
    require(scheduled == chunks_.size(), "a schedule of {} chunks, on a stage of {}", scheduled,
            chunks_.size());
  }

  ExecutionTimes finish() {
    for (std::size_t position = 0; position < actions_.size(); ++position) {
      const Action& action = actions_[position];
      note(name_of(action.kind).data(), action.microbatch);
      post_receives();
      require(!is_receive(action.kind) || next_receive_ > position,
              "{} is due before its receive was posted", text_of(action));
      const double begin = now_seconds();
      {
        const device::ProfileRange range(text_of(action));
        perform(action);
        if (!is_send(action.kind) && !is_receive(action.kind)) {
          // Waits for the GPU's computation.
          timed([&] { engine_.throttle(); });
        }
      }
      if (executor_.observer_) {
        // The launches are asynchronous; wait for the action itself, but not for its messages,
        // which may wait for a later action.
        engine_.wait_for_compute();
        chunks_.front().stage.synchronize();
        executor_.observer_(action, begin, now_seconds());
      }
    }
    for (Chunk& chunk : chunks_) {
      std::ranges::for_each(chunk.activation_sends, [&](Messages& sends) { wait(sends); });
      std::ranges::for_each(chunk.gradient_sends, [&](Messages& sends) { wait(sends); });
    }
    note("", 0);
    return times_;
  }

 private:
  /// The progress of one chunk.
  struct Chunk {
    Chunk(nn::Stage& chunk, std::int64_t microbatches)
        : stage(chunk),
          activation_receives(static_cast<std::size_t>(microbatches)),
          gradient_receives(static_cast<std::size_t>(microbatches)),
          activation_sends(static_cast<std::size_t>(microbatches)),
          gradient_sends(static_cast<std::size_t>(microbatches)) {}

    nn::Stage& stage;
    /// The chunks before and after it, where they are on this stage.
    Chunk* upstream = nullptr;
    Chunk* downstream = nullptr;
    bool forwards_gradients = false;
    std::vector<Messages> activation_receives;
    std::vector<Messages> gradient_receives;
    std::vector<Messages> activation_sends;
    std::vector<Messages> gradient_sends;
    std::int64_t forwards_done = 0;
    std::int64_t outputs_sent = 0;
    std::int64_t gradients_sent = 0;  ///< or handed on
    std::int64_t weights_done = 0;
  };

  /// For the reports of a run that hangs.
  void note(const char* action, std::int64_t microbatch) {
    if (comm::Activity* const activity = group_.activity()) {
      activity->set_action(action, microbatch);
    }
  }

  [[nodiscard]] Chunk& chunk_of(const Action& action) {
    return chunks_[static_cast<std::size_t>(action.chunk)];
  }
  [[nodiscard]] std::int64_t number_of(const Chunk& chunk) const { return &chunk - chunks_.data(); }

  [[nodiscard]] static std::int64_t execution_index_of(const Chunk& chunk, std::int64_t m,
                                                       std::int64_t lane) {
    return m * chunk.stage.concurrent_lanes() + lane;
  }

  /// The microbatches of an action: the m-th of each concurrent lane.
  [[nodiscard]] std::vector<nn::Microbatch> microbatches(const Chunk& chunk, std::int64_t m) {
    std::vector<nn::Microbatch> concurrent;
    for (std::int64_t k = 0; k < chunk.stage.concurrent_lanes(); ++k) {
      const std::int64_t number = k * lane_microbatches_ + m;
      concurrent.push_back(
          {.number = number,
           .execution_index = execution_index_of(chunk, m, k),
           .input = chunk.stage.is_first() ? source_.inputs(number) : ConstTensorView(),
           .first_sample = source_.first_row(number),
           .places = source_.places(number),
           .references = source_.references(number)});
    }
    return concurrent;
  }

  void perform(const Action& action) {
    const std::int64_t m = action.microbatch;
    const auto index = static_cast<std::size_t>(m);
    if (action.kind == ActionKind::kReduce) {
      timed([&] { sink_->finish(); });
      return;
    }
    Chunk& chunk = chunk_of(action);
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        wait(receives_of(action));
        break;
      case ActionKind::kForward:
        forward(chunk, m);
        break;
      case ActionKind::kSendActivation:
        for (const ConstTensorView& output : outputs_of(chunk, m)) {
          send(output, action, chunk.activation_sends[index]);
        }
        chunk.outputs_sent = m + 1;
        break;
      case ActionKind::kBackwardInput:
        backward_input(chunk, m);
        break;
      case ActionKind::kSendGradient:
        for (const TensorView& gradient : input_gradients_of(chunk, m)) {
          send(gradient, action, chunk.gradient_sends[index]);
        }
        chunk.gradients_sent = m + 1;
        break;
      case ActionKind::kBackwardWeight:
        timed([&] { chunk.stage.backward_weight(microbatches(chunk, m), *sink_); });
        chunk.weights_done = m + 1;
        break;
      default:
        break;
    }
  }

  /// The tensors of all concurrent lanes that a chunk hands on, and where it takes them.
  [[nodiscard]] std::vector<ConstTensorView> outputs_of(const Chunk& chunk, std::int64_t m) {
    std::vector<ConstTensorView> tensors;
    for (const nn::Microbatch& microbatch : microbatches(chunk, m)) {
      std::ranges::copy(chunk.stage.outputs_of(microbatch), std::back_inserter(tensors));
    }
    return tensors;
  }
  template <typename TensorsOf>
  [[nodiscard]] static std::vector<TensorView> tensors_of(const Chunk& chunk, std::int64_t m,
                                                          const TensorsOf& of_index) {
    std::vector<TensorView> tensors;
    for (std::int64_t k = 0; k < chunk.stage.concurrent_lanes(); ++k) {
      std::ranges::copy(of_index(execution_index_of(chunk, m, k)), std::back_inserter(tensors));
    }
    return tensors;
  }
  [[nodiscard]] static std::vector<TensorView> inputs_of(const Chunk& chunk, std::int64_t m) {
    return tensors_of(chunk, m, [&](std::int64_t i) { return chunk.stage.inputs_of(i); });
  }
  [[nodiscard]] static std::vector<TensorView> output_gradients_of(const Chunk& chunk,
                                                                   std::int64_t m) {
    return tensors_of(chunk, m, [&](std::int64_t i) { return chunk.stage.output_gradients_of(i); });
  }
  [[nodiscard]] static std::vector<TensorView> input_gradients_of(const Chunk& chunk,
                                                                  std::int64_t m) {
    return tensors_of(chunk, m, [&](std::int64_t i) { return chunk.stage.input_gradients_of(i); });
  }

  void observe(const ConstTensorView& tensor, comm::Tag kind, std::int64_t chunk) {
    if (executor_.send_observer_ && mode_ == nn::Mode::kTraining) {
      timed([&] { executor_.send_observer_(tensor, kind, chunk); });
    }
  }

  [[nodiscard]] static comm::Tag kind_of(const Action& action) {
    return is_gradient(action.kind) ? comm::Tag::kGradient : comm::Tag::kActivation;
  }
  /// The tag names the receiving chunk, as routes do.
  [[nodiscard]] comm::Tag tag_of(const Action& action) const {
    return comm::tag_of(kind_of(action), receiver_of(schedule_, group_.rank(), action).chunk);
  }

  void send(const ConstTensorView& tensor, const Action& action, Messages& sends) {
    observe(tensor, kind_of(action), action.chunk);
    const double computed = engine_.computing_seconds();
    sends.add(group_.send(tensor, action.peer, tag_of(action)));
    times_.compute += engine_.computing_seconds() - computed;
  }

  /// Hands tensors to another chunk of this stage.
  template <typename Tensors>
  void hand_on(const Tensors& from, const std::vector<TensorView>& to, const Chunk& sender,
               comm::Tag kind) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      observe(from[i], kind, number_of(sender));
      timed([&] { sender.stage.copy(from[i], to[i]); });
    }
  }

  void forward(Chunk& chunk, std::int64_t m) {
    wait_for_slot(chunk.activation_sends, m, chunk.stage.slots().activations);
    if (chunk.upstream != nullptr) {
      // A pending send may read a view of the slot's input.
      wait_for_slot(chunk.activation_sends, m, chunk.stage.slots().inputs);
      hand_on(outputs_of(*chunk.upstream, m), inputs_of(chunk, m), *chunk.upstream,
              comm::Tag::kActivation);
    }
    timed([&] { chunk.stage.forward(microbatches(chunk, m), mode_); });
    chunk.forwards_done = m + 1;
    if (mode_ == nn::Mode::kEvaluation && chunk.stage.is_last()) {
      losses(chunk, m);
    }
  }

  void backward_input(Chunk& chunk, std::int64_t m) {
    wait_for_slot(chunk.gradient_sends, m, chunk.stage.slots().gradients);
    if (chunk.stage.is_last()) {
      losses(chunk, m);
    }
    if (chunk.downstream != nullptr) {
      hand_on(input_gradients_of(*chunk.downstream, m), output_gradients_of(chunk, m),
              *chunk.downstream, comm::Tag::kGradient);
      chunk.downstream->gradients_sent = m + 1;
    }
    timed([&] { chunk.stage.backward_input(microbatches(chunk, m), *sink_); });
  }

  void losses(Chunk& chunk, std::int64_t m) {
    timed([&] {
      for (const nn::Microbatch& microbatch : microbatches(chunk, m)) {
        const ConstTensorView targets = source_.targets(microbatch.number);
        const std::int64_t valid = source_.valid_rows(microbatch.number);
        if (see_) {
          see_(microbatch.number, chunk.stage.outputs_of(microbatch).front(), targets, valid);
        }
        chunk.stage.loss(microbatch, targets, valid, gradient_scale_, mode_);
      }
    });
  }

  /// Microbatches that no longer need their received input; pending sends may still read it.
  [[nodiscard]] std::int64_t inputs_done(const Chunk& chunk) const {
    if (mode_ == nn::Mode::kTraining) {
      return chunk.weights_done;
    }
    if (chunk.downstream != nullptr) {
      return chunk.downstream->forwards_done;
    }
    return chunk.stage.is_last() ? chunk.forwards_done : chunk.outputs_sent;
  }

  /// Whether the chunk forwards a received gradient, because none of its layers reads the tensor.
  [[nodiscard]] static bool forwards_gradients(const nn::Stage& stage) {
    const std::vector<TensorView> received = stage.output_gradients_of(0);
    const std::vector<TensorView>& sent = stage.input_gradients_of(0);
    return std::any_of(sent.begin(), sent.end(), [&](const TensorView& gradient) {
      return std::any_of(received.begin(), received.end(),
                         [&](const TensorView& other) { return other.raw() == gradient.raw(); });
    });
  }

  void receive(const Action& action, const std::vector<TensorView>& tensors) {
    for (const TensorView& tensor : tensors) {
      receives_of(action).add(group_.receive(tensor, action.peer, tag_of(action)));
    }
  }

  /// Posts the next receives, in order, while their slots are free.
  void post_receives() {
    for (; next_receive_ < actions_.size(); ++next_receive_) {
      const Action& action = actions_[next_receive_];
      const std::int64_t m = action.microbatch;
      if (!is_receive(action.kind)) {
        continue;
      }
      Chunk& chunk = chunk_of(action);
      const nn::StageSlots& slots = chunk.stage.slots();
      if (action.kind == ActionKind::kReceiveActivation) {
        if (m - slots.inputs >= inputs_done(chunk)) {
          return;
        }
        // A pending send may read a view of the slot's input.
        wait_for_slot(chunk.activation_sends, m, slots.inputs);
        receive(action, inputs_of(chunk, m));
      } else {
        if (m - slots.gradients >= chunk.weights_done) {
          return;
        }
        if (chunk.forwards_gradients) {
          if (m - slots.gradients >= chunk.gradients_sent) {
            return;
          }
          wait_for_slot(chunk.gradient_sends, m, slots.gradients);
        }
        receive(action, output_gradients_of(chunk, m));
      }
    }
  }
  void wait_for_slot(std::vector<Messages>& sends, std::int64_t m, std::int64_t slots) {
    if (m >= slots && !sends[static_cast<std::size_t>(m - slots)].test()) {
      wait(sends[static_cast<std::size_t>(m - slots)]);
    }
  }

  void wait(Messages& messages) {
    const double begin = now_seconds();
    messages.wait();
    times_.pipeline_wait += now_seconds() - begin;
  }

  [[nodiscard]] Messages& receives_of(const Action& action) {
    Chunk& chunk = chunk_of(action);
    return (action.kind == ActionKind::kReceiveActivation
                ? chunk.activation_receives
                : chunk.gradient_receives)[static_cast<std::size_t>(action.microbatch)];
  }

  template <typename Work>
  void timed(const Work& work) {
    const double begin = now_seconds();
    work();
    times_.compute += now_seconds() - begin;
  }

  const Executor& executor_;
  const Schedule& schedule_;
  comm::Communicator& group_;
  comm::ProgressEngine& engine_;
  MicrobatchSource& source_;
  nn::Mode mode_;
  double gradient_scale_;
  nn::GradientSink* sink_;
  const OutputObserver& see_;
  const std::vector<Action>& actions_;
  /// Microbatches of each concurrent lane; all microbatches where lanes run one after the other.
  std::int64_t lane_microbatches_;
  std::vector<Chunk> chunks_;
  std::size_t next_receive_ = 0;
  ExecutionTimes times_;
};

Executor::Executor(std::vector<nn::Stage*> chunks, comm::Communicator& pipeline_group,
                   comm::ProgressEngine& engine)
    : chunks_(std::move(chunks)), group_(pipeline_group), engine_(engine) {}

ExecutionTimes Executor::train(const Schedule& schedule, MicrobatchSource& source,
                               double gradient_scale, nn::GradientSink& sink) {
  return Run(*this, schedule, source, nn::Mode::kTraining, gradient_scale, &sink, {}).finish();
}

std::vector<nn::MicrobatchLoss> Executor::evaluate(const Schedule& schedule,
                                                   MicrobatchSource& source,
                                                   const OutputObserver& see) {
  require(schedule.kind == ScheduleKind::kForwardOnly, "evaluation with the schedule {}",
          name_of(schedule.kind));
  static_cast<void>(
      Run(*this, schedule, source, nn::Mode::kEvaluation, 0.0, nullptr, see).finish());
  engine_.drain();
  return chunks_.back()->losses();
}

}  // namespace strata::pipeline
