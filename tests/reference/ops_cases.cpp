// Runs one operation on tensors from standard input and writes its results to standard output, for
// ops_reference.py. Usage: ops_cases CASE DTYPE.
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "strata/core/dtype.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/embedding.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/row_norm.hpp"
#include "strata/ops/update.hpp"

#include "op_cases.hpp"

namespace strata::ops {
namespace {

using reference::NormCase;
using reference::read_stored;
using reference::read_tensor;
using reference::Tensor;
using reference::write;
using reference::write_scalar;
using reference::write_stored;

template <typename T>
void dense(Context& context) {
  auto x = read_stored<T>(context);
  auto w = read_stored<T>(context);
  auto b = read_stored<T>(context);
  auto dy = read_stored<T>(context);
  Tensor<T> y(dy.shape());
  Tensor<T> dx(x.shape());
  Tensor<Compute<T>> dw(w.shape());
  Tensor<Compute<T>> db(b.shape());
  matmul(context, x.view(), w.view(), y.view(), {.transpose_b = Transpose::kYes, .bias = b.view()});
  matmul(context, dy.view(), w.view(), dx.view());
  matmul(context, dy.view(), x.view(), dw.view(), {.transpose_a = Transpose::kYes});
  column_sum(context, dy.view(), db.view(), Accumulate::kOverwrite);
  write_stored(context, y);
  write_stored(context, dx);
  write(dw);
  write(db);
}

template <typename T>
void activation(Context& context, Activation kind) {
  auto x = read_tensor<T>();
  auto dy = read_tensor<T>();
  Tensor<T> y(x.shape());
  Tensor<T> dx(x.shape());
  activation_forward(context, kind, x.view(), y.view());
  activation_backward(context, kind, x.view(), y.view(), dy.view(), dx.view());
  write(y);
  write(dx);
}

template <typename T>
void softmax(Context& context) {
  auto x = read_tensor<T>();
  auto dy = read_tensor<T>();
  Tensor<T> y(x.shape());
  Tensor<T> dx(x.shape());
  softmax_forward(context, x.view(), y.view());
  softmax_backward(context, y.view(), dy.view(), dx.view());
  write(y);
  write(dx);
}

template <typename T>
void layer_norm(Context& context) {
  NormCase<T> c(context);
  const Shape rows{c.x.shape()[0]};
  Tensor<Compute<T>> mean(rows);
  Tensor<Compute<T>> rstd(rows);
  row_norm_forward(context, {Center::kMean}, c.x.view(), c.weight.view(), c.bias.view(), 1e-5,
                   c.y.view(), mean.view(), rstd.view());
  row_norm_backward_input(context, {Center::kMean}, c.x.view(), c.weight.view(), mean.view(),
                          rstd.view(), c.dy.view(), {}, c.dx.view());
  row_norm_backward_weight(context, {Center::kMean}, c.x.view(), mean.view(), rstd.view(),
                           c.dy.view(), c.dweight.view(), c.dbias.view(), Accumulate::kOverwrite);
  c.write_results(context);
}

template <typename T>
void rms_norm(Context& context, const RowNorm& norm) {
  auto x = read_tensor<T>();
  auto weight = read_tensor<T>();
  auto dy = read_tensor<T>();
  Tensor<T> y(x.shape());
  Tensor<T> rstd({x.shape()[0]});
  Tensor<T> dx(x.shape());
  Tensor<T> dweight(weight.shape());
  row_norm_forward(context, norm, x.view(), weight.view(), {}, 1e-5, y.view(), {}, rstd.view());
  row_norm_backward_input(context, norm, x.view(), weight.view(), {}, rstd.view(), dy.view(), {},
                          dx.view());
  row_norm_backward_weight(context, norm, x.view(), {}, rstd.view(), dy.view(), dweight.view(), {},
                           Accumulate::kOverwrite);
  write(y);
  write(dx);
  write(dweight);
}

template <typename T>
void gated(Context& context, Gate function) {
  auto gate = read_tensor<T>();
  auto up = read_tensor<T>();
  auto dy = read_tensor<T>();
  Tensor<T> y(gate.shape());
  Tensor<T> dgate(gate.shape());
  Tensor<T> dup(gate.shape());
  gated_forward(context, function, gate.view(), up.view(), y.view());
  gated_backward(context, function, gate.view(), up.view(), dy.view(), dgate.view(), dup.view());
  write(y);
  write(dgate);
  write(dup);
}

/// Tokens and positions of sequences; the tables are read before the ids.
template <typename T>
void embedding(Context& context) {
  auto table = read_tensor<T>();
  auto positions = read_tensor<T>();
  auto dy = read_tensor<T>();
  auto ids = read_tensor<std::int64_t>();
  const std::int64_t tokens = ids.shape()[1];
  Tensor<T> y(dy.shape());
  Tensor<T> dtable(table.shape());
  Tensor<T> dpositions(positions.shape());
  embedding_forward(context, ids.view(), table.view(), 0, y.view(), Accumulate::kOverwrite);
  add_positions(context, y.view(), positions.view(), {tokens, 0, 0}, y.view());
  embedding_backward(context, ids.view(), dy.view(), 0, dtable.view(), Accumulate::kOverwrite);
  positions_backward(context, dy.view(), tokens, dpositions.view(), Accumulate::kOverwrite);
  write(y);
  write(dtable);
  write(dpositions);
}

/// The loss's mean over the rows, and its gradient.
template <typename T, typename Target, typename Loss>
void loss(Context& context, const Loss& function) {
  auto x = read_tensor<T>();
  auto target = read_tensor<Target>();
  Tensor<T> dx(x.shape());
  const std::int64_t rows = x.shape()[0];
  Tensor<std::int64_t> sums(Shape{kLossElements});
  function(context, x.view(), target.view(), rows, 1.0 / static_cast<double>(rows), dx.view(),
           sums.view(), TensorView());
  write_scalar<T>(loss_sums_of(sums.view()).loss / static_cast<double>(rows));
  write(dx);
}

/// Updates a weight with each gradient in turn and writes what comes of it.
template <typename T>
void optimizer(Context& context, const std::string& name) {
  auto weight = read_tensor<T>();
  auto gradients = read_tensor<T>();
  Tensor<T> first(weight.shape());
  Tensor<T> second(weight.shape());
  const std::int64_t count = weight.shape().count();
  for (std::int64_t step = 1; step <= gradients.shape()[0]; ++step) {
    const TensorView gradient = gradients.view().flat_slice((step - 1) * count, count);
    if (name == "adam" || name == "adamw") {
      AdamOptions options;
      options.learning_rate = 0.05;
      options.weight_decay = 0.1;
      options.decay = name == "adamw" ? DecayKind::kDecoupled : DecayKind::kInGradient;
      options.step = step;
      adam_update(context, weight.view(), gradient, first.view(), second.view(), options);
    } else if (name == "adagrad") {
      adagrad_update(context, weight.view(), gradient, first.view(),
                     {.learning_rate = 0.05, .weight_decay = 0.1});
    } else {
      SgdOptions options;
      options.learning_rate = 0.05;
      options.weight_decay = 0.1;
      options.momentum = name == "sgd" ? 0.0 : 0.9;
      options.nesterov = name == "nesterov" ? Switch::kOn : Switch::kOff;
      sgd_update(context, weight.view(), gradient, first.view(), options);
    }
  }
  write(weight);
}

template <typename T>
void run(const std::string& name) {
  Context context(2);
  const auto activation_of = [&](Activation kind) {
    return [&, kind] { activation<T>(context, kind); };
  };
  const auto optimizer_of = [&] { return [&] { optimizer<T>(context, name); }; };
  const std::map<std::string, std::function<void()>> cases{
      {"dense", [&] { dense<T>(context); }},
      {"relu", activation_of(Activation::kRelu)},
      {"gelu", activation_of(Activation::kGelu)},
      {"gelu_erf", activation_of(Activation::kGeluErf)},
      {"tanh", activation_of(Activation::kTanh)},
      {"sigmoid", activation_of(Activation::kSigmoid)},
      {"softmax", [&] { softmax<T>(context); }},
      {"layer_norm", [&] { layer_norm<T>(context); }},
      {"rms_norm", [&] { rms_norm<T>(context, {Center::kZero}); }},
      {"rms_norm_from_one",
       [&] {
         rms_norm<T>(context, {Center::kZero, WeightOffset::kOne});
       }},
      {"swiglu", [&] { gated<T>(context, Gate::kSilu); }},
      {"geglu", [&] { gated<T>(context, Gate::kGelu); }},
      {"embedding", [&] { embedding<T>(context); }},
      {"bfloat16_dense", [&] { dense<BFloat16>(context); }},
      {"bfloat16_layer_norm", [&] { layer_norm<BFloat16>(context); }},
      {"cross_entropy", [&] { loss<T, std::int64_t>(context, cross_entropy); }},
      {"mean_squared_error",
       [&] { loss<T, T>(context, [](auto&&... arguments) { mean_squared_error(arguments...); }); }},
      {"sgd", optimizer_of()},
      {"momentum", optimizer_of()},
      {"nesterov", optimizer_of()},
      {"adam", optimizer_of()},
      {"adamw", optimizer_of()},
      {"adagrad", optimizer_of()}};
  reference::run_named(cases, name);
}

}  // namespace
}  // namespace strata::ops

int main(int argc, char** argv) {
  return strata::reference::run_case(
      "ops_cases", argc, argv,
      []<typename T>(const std::string& name, T) { strata::ops::run<T>(name); });
}
