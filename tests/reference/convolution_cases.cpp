// Runs an operation of convolutional networks on tensors from standard input and writes its results
// to standard output, for convolution_reference.py. Usage: convolution_cases CASE DTYPE. Images
// come and go channels last.
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "strata/core/tensor.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/pooling.hpp"

#include "op_cases.hpp"

namespace strata::ops {
namespace {

using reference::NormCase;
using reference::read_tensor;
using reference::Tensor;
using reference::write;

/// Window, stride, dilation, padding before and behind of both axes, then the groups.
class Windows {
 public:
  [[nodiscard]] WindowAxis axis(std::size_t index, std::int64_t in) {
    const auto at = [&](std::size_t i) { return numbers_.elements()[5 * index + i]; };
    WindowAxis axis{in, 1, at(0), at(1), at(2), at(3)};
    const std::int64_t reach = (axis.window - 1) * axis.dilation + 1;
    axis.out = (in + at(3) + at(4) - reach) / axis.stride + 1;
    return axis;
  }
  [[nodiscard]] std::int64_t groups() { return numbers_.elements().back(); }

 private:
  Tensor<std::int64_t> numbers_ = read_tensor<std::int64_t>();
};

template <typename T>
void convolution(Context& context) {
  Windows windows;
  auto x = read_tensor<T>();
  auto w = read_tensor<T>();
  auto bias = read_tensor<T>();
  auto dy = read_tensor<T>();
  const Shape images = x.shape();
  const ConvolutionShape shape{images[0],
                               windows.axis(0, images[1]),
                               windows.axis(1, images[2]),
                               images[3],
                               w.shape()[0],
                               windows.groups()};
  Tensor<T> y(dy.shape());
  Tensor<T> dx(x.shape());
  Tensor<T> dw(w.shape());
  Tensor<T> dbias(bias.shape());
  convolution_forward(context, shape, x.view(), w.view(), y.view(), {bias.view()});
  convolution_backward_input(context, shape, dy.view(), w.view(), dx.view());
  convolution_backward_weight(context, shape, x.view(), dy.view(), dw.view(),
                              Accumulate::kOverwrite);
  column_sum(context, dy.view(), dbias.view(), Accumulate::kOverwrite);
  write(y);
  write(dx);
  write(dw);
  write(dbias);
}

template <typename T>
void pooling(Context& context, const std::string& kind) {
  Windows windows;
  auto x = read_tensor<T>();
  auto dy = read_tensor<T>();
  const Shape images = x.shape();
  const PoolingShape shape{images[0], windows.axis(0, images[1]), windows.axis(1, images[2]),
                           images[3]};
  Tensor<T> y(dy.shape());
  Tensor<T> dx(x.shape());
  if (kind == "max_pool") {
    Tensor<std::uint8_t> at(dy.shape());
    max_pool_forward(context, shape, x.view(), y.view(), at.view());
    max_pool_backward(context, shape, dy.view(), at.view(), dx.view());
  } else {
    average_pool_forward(context, shape, x.view(), y.view());
    average_pool_backward(context, shape, dy.view(), dx.view());
  }
  write(y);
  write(dx);
}

template <typename T>
void batch_norm(Context& context, Activation activation) {
  NormCase<T> c(context);
  constexpr double kEpsilon = 1e-5;
  Tensor<T> mean(c.weight.shape());
  Tensor<T> variance(c.weight.shape());
  column_statistics(context, c.x.view(), mean.view(), variance.view());
  batch_norm_forward(context, c.x.view(), mean.view(), variance.view(), c.weight.view(),
                     c.bias.view(), kEpsilon, activation, c.y.view());
  const ConstTensorView out = activation == Activation::kRelu ? c.y.view() : TensorView{};
  batch_norm_backward_sums(context, c.x.view(), mean.view(), variance.view(), kEpsilon, out,
                           c.dy.view(), c.dweight.view(), c.dbias.view());
  batch_norm_backward_input(context, c.x.view(), mean.view(), variance.view(), c.weight.view(),
                            kEpsilon, out, c.dy.view(), c.dweight.view(), c.dbias.view(),
                            c.dx.view());
  c.write_results(context);
}

template <typename T>
void group_norm(Context& context) {
  const std::int64_t groups = read_tensor<std::int64_t>().elements().front();
  NormCase<T> c(context);
  const Shape images = c.x.shape();
  const GroupNormShape shape{images[0], images[1] * images[2], images[3], groups};
  const Shape parts{shape.images, shape.groups};
  Tensor<T> mean(parts);
  Tensor<T> rstd(parts);
  group_norm_forward(context, shape, c.x.view(), c.weight.view(), c.bias.view(), 1e-5, c.y.view(),
                     mean.view(), rstd.view());
  group_norm_backward_input(context, shape, c.x.view(), c.weight.view(), mean.view(), rstd.view(),
                            c.dy.view(), c.dx.view());
  group_norm_backward_weight(context, shape, c.x.view(), mean.view(), rstd.view(), c.dy.view(),
                             c.dweight.view(), c.dbias.view(), Accumulate::kOverwrite);
  c.write_results(context);
}

template <typename T>
void run(const std::string& name) {
  Context context(2);
  const std::map<std::string, std::function<void()>> cases{
      {"convolution", [&] { convolution<T>(context); }},
      {"max_pool", [&] { pooling<T>(context, name); }},
      {"average_pool", [&] { pooling<T>(context, name); }},
      {"batch_norm", [&] { batch_norm<T>(context, Activation::kNone); }},
      {"batch_norm_relu", [&] { batch_norm<T>(context, Activation::kRelu); }},
      {"group_norm", [&] { group_norm<T>(context); }}};
  reference::run_named(cases, name);
}

}  // namespace
}  // namespace strata::ops

int main(int argc, char** argv) {
  return strata::reference::run_case(
      "convolution_cases", argc, argv,
      []<typename T>(const std::string& name, T) { strata::ops::run<T>(name); });
}
