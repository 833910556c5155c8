// Runs a whole model through its stages on tensors from standard input and writes the loss and
// every parameter's gradient to standard output, for model_reference.py.
// Usage: model_cases DTYPE INPUT LOSS MICROBATCH STAGES SHARDS LOSS_PIECES LAYER..., INPUT numbers
// or tokens; in: the sample's shape (width, context, or channels x height x width) and the number
// of outputs in one tensor, every trained parameter, inputs (images channels last), targets.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "strata/core/text.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/layer_trace.hpp"
#include "strata/nn/stage.hpp"

#include "streams.hpp"

namespace strata::nn {
namespace {

using reference::read_tensor;
using reference::Tensor;

constexpr const char* kUsage =
    "usage: model_cases DTYPE INPUT LOSS MICROBATCH STAGES SHARDS LOSS_PIECES LAYER...";

struct Arguments {
  InputKind input = InputKind::kNumbers;
  LossKind loss = LossKind::kCrossEntropy;
  std::int64_t microbatch = 1;
  std::int64_t stages = 1;
  std::int64_t shards = 1;
  std::int64_t loss_pieces = 1;
  std::vector<std::string> layers;
};

/// What PyTorch has too, once.
bool is_compared(const ParameterSpec& spec) {
  return spec.ownership == Ownership::kOwned && spec.rule == ParameterRule::kTrained;
}

/// Whole parameters by name.
template <typename T>
using Tensors = std::map<std::string, Tensor<T>>;

/// Calls act(first element in the whole parameter, first element in the slice, count) for every run
/// of elements that lie together in both.
template <typename Act>
void for_each_run(const PlacedParameter& placed, const Act& act) {
  const Shape& whole = placed.spec.shape;
  const std::size_t split =
      placed.spec.split == kNotSplit ? 0 : static_cast<std::size_t>(placed.spec.split);
  std::int64_t inner = 1;
  for (std::size_t d = split + 1; d < whole.rank(); ++d) {
    inner *= whole[d];
  }
  const std::int64_t run = placed.shape[split] * inner;
  for (std::int64_t at = 0; at * run < placed.shape.count(); ++at) {
    act(at * whole[split] * inner + placed.first_index * inner, at * run, run);
  }
}

/// Adds the gradients of all microbatches in one arena.
template <typename T>
class Sum final : public GradientSink {
 public:
  explicit Sum(std::int64_t elements) : gradients_(Shape{elements}) {}

  Target begin_microbatch(std::int64_t m, const grid::Range& /*layers*/) override {
    return {.gradients = gradients_.view(),
            .accumulate = m == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd};
  }
  bool acts_on(std::int64_t /*m*/, std::int64_t /*layer*/) const override { return false; }
  void layer_done(std::int64_t /*m*/, std::int64_t /*layer*/) override {}
  void finish() override {}

  /// Adds a slice's gradient to the whole parameter's.
  void add(const PlacedParameter& placed, std::vector<T>& whole) {
    for_each_run(placed, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        whole[static_cast<std::size_t>(to + i)] +=
            gradients_.elements()[static_cast<std::size_t>(placed.offset + from + i)];
      }
    });
  }

 private:
  Tensor<T> gradients_;
};

/// A stage with what it needs.
template <typename T>
struct Part {
  Part(ops::Context& context, comm::ShardGroup& group, const Model& model,
       const grid::Range& layers, const Arguments& arguments, Tensors<T>& parameters)
      : shards{.count = group.shards(), .own = group.own()},
        layout(layout_of(model.parameters(), layers, shards)),
        weights(Shape{layout.weight_elements}),
        sum(layout.elements),
        stage(context, engine, group, model,
              {.layers = layers,
               .pass = {.microbatch = arguments.microbatch,
                        .dtype = kDTypeOf<T>,
                        .shards = shards,
                        .row_pieces = arguments.shards > 1 ? arguments.loss_pieces : 1,
                        .loss_pieces = arguments.loss_pieces},
               .slots = {.activations = 1, .inputs = layers.begin == 0 ? 0 : 1, .gradients = 1},
               .order = arguments.loss_pieces == 1 ? BackwardOrder::kSplit : BackwardOrder::kFused},
              layout, weights.view()) {
    for (const PlacedParameter& placed : layout.parameters) {
      if (placed.offset >= layout.weight_elements || placed.spec.rule == ParameterRule::kAverage) {
        continue;  // used in the place of its owner, or only in evaluation
      }
      const TensorView whole = parameters.at(placed.spec.name).view();
      for_each_run(placed, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
        device::copy_tensor(whole.flat_slice(from, count),
                            weights.view().flat_slice(placed.offset + to, count));
      });
    }
  }

  Shards shards;
  ParameterLayout layout;
  Tensor<T> weights;
  Sum<T> sum;
  comm::ProgressEngine engine;
  Stage stage;
};

template <typename T>
using Parts = std::vector<std::unique_ptr<Part<T>>>;

/// One microbatch forward and backward; returns the sum of its losses.
template <typename T>
double pass(const Parts<T>& parts, std::int64_t m, const ConstTensorView& sample,
            const ConstTensorView& targets, double scale) {
  const std::int64_t rows = sample.shape()[0];
  const std::vector<Microbatch> one{
      {.number = m, .execution_index = m, .input = sample, .first_sample = m * rows}};
  const auto copy_all = [](const auto& from, const auto& to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      device::copy_tensor(from[i], to[i]);
    }
  };
  for (std::size_t s = 0; s < parts.size(); ++s) {
    parts[s]->stage.forward(one, Mode::kTraining);
    if (s + 1 < parts.size()) {
      copy_all(parts[s]->stage.outputs_of(one.front()), parts[s + 1]->stage.inputs_of(m));
    } else {
      parts[s]->stage.loss(one.front(), targets, rows, scale, Mode::kTraining);
    }
  }
  for (std::size_t s = parts.size(); s-- > 0;) {
    parts[s]->stage.backward_input(one, parts[s]->sum);
    if (s > 0) {
      copy_all(parts[s]->stage.input_gradients_of(m), parts[s - 1]->stage.output_gradients_of(m));
    }
    parts[s]->stage.backward_weight(one, parts[s]->sum);
  }
  return parts.back()->stage.losses().front().loss;
}

template <typename T>
void write_gradients(const Model& model, const Parts<T>& parts) {
  for (const ParameterSpec& spec : model.parameters()) {
    if (!is_compared(spec)) {
      continue;
    }
    Tensor<T> gradient(spec.shape);
    for (const auto& part : parts) {
      for (const PlacedParameter& placed : part->layout.parameters) {
        if (placed.spec.name == spec.name) {
          part->sum.add(placed, gradient.elements());
        }
      }
    }
    reference::write(gradient);
  }
}

template <typename T, typename Input, typename Target>
void run(const Arguments& arguments) {
  ops::Context context(2);
  comm::ShardGroup group(arguments.shards);
  auto sizes = read_tensor<std::int64_t>();
  const std::size_t dimensions = sizes.elements().size() - 1;
  const Model model({.layers = arguments.layers,
                     .loss = {.kind = arguments.loss},
                     .input_shape = Shape(std::span(sizes.elements()).first(dimensions)),
                     .outputs = sizes.elements()[dimensions],
                     .input_kind = arguments.input,
                     .shards = arguments.shards});
  Tensors<T> parameters;
  for (const ParameterSpec& spec : model.parameters()) {
    if (is_compared(spec)) {
      auto values = read_tensor<T>();
      require(values.shape() == spec.shape, "{} is {}, not {}", spec.name, spec.shape.text(),
              values.shape().text());
      parameters.emplace(spec.name, std::move(values));
    }
  }
  Parts<T> parts;
  for (const grid::Range& layers :
       split_model(model, layer_costs(model), arguments.stages, "auto").stages) {
    parts.push_back(
        std::make_unique<Part<T>>(context, group, model, layers, arguments, parameters));
  }
  auto inputs = read_tensor<Input>();
  auto targets = read_tensor<Target>();
  const std::int64_t rows = inputs.shape()[0];
  const std::int64_t losses =
      rows *
      (arguments.loss == LossKind::kCrossEntropy ? rows_at(model.output(), 1) : std::int64_t{1});
  const double scale = 1.0 / static_cast<double>(losses);
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
  write_gradients(model, parts);
}

Arguments arguments_of(std::span<char*> words) {
  Arguments arguments;
  const std::string input = words[0];
  const auto loss = enum_from_name<LossKind>(words[1]);
  if ((input != "numbers" && input != "tokens") || !loss ||
      !parse_int64(words[2], arguments.microbatch) || !parse_int64(words[3], arguments.stages) ||
      !parse_int64(words[4], arguments.shards) || !parse_int64(words[5], arguments.loss_pieces)) {
    fail(ExitCode::kUsage, "{}", kUsage);
  }
  arguments.input = input == "tokens" ? InputKind::kTokenIds : InputKind::kNumbers;
  arguments.loss = *loss;
  arguments.layers.assign(words.begin() + 6, words.end());
  return arguments;
}

}  // namespace
}  // namespace strata::nn

int main(int argc, char** argv) {
  using namespace strata;
  try {
    const std::span words(argv, static_cast<std::size_t>(argc));
    const auto dtype = argc > 8 ? enum_from_name<DType>(words[1]) : std::nullopt;
    if (!dtype) {
      fail(ExitCode::kUsage, "{}", nn::kUsage);
    }
    const nn::Arguments arguments = nn::arguments_of(words.subspan(2));
    with_floating(*dtype, [&]<typename T>(T) {
      if (arguments.input == nn::InputKind::kTokenIds) {
        nn::run<T, std::int64_t, std::int64_t>(arguments);
      } else if (arguments.loss == nn::LossKind::kCrossEntropy) {
        nn::run<T, T, std::int64_t>(arguments);
      } else {
        nn::run<T, T, T>(arguments);
      }
    });
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_cases: {}\n", error.what());
    return 1;
  }
}
