#include "commands/planning/doctor_messages.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/values.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/text.hpp"

#include "commands/planning/machine_probes.hpp"

namespace strata::app {
namespace {

constexpr const char* kInNode = "in a node";
constexpr std::int64_t kSmall = 8;

/// Small, medium and large; less between many ranks, each of which exchanges with all others.
std::array<std::int64_t, 3> sizes_on(const device::Device& device, std::int64_t ranks) {
  const bool on_gpu = device.kind() == device::DeviceKind::kCuda;
  const std::int64_t most = std::max(kSmall, (std::int64_t{on_gpu ? 256 : 64} << 20) / ranks);
  return {kSmall, std::min(most, std::int64_t{64} << 10),
          std::min(most, std::int64_t{on_gpu ? 32 : 4} << 20)};
}

std::string microseconds_text(double seconds) {
  return fmt::format("{:.3g} us", 1e6 * seconds);
}

}  // namespace

std::vector<MessageTimes> time_messages(comm::Communicator& world, comm::ProgressEngine& engine,
                                        const device::Device& device, std::int64_t rank_on_node) {
  std::vector<MessageTimes> all;
  const auto time = [&](const char* what, const std::string& group_of_rank) {
    const std::unique_ptr<comm::Communicator> group = ranks_with(world, group_of_rank, what);
    struct Measured {
      std::int64_t ranks = 1;
      std::array<double, 3> seconds{};
    };
    Measured mine{.ranks = group->size()};
    const std::array sizes = sizes_on(device, mine.ranks);
    comm::agree_on_parts(world, [&] { group->connect(comm::Summation::kInvariant); });
    for (std::size_t i = 0; i < sizes.size() && mine.ranks > 1; ++i) {
      mine.seconds.at(i) = exchange_seconds(*group, engine, device, sizes.at(i));
    }
    const std::vector<Measured> groups = comm::gathered(world, mine);
    const std::vector<std::string> hosts = world.all_gather_texts(host_name());
    // By large messages.
    const auto slowest = std::ranges::max_element(
        groups, {}, [](const Measured& group_of) { return group_of.seconds.back(); });
    if (slowest->ranks > 1) {
      MessageTimes& times = all.emplace_back();
      times.what = what;
      times.ranks = slowest->ranks;
      times.host = hosts[static_cast<std::size_t>(slowest - groups.begin())];
      const std::array sizes_of_slowest = sizes_on(device, slowest->ranks);
      for (std::size_t i = 0; i < sizes_of_slowest.size(); ++i) {
        times.messages.push_back({sizes_of_slowest.at(i), slowest->seconds.at(i)});
      }
    }
    world.barrier();
  };
  time(kInNode, host_name());
  time("between nodes", fmt::format("{}", rank_on_node));
  return all;
}

std::string message_line(const MessageTimes& times) {
  std::string text =
      fmt::format("messages {}, {} ranks each with each other one", times.what, times.ranks);
  for (std::size_t i = 0; i < times.messages.size(); ++i) {
    const auto& [bytes, seconds] = times.messages[i];
    const double rate = static_cast<double>((times.ranks - 1) * bytes) / seconds;
    text +=
        fmt::format("{} {} {}", i == 0 ? ":" : ",", bytes_text(bytes), microseconds_text(seconds));
    text += bytes == kSmall ? "" : fmt::format(" ({:.3g} GB/s)", 1e-9 * rate);
  }
  return text;
}

std::vector<std::string> message_problems(const MessageTimes& times,
                                          const forecast::Machine& machine) {
  // A latency says less than a rate: it depends on who else works.
  constexpr double kFarLatency = 4.0;
  constexpr double kFar = 2.0;
  const bool in_node = times.what == kInNode;
  const forecast::Link& link = in_node ? machine.node : machine.network;
  if (link.bytes_per_second <= 0.0) {
    return {};
  }
  const auto peers = static_cast<double>(times.ranks - 1);
  const char* const remedy =
      !in_node ? "see which libraries are loaded (above), and the network's interfaces "
                 "(OMPI_MCA_btl_tcp_if_include, NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)"
      : machine.device == device::DeviceKind::kCuda
          ? "let each rank see all GPUs of its node (--gpu-bind=none), and look at nvidia-smi topo "
            "-m and at NCCL_DEBUG=INFO for the path that NCCL takes"
          : "look for ranks that share cores and for other work on the node";
  std::vector<std::string> found;
  found.reserve(times.messages.size());
  for (const auto& [bytes, seconds] : times.messages) {
    if (machine.device == device::DeviceKind::kCuda && bytes != times.messages.back().bytes) {
      continue;  // the figures leave out the launch of NCCL's kernels
    }
    const double expected =
        forecast::seconds_of(machine, link, peers, peers * static_cast<double>(bytes),
                             in_node ? 1.0 : static_cast<double>(times.ranks));
    if (seconds > (bytes == kSmall ? kFarLatency : kFar) * expected) {
      found.push_back(fmt::format(
          "messages of {} {} ({}) take {}, and {} on {}, {:.1f} times as long as there: {}",
          bytes_text(bytes), times.what, times.host, microseconds_text(seconds),
          microseconds_text(expected), machine.name, seconds / expected, remedy));
    }
  }
  return found;
}

}  // namespace strata::app
