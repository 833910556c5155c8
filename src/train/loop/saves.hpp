#pragma once

#include <cstdint>
#include <optional>

#include "strata/io/tokenizer.hpp"
#include "strata/train/checkpoint_writer.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"

#include "loop/periodic_evaluation.hpp"
#include "loop/run_clock.hpp"
#include "replication/replication.hpp"

namespace strata::train {

/// Marks a phase within training, for the watchdog.
class PhaseMark {
 public:
  PhaseMark(comm::Communicator& world, comm::Phase phase) : world_(world) { world_.enter(phase); }
  ~PhaseMark() { world_.enter(comm::Phase::kTraining); }
  PhaseMark(const PhaseMark&) = delete;
  PhaseMark& operator=(const PhaseMark&) = delete;

 private:
  comm::Communicator& world_;
};

/// The checkpoints of a training run. Its functions are collective over the world, but for open(),
/// has(), is_writing() and report().
class Saves {
 public:
  using OnFailure = CheckpointWriter::OnFailure;

  /// `clock`: on rank 0, once training begins.
  Saves(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
        Replication& replication, const PeriodicEvaluation& evaluation,
        std::optional<RunClock>& clock)
      : setup_(setup),
        rank_(rank),
        state_(state),
        replication_(replication),
        evaluation_(evaluation),
        clock_(clock) {}

  /// `metrics` and `tokenizer`: of rank 0; null where there is none.
  void open(MetricsFile* metrics, const io::Tokenizer* tokenizer);
  /// CheckpointWriter::state_digest(). Pre: open().
  [[nodiscard]] Digest state_digest() { return writer_->state_digest(); }
  /// `receipts`: of rank 0, with a line for each save from now on.
  void write_receipts(ReceiptsWriter* receipts) { receipts_ = receipts; }

  /// Saves the state after `step`, unless it is saved already. `updates`: AgreedPoint::updates.
  void save(std::int64_t step, std::int64_t updates, OnFailure on_failure);
  /// The state was saved before it was found to be the best.
  void keep(std::int64_t step);
  [[nodiscard]] bool has(std::int64_t step) const {
    return saved_step_ == step && !writer_->has_failed();
  }
  /// Goes on with the save under way, if any. Pre: no rank's thread is_writing().
  void advance();
  /// Writes what the checkpoint that was committed last cost, once.
  void report();
  [[nodiscard]] bool is_writing() const { return writer_->is_writing(); }
  /// Completes the save under way, if any.
  void finish();
  /// The same after an agreed failure: its state was good.
  void finish_after_failure();

 private:
  const TrainerSetup& setup_;
  const plan::RankPlan& rank_;
  RankState& state_;
  Replication& replication_;
  const PeriodicEvaluation& evaluation_;
  std::optional<RunClock>& clock_;
  MetricsFile* metrics_ = nullptr;
  ReceiptsWriter* receipts_ = nullptr;
  std::optional<CheckpointWriter> writer_;
  std::int64_t saved_step_ = -1;
  std::int64_t saved_updates_ = 0;
};

}  // namespace strata::train
