#include "sample_feed.hpp"

#include <utility>

#include "strata/core/error.hpp"

namespace strata::train {

SampleFeed::SampleFeed(ops::Context& context, const io::Dataset& dataset,
                       const plan::RankPlan& rank, io::LoaderOptions options)
    : context_(context) {
  if (!rank.loads) {
    return;
  }
  const device::Device& device = context.device();
  if (const std::int64_t bytes = plan::pinned_sample_bytes(device.kind(), dataset.info(), options);
      bytes > 0) {
    memory_ = device::Buffer(device, bytes);
    crossing_.emplace(device, bytes);
  }
  loader_.emplace(dataset, std::move(options));
}

void SampleFeed::next() {
  if (!loader_) {
    return;
  }
  if (!crossing_) {
    loaded_ = &loader_->next();
    return;
  }
  if (!crossing_->under_way) {
    send();
  }
  take();
}

bool SampleFeed::ahead() {
  if (crossing_ && !crossing_->under_way && loader_->ready()) {
    send();
  }
  return crossing_ && crossing_->under_way;
}

void SampleFeed::send() {
  Crossing& crossing = *crossing_;
  loaded_ = &loader_->next();
  if (crossing.arrived.waits_due() > 0) {
    crossing.arrived.wait_on_host();
  }
  const ConstTensorView& all = loaded_->memory();
  const TensorView pinned(crossing.pinned.raw(), all.shape(), all.dtype());
  device::copy_tensor(all, pinned);
  if (crossing.taken.waits_due() > 0) {
    crossing.taken.wait(crossing.stream);
  }
  device::copy_tensor(pinned, crossing.landing.view(0, all.shape(), all.dtype()), crossing.stream);
  crossing.arrived.record(crossing.stream);
  crossing.under_way = true;
}

void SampleFeed::take() {
  Crossing& crossing = *crossing_;
  const ConstTensorView& all = loaded_->memory();
  crossing.arrived.wait(context_.stream());
  // In the order of the stream: the step before has done with its samples.
  device::copy_tensor(crossing.landing.view(0, all.shape(), all.dtype()),
                      memory_.view(0, all.shape(), all.dtype()), context_.stream());
  crossing.taken.record(context_.stream());
  crossing.under_way = false;
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
