#include "commands/run/loaded_model.hpp"

#include "strata/comm/agree.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/file_timeout.hpp"

namespace strata::app {

LoadedModel::LoadedModel(comm::MpiSession& mpi, const RunInputs& inputs, plan::Plan& plan)
    : plan_(plan),
      environment_(mpi, inputs, plan, Use::kEvaluation),
      rank_(plan::rank_plan(plan, mpi.world().rank())) {
  comm::Groups& groups = environment_.groups();
  {
    const train::FileTimeout timeout(mpi.world());
    comm::agree(mpi.world(), [&] {
      train::require_same_model(plan, *inputs.checkpoint);
      state_.emplace(environment_.context(), plan, rank_, groups);
      state_->load_weights(*inputs.checkpoint);
    });
  }
  executor_.emplace(state_->chunks(), groups.along(grid::Axis::kPipeline), *groups.engine);
  groups.world->enter(comm::Phase::kEvaluation);
}

train::EvaluationResult LoadedModel::evaluate(const io::Dataset& data,
                                              const train::EvaluationExtras& extras) {
  return train::evaluate(environment_.context(), plan_, rank_, environment_.groups(), *executor_,
                         data, extras)
      .value();
}

}  // namespace strata::app
