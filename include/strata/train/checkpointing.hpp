#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "strata/comm/groups.hpp"
#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// The directory of a run's checkpoints.
[[nodiscard]] std::filesystem::path checkpoint_root(const plan::RunConfig& config);

/// The newest checkpoint below `root` all of whose bytes are good; bad ones are passed over with a
/// warning. Every rank checks a share of the files. Communication: collective over the world.
/// Throws: AgreedError(kCheckpoint) where there are checkpoints and none is good.
[[nodiscard]] std::optional<io::Checkpoint> newest_good_checkpoint(
    comm::Communicator& world, const std::filesystem::path& root, Log& log);

/// The virtual grid that a checkpoint was made with.
[[nodiscard]] plan::VirtualGrid virtual_grid_of(const io::Checkpoint& checkpoint);

/// What a checkpoint says of the data that its model learnt from, so that evaluation and generation
/// can do without them; nothing in one of an earlier version. The path is that of its master, which
/// holds the tokenizer. Throws: Error(kCheckpoint) where the record is not whole.
[[nodiscard]] std::optional<io::DatasetInfo> data_of(const io::Checkpoint& checkpoint);

/// What a checkpoint holds beside state, for those who come after the run.
struct RunRecord {
  std::string config_text;
  const io::Tokenizer* tokenizer = nullptr;  ///< null: none, or not known
};

/// Refuses a checkpoint of another model, optimizer state aside.
/// Throws: Error(kCheckpoint) naming the first tensor or layer that differs; Error(kData) where a
/// language model learned from ids of another tokenizer than the plan's training data.
void require_same_model(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// Refuses a checkpoint that the plan cannot continue.
/// Throws: Error(kCheckpoint) for another model, naming the first tensor that differs;
/// Error(kUsage) for another seed, batch or data set, naming the setting.
void require_continues(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// What to tell where the checkpoint was made under an instruction set whose bits in the plan's
/// dtype are others than those of this process; empty: nothing, as on GPUs and for checkpoints that
/// do not say. Pre: on CPUs the process's instruction set is settled.
[[nodiscard]] std::string instruction_set_change(const plan::Plan& plan,
                                                 const io::Checkpoint& checkpoint);

/// Writes a checkpoint and deletes those that are too old; where that fails it only warns.
/// Communication: collective over the world. Throws: AgreedError(kCheckpoint) where it cannot be
/// written; earlier ones stay.
void save_checkpoint(const plan::Plan& plan, comm::Groups& groups, const RankState& state,
                     const RunRecord& record, std::int64_t step, Log& log);

/// Deletes, on rank 0, checkpoints before `step` that are too old and what killed runs left
/// half-done; where that fails it only warns.
void tidy_checkpoints(const plan::Plan& plan, comm::Communicator& world, std::int64_t step,
                      Log& log);

}  // namespace strata::train
