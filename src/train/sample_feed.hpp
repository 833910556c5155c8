#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/stream.hpp"
#include "strata/io/loader.hpp"
#include "strata/ops/context.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// This rank's samples, step after step, in the memory of the device that computes. Stages between
/// the first and the last have none.
class SampleFeed {
 public:
  /// Begins to read where the rank loads at all. Pre: `dataset` outlives the feed.
  SampleFeed(ops::Context& context, const io::Dataset& dataset, const plan::RankPlan& rank,
             io::LoaderOptions options);

  /// Goes to the next step, waiting for its samples. What inputs() and targets() gave is void.
  void next();
  /// Begins to bring the samples of the step after this one to a GPU, beside the computing, where
  /// they are read already; does not wait for them. Returns: whether they are on their way.
  /// Pre: next() was called.
  bool ahead();
  /// At the same addresses in every step where the device is a GPU.
  [[nodiscard]] ConstTensorView inputs(std::int64_t m) const;
  [[nodiscard]] ConstTensorView targets(std::int64_t m) const;

 private:
  /// A step's samples on their way to a GPU: to where they land, on a stream of their own, and from
  /// there to where the step reads them, on that of the computing.
  struct StagingBuffer {
    StagingBuffer(const device::Device& device, std::int64_t bytes)
        : pinned(bytes),
          landing(device, bytes),
          arrived(device, 2),
          taken(device, 1),
          stream(device) {}

    device::PinnedBuffer pinned;
    device::Buffer landing;
    /// They have landed: the computing waits for it, and the host before it uses `pinned` again.
    device::Event arrived;
    /// They are where the step reads them.
    device::Event taken;
    bool under_way = false;
    // Goes first: it may still have work that uses the memory above.
    device::Stream stream;
  };

  void send();
  void take();
  [[nodiscard]] ConstTensorView on_device(const ConstTensorView& tensor) const;

  ops::Context& context_;
  std::optional<io::Loader> loader_;
  // All steps have one layout, so that the newest tells where a tensor is.
  const io::LoadedStep* loaded_ = nullptr;
  // Of a GPU only.
  device::Buffer memory_;
  std::optional<StagingBuffer> staging_;
};

/// One step of a feed as the executor asks for it.
class BatchSource final : public pipeline::MicrobatchSource {
 public:
  /// Rows whose global sample index is `limit` or more are padding.
  BatchSource(const plan::Plan& plan, const plan::RankPlan& rank, const SampleFeed& feed,
              std::int64_t first_sample, std::int64_t limit)
      : microbatch_(plan.config.batch.micro),
        rank_(rank),
        feed_(feed),
        first_sample_(first_sample),
        limit_(limit) {}

  ConstTensorView inputs(std::int64_t m) override { return feed_.inputs(m); }
  ConstTensorView targets(std::int64_t m) override { return feed_.targets(m); }
  std::int64_t first_row(std::int64_t m) override {
    return first_sample_ + rank_.offsets[static_cast<std::size_t>(m)];
  }
  std::int64_t valid_rows(std::int64_t m) override {
    return std::clamp<std::int64_t>(limit_ - first_row(m), 0, microbatch_);
  }

 private:
  std::int64_t microbatch_;
  const plan::RankPlan& rank_;
  const SampleFeed& feed_;
  std::int64_t first_sample_;
  std::int64_t limit_;
};

}  // namespace strata::train
