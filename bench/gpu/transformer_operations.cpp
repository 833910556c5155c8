#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/ops/activation.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/embedding.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/row_norm.hpp"
#include "strata/ops/split_cross_entropy.hpp"
#include "strata/ops/update.hpp"

#include "layers.hpp"

namespace strata::bench {
namespace {

using Call = std::function<void()>;
using Operations = std::vector<Operation>;

/// What a product does beside multiplying and adding a bias.
enum class Also { kNothing, kAddsResidual, kTakesGelu };

struct Product {
  std::string name;
  std::int64_t inputs = 1;
  std::int64_t outputs = 1;
  bool has_bias = true;
  Also also = Also::kNothing;
  /// Whether its inputs are GELU's results; their gradient goes through GELU with the product.
  bool behind_gelu = false;
  /// Whether its results are logits.
  bool padded = false;
};

std::string forward_name(const Product& product) {
  switch (product.also) {
    case Also::kAddsResidual:
      return product.name + " and residual, forward";
    case Also::kTakesGelu:
      return product.name + " and GELU, forward";
    case Also::kNothing:
      break;
  }
  return product.name + ", forward";
}

/// y = x w^T + bias and both gradients. Shapes: x rows x inputs, w outputs x inputs.
void add_product(Operations& all, std::int64_t rows, const Product& product) {
  const Shape x_shape{rows, product.inputs};
  const Shape w_shape{product.outputs, product.inputs};
  const Shape y_shape{rows, product.padded ? ops::padded_row(product.outputs) : product.outputs};
  const double flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(product.inputs * product.outputs);
  all.push_back({forward_name(product), flops, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(x_shape);
                   const TensorView w = operands.read(w_shape);
                   ops::MatmulOptions options{.transpose_b = ops::Transpose::kYes,
                                              .padded_rows = product.padded};
                   if (product.has_bias) {
                     options.bias = operands.read({product.outputs});
                   }
                   if (product.also == Also::kAddsResidual) {
                     options.addend = operands.read(y_shape);
                   } else if (product.also == Also::kTakesGelu) {
                     options.activation = ops::Activation::kGelu;
                     options.pre_activation = operands.written(y_shape);
                   }
                   const TensorView y = operands.written(y_shape);
                   return [&context = operands.context(), x, w, y, options] {
                     ops::matmul(context, x, w, y, options);
                   };
                 }});
  all.push_back(
      {product.name + (product.behind_gelu ? ", input gradient through GELU" : ", input gradient"),
       flops, [=](Operands& operands) -> Call {
         const TensorView dy = operands.read(y_shape);
         const TensorView w = operands.read(w_shape);
         ops::MatmulOptions options{.padded_rows = product.padded};
         if (product.behind_gelu) {
           options.gelu_gradient_of = operands.read(x_shape);
         }
         const TensorView dx = operands.written(x_shape);
         return [&context = operands.context(), dy, w, dx, options] {
           ops::matmul(context, dy, w, dx, options);
         };
       }});
  all.push_back({product.name + ", weight gradient", flops, [=](Operands& operands) -> Call {
                   const TensorView dy = operands.read(y_shape);
                   const TensorView x = operands.read(x_shape);
                   const TensorView dw = operands.updated(w_shape, DType::kFloat32);
                   return [&context = operands.context(), dy, x, dw, padded = product.padded] {
                     ops::matmul(context, dy, x, dw,
                                 {.transpose_a = ops::Transpose::kYes,
                                  .accumulate = ops::Accumulate::kAdd,
                                  .padded_rows = padded});
                   };
                 }});
}

struct AttentionOperands {
  TensorView qkv;
  TensorView y;
  TensorView log_sums;
};

/// Of a backward pass, which needs the results of the forward pass.
AttentionOperands attention_results(Operands& operands, const ops::AttentionShape& shape) {
  const AttentionOperands all{
      operands.read({shape.rows(), shape.qkv_width()}),
      operands.read({shape.rows(), shape.width()}),
      operands.read({shape.sequences, shape.heads(), shape.tokens}, DType::kFloat32)};
  ops::causal_attention_forward(operands.context(), shape, all.qkv, all.y, all.log_sums);
  return all;
}

void add_attention(Operations& all, const TransformerSizes& sizes, const std::string& name,
                   ops::LibraryKernels kernels) {
  const ops::AttentionShape shape{.sequences = sizes.batch,
                                  .tokens = sizes.tokens,
                                  .kv_heads = sizes.heads,
                                  .queries = 1,
                                  .head_size = sizes.width / sizes.heads};
  // Of one product over the pairs of a token with itself and those before it.
  const double flops = 2.0 * static_cast<double>(shape.sequences * shape.heads()) *
                       static_cast<double>(shape.tokens * (shape.tokens + 1) / 2) *
                       static_cast<double>(shape.head_size);
  all.push_back({name + ", forward", 2.0 * flops,
                 [=](Operands& operands) -> Call {
                   const AttentionOperands o = attention_results(operands, shape);
                   return [&context = operands.context(), shape, o] {
                     ops::causal_attention_forward(context, shape, o.qkv, o.y, o.log_sums);
                   };
                 },
                 kernels});
  // Scores again, then the gradients of weights, values, queries and keys.
  all.push_back({name + ", backward", 5.0 * flops,
                 [=](Operands& operands) -> Call {
                   const AttentionOperands o = attention_results(operands, shape);
                   const TensorView dy = operands.read(o.y.shape());
                   const TensorView dqkv = operands.written(o.qkv.shape());
                   return [&context = operands.context(), shape, o, dy, dqkv] {
                     ops::causal_attention_backward(context, shape, o.qkv, o.y, o.log_sums, dy,
                                                    dqkv);
                   };
                 },
                 kernels});
}

void add_layer_norm(Operations& all, const Shape& shape) {
  const Shape rows{shape[0]};
  const Shape columns{shape[1]};
  // They do not depend on the weight.
  const auto statistics_of = [rows, columns](Operands& operands, const TensorView& x) {
    const TensorView mean = operands.read(rows, DType::kFloat32);
    const TensorView rstd = operands.read(rows, DType::kFloat32);
    ops::row_norm_forward(operands.context(), {ops::Center::kMean}, x, operands.uncounted(columns),
                          {}, kEpsilon, operands.uncounted(x.shape()), mean, rstd);
    return std::array{mean, rstd};
  };
  all.push_back({"layer norm, forward", 0.0, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(shape);
                   const TensorView weight = operands.read(columns);
                   const TensorView bias = operands.read(columns);
                   const TensorView y = operands.written(shape);
                   const TensorView mean = operands.written(rows, DType::kFloat32);
                   const TensorView rstd = operands.written(rows, DType::kFloat32);
                   return [&context = operands.context(), x, weight, bias, y, mean, rstd] {
                     ops::row_norm_forward(context, {ops::Center::kMean}, x, weight, bias, kEpsilon,
                                           y, mean, rstd);
                   };
                 }});
  // Added to the gradient that passes the sublayer by.
  all.push_back({"layer norm, input gradient", 0.0, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(shape);
                   const auto [mean, rstd] = statistics_of(operands, x);
                   const TensorView weight = operands.read(columns);
                   const TensorView dy = operands.read(shape);
                   const TensorView addend = operands.read(shape);
                   const TensorView dx = operands.written(shape);
                   return [&context = operands.context(), x, weight, mean = mean, rstd = rstd, dy,
                           addend, dx] {
                     ops::row_norm_backward_input(context, {ops::Center::kMean}, x, weight, mean,
                                                  rstd, dy, addend, dx);
                   };
                 }});
  all.push_back({"layer norm, weight gradient", 0.0, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(shape);
                   const auto [mean, rstd] = statistics_of(operands, x);
                   const TensorView dy = operands.read(shape);
                   const TensorView dweight = operands.updated(columns, DType::kFloat32);
                   const TensorView dbias = operands.updated(columns, DType::kFloat32);
                   return [&context = operands.context(), x, mean = mean, rstd = rstd, dy, dweight,
                           dbias] {
                     ops::row_norm_backward_weight(context, {ops::Center::kMean}, x, mean, rstd, dy,
                                                   dweight, dbias, ops::Accumulate::kAdd);
                   };
                 }});
}

void add_bias_gradient(Operations& all, const Shape& shape) {
  all.push_back(
      {fmt::format("bias gradient, {} wide", shape[1]), 0.0, [=](Operands& operands) -> Call {
         const TensorView dy = operands.read(shape);
         const TensorView sum = operands.updated({shape[1]}, DType::kFloat32);
         return [&context = operands.context(), dy, sum] {
           ops::column_sum(context, dy, sum, ops::Accumulate::kAdd);
         };
       }});
}

void add_residual(Operations& all, const Shape& shape) {
  all.push_back({"residual, added to a sum over shards", 0.0, [=](Operands& operands) -> Call {
                   const TensorView sum = operands.read(shape, DType::kFloat32);
                   const TensorView bias = operands.read({shape[1]});
                   const TensorView residual = operands.read(shape);
                   const TensorView y = operands.written(shape);
                   return [&context = operands.context(), sum, bias, residual, y] {
                     ops::add_bias_residual(context, sum, bias, residual, y);
                   };
                 }});
}

/// Of one shard, as the last stage of a language model does it.
void add_cross_entropy(Operations& all, std::int64_t rows, std::int64_t ids) {
  const Shape shape{rows, ops::padded_row(ids)};
  all.push_back({"cross-entropy and its gradient", 0.0, [=](Operands& operands) -> Call {
                   const TensorView logits = operands.read(shape);
                   const TensorView targets = operands.token_ids(rows, ids).ids;
                   const TensorView dlogits = operands.written(shape);
                   const TensorView parts =
                       operands.written({1, rows, ops::kCrossEntropyParts}, DType::kFloat32);
                   const TensorView log_sums = operands.written({rows}, DType::kFloat32);
                   const TensorView sums = operands.written({ops::kLossElements}, DType::kInt64);
                   return [&context = operands.context(), rows, ids, logits, targets, dlogits,
                           parts, log_sums, sums] {
                     ops::cross_entropy_parts(context, logits, targets, 0, ids, parts);
                     ops::combine_cross_entropy(context, {}, parts, targets, ids, rows, log_sums,
                                                sums);
                     ops::cross_entropy_gradient(context, logits, targets, 0, ids, log_sums, rows,
                                                 1.0 / static_cast<double>(rows), dlogits);
                   };
                 }});
}

void add_embedding_gradients(Operations& all, const TransformerSizes& sizes) {
  const Shape dy_shape{sizes.rows(), sizes.width};
  // Rows of the table that have no token are not touched.
  all.push_back({"embedding gradient", 0.0, [=](Operands& operands) -> Call {
                   const TokenIds tokens = operands.token_ids(sizes.rows(), sizes.vocabulary);
                   const TensorView dy = operands.read(dy_shape);
                   const TensorView dtable =
                       operands.uncounted({sizes.vocabulary, sizes.width}, DType::kFloat32);
                   operands.count(2 * tokens.different * sizes.width * size_bytes(DType::kFloat32));
                   return [&context = operands.context(), ids = tokens.ids, dy, dtable] {
                     ops::embedding_backward(context, ids, dy, 0, dtable, ops::Accumulate::kAdd);
                   };
                 }});
  all.push_back(
      {"position gradient", 0.0, [=](Operands& operands) -> Call {
         const TensorView dy = operands.read(dy_shape);
         const TensorView dtable = operands.updated({sizes.tokens, sizes.width}, DType::kFloat32);
         return [&context = operands.context(), dy, dtable, tokens = sizes.tokens] {
           ops::positions_backward(context, dy, tokens, dtable, ops::Accumulate::kAdd);
         };
       }});
}

struct Updated {
  TensorView master;
  TensorView gradient;
  TensorView m;
  TensorView v;
  TensorView weight;
};

/// Parameter by parameter, as the optimizer does it: the update of the float32 master weight, then
/// the weight rounded from it.
void add_update(Operations& all, std::int64_t width) {
  const std::vector<std::int64_t> counts{
      width, width, 3 * width * width, 3 * width, width * width,     width,
      width, width, 4 * width * width, 4 * width, 4 * width * width, width};
  all.push_back(
      {"AdamW of the layer, weights rounded", 0.0, [=](Operands& operands) -> Call {
         std::vector<Updated> parameters;
         for (const std::int64_t count : counts) {
           const Shape shape{count};
           parameters.push_back(
               {operands.updated(shape, DType::kFloat32), operands.read(shape, DType::kFloat32),
                operands.updated(shape, DType::kFloat32), operands.updated(shape, DType::kFloat32),
                operands.written(shape)});
         }
         return [&context = operands.context(), parameters] {
           for (const Updated& p : parameters) {
             ops::adam_update(
                 context, p.master, p.gradient, p.m, p.v,
                 {.learning_rate = 1e-4, .weight_decay = 0.1, .decay = ops::DecayKind::kDecoupled},
                 p.weight);
           }
         };
       }});
}

}  // namespace

std::vector<Operation> transformer_operations(const TransformerSizes& sizes) {
  const std::int64_t width = sizes.width;
  const std::int64_t rows = sizes.rows();
  Operations all;
  add_product(all, rows, {.name = "qkv", .inputs = width, .outputs = 3 * width});
  add_product(
      all, rows,
      {.name = "attention output", .inputs = width, .outputs = width, .also = Also::kAddsResidual});
  add_product(all, rows,
              {.name = "MLP up", .inputs = width, .outputs = 4 * width, .also = Also::kTakesGelu});
  add_product(all, rows,
              {.name = "MLP down",
               .inputs = 4 * width,
               .outputs = width,
               .also = Also::kAddsResidual,
               .behind_gelu = true});
  add_product(all, rows,
              {.name = "head",
               .inputs = width,
               .outputs = sizes.vocabulary,
               .has_bias = false,
               .padded = true});
  add_attention(all, sizes, "attention", ops::LibraryKernels::kLibrary);
  add_attention(all, sizes, "attention by own kernels", ops::LibraryKernels::kOwn);
  add_layer_norm(all, {rows, width});
  for (const std::int64_t times : {1, 3, 4}) {
    add_bias_gradient(all, {rows, times * width});
  }
  add_residual(all, {rows, width});
  add_cross_entropy(all, rows, sizes.vocabulary);
  add_embedding_gradients(all, sizes);
  add_update(all, width);
  return all;
}

}  // namespace strata::bench
