#include "replication/sample_feed.hpp"

#include <utility>

#include "strata/core/error.hpp"

namespace strata::train {

SampleFeed::SampleFeed(ops::Context& context, const io::Dataset& dataset,
                       const plan::RankPlan& rank, io::LoaderOptions options)
    : context_(context), parts_(rank.loaded_parts) {
  if (!rank.loads) {
    return;
  }
  const device::Device& device = context.device();
  if (const std::int64_t bytes = plan::pinned_sample_bytes(device.kind(), dataset.info(), options);
      bytes > 0) {
    memory_ = device::Buffer(device, bytes);
    staging_.emplace(device, bytes);
  }
  loader_.emplace(dataset, std::move(options));
}

void SampleFeed::next() {
  if (!loader_) {
    return;
  }
  if (!staging_) {
    loaded_ = &loader_->next();
    return;
  }
  if (!staging_->under_way) {
    send();
  }
  take();
}

bool SampleFeed::prefetch() {
  if (staging_ && !staging_->under_way && loader_->ready()) {
    send();
  }
  return staging_ && staging_->under_way;
}

void SampleFeed::send() {
  StagingBuffer& staging = *staging_;
  loaded_ = &loader_->next();
  if (staging.arrived.waits_due() > 0) {
    staging.arrived.wait_on_host();
  }
  const ConstTensorView& all = loaded_->memory();
  const TensorView pinned(staging.pinned.raw(), all.shape(), all.dtype());
  device::copy_tensor(all, pinned);
  if (staging.taken.waits_due() > 0) {
    staging.taken.wait(staging.stream);
  }
  device::copy_tensor(pinned, staging.landing.view(0, all.shape(), all.dtype()), staging.stream);
  staging.arrived.record(staging.stream);
  staging.under_way = true;
}

void SampleFeed::take() {
  StagingBuffer& staging = *staging_;
  const ConstTensorView& all = loaded_->memory();
  staging.arrived.wait(context_.stream());
  // In stream order, so the previous step no longer reads its samples.
  device::copy_tensor(staging.landing.view(0, all.shape(), all.dtype()),
                      memory_.view(0, all.shape(), all.dtype()), context_.stream());
  staging.taken.record(context_.stream());
  staging.under_way = false;
}

ConstTensorView SampleFeed::on_device(const ConstTensorView& tensor) const {
  if (memory_.empty()) {
    return tensor;
  }
  return memory_.view(tensor.raw() - loaded_->memory().raw(), tensor.shape(), tensor.dtype());
}

ConstTensorView SampleFeed::inputs(std::int64_t m) const {
  require(loaded_ != nullptr, "inputs of microbatch {} on a rank that loads no samples", m);
  return on_device(loaded_->inputs(m));
}

ConstTensorView SampleFeed::targets(std::int64_t m) const {
  require(loaded_ != nullptr, "targets of microbatch {} on a rank that loads no samples", m);
  return on_device(loaded_->targets(m));
}

nn::RowPlaces SampleFeed::places(std::int64_t m) const {
  nn::RowPlaces places;
  if (contains(parts_, io::Parts::kDocumentStarts)) {
    places.document_starts = on_device(loaded_->document_starts(m));
  }
  if (contains(parts_, io::Parts::kPositions)) {
    places.positions = on_device(loaded_->positions(m));
  }
  return places;
}

ConstTensorView SampleFeed::references(std::int64_t m) const {
  return contains(parts_, io::Parts::kReferences) ? on_device(loaded_->references(m))
                                                  : ConstTensorView();
}

}  // namespace strata::train
