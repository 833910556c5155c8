#pragma once

#include "strata/plan/replication.hpp"

namespace strata::plan {

[[nodiscard]] const ReplicationPlan& local_steps();
[[nodiscard]] const ReplicationPlan& parameter_servers();

}  // namespace strata::plan
