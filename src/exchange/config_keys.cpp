#include "config_keys.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/io/json.hpp"

namespace strata::exchange {
namespace {

using Json = nlohmann::json;

constexpr Computed kComputed = std::nullopt;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

/// A number above 0; nothing where the value is another.
std::optional<double> positive_in(const Json& value) {
  const bool positive = value.is_number() && value.get<double>() > 0.0;
  return positive ? std::optional(value.get<double>()) : std::nullopt;
}

/// Reads one entry of a list for each block: whether the block is the exception that each n-th one
/// is. n is 0 without exceptions; nothing where no n gives the list.
std::optional<std::int64_t> interval_of(const Json& list, std::int64_t blocks, const Json& rule,
                                        const Json& exception) {
  if (!list.is_array() || std::ssize(list) != blocks) {
    return std::nullopt;
  }
  const std::int64_t first = std::ranges::find(list, exception) - list.begin();
  const std::int64_t every = first < blocks ? first + 1 : 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const bool is_exception = every > 0 && (block + 1) % every == 0;
    if (list[static_cast<std::size_t>(block)] != (is_exception ? exception : rule)) {
      return std::nullopt;
    }
  }
  return every;
}

Json list_of(std::int64_t blocks, std::int64_t every, const Json& rule, const Json& exception) {
  Json list = Json::array();
  for (std::int64_t block = 0; block < blocks; ++block) {
    list.push_back(every > 0 && (block + 1) % every == 0 ? exception : rule);
  }
  return list;
}

}  // namespace

ConfigKey count(const std::string& name, Member<std::int64_t> member, Null null,
                std::int64_t most) {
  return {.name = name,
          .read = [=](const Json* value, const Json&, PublishedModel& model) -> Computed {
            if (!is_given(value)) {
              if (value != nullptr && null == Null::kNone) {
                member.of(model) = 0;
              }
              return kComputed;
            }
            const std::int64_t found = io::integer_in(*value).value_or(0);
            if (found < 1 || found > most) {
              return fmt::format("models with a whole number from 1 to {}", most);
            }
            member.of(model) = found;
            return kComputed;
          },
          .write = [=](const PublishedModel& model, const Json*) -> Json {
            const std::int64_t number = member.of(model);
            return number == 0 ? Json() : Json(number);
          }};
}

ConfigKey width(const std::string& name) {
  ConfigKey key = count(name, &nn::TransformerOptions::width);
  key.read = [read = key.read](const Json* value, const Json& config, PublishedModel& model) {
    Computed computed = read(value, config, model);
    double& scale = model.options.family.embedding_scale;
    scale = scale == 1.0 ? 1.0 : std::sqrt(static_cast<double>(model.options.width));
    return computed;
  };
  return key;
}

ConfigKey heads(const std::string& name) {
  ConfigKey key = count(name, &nn::TransformerOptions::heads);
  key.read = [read = key.read](const Json* value, const Json& config, PublishedModel& model) {
    Computed computed = read(value, config, model);
    const nn::TransformerOptions& o = model.options;
    const bool rotary = o.positions == nn::PositionChoice::kRotary;
    const bool fits = (o.family.head_size > 0 || o.width % o.heads == 0) &&
                      (o.kv_heads == 0 || o.heads % o.kv_heads == 0) &&
                      (!rotary || nn::head_size_of(o) % 2 == 0);
    if (!computed && !fits) {
      computed = rotary ? "numbers that divide hidden_size into even heads, if head_dim does not "
                          "say their size, and that num_key_value_heads divides"
                        : "numbers that divide n_embd";
    }
    return computed;
  };
  return key;
}

ConfigKey head_size(const std::string& name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 16U;
  ConfigKey key = count(name, &nn::FamilyOptions::head_size, Null::kNone, kMost);
  // Programs beside transformers take width over heads for a missing key, whatever the family.
  key.write = [](const PublishedModel& model, const Json* given) -> Json {
    const nn::TransformerOptions& o = model.options;
    const bool says_more = given != nullptr || nn::head_size_of(o) * o.heads != o.width;
    return says_more ? Json(nn::head_size_of(o)) : Json(Json::value_t::discarded);
  };
  return key;
}

std::int64_t longest_context_of(const nn::TransformerOptions& options) {
  const ops::RotaryScaling& scaling = options.rotary_scaling;
  return scaling.kind == ops::RotaryScalingKind::kLongrope
             ? std::max<std::int64_t>(options.context,
                                      std::llround(scaling.factor * scaling.context))
             : options.context;
}

ConfigKey longest_context(const std::string& name) {
  ConfigKey key = count(name, &nn::TransformerOptions::context);
  key.write = [](const PublishedModel& model, const Json* given) -> Json {
    const auto longest = given == nullptr ? std::nullopt : io::integer_in(*given);
    return std::max(longest_context_of(model.options), longest.value_or(0));
  };
  return key;
}

ConfigKey interval(const std::string& name, Member<std::int64_t> member) {
  return {.name = name,
          .read = [=](const Json* value, const Json&, PublishedModel& model) -> Computed {
            if (is_given(value)) {
              const std::int64_t every = io::integer_in(*value).value_or(0);
              if (every < 2) {
                return "with a whole number from 2 on";
              }
              member.of(model) = every;
            }
            return kComputed;
          },
          .write = [=](const PublishedModel& model, const Json*) -> Json {
            const std::int64_t every = member.of(model);
            return every > 0 ? every : model.options.blocks + 1;
          },
          .written = Written::kWhereNeeded};
}

ConfigKey positive(const std::string& name, Member<double> member, Null null) {
  return {.name = name,
          .read = [=](const Json* value, const Json&, PublishedModel& model) -> Computed {
            if (is_given(value)) {
              const std::optional<double> number = positive_in(*value);
              if (!number) {
                return "with a number above 0";
              }
              member.of(model) = *number;
            } else if (value != nullptr && null == Null::kNone) {
              member.of(model) = 0.0;
            }
            return kComputed;
          },
          .write = [=](const PublishedModel& model, const Json*) -> Json {
            const double number = member.of(model);
            return number == 0.0 ? Json() : Json(number);
          }};
}

namespace {

template <typename S>
ConfigKey true_or_false(const std::string& name, Member<S> member, Written written) {
  return {.name = name,
          .read = [=](const Json* value, const Json&, PublishedModel& model) -> Computed {
            if (is_given(value)) {
              if (!value->is_boolean()) {
                return "with true or false";
              }
              member.of(model) = value->get<bool>() ? Switch::kOn : Switch::kOff;
            }
            return kComputed;
          },
          .write = [=](const PublishedModel& model, const Json*) -> Json {
            return member.of(model) == Switch::kOn;
          },
          .written = written};
}

}  // namespace

ConfigKey switched(const std::string& name, Member<std::optional<Switch>> member, Written written) {
  return true_or_false(name, member, written);
}

ConfigKey switched(const std::string& name, Member<Switch> member) {
  return true_or_false(name, member, Written::kAlways);
}

ConfigKey activation(const std::string& name,
                     const std::vector<std::pair<std::string, nn::MlpKind>>& choices) {
  const auto read = [choices](const Json* value, const Json&, PublishedModel& model) -> Computed {
    if (!is_given(value)) {
      return kComputed;
    }
    std::vector<std::string> names;
    for (const auto& [text, mlp] : choices) {
      if (*value == text) {
        model.options.mlp = mlp;
        return kComputed;
      }
      names.push_back(text);
    }
    return fmt::format("{}", fmt::join(names, ", "));
  };
  const auto write = [choices](const PublishedModel& model, const Json*) -> Json {
    const auto found = std::ranges::find(choices, model.options.mlp,
                                         [](const auto& choice) { return choice.second; });
    return found == choices.end() ? Json() : Json(found->first);
  };
  return {.name = name, .read = read, .write = write};
}

ConfigKey fixed(const std::string& name, const Json& value, const std::string& computed,
                Written written) {
  return {.name = name,
          .read = [=](const Json* found, const Json&, PublishedModel&) -> Computed {
            return is_given(found) && *found != value ? Computed(computed) : kComputed;
          },
          .write = [=](const PublishedModel&, const Json*) { return value; },
          .written = written};
}

ConfigKey fixed(const std::string& name, bool value, Written written) {
  return fixed(name, Json(value), value ? "with true" : "with false", written);
}

ConfigKey only_written(const std::string& name,
                       std::function<Json(const PublishedModel& model, const Json* given)> write) {
  return {.name = name, .read = {}, .write = std::move(write)};
}

ConfigKey query_scalar(const std::string& name, double usual) {
  return {.name = name,
          .read = [=](const Json* value, const Json&, PublishedModel& model) -> Computed {
            const std::optional<double> scalar = is_given(value) ? positive_in(*value) : usual;
            if (!scalar) {
              return "with a number above 0";
            }
            const auto size = static_cast<double>(nn::head_size_of(model.options));
            model.options.family.attention_scale = *scalar == size ? 0.0 : 1.0 / std::sqrt(*scalar);
            return kComputed;
          },
          .write = [](const PublishedModel& model, const Json*) -> Json {
            const double scale = model.options.family.attention_scale;
            if (scale == 0.0) {
              return nn::head_size_of(model.options);
            }
            const double scalar = 1.0 / (scale * scale);
            const double whole = std::round(scalar);
            const bool is_whole = whole < 1e15 && 1.0 / std::sqrt(whole) == scale;
            return is_whole ? Json(static_cast<std::int64_t>(whole)) : Json(scalar);
          }};
}

ConfigKey layer_types() {
  return {.name = "layer_types",
          .read = [](const Json* value, const Json&, PublishedModel& model) -> Computed {
            nn::TransformerOptions& o = model.options;
            if (!is_given(value)) {
              return kComputed;
            }
            const auto every = interval_of(*value, o.blocks, kSliding, kFull);
            if (!every || (every != 1 && o.attention_window == 0)) {
              return o.attention_window == 0
                         ? "full_attention, once for each layer"
                         : "sliding_attention for each layer but full_attention for each n-th one";
            }
            o.attention_window = every == 1 ? 0 : o.attention_window;
            o.family.global_every = *every;
            return kComputed;
          },
          .write =
              [](const PublishedModel& model, const Json*) {
                const nn::TransformerOptions& o = model.options;
                return list_of(o.blocks, o.attention_window == 0 ? 1 : o.family.global_every,
                               kSliding, kFull);
              },
          .written = Written::kWhereNeeded};
}

ConfigKey no_rope_layers() {
  return {.name = "no_rope_layers",
          .read = [](const Json* value, const Json&, PublishedModel& model) -> Computed {
            if (is_given(value)) {
              const auto every = interval_of(*value, model.options.blocks, 1, 0);
              if (!every || every == 1) {
                return "1 for each layer but 0 for each n-th one, with n from 2 on";
              }
              model.options.family.unrotated_every = *every;
            }
            return kComputed;
          },
          .write =
              [](const PublishedModel& model, const Json*) {
                return list_of(model.options.blocks, model.options.family.unrotated_every, 1, 0);
              },
          .written = Written::kWhereNeeded};
}

ConfigKey unused_window() {
  ConfigKey key = fixed("use_sliding_window", false);
  key.read = [](const Json* value, const Json& config, PublishedModel& model) -> Computed {
    // The layers from max_window_layers on attend within the window.
    constexpr std::int64_t kUsualLayers = 28;
    if (!is_given(value) || *value == false) {
      return kComputed;
    }
    const std::int64_t whole =
        io::integer_in(config.value("max_window_layers", Json(kUsualLayers))).value_or(0);
    const bool has_window =
        !config.contains("sliding_window") || !config["sliding_window"].is_null();
    return *value == true && (!has_window || whole >= model.options.blocks)
               ? kComputed
               : "with false, or max_window_layers of num_hidden_layers or more";
  };
  return key;
}

}  // namespace strata::exchange
