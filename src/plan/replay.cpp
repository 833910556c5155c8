#include "replay.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace strata::plan {

std::string part_of(const ops::OperationWork& work) {
  // By the begin of the operation's name.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kParts{
      {{"matmul", "matrix products"},
       {"attention", "attention"},
       {"convolution", "convolutions"},
       {"cross_entropy", "loss"},
       {"combine_cross_entropy", "loss"},
       {"mean_squared_error", "loss"},
       {"fold", "sums of gradients and shards"},
       {"sgd", "optimizer"},
       {"ada", "optimizer"},
       {"embedding", "embedding"}}};
  const auto found = std::ranges::find_if(
      kParts, [&](const auto& part) { return work.name.starts_with(part.first); });
  return std::string(found != kParts.end() ? found->second : "norms, activations, copies");
}

double Replay::message_seconds(const comm::TracedMessages& messages) const {
  const Machine& machine = *site_.machine;
  // Links in the node and between nodes work at the same time.
  const double inside = messages.messages == 0
                            ? 0.0
                            : seconds_of(machine, machine.node,
                                         static_cast<double>(messages.messages), messages.bytes);
  const double outside = messages.messages_between_nodes == 0
                             ? 0.0
                             : seconds_of(machine, machine.network,
                                          static_cast<double>(messages.messages_between_nodes),
                                          messages.bytes_between_nodes);
  return std::max(inside, outside);
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
        stream_ = std::max(stream_, now_) + message_seconds(event.messages);
        ends_[event.number] = stream_;
        break;
      case comm::TraceEvent::Kind::kWait:
        if (const double end = ends_[event.number]; end > now_) {
          exposed_ += end - now_;
          now_ = end;
        }
        break;
    }
  }
}

}  // namespace strata::plan
