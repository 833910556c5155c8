// Operations where a result takes an operand's place, where some operands are no numbers, and where
// there is nothing to do.
#include <array>
#include <string>

#include "strata/core/random.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/embedding.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/pooling.hpp"
#include "strata/ops/reduce.hpp"
#include "strata/ops/row_norm.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

using Tensors = std::vector<TensorView>;

constexpr double kEpsilon = 1e-5;

void add_elements_in_place(std::vector<Case>& cases, const Shape& shape) {
  for (const auto& [activation, name] : enum_table<Activation>()) {
    const Activation f = activation;
    add_case(
        cases, std::string(name) + "_forward_in_place", {updated(shape)},
        [f](Context& context, const Tensors& t) { activation_forward(context, f, t[0], t[0]); });
    add_case(cases, std::string(name) + "_backward_in_place",
             {read(shape), read(shape), updated(shape)}, [f](Context& context, const Tensors& t) {
               activation_backward(context, f, t[0], t[1], t[2], t[2]);
             });
  }
  for (const auto& [gate, name] : enum_table<Gate>()) {
    const Gate f = gate;
    add_case(cases, std::string(name) + "_backward_in_place_of_dgate",
             {read(shape), read(shape), updated(shape), written(shape)},
             [f](Context& context, const Tensors& t) {
               gated_backward(context, f, t[0], t[1], t[2], t[2], t[3]);
             });
    add_case(cases, std::string(name) + "_backward_in_place_of_dup",
             {read(shape), read(shape), updated(shape), written(shape)},
             [f](Context& context, const Tensors& t) {
               gated_backward(context, f, t[0], t[1], t[2], t[3], t[2]);
             });
  }
  const RandomStream stream(7, RandomPurpose::kDropout, 3);
  add_case(
      cases, "dropout_forward_in_place", {updated(shape), bytes(Role::kWritten, shape)},
      [=](Context& context, const Tensors& t) {
        dropout_forward(context, t[0], 0.3, stream, {5}, t[0], t[1]);
      },
      Nearness::kSameBits);
  add_case(
      cases, "dropout_backward_in_place", {updated(shape), bytes(Role::kRead, shape)},
      [](Context& context, const Tensors& t) { dropout_backward(context, t[0], t[1], 0.3, t[0]); },
      Nearness::kSameBits);
}

/// The gradient in the place of dy, with and without an addend, and in that of the addend.
void add_norms_in_place(std::vector<Case>& cases, const Shape& shape, const std::string& of) {
  const Shape n{shape.back()};
  const Shape rows{shape.count() / shape.back()};
  const std::vector<Operand> layer{read(shape),    read(n),     computed(Role::kRead, rows),
                                   positive(rows), read(shape), updated(shape)};
  add_case(cases, "layer_norm_backward_input" + of, layer, [](Context& context, const Tensors& t) {
    row_norm_backward_input(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[5], {}, t[5]);
  });
  add_case(
      cases, "layer_norm_backward_input_added" + of, layer, [](Context& context, const Tensors& t) {
        row_norm_backward_input(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[5], t[4], t[5]);
      });
  add_case(cases, "layer_norm_backward_input_of_addend" + of, layer,
           [](Context& context, const Tensors& t) {
             row_norm_backward_input(context, {Center::kMean}, t[0], t[1], t[2], t[3], t[4], t[5],
                                     t[5]);
           });
  const std::vector<Operand> rms{read(shape), read(n), positive(rows), read(shape), updated(shape)};
  add_case(cases, "rms_norm_backward_input" + of, rms, [](Context& context, const Tensors& t) {
    row_norm_backward_input(context, {Center::kZero}, t[0], t[1], {}, t[2], t[4], {}, t[4]);
  });
  add_case(
      cases, "rms_norm_backward_input_added" + of, rms, [](Context& context, const Tensors& t) {
        row_norm_backward_input(context, {Center::kZero}, t[0], t[1], {}, t[2], t[4], t[3], t[4]);
      });
  add_case(
      cases, "rms_norm_backward_input_of_addend" + of, rms, [](Context& context, const Tensors& t) {
        row_norm_backward_input(context, {Center::kZero}, t[0], t[1], {}, t[2], t[3], t[4], t[4]);
      });
}

void add_rows_in_place(std::vector<Case>& cases, const Shape& shape) {
  const std::string of = "_in_place_of_" + std::to_string(shape.back());
  const Shape rows{shape.count() / shape.back()};
  add_case(cases, "softmax_forward" + of, {updated(shape)},
           [](Context& context, const Tensors& t) { softmax_forward(context, t[0], t[0]); });
  add_case(cases, "softmax_backward" + of, {read(shape), updated(shape)},
           [](Context& context, const Tensors& t) { softmax_backward(context, t[0], t[1], t[1]); });
  add_norms_in_place(cases, shape, of);
  add_case(cases, "cross_entropy_gradient" + of,
           {updated(shape), ids(rows, 0, 3 * shape.back()), computed(Role::kRead, rows)},
           [=](Context& context, const Tensors& t) {
             cross_entropy_gradient(context, t[0], t[1], shape.back(), shape.back(), t[2],
                                    rows[0] - 1, 0.125, t[0]);
           });
  cases.push_back({"mean_squared_error" + of,
                   {updated(shape), read(shape)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       mean_squared_error(context, t[0], t[1], shape[0] - 1, 0.125, t[0], sums);
                     });
                   }});
}

/// Every 97th element is no number: some rows have one, others none.
Operand with_nans(const Shape& shape, Role role = Role::kRead) {
  return {.role = role, .shape = shape, .nan_every = 97};
}

void add_losses_of_nans(std::vector<Case>& cases, const Shape& shape) {
  const std::string of = "_of_nans_in_" + std::to_string(shape.back());
  const Shape rows{shape[0]};
  cases.push_back({"cross_entropy" + of,
                   {with_nans(shape), ids(rows, 0, shape.back()), written(shape)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, t[0], t[1], shape[0], 0.125, t[2], sums);
                     });
                   }});
  cases.push_back({"mean_squared_error" + of,
                   {with_nans(shape), read(shape), written(shape)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       mean_squared_error(context, t[0], t[1], shape[0], 0.125, t[2], sums);
                     });
                   }});
  // The parts are not compared: of a row with a NaN only what follows from them is settled.
  cases.push_back(
      {"split_cross_entropy" + of,
       {with_nans(shape), ids(rows, 0, shape.back()), computed(Role::kWritten, rows)},
       [=](Context& context, const Tensors& t) {
         const std::int64_t bytes = shape[0] * kCrossEntropyParts * size_bytes(t[2].dtype());
         const device::Buffer memory(context.device(), bytes);
         const TensorView parts = memory.view(0, {1, shape[0], kCrossEntropyParts}, t[2].dtype());
         cross_entropy_parts(context, t[0], t[1], 0, shape.back(), parts);
         return loss_of(context, [&](const TensorView& sums) {
           combine_cross_entropy(context, {}, parts, t[1], shape.back(), shape[0], t[2], sums);
         });
       }});
}

void add_norms_of_nans(std::vector<Case>& cases, const Shape& shape) {
  const std::string of = "_of_nans_in_" + std::to_string(shape.back());
  const Shape n{shape.back()};
  const Shape rows{shape[0]};
  add_case(cases, "softmax_forward" + of, {with_nans(shape), written(shape)},
           [](Context& context, const Tensors& t) { softmax_forward(context, t[0], t[1]); });
  add_case(cases, "layer_norm_forward" + of,
           {with_nans(shape), read(n), read(n), written(shape), computed(Role::kWritten, rows),
            computed(Role::kWritten, rows)},
           [](Context& context, const Tensors& t) {
             row_norm_forward(context, {Center::kMean}, t[0], t[1], t[2], kEpsilon, t[3], t[4],
                              t[5]);
           });
  add_case(cases, "rms_norm_forward" + of,
           {with_nans(shape), read(n), written(shape), computed(Role::kWritten, rows)},
           [](Context& context, const Tensors& t) {
             row_norm_forward(context, {Center::kZero}, t[0], t[1], {}, kEpsilon, t[2], {}, t[3]);
           });
  add_case(
      cases, "column_statistics" + of,
      {with_nans(shape), computed(Role::kWritten, n), computed(Role::kWritten, n)},
      [](Context& context, const Tensors& t) { column_statistics(context, t[0], t[1], t[2]); });
}

void add_products_of_nans(std::vector<Case>& cases) {
  const Shape a{37, 10};
  const Shape b{10, 24};
  const Shape c{37, 24};
  add_case(cases, "matmul_gelu_of_nans", {with_nans(a), read(b), written(c), written(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[3],
                    {.activation = Activation::kGelu, .pre_activation = t[2]});
           });
  add_case(cases, "matmul_gelu_gradient_at_nans", {read(a), read(b), with_nans(c), written(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[3], {.gelu_gradient_of = t[2]});
           });
}

}  // namespace

void add_in_place_cases(std::vector<Case>& cases) {
  add_elements_in_place(cases, {37, 61});
  for (const Shape& shape : {Shape{23, 70}, Shape{9, 1500}}) {
    add_rows_in_place(cases, shape);
  }
  add_norms_in_place(cases, {3, 9000}, "_in_place_of_9000");
  const GroupNormShape groups{.images = 3, .pixels = 20, .channels = 12, .groups = 4};
  const Shape statistics{groups.images, groups.groups};
  add_case(cases, "group_norm_backward_input_in_place",
           {read(groups.tensor()), read({groups.channels}), computed(Role::kRead, statistics),
            positive(statistics), updated(groups.tensor())},
           [=](Context& context, const Tensors& t) {
             group_norm_backward_input(context, groups, t[0], t[1], t[2], t[3], t[4], t[4]);
           });
  add_case(
      cases, "add_positions_in_place", {updated({50, 33}), read({9, 33})},
      [](Context& context, const Tensors& t) {
        add_positions(context, t[0], t[1], {.tokens = 7, .first_row = 5, .offset = 2}, t[0]);
      },
      Nearness::kSameBits);
}

void add_nan_cases(std::vector<Case>& cases) {
  const Shape shape{37, 61};
  for (const auto& [activation, name] : enum_table<Activation>()) {
    const Activation f = activation;
    add_case(
        cases, std::string(name) + "_forward_of_nans", {with_nans(shape), written(shape)},
        [f](Context& context, const Tensors& t) { activation_forward(context, f, t[0], t[1]); });
  }
  add_case(cases, "convert_nans", {with_nans(shape), computed(Role::kWritten, shape)},
           [](Context& context, const Tensors& t) { convert(context, t[0], t[1]); });
  add_case(cases, "add_nans", {with_nans(shape), updated(shape)},
           [](Context& context, const Tensors& t) { add(context, t[0], t[1]); });
  for (const Shape& rows : {Shape{23, 70}, Shape{9, 1500}}) {
    add_losses_of_nans(cases, rows);
    add_norms_of_nans(cases, rows);
  }
  add_products_of_nans(cases);
  add_losses_of_nans(cases, {5, 9001});
  const PoolingShape pool{.images = 3,
                          .height = {.in = 8, .out = 4, .window = 2, .stride = 2},
                          .width = {.in = 6, .out = 3, .window = 2, .stride = 2},
                          .channels = 21};
  add_case(cases, "max_pool_forward_of_nans",
           {with_nans(pool.input()), written(pool.output()), bytes(Role::kWritten, pool.output())},
           [=](Context& context, const Tensors& t) {
             max_pool_forward(context, pool, t[0], t[1], t[2]);
           });
  Operand sums = written({50});
  sums.fixed = DType::kFloat64;
  add_case(
      cases, "sum_of_squares_of_nans", {with_nans({4999}), sums},
      [](Context& context, const Tensors& t) { sum_of_squares_blocks(context, t[0], 100, t[1]); },
      Nearness::kRounded, false);
}

void add_empty_cases(std::vector<Case>& cases) {
  const Shape none{0, 70};
  const Shape n{70};
  const Shape rows{0};
  add_case(cases, "copy_nothing", {read(none), written(none)},
           [](Context& context, const Tensors& t) { copy(context, t[0], t[1]); });
  add_case(cases, "add_nothing", {read(none), updated(none)},
           [](Context& context, const Tensors& t) { add(context, t[0], t[1]); });
  add_case(cases, "relu_of_nothing", {read(none), written(none)},
           [](Context& context, const Tensors& t) {
             activation_forward(context, Activation::kRelu, t[0], t[1]);
           });
  add_case(cases, "softmax_of_nothing", {read(none), written(none)},
           [](Context& context, const Tensors& t) { softmax_forward(context, t[0], t[1]); });
  add_case(cases, "layer_norm_of_nothing",
           {read(none), read(n), read(n), written(none), computed(Role::kWritten, rows),
            computed(Role::kWritten, rows)},
           [](Context& context, const Tensors& t) {
             row_norm_forward(context, {Center::kMean}, t[0], t[1], t[2], kEpsilon, t[3], t[4],
                              t[5]);
           });
  // Sums of no terms are 0, and nothing where they are added.
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const std::string added = accumulate == Accumulate::kAdd ? "_added" : "";
    add_case(
        cases, "column_sum_of_nothing" + added, {read(none), computed(Role::kBoth, n)},
        [=](Context& context, const Tensors& t) { column_sum(context, t[0], t[1], accumulate); });
    add_case(cases, "embedding_backward_of_nothing" + added,
             {ids(rows, 0, 5), read(none), computed(Role::kBoth, {5, 70})},
             [=](Context& context, const Tensors& t) {
               embedding_backward(context, t[0], t[1], 0, t[2], accumulate);
             });
  }
  cases.push_back({"cross_entropy_of_nothing",
                   {read(none), ids(rows, 0, 70), written(none)},
                   [](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       cross_entropy(context, t[0], t[1], 0, 0.125, t[2], sums);
                     });
                   }});
  cases.push_back({"mean_squared_error_of_nothing",
                   {read(none), read(none), written(none)},
                   [](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       mean_squared_error(context, t[0], t[1], 0, 0.125, t[2], sums);
                     });
                   }});
  const std::array<ReductionStep, 1> steps{{{0, 1}}};
  cases.push_back({"combine_cross_entropy_of_nothing",
                   {computed(Role::kRead, {2, 0, kCrossEntropyParts}), ids(rows, 0, 70),
                    computed(Role::kWritten, rows)},
                   [=](Context& context, const Tensors& t) {
                     return loss_of(context, [&](const TensorView& sums) {
                       combine_cross_entropy(context, steps, t[0], t[1], 70, 0, t[2], sums);
                     });
                   }});
  Operand sums = written({0});
  sums.fixed = DType::kFloat64;
  add_case(
      cases, "sum_of_squares_of_nothing", {read({0}), sums},
      [](Context& context, const Tensors& t) { sum_of_squares_blocks(context, t[0], 100, t[1]); },
      Nearness::kRounded, false);
}

}  // namespace strata::ops::test
