#include "onednn/convolution_primitive.hpp"

#include <algorithm>

#include "windows.hpp"

namespace strata::ops {
namespace {

using Dims = dnnl::memory::dims;
using Format = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

/// A convolution's tensors and windows as oneDNN descriptors.
struct Problem {
  Problem(const ConvolutionKey& key, std::int64_t count) : images(count) {
    const ConvolutionShape& shape = key.shape;
    const bool forward =
        key.step == ConvolutionStep::kForward || key.step == ConvolutionStep::kPackForward;
    const bool weight =
        key.step == ConvolutionStep::kBackwardWeight || key.step == ConvolutionStep::kUnpackWeight;
    const auto operands = library_type(key.operands);
    const auto result = library_type(key.result);
    x = Desc({images, shape.in_channels, shape.height.in, shape.width.in},
             forward || weight ? operands : result, Format::nhwc);
    y = Desc({images, shape.out_channels, shape.height.out, shape.width.out},
             forward ? result : operands, Format::nhwc);
    const std::int64_t groups = shape.groups;
    const std::int64_t inputs = shape.in_channels / groups;
    weight_dims = groups == 1 ? Dims{shape.out_channels, inputs}
                              : Dims{groups, shape.out_channels / groups, inputs};
    weight_dims.push_back(shape.height.window);
    weight_dims.push_back(shape.width.window);
    weight_type = weight ? result : operands;
    bias = Desc({shape.out_channels}, operands, Format::a);
    strides = {shape.height.stride, shape.width.stride};
    dilations = {shape.height.dilation - 1, shape.width.dilation - 1};
    before = {shape.height.padding, shape.width.padding};
    // A stride may leave elements at the end unread; oneDNN then wants padding 0.
    after = {std::max<std::int64_t>(0, padding_behind(shape.height)),
             std::max<std::int64_t>(0, padding_behind(shape.width))};
  }

  /// Weights in an order that the library chooses.
  [[nodiscard]] Desc packed() const { return {weight_dims, weight_type, Format::any}; }
  /// Weights as they are stored.
  [[nodiscard]] Desc stored() const {
    return {weight_dims, weight_type, weight_dims.size() == 4 ? Format::oihw : Format::goihw};
  }

  std::int64_t images;
  Desc x;
  Desc y;
  Desc bias;
  Dims weight_dims;
  dnnl::memory::data_type weight_type = dnnl::memory::data_type::f32;
  Dims strides;
  Dims dilations;
  Dims before;
  Dims after;
};

dnnl::convolution_forward::primitive_desc forward(const dnnl::engine& engine, const Problem& of,
                                                  const Desc& weight, bool has_bias) {
  const auto made = [&](const auto&... tensors) {
    return described<dnnl::convolution_forward>(
        engine, primitive_attributes(), dnnl::prop_kind::forward_training, kAlgorithm, tensors...,
        of.strides, of.dilations, of.before, of.after);
  };
  return has_bias ? made(of.x, weight, of.bias, of.y) : made(of.x, weight, of.y);
}

/// A backward pass, dnnl::convolution_backward_data or ..._weights.
template <typename Pass>
typename Pass::primitive_desc backward(const dnnl::engine& engine, ConvolutionKey key,
                                       const Problem& of, const Desc& weight) {
  key.result = key.operands;
  const Problem like(key, of.images);
  const Desc any(like.weight_dims, library_type(key.operands), Format::any);
  return described_backward<Pass>(engine, forward(engine, like, any, false), kAlgorithm, of.x,
                                  weight, of.y, of.strides, of.dilations, of.before, of.after);
}

/// The weight layout that oneDNN chooses for the key's packed_images.
Desc packed_weight(const dnnl::engine& engine, const ConvolutionKey& key) {
  const Problem of(key, key.packed_images);
  switch (key.step) {
    case ConvolutionStep::kPackForward:
    case ConvolutionStep::kForward:
      return forward(engine, of, of.packed(), key.has_bias).weights_desc();
    case ConvolutionStep::kPackBackwardInput:
    case ConvolutionStep::kBackwardInput:
      return backward<dnnl::convolution_backward_data>(engine, key, of, of.packed()).weights_desc();
    case ConvolutionStep::kBackwardWeight:
    case ConvolutionStep::kUnpackWeight:
      break;
  }
  return backward<dnnl::convolution_backward_weights>(engine, key, of, of.packed())
      .diff_weights_desc();
}

PrimitiveDescription reorder(const dnnl::engine& engine, const PrimitiveArgument& from,
                             const PrimitiveArgument& to) {
  const dnnl::reorder::primitive_desc made(engine, from.desc, engine, to.desc,
                                           primitive_attributes());
  return {dnnl::reorder(made), {from, to}, made.scratchpad_desc()};
}

}  // namespace

PrimitiveDescription describe(const dnnl::engine& engine, const ConvolutionKey& key) {
  const Problem of(key, key.shape.images);
  // Packed weights stay as the library has them.
  const Desc packed = packed_weight(engine, key);
  const bool widens = library_widens(key.operands);
  const bool widens_result = library_widens(key.result);
  switch (key.step) {
    case ConvolutionStep::kPackForward:
    case ConvolutionStep::kPackBackwardInput:
      return reorder(engine, {DNNL_ARG_FROM, of.stored(), widens}, {DNNL_ARG_TO, packed});
    case ConvolutionStep::kUnpackWeight:
      return reorder(engine, {DNNL_ARG_FROM, packed}, {DNNL_ARG_TO, of.stored(), widens_result});
    case ConvolutionStep::kForward: {
      const auto made = forward(engine, of, packed, key.has_bias);
      PrimitiveDescription description{dnnl::convolution_forward(made),
                                       {{DNNL_ARG_SRC, of.x, widens},
                                        {DNNL_ARG_WEIGHTS, packed},
                                        {DNNL_ARG_DST, of.y, widens_result}},
                                       made.scratchpad_desc()};
      if (key.has_bias) {
        description.arguments.push_back({DNNL_ARG_BIAS, of.bias, widens});
      }
      return description;
    }
    case ConvolutionStep::kBackwardInput: {
      const auto made = backward<dnnl::convolution_backward_data>(engine, key, of, packed);
      return {dnnl::convolution_backward_data(made),
              {{DNNL_ARG_DIFF_DST, of.y, widens},
               {DNNL_ARG_WEIGHTS, packed},
               {DNNL_ARG_DIFF_SRC, of.x, widens_result}},
              made.scratchpad_desc()};
    }
    case ConvolutionStep::kBackwardWeight:
      break;
  }
  const auto made = backward<dnnl::convolution_backward_weights>(engine, key, of, packed);
  return {dnnl::convolution_backward_weights(made),
          {{DNNL_ARG_SRC, of.x, widens},
           {DNNL_ARG_DIFF_DST, of.y, widens},
           {DNNL_ARG_DIFF_WEIGHTS, packed}},
          made.scratchpad_desc()};
}

}  // namespace strata::ops
