#include <fmt/format.h>

#include "strata/core/random.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/channel_blocks.hpp"
#include "layers/layer_kinds.hpp"
#include "layers/row_pieces.hpp"

namespace strata::nn {
namespace {

/// In training zeroes elements with a probability and scales the others by 1 / (1 - probability).
/// y has the placement of x. Source: Srivastava et al., "Dropout", JMLR 2014.
class Dropout final : public Layer {
 public:
  Dropout(const LayerSite& site, double probability)
      : Layer(site.name, site.input, site.input, {.backward_reads_output = false}),
        probability_(probability),
        stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {}

  std::string text() const override { return fmt::format("dropout {}", probability_); }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    return slot_list<Saved, SavedSpec>(
        {{Saved::kMask, {{local_shape(input(), pass), DType::kUint8}}}});
  }

  void forward(const LayerPass& pass) const override {
    if (pass.mode == Mode::kEvaluation) {
      ops::copy(pass.context, pass.input, pass.output);
      return;
    }
    const std::int64_t width = input_shape().back();
    ops::SampleRow first_row{pass.first_sample, input_shape().count() / width};
    if (input().placement == Placement::kFeatures) {
      for (const ChannelBlock& block : channel_blocks(pass, input())) {
        const std::int64_t shard = pass.shards.own().begin + block.local;
        const std::int64_t first =
            shard_part(width, input().unit, pass.shards.shards(), shard).begin;
        ops::dropout_forward(pass.context, block.of(pass.input), probability_, stream_, first_row,
                             block.of(pass.output), block.of(pass.saved.at(Saved::kMask)),
                             {.first = first, .of = width});
      }
      return;
    }
    const Shape shape{pass.input.count() / width, width};
    const bool is_split = input().placement == Placement::kTokens;
    const std::int64_t rows = is_split ? shape[0] * pass.shards.ranks() : shape[0];
    for (const RowPiece& piece :
         is_split ? row_pieces(pass, input().placement, rows) : one_piece(rows)) {
      first_row.offset = piece.own.begin;
      ops::dropout_forward(pass.context, row_range(pass.input.reshaped(shape), piece.local),
                           probability_, stream_, first_row,
                           row_range(pass.output.reshaped(shape), piece.local),
                           row_range(pass.saved.at(Saved::kMask).reshaped(shape), piece.local));
    }
  }

  void backward(const LayerPass& pass, Wants /*wants*/) const override {
    if (!pass.input_gradient.empty()) {
      const Shape shape{1, pass.output_gradient.count()};
      ops::dropout_backward(pass.context, pass.output_gradient.reshaped(shape),
                            pass.saved.at(Saved::kMask).reshaped(shape), probability_,
                            pass.input_gradient.reshaped(shape));
    }
  }

 private:
  enum class Saved { kMask };

  double probability_;
  RandomStream stream_;
};

}  // namespace

std::unique_ptr<Layer> make_dropout(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  return std::make_unique<Dropout>(site, line.take_probability("the probability"));
}

}  // namespace strata::nn
