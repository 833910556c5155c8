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
      : Layer(site.name, site.input, site.input, {.backward_reads_output = false}), norm_(norm) {}

  std::string text() const override { return std::string(name_of(norm_.kind())); }

  std::vector<ParameterSpec> parameters() const override { return norm_.parameters(name()); }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    const auto [mean, rstd] = norm_.statistics(local_rows(input(), pass), pass.dtype);
    return slot_list<Saved, SavedSpec>({{Saved::kMean, {mean}}, {Saved::kRstd, {rstd}}});
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    const auto [all_shards, own_shards] = norm_.workspace(pass);
    return slot_list<Workspace, TensorSpec>(
        {{Workspace::kAllShards, all_shards}, {Workspace::kOwnShards, own_shards}});
  }

  void forward(const LayerPass& pass) const override {
    norm_.forward(pass.context, pass.weights, pass.input, pass.output, statistics(pass));
  }

  void backward(const LayerPass& pass, Wants wants) const override {
    norm_.backward(pass, wants, input().placement, pass.input, statistics(pass),
                   pass.output_gradient, {}, pass.input_gradient,
                   {.all_shards = pass.workspace.at(Workspace::kAllShards),
                    .own_shards = pass.workspace.at(Workspace::kOwnShards)});
  }

 private:
  enum class Saved { kMean, kRstd };
  enum class Workspace { kAllShards, kOwnShards };

  /// Of as many rows as the pass has.
  NormStatistics<TensorView> statistics(const LayerPass& pass) const {
    return rows_at({.mean = pass.saved.at(Saved::kMean), .rstd = pass.saved.at(Saved::kRstd)},
                   {0, pass.input.count() / input_shape().back()});
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
  NormOptions options{.epsilon = take_epsilon(line)};
  if (kind == NormKind::kLayerNorm) {
    options.bias = line.take_enum("bias", Switch::kOn);
  } else {
    options.unit_offset = take_unit_offset(line, true);
  }
  return std::make_unique<NormLayer>(site, NormPart(kind, site.input.shape.back(), options));
}

}  // namespace strata::nn
