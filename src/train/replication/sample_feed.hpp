#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/stream.hpp"
#include "strata/io/loader.hpp"
#include "strata/ops/context.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// This rank's samples, step by step, in device memory. Stages between the first and the last have
/// places at most.
class SampleFeed {
 public:
  /// Starts to read, if the rank loads samples. Pre: `dataset` outlives the feed.
  SampleFeed(ops::Context& context, const io::Dataset& dataset, const plan::RankPlan& rank,
             io::LoaderOptions options);

  /// Waits for the samples of the next step. Invalidates earlier views of inputs() and targets().
  void next();
  /// Enqueues the copy of the following step's samples to the GPU, overlapped with computation, if
  /// the loader has read them. Returns: whether the copy is enqueued. Pre: next() was called.
  bool prefetch();
  /// On a GPU, at the same addresses in every step.
  [[nodiscard]] ConstTensorView inputs(std::int64_t m) const;
  [[nodiscard]] ConstTensorView targets(std::int64_t m) const;
  [[nodiscard]] nn::RowPlaces places(std::int64_t m) const;
  [[nodiscard]] ConstTensorView references(std::int64_t m) const;

 private:
  /// The copy of a step's samples to a GPU: to `landing` on a separate stream, and from there to
  /// the step's buffer on the compute stream.
  struct StagingBuffer {
    StagingBuffer(const device::Device& device, std::int64_t bytes)
        : pinned(device, bytes),
          landing(device, bytes),
          arrived(device, 2),
          taken(device, 1),
          stream(device) {}

    device::PinnedBuffer pinned;
    device::Buffer landing;
    /// The samples are in `landing`. The compute stream waits for it, and so does the host before
    /// it writes to `pinned` again.
    device::Event arrived;
    /// The samples are in the step's buffer.
    device::Event taken;
    bool under_way = false;
    // Destroyed first: its work may still use the memory above.
    device::Stream stream;
  };

  void send();
  void take();
  [[nodiscard]] ConstTensorView on_device(const ConstTensorView& tensor) const;

  ops::Context& context_;
  io::Parts parts_ = io::Parts::kNone;
  std::optional<io::Loader> loader_;
  // All steps have the same layout, so the newest gives the offsets.
  const io::LoadedStep* loaded_ = nullptr;
  // For a GPU only.
  device::Buffer memory_;
  std::optional<StagingBuffer> staging_;
};

/// One step of a feed as the executor's source.
class BatchSource final : public pipeline::MicrobatchSource {
 public:
  /// `offsets`: of the first sample of each of the feed's microbatches; they outlive the source.
  /// Rows from global sample index `limit` on are padding. `first_microbatch`: of the
  /// feed's, where an island has some of them.
  BatchSource(const plan::Plan& plan, std::span<const std::int64_t> offsets, const SampleFeed& feed,
              std::int64_t first_sample, std::int64_t limit, std::int64_t first_microbatch = 0)
      : microbatch_(plan.config.batch.micro),
        offsets_(offsets),
        feed_(feed),
        first_sample_(first_sample),
        limit_(limit),
        first_microbatch_(first_microbatch) {}

  ConstTensorView inputs(std::int64_t m) override { return feed_.inputs(first_microbatch_ + m); }
  ConstTensorView targets(std::int64_t m) override { return feed_.targets(first_microbatch_ + m); }
  nn::RowPlaces places(std::int64_t m) override { return feed_.places(first_microbatch_ + m); }
  ConstTensorView references(std::int64_t m) override {
    return feed_.references(first_microbatch_ + m);
  }
  std::int64_t first_row(std::int64_t m) override {
    return first_sample_ + offsets_[static_cast<std::size_t>(first_microbatch_ + m)];
  }
  std::int64_t valid_rows(std::int64_t m) override {
    return std::clamp<std::int64_t>(limit_ - first_row(m), 0, microbatch_);
  }

 private:
  std::int64_t microbatch_;
  std::span<const std::int64_t> offsets_;
  const SampleFeed& feed_;
  std::int64_t first_sample_;
  std::int64_t limit_;
  std::int64_t first_microbatch_;
};

}  // namespace strata::train
