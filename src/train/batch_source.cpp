#include "batch_source.hpp"

namespace strata::train {

io::LoaderOptions training_loader(const Plan& plan, const RankPlan& rank, std::int64_t first_step) {
  return {.order = io::Order::kShuffled,
          .sampling = plan.config.data.sampling,
          .seed = plan.config.run.seed,
          .global_batch = plan.config.batch.global,
          .microbatch = plan.config.batch.micro,
          .offsets = rank.offsets,
          .first_step = first_step,
          .steps = plan.total_steps - first_step,
          .compute_dtype = plan.config.numerics.dtype,
          .parts = rank.parts,
          .normalise = plan.config.data.normalise,
          .augmentation = plan.config.data.augmentation,
          .reader_threads = plan.config.data.reader_threads};
}

io::LoaderOptions evaluation_loader(const Plan& plan, const RankPlan& rank, std::int64_t rounds) {
  io::LoaderOptions options = training_loader(plan, rank, 0);
  options.order = io::Order::kSequential;
  options.augmentation = {};
  options.steps = rounds;
  return options;
}

}  // namespace strata::train
