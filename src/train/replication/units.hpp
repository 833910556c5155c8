#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/comm/communicator.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/optim/parameter_server.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/setup.hpp"

#include "replication/replication.hpp"

// The units of work of parallel.sync = async: the microbatches of one lane in one step.
namespace strata::train {

/// The result of one unit.
struct UnitResult {
  std::int64_t unit = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
};

/// What workers have done: the units before `next` except the open ones.
struct UnitsDone {
  std::int64_t next = 0;
  std::vector<std::int64_t> open;
  std::int64_t updates = 0;
  std::vector<UnitResult> results;  ///< of steps that are not complete
};

/// The units that a checkpoint's run had done; all of its steps where it was of another kind.
/// Throws: Error(kCheckpoint) where the record is not valid.
[[nodiscard]] UnitsDone units_in(const io::Checkpoint& checkpoint, const plan::Plan& plan);
/// As an entry of a checkpoint's metadata.
[[nodiscard]] nlohmann::json record_of(const UnitsDone& units);

/// Memory of rank 0 by which all ranks deal out units, ask for cuts and give results.
class UnitWindow {
 public:
  using Word = comm::Window::Word;
  /// The flags of a cut begin with the requests of a StepRequests.
  static constexpr Word kEnds = 128;     ///< the run has ended
  static constexpr Word kFlagEnd = 256;  ///< the number of the cut is above

  /// Communication: collective over the world.
  UnitWindow(comm::Communicator& world, const plan::Plan& plan);

  /// Units that were claimed so far, and one more.
  [[nodiscard]] std::int64_t claims() {
    return static_cast<std::int64_t>(window_->load(0, kClaims));
  }
  [[nodiscard]] std::int64_t claim() {
    return static_cast<std::int64_t>(window_->fetch_add(0, kClaims, Word{1}));
  }
  /// The cut that was asked for last: its number and flags.
  [[nodiscard]] Word cut() { return window_->load(0, kCut); }
  /// On rank 0.
  void ask_for_cut(Word flags);
  /// Asks for the end of the run on this rank's behalf.
  void ask_to_stop() { window_->store(0, kStops + world_.rank(), 1); }
  /// On rank 0: whether a rank has asked.
  [[nodiscard]] bool is_asked_to_stop() const;
  /// The units that each rank has done.
  [[nodiscard]] std::vector<Word> done();

  /// Whether this rank's ring has room for a result.
  [[nodiscard]] bool has_place() {
    return given_ - window_->load(0, taken_at(world_.rank())) < Word{plan::kUnitRing};
  }
  /// Gives the result of a unit of this rank. Pre: has_place().
  void give(const UnitResult& result);
  /// On rank 0: the results since the last call.
  [[nodiscard]] std::vector<UnitResult> take();
  /// Communication: collective over the world.
  void close() { window_->close(); }

 private:
  /// The words: the claims, the cut, whether each rank was requested to stop, the units that each
  /// has done, those of them whose results are taken, and a ring of results of each rank: unit,
  /// loss, norm.
  enum Place : std::int64_t { kClaims, kCut, kStops };
  [[nodiscard]] std::int64_t done_at(std::int64_t rank) const {
    return kStops + world_.size() + rank;
  }
  [[nodiscard]] std::int64_t taken_at(std::int64_t rank) const {
    return done_at(world_.size() + rank);
  }
  /// Of the result of a rank that is its number `count`, from 0.
  [[nodiscard]] std::int64_t place_of(std::int64_t rank, Word count) const;

  comm::Communicator& world_;
  std::unique_ptr<comm::Window> window_;
  Word given_ = 0;  ///< results of this rank
};

/// Makes steps of the results of units, on rank 0; a step is reported once all its units are done.
class UnitSteps {
 public:
  UnitSteps(const TrainerSetup& setup, UnitWindow& window, optim::ParameterServer& server)
      : setup_(setup), plan_(setup.plan), window_(window), server_(server) {}

  /// Goes on after `step`, of a run that has done `units`.
  void begin(std::int64_t step, const UnitsDone& units);
  /// Time counts from here on.
  void begin_window();
  /// The last step that was reported.
  [[nodiscard]] std::int64_t reported() const { return reported_; }
  [[nodiscard]] std::int64_t units_done() const { return units_done_; }
  /// Reads the results of finished units.
  void collect();
  /// Results of steps that are not complete.
  [[nodiscard]] std::vector<UnitResult> open_results() const;
  /// Reports the steps that are complete. `times`: of this rank since the last report, which resets
  /// them. Returns: what they make due. Throws: Error(kDiverged) where too many gradients in
  /// a row were not finite.
  [[nodiscard]] StepRequests report(TrainingLoop& loop, StepTimes& times);

 private:
  /// By lane.
  using Units = std::map<std::int64_t, UnitResult>;

  [[nodiscard]] StepResult result_of(std::int64_t step, const Units& units, const StepTimes& times);
  /// What the servers counted since the last report.
  void count_updates(StepResult& result);

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  UnitWindow& window_;
  optim::ParameterServer& server_;
  std::map<std::int64_t, Units> open_;  ///< by step, from 0
  std::int64_t reported_ = 0;
  std::int64_t units_done_ = 0;
  double last_report_ = 0.0;
  optim::ParameterServer::Counts counts_;  ///< then
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace strata::train
