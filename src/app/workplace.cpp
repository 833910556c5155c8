#include "workplace.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/comm/staged.hpp"
#include "strata/core/error.hpp"
#include "strata/device/gpu_info.hpp"

#include "session.hpp"

namespace strata::app {
namespace {

/// This rank's GPU.
device::Device own_gpu(const comm::MpiSession& mpi) {
  const std::int64_t gpus = device::cuda_device_count();
  try {
    return device::Device::cuda(
        gpus == 0 ? 0 : device::choose_gpu(mpi.rank_on_node(), mpi.ranks_on_node(), gpus).index);
  } catch (const Error& error) {
    fail(error.code(),
         "run.device is cuda, but {}; ask for GPUs (in a Slurm script: #SBATCH "
         "--gpus-per-task=1), or set run.device to cpu",
         error.what());
  }
}

/// The world as a communicator of its own, for another kind to build on.
std::unique_ptr<comm::Communicator> second_world(comm::Communicator& world) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.subgroup(all, world.name());
}

/// How many of the ranks share their GPU with another one. Communication: collective.
std::int64_t ranks_that_share(comm::Communicator& world, const device::Device& device) {
  const std::string own = device::gpus()[static_cast<std::size_t>(device.index())].uuid;
  const std::vector<std::string> uuids = world.all_gather_texts(own);
  return std::count_if(uuids.begin(), uuids.end(), [&](const std::string& uuid) {
    return std::count(uuids.begin(), uuids.end(), uuid) > 1;
  });
}

/// Why NCCL is not to be used; empty where it is. Communication: collective.
std::string against_nccl(comm::Communicator& world, std::int64_t sharing) {
  if (world.size() == 1) {
    return "one rank";
  }
  const std::vector<std::string> absences = world.all_gather_texts(comm::nccl_absence());
  const auto absent = std::find_if(absences.begin(), absences.end(),
                                   [](const std::string& text) { return !text.empty(); });
  if (absent != absences.end()) {
    return fmt::format("rank {}: {}", absent - absences.begin(), *absent);
  }
  return sharing > 0 ? fmt::format("{} ranks share GPUs", sharing) : "";
}

}  // namespace

device::DeviceKind decide_device(comm::MpiSession& mpi, train::DeviceChoice choice) {
  if (choice == train::DeviceChoice::kCpu) {
    return device::DeviceKind::kCpu;
  }
  comm::ask_for_hardware_queues();
  if (choice == train::DeviceChoice::kCuda) {
    return device::DeviceKind::kCuda;
  }
  const std::vector<std::int64_t> mine{device::cuda_device_count()};
  std::vector<std::int64_t> all(static_cast<std::size_t>(mpi.world().size()));
  mpi.world().all_gather(comm::payload_of(std::span(mine)), comm::payload_of(std::span(all)));
  return std::find(all.begin(), all.end(), 0) == all.end() ? device::DeviceKind::kCuda
                                                           : device::DeviceKind::kCpu;
}

Workplace::Workplace(comm::MpiSession& mpi, const Session& session, const train::Plan& plan) {
  peak_flops_ = 1e12 * plan.config.run.peak_tflops;
  text_ = fmt::format("{} on {} rank{} ({})", name_of(plan.device), mpi.world().size(),
                      mpi.world().size() == 1 ? "" : "s", comm::MpiSession::library_text());
  if (plan.device == device::DeviceKind::kCuda) {
    take_gpu(mpi, plan);
  } else {
    context_.emplace(session.threads);
    text_ += fmt::format(", {} thread{} each", session.threads, session.threads == 1 ? "" : "s");
  }
  groups_ = comm::make_groups(world_ ? *world_ : mpi.world(), plan.grid);
}

void Workplace::take_gpu(comm::MpiSession& mpi, const train::Plan& plan) {
  const train::Transport transport = plan.config.run.transport;
  const bool tf32 = plan.config.numerics.tf32 == train::Switch::kOn;
  comm::agree(mpi.world(), [&] {
    context_.emplace(ops::Context::cuda(
        own_gpu(mpi), tf32 ? ops::Float32Products::kTf32 : ops::Float32Products::kFull));
  });
  const device::Device& device = context_->device();
  const std::int64_t sharing = ranks_that_share(mpi.world(), device);
  if (sharing > 0) {
    warning_ = fmt::format(
        "{} ranks share their GPU with others, which then take turns; strata doctor shows which",
        sharing);
  }
  std::string reason = "run.transport is mpi";
  if (transport != train::Transport::kMpi) {
    reason = against_nccl(mpi.world(), sharing);
  }
  const bool nccl = transport == train::Transport::kNccl ||
                    (transport == train::Transport::kAuto && reason.empty());
  std::unique_ptr<comm::Communicator> host = second_world(mpi.world());
  if (nccl) {
    world_ = comm::nccl(std::move(host), device, context_->stream());
    text_ += ", messages by NCCL";
  } else {
    world_ = comm::staged(std::move(host), context_->stream());
    text_ += fmt::format(", messages through pinned host memory ({})", reason);
  }
}

}  // namespace strata::app
