#include "strata/nn/transformer.hpp"

#include <cmath>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/nn/rotary_scaling.hpp"

#include "model/published_sizes.hpp"

namespace strata::nn {
namespace {

/// As layer lines have it.
constexpr double kDefaultEpsilon = 1e-5;

/// Sets `chosen` to the preset's value where it has its type's default.
template <typename T>
void fill(T& chosen, const T& preset) {
  if (chosen == T{}) {
    chosen = preset;
  }
}

/// Rejects head counts that do not divide the width or each other, or do not fit the positions.
void check_heads(const TransformerOptions& o) {
  const std::int64_t head_size = head_size_of(o);
  const auto check = [&](bool fits, const std::string& why) {
    if (!fits) {
      fail(ExitCode::kUsage, "model.preset is {}: {}", name_of(o.preset), why);
    }
  };
  check(o.family.head_size > 0 || o.width % o.heads == 0,
        fmt::format("model.width = {} does not divide into model.heads = {}; change one of them",
                    o.width, o.heads));
  check(o.heads % o.kv_heads == 0,
        fmt::format("model.heads = {} do not share model.kv_heads = {} evenly; set a "
                    "model.kv_heads that divides {}",
                    o.heads, o.kv_heads, o.heads));
  const bool rotary = o.positions == PositionChoice::kRotary;
  const ops::RotaryAngles angles{.scaling = o.rotary_scaling, .share = o.family.rotary_share};
  const std::int64_t turned = angles.rotated(head_size);
  check(!rotary || (turned > 0 && turned % 2 == 0),
        fmt::format("model.positions = rotary turns pairs of elements, but {} has {}; change "
                    "model.width = {} or model.heads = {} so that it has an even number",
                    angles.share == 1.0 ? "a head" : "the share of a head that turns", turned,
                    o.width, o.heads));
  check(
      !rotary || o.rotary_scaling.kind != ops::RotaryScalingKind::kLongrope ||
          2 * o.rotary_scaling.factors.count == turned,
      fmt::format("its model.rotary_scaling has {} factors, but {} pairs of a head's elements "
                  "turn with model.width = {} and model.heads = {}; change one of them, or give {} "
                  "short and as many long ones",
                  o.rotary_scaling.factors.count, turned / 2, o.width, o.heads, turned / 2));
  check(o.positions != PositionChoice::kLearned || o.family.embedding_scale == 1.0,
        fmt::format("model.positions = learned adds vectors to those of tokens, which this preset "
                    "multiplies by {:.6g}; set rotary or none, or take another preset",
                    o.family.embedding_scale));
  check(o.norm == NormChoice::kRmsNorm || o.family.unit_offset == Switch::kOff,
        fmt::format("model.norm is {}, but this preset's norms multiply by 1 + weight, which RMS "
                    "norms alone do; leave it out, or take another preset",
                    name_of(o.norm)));
  check(o.positions == PositionChoice::kLearned || o.reset_positions == Switch::kOff,
        fmt::format("model.reset_positions counts learned positions anew in each document, but "
                    "model.positions is {}; leave it out",
                    name_of(o.positions)));
  check(rotary || o.rotary_scaling == ops::RotaryScaling{},
        fmt::format("model.rotary_scaling = {} scales rotary positions, but model.positions is {}; "
                    "set model.positions = rotary, or leave the scaling out",
                    text_of(o.rotary_scaling), name_of(o.positions)));
}

}  // namespace

std::int64_t head_size_of(const TransformerOptions& options) {
  return options.family.head_size > 0 ? options.family.head_size : options.width / options.heads;
}

TransformerOptions resolved(const TransformerOptions& options) {
  const TransformerOptions preset = published_sizes(options.preset);
  TransformerOptions result = options;
  const auto fill_all = [&](auto... members) { (fill(result.*members, preset.*members), ...); };
  using Options = TransformerOptions;
  fill_all(&Options::blocks, &Options::width, &Options::heads, &Options::kv_heads,
           &Options::context, &Options::vocabulary, &Options::norm, &Options::mlp,
           &Options::positions, &Options::bias, &Options::tied, &Options::rotary_base,
           &Options::attention_window, &Options::epsilon, &Options::family);
  // Another choice of positions is without the preset's scaling.
  if (result.positions == preset.positions) {
    fill(result.rotary_scaling, preset.rotary_scaling);
  }
  fill(result.epsilon, kDefaultEpsilon);
  double base = preset.rotary_base;
  fill(base, 10000.0);
  fill(result.rotary_base, base);
  if (result.positions != PositionChoice::kRotary && result.rotary_base != base) {
    fail(ExitCode::kUsage,
         "model.preset is {}: model.rotary_base = {} is of rotary positions, but model.positions "
         "is {}; set model.positions = rotary, or leave the base out",
         name_of(options.preset), result.rotary_base, name_of(result.positions));
  }
  if (result.family.embedding_scale != 1.0) {
    result.family.embedding_scale = std::sqrt(static_cast<double>(result.width));
  }
  // The preset's hidden size holds for its own width only.
  fill(result.hidden, result.width == preset.width ? preset.hidden : 0);
  const std::pair<const char*, std::int64_t> needed[] = {{"model.blocks", result.blocks},
                                                         {"model.width", result.width},
                                                         {"model.heads", result.heads},
                                                         {"model.context", result.context}};
  for (const auto& [key, value] : needed) {
    if (value == 0) {
      fail(ExitCode::kUsage, "model.preset is {}, which leaves {} open; set it",
           name_of(options.preset), key);
    }
  }
  fill(result.kv_heads, result.heads);
  check_heads(result);
  if (result.hidden == 0) {
    // SwiGLU has three matrices instead of two; at 2/3 of the width the weights are as many.
    constexpr std::int64_t kRounding = 64;
    const std::int64_t whole = 4 * result.width;
    result.hidden = result.mlp && gate_of(*result.mlp)
                        ? (2 * whole / 3 + kRounding - 1) / kRounding * kRounding
                        : whole;
  }
  return result;
}

namespace {

/// The words of a block's attention that say which earlier tokens it sees, and where they are.
std::string position_words(const TransformerOptions& o, std::int64_t block) {
  const FamilyOptions& f = o.family;
  const auto is_each = [&](std::int64_t every) { return every > 0 && (block + 1) % every == 0; };
  const bool has_window = o.attention_window > 0 && !is_each(f.global_every);
  std::string words;
  if (o.positions == PositionChoice::kRotary && !is_each(f.unrotated_every)) {
    const bool is_local = has_window && f.local_rotary_base > 0.0;
    words += fmt::format(" rotary={}", is_local ? f.local_rotary_base : o.rotary_base);
    if (o.rotary_scaling.kind != ops::RotaryScalingKind::kNone && !is_local) {
      words += " rotary_scaling=" + text_of(o.rotary_scaling);
    }
    if (f.rotary_share != 1.0) {
      words += fmt::format(" rotary_share={}", f.rotary_share);
    }
  }
  if (o.attention_mask == AttentionMaskKind::kDocument) {
    words += " mask=document";
  }
  if (has_window) {
    words += fmt::format(" window={}", o.attention_window);
  }
  return words;
}

/// The words of a block's attention that are the same in all blocks.
std::string head_words(const TransformerOptions& o) {
  const FamilyOptions& f = o.family;
  std::string words;
  const auto add = [&](bool differs, std::string_view key, const auto& value) {
    words += differs ? fmt::format(" {}={}", key, value) : "";
  };
  add(o.kv_heads != o.heads, "kv_heads", o.kv_heads);
  add(f.head_size > 0 && f.head_size * o.heads != o.width, "head_size", f.head_size);
  add(f.qkv_bias && f.qkv_bias != o.bias, "qkv_bias", name_of(f.qkv_bias.value_or(Switch::kOff)));
  add(f.qk_norm != QkNorm::kNone, "qk_norm", name_of(f.qk_norm));
  add(f.attention_scale > 0.0, "scale", f.attention_scale);
  add(f.attention_softcap > 0.0, "softcap", f.attention_softcap);
  return words;
}

/// The words of the norms of every sublayer.
std::string norm_words(const TransformerOptions& o) {
  const FamilyOptions& f = o.family;
  const std::string kind = o.norm == NormChoice::kRmsNorm ? "rms_norm" : "layer_norm";
  std::string words;
  if (f.norm_places == NormPlaces::kAfter) {
    words += " norm=none";
  } else if (o.norm == NormChoice::kRmsNorm) {
    words += " norm=rms_norm";
  }
  if (f.norm_places != NormPlaces::kBefore) {
    words += " post_norm=" + kind;
  }
  return words + (f.unit_offset == Switch::kOn ? " unit_offset=on" : "");
}

}  // namespace

std::vector<std::string> transformer_layers(const TransformerOptions& o) {
  constexpr double kDeviation = 0.02;
  const FamilyOptions& f = o.family;
  const bool rms = o.norm == NormChoice::kRmsNorm;
  const std::string bias = o.bias == Switch::kOff ? " bias=off" : "";
  const std::string dropout = o.dropout > 0.0 ? fmt::format(" dropout={}", o.dropout) : "";
  const std::string common =
      fmt::format("{}{}{} output_deviation={:.6g}", norm_words(o), bias, dropout,
                  kDeviation / std::sqrt(2.0 * static_cast<double>(o.blocks)));
  std::vector<std::string> lines{fmt::format(
      "embedding {}{}{}{}{}{} name=embedding", o.width,
      o.vocabulary > 0 ? fmt::format(" vocabulary={}", o.vocabulary) : "",
      o.positions == PositionChoice::kLearned ? fmt::format(" positions={}", o.context) : "",
      o.reset_positions == Switch::kOn ? " reset_positions=on" : "",
      f.embedding_scale != 1.0 ? fmt::format(" scale={}", f.embedding_scale) : "", dropout)};
  for (std::int64_t block = 0; block < o.blocks; ++block) {
    lines.push_back(fmt::format("attention {}{}{}{} name=blocks.{}.attention", o.heads,
                                head_words(o), position_words(o, block), common, block));
    lines.push_back(fmt::format(
        "mlp {} {}{}{} name=blocks.{}.mlp", o.hidden, name_of(o.mlp.value_or(MlpKind::kGelu)),
        f.parallel_residual == Switch::kOn ? " parallel_residual=on" : "", common, block));
  }
  lines.push_back(fmt::format("{}{}{} name=norm", rms ? "rms_norm" : "layer_norm", rms ? "" : bias,
                              f.unit_offset == Switch::kOn ? " unit_offset=on" : ""));
  // Behind the embedding each line has a norm.
  for (std::size_t i = 1; o.epsilon != kDefaultEpsilon && i < lines.size(); ++i) {
    lines[i] += fmt::format(" epsilon={}", o.epsilon);
  }
  lines.push_back(
      fmt::format("head{}{} name=head", o.tied == Switch::kOff ? " tied=off" : "",
                  f.logit_softcap > 0.0 ? fmt::format(" softcap={}", f.logit_softcap) : ""));
  return lines;
}

}  // namespace strata::nn
