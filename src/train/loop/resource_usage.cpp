#include "loop/resource_usage.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "strata/comm/values.hpp"
#include "strata/core/text.hpp"

namespace strata::train {
namespace {

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

std::int64_t mapped_file_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::int64_t kibibytes = 0;
    if (line.rfind("RssFile:", 0) == 0 &&
        parse_int64(split_words(line.substr(8)).front(), kibibytes)) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

}  // namespace

ResourceUsage log_resource_usage(const TrainerSetup& setup, std::int64_t graphs) {
  const ResourceUsage mine{.resident_bytes = peak_resident_bytes(),
                           .mapped_bytes = mapped_file_bytes(),
                           .scratch_bytes = setup.context.scratch_bytes(),
                           .graphs = graphs};
  const std::vector<ResourceUsage> all = comm::gathered(*setup.groups.world, mine);
  const auto largest = [&](std::int64_t ResourceUsage::*part) {
    return *std::ranges::max_element(all, {}, part);
  };
  const ResourceUsage peak = largest(&ResourceUsage::resident_bytes);
  setup.log.info(
      "peak memory of a rank: {}, of which {} are mapped files that the system can reclaim",
      bytes_text(peak.resident_bytes), bytes_text(peak.mapped_bytes));
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
