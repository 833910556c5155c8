#include "commands/planning/machine_probes.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/device/buffer.hpp"
#include "strata/io/text_file.hpp"

namespace strata::app {
namespace {

/// Keeps the core for so much of this thread's own time.
void work_for(double seconds) {
  const auto own = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double end = own() + seconds;
  while (own() < end) {
  }
}

}  // namespace

void sleeping_barrier(comm::Communicator& world) {
  constexpr comm::Tag kTag = comm::Tag::kSetup;
  int word = 0;
  const auto sleep_until = [](comm::Request request) {
    while (!request.test()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  const auto receive = [&](std::int64_t peer) {
    sleep_until(world.receive(comm::payload_of(std::span(&word, 1)), peer, kTag));
  };
  const auto send = [&](std::int64_t peer) {
    sleep_until(world.send(comm::payload_of(std::span<const int>(&word, 1)), peer, kTag));
  };
  if (world.rank() > 0) {
    send(0);
    receive(0);
    return;
  }
  for (std::int64_t peer = 1; peer < world.size(); ++peer) {
    receive(peer);
  }
  for (std::int64_t peer = 1; peer < world.size(); ++peer) {
    send(peer);
  }
}

double exchange_seconds(comm::Communicator& group, comm::ProgressEngine& engine,
                        const device::Device& device, std::int64_t bytes) {
  constexpr int kLeastRounds = 7;
  constexpr int kMostRounds = 100;
  constexpr double kSeconds = 0.3;
  const auto count = static_cast<std::size_t>(
      std::clamp<std::int64_t>((std::int64_t{4} << 20) / (bytes * (group.size() - 1)), 1, 20));
  const device::Buffer out(device, bytes * group.size());
  const device::Buffer in(device, bytes * group.size());
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (std::int64_t peer = 0; peer < group.size(); ++peer) {
    if (peer != group.rank()) {
      sends.push_back({out.view(peer * bytes, {bytes}, DType::kUint8), peer});
      receives.push_back({in.view(peer * bytes, {bytes}, DType::kUint8), peer});
    }
  }
  const double began = now_seconds();
  double mine = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kMostRounds; ++round) {
    // All ranks end with the same round.
    const std::vector<std::string> late = group.all_gather_texts(
        round >= kLeastRounds && now_seconds() - began > kSeconds ? "late" : "");
    if (late.front() == "late") {
      break;
    }
    group.barrier();
    const double begin = now_seconds();
    for (std::size_t i = 0; i < count; ++i) {
      group.exchange(sends, receives, comm::Tag::kReduce).wait();
    }
    engine.drain();
    mine = std::min(mine, (now_seconds() - begin) / static_cast<double>(count));
  }
  return std::ranges::max(comm::gathered(group, mine));
}

std::unique_ptr<comm::Communicator> ranks_with(comm::Communicator& world, const std::string& mine,
                                               const std::string& name) {
  const std::vector<std::string> all = world.all_gather_texts(mine);
  std::vector<std::int64_t> members;
  for (std::int64_t rank = 0; rank < world.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == mine) {
      members.push_back(rank);
    }
  }
  return world.subgroup(members, name);
}

forecast::Link link_of(comm::Communicator& group) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
  constexpr std::int64_t kLargest = std::int64_t{16} << 20;
  forecast::Link link;
  const std::int64_t peers = group.size() - 1;
  if (peers == 0) {
    return link;
  }
  const auto each = static_cast<double>(peers);
  comm::ProgressEngine none;
  const auto exchange = [&](std::int64_t bytes) {
    return exchange_seconds(group, none, device::Device::cpu(), bytes);
  };
  link.latency_seconds = exchange(8) / each;
  for (std::int64_t bytes = 4096; bytes <= kLargest && bytes * peers <= kMostBytes; bytes *= 4) {
    const double seconds = exchange(bytes) / each - link.latency_seconds;
    if (seconds > 0.2 * link.latency_seconds) {
      link.measured.push_back({static_cast<double>(bytes), static_cast<double>(bytes) / seconds});
    }
  }
  if (!link.measured.empty()) {
    link.bytes_per_second = link.measured.back().bytes_per_second;
  }
  return link;
}

double context_switch_seconds(comm::Communicator& node, double turns) {
  constexpr int kRounds = 300;
  constexpr double kWork = 1e-3;
  node.barrier();
  const double begin = now_seconds();
  for (int round = 0; round < kRounds; ++round) {
    work_for(kWork);
    node.barrier();
  }
  return std::max(0.0, (now_seconds() - begin) / kRounds - turns * kWork);
}

std::optional<FileSpeed> file_speed(const std::filesystem::path& directory, std::int64_t bytes) {
  constexpr std::int64_t kPiece = std::int64_t{4} << 20;
  const std::filesystem::path path = directory / fmt::format("speed-{}", getpid());
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    return std::nullopt;
  }
  ::unlink(path.c_str());
  std::string piece(static_cast<std::size_t>(kPiece), 'x');
  bool works = true;
  double begin = now_seconds();
  for (std::int64_t at = 0; works && at < bytes; at += kPiece) {
    piece[0] = static_cast<char>('a' + at / kPiece % 26);
    works = io::write_fully(file, piece);
  }
  works = works && ::fsync(file) == 0;
  const double written = now_seconds() - begin;
  static_cast<void>(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));  // else from the page cache
  begin = now_seconds();
  for (std::int64_t at = 0; works && at < bytes; at += kPiece) {
    const ssize_t count = ::pread(file, piece.data(), piece.size(), at);
    works = count == kPiece;
    errno = count < 0 ? errno : EIO;
  }
  const double read = now_seconds() - begin;
  const int error = errno;
  ::close(file);
  errno = error;
  const auto size = static_cast<double>(bytes);
  return works ? std::optional(FileSpeed{.write = size / written, .read = size / read})
               : std::nullopt;
}

}  // namespace strata::app
