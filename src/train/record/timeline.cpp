#include "strata/train/timeline.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "strata/comm/clock_offset.hpp"
#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/host_name.hpp"
#include "strata/io/text_file.hpp"

namespace strata::train {
namespace {

using pipeline::ActionKind;

/// A colour name of chrome://tracing; Perfetto colours by name.
const char* colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "thread_state_running";
    case ActionKind::kBackwardInput:
      return "thread_state_iowait";
    case ActionKind::kBackwardWeight:
      return "rail_animation";
    default:
      return "grey";
  }
}

double microseconds(double seconds) {
  return 1e6 * seconds;
}

}  // namespace

void Timeline::add(std::int64_t step, const pipeline::Action& action, double begin, double end) {
  const bool sends = pipeline::is_send(action.kind);
  const bool receives = pipeline::is_receive(action.kind);
  Event event{.name = pipeline::text_of(action),
              .colour = colour_of(action.kind),
              .begin = begin,
              .end = end,
              .sends = sends,
              .details = fmt::format(R"("step":{},"action":"{}","microbatch":{},"chunk":{})", step,
                                     name_of(action.kind), action.microbatch, action.chunk)};
  if (sends || receives || action.kind == ActionKind::kReduce) {
    event.track = Track::kCommunication;
  }
  if (sends || receives) {
    const pipeline::StageChunk to = pipeline::receiver_of(schedule_, at_.pipeline, action);
    event.message =
        fmt::format("step {} microbatch {} stage {} to {} chunk {}", step, action.microbatch,
                    sends ? at_.pipeline : action.peer, to.stage, to.chunk);
    event.message += fmt::format(" #{}", ++messages_[event.message]);
  }
  events_.push_back(std::move(event));
}

void Timeline::add_step(std::int64_t step, double begin, double end, const StepTimes& times) {
  std::string account = fmt::format(R"("step":{},"step_seconds":{})", step, times.step);
  for (const auto& [name, seconds] : named_parts(times)) {
    account += fmt::format(R"(,"{}":{})", name, seconds);
  }
  events_.push_back({.name = fmt::format("step {}", step),
                     .colour = "white",
                     .begin = begin,
                     .end = end,
                     .details = std::move(account)});
  ++steps_;
}

bool Timeline::is_full() const {
  std::int64_t longest = 0;
  for (const std::vector<pipeline::Action>& actions : schedule_.stage_actions) {
    longest = std::max<std::int64_t>(longest, std::ssize(actions));
  }
  return (steps_ + 1) * (2 * longest + 1) > kMostEvents;  // a repeated step has each action twice
}

std::string Timeline::json(std::int64_t rank, std::int64_t ranks, double origin) const {
  const std::int64_t pipeline = rank % (ranks / schedule_.stages);  // its stages lie furthest apart
  std::string text;
  const auto describe = [&](std::string_view what, std::int64_t track, const std::string& name,
                            const std::string& more = "") {
    text += fmt::format(R"(,{{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"{}}}}})"
                        "\n",
                        what, rank, track, name, more);
  };
  describe("process_name", 0,
           fmt::format("rank {}: data {}, stage {}, tensor {}, {}", rank, at_.data, at_.pipeline,
                       at_.tensor, host_name()),
           fmt::format(R"(,"data":{},"stage":{},"tensor":{})", at_.data, at_.pipeline, at_.tensor));
  describe("thread_name", 0, "compute");
  describe("thread_name", 1, "communication");
  std::vector<Event> in_order = events_;
  std::ranges::stable_sort(in_order, [](const Event& a, const Event& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  for (const Event& event : in_order) {
    const auto track = static_cast<std::int64_t>(event.track);
    const double begin = microseconds(event.begin - origin);
    const double length = microseconds(event.end - event.begin);
    text += fmt::format(
        R"(,{{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"cname":"{}","args":{{{}}}}})"
        "\n",
        event.name, rank, track, begin, length, event.colour, event.details);
    if (!event.message.empty()) {
      // Within its slice: a message begins where the send does and ends before the receive does.
      text += fmt::format(
          R"(,{{"name":"message","cat":"message","ph":"{}","id":"pipeline {} {}","pid":{},"tid":{},"ts":{:.3f}{}}})"
          "\n",
          event.sends ? "s" : "f", pipeline, event.message, rank, track,
          event.sends ? begin : std::max(begin, begin + length - 0.001),
          event.sends ? "" : R"(,"bp":"e")");
    }
  }
  return text;
}

void Timeline::write(comm::Communicator& world, const std::filesystem::path& path) const {
  const double offset = comm::clock_offset_seconds(world, now_seconds);
  double origin = now_seconds();
  for (const Event& event : events_) {
    origin = std::min(origin, event.begin);
  }
  origin = comm::broadcast_from(world, origin);
  const std::vector<std::string> all =
      world.all_gather_texts(json(world.rank(), world.size(), origin + offset));
  comm::agree_on_first(world, [&] {
    std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      text += rank == 0 ? all[rank].substr(1) : all[rank];
    }
    text += "]}\n";
    io::replace_text(path, text);
  });
}

}  // namespace strata::train
