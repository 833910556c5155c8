#include "loop/resource_usage.hpp"

#include <algorithm>
#include <vector>

#include <sys/resource.h>

#include "strata/comm/values.hpp"
#include "strata/core/memory.hpp"
#include "strata/core/text.hpp"

namespace strata::train {
namespace {

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace

ResourceUsage log_resource_usage(const TrainerSetup& setup, ResourceUsage mine) {
  mine.resident_bytes = peak_resident_bytes();
  mine.mapped_bytes = proc_bytes("/proc/self/status", "RssFile");
  mine.scratch_bytes = setup.context.scratch_bytes();
  const std::vector<ResourceUsage> all = comm::gathered(*setup.groups.world, mine);
  const auto largest = [&](std::int64_t ResourceUsage::*part) {
    return *std::ranges::max_element(all, {}, part);
  };
  const ResourceUsage peak = largest(&ResourceUsage::resident_bytes);
  setup.log.info(
      "peak memory of a rank: {}: {} of mapped files, which the system can reclaim, {} from before "
      "training, {} in training for a plan of {}",
      bytes_text(peak.resident_bytes), bytes_text(peak.mapped_bytes), bytes_text(peak.base_bytes),
      bytes_text(peak.used_bytes()), bytes_text(peak.planned_bytes));
  if (setup.plan.device == device::DeviceKind::kCuda) {
    // Workspaces that the plan does not list: only the operations and cuDNN know them.
    setup.log.info("scratch memory of operations, outside of the plan: up to {} per GPU",
                   bytes_text(largest(&ResourceUsage::scratch_bytes).scratch_bytes));
    if (setup.plan.config.run.cuda_graphs == config::Switch::kOn) {
      setup.log.info("CUDA graphs: up to {} per rank", largest(&ResourceUsage::graphs).graphs);
    }
  }
  return peak;
}

}  // namespace strata::train
