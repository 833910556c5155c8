#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/io/checkpoint.hpp"
#include "strata/optim/parameter_server.hpp"

#include "replication/replication.hpp"
#include "replication/sample_feed.hpp"
#include "replication/units.hpp"

namespace strata::train {

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
  using Word = UnitWindow::Word;

  /// Calls use(name, piece, tensor) for the own weights and optimizer states.
  template <typename Use>
  void for_tensors(const Use& use) const;
  /// Takes the weights of a new run from the state.
  void take_weights();
  [[nodiscard]] bool is_worker() const;
  /// The unit of a claim; nothing where all are dealt out.
  [[nodiscard]] std::optional<std::int64_t> unit_of(std::int64_t claim) const;
  void claim();
  void await_slowest();
  /// Throws: Error(kPeer) where no rank has finished a unit for run.timeout.
  void require_progress();
  /// Names the step in reports of crashes and stalls.
  void show_step(std::int64_t step);
  void compute(std::int64_t unit, SampleFeed& feed);
  void fetch();
  void give(const UnitResult& result);
  /// On rank 0: reports the steps that are complete and asks for a cut where one is due.
  void decide(TrainingLoop& loop, StepRequests own);
  [[nodiscard]] AgreedPoint cut(TrainingLoop& loop);
  /// Updates, staleness and waits of all servers and workers, for the log on rank 0.
  /// Communication: an all-gather over the world.
  [[nodiscard]] std::string summary();

  ops::Context host_;
  optim::ParameterServer server_;
  UnitWindow window_;
  UnitSteps steps_;
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
  StepTimes times_;          ///< of this rank's units since the last report
};

}  // namespace strata::train
