#include <fmt/format.h>

#include "strata/ops/image.hpp"
#include "strata/ops/pooling.hpp"

#include "layers/channel_blocks.hpp"
#include "layers/window.hpp"

namespace strata::nn {
namespace {

/// The largest element or the mean of each window. y has the placement of x.
/// Shapes: height x width x channels to that of the windows.
class Pooling : public ChannelLayer {
 protected:
  Pooling(const LayerSite& site, const Window& window, const Shape& output)
      : ChannelLayer(site.name, site.input, {output, site.input.placement, site.input.unit}),
        window_(window) {}

  [[nodiscard]] ops::PoolingShape shape_of(const TensorView& output) const {
    const std::int64_t channels = output.shape().back();
    return {.images = output.count() / (window_.height.out * window_.width.out * channels),
            .height = window_.height,
            .width = window_.width,
            .channels = channels};
  }

  [[nodiscard]] const Window& window() const { return window_; }

 private:
  Window window_;
};

class MaxPooling final : public Pooling {
 public:
  MaxPooling(const LayerSite& site, const Window& window)
      : Pooling(site, window, shape_behind(window, site.input.shape.back())) {}

  std::string text() const override { return "max_pool " + window().text(); }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    return slot_list<Saved, SavedSpec>(
        {{Saved::kArgmax, {{local_shape(output(), pass), DType::kUint8}}}});
  }

 private:
  /// The position of the largest element in its window.
  enum class Saved { kArgmax };

  void forward_block(const LayerPass& pass, const ChannelBlock& block, const ConstTensorView& x,
                     const TensorView& y) const override {
    ops::max_pool_forward(pass.context, shape_of(y), x, y, block.of(pass.saved.at(Saved::kArgmax)));
  }

  void backward_block(const LayerPass& pass, const ChannelBlock& block, const TensorView& dy,
                      const TensorView& dx) const override {
    ops::max_pool_backward(pass.context, shape_of(dy), dy, block.of(pass.saved.at(Saved::kArgmax)),
                           dx);
  }
};

class AveragePooling final : public Pooling {
 public:
  AveragePooling(const LayerSite& site, const Window& window, const Shape& output, std::string text)
      : Pooling(site, window, output), text_(std::move(text)) {}

  std::string text() const override { return text_; }

 private:
  void forward_block(const LayerPass& pass, const ChannelBlock& /*block*/, const ConstTensorView& x,
                     const TensorView& y) const override {
    ops::average_pool_forward(pass.context, shape_of(y), x, y);
  }

  void backward_block(const LayerPass& pass, const ChannelBlock& /*block*/, const TensorView& dy,
                      const TensorView& dx) const override {
    ops::average_pool_backward(pass.context, shape_of(dy), dy, dx);
  }

  std::string text_;
};

/// A border of zeros around images. Shapes: height x width x channels to two borders more.
class ZeroPad final : public ChannelLayer {
 public:
  ZeroPad(const LayerSite& site, std::int64_t border)
      : ChannelLayer(site.name, site.input,
                     {{site.input.shape[0] + 2 * border, site.input.shape[1] + 2 * border,
                       site.input.shape[2]},
                      site.input.placement,
                      site.input.unit}),
        border_(border) {}

  std::string text() const override { return fmt::format("zero_pad {}", border_); }

 private:
  void forward_block(const LayerPass& pass, const ChannelBlock& /*block*/, const ConstTensorView& x,
                     const TensorView& y) const override {
    ops::add_border(pass.context, shape_of(y), x, y);
  }

  void backward_block(const LayerPass& pass, const ChannelBlock& /*block*/, const TensorView& dy,
                      const TensorView& dx) const override {
    ops::remove_border(pass.context, shape_of(dy), dy, dx);
  }

  [[nodiscard]] ops::BorderShape shape_of(const TensorView& output) const {
    const std::int64_t channels = output.shape().back();
    return {.images = output.count() / (output_shape()[0] * output_shape()[1] * channels),
            .height = input_shape()[0],
            .width = input_shape()[1],
            .channels = channels,
            .border = border_};
  }

  std::int64_t border_;
};

/// Pads the channels with zeros, for shortcuts without weights. Shapes: height x width x channels
/// to more channels.
class ZeroChannels final : public Layer {
 public:
  ZeroChannels(const LayerSite& site, std::int64_t channels)
      : Layer(site.name, site.input,
              {{site.input.shape[0], site.input.shape[1], channels}, site.input.placement},
              {.backward_reads_output = false}) {}

  std::string text() const override {
    return fmt::format("zero_channels {}", output_shape().back());
  }

  void forward(const LayerPass& pass) const override {
    ops::widen_rows(pass.context, rows(pass.input, input()), rows(pass.output, output()));
  }

  void backward(const LayerPass& pass, Wants /*wants*/) const override {
    if (!pass.input_gradient.empty()) {
      ops::narrow_rows(pass.context, rows(pass.output_gradient, output()),
                       rows(pass.input_gradient, input()));
    }
  }

 private:
  template <typename View>
  static View rows(const View& tensor, const Port& port) {
    const std::int64_t channels = port.shape.back();
    return tensor.reshaped(Shape{tensor.count() / channels, channels});
  }
};

void check_pooling(const LayerLine& line, const Window& window) {
  constexpr std::int64_t kMostElements = 256;
  for (const ops::WindowAxis& axis : {window.height, window.width}) {
    if (axis.dilation != 1) {
      line.refuse("a pool has no dilation; leave dilation= out");
    }
    if (axis.padding >= axis.window) {
      line.refuse(fmt::format("its padding is {}, it must be below its window of {}", axis.padding,
                              axis.window));
    }
  }
  if (line.kind() == "max_pool" && window.height.window * window.width.window > kMostElements) {
    line.refuse(fmt::format("its window has {} elements, a max_pool takes at most {}",
                            window.height.window * window.width.window, kMostElements));
  }
}

}  // namespace

std::unique_ptr<Layer> make_pooling(LayerLine& line, const LayerSite& site) {
  const Window window = take_window(line, site, WindowStride::kWindow);
  check_pooling(line, window);
  if (line.kind() == "max_pool") {
    return std::make_unique<MaxPooling>(site, window);
  }
  return std::make_unique<AveragePooling>(
      site, window, shape_behind(window, site.input.shape.back()), "avg_pool " + window.text());
}

std::unique_ptr<Layer> make_global_pooling(LayerLine& line, const LayerSite& site) {
  site.require_image(line);
  const Shape& input = site.input.shape;
  const auto whole = [&](std::size_t i) {
    return ops::WindowAxis{.in = input[i], .out = 1, .window = input[i]};
  };
  return std::make_unique<AveragePooling>(site, Window{whole(0), whole(1)}, Shape{input[2]},
                                          "global_avg_pool");
}

std::unique_ptr<Layer> make_zero_pad(LayerLine& line, const LayerSite& site) {
  site.require_image(line);
  constexpr std::int64_t kWidest = 1024;
  const std::int64_t border = line.take_count("the width of the border");
  if (border > kWidest) {
    line.refuse(fmt::format("the border is {} wide, it may be {}", border, kWidest));
  }
  return std::make_unique<ZeroPad>(site, border);
}

std::unique_ptr<Layer> make_zero_channels(LayerLine& line, const LayerSite& site) {
  site.require_image(line);
  site.require_whole_rows(line);
  const std::int64_t channels = line.take_count("the number of channels");
  if (channels < site.input.shape.back()) {
    line.refuse(fmt::format("its input has {} channels already", site.input.shape.back()));
  }
  return std::make_unique<ZeroChannels>(site, channels);
}

}  // namespace strata::nn
