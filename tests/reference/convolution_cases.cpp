// Runs an operation of convolutional networks on tensors from standard input and writes its results
// to standard output, for convolution_reference.py. Usage: convolution_cases CASE DTYPE. Images
// come and go channels last.
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/pooling.hpp"

#include "streams.hpp"

namespace strata::ops {
namespace {

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
  auto x = read_tensor<T>();
  auto gain = read_tensor<T>();
  auto bias = read_tensor<T>();
  auto dy = read_tensor<T>();
  constexpr double kEpsilon = 1e-5;
  Tensor<T> mean(gain.shape());
  Tensor<T> variance(gain.shape());
  Tensor<T> y(x.shape());
  Tensor<T> dx(x.shape());
  Tensor<T> dgain(gain.shape());
  Tensor<T> dbias(bias.shape());
  column_statistics(context, x.view(), mean.view(), variance.view());
  batch_norm_forward(context, x.view(), mean.view(), variance.view(), gain.view(), bias.view(),
                     kEpsilon, activation, y.view());
  const ConstTensorView out = activation == Activation::kRelu ? y.view() : TensorView{};
  batch_norm_backward_sums(context, x.view(), mean.view(), variance.view(), kEpsilon, out,
                           dy.view(), dgain.view(), dbias.view());
  batch_norm_backward_input(context, x.view(), mean.view(), variance.view(), gain.view(), kEpsilon,
                            out, dy.view(), dgain.view(), dbias.view(), dx.view());
  write(y);
  write(dx);
  write(dgain);
  write(dbias);
}

template <typename T>
void group_norm(Context& context) {
  const std::int64_t groups = read_tensor<std::int64_t>().elements().front();
  auto x = read_tensor<T>();
  auto gain = read_tensor<T>();
  auto bias = read_tensor<T>();
  auto dy = read_tensor<T>();
  const Shape images = x.shape();
  const GroupNormShape shape{images[0], images[1] * images[2], images[3], groups};
  const Shape parts{shape.images, shape.groups};
  Tensor<T> mean(parts);
  Tensor<T> rstd(parts);
  Tensor<T> y(x.shape());
  Tensor<T> dx(x.shape());
  Tensor<T> dgain(gain.shape());
  Tensor<T> dbias(bias.shape());
  group_norm_forward(context, shape, x.view(), gain.view(), bias.view(), 1e-5, y.view(),
                     mean.view(), rstd.view());
  group_norm_backward_input(context, shape, x.view(), gain.view(), mean.view(), rstd.view(),
                            dy.view(), dx.view());
  group_norm_backward_weight(context, shape, x.view(), mean.view(), rstd.view(), dy.view(),
                             dgain.view(), dbias.view(), Accumulate::kOverwrite);
  write(y);
  write(dx);
  write(dgain);
  write(dbias);
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
  const auto found = cases.find(name);
  if (found == cases.end()) {
    fail(ExitCode::kUsage, "no case is called {}", name);
  }
  found->second();
}

}  // namespace
}  // namespace strata::ops

int main(int argc, char** argv) {
  return strata::reference::run_case(
      "convolution_cases", argc, argv,
      []<typename T>(const std::string& name, T) { strata::ops::run<T>(name); });
}
