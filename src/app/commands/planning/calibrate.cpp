#include "commands/planning/calibrate.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/text.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/forecast/machine.hpp"
#include "strata/io/text_file.hpp"
#include "strata/plan/memory_fit.hpp"

#include "commands/output_file.hpp"
#include "commands/planning/calibration_models.hpp"
#include "commands/planning/step_measurement.hpp"
#include "environment/cpu_cores.hpp"
#include "environment/execution_environment.hpp"
#include "environment/gpu_assignment.hpp"

namespace strata::app {
namespace {

/// A plan of fewer microbatches, where there are many: each does the same. Nothing where the plan
/// itself is to be measured.
std::optional<plan::Plan> shortened(const plan::Plan& plan) {
  config::RunConfig config = plan.config;
  config.batch.global = config.batch.micro * config.numerics.lanes * plan.parts *
                        std::min<std::int64_t>(2, plan.microbatches_per_lane);
  if (config.batch.global >= plan.config.batch.global) {
    return {};
  }
  try {
    return plan::prepare(config, plan.grid.ranks(), plan.train_data, {}, plan.device);
  } catch (const Error&) {
    return {};  // its schedule needs more
  }
}

/// Waits for the messages of all ranks without keeping a core busy.
class SleepingBarrier {
 public:
  explicit SleepingBarrier(comm::Communicator& world) : world_(world) {}

  void wait() {
    std::vector<comm::Request> requests;
    if (world_.rank() == 0) {
      for (std::int64_t peer = 1; peer < world_.size(); ++peer) {
        requests.push_back(world_.receive(comm::payload_of(std::span(&word_, 1)), peer, kTag));
        sleep_until(requests);
      }
      for (std::int64_t peer = 1; peer < world_.size(); ++peer) {
        requests.push_back(
            world_.send(comm::payload_of(std::span<const int>(&word_, 1)), peer, kTag));
      }
    } else {
      requests.push_back(world_.send(comm::payload_of(std::span<const int>(&word_, 1)), 0, kTag));
      sleep_until(requests);
      requests.push_back(world_.receive(comm::payload_of(std::span(&word_, 1)), 0, kTag));
    }
    sleep_until(requests);
  }

 private:
  static constexpr comm::Tag kTag = comm::Tag::kSetup;

  static void sleep_until(std::vector<comm::Request>& requests) {
    for (comm::Request& request : requests) {
      while (!request.test()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    requests.clear();
  }

  comm::Communicator& world_;
  int word_ = 0;
};

/// Resident bytes of this process that no file backs.
std::int64_t private_bytes() {
  std::int64_t bytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (std::int64_t kibibytes = 0;
        (line.starts_with("RssAnon:") || line.starts_with("RssShmem:")) &&
        parse_int64(split_words(line.substr(line.find(':') + 1)).front(), kibibytes)) {
      bytes += kibibytes * 1024;
    }
  }
  return bytes;
}

/// The ranks with `mine` equal to this rank's, in order.
/// Communication: collective over the world.
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

/// Measures a machine, rank 0's view of it.
class Calibration {
 public:
  Calibration(comm::MpiSession& mpi, const CalibrateOptions& options,
              std::span<const plan::Plan> plans)
      : mpi_(mpi),
        world_(mpi.world()),
        options_(options),
        plans_(plans),
        barrier_(mpi.world()),
        device_(resolve_device(mpi, config::DeviceChoice::kAuto)) {
    comm::agree(world_, [&] { open_device(); });
  }

  forecast::Machine run() {
    measure_links();
    measure_context_switches();
    measure_alone();
    measure_beside_others();
    measure_files();
    return std::move(machine_);
  }

  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }

  void open_device() {
    const std::int64_t threads =
        options_.threads > 0 ? options_.threads : default_threads(mpi_.ranks_on_node());
    machine_.device = device_;
    if (device_ == device::DeviceKind::kCuda) {
      const std::vector<device::GpuInfo> gpus = device::gpus();
      const auto own =
          device::choose_gpu(mpi_.rank_on_node(), mpi_.ranks_on_node(), std::ssize(gpus)).index;
      context_.emplace(ops::Context::cuda(device::Device::cuda(own)));
      const device::GpuInfo& gpu = gpus[static_cast<std::size_t>(own)];
      take_data_sheet(gpu);
      machine_.node_devices = std::max(mpi_.ranks_on_node(), std::ssize(gpus));
      machine_.memory_bytes = static_cast<double>(gpu.memory_bytes);
      machine_.reserved_bytes =
          machine_.memory_bytes - static_cast<double>(device::free_memory_bytes(own));
    } else {
      context_.emplace(static_cast<int>(threads));
      const std::int64_t cores =
          options_.cores > 0 ? options_.cores
                             : std::max(bound_cores().count, threads * mpi_.ranks_on_node());
      machine_.node_devices = std::max<std::int64_t>(1, cores / threads);
      machine_.device_threads = threads;
      machine_.memory_bytes =
          static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    }
    machine_.name = host_name();
    machine_.source = fmt::format(
        "measured on {:%Y-%m-%d} by strata plan --calibrate, {} on {}, {} rank{} of {} thread{}",
        fmt::localtime(std::time(nullptr)), name_of(device_), host_name(), mpi_.ranks_on_node(),
        mpi_.ranks_on_node() == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
  }

  /// What is not measured on GPUs: links, power, and peaks.
  void take_data_sheet(const device::GpuInfo& gpu) {
    for (const std::string& name : forecast::shipped_machines()) {
      std::string model = name.substr(0, name.find('-'));
      std::ranges::transform(model, model.begin(), [](unsigned char c) { return std::toupper(c); });
      const auto differs = [&](const forecast::Machine& of) {
        return std::abs(of.memory_bytes - static_cast<double>(gpu.memory_bytes));
      };
      // "B200" is part of "GB200", which comes later; of an A100, the size of its memory counts.
      if (forecast::Machine of = forecast::read_machine(name);
          gpu.name.find(model) != std::string::npos && differs(of) <= differs(machine_)) {
        machine_ = std::move(of);
        lines_.push_back(
            fmt::format("links between GPUs, power and peaks: of {}, not measured", name));
      }
    }
    machine_.device = device_;
  }

  /// Steps of all samples and of the plans' stages.
  void measure_alone() {
    if (is_first()) {
      OperationTimer timer(*context_);
      for (const CalibrationModel& sample : calibration_models(options_.small)) {
        do_sample(timer, sample, {});
        if (device_ == device::DeviceKind::kCpu && machine_.reserved_bytes == 0.0) {
          // What a run holds beside its arenas, which are gone again.
          malloc_trim(0);
          machine_.reserved_bytes = static_cast<double>(private_bytes());
        }
      }
      for (const plan::Plan& given : plans_) {
        const std::optional<plan::Plan> few = shortened(given);
        do_plan(timer, few ? *few : given);
      }
      machine_.measured = timer.times();
      take_figures();
    }
    barrier_.wait();
  }

  void do_sample(OperationTimer& timer, const CalibrationModel& sample,
                 const Repetitions& repetitions) {
    config::RunConfig config = sample.config;
    config.run.device = device_ == device::DeviceKind::kCuda ? config::DeviceChoice::kCuda
                                                             : config::DeviceChoice::kCpu;
    const plan::Plan plan = plan::prepare(config, 1, sample.data, {}, device_);
    static_cast<void>(do_steps(*context_, timer, plan, plan::rank_plan(plan, 0), repetitions));
  }

  void do_plan(OperationTimer& timer, const plan::Plan& plan) {
    for (const plan::RankPlan& rank : plan::largest_rank_plans(plan)) {
      const auto bytes = static_cast<double>(plan::device_bytes(rank));
      if (bytes > 0.9 * (machine_.memory_bytes - machine_.reserved_bytes)) {
        lines_.push_back(fmt::format(
            "stage {} of the config needs {} and does not fit here; its operations are predicted "
            "from those of smaller models",
            rank.coordinates.pipeline, bytes_text(static_cast<std::int64_t>(bytes))));
        continue;
      }
      const double seconds = do_steps(*context_, timer, plan, rank, {.least = 3, .most = 20});
      lines_.push_back(fmt::format("stage {} of the config: {} microbatches in {:.4g} s",
                                   rank.coordinates.pipeline, plan.microbatches, seconds));
    }
  }

  /// What prices operations that were not measured.
  void take_figures() {
    std::vector<double> memory;
    std::map<DType, double> peaks;
    std::vector<double> convolution;
    std::vector<double> attention;
    std::vector<double> products;
    const auto each = [&](const auto& use) {
      for (const auto& [key, operations] : machine_.measured) {
        for (const forecast::MeasuredOperation& of : operations) {
          use(key.first, key.second, of);
        }
      }
    };
    double shortest = 1.0;
    each([&](const std::string&, DType dtype, const forecast::MeasuredOperation& of) {
      shortest = std::min(shortest, of.seconds);
      if (of.flops > 0.0) {
        peaks[dtype] = std::max(peaks[dtype], of.flops / of.seconds);
      } else {
        memory.push_back(of.bytes / of.seconds);
      }
    });
    each([&](const std::string& name, DType dtype, const forecast::MeasuredOperation& of) {
      if (of.flops > 0.0) {
        (name.starts_with("attention")     ? attention
         : name.starts_with("convolution") ? convolution
                                           : products)
            .push_back(of.flops / of.seconds / peaks[dtype]);
      }
    });
    const auto median = [](std::vector<double>& values) {
      std::ranges::sort(values);
      return values.empty() ? 0.0 : values[values.size() / 2];
    };
    machine_.launch_seconds = shortest;
    if (device_ == device::DeviceKind::kCpu) {
      machine_.peak_flops = peaks;
      machine_.memory_efficiency = median(memory) / memory.back();
      machine_.memory_bytes_per_second = memory.back();
      machine_.product_efficiency = median(products);
      machine_.product_half = {};
      machine_.attention_efficiency = median(attention);
      machine_.convolution_efficiency = median(convolution);
    }
  }

  /// Some samples, on 2, 4, ... ranks of each node at once.
  void measure_beside_others() {
    const std::int64_t most = std::min(mpi_.ranks_on_node(), machine_.node_devices);
    for (std::int64_t busy = std::min<std::int64_t>(2, most); busy > 1;
         busy = busy < most ? std::min(2 * busy, most) : 0) {
      const bool computes = mpi_.rank_on_node() < busy;
      OperationTimer timer(*context_);
      for (const CalibrationModel& sample : calibration_models(options_.small)) {
        if (sample.with_others) {
          barrier_.wait();
          if (computes) {
            do_sample(timer, sample, {.least = 3, .most = 1000, .seconds = 2.0});
          }
        }
      }
      barrier_.wait();
      if (is_first()) {
        machine_.slowdown_by_ranks.push_back(slowdown(timer.times(), busy));
      }
    }
  }

  [[nodiscard]] forecast::Slowdown slowdown(const OperationTimer::Times& beside,
                                            std::int64_t busy) const {
    // Of products and of others.
    std::array<double, 2> together{};
    std::array<double, 2> alone{};
    for (const auto& [key, operations] : beside) {
      for (const forecast::MeasuredOperation& of : operations) {
        const ops::OperationWork work{.name = key.first,
                                      .dtype = key.second,
                                      .extents = of.extents,
                                      .flops = of.flops,
                                      .bytes = of.bytes};
        const std::size_t kind = forecast::is_dense(of.flops, of.bytes) ? 0 : 1;
        together[kind] += of.seconds;
        alone[kind] += forecast::seconds_of(machine_, work);
      }
    }
    return {.ranks = static_cast<double>(busy),
            .products = std::max(1.0, together[0] / alone[0]),
            .memory = std::max(1.0, together[1] / alone[1])};
  }

  void measure_links() {
    if (device_ == device::DeviceKind::kCuda) {
      return;
    }
    const std::unique_ptr<comm::Communicator> node =
        ranks_with(world_, host_name(), "ranks of a node");
    const std::unique_ptr<comm::Communicator> nodes =
        ranks_with(world_, std::to_string(mpi_.rank_on_node()), "ranks of different nodes");
    machine_.node = link_of(*node);
    machine_.network = link_of(*nodes);
    if (is_first() && node->size() == 1) {
      lines_.push_back(
          "links in a node: not measured, with one rank on it; launch with as many as training "
          "has");
    }
  }

  /// All ranks of a group exchange with each other, as gradients are.
  forecast::Link link_of(comm::Communicator& group) {
    constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
    constexpr std::int64_t kLargest = std::int64_t{16} << 20;
    forecast::Link link;
    const std::int64_t peers = group.size() - 1;
    if (peers == 0) {
      barrier_.wait();
      return link;
    }
    const auto each = static_cast<double>(peers);
    link.latency_seconds = exchange_seconds(group, 8) / each;
    for (std::int64_t bytes = 4096; bytes <= kLargest && bytes * peers <= kMostBytes; bytes *= 4) {
      const double seconds = exchange_seconds(group, bytes) / each - link.latency_seconds;
      if (seconds > 0.2 * link.latency_seconds) {
        link.measured.push_back({static_cast<double>(bytes), static_cast<double>(bytes) / seconds});
      }
    }
    if (!link.measured.empty()) {
      link.bytes_per_second = link.measured.back().bytes_per_second;
    }
    barrier_.wait();
    return link;
  }

  /// Of one message to and from each other rank: the best round, which other programs disturb
  /// least, of the slowest rank.
  static double exchange_seconds(comm::Communicator& group, std::int64_t bytes) {
    constexpr int kLeastRounds = 7;
    constexpr int kMostRounds = 100;
    constexpr double kSeconds = 0.3;
    const auto count = static_cast<std::size_t>(
        std::clamp<std::int64_t>((std::int64_t{4} << 20) / (bytes * (group.size() - 1)), 1, 20));
    const device::Buffer out(device::Device::cpu(), bytes * group.size());
    const device::Buffer in(device::Device::cpu(), bytes * group.size());
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
      mine = std::min(mine, (now_seconds() - begin) / static_cast<double>(count));
    }
    std::vector<double> all(static_cast<std::size_t>(group.size()));
    group.all_gather(comm::payload_of(std::span(&mine, 1)), comm::payload_of(std::span(all)));
    return std::ranges::max(all);
  }

  /// With more ranks on a node than cores: rounds of a millisecond of work and a small exchange.
  void measure_context_switches() {
    const std::int64_t ranks = mpi_.ranks_on_node();
    if (device_ == device::DeviceKind::kCuda || ranks <= machine_.node_devices) {
      return;
    }
    constexpr int kRounds = 300;
    constexpr double kWork = 1e-3;
    const std::unique_ptr<comm::Communicator> node =
        ranks_with(world_, host_name(), "ranks that share cores");
    node->barrier();
    const double begin = now_seconds();
    for (int round = 0; round < kRounds; ++round) {
      work_for(kWork);
      node->barrier();
    }
    const double each = (now_seconds() - begin) / kRounds;
    const double turns = static_cast<double>(ranks) / static_cast<double>(machine_.node_devices);
    machine_.context_switch_seconds = std::max(0.0, each - turns * kWork);
    barrier_.wait();
  }

  /// Keeps the core for so much of this thread's own time.
  static void work_for(double seconds) {
    const auto own = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double end = own() + seconds;
    while (own() < end) {
    }
  }

  /// A file of the directory, written, synced and read back from the disk.
  void measure_files() {
    if (is_first()) {
      constexpr std::size_t kBytes = std::size_t{256} << 20;
      constexpr std::size_t kPiece = std::size_t{4} << 20;
      const std::filesystem::path path =
          std::filesystem::path(options_.directory) / fmt::format("calibrate-{}", getpid());
      const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (file < 0) {
        lines_.push_back(
            fmt::format("files: not measured, {} cannot be written", options_.directory));
      } else {
        ::unlink(path.c_str());
        std::string piece(kPiece, 'x');
        bool works = true;
        double begin = now_seconds();
        for (std::size_t at = 0; works && at < kBytes; at += kPiece) {
          piece[0] = static_cast<char>('a' + at / kPiece % 26);
          works = io::write_fully(file, piece);
        }
        works = works && ::fsync(file) == 0;
        const double written = now_seconds() - begin;
        works = works && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
        begin = now_seconds();
        for (std::size_t at = 0; works && at < kBytes; at += kPiece) {
          works = ::pread(file, piece.data(), kPiece, static_cast<off_t>(at)) ==
                  static_cast<ssize_t>(kPiece);
        }
        const double read = now_seconds() - begin;
        ::close(file);
        if (works) {
          machine_.file_write_bytes_per_second = static_cast<double>(kBytes) / written;
          machine_.file_read_bytes_per_second = static_cast<double>(kBytes) / read;
        } else {
          lines_.push_back(fmt::format("files: not measured, {} has no room", options_.directory));
        }
      }
    }
    barrier_.wait();
  }

  comm::MpiSession& mpi_;
  comm::Communicator& world_;
  const CalibrateOptions& options_;
  std::span<const plan::Plan> plans_;
  SleepingBarrier barrier_;
  device::DeviceKind device_;
  std::optional<ops::Context> context_;
  forecast::Machine machine_;
  std::vector<std::string> lines_;
};

/// What was measured, for people.
std::string summary(const forecast::Machine& machine) {
  std::string text;
  for (const auto& [dtype, flops] : machine.peak_flops) {
    text +=
        fmt::format("matrix products in {}: up to {:.3g} GFLOP/s\n", name_of(dtype), flops / 1e9);
  }
  text += fmt::format("memory: up to {:.3g} GB/s\n", machine.memory_bytes_per_second / 1e9);
  for (const forecast::Slowdown& slowdown : machine.slowdown_by_ranks) {
    text += fmt::format("{} ranks at once: products take {:.2f} times as long, others {:.2f}\n",
                        slowdown.ranks, slowdown.products, slowdown.memory);
  }
  const auto link = [&](const char* name, const forecast::Link& of) {
    if (of.bytes_per_second > 0.0) {
      text += fmt::format("{}: {:.3g} us, {:.3g} GB/s\n", name, of.latency_seconds * 1e6,
                          of.bytes_per_second / 1e9);
    }
  };
  link("messages in a node", machine.node);
  link("messages between nodes", machine.network);
  if (machine.file_write_bytes_per_second > 0.0) {
    text += fmt::format("files: written at {:.3g} GB/s, read at {:.3g} GB/s\n",
                        machine.file_write_bytes_per_second / 1e9,
                        machine.file_read_bytes_per_second / 1e9);
  }
  return text;
}

}  // namespace

ExitCode calibrate(comm::MpiSession& mpi, const CalibrateOptions& options,
                   std::span<const plan::Plan> plans) {
  comm::agree(mpi.world(), [&] {
    const std::filesystem::path parent = std::filesystem::path(options.file).parent_path();
    if (mpi.world().rank() == 0 && ::access(parent.empty() ? "." : parent.c_str(), W_OK) != 0) {
      fail(ExitCode::kUsage, "{} cannot be written ({}); give another file", options.file,
           std::strerror(errno));
    }
  });
  Calibration calibration(mpi, options, plans);
  const forecast::Machine machine = calibration.run();
  comm::agree(mpi.world(), [&] {
    if (mpi.world().rank() == 0) {
      write_file(options.file, forecast::machine_text(machine));
      fmt::print("{}", summary(machine));
      for (const std::string& line : calibration.lines()) {
        fmt::print("{}\n", line);
      }
      fmt::print("wrote {}\n", options.file);
    }
  });
  return ExitCode::kDone;
}

}  // namespace strata::app
