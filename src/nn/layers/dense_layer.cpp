#include <fmt/format.h>

#include "layers/linear_layer.hpp"

namespace strata::nn {
namespace {

/// y = activation(x W^T + b) over the last dimension.
/// Shapes: x rows x inputs, W outputs x inputs, b outputs, y rows x outputs.
class Dense final : public LinearLayer {
 public:
  Dense(const LayerSite& site, const Shape& output_shape, const LinearOptions& options)
      : LinearLayer(site, output_shape,
                    {.inputs = site.input.shape.back(),
                     .outputs = output_shape.back(),
                     .weight = {output_shape.back(), site.input.shape.back()}},
                    options) {}

  std::string text() const override {
    return fmt::format("dense {}{}", output_shape().back(), options_text());
  }
};

}  // namespace

std::unique_ptr<Layer> make_dense(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  const std::int64_t units = line.take_count("the number of outputs");
  if (site.input.shape.rank() == 0) {
    line.refuse("its input has no dimension to act on");
  }
  std::vector<std::int64_t> extents(site.input.shape.extents().begin(),
                                    site.input.shape.extents().end());
  extents.back() = units;
  const LinearOptions options = take_linear_options(line, site, units);
  return std::make_unique<Dense>(site, Shape(extents), options);
}

}  // namespace strata::nn
