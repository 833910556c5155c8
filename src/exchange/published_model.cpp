#include "strata/exchange/published_model.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/nn/model.hpp"
#include "strata/nn/rotary_scaling.hpp"

#include "families.hpp"

namespace strata::exchange {
namespace {

constexpr std::string_view kBlockNumber = ".N.";

/// The shapes of a model's parameters, with "N" for a block's number.
std::map<std::string, Shape> parameters_of(nn::TransformerOptions o) {
  o.blocks = 1;
  const nn::Model model({.layers = nn::transformer_layers(o),
                         .input_shape = {o.context},
                         .outputs = o.vocabulary,
                         .input_kind = nn::InputKind::kTokenIds});
  std::map<std::string, Shape> shapes;
  for (const nn::ParameterSpec& parameter : model.parameters()) {
    if (parameter.ownership == nn::Ownership::kOwned) {
      std::string name = parameter.name;
      if (const std::size_t at = name.find(".0."); at != std::string::npos) {
        name.replace(at, kBlockNumber.size(), kBlockNumber);
      }
      shapes[name] = parameter.shape;
    }
  }
  return shapes;
}

/// Appends a part's rows. The rows of `.qkv` are, per key-value head, its queries, its key, its
/// value.
void append_rows(const nn::TransformerOptions& o, TensorRows which, const std::string& parameter,
                 const Shape& shape, std::vector<ParameterRows>& rows) {
  if (which == TensorRows::kAll) {
    rows.push_back({parameter, shape, {0, shape[0]}});
    return;
  }
  const std::int64_t size = nn::head_size_of(o);
  const std::int64_t queries = o.heads / o.kv_heads;
  const grid::Range in_head = which == TensorRows::kQueries ? grid::Range{0, queries}
                              : which == TensorRows::kKeys  ? grid::Range{queries, queries + 1}
                                                            : grid::Range{queries + 1, queries + 2};
  for (std::int64_t head = 0; head < o.kv_heads; ++head) {
    const std::int64_t first = head * (queries + 2);
    rows.push_back(
        {parameter, shape, {(first + in_head.begin) * size, (first + in_head.end) * size}});
  }
}

/// The name with a block's number.
std::string numbered(std::string name, std::int64_t block) {
  if (const std::size_t at = name.find(kBlockNumber); at != std::string::npos) {
    name.replace(at, kBlockNumber.size(), fmt::format(".{}.", block));
  }
  return name;
}

/// The words that weights depend on, in one order and each number in one form.
std::vector<std::string> words_of_weights(const std::string& line) {
  std::vector<std::string> words = split_words(nn::line_of_weights(line));
  for (std::string& word : words) {
    const std::size_t value = word.find('=') + 1;
    if (word.starts_with("rotary_scaling=")) {
      ops::RotaryScaling scaling =
          nn::parse_rotary_scaling(word.substr(value)).value_or(ops::RotaryScaling{});
      if (scaling.kind == ops::RotaryScalingKind::kLongrope) {
        scaling.attention_factor = scaling.magnitude();
        scaling.factor = 1.0;
      }
      word = word.substr(0, value) + nn::text_of(scaling);
    } else if (double number = 0.0; value > 0 && parse_double(word.substr(value), number)) {
      word = fmt::format("{}{}", word.substr(0, value), number);
    }
  }
  std::ranges::sort(words);
  return words;
}

/// The first line of a kind; an empty one of that kind where there is none.
nn::LayerLine first_of(const std::vector<std::string>& lines, std::string_view kind) {
  const auto found = std::ranges::find_if(
      lines, [&](const std::string& line) { return line.starts_with(std::string(kind) + " "); });
  return nn::LayerLine(found == lines.end() ? std::string(kind) : *found);
}

/// Reads what attention has in some blocks only: the window and rotary positions.
void read_alternation(const std::vector<std::string>& lines, nn::TransformerOptions& o) {
  struct Positions {
    std::int64_t window = 0;
    double base = 0.0;
    ops::RotaryScaling scaling;
  };
  nn::FamilyOptions& f = o.family;
  std::optional<Positions> local;   // of the first rotated block in the window
  std::optional<Positions> global;  // of the first one outside it
  std::int64_t unwindowed = 0;
  std::int64_t unrotated = 0;
  for (std::int64_t block = 0; block < o.blocks; ++block) {
    nn::LayerLine line(lines[static_cast<std::size_t>(1 + 2 * block)]);
    const Positions here{line.take_option_count("window", 0),
                         line.take_option_number("rotary", 0.0),
                         nn::parse_rotary_scaling(line.take_option("rotary_scaling", "none"))
                             .value_or(ops::RotaryScaling{})};
    f.rotary_share = std::min(f.rotary_share, line.take_option_number("rotary_share", 1.0));
    o.attention_window = std::max(o.attention_window, here.window);
    if (here.window == 0 && unwindowed == 0) {
      unwindowed = block + 1;
    }
    if (here.base == 0.0) {
      unrotated = unrotated == 0 ? block + 1 : unrotated;
    } else if (std::optional<Positions>& first = here.window > 0 ? local : global; !first) {
      first = here;
    }
  }
  f.global_every = o.attention_window > 0 ? unwindowed : 0;
  const Positions most = global.value_or(local.value_or(Positions{}));
  o.rotary_base = most.base;
  o.rotary_scaling = most.scaling;
  f.unrotated_every = most.base > 0.0 ? unrotated : 0;
  if (global && local && (local->base != most.base || local->scaling != most.scaling)) {
    f.local_rotary_base = local->base;
  }
}

bool is_in_block(const TensorName& named) {
  return named.name.find(kBlockNumber) != std::string::npos;
}

}  // namespace

bool have_same_weights(const std::vector<std::string>& lines,
                       const std::vector<std::string>& others) {
  return std::ranges::equal(lines, others, {}, words_of_weights, words_of_weights);
}

PublishedModel published_model_of(const std::vector<std::string>& lines, std::int64_t context,
                                  std::int64_t vocabulary) {
  const auto not_published = [](const std::string& here, const std::string& expected) {
    fail(
        ExitCode::kUsage,
        "the model has the layer \"{}\" where a published transformer has \"{}\"; take it out with "
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
  nn::FamilyOptions& f = o.family;
  o.preset = nn::Preset::kGpt;
  o.blocks = (std::ssize(lines) - 3) / 2;
  o.width = embedding.take_count("the width");
  o.vocabulary = vocabulary;
  const std::int64_t positions = embedding.take_option_count_or_none("positions", 0);
  f.embedding_scale = embedding.take_option_number("scale", 1.0);
  o.dropout = embedding.take_option_probability("dropout", 0.0);
  o.heads = attention.take_count("the number of heads");
  o.kv_heads = attention.take_option_count("kv_heads", o.heads);
  f.head_size = attention.take_option_count("head_size", 0);
  if (attention.has_option("qkv_bias")) {
    f.qkv_bias = attention.take_enum("qkv_bias", Switch::kOn);
  }
  f.qk_norm = attention.take_enum("qk_norm", nn::QkNorm::kNone);
  f.attention_scale = attention.take_option_number("scale", 0.0);
  f.attention_softcap = attention.take_option_number("softcap", 0.0);
  const std::string norm = attention.take_option("norm", "layer_norm");
  const std::string post_norm = attention.take_option("post_norm", "none");
  f.norm_places = norm == "none"        ? nn::NormPlaces::kAfter
                  : post_norm == "none" ? nn::NormPlaces::kBefore
                                        : nn::NormPlaces::kBoth;
  o.norm = (norm == "none" ? post_norm : norm) == "rms_norm" ? nn::NormChoice::kRmsNorm
                                                             : nn::NormChoice::kLayerNorm;
  f.unit_offset = attention.take_enum("unit_offset", Switch::kOff);
  o.epsilon = attention.take_option_number("epsilon", 1e-5);
  o.bias = attention.take_option("bias", "on") == "off" ? Switch::kOff : Switch::kOn;
  o.hidden = mlp.take_count("the number of hidden units");
  o.mlp = enum_from_name<nn::MlpKind>(mlp.take_value()).value_or(nn::MlpKind::kGelu);
  f.parallel_residual = mlp.take_enum("parallel_residual", Switch::kOff);
  o.tied = head.take_option("tied", "on") == "off" ? Switch::kOff : Switch::kOn;
  f.logit_softcap = head.take_option_number("softcap", 0.0);
  read_alternation(lines, o);
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
  const Family& family = row_of(model);
  const nn::TransformerOptions& o = model.options;
  const std::map<std::string, Shape> parameters = parameters_of(o);
  std::vector<PublishedTensor> tensors;
  const auto add = [&](const TensorName& named, std::int64_t block) {
    for (const char* kind : {".weight", ".bias"}) {
      PublishedTensor tensor{.name = numbered(named.name, block) + kind};
      for (const TensorPart& part : named.parts) {
        if (const auto found = parameters.find(part.parameter + kind); found != parameters.end()) {
          append_rows(o, part.rows, numbered(found->first, block), found->second, tensor.rows);
        }
      }
      if (tensor.rows.empty()) {
        continue;
      }
      const bool is_matrix = tensor.rows.front().shape.rank() == 2;
      std::int64_t rows = 0;
      for (const ParameterRows& part : tensor.rows) {
        rows += part.rows.count();
      }
      tensor.shape = is_matrix ? Shape{rows, tensor.rows.front().shape[1]} : Shape{rows};
      if (is_matrix && is_in_block(named) && family.linear == MatrixOrder::kInputsFirst &&
          linear == MatrixOrder::kInputsFirst) {
        tensor.shape = {tensor.shape[1], tensor.shape[0]};
        tensor.order = MatrixOrder::kInputsFirst;
      }
      tensors.push_back(std::move(tensor));
    }
  };
  for (auto at = family.tensors.begin(); at != family.tensors.end();) {
    const auto end = std::find_if_not(at, family.tensors.end(), is_in_block);
    for (std::int64_t block = 0; block < (at == end ? 1 : o.blocks); ++block) {
      std::for_each(at, at == end ? at + 1 : end,
                    [&](const TensorName& named) { add(named, block); });
    }
    at = at == end ? at + 1 : end;
  }
  return tensors;
}

}  // namespace strata::exchange
