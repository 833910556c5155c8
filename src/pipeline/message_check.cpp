#include "message_check.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/core.h>

namespace strata::pipeline {
namespace {

// A message, identified by its receiver, so that both sides agree.
struct Message {
  bool gradient = false;
  std::int64_t microbatch = 0;
  StageChunk receiver;
  ActionPlace place;  // of its send or its receive

  // In any order, for searches.
  [[nodiscard]] auto key() const {
    return std::tuple(gradient, microbatch, receiver.stage, receiver.chunk);
  }
  friend bool operator==(const Message& left, const Message& right) {
    return left.key() == right.key();
  }
};

struct Traffic {
  std::vector<Message> sent;
  std::vector<Message> received;
};

// Messages that arrive in the order in which they are sent: those of one kind from one stage to one
// chunk of another.
struct Channel {
  std::int64_t from = 0;
  std::int64_t to = 0;
  bool gradient = false;
  std::int64_t chunk = 0;

  friend bool operator<(const Channel& left, const Channel& right) {
    return std::tie(left.from, left.to, left.gradient, left.chunk) <
           std::tie(right.from, right.to, right.gradient, right.chunk);
  }
};

std::string text_of(const Message& message) {
  std::string text = fmt::format("the {} of microbatch {}",
                                 message.gradient ? "gradient" : "activation", message.microbatch);
  if (message.receiver.chunk > 0) {
    text += fmt::format(" for chunk {}", message.receiver.chunk);
  }
  return text;
}

Message message_of(const Schedule& schedule, std::int64_t stage, const Action& action) {
  const bool gradient =
      action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kReceiveGradient;
  return {.gradient = gradient,
          .microbatch = action.microbatch,
          .receiver = receiver_of(schedule, stage, action),
          .place = {.stage = stage, .action = action}};
}

// Appends an error for each message of `list` that is not in `others`.
void append_unmatched(const std::vector<Message>& list, std::vector<Message> others,
                      const std::string& where, const char* what,
                      std::vector<PlacedError>& errors) {
  std::ranges::sort(others, {}, &Message::key);
  for (const Message& message : list) {
    if (std::ssize(errors) < kMostErrors &&
        !std::ranges::binary_search(others, message.key(), {}, &Message::key)) {
      errors.push_back({message.place, fmt::format("{}: {} is {}", where, text_of(message), what)});
    }
  }
}

Channel channel_of(const Schedule& schedule, std::int64_t stage, const Action& action) {
  const Message message = message_of(schedule, stage, action);
  const bool sends = is_send(action.kind);
  return {.from = sends ? stage : action.peer,
          .to = sends ? action.peer : stage,
          .gradient = message.gradient,
          .chunk = message.receiver.chunk};
}

std::map<Channel, Traffic> traffic_of(const Schedule& schedule) {
  std::map<Channel, Traffic> traffic;
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    for (const Action& action : schedule.stage_actions[static_cast<std::size_t>(stage)]) {
      if (is_send(action.kind) || is_receive(action.kind)) {
        Traffic& channel = traffic[channel_of(schedule, stage, action)];
        (is_send(action.kind) ? channel.sent : channel.received)
            .push_back(message_of(schedule, stage, action));
      }
    }
  }
  return traffic;
}

/// The number of a message's channel: where its receiver stands among all chunks, activations and
/// gradients apart. Negative where the message goes nowhere or the peer is another.
std::int64_t number_of(const Schedule& schedule, std::int64_t stage, const Action& action) {
  const std::vector<StageChunk>& chunks = schedule.order.chunks();
  const std::int64_t here = schedule.order.index_of({.stage = stage, .chunk = action.chunk});
  const bool gradient =
      action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kReceiveGradient;
  const bool sends = is_send(action.kind);
  const std::int64_t other = sends == gradient ? here - 1 : here + 1;
  if (here < 0 || other < 0 || other >= std::ssize(chunks) ||
      chunks[static_cast<std::size_t>(other)].stage != action.peer) {
    return -1;
  }
  return 2 * (sends ? other : here) + (gradient ? 1 : 0);
}

/// Whether each channel's microbatches are received in the order in which they are sent.
bool messages_match(const Schedule& schedule) {
  const std::size_t channels = 2 * schedule.order.chunks().size();
  const auto most = static_cast<std::size_t>(schedule.microbatches);
  std::vector<std::int32_t> sent(channels * most);  // by channel, in order
  std::vector<std::size_t> sends(channels, 0);
  std::vector<std::size_t> receives(channels, 0);
  for (const bool sending : {true, false}) {
    for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
      for (const Action& action : schedule.stage_actions[static_cast<std::size_t>(stage)]) {
        if (sending ? !is_send(action.kind) : !is_receive(action.kind)) {
          continue;
        }
        const std::int64_t number = number_of(schedule, stage, action);
        if (number < 0) {
          return false;
        }
        const auto channel = static_cast<std::size_t>(number);
        std::size_t& count = (sending ? sends : receives)[channel];
        if (count == (sending ? most : sends[channel])) {
          return false;
        }
        std::int32_t& microbatch = sent[channel * most + count++];
        if (sending) {
          microbatch = static_cast<std::int32_t>(action.microbatch);
        } else if (microbatch != action.microbatch) {
          return false;
        }
      }
    }
  }
  return sends == receives;
}

}  // namespace

std::vector<PlacedError> message_errors(const Schedule& schedule) {
  std::vector<PlacedError> errors;
  if (messages_match(schedule)) {
    return errors;
  }
  for (const auto& [channel, messages] : traffic_of(schedule)) {
    const auto& [sent, received] = messages;
    if (sent == received) {
      continue;
    }
    const std::string where = fmt::format("from stage {} to stage {}", channel.from, channel.to);
    const std::size_t errors_before = errors.size();
    append_unmatched(sent, received, where, "sent and never received", errors);
    append_unmatched(received, sent, where, "received and never sent", errors);
    if (errors.size() > errors_before) {
      continue;
    }
    const auto [first_sent, first_received] = std::ranges::mismatch(sent, received);
    if (sent.size() != received.size()) {
      errors.push_back({(sent.size() > received.size() ? first_sent : first_received)->place,
                        fmt::format("{}: {} messages are sent, {} are received", where, sent.size(),
                                    received.size())});
    } else {
      errors.push_back(
          {first_sent->place,
           fmt::format("{}: {} is sent where {} is received; messages must be received in the "
                       "order in which they are sent",
                       where, text_of(*first_sent), text_of(*first_received))});
    }
  }
  return errors;
}

namespace {

/// All stages' lists, run concurrently. The order in which stages are advanced does not matter:
/// what one stage does never takes from another stage what it could do.
class ConcurrentRun {
 public:
  ConcurrentRun(const Schedule& schedule, Sends sends, std::span<const std::int64_t> gradient_slots)
      : schedule_(schedule),
        sends_(sends),
        gradient_slots_(gradient_slots),
        stages_(static_cast<std::size_t>(schedule.stages)),
        in_flight_(2 * schedule.order.chunks().size(), 0),
        taken_(schedule.order.chunks().size(), 0) {}

  /// Returns: how many actions of each stage's list ran.
  std::vector<std::size_t> run() {
    for (std::int64_t stage = schedule_.stages - 1; stage >= 0; --stage) {
      wake(stage);
    }
    while (!awake_.empty()) {
      const std::int64_t stage = awake_.back();
      awake_.pop_back();
      of(stage).awake = false;
      const auto& actions = schedule_.stage_actions[static_cast<std::size_t>(stage)];
      std::size_t& next = of(stage).next;
      while (next < actions.size() && perform(stage, actions[next])) {
        ++next;
      }
    }
    std::vector<std::size_t> done;
    for (const Stage& stage : stages_) {
      done.push_back(stage.next);
    }
    return done;
  }

 private:
  struct Stage {
    std::size_t next = 0;
    std::int64_t unmatched = 0;  ///< its messages whose other side has not come yet
    bool awake = false;
  };

  [[nodiscard]] Stage& of(std::int64_t stage) { return stages_[static_cast<std::size_t>(stage)]; }

  void wake(std::int64_t stage) {
    if (!std::exchange(of(stage).awake, true)) {
      awake_.push_back(stage);
    }
  }

  /// Returns: false where the stage has to wait.
  bool perform(std::int64_t stage, const Action& action) {
    if (is_send(action.kind) || is_receive(action.kind)) {
      return exchange(stage, action);
    }
    if (sends_ == Sends::kHostWaits) {
      return of(stage).unmatched == 0;
    }
    return sends_ != Sends::kSlots || action.kind != ActionKind::kBackwardInput ||
           has_slot({.stage = stage, .chunk = action.chunk}, action.microbatch);
  }

  [[nodiscard]] bool has_slot(const StageChunk& chunk, std::int64_t microbatch) const {
    const auto before = upstream(schedule_, chunk);
    const auto index = static_cast<std::size_t>(schedule_.order.index_of(chunk));
    return !before || before->stage == chunk.stage ||
           taken_[index] > microbatch - gradient_slots_[index];
  }

  bool exchange(std::int64_t stage, const Action& action) {
    std::int64_t& messages =
        in_flight_[static_cast<std::size_t>(number_of(schedule_, stage, action))];
    const bool sends = is_send(action.kind);
    if (sends ? sends_ == Sends::kRendezvous && messages == 1
              : sends_ != Sends::kHostWaits && messages == 0) {
      return false;
    }
    const bool matches = sends ? messages < 0 : messages > 0;
    of(matches ? action.peer : stage).unmatched += matches ? -1 : 1;
    messages += sends ? 1 : -1;
    if (action.kind == ActionKind::kReceiveGradient) {
      ++taken_[static_cast<std::size_t>(
          schedule_.order.index_of({.stage = stage, .chunk = action.chunk}) + 1)];
    }
    wake(action.peer);
    return true;
  }

  const Schedule& schedule_;
  Sends sends_;
  std::span<const std::int64_t> gradient_slots_;
  std::vector<Stage> stages_;
  /// By channel: sent less received.
  std::vector<std::int64_t> in_flight_;
  /// Gradients of each chunk that the chunk before it has received.
  std::vector<std::int64_t> taken_;
  /// Stages to advance.
  std::vector<std::int64_t> awake_;
};

}  // namespace

std::optional<PlacedError> hang_of(const Schedule& schedule, Sends sends,
                                   std::span<const std::int64_t> gradient_slots) {
  const std::vector<std::size_t> position = ConcurrentRun(schedule, sends, gradient_slots).run();
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
