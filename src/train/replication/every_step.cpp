#include "replication/every_step.hpp"

#include "strata/comm/agree.hpp"

#include "replication/local_steps.hpp"
#include "replication/parameter_servers.hpp"

namespace strata::train {

void EveryStep::load(const io::Checkpoint* checkpoint) {
  if (checkpoint != nullptr) {
    state_.load_weights(*checkpoint);
    state_.load_state(*checkpoint);
  }
}

AgreedPoint EveryStep::advance(TrainingLoop& loop) {
  if (!runner_) {
    runner_.emplace(setup_, rank_, state_, executor_, step_);
  }
  ++step_;
  loop.begin_step(step_);
  const auto requests = [&] { return loop.requests(step_); };
  AgreedPoint point{.step = step_, .ends = step_ == setup_.plan.total_steps};
  point.results.push_back(
      runner_->run(step_, [&](StepResult& result) { runner_->train(0, requests, result); }));
  loop.end_step(point.results.back());
  point.requests = loop.due(step_);
  point.requests.add(point.results.back().summary.requests);
  return point;
}

void EveryStep::require_good() {
  if (runner_) {
    runner_->confirm_state();
  }
  comm::agree(*setup_.groups.world, [&] { state_.require_finite(); });
}

void EveryStep::stop() {
  if (runner_) {
    runner_->log_summary();
  }
}

std::unique_ptr<Replication> make_replication(const TrainerSetup& setup, const plan::RankPlan& rank,
                                              RankState& state, pipeline::Executor& executor) {
  switch (setup.plan.config.parallel.sync) {
    case config::Sync::kLocal:
      return std::make_unique<LocalSteps>(setup, rank, state, executor);
    case config::Sync::kAsync:
      return std::make_unique<ParameterServers>(setup, rank, state, executor);
    case config::Sync::kStep:
      break;
  }
  return std::make_unique<EveryStep>(setup, rank, state, executor);
}

}  // namespace strata::train
