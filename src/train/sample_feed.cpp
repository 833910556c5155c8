#include "sample_feed.hpp"

#include <utility>

#include "strata/core/error.hpp"

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

namespace {

constexpr std::size_t kCrossings = 2;

}  // namespace

std::int64_t SampleFeed::device_bytes(device::DeviceKind device, const io::DatasetInfo& info,
                                      const io::LoaderOptions& options) {
  return device == device::DeviceKind::kCpu ? 0 : io::Loader::step_bytes(info, options);
}

std::int64_t SampleFeed::pinned_bytes(device::DeviceKind device, const io::DatasetInfo& info,
                                      const io::LoaderOptions& options) {
  return static_cast<std::int64_t>(kCrossings) * device_bytes(device, info, options);
}

SampleFeed::SampleFeed(ops::Context& context, const io::Dataset& dataset, const RankPlan& rank,
                       io::LoaderOptions options)
    : context_(context) {
  if (!rank.loads) {
    return;
  }
  const device::Device& device = context.device();
  if (const std::int64_t bytes = device_bytes(device.kind(), dataset.info(), options); bytes > 0) {
    memory_ = device::Buffer(device, bytes);
    for (std::size_t i = 0; i < kCrossings; ++i) {
      crossings_.push_back(std::make_unique<Crossing>(device, bytes));
    }
  }
  loader_.emplace(dataset, std::move(options));
}

void SampleFeed::next() {
  if (!loader_) {
    return;
  }
  loaded_ = &loader_->next();
  if (!memory_.empty()) {
    send_to_device();
  }
}

void SampleFeed::send_to_device() {
  Crossing& crossing = *crossings_[crossing_];
  crossing_ = (crossing_ + 1) % kCrossings;
  if (crossing.done.waits_due() > 0) {
    crossing.done.wait_on_host();
  }
  const ConstTensorView& all = loaded_->memory();
  const TensorView pinned(crossing.memory.raw(), all.shape(), all.dtype());
  device::copy_tensor(all, pinned);
  // In the order of the stream: the step before has done with its samples.
  device::copy_tensor(pinned, memory_.view(0, all.shape(), all.dtype()), context_.stream());
  crossing.done.record(context_.stream());
}

ConstTensorView SampleFeed::on_device(const ConstTensorView& tensor) const {
  if (memory_.empty()) {
    return tensor;
  }
  return memory_.view(tensor.raw() - loaded_->memory().raw(), tensor.shape(), tensor.dtype());
}

ConstTensorView SampleFeed::inputs(std::int64_t m) const {
  require(loaded_ != nullptr, "inputs of microbatch {} on a rank that loads none", m);
  return on_device(loaded_->inputs(m));
}

ConstTensorView SampleFeed::targets(std::int64_t m) const {
  require(loaded_ != nullptr, "targets of microbatch {} on a rank that loads none", m);
  return on_device(loaded_->targets(m));
}

}  // namespace strata::train
