#pragma once

#include <optional>

#include "replication/replication.hpp"
#include "replication/step_runner.hpp"

namespace strata::train {

/// Gradients are summed over all replicas in every step (parallel.sync = step).
class EveryStep final : public Replication {
 public:
  EveryStep(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
            pipeline::Executor& executor)
      : setup_(setup), rank_(rank), state_(state), executor_(executor) {}

  void load(const io::Checkpoint* checkpoint) override;
  [[nodiscard]] std::int64_t start(std::int64_t step) override { return step_ = step; }
  [[nodiscard]] AgreedPoint advance(TrainingLoop& loop) override;
  void require_good() override;
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory) override {
    return state_.snapshot(memory);
  }
  void stop() override;

 private:
  const TrainerSetup& setup_;
  const plan::RankPlan& rank_;
  RankState& state_;
  pipeline::Executor& executor_;
  std::optional<StepRunner> runner_;  ///< from the first step on
  std::int64_t step_ = 0;             ///< that is done
};

}  // namespace strata::train
