#include <fmt/format.h>

#include "strata/core/random.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/embedding.hpp"

#include "layers/layer_kinds.hpp"
#include "layers/shard_sum.hpp"
#include "layers/whole_gradient.hpp"

namespace strata::nn {
namespace {

struct EmbeddingOptions {
  std::int64_t width = 1;
  std::int64_t vocabulary = 1;
  /// Rows of the table of learned positions; 0: none.
  std::int64_t positions = 0;
  /// Whether they count from the begin of a document, not of the sample.
  Switch reset_positions = Switch::kOff;
  double dropout = 0.0;
  double deviation = 0.02;
  double scale = 1.0;  ///< of the tokens' vectors
};

/// y = dropout(scale tokens[id] + positions[t]); the token table is split by vocabulary.
/// Shapes: ids microbatch x tokens, y microbatch x tokens x width. Communication: one all-reduce of
/// y over the tensor group, or with sequence parallelism a reduce-scatter, and backward a gather.
class Embedding final : public Layer {
 public:
  Embedding(const LayerSite& site, const EmbeddingOptions& options)
      : Layer(site.name, site.input, {{site.input.shape[0], options.width}, site.token_rows},
              {.backward_reads_output = false,
               .reads_positions = options.reset_positions == Switch::kOn}),
        options_(options),
        dropout_stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {}

  std::string text() const override { return fmt::format("embedding {}", options_.width); }

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs{{.name = parameter_name(name(), "tokens.weight"),
                                      .shape = {options_.vocabulary, options_.width},
                                      .initializer = Initializer::kNormal,
                                      .deviation = options_.deviation,
                                      .split = 0}};
    if (options_.positions > 0) {
      specs.push_back({.name = parameter_name(name(), "positions.weight"),
                       .shape = {options_.positions, options_.width},
                       .initializer = Initializer::kNormal,
                       .deviation = options_.deviation});
    }
    return specs;
  }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    const std::int64_t rows = drops() ? local_rows(output(), pass) : 0;
    return slot_list<Saved, SavedSpec>({{Saved::kMask, {{{rows, options_.width}, DType::kUint8}}}});
  }

  std::vector<TensorSpec> gradients(const PassShape& pass) const override {
    const bool copies = drops() || is_split() || scales();
    const std::int64_t rows = copies ? rows_at(output(), pass.microbatch) : 0;
    return slot_list<Gradient, TensorSpec>(
        {{Gradient::kWhole, {{rows, options_.width}, pass.dtype}}});
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    const bool sums = pass.shards.own.count() < pass.shards.count;
    const std::int64_t rows = sums ? rows_at(output(), pass.microbatch) : 0;
    return ShardSum::workspace(pass, rows, options_.width);
  }

  void forward(const LayerPass& pass) const override {
    const TensorView rows =
        pass.output.reshaped(Shape{pass.output.count() / options_.width, options_.width});
    look_up(pass, rows);
    if (scales()) {
      ops::scaled(pass.context, options_.scale, rows, rows, ops::Accumulate::kOverwrite);
    }
    if (pass.decoding != nullptr) {
      add_positions_behind_past(pass, *pass.decoding, rows);
      return;
    }
    for (const RowPiece& piece : pieces(pass)) {
      const TensorView y = row_range(rows, piece.local);
      const std::int64_t first = piece.own.begin;
      if (const ConstTensorView& positions = pass.places.positions; !positions.empty()) {
        ops::embedding_forward(pass.context, positions.flat_slice(first, piece.own.count()),
                               pass.weights[1][0], 0, y, ops::Accumulate::kAdd);
      } else if (options_.positions > 0) {
        ops::add_positions(pass.context, y, pass.weights[1][0],
                           {.tokens = input_shape()[0], .first_row = first}, y);
      }
      if (drops() && pass.mode == Mode::kTraining) {
        ops::dropout_forward(pass.context, y, options_.dropout, dropout_stream_,
                             {pass.first_sample, input_shape()[0], first}, y,
                             row_range(pass.saved.at(Saved::kMask), piece.local));
      }
    }
  }

  void backward(const LayerPass& pass, Wants wants) const override {
    const TensorView& whole = pass.gradients.at(Gradient::kWhole);
    if (wants_input(wants) && !whole.empty()) {
      const Shape shape{pass.output_gradient.count() / options_.width, options_.width};
      begin_whole_gradient(pass, output().placement, pass.output_gradient.reshaped(shape),
                           options_.dropout, pass.saved.at(Saved::kMask), whole)
          .wait_for_all();
      if (scales()) {
        ops::scaled(pass.context, options_.scale, whole, whole, ops::Accumulate::kOverwrite);
      }
      pass.engine.progress();
    }
    if (wants_weights(wants)) {
      weight_gradients(pass, (whole.empty() ? pass.output_gradient : whole)
                                 .reshaped(Shape{pass.input.count(), options_.width}));
    }
  }

 private:
  enum class Saved { kMask };
  /// The gradient of all rows, where it is not the output's.
  enum class Gradient { kWhole };

  bool scales() const { return options_.scale != 1.0; }
  bool drops() const { return options_.dropout > 0.0; }
  bool is_split() const { return output().placement == Placement::kTokens; }

  std::vector<RowPiece> pieces(const LayerPass& pass) const {
    return row_pieces(pass, output().placement, pass.input.count());
  }

  /// Shapes: dy rows x width.
  void weight_gradients(const LayerPass& pass, const TensorView& dy) const {
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
      if (!pass.weight_gradients[0][local].empty()) {
        ops::embedding_backward(pass.context, pass.input, dy, first_id(pass, s),
                                pass.weight_gradients[0][local], pass.accumulate);
      }
    }
    if (options_.positions == 0 || pass.weight_gradients[1][0].empty()) {
      return;
    }
    if (const ConstTensorView& positions = pass.places.positions; !positions.empty()) {
      ops::embedding_backward(pass.context, positions.reshaped({dy.shape()[0]}), dy, 0,
                              pass.weight_gradients[1][0], pass.accumulate);
    } else {
      ops::positions_backward(pass.context, dy, input_shape()[0], pass.weight_gradients[1][0],
                              pass.accumulate);
    }
  }

  void add_positions_behind_past(const LayerPass& pass, const Decoding& decoding,
                                 const TensorView& rows) const {
    for (std::size_t i = 0; options_.positions > 0 && i < decoding.sequences.size(); ++i) {
      const TensorView y = row_range(rows, decoding.rows(i));
      ops::add_positions(pass.context, y, pass.weights[1][0],
                         {.tokens = decoding.tokens, .offset = decoding.sequences[i].past}, y);
    }
  }

  std::int64_t first_id(const LayerPass& pass, std::int64_t shard) const {
    return grid::even_part(options_.vocabulary, pass.shards.shards(), shard).begin;
  }

  /// Looks up the tokens' vectors. Each one is in one shard's table and 0 in the others', so that
  /// sums over shards are exact in any order and dtype.
  void look_up(const LayerPass& pass, const TensorView& y) const {
    const auto add_own = [&](const TensorView& into) {
      for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
        const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
        ops::embedding_forward(pass.context, pass.input, pass.weights[0][local], first_id(pass, s),
                               into,
                               local == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd);
      }
    };
    if (pass.shards.ranks() == 1) {
      add_own(y);
      return;
    }
    ShardSum sums(pass, pass.workspace, pieces(pass), options_.width);
    sums.begin([&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
      const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
      ops::embedding_forward(
          pass.context, pass.input.flat_slice(piece.all.begin, piece.all.count()),
          pass.weights[0][local], first_id(pass, s), into, ops::Accumulate::kOverwrite);
    });
    sums.end(output().placement, [&](const RowPiece& piece, const TensorView& sum) {
      ops::convert(pass.context, sum, row_range(y, piece.local));
    });
  }

  EmbeddingOptions options_;
  RandomStream dropout_stream_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(LayerLine& line, const LayerSite& site) {
  EmbeddingOptions options;
  options.width = line.take_count("the width of a token's vector");
  if (site.input_kind != InputKind::kTokenIds) {
    line.refuse(
        "its input is not token ids; it must be the first layer, and the data set must hold tokens "
        "(strata data import --format=text)");
  }
  options.vocabulary = line.take_option_count("vocabulary", site.vocabulary);
  site.check_vocabulary(line, options.vocabulary);
  options.positions = line.take_option_count_or_none("positions", 0);
  const std::int64_t context = site.input.shape[0];
  if (options.positions != 0 && options.positions < context) {
    line.refuse(
        fmt::format("it has {} learned positions, but model.context is {}; lower it, or "
                    "give more positions",
                    options.positions, context));
  }
  options.reset_positions = line.take_enum("reset_positions", Switch::kOff);
  if (options.reset_positions == Switch::kOn && options.positions == 0) {
    line.refuse("reset_positions counts learned positions anew in each document; give positions=");
  }
  options.dropout = line.take_option_probability("dropout", 0.0);
  options.deviation = line.take_option_number("deviation", options.deviation);
  options.scale = line.take_option_number("scale", options.scale);
  if (options.scale != 1.0 && options.positions > 0) {
    line.refuse(
        "scale= multiplies the vectors of tokens, but learned positions are added to them; "
        "leave one of the two out");
  }
  return std::make_unique<Embedding>(site, options);
}

}  // namespace strata::nn
