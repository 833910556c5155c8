#pragma once

#include <cstdint>
#include <string>

#include "strata/plan/plan.hpp"

namespace strata::plan {

/// Bytes that the arenas of a rank take on its device.
[[nodiscard]] std::int64_t device_bytes(const RankPlan& rank);

/// Throws Error(kPeer) where a rank's arenas do not fit into `free_bytes` of its GPU's memory: with
/// what is asked for, the largest arenas, and the first setting that would fit of
/// train.recompute = selective, then full, and, where no checkpoint says it, batch.micro halved.
void require_fits_memory(const Plan& plan, std::int64_t rank, std::int64_t free_bytes,
                         const VirtualGrid& stored);

}  // namespace strata::plan
