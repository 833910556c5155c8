#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/comm/groups.hpp"
#include "strata/config/config_file.hpp"
#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// The directory of a run's checkpoints.
[[nodiscard]] std::filesystem::path checkpoint_root(const config::RunConfig& config);

/// A file in run.dir that exists from the start of a run until its first checkpoint is committed.
/// With it, a run without a checkpoint may start over; without it, the checkpoints are lost.
[[nodiscard]] std::filesystem::path unsaved_marker(const config::RunConfig& config);

/// A checkpoint that was verified, or else what is wrong, the same on all ranks.
struct OpenedCheckpoint {
  std::optional<io::Checkpoint> checkpoint;
  std::string damaged;
  std::string unreadable;  ///< now: the file system does not answer
};

/// Opens a checkpoint; every rank verifies a share of its files, and calls `between_parts`, which
/// may throw. Communication: collective over the world.
[[nodiscard]] OpenedCheckpoint open_verified(
    comm::Communicator& world, const std::filesystem::path& directory,
    const std::function<void()>& between_parts = [] {});

/// The newest valid checkpoint in `root`; skips damaged ones with a warning. Every rank verifies a
/// share of the files. Communication: collective over the world.
/// Throws: AgreedError(kCheckpoint) where there are checkpoints but none is valid, and where a
/// newer one cannot be read now: a run from an earlier one would replace it or delete it.
[[nodiscard]] std::optional<io::Checkpoint> newest_good_checkpoint(
    comm::Communicator& world, const std::filesystem::path& root, Log& log);

/// The checkpoint of checkpoint.init: in `path`, or the newest good one of a run directory.
/// Communication: collective over the world. Throws: AgreedError(kCheckpoint).
[[nodiscard]] io::Checkpoint initial_checkpoint(comm::Communicator& world,
                                                const std::filesystem::path& path, Log& log);
/// The checkpoint in `run_directory` that is best by its evaluations in metrics.jsonl, verified by
/// all ranks. Communication: collective over the world.
/// Throws: AgreedError(kUsage) where checkpoint.best is off, AgreedError(kCheckpoint) where none
/// was evaluated or it is damaged.
[[nodiscard]] io::Checkpoint best_good_checkpoint(comm::Communicator& world,
                                                  const config::RunConfig& config, Log& log);

/// Deletes what killed saves left, then checks that a checkpoint fits into the free space of
/// run.dir; warns where a second, which a save needs before it deletes the first, does not fit.
/// Pre: this process holds the run's lock.
/// Throws: Error(kCheckpoint).
void require_space(const plan::Plan& plan, Log& log);

/// Whether a checkpoint holds the weights of another program and no run.
[[nodiscard]] bool is_imported(const io::Checkpoint& checkpoint);

/// The settings that jobs which train parts of one run have in common.
[[nodiscard]] nlohmann::json identity_in_parts(const plan::Plan& plan);

/// Whether a checkpoint's optimizer state continues in the plan's run: not in an imported one, nor
/// where parallel.sync or the parts change (checkpoint.drop_state).
[[nodiscard]] bool has_state(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// The virtual grid of the run that wrote a checkpoint; zeros for an imported one.
[[nodiscard]] plan::VirtualGrid virtual_grid_of(const io::Checkpoint& checkpoint);

/// Sets those settings of the optimizer that have other defaults in other versions, or by the
/// length of the run, to the checkpoint's, where the config of a run that continues leaves them
/// open.
void keep_settings(const io::Checkpoint& checkpoint, config::RunConfig& config,
                   std::map<std::string, config::Origin>& origins);

/// The checkpoint's record of its training data, so that evaluation and generation need no data
/// set; nothing for a checkpoint of an earlier version. The path names the checkpoint's master
/// file, which holds the tokenizer. Throws: Error(kCheckpoint) where the record is incomplete.
[[nodiscard]] std::optional<io::DatasetInfo> data_of(const io::Checkpoint& checkpoint);

/// How the inputs of that data were normalised. Throws: Error(kCheckpoint).
[[nodiscard]] io::Normalise normalise_of(const io::Checkpoint& checkpoint,
                                         const io::DatasetInfo& data);

/// Texts of files beside a published model's weights, by name, as "generation_config.json".
using ModelTexts = std::map<std::string, std::string>;

/// Those that a checkpoint keeps for its exports; empty where its model was not imported with any.
/// Throws: Error(kCheckpoint).
[[nodiscard]] ModelTexts model_texts(const io::Checkpoint& checkpoint);
/// Whether token ids mean what they meant for a checkpoint.init: the run does not initialize the
/// embedding anew.
[[nodiscard]] bool keeps_token_ids(const plan::Plan& plan, const io::Checkpoint& checkpoint);
/// Those of a checkpoint.init, for the checkpoints of its run; empty where token ids then mean
/// other text.
[[nodiscard]] ModelTexts initial_texts(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// The virtual grids of a run before its present one, for the metadata of its next checkpoints:
/// those that the checkpoint lists, and the checkpoint's own where the run goes on with another.
[[nodiscard]] nlohmann::json former_grids(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// A line for each that a checkpoint lists, as in "until step 100: 8 lanes x 1 shard in
/// microbatches of 16"; empty where the run had one virtual grid from its start. Throws:
/// Error(kCheckpoint).
[[nodiscard]] std::string former_grids_text(const io::Checkpoint& checkpoint);

/// The contents of a checkpoint beside the state, for use after the run.
struct RunRecord {
  std::string config_text;
  ModelTexts texts;
  nlohmann::json former_grids = nlohmann::json::array();
  const io::Tokenizer* tokenizer = nullptr;  ///< null: none, or not known
  const io::DirectoryLock* lock = nullptr;   ///< of run.dir, on rank 0; null: none to check
  std::function<nlohmann::json()> further;   ///< to merge into the metadata: about the state
};

/// Rejects a checkpoint of another model; ignores optimizer state.
/// Throws: Error(kCheckpoint) naming the first tensor or layer that differs; Error(kData) where a
/// language model was trained with another tokenizer than the plan's training data.
void require_same_model(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// Rejects a checkpoint of another model, seed, batch, optimizer or data set; needs no more of the
/// plan than plan::without_grid() has. Throws: as require_continues().
void require_same_run(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// Rejects a checkpoint that the plan cannot continue. An imported one may continue with any
/// settings and begins with an optimizer state of zeros.
/// Throws: Error(kCheckpoint) for another model, naming the first tensor that differs;
/// Error(kUsage) for another seed, batch or data set, naming the setting.
void require_continues(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// The parameters that a run initializes although it starts from this checkpoint: the patterns of
/// checkpoint.init_except, and adapters that the checkpoint lacks.
[[nodiscard]] nn::NamePatterns initialized_anew(const plan::Plan& plan,
                                                const io::Checkpoint& checkpoint);

/// Rejects a checkpoint that the plan's model cannot start from. Parameters of initialized_anew()
/// may differ.
/// Throws: Error(kCheckpoint) naming the first parameter that differs; Error(kData) for another
/// tokenizer, unless the first layer is excepted; Error(kUsage) for a pattern that matches nothing.
void require_initial(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// Names that a data set must have, and what to do where it has others.
struct NamesOfCheckpoint {
  io::DatasetInfo data;
  std::string advice;
};

/// The columns and classes that a checkpoint.init learned. The run's own columns if the first layer
/// is initialized anew; its own classes if the last layer is.
[[nodiscard]] NamesOfCheckpoint initial_names(const plan::Plan& plan,
                                              const io::Checkpoint& checkpoint);

/// The log line about the weights that a new run takes from checkpoint.init.
[[nodiscard]] std::string initial_text(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// A warning where the run goes on with other training data (data.accept_change); else empty.
[[nodiscard]] std::string data_change(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// A warning where the run goes on with other bits than the checkpoint's: its norms were added in
/// another order, or on CPUs it was written with another version of oneDNN or under an instruction
/// set that gives other bits in the plan's dtype; else empty. A checkpoint without a record of the
/// latter two is taken as equal. Pre: on CPUs the process's instruction set is chosen.
[[nodiscard]] std::string bits_change(const plan::Plan& plan, const io::Checkpoint& checkpoint);

/// The bytes of the tensors of one of the run's checkpoints.
[[nodiscard]] std::int64_t checkpoint_bytes(const plan::Plan& plan);

/// The metadata of a checkpoint of the state after `step`.
[[nodiscard]] nlohmann::json checkpoint_metadata(const plan::Plan& plan, const RunRecord& run,
                                                 std::int64_t step);

/// The metadata of an imported checkpoint. `source` says where the weights come from.
[[nodiscard]] nlohmann::json imported_metadata(const std::vector<std::string>& layers,
                                               const io::DatasetInfo& data,
                                               const std::string& source,
                                               const ModelTexts& texts = {});

/// Deletes partial checkpoints and expired ones before `step`; keeps the checkpoint of `best_step`.
/// Returns: a warning where one cannot be deleted, else nothing.
[[nodiscard]] std::string prune_warning(const plan::Plan& plan, std::int64_t step,
                                        std::int64_t best_step);

/// prune_warning() on rank 0, with its warning in the log.
void tidy_checkpoints(const plan::Plan& plan, comm::Communicator& world, std::int64_t step,
                      std::int64_t best_step, Log& log);

}  // namespace strata::train
