#include "workplace.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/staged.hpp"
#include "strata/core/error.hpp"
#include "strata/device/device.hpp"

#include "session.hpp"

namespace strata::app {
namespace {

/// This rank's GPU. Ranks of a node that are more than its GPUs share them.
device::Device own_gpu(const comm::MpiSession& mpi) {
  const std::int64_t gpus = device::cuda_device_count();
  try {
    return device::Device::cuda(gpus == 0 ? 0 : mpi.rank_on_node() % gpus);
  } catch (const Error& error) {
    fail(error.code(),
         "run.device is cuda, but {}; ask for GPUs (in a Slurm script: #SBATCH "
         "--gpus-per-task=1), or set run.device to cpu",
         error.what());
  }
}

/// The groups whose tensors are in the context's memory.
void stage_groups(comm::Groups& groups, device::Stream& stream) {
  for (auto* group : {&groups.data, &groups.lanes, &groups.pipeline, &groups.tensor}) {
    *group = comm::staged(std::move(*group), stream);
  }
}

}  // namespace

device::DeviceKind decide_device(comm::MpiSession& mpi, train::DeviceChoice choice) {
  if (choice == train::DeviceChoice::kCpu) {
    return device::DeviceKind::kCpu;
  }
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
  const bool cuda = plan.device == device::DeviceKind::kCuda;
  comm::agree(mpi.world(), [&] {
    if (cuda) {
      context_.emplace(
          ops::Context::cuda(own_gpu(mpi), plan.config.numerics.tf32 == train::Switch::kOn
                                               ? ops::Float32Products::kTf32
                                               : ops::Float32Products::kFull));
    } else {
      context_.emplace(session.threads);
    }
  });
  peak_flops_ = 1e12 * plan.config.run.peak_tflops;
  groups_ = comm::make_groups(mpi.world(), plan.grid);
  text_ = fmt::format("{} on {} rank{} ({})", name_of(plan.device), mpi.world().size(),
                      mpi.world().size() == 1 ? "" : "s", comm::MpiSession::library_text());
  if (cuda) {
    stage_groups(groups_, context_->stream());
    text_ += ", messages through pinned host memory";
  } else {
    text_ += fmt::format(", {} thread{} each", session.threads, session.threads == 1 ? "" : "s");
  }
}

}  // namespace strata::app
