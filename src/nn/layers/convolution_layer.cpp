#include <fmt/format.h>

#include "strata/ops/convolution.hpp"

#include "layers/linear_layer.hpp"
#include "layers/window.hpp"

namespace strata::nn {
namespace {

/// y = activation(x * W + b), a cross-correlation over images that lie channels last.
/// Shapes: x height x width x channels, W outputs x channels / groups x window, b outputs.
class Convolution final : public LinearLayer {
 public:
  Convolution(const LayerSite& site, const Window& window, std::int64_t outputs,
              std::int64_t groups, const LinearOptions& options)
      : LinearLayer(site, shape_behind(window, outputs),
                    {.inputs = site.input.shape.back(),
                     .outputs = outputs,
                     .rows_in = window.height.in * window.width.in,
                     .rows_out = window.height.out * window.width.out,
                     .weight = {outputs, site.input.shape.back() / groups, window.height.window,
                                window.width.window}},
                    options),
        window_(window),
        groups_(groups) {}

  std::string text() const override {
    return fmt::format("conv {} {}{}{}", output_shape().back(), window_.text(),
                       groups_ == 1 ? "" : fmt::format(" groups={}", groups_), options_text());
  }

 private:
  /// For a whole layer or the block of a shard: rows x channels.
  [[nodiscard]] ops::ConvolutionShape shape_of(const Shape& x, std::int64_t outputs) const {
    return {.images = x[0] / (window_.height.in * window_.width.in),
            .height = window_.height,
            .width = window_.width,
            .in_channels = x[1],
            .out_channels = outputs,
            .groups = groups_};
  }

  void product(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
               const TensorView& y, const TensorView& bias,
               ops::Activation activation) const override {
    ops::convolution_forward(pass.context, shape_of(x.shape(), y.shape()[1]), x,
                             projection().weight(pass, shard), y,
                             {.bias = bias, .activation = activation});
  }

  void input_product(const LayerPass& pass, std::int64_t shard, const ConstTensorView& dy,
                     const TensorView& dx) const override {
    ops::convolution_backward_input(pass.context, shape_of(dx.shape(), dy.shape()[1]), dy,
                                    projection().weight(pass, shard), dx);
  }

  void weight_product(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
                      const ConstTensorView& dy) const override {
    if (const TensorView& dw = projection().weight_gradient_at(pass, shard); !dw.empty()) {
      ops::convolution_backward_weight(pass.context, shape_of(x.shape(), dy.shape()[1]), x, dy, dw,
                                       pass.accumulate);
    }
  }

  Window window_;
  std::int64_t groups_;
};

}  // namespace

std::unique_ptr<Layer> make_convolution(LayerLine& line, const LayerSite& site) {
  const std::int64_t outputs = line.take_count("the number of output channels");
  const Window window = take_window(line, site, WindowStride::kOne);
  const std::int64_t groups = line.take_option_count("groups", 1);
  const std::int64_t inputs = site.input.shape.back();
  if (inputs % groups != 0 || outputs % groups != 0) {
    line.refuse(fmt::format("its {} input and {} output channels are not divisible by groups={}",
                            inputs, outputs, groups));
  }
  const LinearOptions options = take_linear_options(line, site, outputs);
  if (groups > 1 && options.parallel != ProjectionSplit::kNone) {
    line.refuse("a convolution in groups is not split over shards; leave parallel= out");
  }
  return std::make_unique<Convolution>(site, window, outputs, groups, options);
}

}  // namespace strata::nn
