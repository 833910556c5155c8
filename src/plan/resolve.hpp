#pragma once

#include <cstdint>

#include "strata/plan/plan.hpp"

// The decisions that prepare() takes one after the other. Each throws Error(kUsage) that names the
// setting and a value that would do.
namespace strata::plan {

/// The grid of `ranks` ranks; of as many as the config needs where that is 0.
[[nodiscard]] grid::Grid resolve_grid(const RunConfig& config, std::int64_t ranks);

/// Lanes, shards, microbatches, and what follows from them. Pre: plan.grid, plan.train_data.
void resolve_virtual_grid(Plan& plan, const VirtualGrid& stored);

[[nodiscard]] std::int64_t resolve_steps(const RunConfig& config, std::int64_t samples);

[[nodiscard]] nn::LossKind resolve_loss(const RunConfig& config, const io::DatasetInfo& data);

void check_optimizer(const optim::OptimizerOptions& options);

/// Whether a learning rate of this kind reaches its minimum at a step of its own.
[[nodiscard]] bool has_end(optim::LearningRateKind kind);

/// Refuses settings that differ from their defaults but do nothing beside the others.
/// Pre: plan.model, plan.train_data.
void check_unused(const Plan& plan);

/// Refuses changes of images where samples are none, or smaller than what is changed.
void check_augmentation(const io::Augmentation& augmentation, const io::DatasetInfo& data);

/// What the passes of a rank at a tensor coordinate are made for.
[[nodiscard]] nn::PassShape pass_shape(const Plan& plan, std::int64_t tensor);

/// Refuses messages that are too long for MPI, which counts their bytes in 32 bits, rows of tokens
/// that sequence parallelism does not divide, and microbatches that a layer cannot take.
void check_stages(const Plan& plan);

}  // namespace strata::plan
