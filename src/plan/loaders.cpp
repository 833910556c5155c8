#include "strata/plan/plan.hpp"

namespace strata::plan {

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
          .parts = rank.loaded_parts,
          .separate_documents = separates_documents(plan) ? Switch::kOn : Switch::kOff,
          .normalise = plan.config.data.normalise,
          .mean = plan.train_data.mean,
          .deviation = plan.train_data.deviation,
          .target_mean = plan.train_data.target_mean,
          .target_deviation = plan.train_data.target_deviation,
          .augmentation = plan.config.data.augmentation,
          .reader_threads = plan.config.data.reader_threads};
}

io::LoaderOptions repeat_loader(const Plan& plan, const RankPlan& rank, std::int64_t step) {
  io::LoaderOptions options = training_loader(plan, rank, step - 1);
  options.steps = 1;
  return options;
}

io::LoaderOptions evaluation_loader(const Plan& plan, const RankPlan& rank, std::int64_t rounds) {
  io::LoaderOptions options = training_loader(plan, rank, 0);
  options.order = io::Order::kSequential;
  options.global_batch = job_batch(plan);
  for (std::int64_t& offset : options.offsets) {
    offset -= first_of_job(plan);
  }
  options.augmentation = {};
  options.steps = rounds;
  return options;
}

std::int64_t device_sample_bytes(device::DeviceKind device, const io::DatasetInfo& info,
                                 const io::LoaderOptions& options) {
  // One buffer that a step reads, one that receives the next step's samples.
  return 2 * pinned_sample_bytes(device, info, options);
}

std::int64_t pinned_sample_bytes(device::DeviceKind device, const io::DatasetInfo& info,
                                 const io::LoaderOptions& options) {
  return device == device::DeviceKind::kCpu ? 0 : io::Loader::step_bytes(info, options);
}

}  // namespace strata::plan
