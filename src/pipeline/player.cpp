#include "player.hpp"

#include <utility>

#include <fmt/core.h>

#include "strata/core/error.hpp"

#include "index.hpp"

namespace strata::pipeline {
namespace {

/// The order in which stages are advanced does not matter: no action of one stage disables an
/// action of another.
class Player {
 public:
  Player(const Schedule& schedule, Sends sends, std::span<const std::int64_t> gradient_slots,
         const Ran& ran)
      : schedule_(schedule),
        sends_(sends),
        gradient_slots_(gradient_slots),
        ran_(ran),
        next_(schedule.stage_actions.size(), 0),
        unmatched_(schedule.stage_actions.size(), 0),
        awake_(schedule.stage_actions.size(), false),
        in_flight_(2 * schedule.order.chunks().size(), 0),
        taken_(schedule.order.chunks().size(), 0) {}

  std::vector<std::size_t> run() {
    for (std::int64_t stage = schedule_.stages - 1; stage >= 0; --stage) {
      wake(stage);
    }
    while (!to_advance_.empty()) {
      const std::int64_t stage = to_advance_.back();
      to_advance_.pop_back();
      awake_[at(stage)] = false;
      const std::vector<Action>& actions = schedule_.stage_actions[at(stage)];
      std::size_t& next = next_[at(stage)];
      for (; next < actions.size() && perform(stage, actions[next]); ++next) {
        if (ran_) {
          ran_(stage, actions[next]);
        }
      }
    }
    return std::move(next_);
  }

 private:
  void wake(std::int64_t stage) {
    if (!awake_[at(stage)]) {
      awake_[at(stage)] = true;
      to_advance_.push_back(stage);
    }
  }

  /// Returns: false where the stage has to wait.
  bool perform(std::int64_t stage, const Action& action) {
    if (is_send(action.kind) || is_receive(action.kind)) {
      return exchange(stage, action);
    }
    if (sends_ == Sends::kHostWaits) {
      return unmatched_[at(stage)] == 0;
    }
    return sends_ != Sends::kSlots || action.kind != ActionKind::kBackwardInput ||
           has_slot({.stage = stage, .chunk = action.chunk}, action.microbatch);
  }

  [[nodiscard]] bool has_slot(const StageChunk& chunk, std::int64_t microbatch) const {
    const auto before = upstream(schedule_, chunk);
    const std::size_t index = at(schedule_.order.index_of(chunk));
    return !before || before->stage == chunk.stage ||
           taken_[index] > microbatch - gradient_slots_[index];
  }

  bool exchange(std::int64_t stage, const Action& action) {
    const std::int64_t number = message_number(schedule_, stage, action);
    if (number < 0) {
      require(false, "stage {}: {} goes nowhere", stage, text_of(action));
    }
    std::int64_t& messages = in_flight_[at(number / schedule_.microbatches)];
    const bool sends = is_send(action.kind);
    if (sends ? sends_ == Sends::kRendezvous && messages == 1
              : sends_ != Sends::kHostWaits && messages == 0) {
      return false;
    }
    const bool matches = sends ? messages < 0 : messages > 0;
    unmatched_[at(matches ? action.peer : stage)] += matches ? -1 : 1;
    messages += sends ? 1 : -1;
    if (action.kind == ActionKind::kReceiveGradient) {
      ++taken_[at(schedule_.order.index_of({.stage = stage, .chunk = action.chunk}) + 1)];
    }
    wake(action.peer);
    return true;
  }

  const Schedule& schedule_;
  Sends sends_;
  std::span<const std::int64_t> gradient_slots_;
  const Ran& ran_;
  /// By stage: the next action, messages whose other side has not come yet, whether to advance it.
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> unmatched_;
  std::vector<bool> awake_;
  std::vector<std::int64_t> to_advance_;
  /// By message_number() / microbatches: sent less received.
  std::vector<std::int64_t> in_flight_;
  /// Gradients of each chunk that the chunk before it has received.
  std::vector<std::int64_t> taken_;
};

}  // namespace

std::int64_t message_number(const Schedule& schedule, std::int64_t stage, const Action& action) {
  const std::vector<StageChunk>& chunks = schedule.order.chunks();
  const std::int64_t here = schedule.order.index_of({.stage = stage, .chunk = action.chunk});
  const bool gradient = is_gradient(action.kind);
  const bool sends = is_send(action.kind);
  const std::int64_t other = sends == gradient ? here - 1 : here + 1;
  if (here < 0 || other < 0 || other >= std::ssize(chunks) ||
      chunks[static_cast<std::size_t>(other)].stage != action.peer) {
    return -1;
  }
  const std::int64_t channel = 2 * (sends ? other : here) + (gradient ? 1 : 0);
  return channel * schedule.microbatches + action.microbatch;
}

std::size_t message_count(const Schedule& schedule) {
  return 2 * schedule.order.chunks().size() * static_cast<std::size_t>(schedule.microbatches);
}

std::vector<std::size_t> play(const Schedule& schedule, Sends sends,
                              std::span<const std::int64_t> gradient_slots, const Ran& ran) {
  return Player(schedule, sends, gradient_slots, ran).run();
}

std::optional<PlacedError> hang_of(const Schedule& schedule, Sends sends,
                                   std::span<const std::int64_t> gradient_slots) {
  const std::vector<std::size_t> position = play(schedule, sends, gradient_slots, {});
  std::optional<PlacedError> stuck;
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    const std::size_t next = position[static_cast<std::size_t>(stage)];
    const auto& actions = schedule.stage_actions[static_cast<std::size_t>(stage)];
    if (next < actions.size()) {
      const char* separator = stuck ? ", " : "deadlock: ";
      if (!stuck) {
        stuck = {.place = {.stage = stage, .action = actions[next]}, .text = {}};
      }
      stuck->text +=
          fmt::format("{}stage {} waits at {}", separator, stage, text_of(actions[next]));
    }
  }
  return stuck;
}

}  // namespace strata::pipeline
