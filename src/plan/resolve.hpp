#pragma once

#include <cstdint>

#include "strata/plan/plan.hpp"

// The steps of prepare(). Each throws Error(kUsage) that names the setting and a valid value.
namespace strata::plan {

/// The config with pipeline stages and tensor ranks in place of each "auto": the checkpoint's where
/// `ranks` allow them, else those with the most replicas; 1 in a new run.
[[nodiscard]] config::RunConfig with_grid(const config::RunConfig& given, std::int64_t ranks,
                                          const io::DatasetInfo& data, const VirtualGrid& stored);

/// The grid of `ranks` ranks; with 0 ranks, the grid that the config describes. `lanes`: of the
/// checkpoint that the run continues; 0: none.
[[nodiscard]] grid::Grid resolve_grid(const config::RunConfig& config, std::int64_t ranks,
                                      std::int64_t lanes);

/// Lanes, shards and the samples of a microbatch. `stored`: kept_grid().
[[nodiscard]] VirtualGrid resolve_virtual_grid(const config::RunConfig& given,
                                               const grid::Grid& grid, const io::DatasetInfo& data,
                                               const VirtualGrid& stored,
                                               device::DeviceKind device);

/// The given value, or the checkpoint's, or `otherwise`; a given value must equal the checkpoint's.
[[nodiscard]] std::int64_t resolve_value(std::string_view key, std::int64_t configured,
                                         std::int64_t stored, std::int64_t otherwise);

/// The config with a derived value in place of each 0 and "auto" that prepare() decides.
[[nodiscard]] config::RunConfig resolve_config(const config::RunConfig& given,
                                               const grid::Grid& grid, const io::DatasetInfo& data,
                                               const VirtualGrid& stored, std::int64_t total_steps,
                                               device::DeviceKind device);

/// Sets the update rule where the config leaves it open.
void resolve_kind(config::RunConfig& config);

/// Sets the peak rate and the warm-up where the config leaves them open.
void resolve_rate(const config::RunConfig& given, const nn::Model& model, std::int64_t total_steps,
                  config::RunConfig& config);

[[nodiscard]] std::int64_t resolve_steps(const config::RunConfig& config, std::int64_t samples);

[[nodiscard]] nn::LossKind resolve_loss(const config::RunConfig& config,
                                        const io::DatasetInfo& data);

/// What a model takes from the grid.
struct ModelGrid {
  std::int64_t step_microbatches = 1;  ///< of one part
  std::int64_t lanes = 1;              ///< of one part
  std::int64_t shards = 1;
  nn::Placement token_rows = nn::Placement::kReplicated;
};

[[nodiscard]] std::unique_ptr<nn::Model> make_model(const config::RunConfig& config,
                                                    const io::DatasetInfo& data,
                                                    const ModelGrid& grid);

/// Freezes parameters by optimizer.frozen, and in a model with adapters all but these and
/// lora.train. Throws: Error(kUsage) where a pattern of that setting or of optimizer.groups matches
/// no parameter.
void apply_parameter_settings(const config::RunConfig& config, nn::Model& model);

/// What a plan's grid gives its model.
[[nodiscard]] ModelGrid model_grid(const Plan& plan);

/// Where a transformer's token rows lie: by parallel.sequence; with auto they are shared among
/// several tensor ranks where the layers, the shards and numerics.mode allow it.
[[nodiscard]] nn::Placement resolve_token_rows(const config::RunConfig& config,
                                               const io::DatasetInfo& data);

/// What train.objective = dpo says of samples and layers. Pre: the transformer is resolved.
void resolve_objective(config::RunConfig& config);

/// numerics.loss_pieces: the config's, the checkpoint's, or the number with the smallest pieces of
/// at least 4,096 rows if it saves more than a tenth of the memory of all layers on one rank
/// without recomputation, else 1.
/// Pre: plan.config, plan.device, plan.model and plan.chosen.
[[nodiscard]] std::int64_t resolve_loss_pieces(const Plan& plan, const VirtualGrid& stored);

void check_optimizer(const config::RunConfig& config);

/// Rejects a rate of another optimizer, where adamw was not chosen.
void check_open_rate(double rate);

/// Rejects given settings that differ from their defaults but have no effect under the others.
/// Pre: plan.model, plan.train_data, plan.grid.
void check_unused(const config::RunConfig& given, const Plan& plan);
/// Throws: Error(kUsage) where settings do not go with train.objective.
void check_objective(const config::RunConfig& given, const Plan& plan);
/// Throws: Error(kUsage) where run.receipts is on and a second run has other numbers.
void check_receipts(const config::RunConfig& given, const Plan& plan);

/// Rejects augmentation of samples that are not images or are smaller than its crops.
void check_augmentation(const io::Augmentation& augmentation, const io::DatasetInfo& data);

/// The shape of the passes of a rank at a tensor coordinate.
[[nodiscard]] nn::PassShape pass_shape(const Plan& plan, std::int64_t tensor);

/// Rejects messages too long for MPI, which counts bytes in 32 bits, token rows that sequence
/// parallelism does not divide, and microbatches that a layer does not support.
void check_stages(const Plan& plan);

}  // namespace strata::plan
