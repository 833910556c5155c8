#include "message_check.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "strata/pipeline/checker.hpp"

namespace strata::pipeline {
namespace {

// A message, identified by its receiver, so that both sides agree.
struct Message {
  bool gradient = false;
  std::int64_t microbatch = 0;
  StageChunk receiver;

  friend bool operator==(const Message&, const Message&) = default;
};

// Any order, for searches.
bool before(const Message& left, const Message& right) {
  const auto key = [](const Message& message) {
    return std::tuple(message.gradient, message.microbatch, message.receiver.stage,
                      message.receiver.chunk);
  };
  return key(left) < key(right);
}

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
          .receiver = receiver_of(schedule, stage, action)};
}

// Appends an error for each message of `list` that is not in `others`.
void append_unmatched(const std::vector<Message>& list, std::vector<Message> others,
                      const std::string& where, const char* what,
                      std::vector<std::string>& errors) {
  std::ranges::sort(others, before);
  for (const Message& message : list) {
    if (std::ssize(errors) < kMostErrors && !std::ranges::binary_search(others, message, before)) {
      errors.push_back(fmt::format("{}: {} is {}", where, text_of(message), what));
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

}  // namespace

std::vector<std::string> message_errors(const Schedule& schedule) {
  std::vector<std::string> errors;
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
    if (sent.size() != received.size()) {
      errors.push_back(fmt::format("{}: {} messages are sent, {} are received", where, sent.size(),
                                   received.size()));
      continue;
    }
    const auto [first_sent, first_received] =
        std::mismatch(sent.begin(), sent.end(), received.begin());
    if (first_sent != sent.end()) {
      errors.push_back(
          fmt::format("{}: {} is sent where {} is received; messages must be received in the "
                      "order in which they are sent",
                      where, text_of(*first_sent), text_of(*first_received)));
    }
  }
  return errors;
}

std::string hang_of(const Schedule& schedule, Sends sends,
                    std::span<const std::int64_t> gradient_slots) {
  std::vector<std::size_t> position(static_cast<std::size_t>(schedule.stages), 0);
  std::map<Channel, std::int64_t> in_flight;
  // Gradients of each chunk that the chunk before it has received.
  std::vector<std::int64_t> taken(schedule.order.chunks().size(), 0);
  const auto has_slot = [&](const StageChunk& chunk, std::int64_t microbatch) {
    const auto before = upstream(schedule, chunk);
    const auto index = static_cast<std::size_t>(schedule.order.index_of(chunk));
    return !before || before->stage == chunk.stage ||
           taken[index] > microbatch - gradient_slots[index];
  };
  const auto has_unmatched = [&](std::int64_t stage) {
    return std::ranges::any_of(in_flight, [&](const auto& entry) {
      return (entry.first.from == stage && entry.second > 0) ||
             (entry.first.to == stage && entry.second < 0);
    });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
      std::size_t& next = position[static_cast<std::size_t>(stage)];
      const auto& actions = schedule.stage_actions[static_cast<std::size_t>(stage)];
      for (; next < actions.size(); ++next, moved = true) {
        const Action& action = actions[next];
        if (is_send(action.kind)) {
          std::int64_t& messages = in_flight[channel_of(schedule, stage, action)];
          if (sends == Sends::kRendezvous && messages == 1) {
            break;
          }
          ++messages;
        } else if (is_receive(action.kind)) {
          std::int64_t& messages = in_flight[channel_of(schedule, stage, action)];
          if (messages == 0 && sends != Sends::kHostWaits) {
            break;
          }
          --messages;
          if (action.kind == ActionKind::kReceiveGradient) {
            ++taken[static_cast<std::size_t>(
                schedule.order.index_of({.stage = stage, .chunk = action.chunk}) + 1)];
          }
        } else if (sends == Sends::kHostWaits && has_unmatched(stage)) {
          break;
        } else if (sends == Sends::kSlots && action.kind == ActionKind::kBackwardInput &&
                   !has_slot({.stage = stage, .chunk = action.chunk}, action.microbatch)) {
          break;
        }
      }
    }
  }
  std::string stuck;
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    const std::size_t next = position[static_cast<std::size_t>(stage)];
    const auto& actions = schedule.stage_actions[static_cast<std::size_t>(stage)];
    if (next < actions.size()) {
      stuck += fmt::format("{}stage {} waits at {}", stuck.empty() ? "deadlock: " : ", ", stage,
                           text_of(actions[next]));
    }
  }
  return stuck;
}

}  // namespace strata::pipeline
