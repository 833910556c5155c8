#pragma once

#include <cstdint>
#include <optional>

#include "strata/io/dataset.hpp"
#include "strata/plan/plan.hpp"

namespace strata::app {

/// The virtual grid of the newest checkpoint in run.dir that opens; zeros where there is none.
[[nodiscard]] plan::VirtualGrid stored_grid(const plan::RunConfig& config);

/// Description of data.train, or, where it does not exist yet, of what a model with named sizes
/// assumes. Throws: Error(kUsage) where the config does not say enough.
[[nodiscard]] io::DatasetInfo planned_data(const plan::RunConfig& config);

/// The config with a length of training where that follows from data that do not exist yet; the
/// length changes neither memory nor steps.
[[nodiscard]] plan::RunConfig with_length(plan::RunConfig config, const io::DatasetInfo& data);

/// Lets nodes that hold several replicas add their gradients first, as a run on them does.
void set_node_ranks(plan::Plan& plan, std::int64_t node_ranks);

}  // namespace strata::app
