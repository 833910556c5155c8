#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "strata/plan/plan.hpp"

namespace strata::plan {

/// Bytes of a rank's arenas on its device.
[[nodiscard]] std::int64_t device_bytes(const RankPlan& rank);
/// Whether these are at most `free_bytes`.
[[nodiscard]] bool fits(const RankPlan& rank, std::int64_t free_bytes);
/// The first rank of the first stage that does not fit; nothing where all do.
[[nodiscard]] std::optional<std::int64_t> too_large_rank(const Plan& plan, std::int64_t free_bytes);

/// The plan where it fits, else the first that does: with parallel.backward = auto fused, then with
/// fewer lanes, then with a smaller batch.micro, where these are defaults. `fits` says whether all
/// ranks' arenas do, and is called alike on all ranks.
[[nodiscard]] Plan with_fitting_defaults(Plan plan, const VirtualGrid& stored,
                                         const std::function<bool(const Plan&)>& fits);

/// Why a rank does not fit, or nothing where it does: the required bytes, the largest arenas and
/// the first setting that would fit: parallel.backward = fused, train.recompute = selective, then
/// full, and, unless a checkpoint fixes it, batch.micro halved.
[[nodiscard]] std::optional<std::string> missing_memory(const Plan& plan, std::int64_t rank,
                                                        std::int64_t free_bytes,
                                                        const VirtualGrid& stored);

}  // namespace strata::plan
