#pragma once

#include <optional>

#include "strata/comm/mpi.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/stored_state.hpp"

#include "environment/execution_environment.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {

/// A rank's part of a trained model, with the weights of the inputs' checkpoint.
class LoadedModel {
 public:
  /// Pre: inputs and plan outlive it. Communication: collective over the world.
  LoadedModel(comm::MpiSession& mpi, const RunInputs& inputs, plan::Plan& plan);

  /// As train::evaluate(), without polls.
  [[nodiscard]] train::EvaluationResult evaluate(const io::Dataset& data,
                                                 const train::EvaluationExtras& extras);

 private:
  const plan::Plan& plan_;
  ExecutionEnvironment environment_;
  plan::RankPlan rank_;
  std::optional<train::StageState> state_;
  std::optional<pipeline::Executor> executor_;
};

}  // namespace strata::app
