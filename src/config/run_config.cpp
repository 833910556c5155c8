#include "strata/config/run_config.hpp"

namespace strata::config {

std::string schedule_name(const RunConfig& config) {
  const auto& p = config.parallel;
  const std::string name(p.schedule ? name_of(*p.schedule) : "auto");
  return p.schedule == pipeline::ScheduleKind::kFile ? name + ":" + p.schedule_file : name;
}

}  // namespace strata::config
