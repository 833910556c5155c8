#include "layers/window.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::nn {
namespace {

constexpr std::int64_t kMostPadding = 1024;

void place(LayerLine& line, const std::string& padding, std::string_view dimension,
           ops::WindowAxis& axis) {
  if (axis.reach() > axis.in + 2 * kMostPadding) {
    line.refuse(
        fmt::format("its window reaches over {} elements, but the {} of its input is {}; "
                    "use a smaller window",
                    axis.reach(), dimension, axis.in));
  }
  if (padding == "same") {
    axis.out = (axis.in + axis.stride - 1) / axis.stride;
    axis.padding =
        std::max<std::int64_t>(0, (axis.out - 1) * axis.stride + axis.reach() - axis.in) / 2;
    return;
  }
  if (padding != "valid" &&
      (!parse_int64(padding, axis.padding) || axis.padding < 0 || axis.padding > kMostPadding)) {
    line.refuse(fmt::format("padding is same, valid or a whole number from 0 to {}, not \"{}\"",
                            kMostPadding, padding));
  }
  const std::int64_t room = axis.in + 2 * axis.padding - axis.reach();
  if (room < 0) {
    line.refuse(fmt::format(
        "its window reaches over {} elements, but the {} of its input is {}{}; use a smaller "
        "window, padding=same, or fewer strides before it",
        axis.reach(), dimension, axis.in,
        axis.padding > 0 ? fmt::format(", {} with padding", axis.in + 2 * axis.padding) : ""));
  }
  axis.out = room / axis.stride + 1;
}

}  // namespace

std::string Window::text() const {
  const std::string stride = height.stride == 1 && width.stride == 1 ? ""
                             : height.stride == width.stride
                                 ? fmt::format("/{}", height.stride)
                                 : fmt::format("/{}x{}", height.stride, width.stride);
  return fmt::format("{}x{}{}", height.window, width.window, stride);
}

Window take_window(LayerLine& line, const LayerSite& site, WindowStride otherwise) {
  site.require_image(line);
  const auto extent = line.take_window("the window, as in 3 or 3x5");
  const auto stride = line.take_option_window(
      "stride", otherwise == WindowStride::kWindow ? extent : std::array<std::int64_t, 2>{1, 1});
  const auto dilation = line.take_option_window("dilation", {1, 1});
  const std::string padding = line.take_option("padding", "valid");
  const Shape& input = site.input.shape;
  Window window;
  const auto axis_of = [&](std::size_t i, std::string_view dimension) {
    ops::WindowAxis axis{
        .in = input[i], .window = extent[i], .stride = stride[i], .dilation = dilation[i]};
    place(line, padding, dimension, axis);
    return axis;
  };
  window.height = axis_of(0, "height");
  window.width = axis_of(1, "width");
  return window;
}

Shape shape_behind(const Window& window, std::int64_t channels) {
  return {window.height.out, window.width.out, channels};
}

}  // namespace strata::nn
