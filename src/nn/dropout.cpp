#include "strata/ops/dropout.hpp"

#include <fmt/format.h>

#include "strata/core/random.hpp"
#include "strata/ops/elementwise.hpp"

#include "layer_kinds.hpp"

namespace strata::nn {
namespace {

/// Zeroes elements with a probability while training and scales the others by 1 / (1 -
/// probability). Source: Srivastava et al., "Dropout", JMLR 2014.
class Dropout final : public Layer {
 public:
  Dropout(const LayerSite& site, double probability)
      : Layer(site.name, site.input_shape, site.input_shape),
        probability_(probability),
        stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {}

  std::string text() const override { return fmt::format("dropout {}", probability_); }

  std::vector<SavedSpec> saved(std::int64_t microbatch, DType /*dtype*/) const override {
    return {{.shape = {microbatch, input_shape().count()}, .dtype = DType::kUint8}};
  }

  void forward(const LayerPass& pass) const override {
    if (pass.mode == Mode::kEvaluation) {
      ops::copy(pass.context, pass.input, pass.output);
      return;
    }
    const Shape shape = pass.saved[0].shape();
    ops::dropout_forward(pass.context, pass.input.reshaped(shape), probability_, stream_,
                         pass.first_row, pass.output.reshaped(shape), pass.saved[0]);
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (!input_gradient.empty()) {
      const Shape shape = pass.saved[0].shape();
      ops::dropout_backward(pass.context, output_gradient.reshaped(shape), pass.saved[0],
                            probability_, input_gradient.reshaped(shape));
    }
  }

 private:
  double probability_;
  RandomStream stream_;
};

}  // namespace

std::unique_ptr<Layer> make_dropout(LayerLine& line, const LayerSite& site) {
  const double probability = line.take_number("the probability");
  if (!(probability >= 0.0 && probability < 1.0)) {
    line.refuse(
        fmt::format("the probability is {}, it must be at least 0 and below 1", probability));
  }
  return std::make_unique<Dropout>(site, probability);
}

}  // namespace strata::nn
