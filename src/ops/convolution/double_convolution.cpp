#include "convolution/double_convolution.hpp"

#include <algorithm>
#include <vector>

#include "strata/ops/parallel_for.hpp"

#include "windows.hpp"

namespace strata::ops {
namespace {

/// Channels of one group.
struct Channels {
  explicit Channels(const ConvolutionShape& shape)
      : in(shape.in_channels / shape.groups), out(shape.out_channels / shape.groups) {}

  std::int64_t in;
  std::int64_t out;
};

/// w[o, i, tap] as packed[group, tap, i, o within the group].
std::vector<double> packed(const ConvolutionShape& shape, const double* w) {
  const Channels channels(shape);
  const std::int64_t taps = shape.height.window * shape.width.window;
  std::vector<double> result(static_cast<std::size_t>(shape.weight().count()));
  for (std::int64_t o = 0; o < shape.out_channels; ++o) {
    const std::int64_t group = o / channels.out;
    for (std::int64_t i = 0; i < channels.in; ++i) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t at = ((group * taps + tap) * channels.in + i) * channels.out;
        result[static_cast<std::size_t>(at + o % channels.out)] =
            w[(o * channels.in + i) * taps + tap];
      }
    }
  }
  return result;
}

/// Calls function(tap, offset of the input pixel) for the taps of an output pixel's window within
/// the image.
template <typename Function>
void for_each_tap(const ConvolutionShape& shape, std::int64_t row, std::int64_t column,
                  const Function& function) {
  const WindowPart down = window_part(shape.height, row);
  const WindowPart across = window_part(shape.width, column);
  for (std::int64_t i = down.begin; i < down.end; ++i) {
    for (std::int64_t j = across.begin; j < across.end; ++j) {
      const std::int64_t y = down.first + i * shape.height.dilation;
      const std::int64_t x = across.first + j * shape.width.dilation;
      function(i * shape.width.window + j, (y * shape.width.in + x) * shape.in_channels);
    }
  }
}

/// Calls function(offset of the output pixel, tap, offset of the input pixel) within one image.
template <typename Function>
void for_each_pixel(const ConvolutionShape& shape, const Function& function) {
  for (std::int64_t row = 0; row < shape.height.out; ++row) {
    for (std::int64_t column = 0; column < shape.width.out; ++column) {
      const std::int64_t out = (row * shape.width.out + column) * shape.out_channels;
      for_each_tap(shape, row, column,
                   [&](std::int64_t tap, std::int64_t in) { function(out, tap, in); });
    }
  }
}

std::int64_t input_size(const ConvolutionShape& shape) {
  return shape.height.in * shape.width.in * shape.in_channels;
}

std::int64_t output_size(const ConvolutionShape& shape) {
  return shape.height.out * shape.width.out * shape.out_channels;
}

}  // namespace

void double_forward(Context& context, const ConvolutionShape& shape, const double* x,
                    const double* w, const double* bias, double* y) {
  const Channels channels(shape);
  const std::int64_t taps = shape.height.window * shape.width.window;
  const std::vector<double> weights = packed(shape, w);
  parallel_for(context, shape.images, 1, [&](std::int64_t image, std::int64_t) {
    const double* const from = x + image * input_size(shape);
    double* const to = y + image * output_size(shape);
    for (std::int64_t i = 0; i < output_size(shape); ++i) {
      to[i] = bias == nullptr ? 0.0 : bias[i % shape.out_channels];
    }
    for_each_pixel(shape, [&](std::int64_t out, std::int64_t tap, std::int64_t in) {
      for (std::int64_t i = 0; i < shape.in_channels; ++i) {
        const std::int64_t group = i / channels.in;
        const double value = from[in + i];
        const double* const row =
            weights.data() + ((group * taps + tap) * channels.in + i % channels.in) * channels.out;
        double* const sums = to + out + group * channels.out;
#pragma omp simd
        for (std::int64_t o = 0; o < channels.out; ++o) {
          sums[o] += value * row[o];
        }
      }
    });
  });
}

void double_backward_input(Context& context, const ConvolutionShape& shape, const double* dy,
                           const double* w, double* dx) {
  const Channels channels(shape);
  const std::int64_t taps = shape.height.window * shape.width.window;
  parallel_for(context, shape.images, 1, [&](std::int64_t image, std::int64_t) {
    const double* const from = dy + image * output_size(shape);
    double* const to = dx + image * input_size(shape);
    std::fill_n(to, input_size(shape), 0.0);
    for_each_pixel(shape, [&](std::int64_t out, std::int64_t tap, std::int64_t in) {
      for (std::int64_t o = 0; o < shape.out_channels; ++o) {
        const double value = from[out + o];
        const double* const row = w + o * channels.in * taps + tap;
        double* const sums = to + in + o / channels.out * channels.in;
        for (std::int64_t i = 0; i < channels.in; ++i) {
          sums[i] += value * row[i * taps];
        }
      }
    });
  });
}

void double_backward_weight(Context& context, const ConvolutionShape& shape, const double* x,
                            const double* dy, double* dw, Accumulate accumulate) {
  const Channels channels(shape);
  const std::int64_t taps = shape.height.window * shape.width.window;
  parallel_for(context, shape.out_channels, 1, [&](std::int64_t o, std::int64_t) {
    std::vector<double> sums(static_cast<std::size_t>(channels.in * taps));
    const std::int64_t first = o / channels.out * channels.in;
    for (std::int64_t image = 0; image < shape.images; ++image) {
      const double* const inputs = x + image * input_size(shape) + first;
      const double* const outputs = dy + image * output_size(shape) + o;
      for_each_pixel(shape, [&](std::int64_t out, std::int64_t tap, std::int64_t in) {
        double* const sum = sums.data() + tap * channels.in;
#pragma omp simd
        for (std::int64_t i = 0; i < channels.in; ++i) {
          sum[i] += outputs[out] * inputs[in + i];
        }
      });
    }
    for (std::int64_t i = 0; i < channels.in * taps; ++i) {
      double& to = dw[o * channels.in * taps + i];
      const double sum = sums[static_cast<std::size_t>(i % taps * channels.in + i / taps)];
      to = accumulate == Accumulate::kAdd ? to + sum : sum;
    }
  });
}

}  // namespace strata::ops
