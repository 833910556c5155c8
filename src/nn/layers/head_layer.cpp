#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "strata/ops/convert.hpp"

#include "layers/layer_kinds.hpp"
#include "layers/shard_sum.hpp"

namespace strata::nn {
namespace {

/// logits = x W^T, one for each token id, split by vocabulary and never gathered. W may be the
/// embedding's table. Shapes: x rows x width, W vocabulary x width. Source of the tie:
/// Press, Wolf, "Using the output embedding to improve language models", arXiv 1608.05859.
class Head final : public Layer {
 public:
  Head(const LayerSite& site, ParameterSpec table)
      : Layer(site.name, site.input,
              {.shape = {site.input.shape[0], table.shape[0]},
               .placement = Placement::kFeatures,
               .is_logits = true}),
        table_(std::move(table)) {}

  std::string text() const override {
    return fmt::format("head {}{}", vocabulary(),
                       table_.ownership == Ownership::kBorrowed ? " tied" : "");
  }

  std::vector<ParameterSpec> parameters() const override { return {table_}; }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    const std::int64_t rows = is_split() ? rows_at(input(), pass.microbatch) : 0;
    const Keep keep = pass.recompute == Recompute::kNone ? Keep::kKept : Keep::kRecomputed;
    return slot_list<Saved, SavedSpec>({{Saved::kGathered, {{{rows, width()}, pass.dtype}, keep}}});
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    const std::int64_t rows = pass.shards.count > 1 ? rows_at(input(), pass.microbatch) : 0;
    return ShardSum::workspace(pass, rows, width());
  }

  bool backward_reads_output() const override { return false; }

  LayerCost cost() const override {
    const double flops =
        2.0 * static_cast<double>(output_shape().count()) * static_cast<double>(width());
    return {.forward_flops = flops,
            .backward_flops = 2.0 * flops,
            .elements_moved = 3.0 * static_cast<double>(output_shape().count())};
  }

  /// Products copy a shard's weights where its logits are padded.
  std::int64_t gpu_scratch_bytes(const PassShape& pass) const override {
    const LogitBlocks blocks = logit_blocks(output(), pass);
    std::int64_t most = 0;
    for (std::int64_t s = blocks.own.begin; s < blocks.own.end; ++s) {
      if (blocks.columns(s) != blocks.ids(s).count()) {
        most = std::max(most, blocks.columns(s) * width() * size_bytes(pass.dtype));
      }
    }
    return most;
  }

  LayerTraffic traffic(const PassShape& pass) const override {
    const double elements =
        static_cast<double>(rows_at(input(), pass.microbatch)) * static_cast<double>(width());
    const double sum_bytes = elements * static_cast<double>(size_bytes(compute_dtype(pass.dtype)));
    LayerTraffic traffic = exchange_of(pass, ShardSum::bytes(pass, elements), pass.row_pieces);
    traffic += exchange_of(
        pass, is_split() ? elements * static_cast<double>(size_bytes(pass.dtype)) : sum_bytes,
        pass.row_pieces);
    if (is_split() && pass.recompute != Recompute::kNone) {
      traffic += exchange_of(pass, elements * static_cast<double>(size_bytes(pass.dtype)),
                             pass.row_pieces);
    }
    return traffic;
  }

  void forward(const LayerPass& pass) const override {
    RowGather gather = begin_gather(pass);
    for (const RowPiece& piece : pieces(pass)) {
      gather.wait();
      for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
        ops::matmul(pass.context, row_range(whole_input(pass), piece.all), weight(pass, s),
                    row_range(block(pass, pass.output, s), piece.all),
                    {.transpose_b = ops::Transpose::kYes, .padded_rows = true});
      }
    }
  }

  void recompute(const LayerPass& pass) const override { begin_gather(pass).wait_for_all(); }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    std::optional<ShardSum> sum = begin_input_gradient(pass, output_gradient, input_gradient);
    end_input_gradient(pass, sum, input_gradient);
  }

  void backward(const LayerPass& pass, const TensorView& output_gradient,
                const TensorView& input_gradient, std::span<const ParameterViews> weight_gradients,
                ops::Accumulate accumulate) const override {
    std::optional<ShardSum> sum = begin_input_gradient(pass, output_gradient, input_gradient);
    backward_weight(pass, output_gradient, weight_gradients, accumulate);
    end_input_gradient(pass, sum, input_gradient);
  }

  void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                       std::span<const ParameterViews> weight_gradients,
                       ops::Accumulate accumulate) const override {
    const ConstTensorView x = whole_input(pass);
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
      ops::matmul(
          pass.context, block(pass, output_gradient, s), x, weight_gradients[0][local],
          {.transpose_a = ops::Transpose::kYes, .accumulate = accumulate, .padded_rows = true});
    }
  }

 private:
  /// The input's rows of all ranks, where they are split.
  enum class Saved { kGathered };

  std::int64_t width() const { return input_shape().back(); }
  std::int64_t vocabulary() const { return table_.shape[0]; }
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

  /// Starts the sum of the input's gradient over shards; empty where it is made or not wanted.
  std::optional<ShardSum> begin_input_gradient(const LayerPass& pass,
                                               const TensorView& output_gradient,
                                               const TensorView& input_gradient) const {
    if (input_gradient.empty()) {
      return std::nullopt;
    }
    const auto product = [&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
      ops::matmul(pass.context, row_range(block(pass, output_gradient, s), piece.all),
                  weight(pass, s), into, {.padded_rows = true});
    };
    if (pass.shards.shards() == 1) {
      product(pieces(pass).front(), 0, matrix(input_gradient));
      return std::nullopt;
    }
    ShardSum sum(pass, pass.workspace, pieces(pass), width());
    sum.begin(product);
    return sum;
  }

  void end_input_gradient(const LayerPass& pass, std::optional<ShardSum>& sum,
                          const TensorView& input_gradient) const {
    if (sum) {
      sum->end(input().placement, [&](const RowPiece& piece, const TensorView& rows) {
        ops::convert(pass.context, rows, row_range(matrix(input_gradient), piece.local));
      });
    }
  }

  TensorView matrix(const TensorView& rows) const {
    return rows.reshaped(Shape{rows.count() / width(), width()});
  }

  ConstTensorView whole_input(const LayerPass& pass) const {
    return is_split() ? ConstTensorView(pass.saved.at(Saved::kGathered))
                      : pass.input.reshaped(Shape{whole_rows(pass), width()});
  }

  static const TensorView& weight(const LayerPass& pass, std::int64_t shard) {
    return pass.weights[0][static_cast<std::size_t>(shard - pass.shards.own().begin)];
  }

  TensorView block(const LayerPass& pass, const TensorView& logits, std::int64_t shard) const {
    return LogitBlocks{.rows = whole_rows(pass),
                       .vocabulary = vocabulary(),
                       .shards = pass.shards.shards(),
                       .own = pass.shards.own(),
                       .multiple = pass.logit_multiple}
        .block(logits, shard);
  }

  ParameterSpec table_;
};

enum class Tied { kNo, kYes };

constexpr auto enum_names(Tied) {
  return names_in_order("off", "on");
}

}  // namespace

std::unique_ptr<Layer> make_head(LayerLine& line, const LayerSite& site) {
  site.require_token_rows(line);
  const std::int64_t width = site.input.shape.back();
  if (line.take_enum("tied", Tied::kYes) == Tied::kYes) {
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
    return std::make_unique<Head>(site, borrowed);
  }
  const std::int64_t vocabulary = line.take_option_count(
      "vocabulary", site.table != nullptr ? site.table->shape[0] : site.vocabulary);
  site.check_vocabulary(line, vocabulary);
  return std::make_unique<Head>(
      site, ParameterSpec{.name = parameter_name(site.name, "weight"),
                          .shape = {vocabulary, width},
                          .initializer = Initializer::kNormal,
                          .deviation = line.take_option_number("deviation", 0.02),
                          .fan_in = width,
                          .fan_out = vocabulary,
                          .split = 0});
}

}  // namespace strata::nn
