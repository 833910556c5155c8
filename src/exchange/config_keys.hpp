#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/exchange/published_model.hpp"

namespace strata::exchange {

/// When a key is written into a config.json.
enum class Written {
  kAlways,
  kWhereNeeded,  ///< where the model reads otherwise without it, or with the value that it came
                 ///< with
  kWhereGiven    ///< where the config.json that the model came with has it
};

/// What strata computes, where it does not compute the value of a key; else nothing.
using Computed = std::optional<std::string>;

/// A key of config.json that describes weights or what is computed with them.
struct ConfigKey {
  using Json = nlohmann::json;

  std::string name;
  /// Sets what the value says; null where the key is missing. Empty for a key that is only written.
  /// Pre: keys before this one in its row are read, and the model has the row's defaults.
  std::function<Computed(const Json* value, const Json& config, PublishedModel& model)> read;
  /// The value of a model, with the one that it came with or null; discarded where there is no need
  /// to write the key.
  std::function<Json(const PublishedModel& model, const Json* given)> write;
  Written written = Written::kAlways;
};

/// Whether a key is there and not null.
[[nodiscard]] inline bool is_given(const nlohmann::json* value) {
  return value != nullptr && !value->is_null();
}

/// What the JSON null of a key says.
enum class Null { kDefault, kNone };

/// Where a model has a number or a choice.
template <typename T>
class Member {
 public:
  Member(T nn::TransformerOptions::*member) : place_(member) {}
  Member(T nn::FamilyOptions::*member) : place_(member) {}

  [[nodiscard]] T& of(PublishedModel& model) const {
    if (const auto* option = std::get_if<T nn::TransformerOptions::*>(&place_)) {
      return model.options.*(*option);
    }
    return model.options.family.*std::get<T nn::FamilyOptions::*>(place_);
  }
  [[nodiscard]] T of(const PublishedModel& model) const {
    PublishedModel copy = model;
    return of(copy);
  }

 private:
  std::variant<T nn::TransformerOptions::*, T nn::FamilyOptions::*> place_;
};

/// A whole number from 1 to `most`; kNone: null is 0.
[[nodiscard]] ConfigKey count(const std::string& name, Member<std::int64_t> member,
                              Null null = Null::kDefault,
                              std::int64_t most = (std::int64_t{1} << 31U) - 1);
/// The width. An embedding that the row scales is scaled by its square root.
[[nodiscard]] ConfigKey width(const std::string& name);
/// The number of heads, after width, key-value heads and head size, with which it must agree.
[[nodiscard]] ConfigKey heads(const std::string& name);
/// The head size, which null and its lack leave to width over heads.
[[nodiscard]] ConfigKey head_size(const std::string& name);
/// The context; the longer one of the model's and the given one is written, as no weight depends
/// on it and training may have had shorter samples.
[[nodiscard]] ConfigKey longest_context(const std::string& name);
/// The context, or what longrope extends the first training's to, where that is longer.
[[nodiscard]] std::int64_t longest_context_of(const nn::TransformerOptions& options);
/// The n of "every n-th block", from 2 on.
[[nodiscard]] ConfigKey interval(const std::string& name, Member<std::int64_t> member);
/// A number above 0; kNone: null is 0.
[[nodiscard]] ConfigKey positive(const std::string& name, Member<double> member,
                                 Null null = Null::kDefault);
/// True or false.
[[nodiscard]] ConfigKey switched(const std::string& name, Member<std::optional<Switch>> member,
                                 Written written = Written::kAlways);
[[nodiscard]] ConfigKey switched(const std::string& name, Member<Switch> member);
/// The MLP's activation; of several names of one the first is written.
[[nodiscard]] ConfigKey activation(const std::string& name,
                                   const std::vector<std::pair<std::string, nn::MlpKind>>& choices);
/// A key with the one value that strata computes, which null stands for too.
[[nodiscard]] ConfigKey fixed(const std::string& name, const nlohmann::json& value,
                              const std::string& computed, Written written = Written::kWhereNeeded);
[[nodiscard]] ConfigKey fixed(const std::string& name, bool value,
                              Written written = Written::kWhereNeeded);
/// What strata writes and does not read.
[[nodiscard]] ConfigKey only_written(
    const std::string& name,
    std::function<nlohmann::json(const PublishedModel& model, const nlohmann::json* given)> write);

/// Scores are multiplied by value^-0.5; `usual` where the key is missing. After the head size.
[[nodiscard]] ConfigKey query_scalar(const std::string& name, double usual);
/// `layer_types`: full_attention in each `global_every`-th block, else sliding_attention.
[[nodiscard]] ConfigKey layer_types();
/// `no_rope_layers`: 0 in each `unrotated_every`-th block, else 1.
[[nodiscard]] ConfigKey no_rope_layers();
/// `use_sliding_window`, where no block attends within one.
[[nodiscard]] ConfigKey unused_window();

/// What a family's rotary positions may have.
enum class RotaryForm {
  kWhole,
  kShare,     ///< `partial_rotary_factor`
  kNeox,      ///< the same, with base and share under the names of GPT-NeoX
  kTwoBases,  ///< `rope_parameters` has those of blocks in the window apart
};

/// `rope_theta`, `rope_scaling`, `partial_rotary_factor` and `rope_parameters`, which newer files
/// have for all; of GPT-NeoX `rotary_emb_base` and `rotary_pct`. After the head size.
[[nodiscard]] std::vector<ConfigKey> rotary_keys(RotaryForm form);

}  // namespace strata::exchange
