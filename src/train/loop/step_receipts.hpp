#pragma once

#include <cstdint>
#include <optional>

#include "strata/train/rank_state.hpp"
#include "strata/train/receipts.hpp"
#include "strata/train/setup.hpp"

#include "loop/saves.hpp"
#include "replication/replication.hpp"

namespace strata::train {

/// The receipts of a training run (run.receipts), written by rank 0.
class StepReceipts {
 public:
  StepReceipts(const TrainerSetup& setup, RankState& state, Saves& saves)
      : setup_(setup), state_(state), saves_(saves) {}

  /// Begins to write, after `step`. Communication: collective over the world.
  void open(std::int64_t step);
  /// On rank 0; nothing elsewhere.
  void write(const StepResult& result);
  /// Whether the run is a replay, which saves nothing and ends before the run's last step.
  [[nodiscard]] bool is_replay() const;
  /// Completes the messages of the last update, and writes the receipt of a save, which a replay
  /// leaves out, where TrainerSetup::digests_end. Communication: collective over the world.
  void end_replay(std::int64_t step);

 private:
  /// Communication: collective over the world.
  [[nodiscard]] Digest state_digest();

  const TrainerSetup& setup_;
  RankState& state_;
  Saves& saves_;
  std::optional<ReceiptsWriter> writer_;  ///< on rank 0, once open
  bool warned_ = false;
};

}  // namespace strata::train
