#include <string>

#include "strata/ops/convolution.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/image.hpp"
#include "strata/ops/pooling.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

using Tensors = std::vector<TensorView>;

void add_moves(std::vector<Case>& cases) {
  add_case(
      cases, "swap_inner", {read({3, 45, 70}), written({3, 70, 45})},
      [](Context& context, const Tensors& t) { swap_inner(context, 3, 45, 70, t[0], t[1]); },
      Nearness::kSameBits);
  const BorderShape border{.images = 2, .height = 5, .width = 7, .channels = 3, .border = 2};
  const Shape inner{2, 5, 7, 3};
  const Shape outer{2, 9, 11, 3};
  add_case(
      cases, "add_border", {read(inner), written(outer)},
      [=](Context& context, const Tensors& t) { add_border(context, border, t[0], t[1]); },
      Nearness::kSameBits);
  add_case(
      cases, "remove_border", {read(outer), written(inner)},
      [=](Context& context, const Tensors& t) { remove_border(context, border, t[0], t[1]); },
      Nearness::kSameBits);
  add_case(
      cases, "widen_rows", {read({301, 3}), written({301, 8})},
      [](Context& context, const Tensors& t) { widen_rows(context, t[0], t[1]); },
      Nearness::kSameBits);
  add_case(
      cases, "narrow_rows", {read({301, 8}), written({301, 3})},
      [](Context& context, const Tensors& t) { narrow_rows(context, t[0], t[1]); },
      Nearness::kSameBits);
}

/// What only moves elements moves those of images too.
void add_moves_of_bytes(std::vector<Case>& cases) {
  const auto image = [](Role role, const Shape& shape) { return bytes(role, shape, 256); };
  add_case(
      cases, "swap_inner_of_bytes",
      {image(Role::kRead, {3, 45, 70}), image(Role::kWritten, {3, 70, 45})},
      [](Context& context, const Tensors& t) { swap_inner(context, 3, 45, 70, t[0], t[1]); },
      Nearness::kSameBits, false);
  const BorderShape border{.images = 2, .height = 5, .width = 7, .channels = 3, .border = 2};
  const Shape inner{2, 5, 7, 3};
  const Shape outer{2, 9, 11, 3};
  add_case(
      cases, "add_border_to_bytes", {image(Role::kRead, inner), image(Role::kWritten, outer)},
      [=](Context& context, const Tensors& t) { add_border(context, border, t[0], t[1]); },
      Nearness::kSameBits, false);
  add_case(
      cases, "remove_border_of_bytes", {image(Role::kRead, outer), image(Role::kWritten, inner)},
      [=](Context& context, const Tensors& t) { remove_border(context, border, t[0], t[1]); },
      Nearness::kSameBits, false);
  add_case(
      cases, "widen_rows_of_bytes", {image(Role::kRead, {301, 3}), image(Role::kWritten, {301, 8})},
      [](Context& context, const Tensors& t) { widen_rows(context, t[0], t[1]); },
      Nearness::kSameBits, false);
  add_case(
      cases, "narrow_rows_of_bytes",
      {image(Role::kRead, {301, 8}), image(Role::kWritten, {301, 3})},
      [](Context& context, const Tensors& t) { narrow_rows(context, t[0], t[1]); },
      Nearness::kSameBits, false);
}

void add_pools(std::vector<Case>& cases, const PoolingShape& shape) {
  const std::string of =
      "_of_" + std::to_string(shape.height.window) + "x" + std::to_string(shape.width.window);
  add_case(
      cases, "max_pool_forward" + of,
      {read(shape.input()), written(shape.output()), bytes(Role::kWritten, shape.output())},
      [=](Context& context, const Tensors& t) {
        max_pool_forward(context, shape, t[0], t[1], t[2]);
      },
      Nearness::kSameBits);
  add_case(cases, "max_pool_backward" + of,
           {read(shape.output()),
            bytes(Role::kRead, shape.output(), shape.height.window * shape.width.window),
            written(shape.input())},
           [=](Context& context, const Tensors& t) {
             max_pool_backward(context, shape, t[0], t[1], t[2]);
           });
  add_case(cases, "average_pool_forward" + of, {read(shape.input()), written(shape.output())},
           [=](Context& context, const Tensors& t) {
             average_pool_forward(context, shape, t[0], t[1]);
           });
  add_case(cases, "average_pool_backward" + of, {read(shape.output()), written(shape.input())},
           [=](Context& context, const Tensors& t) {
             average_pool_backward(context, shape, t[0], t[1]);
           });
}

void add_group_norms(std::vector<Case>& cases, const GroupNormShape& shape) {
  const std::string of =
      "_of_" + std::to_string(shape.channels) + "_in_" + std::to_string(shape.groups);
  const Shape tensor = shape.tensor();
  const Shape channels{shape.channels};
  const Shape groups{shape.images, shape.groups};
  add_case(cases, "group_norm_forward" + of,
           {read(tensor), read(channels), read(channels), written(tensor),
            computed(Role::kWritten, groups), computed(Role::kWritten, groups)},
           [=](Context& context, const Tensors& t) {
             group_norm_forward(context, shape, t[0], t[1], t[2], 1e-5, t[3], t[4], t[5]);
           });
  add_case(cases, "group_norm_backward_input" + of,
           {read(tensor), read(channels), computed(Role::kRead, groups), positive(groups),
            read(tensor), written(tensor)},
           [=](Context& context, const Tensors& t) {
             group_norm_backward_input(context, shape, t[0], t[1], t[2], t[3], t[4], t[5]);
           });
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const std::string added = accumulate == Accumulate::kAdd ? "_added" : "";
    add_case(cases, "group_norm_backward_weight" + added + of,
             {read(tensor), computed(Role::kRead, groups), positive(groups), read(tensor),
              computed(Role::kBoth, channels), computed(Role::kBoth, channels)},
             [=](Context& context, const Tensors& t) {
               group_norm_backward_weight(context, shape, t[0], t[1], t[2], t[3], t[4], t[5],
                                          accumulate);
             });
  }
}

void add_convolutions(std::vector<Case>& cases, const std::string& name,
                      const ConvolutionShape& shape) {
  const Shape x = shape.input();
  const Shape w = shape.weight();
  const Shape y = shape.output();
  for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
    add_case(cases,
             "convolution_forward_" + name + (activation == Activation::kRelu ? "_relu" : ""),
             {read(x), read(w), read({shape.out_channels}), written(y)},
             [=](Context& context, const Tensors& t) {
               convolution_forward(context, shape, t[0], t[1], t[3],
                                   {.bias = t[2], .activation = activation});
             });
  }
  add_case(cases, "convolution_to_computed_" + name,
           {read(x), read(w), computed(Role::kWritten, y)},
           [=](Context& context, const Tensors& t) {
             convolution_forward(context, shape, t[0], t[1], t[2]);
           });
  add_case(cases, "convolution_backward_input_" + name, {read(y), read(w), written(x)},
           [=](Context& context, const Tensors& t) {
             convolution_backward_input(context, shape, t[0], t[1], t[2]);
           });
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const std::string added = accumulate == Accumulate::kAdd ? "added_" : "";
    add_case(cases, "convolution_backward_weight_" + added + name,
             {read(x), read(y), computed(Role::kBoth, w)}, [=](Context& context, const Tensors& t) {
               convolution_backward_weight(context, shape, t[0], t[1], t[2], accumulate);
             });
  }
}

}  // namespace

void add_image_cases(std::vector<Case>& cases) {
  add_moves(cases);
  add_moves_of_bytes(cases);
  add_pools(cases, {.images = 3,
                    .height = {.in = 8, .out = 4, .window = 2, .stride = 2},
                    .width = {.in = 6, .out = 3, .window = 2, .stride = 2},
                    .channels = 21});
  add_pools(cases, {.images = 2,
                    .height = {.in = 9, .out = 5, .window = 3, .stride = 2, .padding = 1},
                    .width = {.in = 11, .out = 7, .window = 3, .dilation = 2},
                    .channels = 5});
  add_group_norms(cases, {.images = 3, .pixels = 20, .channels = 12, .groups = 4});
  add_group_norms(cases, {.images = 2, .pixels = 77, .channels = 40, .groups = 1});
}

void add_convolution_cases(std::vector<Case>& cases) {
  add_convolutions(cases, "3x3",
                   {.images = 5,
                    .height = {.in = 12, .out = 12, .window = 3, .padding = 1},
                    .width = {.in = 12, .out = 12, .window = 3, .padding = 1},
                    .in_channels = 6,
                    .out_channels = 70});
  add_convolutions(cases, "strided_groups",
                   {.images = 2,
                    .height = {.in = 11, .out = 5, .window = 3, .stride = 2, .padding = 0},
                    .width = {.in = 13, .out = 6, .window = 4, .stride = 2, .padding = 1},
                    .in_channels = 6,
                    .out_channels = 9,
                    .groups = 3});
  add_convolutions(cases, "dilated",
                   {.images = 1,
                    .height = {.in = 9, .out = 9, .window = 3, .dilation = 2, .padding = 2},
                    .width = {.in = 10, .out = 6, .window = 3, .dilation = 2},
                    .in_channels = 4,
                    .out_channels = 3});
  // One row and column more of zeros behind than before.
  add_convolutions(cases, "padded_behind",
                   {.images = 3,
                    .height = {.in = 8, .out = 4, .window = 3, .stride = 2},
                    .width = {.in = 10, .out = 5, .window = 3, .stride = 2},
                    .in_channels = 5,
                    .out_channels = 7});
  add_convolutions(cases, "1x1",
                   {.images = 40,
                    .height = {.in = 6, .out = 6},
                    .width = {.in = 6, .out = 6},
                    .in_channels = 65,
                    .out_channels = 33});
}

}  // namespace strata::ops::test
