#include "strata/config/run_config.hpp"

namespace strata::config {

std::string schedule_name(const RunConfig& config) {
  std::string name(name_of(config.parallel.schedule));
  if (config.parallel.schedule != pipeline::ScheduleKind::kFile) {
    return name;
  }
  return is_made(config) ? "auto" : name + ":" + config.parallel.schedule_file;
}

}  // namespace strata::config
