#include "replay.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace strata::forecast {

std::string part_of(const ops::OperationWork& work) {
  // By the begin of the operation's name.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kParts{
      {{"matmul", "matrix products"},
       {"attention", "attention"},
       {"convolution", "convolutions"},
       {"cross_entropy", "loss"},
       {"combine_cross_entropy", "loss"},
       {"mean_squared_error", "loss"},
       {"preference_loss", "loss"},
       {"fold", "sums of gradients and shards"},
       {"sgd", "optimizer"},
       {"ada", "optimizer"},
       {"embedding", "embedding"}}};
  const auto found = std::ranges::find_if(
      kParts, [&](const auto& part) { return work.name.starts_with(part.first); });
  return std::string(found != kParts.end() ? found->second : "norms, activations, copies");
}

void Replay::start(const comm::TraceEvent& event) {
  const comm::TracedMessages& messages = event.messages;
  const Machine& machine = *site_.machine;
  const auto seconds = [&](const Link& link, std::int64_t count, double bytes) {
    return count == 0 ? 0.0
                      : seconds_of(machine, link, static_cast<double>(count), bytes, site_.nodes);
  };
  const double inside = seconds(machine.node, messages.messages, messages.bytes);
  const double outside =
      seconds(machine.network, messages.messages_between_nodes, messages.bytes_between_nodes);
  if (machine.device == device::DeviceKind::kCpu) {
    // Ranks of a node copy their messages themselves.
    now_ += inside;
    exposed_ += inside;
    stream_ = std::max(stream_, now_) + outside;
  } else {
    // Links in a node and between nodes work at the same time.
    stream_ = std::max(stream_, now_) + std::max(inside, outside);
  }
  ends_[event.number] = stream_;
}

void Replay::run(const std::vector<comm::TraceEvent>& events) {
  for (const comm::TraceEvent& event : events) {
    switch (event.kind) {
      case comm::TraceEvent::Kind::kOperation: {
        const double seconds = seconds_of(*site_.machine, event.work, site_.busy_ranks);
        if (event.on_stream) {
          stream_ = std::max(stream_, ends_[event.number]) + seconds;
          ends_[event.number] = stream_;
        } else {
          now_ += seconds;
          parts_[part_of(event.work)] += seconds;
        }
        break;
      }
      case comm::TraceEvent::Kind::kStart:
        start(event);
        break;
      case comm::TraceEvent::Kind::kWait:
        waits_ += 1.0;
        if (const double end = ends_[event.number]; end > now_) {
          exposed_ += end - now_;
          now_ = end;
        }
        break;
    }
  }
}

}  // namespace strata::forecast
