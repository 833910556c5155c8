#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/generation.hpp"

namespace strata::train {

/// The tokens that a language model samples after `text` on the grid that trains it: `count`, or as
/// many as its context has room for, or fewer once `stops`, which has the same answers on all
/// ranks. A token is a forward pass of one microbatch. All ranks get the same tokens, and the same
/// on every grid. Communication: forward passes, then per token one all-gather over the
/// last stage's tensor group and one broadcast over the pipeline group. Pre: numerics.loss_pieces
/// is 1; all ranks have the same text, which is not empty. Throws: as sample_token().
[[nodiscard]] std::vector<std::int64_t> sampled_text(
    ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank, comm::Groups& groups,
    pipeline::Executor& executor, std::vector<std::int64_t> text, std::int64_t count,
    const SamplingOptions& options, const std::function<bool()>& stops);

}  // namespace strata::train
