#include <cmath>

#include <fmt/format.h>

#include "strata/nn/rotary_scaling.hpp"

#include "config_keys.hpp"

namespace strata::exchange {
namespace {

using Json = nlohmann::json;

constexpr const char* kTheta = "rope_theta";
constexpr const char* kShare = "partial_rotary_factor";

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

/// Reads scaling, base and share of rotary positions; false where strata does not compute them.
bool read_rotary(const Json& value, RotaryForm form, nn::TransformerOptions& options) {
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
    scaling =
        fmt::format("llama3:{}:{}:{}:{}", number_at("factor"), number_at("low_freq_factor"),
                    number_at("high_freq_factor"), number_at("original_max_position_embeddings"));
  } else if (type == "yarn" && is_yarn_alone(value)) {
    // Source of the defaults: Peng et al., "YaRN", arXiv 2309.00071.
    const auto number_or = [&](const char* name, double otherwise) {
      return is_given(value, name) ? number_at(name) : otherwise;
    };
    scaling = fmt::format(
        "yarn:{}:{}:{}:{}", number_at("factor"),
        number_or("original_max_position_embeddings", static_cast<double>(options.context)),
        number_or("beta_fast", 32.0), number_or("beta_slow", 1.0));
    if (is_given(value, "attention_factor")) {
      scaling += fmt::format(":{}", number_at("attention_factor"));
    }
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
  return turns_pairs(options);
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
    json["original_max_position_embeddings"] = static_cast<std::int64_t>(scaling.context);
  } else if (scaling.kind == ops::RotaryScalingKind::kYarn) {
    json["original_max_position_embeddings"] = static_cast<std::int64_t>(scaling.context);
    json["beta_fast"] = scaling.high;
    json["beta_slow"] = scaling.low;
    if (scaling.attention_factor > 0.0) {
      json["attention_factor"] = scaling.attention_factor;
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
      "high_freq_factor, original_max_position_embeddings) and yarn (factor, "
      "original_max_position_embeddings, beta_fast, beta_slow, attention_factor), of {}, with "
      "rope_theta above 0",
      has_share(form) ? "an even number of a head's elements" : "whole heads");
  const auto read = [=](const Json* value, const Json&, PublishedModel& model) -> Computed {
    nn::TransformerOptions& o = model.options;
    if (!is_given(value)) {
      return std::nullopt;
    }
    if (form != RotaryForm::kTwoBases || !value->contains(kOutsideWindow) ||
        !value->contains(kInWindow)) {
      return read_rotary(*value, form, o) ? Computed() : expected;
    }
    nn::TransformerOptions local = o;
    if (!read_rotary(value->at(kOutsideWindow), form, o) ||
        !read_rotary(value->at(kInWindow), form, local) ||
        local.rotary_scaling.kind != ops::RotaryScalingKind::kNone) {
      return expected + ", those of sliding_attention of the type default";
    }
    o.family.local_rotary_base = local.rotary_base;
    return std::nullopt;
  };
  ConfigKey share = fixed(kShare, 1.0, "rotary positions of whole heads, 1");
  if (has_share(form)) {
    share = positive(form == RotaryForm::kNeox ? "rotary_pct" : kShare,
                     &nn::FamilyOptions::rotary_share);
    share.read = [read_number = share.read](const Json* value, const Json& config,
                                            PublishedModel& model) -> Computed {
      const bool fits = !read_number(value, config, model) &&
                        model.options.family.rotary_share <= 1.0 && turns_pairs(model.options);
      return fits ? Computed() : "rotary positions of an even number of a head's elements";
    };
    share.written = form == RotaryForm::kNeox ? Written::kAlways : Written::kWhereNeeded;
  }
  std::vector<ConfigKey> keys{
      positive(form == RotaryForm::kNeox ? "rotary_emb_base" : kTheta,
               &nn::TransformerOptions::rotary_base),
      share,
      {.name = "rope_scaling",
       .read = read,
       .write = [](const PublishedModel& model,
                   const Json*) { return scaling_json(model.options.rotary_scaling); },
       .written = form == RotaryForm::kNeox ? Written::kWhereNeeded : Written::kAlways},
      {.name = "rope_parameters",
       .read = read,
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
    // Some versions write both names; they compute by these.
    share.name = kShare;
    ConfigKey theta = positive(kTheta, &nn::TransformerOptions::rotary_base);
    share.written = theta.written = Written::kWhereGiven;
    keys.insert(keys.begin() + 2, {theta, share});
  }
  if (form == RotaryForm::kTwoBases) {
    ConfigKey local = positive("rope_local_base_freq", &nn::FamilyOptions::local_rotary_base);
    local.write = [](const PublishedModel& model, const Json*) -> Json {
      return base_in_window(model.options);
    };
    // Before rope_parameters, which may have both bases.
    keys.insert(keys.begin(), std::move(local));
  }
  return keys;
}

}  // namespace strata::exchange
