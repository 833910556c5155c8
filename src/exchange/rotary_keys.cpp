#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/nn/rotary_scaling.hpp"

#include "config_keys.hpp"

namespace strata::exchange {
namespace {

using Json = nlohmann::json;

constexpr const char* kScaling = "rope_scaling";
constexpr const char* kParameters = "rope_parameters";
constexpr const char* kTheta = "rope_theta";
constexpr const char* kLocalBase = "rope_local_base_freq";
constexpr const char* kShare = "partial_rotary_factor";
constexpr const char* kFirstContext = "original_max_position_embeddings";
constexpr const char* kAttentionFactor = "attention_factor";

// What newer files have apart, by the types of layers.
constexpr const char* kOutsideWindow = "full_attention";
constexpr const char* kInWindow = "sliding_attention";

bool has_share(RotaryForm form) {
  return form == RotaryForm::kShare || form == RotaryForm::kNeox;
}

/// Whether whole pairs of a head's elements turn.
bool turns_pairs(const nn::TransformerOptions& options) {
  return std::fmod(static_cast<double>(nn::head_size_of(options)) * options.family.rotary_share,
                   2.0) == 0.0;
}

bool is_given(const Json& value, const char* name) {
  return value.contains(name) && !value.at(name).is_null();
}

/// Whether a scaling of the type yarn has no key that changes it otherwise.
bool is_yarn_alone(const Json& value) {
  return !is_given(value, "mscale") && !is_given(value, "mscale_all_dim") &&
         value.value("truncate", Json(true)) == true;
}

/// The text of a scaling of the type longrope; empty where strata does not compute it. `config`:
/// the whole, where Phi-3 has the context of the first training.
std::string longrope_text(const Json& value, const Json& config, RotaryForm form,
                          const nn::TransformerOptions& options) {
  const auto number_in = [](const Json& object, const char* name) {
    return object.at(name).is_number() ? object.at(name).get<double>() : 0.0;
  };
  const auto list_at = [&](const char* name) {
    std::string text;
    const Json list = value.value(name, Json());
    for (const Json& factor : list.is_array() ? list : Json::array()) {
      text += fmt::format("{}{}", text.empty() ? "" : ",",
                          factor.is_number() ? factor.get<double>() : 0.0);
    }
    return text;
  };
  constexpr double kContextOfPhi3 = 4096.0;
  const double context = is_given(value, kFirstContext)    ? number_in(value, kFirstContext)
                         : is_given(config, kFirstContext) ? number_in(config, kFirstContext)
                         : form == RotaryForm::kShare      ? kContextOfPhi3
                                                           : 0.0;
  if (context <= 0.0 || is_given(value, "short_mscale") || is_given(value, "long_mscale")) {
    return "";
  }
  const double factor = is_given(value, "factor")
                            ? number_in(value, "factor")
                            : std::max(static_cast<double>(options.context) / context, 1.0);
  return fmt::format(
      "longrope:{}:{}:{}:{}{}", factor, context, list_at("short_factor"), list_at("long_factor"),
      is_given(value, kAttentionFactor) ? fmt::format(":{}", number_in(value, kAttentionFactor))
                                        : "");
}

/// Reads scaling, base and share of rotary positions; false where strata does not compute them.
bool read_rotary(const Json& value, const Json& config, RotaryForm form,
                 nn::TransformerOptions& options) {
  const auto number_at = [&](const char* name) {
    return value.contains(name) && value.at(name).is_number() ? value.at(name).get<double>() : 0.0;
  };
  const char* const named = value.contains("rope_type") ? "rope_type" : "type";
  const Json type = value.contains(named) ? value.at(named) : Json();
  std::string scaling;
  if (type == "default") {
    scaling = "none";
  } else if (type == "linear") {
    scaling = fmt::format("linear:{}", number_at("factor"));
  } else if (type == "llama3") {
    scaling = fmt::format("llama3:{}:{}:{}:{}", number_at("factor"), number_at("low_freq_factor"),
                          number_at("high_freq_factor"), number_at(kFirstContext));
  } else if (type == "yarn" && is_yarn_alone(value)) {
    // Source of the defaults: Peng et al., "YaRN", arXiv 2309.00071.
    const auto number_or = [&](const char* name, double otherwise) {
      return is_given(value, name) ? number_at(name) : otherwise;
    };
    scaling = fmt::format("yarn:{}:{}:{}:{}", number_at("factor"),
                          number_or(kFirstContext, static_cast<double>(options.context)),
                          number_or("beta_fast", 32.0), number_or("beta_slow", 1.0));
    if (is_given(value, kAttentionFactor)) {
      scaling += fmt::format(":{}", number_at(kAttentionFactor));
    }
  } else if (type == "longrope") {
    scaling = longrope_text(value, config, form, options);
  }
  const std::optional<ops::RotaryScaling> read = nn::parse_rotary_scaling(scaling);
  const double base = value.contains(kTheta) ? number_at(kTheta) : options.rotary_base;
  const double share = value.contains(kShare) ? number_at(kShare) : options.family.rotary_share;
  if (!read || !(base > 0.0) || !(share > 0.0) || share > 1.0 ||
      (!has_share(form) && share != 1.0)) {
    return false;
  }
  options.rotary_scaling = *read;
  options.rotary_base = base;
  options.family.rotary_share = share;
  const double pairs = static_cast<double>(nn::head_size_of(options)) * share / 2.0;
  return turns_pairs(options) && (read->kind != ops::RotaryScalingKind::kLongrope ||
                                  static_cast<double>(read->factors.count) == pairs);
}

/// Whether angles and magnitudes are the same, whatever says them.
bool turn_alike(ops::RotaryScaling one, ops::RotaryScaling other) {
  for (ops::RotaryScaling* scaling : {&one, &other}) {
    scaling->attention_factor = scaling->magnitude();
    scaling->factor = scaling->kind == ops::RotaryScalingKind::kLongrope ? 1.0 : scaling->factor;
  }
  return one == other;
}

/// What strata computes where two keys say the same thing otherwise. Programs differ in which of
/// them they take. `newer`: with the last word, as it may also have what `older` lacks.
std::string agreement(std::string_view older, std::string_view newer) {
  return fmt::format(
      "rotary positions on which {0} and {1} agree; write in {1} what is meant, and remove {0}",
      older, newer);
}

/// The key under a second name, with the value of the first where both are given.
ConfigKey second_name(ConfigKey key, const std::string& name, Member<double> member) {
  const std::string first = std::exchange(key.name, name);
  key.read = [=, read = key.read](const Json* value, const Json& config,
                                  PublishedModel& model) -> Computed {
    const double before = member.of(model);
    const Computed computed = read(value, config, model);
    const bool differs = is_given(config, first.c_str()) && member.of(model) != before;
    return !computed && differs ? agreement(first, name) : computed;
  };
  key.written = Written::kWhereGiven;
  return key;
}

Json list_json(const ops::PairFactors& factors) {
  return std::vector<double>(factors.values.begin(), factors.values.begin() + factors.count);
}

/// `rope_scaling` of a config.json.
Json scaling_json(const ops::RotaryScaling& scaling) {
  if (scaling.kind == ops::RotaryScalingKind::kNone) {
    return nullptr;
  }
  Json json{{"rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == ops::RotaryScalingKind::kLlama3) {
    json["low_freq_factor"] = scaling.low;
    json["high_freq_factor"] = scaling.high;
    json[kFirstContext] = static_cast<std::int64_t>(scaling.context);
  } else if (scaling.kind == ops::RotaryScalingKind::kYarn) {
    json[kFirstContext] = static_cast<std::int64_t>(scaling.context);
    json["beta_fast"] = scaling.high;
    json["beta_slow"] = scaling.low;
  } else if (scaling.kind == ops::RotaryScalingKind::kLongrope) {
    json[kFirstContext] = static_cast<std::int64_t>(scaling.context);
    json["short_factor"] = list_json(scaling.factors);
    json["long_factor"] = list_json(scaling.long_factors);
  }
  if (scaling.attention_factor > 0.0) {
    json[kAttentionFactor] = scaling.attention_factor;
  }
  return json;
}

/// `rope_scaling` of a model, which Phi-3 has without what follows from its contexts.
Json model_scaling_json(const nn::TransformerOptions& options, RotaryForm form) {
  Json json = scaling_json(options.rotary_scaling);
  const ops::RotaryScaling& scaling = options.rotary_scaling;
  if (form == RotaryForm::kShare && scaling.kind == ops::RotaryScalingKind::kLongrope) {
    json.erase("rope_type");
    json.erase("factor");
    json.erase(kFirstContext);
    json["type"] = name_of(scaling.kind);
    if (scaling.factor != static_cast<double>(longest_context_of(options)) / scaling.context) {
      json[kAttentionFactor] = scaling.magnitude();
    }
  }
  return json;
}

/// `rope_parameters` of a config.json.
Json parameters_json(const nn::TransformerOptions& options) {
  Json json = scaling_json(options.rotary_scaling);
  json.emplace("rope_type", "default");
  json[kTheta] = options.rotary_base;
  if (options.family.rotary_share != 1.0) {
    json[kShare] = options.family.rotary_share;
  }
  return json;
}

double base_in_window(const nn::TransformerOptions& options) {
  const double local = options.family.local_rotary_base;
  return local > 0.0 ? local : options.rotary_base;
}

}  // namespace

std::vector<ConfigKey> rotary_keys(RotaryForm form) {
  const std::string expected = fmt::format(
      "rotary positions of the types default, linear (factor), llama3 (factor, low_freq_factor, "
      "high_freq_factor, original_max_position_embeddings), yarn (factor, "
      "original_max_position_embeddings, beta_fast, beta_slow, attention_factor) and longrope "
      "(short_factor and long_factor, a number above 0 for each pair, "
      "original_max_position_embeddings, factor, attention_factor), of {}, with "
      "rope_theta above 0",
      has_share(form) ? "an even number of a head's elements" : "whole heads");
  const char* const base_name = form == RotaryForm::kNeox ? "rotary_emb_base" : kTheta;
  const char* const share_name = form == RotaryForm::kNeox ? "rotary_pct" : kShare;
  const auto read = [=](const Json* value, const Json& config, PublishedModel& model) -> Computed {
    nn::TransformerOptions& o = model.options;
    if (!is_given(value)) {
      return std::nullopt;
    }
    if (form != RotaryForm::kTwoBases || !value->contains(kOutsideWindow) ||
        !value->contains(kInWindow)) {
      return read_rotary(*value, config, form, o) ? Computed() : expected;
    }
    nn::TransformerOptions local = o;
    local.rotary_base = o.family.local_rotary_base;
    if (!read_rotary(value->at(kOutsideWindow), config, form, o) ||
        !read_rotary(value->at(kInWindow), config, form, local) ||
        local.rotary_scaling.kind != ops::RotaryScalingKind::kNone) {
      return expected + ", those of sliding_attention of the type default";
    }
    o.family.local_rotary_base = local.rotary_base;
    return std::nullopt;
  };
  // What keys beside it say, which were read before.
  const auto read_parameters = [=](const Json* value, const Json& config,
                                   PublishedModel& model) -> Computed {
    const nn::TransformerOptions before = model.options;
    if (Computed computed = read(value, config, model)) {
      return computed;
    }
    const nn::TransformerOptions& o = model.options;
    const bool same_base = o.rotary_base == before.rotary_base;
    const bool same_share = o.family.rotary_share == before.family.rotary_share;
    const std::array<std::pair<const char*, bool>, 6> keys{
        {{kScaling, turn_alike(o.rotary_scaling, before.rotary_scaling)},
         {base_name, same_base},
         {kTheta, same_base},
         {share_name, same_share},
         {kShare, same_share},
         {kLocalBase, o.family.local_rotary_base == before.family.local_rotary_base}}};
    for (const auto& [key, agrees] : keys) {
      if (!agrees && is_given(config, key)) {
        return agreement(key, kParameters);
      }
    }
    return std::nullopt;
  };
  ConfigKey share = fixed(kShare, 1.0, "rotary positions of whole heads, 1");
  if (has_share(form)) {
    share = positive(share_name, &nn::FamilyOptions::rotary_share);
    share.read = [read_number = share.read](const Json* value, const Json& config,
                                            PublishedModel& model) -> Computed {
      const bool fits = !read_number(value, config, model) &&
                        model.options.family.rotary_share <= 1.0 && turns_pairs(model.options);
      return fits ? Computed() : "rotary positions of an even number of a head's elements";
    };
    share.written = form == RotaryForm::kNeox ? Written::kAlways : Written::kWhereNeeded;
  }
  std::vector<ConfigKey> keys{
      positive(base_name, &nn::TransformerOptions::rotary_base),
      share,
      {.name = kScaling,
       .read = read,
       .write = [=](const PublishedModel& model,
                    const Json*) { return model_scaling_json(model.options, form); },
       .written = form == RotaryForm::kNeox ? Written::kWhereNeeded : Written::kAlways},
      {.name = kParameters,
       .read = read_parameters,
       .write =
           [](const PublishedModel& model, const Json* given) {
             Json json = parameters_json(model.options);
             if (is_given(given) && given->contains(kInWindow)) {
               json = {{kOutsideWindow, json},
                       {kInWindow,
                        {{"rope_type", "default"}, {kTheta, base_in_window(model.options)}}}};
             }
             return json;
           },
       .written = Written::kWhereGiven}};
  if (form == RotaryForm::kNeox) {
    // Some versions write both names.
    keys.insert(keys.begin() + 2,
                {second_name(keys[0], kTheta, &nn::TransformerOptions::rotary_base),
                 second_name(keys[1], kShare, &nn::FamilyOptions::rotary_share)});
  }
  if (form == RotaryForm::kShare) {
    keys.push_back(only_written(kFirstContext, [](const PublishedModel& model, const Json* given) {
      const ops::RotaryScaling& scaling = model.options.rotary_scaling;
      return scaling.kind == ops::RotaryScalingKind::kLongrope
                 ? Json(static_cast<std::int64_t>(scaling.context))
             : given == nullptr ? Json(Json::value_t::discarded)
                                : *given;
    }));
  }
  if (form == RotaryForm::kTwoBases) {
    ConfigKey local = positive(kLocalBase, &nn::FamilyOptions::local_rotary_base);
    local.write = [](const PublishedModel& model, const Json*) -> Json {
      return base_in_window(model.options);
    };
    // Before rope_parameters, which may have both bases.
    keys.insert(keys.begin(), std::move(local));
  }
  return keys;
}

}  // namespace strata::exchange
