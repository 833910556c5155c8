#include "onnx_export.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/io/loader.hpp"
#include "strata/io/onnx_file.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/nn/model.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::exchange {
namespace {

using Axes = std::array<std::int64_t, 2>;  ///< height, width
using Attributes = std::map<std::string, io::OnnxAttribute>;

[[noreturn]] void refuse(const std::string& what, const std::string& held) {
  fail(ExitCode::kUsage,
       "--format=onnx cannot hold {}; it holds {}; take the weights out with --format=safetensors",
       what, held);
}

/// Builds the graph along the lines of a model.
class Builder {
 public:
  Builder(const io::Checkpoint& checkpoint, const io::DatasetInfo& data,
          const std::vector<std::string>& lines)
      : checkpoint_(checkpoint),
        data_(data),
        lines_(lines),
        values_(data.task == io::Task::kRegression),
        model_({.layers = lines,
                .loss = {.kind = values_ ? nn::LossKind::kMeanSquaredError
                                         : nn::LossKind::kCrossEntropy},
                .input_shape = data.input_shape,
                .outputs = values_ ? data.target_shape.count() : data.classes,
                .shards = std::max<std::int64_t>(1, train::virtual_grid_of(checkpoint).shards)}) {
    if (model_.output().shape.rank() != 1) {
      refuse(fmt::format("a model that ends in {}", nn::shape_text(model_.output())),
             "models that end in a vector");
    }
  }

  /// Throws: Error(kUsage) naming the first line that no graph holds.
  static void check(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      const std::string kind = nn::LayerLine(line).kind();
      if (kind != "residual" && kind != "shortcut" && !adders().contains(kind)) {
        std::vector<std::string> known;
        std::ranges::transform(adders(), std::back_inserter(known),
                               [](const auto& adder) { return adder.first; });
        refuse(fmt::format("the layer \"{}\"", line), fmt::format("{}", fmt::join(known, ", ")));
      }
    }
  }

  [[nodiscard]] io::OnnxModel build() {
    graph_.input = {"input", data_.input_shape};
    last_ = graph_.input.name;
    normalise();
    for (const std::string& text : lines_) {
      nn::LayerLine line(text);
      if (line.kind() == "residual") {
        blocks_.push_back({.entered = last_});
      } else if (line.kind() == "shortcut") {
        blocks_.back().body = std::exchange(last_, blocks_.back().entered);
      } else {
        layer_ = &model_.layer(next_layer_++);
        adders().at(line.kind())(*this, line);
      }
    }
    finish();
    graph_.output.shape = model_.output().shape;
    return std::move(graph_);
  }

 private:
  /// A residual block that is open.
  struct Block {
    std::string entered;
    std::optional<std::string> body;  ///< the output of its layers, where it has a shortcut
  };

  /// Adds an operation on the last output.
  void add(const std::string& operation, const std::string& output,
           std::vector<std::string> further = {}, Attributes attributes = {}) {
    further.insert(further.begin(), last_);
    graph_.nodes.push_back({operation, std::move(further), output, std::move(attributes)});
    last_ = output;
  }

  std::string constant(const std::string& name, const Shape& shape,
                       const std::vector<double>& values) {
    graph_.tensors.push_back({name, shape, {values.begin(), values.end()}});
    return name;
  }

  /// The layer's parameter, as a constant.
  std::string parameter(const std::string& suffix) {
    std::string name = layer_->name() + "." + suffix;
    for (const nn::ParameterSpec& spec : layer_->parameters()) {
      if (spec.name == name) {
        const std::string stored = plan::weight_name(spec);
        const io::TensorInfo* const found = checkpoint_.find(stored);
        const DType dtype = found == nullptr ? DType::kFloat32 : found->dtype;
        std::vector<std::byte> memory(
            static_cast<std::size_t>(spec.shape.count() * size_bytes(dtype)));
        const TensorView view(memory.data(), spec.shape, dtype);
        checkpoint_.read(stored, spec.shape, {}, {0, spec.shape.count()}, view);
        io::OnnxTensor& tensor = graph_.tensors.emplace_back(io::OnnxTensor{name, spec.shape, {}});
        with_floating(dtype, [&]<typename T>(T) {
          std::ranges::transform(view.host<T>(), std::back_inserter(tensor.values),
                                 [](T value) { return static_cast<float>(value); });
        });
        return name;
      }
    }
    return "";
  }

  /// As the loader: (x - shift) / scale.
  void normalise() {
    const io::Normalise how = train::normalise_of(checkpoint_, data_);
    std::vector<double> shift;
    std::vector<double> scale;
    if (how == io::Normalise::kUnit) {
      scale = {255.0};
    } else if (how == io::Normalise::kStandard) {
      shift = data_.mean;
      scale = data_.deviation;
      std::ranges::replace(scale, 0.0, 1.0);
    }
    const auto elements = static_cast<std::int64_t>(scale.size());
    Shape shape{1};
    if (elements == data_.input_shape.count()) {
      shape = data_.input_shape;
    } else if (elements > 1) {
      shape = {elements, 1, 1};
    }
    if (!shift.empty()) {
      add("Sub", "input.centred", {constant("input.mean", shape, shift)});
    }
    if (!scale.empty()) {
      add("Div", "input.scaled", {constant("input.scale", shape, scale)});
    }
  }

  /// How each kind of layer is added.
  using Adder = std::function<void(Builder&, nn::LayerLine&)>;
  static const std::map<std::string, Adder>& adders() {
    const auto simple = [](const char* operation) {
      return [=](Builder& it, nn::LayerLine&) { it.add(operation, it.layer_->name()); };
    };
    static const std::map<std::string, Adder> kAdders{
        {"avg_pool", &Builder::add_pool},
        {"batch_norm", &Builder::add_batch_norm},
        {"conv", &Builder::add_convolution},
        {"dense", &Builder::add_dense},
        {"dropout", [](Builder&, nn::LayerLine&) {}},
        {"end", &Builder::add_end},
        {"flatten", [](Builder& it, nn::LayerLine&) { it.add_on_axis("Flatten"); }},
        {"gelu", &Builder::add_gelu},
        {"gelu_erf", &Builder::add_gelu_erf},
        {"global_avg_pool",
         [](Builder& it, nn::LayerLine&) {
           it.add("GlobalAveragePool", it.layer_->name() + ".mean");
           it.add_on_axis("Flatten");
         }},
        {"max_pool", &Builder::add_pool},
        {"relu", simple("Relu")},
        {"sigmoid", simple("Sigmoid")},
        {"softmax",
         [](Builder& it, nn::LayerLine&) {
           it.require_vector();
           it.add_on_axis("Softmax");
         }},
        {"tanh", simple("Tanh")},
        {"zero_channels",
         [](Builder& it, nn::LayerLine&) {
           it.pad(
               {0, 0, 0, 0, 0, it.layer_->output_shape()[2] - it.layer_->input_shape()[2], 0, 0});
         }},
        {"zero_pad", [](Builder& it, nn::LayerLine& line) {
           const std::int64_t border = line.take_count("the width of the border");
           it.pad({0, 0, border, border, 0, 0, border, border});
         }}};
    return kAdders;
  }

  /// Of a kind that ONNX has for vectors alone.
  void require_vector() const {
    if (layer_->input_shape().rank() != 1) {
      refuse(fmt::format("layer {}, {} on {}", layer_->name(), layer_->text(),
                         nn::shape_text(layer_->input())),
             "this layer on vectors, as behind flatten");
    }
  }

  void add_on_axis(const char* operation) {
    add(operation, layer_->name(), {}, {{"axis", std::int64_t{1}}});
  }

  /// Adds an operation of the layer, with relu behind it where the line asks for it.
  void add_active(const std::string& operation, nn::LayerLine& line,
                  std::vector<std::string> further, Attributes attributes) {
    const bool relu = line.take_relu() == ops::Activation::kRelu;
    add(operation, relu ? layer_->name() + ".sum" : layer_->name(), std::move(further),
        std::move(attributes));
    if (relu) {
      add("Relu", layer_->name());
    }
  }

  [[nodiscard]] std::vector<std::string> linear_parameters() {
    std::vector<std::string> names{parameter("weight")};
    if (const std::string bias = parameter("bias"); !bias.empty()) {
      names.push_back(bias);
    }
    return names;
  }

  void add_dense(nn::LayerLine& line) {
    require_vector();
    static_cast<void>(line.take_value());
    std::vector<std::string> names = linear_parameters();
    if (names.size() == 1) {
      // Operator set 10 has no Gemm without a third input.
      const std::int64_t outputs = layer_->output_shape()[0];
      names.push_back(constant(layer_->name() + ".zeros", {outputs},
                               std::vector<double>(static_cast<std::size_t>(outputs))));
    }
    add_active("Gemm", line, std::move(names), {{"transB", std::int64_t{1}}});
  }

  /// The attributes of a window; the zeros at the end are those that it reaches.
  [[nodiscard]] Attributes window(nn::LayerLine& line, Axes otherwise_stride) const {
    const Axes extent = line.take_window("the window");
    if (otherwise_stride[0] == 0) {
      otherwise_stride = extent;
    }
    const Axes stride = line.take_option_window("stride", otherwise_stride);
    const Axes dilation = line.take_option_window("dilation", {1, 1});
    const std::string padding = line.take_option("padding", "valid");
    std::vector<std::int64_t> pads(4);
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t in = layer_->input_shape()[i];
      const std::int64_t out = layer_->output_shape()[i];
      const std::int64_t reach = (extent[i] - 1) * dilation[i] + 1;
      const std::int64_t all = std::max<std::int64_t>(0, (out - 1) * stride[i] + reach - in);
      pads[i] = padding == "same" ? all / 2 : padding == "valid" ? 0 : std::stoll(padding);
      pads[i + 2] = std::max<std::int64_t>(0, all - pads[i]);
    }
    Attributes attributes{{"kernel_shape", std::vector<std::int64_t>(extent.begin(), extent.end())},
                          {"strides", std::vector<std::int64_t>(stride.begin(), stride.end())},
                          {"pads", pads}};
    if (dilation != Axes{1, 1}) {
      attributes["dilations"] = std::vector<std::int64_t>(dilation.begin(), dilation.end());
    }
    return attributes;
  }

  void add_convolution(nn::LayerLine& line) {
    static_cast<void>(line.take_count("the number of output channels"));
    auto attributes = window(line, {1, 1});
    attributes["group"] = line.take_option_count("groups", 1);
    add_active("Conv", line, linear_parameters(), std::move(attributes));
  }

  void add_pool(nn::LayerLine& line) {
    const bool largest = line.kind() == "max_pool";
    auto attributes = window(line, {0, 0});
    if (!largest) {
      attributes["count_include_pad"] = std::int64_t{0};
    }
    add(largest ? "MaxPool" : "AveragePool", layer_->name(), {}, std::move(attributes));
  }

  void pad(std::vector<std::int64_t> pads) {
    add("Pad", layer_->name(), {}, {{"pads", std::move(pads)}});
  }

  void add_batch_norm(nn::LayerLine& line) {
    const auto epsilon = static_cast<float>(line.take_option_number("epsilon", 1e-5));
    add_active("BatchNormalization", line,
               {parameter("weight"), parameter("bias"), parameter("running_mean"),
                parameter("running_var")},
               {{"epsilon", epsilon}});
  }

  void add_end(nn::LayerLine& line) {
    const Block block = std::move(blocks_.back());
    blocks_.pop_back();
    const std::string other = block.body.value_or(block.entered);
    add_active("Add", line, {other}, {});
  }

  /// x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is x / 2 (1 + tanh(...)) of half as much.
  /// OpenCV 4.10 crashes where it replaces the form with tanh by an operation of its own.
  void add_gelu(nn::LayerLine& /*line*/) {
    const std::string x = last_;
    const auto name = [&](const char* part) { return layer_->name() + "." + part; };
    const auto scalar = [&](const char* part, double value) {
      return constant(name(part), {1}, {value});
    };
    add("Mul", name("square"), {x});
    add("Mul", name("cube"), {x});
    add("Mul", name("part"), {scalar("factor", 0.044715)});
    add("Add", name("inner"), {x});
    add("Mul", name("scaled"), {scalar("scale", 1.5957691216057308)});
    add("Sigmoid", name("sigmoid"));
    add("Mul", layer_->name(), {x});
  }

  /// x (1 + erf(x / sqrt(2))) / 2.
  void add_gelu_erf(nn::LayerLine& /*line*/) {
    const std::string x = last_;
    const auto name = [&](const char* part) { return layer_->name() + "." + part; };
    const auto scalar = [&](const char* part, double value) {
      return constant(name(part), {1}, {value});
    };
    add("Mul", name("scaled"), {scalar("scale", 0.7071067811865476)});
    add("Erf", name("erf"));
    add("Add", name("sum"), {scalar("one", 1.0)});
    add("Mul", name("phi"), {scalar("half", 0.5)});
    add("Mul", layer_->name(), {x});
  }

  /// Probabilities, or the data's units.
  void finish() {
    if (!values_) {
      add("Softmax", "probabilities", {}, {{"axis", std::int64_t{1}}});
      graph_.facts["classes"] = class_names();
    } else if (!data_.target_mean.empty()) {
      const Shape shape{static_cast<std::int64_t>(data_.target_mean.size())};
      add("Mul", "output.scaled", {constant("output.scale", shape, data_.target_deviation)});
      add("Add", "values", {constant("output.mean", shape, data_.target_mean)});
    }
    graph_.output.name = last_;
    if (!data_.column_names.empty()) {
      graph_.facts["inputs"] =
          nlohmann::json(
              std::vector<std::string>(data_.column_names.begin(), data_.column_names.end() - 1))
              .dump();
      graph_.facts["label"] = data_.column_names.back();
    }
  }

  [[nodiscard]] std::string class_names() const {
    std::vector<std::string> names;
    names.reserve(static_cast<std::size_t>(data_.classes));
    for (std::int64_t i = 0; i < data_.classes; ++i) {
      names.push_back(io::class_text(data_.class_names, i));
    }
    return nlohmann::json(names).dump();
  }

  const io::Checkpoint& checkpoint_;
  const io::DatasetInfo& data_;
  const std::vector<std::string>& lines_;
  bool values_;
  nn::Model model_;
  io::OnnxModel graph_;
  std::string last_;
  std::vector<Block> blocks_;
  std::int64_t next_layer_ = 0;
  const nn::Layer* layer_ = nullptr;
};

io::OnnxModel onnx_model(const io::Checkpoint& checkpoint) {
  const auto lines = checkpoint.metadata().value("layers", std::vector<std::string>());
  Builder::check(lines);
  const std::optional<io::DatasetInfo> data = train::data_of(checkpoint);
  if (!data || lines.empty()) {
    fail(ExitCode::kCheckpoint, "{} does not say which data it learned from; use a later one",
         checkpoint.directory().string());
  }
  return Builder(checkpoint, *data, lines).build();
}

}  // namespace

ExportedModel export_onnx(const io::Checkpoint& checkpoint, const std::filesystem::path& output,
                          const ExportOptions& options) {
  if (options.type.value_or(io::StoredType::kFloat32) != io::StoredType::kFloat32) {
    fail(ExitCode::kUsage, "--format=onnx holds float32, not {}; leave --dtype out",
         name_of(*options.type));
  }
  if (options.adapters == AdapterExport::kApart) {
    fail(ExitCode::kUsage,
         "--adapters=apart: --format=onnx has no form for adapters; leave it out");
  }
  const io::OnnxModel model = onnx_model(checkpoint);
  ExportedModel result{.tensors = std::ssize(model.tensors), .files = {"model.onnx"}};
  fill_new_directory(output, [&](const std::filesystem::path& directory) {
    result.bytes = io::write_onnx(model, directory / result.files.front());
  });
  return result;
}

}  // namespace strata::exchange
