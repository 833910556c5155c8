#pragma once

#include "strata/ops/activation.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/convert.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/embedding.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/image.hpp"
#include "strata/ops/layer_norm.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/pooling.hpp"
#include "strata/ops/reduce.hpp"
#include "strata/ops/rms_norm.hpp"
#include "strata/ops/split_cross_entropy.hpp"
#include "strata/ops/update.hpp"

#include "cuda/dispatch.hpp"

// What the operations do on a GPU, each in src/ops/<operation>.cu. The public functions have
// checked shapes and dtypes; tensors' places are checked where their addresses are taken.
namespace strata::ops::cuda {

void fill_zero(Context& context, const TensorView& x);
void copy(Context& context, const ConstTensorView& x, const TensorView& y);
void add(Context& context, const ConstTensorView& x, const TensorView& y);
void scaled(Context& context, double factor, const ConstTensorView& x, const TensorView& y,
            Accumulate accumulate);
void add_bias_residual(Context& context, const ConstTensorView& sum, const ConstTensorView& bias,
                       const ConstTensorView& residual, const TensorView& y);

void convert(Context& context, const ConstTensorView& x, const TensorView& y);

void activation_forward(Context& context, Activation activation, const ConstTensorView& x,
                        const TensorView& y);
void activation_backward(Context& context, Activation activation, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& dy, const TensorView& dx);
void swiglu_forward(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                    const TensorView& y);
void swiglu_backward(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                     const ConstTensorView& dy, const TensorView& dgate, const TensorView& dup);
void softmax_forward(Context& context, const ConstTensorView& x, const TensorView& y);
void softmax_backward(Context& context, const ConstTensorView& y, const ConstTensorView& dy,
                      const TensorView& dx);

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options);
void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate);

void set_sample_origin(Context& context, std::int64_t sample);
void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, const SampleRow& first, const TensorView& y,
                     const TensorView& mask, const ColumnSlice& columns);
void bias_dropout_residual(Context& context, const ConstTensorView& sum,
                           const ConstTensorView& bias, const ConstTensorView& residual,
                           double probability, const RandomStream& stream, const SampleRow& first,
                           const TensorView& y, const TensorView& mask);
void dropout_backward(Context& context, const ConstTensorView& dy, const ConstTensorView& mask,
                      double probability, const TensorView& dx);

void layer_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, const TensorView& y,
                        const TensorView& mean, const TensorView& rstd);
void layer_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& weight, const ConstTensorView& mean,
                               const ConstTensorView& rstd, const ConstTensorView& dy,
                               const ConstTensorView& addend, const TensorView& dx);
void layer_norm_backward_weight(Context& context, const ConstTensorView& x,
                                const ConstTensorView& mean, const ConstTensorView& rstd,
                                const ConstTensorView& dy, const TensorView& dweight,
                                const TensorView& dbias, Accumulate accumulate);

void rms_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                      double epsilon, const TensorView& y, const TensorView& rstd);
void rms_norm_backward_input(Context& context, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& rstd,
                             const ConstTensorView& dy, const ConstTensorView& addend,
                             const TensorView& dx);
void rms_norm_backward_weight(Context& context, const ConstTensorView& x,
                              const ConstTensorView& rstd, const ConstTensorView& dy,
                              const TensorView& dweight, Accumulate accumulate);

void cross_entropy(Context& context, const ConstTensorView& logits, const ConstTensorView& labels,
                   std::int64_t valid_rows, double gradient_scale, const TensorView& dlogits,
                   const TensorView& sums);
void mean_squared_error(Context& context, const ConstTensorView& prediction,
                        const ConstTensorView& target, std::int64_t valid_rows,
                        double gradient_scale, const TensorView& dprediction,
                        const TensorView& sums);

void cross_entropy_parts(Context& context, const ConstTensorView& logits,
                         const ConstTensorView& targets, std::int64_t first_id,
                         const TensorView& parts);
void combine_cross_entropy(Context& context, std::span<const ReductionStep> steps,
                           const ConstTensorView& parts, const ConstTensorView& targets,
                           std::int64_t vocabulary, std::int64_t valid_rows,
                           const TensorView& log_sums, const TensorView& sums);
void cross_entropy_gradient(Context& context, const ConstTensorView& logits,
                            const ConstTensorView& targets, std::int64_t first_id,
                            const ConstTensorView& log_sums, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dlogits);

void embedding_forward(Context& context, const ConstTensorView& ids, const ConstTensorView& table,
                       std::int64_t first_id, const TensorView& y, Accumulate accumulate);
void embedding_backward(Context& context, const ConstTensorView& ids, const ConstTensorView& dy,
                        std::int64_t first_id, const TensorView& dtable, Accumulate accumulate);
void add_positions(Context& context, const ConstTensorView& x, const ConstTensorView& table,
                   const PositionRows& rows, const TensorView& y);
void positions_backward(Context& context, const ConstTensorView& dy, std::int64_t tokens,
                        const TensorView& dtable, Accumulate accumulate);

void fold(Context& context, std::span<const TensorView> parts,
          std::span<const ReductionStep> steps);
void sum_of_squares_blocks(Context& context, const ConstTensorView& x, std::int64_t block_elements,
                           const TensorView& out);

void sgd_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                const TensorView& momentum, const SgdOptions& options);
void adam_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                 const TensorView& m, const TensorView& v, const AdamOptions& options);
void adagrad_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                    const TensorView& sum, const AdagradOptions& options);
void average_update(Context& context, const TensorView& weight, const ConstTensorView& term,
                    double keep);

void causal_attention_forward(Context& context, const AttentionShape& shape,
                              const ConstTensorView& qkv, const TensorView& y,
                              const TensorView& log_sums);
void causal_attention_backward(Context& context, const AttentionShape& shape,
                               const ConstTensorView& qkv, const ConstTensorView& y,
                               const ConstTensorView& log_sums, const ConstTensorView& dy,
                               const TensorView& dqkv);
void cached_attention(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                      const ConstTensorView& keys, const ConstTensorView& values, std::int64_t past,
                      const TensorView& y);
void append_to_cache(Context& context, const AttentionShape& shape, const ConstTensorView& qkv,
                     std::int64_t past, const TensorView& keys, const TensorView& values);
void rotary(Context& context, const AttentionShape& shape, double theta, std::int64_t offset,
            Rotation rotation, const TensorView& qkv);

void swap_inner(Context& context, std::int64_t images, std::int64_t rows, std::int64_t columns,
                const ConstTensorView& x, const TensorView& y);
void add_border(Context& context, const BorderShape& shape, const ConstTensorView& x,
                const TensorView& y);
void remove_border(Context& context, const BorderShape& shape, const ConstTensorView& y,
                   const TensorView& x);
void widen_rows(Context& context, const ConstTensorView& x, const TensorView& y);
void narrow_rows(Context& context, const ConstTensorView& y, const TensorView& x);

void max_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                      const TensorView& y, const TensorView& at);
void max_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                       const ConstTensorView& at, const TensorView& dx);
void average_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                          const TensorView& y);
void average_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                           const TensorView& dx);

void group_norm_forward(Context& context, const GroupNormShape& shape, const ConstTensorView& x,
                        const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                        const TensorView& y, const TensorView& mean, const TensorView& rstd);
void group_norm_backward_input(Context& context, const GroupNormShape& shape,
                               const ConstTensorView& x, const ConstTensorView& weight,
                               const ConstTensorView& mean, const ConstTensorView& rstd,
                               const ConstTensorView& dy, const TensorView& dx);
void group_norm_backward_weight(Context& context, const GroupNormShape& shape,
                                const ConstTensorView& x, const ConstTensorView& mean,
                                const ConstTensorView& rstd, const ConstTensorView& dy,
                                const TensorView& dweight, const TensorView& dbias,
                                Accumulate accumulate);

void column_statistics(Context& context, const ConstTensorView& x, const TensorView& mean,
                       const TensorView& variance);
void combine_statistics(Context& context, std::span<const ReductionStep> steps,
                        const ConstTensorView& parts, const TensorView& mean,
                        const TensorView& variance);
void mean_of_parts(Context& context, std::span<const ReductionStep> steps,
                   const ConstTensorView& parts, const TensorView& mean);
void batch_norm_forward(Context& context, const ConstTensorView& x, const ConstTensorView& mean,
                        const ConstTensorView& variance, const ConstTensorView& weight,
                        const ConstTensorView& bias, double epsilon, Activation activation,
                        const TensorView& y);
void batch_norm_backward_sums(Context& context, const ConstTensorView& x,
                              const ConstTensorView& mean, const ConstTensorView& variance,
                              double epsilon, const ConstTensorView& y, const ConstTensorView& dy,
                              const TensorView& dweight, const TensorView& dbias);
void batch_norm_backward_input(Context& context, const ConstTensorView& x,
                               const ConstTensorView& mean, const ConstTensorView& variance,
                               const ConstTensorView& weight, double epsilon,
                               const ConstTensorView& y, const ConstTensorView& dy,
                               const ConstTensorView& dweight, const ConstTensorView& dbias,
                               const TensorView& dx);

void convolution_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                         const ConstTensorView& w, const TensorView& y,
                         const ConvolutionOptions& options);
void convolution_backward_input(Context& context, const ConvolutionShape& shape,
                                const ConstTensorView& dy, const ConstTensorView& w,
                                const TensorView& dx);
void convolution_backward_weight(Context& context, const ConvolutionShape& shape,
                                 const ConstTensorView& x, const ConstTensorView& dy,
                                 const TensorView& dw, Accumulate accumulate);

}  // namespace strata::ops::cuda
