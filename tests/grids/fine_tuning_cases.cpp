#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

const std::string kModel = language_config(kGpt);

// The embedding and the first layer need no gradients, the attention of the second block only that
// of its input.
const Settings kTuned{
    "optimizer.frozen=embedding.*,blocks.?.attention.*,blocks.0.mlp.up.*",
    "optimizer.groups=*.bias: learning_rate=2 weight_decay=1; blocks.1.mlp.*: learning_rate=0.5 "
    "weight_decay=0"};
const Settings kLora{"lora.rank=4", "lora.alpha=6"};

const std::vector<std::string> kRuns{"2x1x1 train.recompute=full",
                                     "1x2x1 parallel.schedule=zb-h1 parallel.backward=split",
                                     "1x1x2 parallel.sequence=off numerics.loss_pieces=1",
                                     "1x4x1 parallel.schedule=gpipe parallel.backward=fused",
                                     "2x2x2",
                                     "1x3x2 parallel.schedule=zb-h2",
                                     "1x7x1",
                                     "1x2x1 parallel.schedule=zb-v",
                                     "1x2x2 stop=3:2 | 2x1x2"};

/// Names of stored tensors behind a prefix.
std::set<std::string> names(const Result& result, std::string_view prefix) {
  std::set<std::string> found;
  for (const auto& [name, tensor] : result.tensors) {
    if (name.starts_with(prefix)) {
      found.insert(name.substr(prefix.size()));
    }
  }
  return found;
}

bool is_adapter(const std::string& name) {
  return name.ends_with(".lora_a") || name.ends_with(".lora_b");
}

/// Weights are those of the base unless `learns(name)`, which are also those with optimizer state.
template <typename Learns>
void expect_learned(const Result& found, const Result& base, const Learns& learns) {
  for (const std::string& name : names(found, "weights/")) {
    const auto before = base.tensors.find("weights/" + name);
    if (before != base.tensors.end()) {
      EXPECT_NE(found.weight(name) == before->second, learns(name)) << name;
    }
    EXPECT_EQ(found.tensors.contains("optimizer/adam_m/" + name), learns(name)) << name;
  }
}

bool is_tuned(const std::string& name) {
  return !name.starts_with("embedding.") && name.find(".attention.") == std::string::npos &&
         !name.starts_with("blocks.0.mlp.up.");
}

/// A run as the harness makes it for a case with a base.
Result base_of(const Settings& settings) {
  return train(kModel, settings, "2x1x2");
}

TEST(FineTuning, GroupsAreSettingsOfTheWhole) {
  const Result plain = train(kModel, {"optimizer.learning_rate=0.005",
                                      "optimizer.weight_decay=0.05", "optimizer.decay=all"});
  const Result grouped = train(kModel, {"optimizer.groups=*: learning_rate=0.5 weight_decay=0.5"});
  EXPECT_EQ(plain.tensors, grouped.tensors);
}

TEST(FineTuning, OtherTypesReadTheSameWeights) {
  const Result base = train_in("typed-base", kModel, {"train.steps=1"}, "2x1x2");
  const Settings settings{"optimizer.frozen=embedding.*,blocks.*", "train.steps=1"};
  const Result twice =
      train_in("typed-double", kModel,
               joined(settings, {"checkpoint.init=typed-base", "numerics.dtype=float64"}), "1x2x1");
  const Result single =
      train(kModel, joined(settings, {"checkpoint.init=typed-double/checkpoints"}), "1x1x2");
  for (const std::string& name : names(base, "weights/")) {
    if (name != "norm.weight" && name != "norm.bias") {
      EXPECT_EQ(twice.weight(name).dtype, DType::kFloat64);
      EXPECT_EQ(twice.weight(name).values(), base.weight(name).values()) << name;
      EXPECT_EQ(single.weight(name), base.weight(name)) << name;
    }
  }
}

TEST(FineTuning, AdaptersOfOnePartLearn) {
  struct Part {
    std::string setting;
    std::function<bool(const std::string&)> learns;
  };
  for (const Part& part : std::vector<Part>{
           {"optimizer.frozen=*.lora_a",
            [](const std::string& name) { return name.ends_with("lora_b"); }},
           {"optimizer.frozen=*.mlp.*.lora_b",
            [](const std::string& name) {
              return name.ends_with("lora_a") ||
                     (name.ends_with("lora_b") && name.find("attention") != std::string::npos);
            }},
           {"lora.train=norm.*", [](const std::string& name) {
              return is_adapter(name) || name.starts_with("norm.");
            }}}) {
    const Result found = train(kModel, joined(kLora, {part.setting}));
    for (const std::string& name : names(found, "weights/")) {
      EXPECT_EQ(found.tensors.contains("optimizer/adam_m/" + name), part.learns(name)) << name;
    }
  }
}

}  // namespace

std::vector<Case> fine_tuning_cases() {
  std::vector<Case> cases;
  for (const std::string dtype : {"float32", "bfloat16"}) {
    cases.push_back({.name = "Tuned_" + dtype,
                     .config = kModel,
                     .settings = joined(kTuned, {"numerics.dtype=" + dtype}),
                     .runs = kRuns,
                     .check =
                         [](const Result& result) {
                           expect_learned(result, base_of({"train.steps=2"}), is_tuned);
                         },
                     .base = {"train.steps=2"}});
    for (const auto& [name, model] :
         {std::pair{"Gpt", Settings()},
          {"Llama", joined(kLlama, {"model.hidden=64", "numerics.row_pieces=2"})}}) {
      const Settings products{std::string("lora.products=") + (model.empty() ? "" : "qkv,up,down")};
      const Settings base = joined(model, {"train.steps=1"});
      cases.push_back(
          {.name = std::string("Lora") + name + "_" + dtype,
           .config = kModel,
           .settings = joined(joined(joined(model, kLora), products), {"numerics.dtype=" + dtype}),
           .runs = kRuns,
           .check =
               [base](const Result& result) { expect_learned(result, base_of(base), is_adapter); },
           .base = base});
    }
  }
  const std::vector<std::string> runs{"1x1x2 parallel.sequence=on", "2x2x1", "1x3x2"};
  for (const auto& [name, setting] : {std::pair{"A", "optimizer.frozen=*.lora_a"},
                                      {"SomeB", "optimizer.frozen=*.mlp.*.lora_b"},
                                      {"Norm", "lora.train=norm.*"}}) {
    cases.push_back({std::string("LoraPart") + name, kModel, joined(kLora, {setting}), runs});
  }
  return cases;
}

}  // namespace strata::grids
