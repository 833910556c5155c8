#include "strata/train/timeline.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"

namespace strata::train {

void Timeline::add(const std::string& name, double begin, double end) {
  if (std::ssize(events_) < kMostEvents) {
    events_.push_back({name, begin, end});
  }
}

void Timeline::write(comm::Communicator& world, const std::filesystem::path& path) const {
  std::string mine;
  for (const Event& event : events_) {
    mine +=
        fmt::format(R"({{"name":"{}","ph":"X","pid":{},"tid":0,"ts":{:.3f},"dur":{:.3f}}},)"
                    "\n",
                    event.name, world.rank(), event.begin * 1e6, (event.end - event.begin) * 1e6);
  }
  const std::vector<std::string> all = world.all_gather_texts(mine);
  comm::agree(world, [&] {
    if (world.rank() != 0) {
      return;
    }
    std::ofstream out(path, std::ios::trunc);
    out << "{\"traceEvents\":[\n";
    for (const std::string& events : all) {
      out << events;
    }
    // JSON allows no trailing comma, so a last event that only names the process ends the list.
    out << "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"rank "
           "0\"}}\n]}\n";
    if (!out.flush()) {
      fail(ExitCode::kUsage, "cannot write {}: {}; free some space or choose another run.dir",
           path.string(), std::strerror(errno));
    }
  });
}

}  // namespace strata::train
