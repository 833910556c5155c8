#pragma once

#include "strata/ops/activation.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/embedding.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/head_norm.hpp"
#include "strata/ops/image.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/pooling.hpp"
#include "strata/ops/preference_loss.hpp"
#include "strata/ops/reduce.hpp"
#include "strata/ops/row_norm.hpp"
#include "strata/ops/split_cross_entropy.hpp"
#include "strata/ops/update.hpp"

#include "cuda/dispatch.hpp"

// The operations on GPUs: one function for each public one, with its signature, defined in the
// operation's .cu file. The public function checks shapes and dtypes; a GPU function checks the
// memory space of a tensor where it takes the tensor's address.
namespace strata::ops::cuda {

decltype(ops::fill_zero) fill_zero;
decltype(ops::copy) copy;
decltype(ops::add) add;
decltype(ops::scaled) scaled;
decltype(ops::convert) convert;
decltype(ops::add_bias_residual) add_bias_residual;

decltype(ops::activation_forward) activation_forward;
decltype(ops::activation_backward) activation_backward;
decltype(ops::gated_forward) gated_forward;
decltype(ops::gated_backward) gated_backward;
decltype(ops::softmax_forward) softmax_forward;
decltype(ops::softmax_backward) softmax_backward;

decltype(ops::matmul) matmul;
decltype(ops::column_sums) column_sums;

decltype(ops::set_sample_origin) set_sample_origin;
decltype(ops::dropout_forward) dropout_forward;
decltype(ops::bias_dropout_residual) bias_dropout_residual;
decltype(ops::dropout_backward) dropout_backward;

decltype(ops::row_norm_forward) row_norm_forward;
decltype(ops::row_norm_backward_input) row_norm_backward_input;
decltype(ops::row_norm_backward_weight) row_norm_backward_weight;
decltype(ops::row_norm_backward) row_norm_backward;
decltype(ops::head_norm_forward) head_norm_forward;
decltype(ops::head_norm_backward) head_norm_backward;
decltype(ops::head_norm_squares) head_norm_squares;
decltype(ops::head_norm_products) head_norm_products;

decltype(ops::cross_entropy) cross_entropy;
decltype(ops::mean_squared_error) mean_squared_error;

decltype(ops::cross_entropy_parts) cross_entropy_parts;
decltype(ops::combine_cross_entropy) combine_cross_entropy;
decltype(ops::cross_entropy_gradient) cross_entropy_gradient;
decltype(ops::preference_loss) preference_loss;

decltype(ops::embedding_forward) embedding_forward;
decltype(ops::embedding_backward) embedding_backward;
decltype(ops::add_positions) add_positions;
decltype(ops::positions_backward) positions_backward;

decltype(ops::fold) fold;
decltype(ops::fold_into) fold_into;
decltype(ops::sum_of_squares_blocks) sum_of_squares_blocks;

decltype(ops::sgd_update) sgd_update;
decltype(ops::adam_update) adam_update;
decltype(ops::adagrad_update) adagrad_update;
decltype(ops::average_update) average_update;

decltype(ops::causal_attention_forward) causal_attention_forward;
decltype(ops::causal_attention_backward) causal_attention_backward;
decltype(ops::cached_attention) cached_attention;
decltype(ops::append_to_cache) append_to_cache;
decltype(ops::rotary) rotary;

decltype(ops::swap_inner) swap_inner;
decltype(ops::add_border) add_border;
decltype(ops::remove_border) remove_border;
decltype(ops::widen_rows) widen_rows;
decltype(ops::narrow_rows) narrow_rows;

decltype(ops::max_pool_forward) max_pool_forward;
decltype(ops::max_pool_backward) max_pool_backward;
decltype(ops::average_pool_forward) average_pool_forward;
decltype(ops::average_pool_backward) average_pool_backward;

decltype(ops::group_norm_forward) group_norm_forward;
decltype(ops::group_norm_backward_input) group_norm_backward_input;
decltype(ops::group_norm_backward_weight) group_norm_backward_weight;

decltype(ops::column_statistics) column_statistics;
decltype(ops::combine_statistics) combine_statistics;
decltype(ops::mean_of_parts) mean_of_parts;
decltype(ops::batch_norm_forward) batch_norm_forward;
decltype(ops::batch_norm_backward_sums) batch_norm_backward_sums;
decltype(ops::batch_norm_backward_input) batch_norm_backward_input;

decltype(ops::convolution_forward) convolution_forward;
decltype(ops::convolution_backward_input) convolution_backward_input;
decltype(ops::convolution_backward_weight) convolution_backward_weight;

}  // namespace strata::ops::cuda
