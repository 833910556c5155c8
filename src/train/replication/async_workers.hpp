#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/io/checkpoint.hpp"
#include "strata/optim/parameter_server.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/test_fault.hpp"

#include "loop/sample_feed.hpp"
#include "loop/step_result.hpp"

namespace strata::train {

/// Asynchronous training on one rank (parallel.sync = async). Work is dealt out in units, the
/// microbatches of one lane in one step, by a counter: a fast worker takes more of them. For each
/// unit a worker fetches the weights, computes their gradient and pushes it. Workers come together
/// only for saves, evaluations and the end: at a cut, where all that was pushed is applied and no
/// unit is half done.
class AsyncWorkers {
 public:
  /// What a finished step makes due.
  struct Due {
    bool save = false;
    bool evaluation = false;
  };
  struct Hooks {
    std::function<bool()> wants_stop;  ///< called on every rank
    // On rank 0.
    std::function<void(const StepResult&)> report;  ///< of steps whose units are all done, in order
    std::function<Due(std::int64_t step)> due;
    std::function<bool()> wants_save;
  };

  /// Makes the windows. Communication: collective over the world.
  AsyncWorkers(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
               pipeline::Executor& executor);

  /// Takes the weights of a new run from the state.
  void take_weights();
  /// Reads the own share of the parameters. Throws: as RankState.
  void load(const io::Checkpoint& checkpoint);
  /// Begins to serve, after the units that a checkpoint of this step has. Communication: a barrier.
  void start(const UnitsDone& done, std::int64_t step);

  struct Cut {
    bool stops = false;
    bool saves = false;
    bool evaluates = false;
    bool ends = false;
    std::int64_t step = 0;  ///< whose units, and those of all before it, are done
  };
  /// Works until a cut, which is the same on all ranks; the state then has the newest weights.
  /// Communication: over the world at the cut only. Throws: Error(kDiverged) where a unit's loss or
  /// gradient is not finite, as train.nonfinite says.
  [[nodiscard]] Cut work(const Hooks& hooks);
  /// Ends the windows. Communication: collective over the world.
  void stop();

  /// The own share of the parameters, in place. Pre: at a cut.
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory);
  /// What is done. Pre: at a cut.
  [[nodiscard]] const UnitsDone& done() const { return done_; }
  /// Throws: Error(kDiverged) where a weight of the own share is not finite.
  void require_finite() const;
  /// Updates, staleness and waits of all servers and workers, for the log on rank 0.
  /// Communication: an all-gather over the world.
  [[nodiscard]] std::string summary();

 private:
  using Word = comm::Window::Word;

  [[nodiscard]] bool is_worker() const;
  /// The unit of a claim; nothing where all are dealt out.
  [[nodiscard]] std::optional<std::int64_t> unit_of(std::int64_t claim) const;
  void claim();
  void await_slowest();
  /// Throws: Error(kPeer) where no rank has finished a unit for run.timeout.
  void require_progress();
  /// Of a crash or a stall, whose line names it.
  void show_step(std::int64_t step);
  void compute(std::int64_t unit, SampleFeed& feed);
  void fetch();
  void record(const UnitResult& result);
  /// On rank 0: reads the results of finished units.
  void collect();
  /// On rank 0: reports the steps that are complete and asks for a cut where one is due.
  void decide(const Hooks& hooks);
  /// On rank 0: reports the steps that are complete. Returns: the flags of what they make due.
  [[nodiscard]] Word report_steps(const Hooks& hooks);
  [[nodiscard]] StepResult result_of(std::int64_t step, const StepTimes& times);
  [[nodiscard]] Cut cut(const Hooks& hooks);
  [[nodiscard]] std::int64_t word_of_ring(std::int64_t unit) const;

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  comm::Communicator& world_;
  RankState& state_;
  pipeline::Executor& executor_;
  ops::Context host_;
  optim::ParameterServer server_;
  std::unique_ptr<comm::Window> control_;
  std::int64_t units_;          ///< of the run
  double delay_seconds_ = 0.0;  ///< of a test
  UnitsDone begun_;             ///< at the start
  UnitsDone done_;              ///< at the last cut

  /// A unit that this worker has claimed, and its samples.
  struct Claimed {
    std::int64_t unit = 0;
    std::unique_ptr<SampleFeed> feed;
  };
  std::optional<Claimed> next_;
  bool all_claimed_ = false;
  Word cuts_seen_ = 0;
  Word progress_ = 0;        ///< units that all have done, when they were seen last
  double progressed_ = 0.0;  ///< when they changed
  std::int64_t skipped_in_a_row_ = 0;

  // Of rank 0.
  std::map<std::int64_t, std::map<std::int64_t, UnitResult>> open_steps_;  ///< by step, by lane
  std::int64_t next_report_ = 0;                                           ///< step
  std::int64_t done_count_ = 0;
  StepTimes times_;  ///< of its units since the last report
  double last_report_ = 0.0;
  optim::ParameterServer::Counts counts_;  ///< then
};

}  // namespace strata::train
