#include "layers/layer_kinds.hpp"
#include "layers/norm_part.hpp"

namespace strata::nn {
namespace {

/// Normalises the last dimension, then scales (and for layer norm shifts) it.
/// Source: Ba, Kiros, Hinton, "Layer normalization", arXiv 1607.06450; Zhang, Sennrich, "Root mean
/// square layer normalization", arXiv 1910.07467.
class NormLayer final : public Layer {
 public:
  NormLayer(const LayerSite& site, const NormPart& norm)
      : Layer(site.name, site.input, site.input), norm_(norm) {}

  std::string text() const override { return std::string(name_of(norm_.kind())); }

  std::vector<ParameterSpec> parameters() const override { return norm_.parameters(name()); }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    std::vector<SavedSpec> specs;
    for (const TensorSpec& spec : norm_.statistics(local_rows(input(), pass), pass.dtype)) {
      specs.push_back({spec});
    }
    return specs;
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    return norm_.workspace(pass);
  }

  bool backward_reads_output() const override { return false; }

  LayerTraffic traffic(const PassShape& pass) const override {
    return norm_.traffic(pass, input().placement);
  }

  void forward(const LayerPass& pass) const override {
    norm_.forward(pass.context, pass.weights, pass.input, pass.output, statistics(pass));
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (!input_gradient.empty()) {
      norm_.backward_input(pass.context, pass.weights, pass.input, pass.saved, output_gradient, {},
                           input_gradient);
    }
  }

  void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                       std::span<const ParameterViews> weight_gradients,
                       ops::Accumulate accumulate) const override {
    norm_.backward_weight(pass, input().placement, pass.input, pass.saved, output_gradient,
                          pass.workspace, weight_gradients, accumulate);
  }

 private:
  /// Of as many rows as the pass has.
  std::vector<TensorView> statistics(const LayerPass& pass) const {
    const std::int64_t rows = pass.input.count() / input_shape().back();
    std::vector<TensorView> views;
    for (const TensorView& statistic : pass.saved) {
      views.push_back(statistic.empty() ? statistic : statistic.flat_slice(0, rows));
    }
    return views;
  }

  NormPart norm_;
};

}  // namespace

std::unique_ptr<Layer> make_norm(LayerLine& line, const LayerSite& site) {
  if (site.input.shape.rank() == 0) {
    line.refuse("its input has no dimension to normalise");
  }
  site.require_numbers(line);
  if (site.input.placement == Placement::kFeatures) {
    line.refuse(
        "it normalises whole rows, but its input is split by feature; put it behind a dense layer "
        "with parallel=row");
  }
  const NormKind kind = *enum_from_name<NormKind>(line.kind());
  const double epsilon = take_epsilon(line);
  const Bias bias = kind == NormKind::kLayerNorm ? line.take_enum("bias", Bias::kYes) : Bias::kNo;
  return std::make_unique<NormLayer>(site, NormPart(kind, site.input.shape.back(), epsilon, bias));
}

}  // namespace strata::nn
