#pragma once

#include <cstdint>
#include <functional>

#include "strata/plan/plan.hpp"

namespace strata::plan {

/// Bytes of a rank's arenas on its device.
[[nodiscard]] std::int64_t device_bytes(const RankPlan& rank);

/// The plan where it fits, else the first that does: with parallel.backward = auto fused, then with
/// a smaller batch.micro where that is a default. `fits` says whether all ranks' arenas do, and is
/// called alike on all ranks.
[[nodiscard]] Plan with_fitting_defaults(Plan plan, const VirtualGrid& stored,
                                         const std::function<bool(const Plan&)>& fits);

/// Throws Error(kPeer) where a rank's arenas exceed `free_bytes` of its GPU's memory. The text
/// names the required bytes, the largest arenas and the first setting that would fit:
/// parallel.backward = fused, train.recompute = selective, then full, and, unless a checkpoint
/// fixes it, batch.micro halved.
void require_fits_memory(const Plan& plan, std::int64_t rank, std::int64_t free_bytes,
                         const VirtualGrid& stored);

}  // namespace strata::plan
