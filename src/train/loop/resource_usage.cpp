#include "loop/resource_usage.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
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

/// A line of /proc/self/status, as "RssFile"; 0 where there is none.
std::int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const std::vector<std::string> words = split_words(line, ": \t");
    std::int64_t kibibytes = 0;
    if (words.size() > 1 && words[0] == key && parse_int64(words[1], kibibytes)) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

}  // namespace

std::int64_t private_bytes() {
  return status_bytes("RssAnon") + status_bytes("RssShmem");
}

ResourceUsage log_resource_usage(const TrainerSetup& setup, ResourceUsage mine) {
  mine.resident_bytes = peak_resident_bytes();
  mine.mapped_bytes = status_bytes("RssFile");
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
