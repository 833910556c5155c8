// Runs a whole model through its stages on tensors from standard input and writes the loss and
// every weight's gradient to standard output, for model_reference.py.
// Usage: model_cases DTYPE LOSS MICROBATCH STAGES LAYER...; in: every parameter, inputs, targets.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "strata/core/text.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/stage.hpp"

#include "streams.hpp"

namespace strata::nn {
namespace {

using reference::read_tensor;
using reference::Tensor;

struct Arguments {
  LossKind loss = LossKind::kCrossEntropy;
  std::int64_t microbatch = 1;
  std::int64_t stages = 1;
  std::vector<std::string> layers;
};

/// Adds the gradients of all microbatches in one arena.
template <typename T>
class Sum final : public GradientSink {
 public:
  explicit Sum(std::int64_t elements) : gradients_(Shape{elements}) {}

  Target target(std::int64_t m) override {
    return {.gradients = gradients_.view(),
            .accumulate = m == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd};
  }
  void layer_done(std::int64_t /*m*/, std::int64_t /*layer*/) override {}
  void finish() override {}

  [[nodiscard]] std::span<const T> of(const PlacedParameter& placed) {
    return std::span(gradients_.elements())
        .subspan(static_cast<std::size_t>(placed.offset),
                 static_cast<std::size_t>(placed.spec.shape.count()));
  }

 private:
  Tensor<T> gradients_;
};

/// A stage with what it needs.
template <typename T>
struct Part {
  Part(ops::Context& context, const Model& model, const grid::Range& layers,
       std::int64_t microbatch)
      : layout(layout_of(model.parameters(), layers)),
        weights(Shape{layout.elements}),
        sum(layout.elements),
        stage(context, model, layers, microbatch,
              {.activations = 1, .inputs = layers.begin == 0 ? 0 : 1, .gradients = 1},
              weights.view()) {
    for (const PlacedParameter& placed : layout.parameters) {
      auto values = read_tensor<T>();
      require(values.shape() == placed.spec.shape, "{} has another shape", placed.spec.name);
      device::copy_tensor(values.view(),
                          weights.view().flat_slice(placed.offset, placed.spec.shape.count()));
    }
  }

  ParameterLayout layout;
  Tensor<T> weights;
  Sum<T> sum;
  Stage stage;
};

template <typename T>
using Parts = std::vector<std::unique_ptr<Part<T>>>;

/// One microbatch forward and backward; returns the sum of its losses.
template <typename T>
double pass(const Parts<T>& parts, std::int64_t m, const ConstTensorView& sample,
            const ConstTensorView& targets, double scale) {
  const std::int64_t rows = sample.shape()[0];
  const auto input_of = [&](std::size_t s) {
    return s == 0 ? sample : ConstTensorView(parts[s]->stage.input_of(m));
  };
  double loss = 0.0;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    parts[s]->stage.forward(m, input_of(s), m * rows, Mode::kTraining);
    if (s + 1 < parts.size()) {
      device::copy_tensor(parts[s]->stage.output_of(m, input_of(s)),
                          parts[s + 1]->stage.input_of(m));
    } else {
      loss = parts[s]->stage.loss(m, input_of(s), targets, rows, scale, Mode::kTraining).loss;
    }
  }
  for (std::size_t s = parts.size(); s-- > 0;) {
    parts[s]->stage.backward_input(m, input_of(s), m * rows);
    if (s > 0) {
      device::copy_tensor(parts[s]->stage.input_gradient_of(m),
                          parts[s - 1]->stage.output_gradient_of(m));
    }
    parts[s]->stage.backward_weight(m, input_of(s), m * rows, parts[s]->sum);
  }
  return loss;
}

template <typename T, typename Target>
void run(const Arguments& arguments) {
  ops::Context context(2);
  // The widths of input and output come first, as a tensor of two numbers.
  auto widths = read_tensor<std::int64_t>();
  const Model model({.layers = arguments.layers,
                     .loss = arguments.loss,
                     .input_shape = Shape{widths.elements()[0]},
                     .outputs = widths.elements()[1]});
  Parts<T> parts;
  for (const grid::Range& layers : split_model(model, arguments.stages, "auto").stages) {
    parts.push_back(std::make_unique<Part<T>>(context, model, layers, arguments.microbatch));
  }
  auto inputs = read_tensor<T>();
  auto targets = read_tensor<Target>();
  const std::int64_t rows = inputs.shape()[0];
  const double scale = 1.0 / static_cast<double>(rows);
  const auto rows_of = [&](auto& tensor, std::int64_t m) {
    const std::int64_t width = tensor.shape().count() / rows;
    const Shape shape = tensor.shape().tail().prepended(arguments.microbatch);
    return ConstTensorView(
        tensor.view()
            .flat_slice(m * arguments.microbatch * width, arguments.microbatch * width)
            .reshaped(shape));
  };
  double loss = 0.0;
  for (std::int64_t m = 0; m < rows / arguments.microbatch; ++m) {
    loss += pass<T>(parts, m, rows_of(inputs, m), rows_of(targets, m), scale);
  }
  reference::write_scalar<T>(loss * scale);
  for (const auto& part : parts) {
    for (const PlacedParameter& placed : part->layout.parameters) {
      reference::write(part->sum.of(placed));
    }
  }
}

Arguments arguments_of(std::span<char*> words) {
  Arguments arguments;
  const auto loss = enum_from_name<LossKind>(words[0]);
  if (!loss || !parse_int64(words[1], arguments.microbatch) ||
      !parse_int64(words[2], arguments.stages)) {
    fail(ExitCode::kUsage, "usage: model_cases DTYPE LOSS MICROBATCH STAGES LAYER...");
  }
  arguments.loss = *loss;
  arguments.layers.assign(words.begin() + 3, words.end());
  return arguments;
}

}  // namespace
}  // namespace strata::nn

int main(int argc, char** argv) {
  try {
    const std::span words(argv, static_cast<std::size_t>(argc));
    const auto dtype = argc > 5 ? strata::enum_from_name<strata::DType>(words[1]) : std::nullopt;
    if (!dtype) {
      strata::fail(strata::ExitCode::kUsage,
                   "usage: model_cases DTYPE LOSS MICROBATCH STAGES LAYER...");
    }
    const strata::nn::Arguments arguments = strata::nn::arguments_of(words.subspan(2));
    strata::with_floating(*dtype, [&]<typename T>(T) {
      if (arguments.loss == strata::nn::LossKind::kCrossEntropy) {
        strata::nn::run<T, std::int64_t>(arguments);
      } else {
        strata::nn::run<T, T>(arguments);
      }
    });
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_cases: {}\n", error.what());
    return 1;
  }
}
