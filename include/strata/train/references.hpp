#pragma once

#include "strata/comm/groups.hpp"
#include "strata/core/log.hpp"
#include "strata/io/dataset.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/stop_polls.hpp"

/// What the initial weights of a run say of pairs of answers (train.objective = dpo): computed once
/// and kept in the run's directory. Format: docs/formats.md.
namespace strata::train {

/// Computes the references of a data set's pairs with the weights at hand, gives them to the data
/// set and stores them. Logs how far it is, in lines that come less and less often, and how long it
/// took. Pre: plan::compares_documents(). Returns: kStop where polls ended it, on all ranks.
/// Communication: over the whole grid. Throws: AgreedError.
[[nodiscard]] StopRequest make_references(ops::Context& context, const plan::Plan& plan,
                                          const plan::RankPlan& rank, comm::Groups& groups,
                                          pipeline::Executor& executor, io::Dataset& data,
                                          StopPolls& polls, Log& log);

/// Gives a data set the references that make_references() stored in plan.config.run.dir. Pre: as
/// make_references(). Communication: collective over the world. Throws: AgreedError(kData) where
/// they are missing or damaged.
void load_references(const plan::Plan& plan, comm::Communicator& world, io::Dataset& data);

}  // namespace strata::train
