#pragma once

#include <cstdint>
#include <optional>

#include "strata/config/run_config.hpp"
#include "strata/device/device.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/plan/plan.hpp"

namespace strata::plan {

/// The chunks of a stage that parallel.schedule and parallel.chunks ask for; 1 for a file.
[[nodiscard]] std::int64_t chunks_of(const config::RunConfig& config);

/// Whether the input gradient leaves a stage before its weight gradients are computed.
/// Throws: Error(kUsage) where parallel.backward contradicts other settings.
[[nodiscard]] nn::BackwardOrder backward_order(const config::RunConfig& config,
                                               const pipeline::Schedule& schedule);

struct TrainingSchedule {
  pipeline::Schedule schedule;
  std::optional<ScheduleSearch> search;  ///< parallel.schedule = auto
};

/// The proven training schedule that the config asks for, with `stages` stages and `microbatches`
/// microbatches. One stage has one chunk.
/// Throws: Error(kUsage) for chunks that the schedule does not have. For a file it names the file
/// and, where a cell is to blame, its line and cell: another number of ranks or microbatches, an
/// unsound schedule, actions of a kind that do not ascend by microbatch, a deadlock, and actions
/// that training does not run.
/// A search takes the costs of the model's layers.
[[nodiscard]] TrainingSchedule training_schedule(const config::RunConfig& config,
                                                 const nn::Model& model, std::int64_t stages,
                                                 std::int64_t microbatches,
                                                 device::DeviceKind device,
                                                 ProvenSchedules* proven = nullptr);

/// The proven schedule of forward passes through the chunks of a training schedule.
[[nodiscard]] pipeline::Schedule evaluation_schedule(const pipeline::ChunkOrder& order,
                                                     std::int64_t stages, std::int64_t microbatches,
                                                     device::DeviceKind device,
                                                     ProvenSchedules* proven = nullptr);

}  // namespace strata::plan
