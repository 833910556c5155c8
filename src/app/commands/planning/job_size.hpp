#pragma once

#include <cstdint>

#include "strata/config/command.hpp"
#include "strata/config/config_file.hpp"
#include "strata/config/run_config.hpp"

#include "commands/planning/job_script.hpp"

namespace strata::app {

/// The ranks of the grid that the config asks for; an axis that it leaves open counts as one.
[[nodiscard]] std::int64_t ranks_asked_for(const config::RunConfig& config);

/// Sets a job's nodes, ranks, cores and memory from the command line and the config, and prints the
/// memory of a rank. A range of nodes fixes the lanes in `given`, and leaves the replicas to the
/// job. Throws: Error(kUsage) where the grid does not fit the nodes, or the plan their memory.
void set_job_size(const config::CommandLine& line, config::GivenConfig& given, JobScript& script);

}  // namespace strata::app
