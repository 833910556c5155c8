#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/shard_group.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/nn/layer.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/preference_loss.hpp"

namespace strata::nn {

enum class LossKind { kCrossEntropy, kMeanSquaredError };

constexpr auto enum_names(LossKind) {
  return names_in_order("cross_entropy", "mean_squared_error");
}

struct LossOptions {
  LossKind kind = LossKind::kCrossEntropy;
  /// Of cross-entropy in training; evaluation has none.
  ops::LossTerms terms;
  /// Of ops::preference_loss(), to which the cross-entropies of each sample's tokens then
  /// contribute; 0: they are the loss. Pre: else no terms, and one of PassShape::loss_pieces.
  double preference_beta = 0.0;
  /// Whether MicrobatchLoss has samples.
  bool per_sample = false;

  [[nodiscard]] bool compares_documents() const { return preference_beta > 0.0; }
};

/// What a microbatch's loss is; of pairs of documents also what is known of each.
struct MicrobatchLoss : ops::LossSums {
  struct Pair {
    double difference = 0.0;
    double margin = 0.0;
  };
  /// Of the samples, in order, padding too; with LossOptions::preference_beta.
  std::vector<Pair> pairs;
  struct Sample {
    double loss = 0.0;     ///< the sum over its targets
    double counted = 0.0;  ///< how many targets count
  };
  /// Likewise, with LossOptions::per_sample.
  std::vector<Sample> samples;

  /// The sum of the margins of pairs that count.
  [[nodiscard]] double margins() const {
    double sum = 0.0;
    for (std::size_t i = 0; i < pairs.size() && static_cast<std::int64_t>(i) < counted; ++i) {
      sum += pairs[i].margin;
    }
    return sum;
  }
};

/// The loss of a model's output, a layer behind the last one that reads the targets. With several
/// PassShape::loss_pieces it is part of the head's passes, which compute it for one piece of the
/// logits after the other.
class Loss {
 public:
  /// What one microbatch is compared with.
  struct Targets {
    ConstTensorView values;
    /// Samples that count: the first ones.
    std::int64_t valid = 0;
    double gradient_scale = 0.0;
    /// Of ops::preference_loss().
    ConstTensorView document_starts = {};
    ConstTensorView references = {};
  };

  /// What a pass computes in, as Layer::workspace().
  [[nodiscard]] static std::vector<TensorSpec> workspace(const Port& output, const PassShape& pass,
                                                         const LossOptions& options);
  /// What lasts until the end of a step of so many microbatches.
  [[nodiscard]] static std::vector<TensorSpec> kept(const LossOptions& options, const Port& output,
                                                    const PassShape& pass,
                                                    std::int64_t microbatches);

  /// `output`: of the model. Tensors as listed by workspace() and kept().
  Loss(ops::Context& context, comm::ShardGroup& shards, const LossOptions& options,
       const Port& output, const PassShape& pass, std::vector<TensorView> workspace,
       const std::vector<TensorView>& kept);

  /// Sets the units of the outputs in the loss of values, 1 each until then. Pre: one of each
  /// output. Does nothing for other losses.
  void set_units(std::span<const double> units);

  /// Of the next passes of a microbatch, by its number. Pre: the step has memory for a microbatch.
  void set_targets(std::int64_t number, const Targets& targets);
  /// Records the loss of a piece of the output's rows, and unless `gradient` is empty computes the
  /// output's gradient there, which may be in place. Communication: where the logits are split, one
  /// all-gather over the tensor group.
  void compute(std::int64_t number, std::int64_t piece, const ConstTensorView& output,
               const TensorView& gradient);
  /// The loss of each microbatch of the step, in order of numbers. Synchronises with the context's
  /// stream. Pre: each was computed. Throws: Error(kData) that names the first target without an
  /// output of the model.
  [[nodiscard]] std::vector<MicrobatchLoss> sums();

 private:
  /// The index of the first piece of a microbatch.
  [[nodiscard]] std::int64_t first_piece(std::int64_t number) const;
  /// By the parts of each shard; logits that are not split are one. `number`: of the microbatch.
  void cross_entropy_by_parts(const ConstTensorView& logits, const ConstTensorView& targets,
                              std::int64_t valid_rows, std::int64_t number,
                              const TensorView& gradient, const TensorView& sums,
                              const TensorView& samples, const ops::LossTerms& terms);

  ops::Context& context_;
  comm::ShardGroup& shards_;
  LossOptions options_;
  Port output_;
  PassShape pass_;
  std::vector<TensorView> workspace_;
  /// Of each piece of each microbatch.
  TensorView sums_;
  TensorView units_;
  /// Whether samples are kept that are no pairs.
  [[nodiscard]] bool keeps_samples() const {
    return !samples_.empty() && !options_.compares_documents();
  }
  /// The parts of samples in a piece of a microbatch.
  [[nodiscard]] TensorView samples_of(std::int64_t number, std::int64_t piece) const {
    const std::int64_t elements = samples_.count() / std::ssize(targets_);
    return samples_.flat_slice((first_piece(number) + piece) * elements, elements);
  }

  /// Of each part of each sample of each microbatch, two numbers, as ops::preference_loss() or
  /// ops::cross_entropy() gives them; empty without. Where a microbatch is one piece, a sample is
  /// one part.
  TensorView samples_;
  /// By piece, those of a first one.
  std::vector<Targets> targets_;
  device::HostCopy on_host_;
  device::HostCopy samples_on_host_;
};

}  // namespace strata::nn
