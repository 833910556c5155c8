#include "replication/replication.hpp"

#include "strata/comm/agree.hpp"

#include "replication/local_steps.hpp"
#include "replication/parameter_servers.hpp"

namespace strata::train {

void Replication::load(const io::Checkpoint* checkpoint) {
  if (checkpoint != nullptr) {
    state_.load_weights(*checkpoint);
    state_.load_state(*checkpoint);
  }
}

StepResult& Replication::run_step(TrainingLoop& loop, AgreedPoint& point,
                                  const std::function<void(StepResult&)>& train) {
  if (!runner_) {
    runner_.emplace(setup_, rank_, state_, executor_, step_);
  }
  point.step = ++step_;
  loop.begin_step(step_);
  return point.results.emplace_back(runner_->run(step_, train));
}

void Replication::agree_on(TrainingLoop& loop, AgreedPoint& point) const {
  point.ends = point.step == plan_.total_steps;
  point.requests = loop.due(point.step);
  point.requests.add(point.results.back().summary.requests);
}

AgreedPoint Replication::advance(TrainingLoop& loop) {
  AgreedPoint point;
  loop.end_step(run_step(loop, point, [&](StepResult& result) {
    runner_->train(
        0, [&] { return loop.requests(step_); }, result);
  }));
  agree_on(loop, point);
  return point;
}

void Replication::require_good() {
  if (runner_) {
    runner_->confirm_state();
  }
  comm::agree(world_, [&] { state_.require_finite(); });
}

void Replication::stop() {
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
  return std::make_unique<Replication>(setup, rank, state, executor);
}

}  // namespace strata::train
