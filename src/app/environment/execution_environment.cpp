#include "environment/execution_environment.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/mpi_library.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/comm/staged.hpp"
#include "strata/comm/values.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/plan/memory_fit.hpp"
#include "strata/train/checkpointing.hpp"

#include "environment/gpu_assignment.hpp"
#include "environment/instruction_sets.hpp"
#include "environment/run_inputs.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

/// This rank's GPU.
device::Device own_gpu(const GpuAssignment& assignment) {
  const std::int64_t gpus = device::cuda_device_count();
  try {
    return device::Device::cuda(
        gpus == 0 ? 0 : device::choose_gpu(assignment.local_rank, assignment.ranks, gpus).index);
  } catch (const Error& error) {
    fail(error.code(),
         "run.device is cuda, but {}; ask for GPUs (in a Slurm script: #SBATCH --gpus-per-node=N), "
         "or set run.device to cpu",
         error.what());
  }
}

/// Lowest compute capability that kernels are compiled for.
constexpr std::int64_t kLeastCapability = 8;

/// The major version of a compute capability: 9 for "9.0".
std::int64_t major_of(const std::string& capability) {
  std::int64_t major = 0;
  return parse_int64(capability.substr(0, capability.find('.')), major) ? major : 0;
}

/// A duplicate of the world communicator, for another kind of communicator to wrap.
std::unique_ptr<comm::Communicator> duplicate_of(comm::Communicator& world) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.subgroup(all, world.name());
}

/// The published peak of this run's matrix products, in FLOP/s; 0 where it is not known.
double peak_flops_of(const device::GpuInfo& gpu, const config::RunConfig& config) {
  const device::PeakFlops peak = device::published_peak(gpu).value_or(device::PeakFlops());
  switch (config.numerics.dtype) {
    case DType::kBfloat16:
      return peak.bfloat16;
    case DType::kFloat64:
      return peak.float64;
    default:
      return config.numerics.tf32 == config::Switch::kOn ? peak.tf32 : peak.float32;
  }
}

/// Whether ranks have different GPU models or libraries. Communication: collective.
bool gpus_differ(comm::Communicator& world, const std::string& gpu) {
  std::string mine = gpu;
  for (const device::LibraryVersion& library : device::cuda_libraries()) {
    mine += ", " + library.name + " " + library.version;
  }
  const std::vector<std::string> all = world.all_gather_texts(mine);
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& text) { return text != all.front(); });
}

/// Why NCCL cannot be used; empty where it can. `sharing`: ranks on this rank's GPU.
/// Communication: collective.
std::string nccl_obstacle(comm::Communicator& world, const device::GpuInfo& gpu,
                          std::int64_t sharing) {
  std::string mine = comm::nccl_absence();
  // NCCL refuses a GPU with two ranks of one host unless NCCL_HOSTID makes the hosts differ.
  if (mine.empty() && sharing > 1 && std::getenv("NCCL_HOSTID") == nullptr) {
    mine = "it shares its GPU with another rank, which NCCL refuses";
  }
  if (mine.empty() && gpu.multiprocessors < comm::kLeastMultiprocessors) {
    mine = fmt::format(
        "its GPU has {} multiprocessors, and NCCL's kernels need {} to wait side by side; a whole "
        "GPU or a larger MIG instance has them",
        gpu.multiprocessors, comm::kLeastMultiprocessors);
  }
  const std::vector<std::string> reasons = world.all_gather_texts(mine);
  const auto reason = std::find_if(reasons.begin(), reasons.end(),
                                   [](const std::string& text) { return !text.empty(); });
  return reason == reasons.end() ? ""
                                 : fmt::format("rank {}: {}", reason - reasons.begin(), *reason);
}

/// Why the plan's messages have no routes, as comm::pipeline_routes() has them; empty where they
/// do.
std::string route_obstacle(const plan::Plan& plan) {
  const std::vector<std::int64_t> stages = plan::chunk_stages(plan);
  const auto tie = plan::tied_stages(plan);
  return tie && tie->owner != tie->borrower &&
                 (tie->owner != stages.front() || tie->borrower != stages.back())
             ? "a tied table's stages are not those of the first and the last layers"
             : "";
}

/// Has cuBLASLt load its kernels, before free memory is looked at.
void load_product_kernels(ops::Context& context) {
  constexpr std::int64_t kSize = 64;
  const Shape square{kSize, kSize};
  const device::Buffer memory(context.device(), square.count() * size_bytes(DType::kFloat32));
  const device::Buffer result(context.device(), square.count() * size_bytes(DType::kFloat32));
  const auto of = [&](const device::Buffer& buffer) {
    return buffer.view(0, square, DType::kFloat32);
  };
  ops::matmul(context, of(memory), of(memory), of(result));
  context.synchronize();
}

}  // namespace

GpuSharing sharing_of(comm::Communicator& world, const std::string& uuid) {
  const std::vector<std::string> uuids = world.all_gather_texts(uuid);
  const auto ranks_on = [&](const std::string& gpu) {
    return std::count(uuids.begin(), uuids.end(), gpu);
  };
  return {.on_this_gpu = ranks_on(uuid),
          .in_world = std::count_if(uuids.begin(), uuids.end(),
                                    [&](const std::string& gpu) { return ranks_on(gpu) > 1; })};
}

GpuTransport open_transport(comm::MpiSession& mpi, ops::Context& context,
                            const device::GpuInfo& gpu, std::int64_t sharing, comm::Summation sums,
                            const std::string& obstacle) {
  comm::Communicator& world = mpi.world();
  if (world.size() == 1) {
    return {comm::staged(duplicate_of(world), mpi.engine(), context.stream()), {}};
  }
  const std::string reason = obstacle.empty() ? nccl_obstacle(world, gpu, sharing) : obstacle;
  std::unique_ptr<comm::Communicator> host = duplicate_of(world);
  if (reason.empty()) {
    return {comm::nccl(std::move(host), mpi.engine(), context.device(), context.stream(), sums),
            {}};
  }
  return {comm::staged(std::move(host), mpi.engine(), context.stream()), reason};
}

device::DeviceKind resolve_device(comm::MpiSession& mpi, std::optional<device::DeviceKind> asked) {
  if (asked == device::DeviceKind::kCpu) {
    return device::DeviceKind::kCpu;
  }
  comm::request_hardware_queues();
  if (mpi.world().size() > 1) {
    comm::request_eager_loading();
  }
  if (asked == device::DeviceKind::kCuda) {
    return device::DeviceKind::kCuda;
  }
  return std::ranges::count(comm::gathered(mpi.world(), device::cuda_device_count()), 0) == 0
             ? device::DeviceKind::kCuda
             : device::DeviceKind::kCpu;
}

namespace {

/// Where the plan does not fit on the GPU of some rank, parallel.backward = auto becomes fused, the
/// default lanes fewer and the default of batch.micro smaller. Throws: AgreedError(kPeer) where
/// that does not fit either.
void require_memory(comm::Communicator& world, const RunInputs& inputs, std::int64_t free_bytes,
                    plan::Plan& plan) {
  const plan::VirtualGrid stored = stored_grid(inputs);
  plan = plan::with_fitting_defaults(std::move(plan), stored, [&](const plan::Plan& candidate) {
    const std::int64_t lacks =
        plan::fits(plan::rank_plan(candidate, world.rank()), free_bytes) ? 0 : 1;
    return std::ranges::count(comm::gathered(world, lacks), 1) == 0;
  });
  comm::agree(world, [&] {
    if (const auto missing = plan::missing_memory(plan, world.rank(), free_bytes, stored)) {
      fail(ExitCode::kPeer, "{}", *missing);
    }
  });
}

}  // namespace

ExecutionEnvironment::ExecutionEnvironment(comm::MpiSession& mpi, const RunInputs& inputs,
                                           plan::Plan& plan, Use use) {
  peak_flops_ = 1e12 * plan.config.run.peak_tflops;
  text_ = fmt::format("{} on {}", name_of(plan.device),
                      mpi.world().size() == 1 ? "1 rank"
                                              : fmt::format("{} ranks ({})", mpi.world().size(),
                                                            comm::mpi_library_text()));
  std::int64_t sharing = 1;
  if (plan.device == device::DeviceKind::kCuda) {
    sharing = open_gpu(mpi, plan, use);
  } else {
    if (const std::string trouble = device::gpu_trouble();
        !trouble.empty() && !plan.config.run.device) {
      warning_ = fmt::format(
          "run.device is auto and becomes cpu, because the GPUs do not respond: {}; nvidia-smi "
          "shows details",
          trouble);
    }
    const auto& numerics = plan.config.numerics;
    const std::string isa = set_instruction_set(mpi, numerics.isa, numerics.dtype);
    context_.emplace(inputs.threads);
    text_ +=
        fmt::format(", {} thread{} each, {}", inputs.threads, inputs.threads == 1 ? "" : "s", isa);
  }
  const std::vector<std::int64_t> stages = plan::chunk_stages(plan);
  groups_ = comm::make_groups(world_.ranks ? *world_.ranks : mpi.world(),
                              world_.engine ? *world_.engine : mpi.engine(), plan.grid,
                              comm::pipeline_routes(stages));
  connect_groups(mpi.world(), plan, use);
  if (plan.device == device::DeviceKind::kCuda && use == Use::kTraining) {
    // CUDA, NCCL and cuBLASLt have taken their memory. Evaluation needs less than the plan lists.
    groups_.world->barrier();
    require_memory(
        mpi.world(), inputs,
        device::free_memory_bytes(context_->device().index()) / sharing + ops::Context::kCudaBytes,
        plan);
    require(plan::chunk_stages(plan) == stages, "the fitting plan has other stages");
  }
}

void ExecutionEnvironment::connect_groups(comm::Communicator& world, const plan::Plan& plan,
                                          Use use) {
  const auto connect = [&](comm::Communicator& group, comm::Summation sums) {
    comm::agree_on_parts(world, [&] { group.connect(sums); });
  };
  // In the same order on all ranks. Only groups in use: connections take memory.
  if (use == Use::kTraining) {
    connect(groups_.along(grid::Axis::kData), plan.config.numerics.mode);
    if (plan.model->joins_lanes()) {
      connect(*groups_.lanes, comm::Summation::kInvariant);
    }
  }
  connect(groups_.along(grid::Axis::kTensor), plan.config.numerics.mode);
}

std::int64_t ExecutionEnvironment::open_gpu(comm::MpiSession& mpi, const plan::Plan& plan,
                                            Use use) {
  const bool tf32 = plan.config.numerics.tf32 == config::Switch::kOn;
  const bool split_k = plan.config.numerics.split_k == config::Switch::kOn;
  device::GpuInfo gpu;
  const GpuAssignment assignment = assign_gpus(mpi);
  comm::agree(mpi.world(), [&] {
    context_.emplace(ops::Context::cuda(
        own_gpu(assignment),
        {.float32_products = tf32 ? ops::Float32Products::kTf32 : ops::Float32Products::kFull,
         .split_k = split_k ? Switch::kOn : Switch::kOff,
         .attention_kernels = plan.config.numerics.attention}));
    gpu = device::gpus()[static_cast<std::size_t>(context_->device().index())];
    if (major_of(gpu.capability) < kLeastCapability) {
      fail(ExitCode::kPeer,
           "{} has compute capability {}, and strata's kernels need {}.0 (A100) or later; ask for "
           "other GPUs, or set run.device to cpu",
           gpu.name, gpu.capability, kLeastCapability);
    }
    if (use == Use::kTraining) {
      load_product_kernels(*context_);
    }
  });
  if (peak_flops_ == 0.0) {
    peak_flops_ = peak_flops_of(gpu, plan.config);
  }
  const GpuSharing sharing = sharing_of(mpi.world(), gpu.uuid);
  if (sharing.in_world > 0) {
    warning_ = fmt::format(
        "{} ranks share their GPU with others, which then take turns; strata doctor shows which",
        sharing.in_world);
  } else if (gpus_differ(mpi.world(), gpu.name)) {
    warning_ =
        "ranks have different GPUs, drivers or CUDA libraries, whose results differ in the last "
        "bits; other grids will not reproduce this run bit for bit. strata doctor shows which";
  }
  choose_transport(mpi, plan, gpu, sharing.on_this_gpu);
  if (use == Use::kTraining && plan.config.run.cuda_graphs == config::Switch::kOn) {
    text_ += ", passes as CUDA graphs";
  }
  return sharing.on_this_gpu;
}

void ExecutionEnvironment::choose_transport(comm::MpiSession& mpi, const plan::Plan& plan,
                                            const device::GpuInfo& gpu, std::int64_t sharing) {
  const config::Transport transport = plan.config.run.transport;
  GpuTransport opened = open_transport(
      mpi, *context_, gpu, sharing, plan.config.numerics.mode,
      transport == config::Transport::kMpi ? "run.transport is mpi" : route_obstacle(plan));
  if (transport == config::Transport::kNccl && !opened.obstacle.empty()) {
    throw comm::AgreedError(
        ExitCode::kUsage,
        fmt::format("run.transport is nccl, but {}; set it to auto or mpi", opened.obstacle));
  }
  world_ = std::move(opened.world);
  if (mpi.world().size() > 1) {
    text_ += opened.obstacle.empty()
                 ? ", messages by NCCL"
                 : fmt::format(", messages through pinned host memory ({})", opened.obstacle);
  }
}

std::string nodes_text(const std::vector<std::string>& hosts) {
  constexpr std::size_t kMostNamed = 16;
  std::vector<std::string> nodes;
  for (const std::string& host : hosts) {
    if (std::ranges::find(nodes, host) == nodes.end()) {
      nodes.push_back(host);
    }
  }
  return fmt::format("{} node{}: {}{}", nodes.size(), nodes.size() == 1 ? "" : "s",
                     fmt::join(std::span(nodes).first(std::min(nodes.size(), kMostNamed)), ", "),
                     nodes.size() > kMostNamed ? ", ..." : "");
}

nlohmann::ordered_json receipt_environment(comm::MpiSession& mpi, const plan::Plan& plan,
                                           const ExecutionEnvironment& environment) {
  if (plan.config.run.receipts == 0) {
    return {};
  }
  nlohmann::ordered_json facts{{"grid", plan.grid.text()},
                               {"device", environment.text()},
                               {"nodes", nodes_text(mpi.hosts())}};
  for (const VersionFact& fact : versions(plan.device)) {
    facts[fact.name] = fact.version;
  }
  return facts;
}

}  // namespace strata::app
