#include "onednn/product_primitive.hpp"

namespace strata::ops {
namespace {

dnnl::memory::desc matrix(DType dtype, std::int64_t rows, std::int64_t columns,
                          Transpose transpose = Transpose::kNo) {
  using Strides = dnnl::memory::dims;
  const Strides strides = transpose == Transpose::kYes ? Strides{1, rows} : Strides{columns, 1};
  return {{rows, columns}, library_type(dtype), strides};
}

}  // namespace

PrimitiveDescription describe(const dnnl::engine& engine, const ProductKey& key) {
  const auto a = matrix(key.operands, key.m, key.k, key.transpose_a);
  const auto b = matrix(key.operands, key.k, key.n, key.transpose_b);
  const auto c = matrix(key.result, key.m, key.n);
  const auto bias = matrix(key.operands, 1, key.n);
  dnnl::primitive_attr attributes = primitive_attributes();
  if (key.accumulate == Accumulate::kAdd) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const auto made = key.has_bias ? described<dnnl::matmul>(engine, attributes, a, b, bias, c)
                                 : described<dnnl::matmul>(engine, attributes, a, b, c);
  const bool widens = library_widens(key.operands);
  PrimitiveDescription description{dnnl::matmul(made),
                                   {{DNNL_ARG_SRC, a, widens},
                                    {DNNL_ARG_WEIGHTS, b, widens},
                                    {DNNL_ARG_DST, c, library_widens(key.result)}},
                                   made.scratchpad_desc()};
  if (key.has_bias) {
    description.arguments.push_back({DNNL_ARG_BIAS, bias, widens});
  }
  return description;
}

}  // namespace strata::ops
