#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/io/checkpoint.hpp"
#include "strata/optim/parameter_server.hpp"

#include "replication/replication.hpp"
#include "replication/sample_feed.hpp"

namespace strata::train {

/// The result of one unit of work.
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
  std::vector<UnitResult> results;  ///< of steps of which other units are open
};

/// Workers fetch weights from servers and push gradients at their own pace (parallel.sync = async).
/// Work is dealt out in units, the microbatches of one lane in one step, by a counter: a fast
/// worker takes more of them. For each unit a worker fetches the weights, computes their gradient
/// and pushes it. The ranks agree only for saves, evaluations and the end: at a cut, where all that
/// was pushed is applied and no unit is half done.
class ParameterServers final : public Replication {
 public:
  /// Makes the windows. Communication: collective over the world.
  ParameterServers(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                   pipeline::Executor& executor);

  void load(const io::Checkpoint* checkpoint) override;
  [[nodiscard]] std::int64_t start(std::int64_t step) override;
  /// Works until a cut; the RankState then has the newest weights. Communication: over the world at
  /// the cut only.
  [[nodiscard]] AgreedPoint advance(TrainingLoop& loop) override;
  void require_good() override;
  /// The own share of the parameters, in place.
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory) override;
  [[nodiscard]] nlohmann::json record() const override;
  void stop() override;

 private:
  using Word = comm::Window::Word;

  /// Takes the weights of a new run from the state.
  void take_weights();
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
  void decide(TrainingLoop& loop, StepRequests own);
  /// On rank 0: reports the steps that are complete. Returns: what they make due.
  [[nodiscard]] StepRequests report_steps(TrainingLoop& loop);
  [[nodiscard]] StepResult result_of(std::int64_t step, const StepTimes& times);
  [[nodiscard]] AgreedPoint cut(TrainingLoop& loop);
  /// Updates, staleness and waits of all servers and workers, for the log on rank 0.
  /// Communication: an all-gather over the world.
  [[nodiscard]] std::string summary();
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
  std::int64_t units_;  ///< of the run
  UnitsDone begun_;     ///< at the start
  UnitsDone done_;      ///< at the last cut
  bool serves_ = false;

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
