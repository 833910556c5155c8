#include "strata/nn/loss.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/device/profile_range.hpp"
#include "strata/nn/slots.hpp"
#include "strata/ops/split_cross_entropy.hpp"

namespace strata::nn {
namespace {

/// Of cross-entropy by parts.
enum class Workspace { kAllShards, kOwnShards, kLogSums, kRowScales };
enum class Kept { kSums, kUnits, kSamples };

/// Of one piece.
std::int64_t piece_rows(const Port& output, const PassShape& pass) {
  return rows_at(output, pass.microbatch) / pass.loss_pieces;
}

/// The rows of a part of a sample that lies in one piece; the same of all parts.
std::int64_t part_rows(const Port& output, const PassShape& pass) {
  return std::gcd(piece_rows(output, pass), rows_at(output, 1));
}

/// Of a piece.
LogitBlocks blocks_of(const Port& output, const PassShape& pass) {
  LogitBlocks blocks = logit_blocks(output, pass);
  blocks.rows = piece_rows(output, pass);
  return blocks;
}

bool by_parts(const Port& output, const LossOptions& options, const ops::LossTerms& terms) {
  return output.placement == Placement::kFeatures || terms.any() || options.compares_documents();
}

}  // namespace

std::vector<TensorSpec> Loss::workspace(const Port& output, const PassShape& pass,
                                        const LossOptions& options) {
  if (!by_parts(output, options, options.terms)) {
    return {};
  }
  const LogitBlocks blocks = blocks_of(output, pass);
  const bool split = output.placement == Placement::kFeatures;
  const std::int64_t width = ops::cross_entropy_width(options.terms);
  const DType dtype = compute_dtype(pass.dtype);
  return slot_list<Workspace, TensorSpec>(
      {{Workspace::kAllShards, {{blocks.shards, blocks.rows, width}, dtype}},
       {Workspace::kOwnShards, {{split ? blocks.own.count() : 0, blocks.rows, width}, dtype}},
       {Workspace::kLogSums, {{blocks.rows}, dtype}},
       {Workspace::kRowScales, {{options.compares_documents() ? blocks.rows : 0}, dtype}}});
}

std::vector<TensorSpec> Loss::kept(const LossOptions& options, const Port& output,
                                   const PassShape& pass, std::int64_t microbatches) {
  const bool values = options.kind == LossKind::kMeanSquaredError;
  static_assert(ops::kPairElements == ops::kSampleElements);
  const bool samples = options.compares_documents() || options.per_sample;
  const std::int64_t parts = rows_at(output, pass.microbatch) / part_rows(output, pass);
  return slot_list<Kept, TensorSpec>(
      {{Kept::kSums, {{microbatches * pass.loss_pieces, ops::kLossElements}, DType::kInt64}},
       {Kept::kUnits, {{values ? output.shape.count() : 0}, DType::kFloat64}},
       {Kept::kSamples,
        {{samples ? microbatches * parts : 0, ops::kSampleElements}, DType::kFloat64}}});
}

Loss::Loss(ops::Context& context, comm::ShardGroup& shards, const LossOptions& options,
           const Port& output, const PassShape& pass, std::vector<TensorView> workspace,
           const std::vector<TensorView>& kept)
    : context_(context),
      shards_(shards),
      options_(options),
      output_(output),
      pass_(pass),
      workspace_(std::move(workspace)),
      sums_(TensorSlots(kept).at(Kept::kSums)),
      units_(TensorSlots(kept).at(Kept::kUnits)),
      samples_(TensorSlots(kept).at(Kept::kSamples)),
      targets_(sums_.empty() ? 0 : static_cast<std::size_t>(sums_.shape()[0])),
      on_host_(sums_, context.device()),
      samples_on_host_(samples_, context.device()) {
  require(!options.compares_documents() || (!options.terms.any() && pass.loss_pieces == 1),
          "a preference loss in {} pieces or with terms of cross-entropy", pass.loss_pieces);
  set_units(std::vector<double>(static_cast<std::size_t>(units_.count()), 1.0));
}

void Loss::set_units(std::span<const double> units) {
  if (units_.empty() || context_.device().is_planned()) {
    return;
  }
  require(std::ssize(units) == units_.count(), "{} units of {} outputs", units.size(),
          units_.count());
  device::write_from_host(units_, [&](std::int64_t first, const TensorView& piece) {
    const std::span<double> into = piece.host<double>();
    std::ranges::copy(units.subspan(static_cast<std::size_t>(first), into.size()), into.begin());
  });
}

std::int64_t Loss::first_piece(std::int64_t number) const {
  require(!targets_.empty(), "the stage has no slots for losses");
  return number * pass_.loss_pieces % std::ssize(targets_);
}

void Loss::set_targets(std::int64_t number, const Targets& targets) {
  targets_[static_cast<std::size_t>(first_piece(number))] = targets;
}

void Loss::compute(std::int64_t number, std::int64_t piece, const ConstTensorView& output,
                   const TensorView& gradient) {
  const device::ProfileRange range("loss");
  const std::int64_t first = first_piece(number);
  const auto& [values, valid, scale, starts, references] =
      targets_[static_cast<std::size_t>(first)];
  const TensorView sums =
      sums_.flat_slice((first + piece) * ops::kLossElements, ops::kLossElements);
  if (options_.kind == LossKind::kMeanSquaredError) {
    ops::mean_squared_error(context_, output, values.reshaped(output.shape()), valid, scale,
                            gradient, sums, units_,
                            keeps_samples() ? samples_of(number, 0) : TensorView());
    return;
  }
  // A language model has a target for every token.
  const std::int64_t rows = piece_rows(output_, pass_);
  const std::int64_t valid_rows =
      std::clamp<std::int64_t>(valid * rows_at(output_, 1) - piece * rows, 0, rows);
  const ConstTensorView targets = values.flat_slice(piece * rows, rows);
  const ops::LossTerms terms = gradient.empty() ? ops::LossTerms() : options_.terms;
  const TensorView samples = keeps_samples() ? samples_of(number, piece) : TensorView();
  if (by_parts(output_, options_, terms)) {
    cross_entropy_by_parts(output, targets, valid_rows, number, gradient, sums, samples, terms);
  } else {
    ops::cross_entropy(context_, output, targets, valid_rows, scale, gradient, sums, samples);
  }
}

std::vector<MicrobatchLoss> Loss::sums() {
  on_host_.update(context_.stream());
  samples_on_host_.update(context_.stream());
  context_.synchronize();
  std::vector<MicrobatchLoss> losses;
  const std::int64_t pieces = pass_.loss_pieces;
  for (std::int64_t i = 0; i < std::ssize(targets_); ++i) {
    const ops::LossSums piece =
        ops::loss_sums_of(on_host_.view().flat_slice(i * ops::kLossElements, ops::kLossElements));
    MicrobatchLoss& sums = i % pieces == 0 ? losses.emplace_back() : losses.back();
    sums.loss += piece.loss;
    sums.correct += piece.correct;
    sums.counted += piece.counted;
    if (piece.bad_row >= 0 && sums.bad_row < 0) {
      sums.bad_row = i % pieces * piece_rows(output_, pass_) + piece.bad_row;
      sums.bad_label = piece.bad_label;
    }
    if ((i + 1) % pieces == 0) {
      ops::require_labels(sums, output_.shape.back());
    }
  }
  const std::span<const double> values =
      samples_.empty() ? std::span<const double>() : samples_on_host_.view().host<double>();
  const auto parts = static_cast<std::size_t>(rows_at(output_, 1) / part_rows(output_, pass_));
  for (std::size_t i = 0; i < values.size(); i += ops::kSampleElements) {
    const std::size_t part = i / ops::kSampleElements;
    MicrobatchLoss& of = losses[part / parts / static_cast<std::size_t>(pass_.microbatch)];
    if (options_.compares_documents()) {
      of.pairs.push_back({.difference = values[i], .margin = values[i + 1]});
      continue;
    }
    if (part % parts == 0) {
      of.samples.emplace_back();
    }
    of.samples.back().loss += values[i];
    of.samples.back().counted += values[i + 1];
  }
  return losses;
}

void Loss::cross_entropy_by_parts(const ConstTensorView& logits, const ConstTensorView& targets,
                                  std::int64_t valid_rows, std::int64_t number,
                                  const TensorView& gradient, const TensorView& sums,
                                  const TensorView& samples, const ops::LossTerms& terms) {
  const Targets& own = targets_[static_cast<std::size_t>(first_piece(number))];
  const LogitBlocks blocks = blocks_of(output_, pass_);
  const bool split = output_.placement == Placement::kFeatures;
  const TensorSlots workspace(workspace_);
  const TensorView& all_shards = workspace.at(Workspace::kAllShards);
  const TensorView& log_sums = workspace.at(Workspace::kLogSums);
  const TensorView& made =
      split && shards_.ranks() > 1 ? workspace.at(Workspace::kOwnShards) : all_shards;
  const std::int64_t width = made.shape().back();
  const std::int64_t part = blocks.rows * width;
  for (std::int64_t s = blocks.own.begin; s < blocks.own.end; ++s) {
    ops::cross_entropy_parts(
        context_, blocks.block(logits, s), targets, blocks.ids(s).begin, blocks.ids(s).count(),
        made.flat_slice((s - blocks.own.begin) * part, part).reshaped({blocks.rows, width}));
  }
  if (split) {
    shards_.all_gather_parts(made, all_shards);
  }
  const std::span<const ReductionStep> one;
  ops::combine_cross_entropy(context_, split ? shards_.steps() : one, all_shards, targets,
                             blocks.vocabulary, valid_rows, log_sums, sums, terms, samples);
  TensorView row_scales;
  if (options_.compares_documents()) {
    row_scales = workspace.at(Workspace::kRowScales);
    ops::preference_loss(context_, all_shards, log_sums,
                         targets.reshaped({pass_.microbatch, blocks.rows / pass_.microbatch}),
                         own.document_starts, own.references, options_.preference_beta,
                         blocks.vocabulary, own.valid, row_scales, samples_of(number, 0), sums);
  }
  for (std::int64_t s = blocks.own.begin; s < blocks.own.end && !gradient.empty(); ++s) {
    ops::cross_entropy_gradient(context_, blocks.block(logits, s), targets, blocks.ids(s).begin,
                                blocks.ids(s).count(), log_sums, valid_rows, own.gradient_scale,
                                blocks.block(gradient, s), terms, blocks.vocabulary, row_scales);
  }
}

}  // namespace strata::nn
