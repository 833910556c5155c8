#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

// The embedding and the first layer need no gradients, the attention of the second block only that
// of its input.
const Settings kTuned =
    "& optimizer.frozen=embedding.*,blocks.?.attention.*,blocks.0.mlp.up.*"
    "& optimizer.groups=*.bias: learning_rate=2 weight_decay=1; "
    "blocks.1.mlp.*: learning_rate=0.5 weight_decay=0";
const Settings kLora = "& lora.rank=4 & lora.alpha=6";

const char* const kRuns =
    "2x1x1 train.recompute=full;"
    "1x2x1 parallel.schedule=zb-h1 parallel.backward=split;"
    "1x1x2 parallel.sequence=off numerics.loss_pieces=1;"
    "1x4x1 parallel.schedule=gpipe parallel.backward=fused; 2x2x2;"
    "1x3x2 parallel.schedule=zb-h2; 1x7x1; 1x2x1 parallel.schedule=zb-v;"
    "1x2x2 stop=3:2 | 2x1x2";

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

TEST(FineTuning, GroupsAreSettingsOfTheWhole) {
  const Result plain = train(kGpt +
                             "& optimizer.learning_rate=0.005 & optimizer.decay=all"
                             "& optimizer.weight_decay=0.05");
  const Result grouped = train(kGpt + "& optimizer.groups=*: learning_rate=0.5 weight_decay=0.5");
  EXPECT_EQ(plain.tensors, grouped.tensors);
}

TEST(FineTuning, OtherTypesReadTheSameWeights) {
  const Settings one = kGpt + "& train.steps=1";
  const Settings frozen = one + "& optimizer.frozen=embedding.*,blocks.*";
  const Result base = train(one, "2x1x2", "base");
  const Result twice =
      train(frozen + "& checkpoint.init=base & numerics.dtype=float64", "1x2x1", "double");
  const Result single = train(frozen + "& checkpoint.init=double/checkpoints", "1x1x2");
  for (const std::string& name : names(base, "weights/")) {
    if (name != "norm.weight" && name != "norm.bias") {
      EXPECT_EQ(twice.weight(name).dtype, DType::kFloat64);
      EXPECT_EQ(twice.weight(name).values(), base.weight(name).values()) << name;
      EXPECT_EQ(single.weight(name), base.weight(name)) << name;
    }
  }
}

/// Adapters of which one part learns, or a norm too.
template <typename Learns>
Case part(const std::string& name, const std::string& setting, const Learns& learns) {
  return {"LoraPart" + name, kGpt + kLora + setting,
          list_of("1x1x2 parallel.sequence=on; 2x2x1; 1x3x2"), [learns](const Result& found) {
            for (const std::string& weight : names(found, "weights/")) {
              EXPECT_EQ(found.tensors.contains("optimizer/adam_m/" + weight), learns(weight))
                  << weight;
            }
          }};
}

/// A case that starts from the weights of a run with the settings `base`.
template <typename Learns>
Case tuned(const std::string& name, const Settings& base, const Settings& more,
           const Learns& learns) {
  return {
      .name = name,
      .settings = base + "& train.steps=3" + more,
      .runs = list_of(kRuns),
      .check = [base, learns](
                   const Result& found) { expect_learned(found, train(base, "2x1x2"), learns); },
      .base = base};
}

}  // namespace

std::vector<Case> fine_tuning_cases() {
  std::vector<Case> cases{
      part("A", "& optimizer.frozen=*.lora_a",
           [](const std::string& name) { return name.ends_with("lora_b"); }),
      part("SomeB", "& optimizer.frozen=*.mlp.*.lora_b",
           [](const std::string& name) {
             return name.ends_with("lora_a") ||
                    (name.ends_with("lora_b") && name.find("attention") != std::string::npos);
           }),
      part("Norm", "& lora.train=norm.*",
           [](const std::string& name) { return is_adapter(name) || name.starts_with("norm."); })};
  const Settings one = kGpt + "& train.steps=1";
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const Settings typed = "& numerics.dtype=" + dtype;
    cases.push_back(tuned("Tuned_" + dtype, kGpt + "& train.steps=2", kTuned + typed, is_tuned));
    cases.push_back(tuned("LoraGpt_" + dtype, one, kLora + "& lora.products=" + typed, is_adapter));
    cases.push_back(tuned("LoraLlama_" + dtype,
                          one + kLlama + "& model.hidden=64 & numerics.row_pieces=2",
                          kLora + "& lora.products=qkv,up,down" + typed, is_adapter));
  }
  return cases;
}

}  // namespace strata::grids
