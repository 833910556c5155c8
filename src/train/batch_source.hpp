#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/io/loader.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/plan.hpp"

namespace strata::train {

/// What this rank's loader of the training split delivers: steps [first_step, total), each its own
/// microbatches.
[[nodiscard]] io::LoaderOptions training_loader(const Plan& plan, const RankPlan& rank,
                                                std::int64_t first_step);

/// The same for one ordered pass over a split in `rounds` steps.
[[nodiscard]] io::LoaderOptions evaluation_loader(const Plan& plan, const RankPlan& rank,
                                                  std::int64_t rounds);

/// One loaded step as the executor asks for it. On stages between the first and the last there is
/// no loaded step.
class BatchSource final : public pipeline::MicrobatchSource {
 public:
  /// Rows whose global sample index is `limit` or more are padding.
  BatchSource(const Plan& plan, const RankPlan& rank, const io::LoadedStep* loaded,
              std::int64_t first_sample, std::int64_t limit)
      : microbatch_(plan.config.batch.micro),
        rank_(rank),
        loaded_(loaded),
        first_sample_(first_sample),
        limit_(limit) {}

  ConstTensorView inputs(std::int64_t m) override { return loaded_->inputs(m); }
  ConstTensorView targets(std::int64_t m) override { return loaded_->targets(m); }
  std::int64_t first_row(std::int64_t m) override {
    return first_sample_ + rank_.offsets[static_cast<std::size_t>(m)];
  }
  std::int64_t valid_rows(std::int64_t m) override {
    return std::clamp<std::int64_t>(limit_ - first_row(m), 0, microbatch_);
  }

 private:
  std::int64_t microbatch_;
  const RankPlan& rank_;
  const io::LoadedStep* loaded_;
  std::int64_t first_sample_;
  std::int64_t limit_;
};

}  // namespace strata::train
