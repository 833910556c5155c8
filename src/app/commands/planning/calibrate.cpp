#include "commands/planning/calibrate.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <malloc.h>

#include "strata/comm/values.hpp"
#include "strata/core/cgroup.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/memory.hpp"
#include "strata/core/text.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/forecast/machine.hpp"
#include "strata/plan/memory_fit.hpp"

#include "commands/output_file.hpp"
#include "commands/planning/calibration_models.hpp"
#include "commands/planning/machine_probes.hpp"
#include "commands/planning/step_measurement.hpp"
#include "environment/cpu_cores.hpp"
#include "environment/execution_environment.hpp"

namespace strata::app {
namespace {

/// A plan of fewer microbatches, where there are many: each does the same. Nothing where the plan
/// itself is to be measured.
std::optional<plan::Plan> shorter_plan(const plan::Plan& plan) {
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

/// Measures a machine, rank 0's view of it.
class Calibration {
 public:
  Calibration(comm::MpiSession& mpi, const CalibrateOptions& options,
              std::span<const plan::Plan> plans)
      : mpi_(mpi),
        world_(mpi.world()),
        options_(options),
        plans_(plans),
        device_(resolve_device(mpi, std::nullopt)) {
    comm::agree(world_, [&] { open_device(); });
  }

  forecast::Machine run() {
    measure_links();
    sleeping_barrier(world_);
    measure_context_switches();
    sleeping_barrier(world_);
    measure_alone();
    sleeping_barrier(world_);
    measure_beside_others();
    measure_files();
    sleeping_barrier(world_);
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
      machine_.memory_bytes = static_cast<double>(host_memory().all);
    }
    machine_.name = host_name();
    machine_.source = fmt::format(
        "measured on {:%Y-%m-%d} by strata plan --calibrate, {} on {}, {} rank{} of {} thread{}",
        fmt::localtime(std::time(nullptr)), name_of(device_), host_name(), mpi_.ranks_on_node(),
        mpi_.ranks_on_node() == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
  }

  /// What is not measured on GPUs: links, power, and peaks.
  void take_data_sheet(const device::GpuInfo& gpu) {
    // "H200" is part of "GH200"; of an A100, the size of its memory counts.
    std::pair<std::size_t, double> best;
    for (const std::string& name : forecast::shipped_machines()) {
      std::string model = name.substr(0, name.find('-'));
      std::ranges::transform(model, model.begin(), [](unsigned char c) { return std::toupper(c); });
      forecast::Machine of = forecast::read_machine(name);
      const std::pair fit{
          model.size(),
          1.0 / (1.0 + std::abs(of.memory_bytes - static_cast<double>(gpu.memory_bytes)))};
      if (gpu.name.find(model) != std::string::npos && fit > best) {
        best = fit;
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
        const std::optional<plan::Plan> few = shorter_plan(given);
        do_plan(timer, few ? *few : given);
      }
      machine_.measured = timer.times();
      take_figures();
    }
  }

  void do_sample(OperationTimer& timer, const CalibrationModel& sample,
                 const Repetitions& repetitions) {
    config::RunConfig config = sample.config;
    config.run.device = device_;
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
          sleeping_barrier(world_);
          if (computes) {
            do_sample(timer, sample, {.least = 3, .most = 1000, .seconds = 2.0});
          }
        }
      }
      sleeping_barrier(world_);
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
    sleeping_barrier(world_);
    machine_.network = link_of(*nodes);
    if (is_first() && node->size() == 1) {
      lines_.push_back(
          "links in a node: not measured, with one rank on it; launch with as many as training "
          "has");
    }
  }

  /// With more ranks on a node than cores.
  void measure_context_switches() {
    const std::int64_t ranks = mpi_.ranks_on_node();
    if (device_ == device::DeviceKind::kCuda || ranks <= machine_.node_devices) {
      return;
    }
    machine_.context_switch_seconds = context_switch_seconds(
        *ranks_with(world_, host_name(), "ranks that share cores"),
        static_cast<double>(ranks) / static_cast<double>(machine_.node_devices));
  }

  void measure_files() {
    constexpr std::int64_t kBytes = std::int64_t{256} << 20;
    if (!is_first()) {
      return;
    }
    if (const std::optional<FileSpeed> speed = file_speed(options_.directory, kBytes)) {
      machine_.file_write_bytes_per_second = speed->write;
      machine_.file_read_bytes_per_second = speed->read;
    } else {
      lines_.push_back(
          fmt::format("files: not measured, no file in {} can be written and read back ({})",
                      options_.directory, std::strerror(errno)));
    }
  }

  comm::MpiSession& mpi_;
  comm::Communicator& world_;
  const CalibrateOptions& options_;
  std::span<const plan::Plan> plans_;
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
  comm::agree_on_first(mpi.world(), [&] {
    const std::filesystem::path parent = std::filesystem::path(options.file).parent_path();
    if (::access(parent.empty() ? "." : parent.c_str(), W_OK) != 0) {
      fail(ExitCode::kUsage, "{} cannot be written ({}); give another file", options.file,
           std::strerror(errno));
    }
  });
  Calibration calibration(mpi, options, plans);
  const forecast::Machine machine = calibration.run();
  comm::agree_on_first(mpi.world(), [&] {
    write_file(options.file, forecast::machine_text(machine));
    fmt::print("{}", summary(machine));
    for (const std::string& line : calibration.lines()) {
      fmt::print("{}\n", line);
    }
    fmt::print("wrote {}\n", options.file);
  });
  return ExitCode::kDone;
}

}  // namespace strata::app
