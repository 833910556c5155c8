#include "checkpoint_adapters.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/io/json.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/checkpointing.hpp"

#include "peft_config.hpp"

namespace strata::exchange {
namespace {

constexpr std::string_view kWeight = ".weight";

/// "x" of "x.weight".
std::string module_of(const std::string& name) {
  return name.substr(0, name.size() - kWeight.size());
}

}  // namespace

CheckpointAdapters::CheckpointAdapters(const io::Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  for (const std::string& line :
       checkpoint.metadata().value("layers", std::vector<std::string>())) {
    if (line.find("lora=") == std::string::npos) {
      continue;
    }
    nn::LayerLine layer(line);
    const std::int64_t rank = layer.take_option_count("lora", 0, 0);
    const double alpha = layer.take_option_number("lora_alpha", static_cast<double>(rank));
    if (rank > 0 && rank_ > 0 && (rank != rank_ || alpha != alpha_)) {
      fail(ExitCode::kUsage,
           "{} has adapters of rank {} and alpha {}, and of rank {} and alpha {}; an export needs "
           "one rank and alpha",
           checkpoint.directory().string(), rank_, alpha_, rank, alpha);
    }
    if (rank > 0) {
      rank_ = rank;
      alpha_ = alpha;
    }
  }
}

CheckpointAdapters::Matrices CheckpointAdapters::matrices_of(const std::string& parameter) const {
  Matrices matrices;
  if (rank_ == 0 || !parameter.ends_with(kWeight)) {
    return matrices;
  }
  const auto find = [&](std::string_view part, std::string& name, Shape& shape) {
    const std::string whole =
        fmt::format("{}{}", plan::kWeightPrefix, nn::parameter_name(module_of(parameter), part));
    if (const io::TensorInfo* const found = checkpoint_.find(whole)) {
      name = whole;
      shape = found->shape;
    }
  };
  find(nn::kAdapterA, matrices.a, matrices.a_shape);
  find(nn::kAdapterB, matrices.b, matrices.b_shape);
  return matrices;
}

void CheckpointAdapters::merge(const ParameterRows& rows, const TensorView& weights) const {
  const Matrices matrices = matrices_of(rows.parameter);
  if (matrices.a.empty()) {
    return;
  }
  const std::int64_t count = rows.rows.count();
  const Shape b_shape{count, rank_};
  std::vector<std::byte> memory(static_cast<std::size_t>(
      (matrices.a_shape.count() + b_shape.count()) * size_bytes(weights.dtype())));
  const TensorView a(memory.data(), matrices.a_shape, weights.dtype());
  const TensorView b(memory.data() + a.bytes(), b_shape, weights.dtype());
  checkpoint_.read(matrices.a, matrices.a_shape, {}, {0, a.count()}, a);
  checkpoint_.read(matrices.b, matrices.b_shape, {},
                   {rows.rows.begin * rank_, rows.rows.end * rank_}, b);
  ops::Context context(1);
  ops::scaled(context, alpha_ / static_cast<double>(rank_), b, b, ops::Accumulate::kOverwrite);
  ops::matmul(context, b, a, weights.reshaped(Shape{count, matrices.a_shape[1]}),
              {.accumulate = ops::Accumulate::kAdd});
}

std::vector<PublishedTensor> CheckpointAdapters::tensors(
    std::span<const PublishedTensor> weights) const {
  std::vector<PublishedTensor> tensors;
  for (const PublishedTensor& weight : weights) {
    const std::string& parameter = weight.rows.front().parameter;
    const Matrices matrices = matrices_of(parameter);
    for (const ParameterRows& part : weight.rows) {
      if (part.parameter != parameter &&
          !(matrices.a.empty() && matrices_of(part.parameter).a.empty())) {
        fail(ExitCode::kUsage,
             "--adapters=apart: {} holds {} and {}, which have adapters of their own, and PEFT has "
             "one for a tensor; set --adapters=merged",
             weight.name, parameter, part.parameter);
      }
    }
    if (matrices.a.empty()) {
      continue;
    }
    const auto name = [&](std::string_view matrix) {
      return peft_name(module_of(weight.name), matrix);
    };
    const std::string a = matrices.a.substr(plan::kWeightPrefix.size());
    const std::string b = matrices.b.substr(plan::kWeightPrefix.size());
    tensors.push_back({.name = name("lora_A"),
                       .shape = matrices.a_shape,
                       .rows = {{a, matrices.a_shape, {0, rank_}}}});
    std::int64_t outputs = 0;
    std::vector<ParameterRows> rows;
    for (const ParameterRows& part : weight.rows) {
      rows.push_back({b, matrices.b_shape, part.rows});
      outputs += part.rows.count();
    }
    tensors.push_back({.name = name("lora_B"), .shape = {outputs, rank_}, .rows = std::move(rows)});
  }
  return tensors;
}

nlohmann::json CheckpointAdapters::config(std::span<const PublishedTensor> weights) const {
  // The last two parts of a name, as in "attn.c_proj".
  const auto end_of = [](const std::string& module) {
    return module.substr(module.rfind('.', module.rfind('.') - 1) + 1);
  };
  std::set<std::string> others;
  std::vector<std::string> adapted;
  std::vector<std::string> all;
  bool inputs_first = false;
  for (const PublishedTensor& weight : weights) {
    const std::string module = module_of(weight.name);
    all.push_back(module);
    if (matrices_of(weight.rows.front().parameter).a.empty()) {
      others.insert(end_of(module));
    } else {
      adapted.push_back(module);
      inputs_first = inputs_first || weight.order == MatrixOrder::kInputsFirst;
    }
  }
  std::set<std::string> modules;
  for (const std::string& module : adapted) {
    modules.insert(others.contains(end_of(module)) ? module : end_of(module));
  }
  nlohmann::json config{{"peft_type", "LORA"},
                        {"task_type", "CAUSAL_LM"},
                        {"r", rank_},
                        {"lora_alpha", alpha_},
                        {"lora_dropout", 0.0},
                        {"target_modules", modules},
                        {"bias", "none"},
                        {"fan_in_fan_out", inputs_first},
                        {"inference_mode", true},
                        {"base_model_name_or_path", nullptr}};
  const train::ModelTexts texts = train::model_texts(checkpoint_);
  const auto text = texts.find(kPeftConfig);
  if (text == texts.end()) {
    return config;
  }
  // What the adapters came with stays where it says the same.
  const PeftConfig given = parse_peft_config(text->second, kPeftConfig);
  nlohmann::json result = *io::parse_json(text->second);
  const auto names_same = [&](const std::string& module) {
    return std::ranges::any_of(
        given.targets, [&](const std::string& target) { return is_target(module, target); });
  };
  if (given.rank != rank_ || given.alpha != alpha_) {
    result.update({{"r", rank_}, {"lora_alpha", alpha_}, {"use_rslora", false}});
  }
  if (std::ranges::count_if(all, names_same) != std::ssize(adapted) ||
      !std::ranges::all_of(adapted, names_same)) {
    result["target_modules"] = modules;
  }
  result["fan_in_fan_out"] = inputs_first;
  return result;
}

}  // namespace strata::exchange
