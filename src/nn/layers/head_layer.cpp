#include <optional>

#include <fmt/format.h>

#include "strata/core/switch.hpp"
#include "strata/nn/loss.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/layer_kinds.hpp"
#include "layers/projection.hpp"
#include "layers/shard_sum.hpp"

namespace strata::nn {
namespace {

/// logits = x W^T, one for each token id, split by vocabulary and never gathered; with a soft cap c
/// logits = c tanh(x W^T / c). W may be the embedding's table. Shapes: x rows x width, W vocabulary
/// x width. Source of the tie: Press, Wolf, "Using the output embedding to improve language
/// models", arXiv 1608.05859; of the cap: Gemma team, "Gemma 2", arXiv 2408.00118, section 2.
class Head final : public Layer {
 public:
  Head(const LayerSite& site, ParameterSpec table, double softcap)
      : Layer(site.name, site.input,
              {.shape = {site.input.shape[0], table.shape[0]},
               .placement = Placement::kFeatures,
               .is_logits = true},
              {.backward_reads_output = softcap > 0.0}),
        table_(std::move(table)),
        projection_({.inputs = table_.shape[1],
                     .outputs = table_.shape[0],
                     .bias = Switch::kOff,
                     .padded_rows = true},
                    0),
        softcap_(softcap) {}

  std::string text() const override {
    return fmt::format("head {}{}{}", vocabulary(),
                       table_.ownership == Ownership::kBorrowed ? " tied" : "",
                       caps() ? fmt::format(" softcap={}", softcap_) : "");
  }

  std::vector<ParameterSpec> parameters() const override { return {table_}; }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    const std::int64_t rows = is_split() ? rows_at(input(), pass.microbatch) : 0;
    const bool kept = pass.recompute == Recompute::kNone && pass.loss_pieces == 1;
    const Keep keep = kept ? Keep::kKept : Keep::kRecomputed;
    return slot_list<Saved, SavedSpec>({{Saved::kGathered, {{{rows, width()}, pass.dtype}, keep}}});
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    const std::int64_t rows = pass.shards.count > 1 ? rows_at(input(), pass.microbatch) : 0;
    const std::int64_t logits =
        pass.loss_pieces > 1 ? local_shape(output(), pass).count() / pass.loss_pieces : 0;
    std::vector<TensorSpec> specs = slot_list<Workspace, TensorSpec>(
        {{Workspace::kLogits, {{logits}, pass.dtype}},
         {Workspace::kGradient, {{caps() ? logits : 0}, pass.dtype}}});
    const std::vector<TensorSpec> sum = ShardSum::workspace(pass, rows, width());
    specs.insert(specs.end(), sum.begin(), sum.end());
    return specs;
  }

  void forward(const LayerPass& pass) const override {
    RowGather gather = begin_gather(pass);
    if (pass.shape.loss_pieces == 1) {
      for (const RowPiece& piece : pieces(pass)) {
        gather.wait();
        for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
          projection_.forward(pass, s, row_range(whole_input(pass), piece.all), {},
                              row_range(block(pass, pass.output, s), piece.all), {});
        }
      }
      cap(pass, pass.output);
      return;
    }
    gather.wait_for_all();
    for (std::int64_t p = 0; p < pass.shape.loss_pieces; ++p) {
      static_cast<void>(loss_piece(pass, p));
    }
  }

  void recompute(const LayerPass& pass) const override { begin_gather(pass).wait_for_all(); }

  void backward(const LayerPass& pass, Wants wants) const override {
    if (pass.shape.loss_pieces > 1) {
      backward_in_pieces(pass);
      return;
    }
    if (wants_input(wants)) {
      cap_backward(pass, pass.output, pass.output_gradient);
    }
    std::optional<ShardSum> sum = wants_input(wants) ? begin_input_gradient(pass) : std::nullopt;
    if (wants_weights(wants)) {
      weight_products(pass, pass.output_gradient, whole_input(pass), pass.accumulate);
    }
    end_input_gradient(pass, sum);
  }

 private:
  /// The input's rows of all ranks, where they are split.
  enum class Saved { kGathered };
  /// The logits of one of several pieces, later their gradient; with a soft cap that is apart.
  enum class Workspace { kLogits, kGradient, kSum };

  bool caps() const { return softcap_ > 0.0; }
  void cap(const LayerPass& pass, const TensorView& logits) const {
    if (caps()) {
      ops::scaled(pass.context, 1.0 / softcap_, logits, logits, ops::Accumulate::kOverwrite);
      ops::activation_forward(pass.context, ops::Activation::kTanh, logits, logits);
      ops::scaled(pass.context, softcap_, logits, logits, ops::Accumulate::kOverwrite);
    }
  }
  /// The gradient of the product, in place; changes the logits.
  void cap_backward(const LayerPass& pass, const TensorView& logits,
                    const TensorView& gradient) const {
    if (caps()) {
      ops::scaled(pass.context, 1.0 / softcap_, logits, logits, ops::Accumulate::kOverwrite);
      ops::activation_backward(pass.context, ops::Activation::kTanh, {}, logits, gradient,
                               gradient);
    }
  }

  std::int64_t width() const { return projection_.inputs(); }
  std::int64_t vocabulary() const { return projection_.outputs(); }
  bool is_split() const { return input().placement == Placement::kTokens; }

  std::int64_t whole_rows(const LayerPass& pass) const {
    return is_split() ? pass.saved.at(Saved::kGathered).count() / width()
                      : pass.input.count() / width();
  }

  std::vector<RowPiece> pieces(const LayerPass& pass) const {
    return row_pieces(pass, input().placement, whole_rows(pass));
  }

  RowGather begin_gather(const LayerPass& pass) const {
    const TensorView& gathered = pass.saved.at(Saved::kGathered);
    RowGather gather(pass, input().placement, gathered);
    for (const RowPiece& piece : is_split() ? pieces(pass) : std::vector<RowPiece>()) {
      ops::convert(pass.context, row_range(pass.input, piece.local),
                   row_range(gathered, piece.own));
      gather.begin(piece);
    }
    return gather;
  }

  /// A shard's contribution to the input's gradient, from rows [rows) of the logits' gradient.
  void input_product(const LayerPass& pass, const TensorView& gradient, const grid::Range& rows,
                     std::int64_t shard, const TensorView& into) const {
    projection_.input_gradient(pass, shard, row_range(block(pass, gradient, shard), rows), {}, into,
                               {});
  }

  /// Starts the sum of the input's gradient over shards; empty where it is made or not wanted.
  std::optional<ShardSum> begin_input_gradient(const LayerPass& pass) const {
    if (pass.input_gradient.empty()) {
      return std::nullopt;
    }
    const auto make = [&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
      input_product(pass, pass.output_gradient, piece.all, s, into);
    };
    if (pass.shards.shards() == 1) {
      make(pieces(pass).front(), 0, matrix(pass.input_gradient));
      return std::nullopt;
    }
    ShardSum sum = input_sum(pass);
    sum.begin(make);
    return sum;
  }

  void end_input_gradient(const LayerPass& pass, std::optional<ShardSum>& sum) const {
    if (sum) {
      sum->end(input().placement, [&](const RowPiece& piece, const TensorView& rows) {
        ops::convert(pass.context, rows, row_range(matrix(pass.input_gradient), piece.local));
      });
    }
  }

  /// Both gradients, of one piece of rows after the other; sums over shards once all are added.
  void backward_in_pieces(const LayerPass& pass) const {
    const bool sums = pass.shards.shards() > 1 && !pass.input_gradient.empty();
    std::optional<ShardSum> sum = sums ? std::optional(input_sum(pass)) : std::nullopt;
    for (std::int64_t p = 0; p < pass.shape.loss_pieces; ++p) {
      const grid::Range rows = piece_rows(pass, p);
      const TensorView gradient = loss_piece(pass, p);
      const auto make = [&](std::int64_t s, const TensorView& into) {
        input_product(pass, gradient, {0, rows.count()}, s, into);
      };
      if (sum) {
        sum->add_shards(rows, make);
        if (p + 1 == pass.shape.loss_pieces) {
          sum->start();
        }
      } else if (!pass.input_gradient.empty()) {
        make(0, row_range(matrix(pass.input_gradient), rows));
      }
      weight_products(pass, gradient, row_range(whole_input(pass), rows),
                      p == 0 ? pass.accumulate : ops::Accumulate::kAdd);
      pass.engine.progress();
    }
    end_input_gradient(pass, sum);
  }

  grid::Range piece_rows(const LayerPass& pass, std::int64_t piece) const {
    return grid::even_part(whole_rows(pass), pass.shape.loss_pieces, piece);
  }

  /// Computes the logits of a piece of rows and their loss. Returns: in training, their gradient.
  TensorView loss_piece(const LayerPass& pass, std::int64_t piece) const {
    const TensorView& logits = pass.workspace.at(Workspace::kLogits);
    const ConstTensorView x = row_range(whole_input(pass), piece_rows(pass, piece));
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      projection_.forward(pass, s, x, {}, block(pass, logits, s), {});
    }
    cap(pass, logits);
    const TensorView& gradient = caps() ? pass.workspace.at(Workspace::kGradient) : logits;
    pass.loss->compute(pass.number, piece, logits,
                       pass.mode == Mode::kTraining ? gradient : TensorView());
    if (pass.mode == Mode::kTraining) {
      cap_backward(pass, logits, gradient);
    }
    return gradient;
  }

  /// The weight gradients of the own shards. Shapes: x rows x width.
  void weight_products(const LayerPass& pass, const TensorView& gradient, const ConstTensorView& x,
                       ops::Accumulate accumulate) const {
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      projection_.weight_gradient(pass, s, x, block(pass, gradient, s), accumulate);
    }
  }

  ShardSum input_sum(const LayerPass& pass) const {
    return {pass, TensorSlots(pass.workspace.from(Workspace::kSum)), pieces(pass), width()};
  }

  TensorView matrix(const TensorView& rows) const {
    return rows.reshaped(Shape{rows.count() / width(), width()});
  }

  ConstTensorView whole_input(const LayerPass& pass) const {
    return is_split() ? ConstTensorView(pass.saved.at(Saved::kGathered))
                      : pass.input.reshaped(Shape{whole_rows(pass), width()});
  }

  /// Of the logits of all rows or of one piece.
  TensorView block(const LayerPass& pass, const TensorView& logits, std::int64_t shard) const {
    return LogitBlocks{.rows = whole_rows(pass) / pass.shape.loss_pieces,
                       .vocabulary = vocabulary(),
                       .shards = pass.shards.shards(),
                       .own = pass.shards.own(),
                       .multiple = pass.shape.logit_multiple}
        .block(logits, shard);
  }

  ParameterSpec table_;
  Projection projection_;
  double softcap_;  ///< 0: none
};

}  // namespace

std::unique_ptr<Layer> make_head(LayerLine& line, const LayerSite& site) {
  site.require_token_rows(line);
  const std::int64_t width = site.input.shape.back();
  const double softcap = line.take_option_number("softcap", 0.0);
  if (softcap < 0.0) {
    line.refuse(fmt::format("softcap is {}, it must be above 0, or left out", softcap));
  }
  if (line.take_enum("tied", Switch::kOn) == Switch::kOn) {
    if (site.table == nullptr) {
      line.refuse(
          "there is no embedding before it to be tied to, or another head is tied to it already; "
          "give tied=off");
    }
    if (site.table->shape[1] != width) {
      line.refuse(
          fmt::format("it is tied to a table of {}, but its input has the width {}; make the "
                      "widths equal, or give tied=off",
                      site.table->shape.text(), width));
    }
    ParameterSpec borrowed = *site.table;
    borrowed.ownership = Ownership::kBorrowed;
    return std::make_unique<Head>(site, borrowed, softcap);
  }
  const std::int64_t vocabulary = line.take_option_count(
      "vocabulary", site.table != nullptr ? site.table->shape[0] : site.vocabulary);
  site.check_vocabulary(line, vocabulary);
  return std::make_unique<Head>(
      site,
      ParameterSpec{.name = parameter_name(site.name, "weight"),
                    .shape = {vocabulary, width},
                    .initializer = Initializer::kNormal,
                    .deviation = line.take_option_number("deviation", 0.02),
                    .fan_in = width,
                    .fan_out = vocabulary,
                    .split = 0},
      softcap);
}

}  // namespace strata::nn
