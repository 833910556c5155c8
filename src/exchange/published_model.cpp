#include "strata/exchange/published_model.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/nn/rotary_scaling.hpp"

namespace strata::exchange {
namespace {

constexpr double kDefaultEpsilon = 1e-5;

/// Collects a model's tensors.
class Tensors {
 public:
  Tensors(const nn::TransformerOptions& options, MatrixOrder linear)
      : o_(options), size_(options.width / options.heads), linear_(linear) {}

  /// A tensor that is a whole parameter.
  void whole(const std::string& name, const std::string& parameter, const Shape& shape,
             MatrixOrder order = MatrixOrder::kOutputsFirst) {
    add(name, shape, order, {{parameter, shape, {0, shape[0]}}});
  }

  /// A norm's weight and, for layer norms, its bias.
  void norm(const std::string& name, const std::string& parameter) {
    whole(name + ".weight", parameter + ".weight", {o_.width});
    if (o_.norm == nn::NormChoice::kLayerNorm && o_.bias == Switch::kOn) {
      whole(name + ".bias", parameter + ".bias", {o_.width});
    }
  }

  /// A linear layer of a sublayer.
  void linear(const std::string& name, const std::string& parameter, std::int64_t outputs,
              std::int64_t inputs) {
    whole(name + ".weight", parameter + ".weight", {outputs, inputs}, linear_);
    if (o_.bias == Switch::kOn) {
      whole(name + ".bias", parameter + ".bias", {outputs});
    }
  }

  /// GPT-2's queries, keys and values in one layer.
  void joined_heads(const std::string& name, const std::string& parameter) {
    const auto add_part = [&](const char* part, const Shape& shape, MatrixOrder order) {
      std::vector<ParameterRows> rows;
      for (const HeadRows which : {HeadRows::kQueries, HeadRows::kKey, HeadRows::kValue}) {
        append_heads(rows, parameter + part, shape, which);
      }
      add(name + part, shape, order, std::move(rows));
    };
    add_part(".weight", {qkv_rows(), o_.width}, linear_);
    if (o_.bias == Switch::kOn) {
      add_part(".bias", {qkv_rows()}, MatrixOrder::kOutputsFirst);
    }
  }

  /// Llama's queries, keys or values.
  enum class HeadRows { kQueries, kKey, kValue };
  void heads(const std::string& name, const std::string& parameter, HeadRows which) {
    std::vector<ParameterRows> rows;
    append_heads(rows, parameter, {qkv_rows(), o_.width}, which);
    const std::int64_t count = which == HeadRows::kQueries ? o_.heads : o_.kv_heads;
    add(name, {count * size_, o_.width}, MatrixOrder::kOutputsFirst, std::move(rows));
  }

  [[nodiscard]] std::vector<PublishedTensor> take() { return std::move(tensors_); }
  [[nodiscard]] std::int64_t head_width() const { return o_.heads * size_; }

 private:
  [[nodiscard]] std::int64_t qkv_rows() const { return (o_.heads + 2 * o_.kv_heads) * size_; }

  /// The rows of queries, keys or values of every key-value head. A head's rows are its queries,
  /// its key, its value.
  void append_heads(std::vector<ParameterRows>& rows, const std::string& parameter,
                    const Shape& shape, HeadRows which) const {
    const std::int64_t queries = o_.heads / o_.kv_heads;
    for (std::int64_t head = 0; head < o_.kv_heads; ++head) {
      const std::int64_t first = head * (queries + 2);
      const grid::Range units = which == HeadRows::kQueries ? grid::Range{first, first + queries}
                                : which == HeadRows::kKey
                                    ? grid::Range{first + queries, first + queries + 1}
                                    : grid::Range{first + queries + 1, first + queries + 2};
      rows.push_back({parameter, shape, {units.begin * size_, units.end * size_}});
    }
  }

  void add(const std::string& name, const Shape& shape, MatrixOrder order,
           std::vector<ParameterRows> rows) {
    const bool transposed = order == MatrixOrder::kInputsFirst && shape.rank() == 2;
    tensors_.push_back({name, transposed ? Shape{shape[1], shape[0]} : shape,
                        transposed ? order : MatrixOrder::kOutputsFirst, std::move(rows)});
  }

  const nn::TransformerOptions& o_;
  std::int64_t size_;  ///< of a head
  MatrixOrder linear_;
  std::vector<PublishedTensor> tensors_;
};

std::vector<PublishedTensor> gpt2_tensors(const nn::TransformerOptions& o, MatrixOrder linear) {
  Tensors tensors(o, linear);
  tensors.whole("transformer.wte.weight", "embedding.tokens.weight", {o.vocabulary, o.width});
  tensors.whole("transformer.wpe.weight", "embedding.positions.weight", {o.context, o.width});
  for (std::int64_t block = 0; block < o.blocks; ++block) {
    const std::string name = fmt::format("transformer.h.{}.", block);
    const std::string own = fmt::format("blocks.{}.", block);
    tensors.norm(name + "ln_1", own + "attention.norm");
    tensors.joined_heads(name + "attn.c_attn", own + "attention.qkv");
    tensors.linear(name + "attn.c_proj", own + "attention.output", o.width, tensors.head_width());
    tensors.norm(name + "ln_2", own + "mlp.norm");
    tensors.linear(name + "mlp.c_fc", own + "mlp.up", o.hidden, o.width);
    tensors.linear(name + "mlp.c_proj", own + "mlp.down", o.width, o.hidden);
  }
  tensors.norm("transformer.ln_f", "norm");
  if (o.tied == Switch::kOff) {
    tensors.whole("lm_head.weight", "head.weight", {o.vocabulary, o.width});
  }
  return tensors.take();
}

std::vector<PublishedTensor> llama_tensors(const nn::TransformerOptions& o) {
  using HeadRows = Tensors::HeadRows;
  Tensors tensors(o, MatrixOrder::kOutputsFirst);
  tensors.whole("model.embed_tokens.weight", "embedding.tokens.weight", {o.vocabulary, o.width});
  for (std::int64_t block = 0; block < o.blocks; ++block) {
    const std::string name = fmt::format("model.layers.{}.", block);
    const std::string own = fmt::format("blocks.{}.", block);
    const std::string qkv = own + "attention.qkv.weight";
    tensors.norm(name + "input_layernorm", own + "attention.norm");
    tensors.heads(name + "self_attn.q_proj.weight", qkv, HeadRows::kQueries);
    tensors.heads(name + "self_attn.k_proj.weight", qkv, HeadRows::kKey);
    tensors.heads(name + "self_attn.v_proj.weight", qkv, HeadRows::kValue);
    tensors.linear(name + "self_attn.o_proj", own + "attention.output", o.width,
                   tensors.head_width());
    tensors.norm(name + "post_attention_layernorm", own + "mlp.norm");
    tensors.linear(name + "mlp.gate_proj", own + "mlp.gate", o.hidden, o.width);
    tensors.linear(name + "mlp.up_proj", own + "mlp.up", o.hidden, o.width);
    tensors.linear(name + "mlp.down_proj", own + "mlp.down", o.width, o.hidden);
  }
  tensors.norm("model.norm", "norm");
  if (o.tied == Switch::kOff) {
    tensors.whole("lm_head.weight", "head.weight", {o.vocabulary, o.width});
  }
  return tensors.take();
}

/// The words that weights depend on, in one order.
std::vector<std::string> words_of_weights(const std::string& line) {
  std::vector<std::string> words = split_words(nn::line_of_weights(line));
  std::ranges::sort(words);
  return words;
}

/// The first line of a kind; an empty one of that kind where there is none.
nn::LayerLine first_of(const std::vector<std::string>& lines, std::string_view kind) {
  const auto found = std::ranges::find_if(
      lines, [&](const std::string& line) { return line.starts_with(std::string(kind) + " "); });
  return nn::LayerLine(found == lines.end() ? std::string(kind) : *found);
}

}  // namespace

Architecture architecture_of(const PublishedModel& model) {
  const nn::TransformerOptions& o = model.options;
  if (o.norm == nn::NormChoice::kLayerNorm && o.positions == nn::PositionChoice::kLearned &&
      (o.mlp == nn::MlpChoice::kGelu || o.mlp == nn::MlpChoice::kRelu) && o.kv_heads == o.heads) {
    return Architecture::kGpt2;
  }
  if (o.norm == nn::NormChoice::kRmsNorm && o.positions == nn::PositionChoice::kRotary &&
      o.mlp == nn::MlpChoice::kSwiglu && o.bias == Switch::kOff) {
    return Architecture::kLlama;
  }
  fail(ExitCode::kUsage,
       "a model with model.norm = {}, model.positions = {}, model.mlp = {}, model.bias = {} and {} "
       "of {} heads with keys is neither GPT-2 (layer_norm, learned, gelu, as many) nor Llama "
       "(rms_norm, rotary, swiglu, off); take it out with --format=safetensors",
       name_of(o.norm), name_of(o.positions), name_of(o.mlp), name_of(*o.bias), o.kv_heads,
       o.heads);
}

std::vector<std::string> layer_lines(const PublishedModel& model) {
  std::vector<std::string> lines = nn::transformer_layers(model.options);
  if (model.epsilon != kDefaultEpsilon) {
    for (std::string& line : lines) {
      if (!line.starts_with("embedding") && !line.starts_with("head")) {
        line += fmt::format(" epsilon={}", model.epsilon);
      }
    }
  }
  return lines;
}

PublishedModel published_model_of(const std::vector<std::string>& lines, std::int64_t context,
                                  std::int64_t vocabulary) {
  const auto not_published = [](const std::string& here, const std::string& expected) {
    fail(ExitCode::kUsage,
         "the model has the layer \"{}\" where GPT-2 or Llama has \"{}\"; take it out with "
         "--format=safetensors",
         here, expected);
  };
  nn::LayerLine embedding = first_of(lines, "embedding");
  nn::LayerLine attention = first_of(lines, "attention");
  nn::LayerLine mlp = first_of(lines, "mlp");
  nn::LayerLine head = first_of(lines, "head");
  if (std::ssize(lines) < 5 || std::ssize(lines) % 2 != 1) {
    not_published(fmt::format("{}", fmt::join(lines, "\", \"")), "embedding, blocks, norm, head");
  }
  PublishedModel model;
  nn::TransformerOptions& o = model.options;
  o.preset = nn::Preset::kGpt;
  o.blocks = (std::ssize(lines) - 3) / 2;
  o.width = embedding.take_count("the width");
  o.vocabulary = vocabulary;
  const std::int64_t positions = embedding.take_option_count_or_none("positions", 0);
  o.dropout = embedding.take_option_probability("dropout", 0.0);
  o.heads = attention.take_count("the number of heads");
  o.kv_heads = attention.take_option_count("kv_heads", o.heads);
  o.rotary_base = attention.take_option_number("rotary", 0.0);
  o.rotary_scaling = nn::parse_rotary_scaling(attention.take_option("rotary_scaling", "none"))
                         .value_or(ops::RotaryScaling{});
  o.norm = attention.take_option("norm", "layer_norm") == "rms_norm" ? nn::NormChoice::kRmsNorm
                                                                     : nn::NormChoice::kLayerNorm;
  model.epsilon = attention.take_option_number("epsilon", kDefaultEpsilon);
  o.bias = attention.take_option("bias", "on") == "off" ? Switch::kOff : Switch::kOn;
  o.hidden = mlp.take_count("the number of hidden units");
  o.mlp = enum_from_name<nn::MlpChoice>(mlp.take_value()).value_or(nn::MlpChoice::kGelu);
  o.tied = head.take_option("tied", "on") == "off" ? Switch::kOff : Switch::kOn;
  o.positions = o.rotary_base > 0.0 ? nn::PositionChoice::kRotary
                : positions > 0     ? nn::PositionChoice::kLearned
                                    : nn::PositionChoice::kNone;
  o.context = positions > 0 ? positions : context;
  const std::vector<std::string> expected = layer_lines(model);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (words_of_weights(lines[i]) != words_of_weights(expected[i])) {
      not_published(lines[i], expected[i]);
    }
  }
  if (o.rotary_base == 0.0) {
    o.rotary_base = 10000.0;  // as resolved() has it
  }
  return model;
}

std::vector<PublishedTensor> published_tensors(const PublishedModel& model, MatrixOrder linear) {
  return architecture_of(model) == Architecture::kGpt2 ? gpt2_tensors(model.options, linear)
                                                       : llama_tensors(model.options);
}

}  // namespace strata::exchange
