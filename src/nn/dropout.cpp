#include "strata/ops/dropout.hpp"

#include <fmt/format.h>

#include "strata/core/random.hpp"
#include "strata/ops/elementwise.hpp"

#include "layer_kinds.hpp"

namespace strata::nn {
namespace {

/// Zeroes elements with a probability while training and scales the others by 1 / (1 -
/// probability). However x is split, so is y. Source: Srivastava et al., "Dropout", JMLR 2014.
class Dropout final : public Layer {
 public:
  Dropout(const LayerSite& site, double probability)
      : Layer(site.name, site.input, site.input),
        probability_(probability),
        stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {}

  std::string text() const override { return fmt::format("dropout {}", probability_); }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    return {{{local_shape(input(), pass), DType::kUint8}}};
  }

  bool backward_reads_output() const override { return false; }

  void forward(const LayerPass& pass) const override {
    if (pass.mode == Mode::kEvaluation) {
      ops::copy(pass.context, pass.input, pass.output);
      return;
    }
    const std::int64_t width = input_shape().back();
    const std::int64_t rows_of_sample = input_shape().count() / width;
    std::int64_t first_row = pass.first_sample * rows_of_sample;
    if (input().placement == Placement::kFeatures) {
      for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
        const std::int64_t first = grid::even_part(width, pass.shards.shards(), s).begin;
        ops::dropout_forward(pass.context, block(pass, pass.input, s), probability_, stream_,
                             first_row, block(pass, pass.output, s), block(pass, pass.saved[0], s),
                             {.first = first, .of = width});
      }
      return;
    }
    const Shape shape{pass.input.count() / width, width};
    if (input().placement == Placement::kTokens) {
      first_row += pass.shards.own_rows(shape[0] * pass.shards.ranks()).begin;
    }
    ops::dropout_forward(pass.context, pass.input.reshaped(shape), probability_, stream_, first_row,
                         pass.output.reshaped(shape), pass.saved[0].reshaped(shape));
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (!input_gradient.empty()) {
      const Shape shape{1, output_gradient.count()};
      ops::dropout_backward(pass.context, output_gradient.reshaped(shape),
                            pass.saved[0].reshaped(shape), probability_,
                            input_gradient.reshaped(shape));
    }
  }

 private:
  template <typename View>
  View block(const LayerPass& pass, const View& tensor, std::int64_t shard) const {
    const std::int64_t width = input_shape().back();
    std::int64_t own_width = 0;
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      own_width += grid::even_part(width, pass.shards.shards(), s).count();
    }
    return shard_block(tensor, tensor.count() / own_width, width, pass.shards.shards(),
                       pass.shards.own(), shard);
  }

  double probability_;
  RandomStream stream_;
};

}  // namespace

std::unique_ptr<Layer> make_dropout(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  return std::make_unique<Dropout>(site, line.take_probability("the probability"));
}

}  // namespace strata::nn
