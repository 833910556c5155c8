#include "commands/planning/calibration_models.hpp"

#include <cstdint>

#include <fmt/format.h>

namespace strata::app {
namespace {

io::DatasetInfo classes_of(const Shape& shape, std::int64_t classes) {
  return {.path = "(none)", .samples = 1 << 20, .input_shape = shape, .classes = classes};
}

io::DatasetInfo tokens_of(std::int64_t context, std::int64_t vocabulary) {
  return {.path = "(none)",
          .task = io::Task::kNextToken,
          .samples = 1 << 20,
          .input_shape = {context},
          .input_dtype = DType::kInt64,
          .target_shape = {context},
          .classes = vocabulary};
}

config::RunConfig config_of(std::int64_t micro, std::int64_t lanes, DType dtype,
                            optim::OptimizerKind optimizer) {
  config::RunConfig config;
  config.batch.micro = micro;
  // Two microbatches a lane: the first writes gradients, the second adds to them.
  config.batch.global = 2 * micro * lanes;
  config.numerics.lanes = lanes;
  config.numerics.dtype = dtype;
  config.optimizer.kind = optimizer;
  config.train.steps = 1;
  return config;
}

struct Transformer {
  nn::Preset preset = nn::Preset::kGpt;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 64;
  std::int64_t vocabulary = 64;
  std::int64_t micro = 4;
  std::int64_t lanes = 1;
  std::int64_t shards = 1;
  double dropout = 0.0;
};

CalibrationModel transformer(const Transformer& of, DType dtype) {
  CalibrationModel sample{
      .config = config_of(of.micro, of.lanes, dtype, optim::OptimizerKind::kAdamw),
      .data = tokens_of(of.context, of.vocabulary)};
  sample.config.numerics.shards = of.shards;
  nn::TransformerOptions& options = sample.config.model.transformer;
  options.preset = of.preset;
  options.blocks = 1;
  options.width = of.width;
  options.heads = of.heads;
  options.context = of.context;
  options.vocabulary = of.vocabulary;
  options.dropout = of.dropout;
  if (of.preset == nn::Preset::kLlama) {
    options.kv_heads = of.heads / 2;
  }
  return sample;
}

CalibrationModel images(nn::Preset preset, std::int64_t micro, DType dtype) {
  CalibrationModel sample{
      .config = config_of(micro, 2, dtype, optim::OptimizerKind::kSgd),
      .data = classes_of(preset == nn::Preset::kLenet ? Shape{1, 28, 28} : Shape{3, 32, 32}, 10)};
  sample.config.optimizer.options.momentum = 0.9;
  sample.config.model.transformer.preset = preset;
  return sample;
}

CalibrationModel dense(std::int64_t width, std::int64_t micro, DType dtype) {
  CalibrationModel sample{.config = config_of(micro, 2, dtype, optim::OptimizerKind::kAdam),
                          .data = classes_of({1, 28, 28}, 10)};
  sample.config.model.layers = {"flatten", fmt::format("dense {} relu", width), "dropout 0.2"};
  // Deep enough that the weights of wide layers come from memory, as in larger models.
  for (int layer = 0; layer < 5; ++layer) {
    sample.config.model.layers.push_back(fmt::format("dense {} relu", width));
  }
  sample.config.model.layers.emplace_back("dense 10");
  return sample;
}

}  // namespace

std::vector<CalibrationModel> calibration_models(bool small) {
  constexpr auto kLlama = nn::Preset::kLlama;
  std::vector<CalibrationModel> all;
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat64}) {
    const bool wide = dtype != DType::kFloat64;
    all.push_back(transformer({.lanes = 2, .shards = 2, .dropout = 0.1}, dtype));
    all.push_back(dense(128, 16, dtype));
    all.back().with_others = dtype == DType::kFloat32;
    all.push_back(images(nn::Preset::kLenet, 16, dtype));
    if (small) {
      continue;
    }
    all.push_back(transformer({.width = 256, .context = 128, .vocabulary = 256}, dtype));
    all.push_back(dense(512, 32, dtype));
    all.push_back(dense(1024, 32, dtype));
    all.back().with_others = wide;
    all.push_back(dense(1536, 64, dtype));
    if (wide) {
      all.push_back(transformer({.context = 256, .micro = 8}, dtype));
      all.push_back(transformer(
          {.width = 384, .heads = 6, .context = 256, .vocabulary = 256, .lanes = 2}, dtype));
      all.back().with_others = true;
      all.push_back(transformer(
          {.width = 768, .heads = 12, .context = 1024, .vocabulary = 8192, .micro = 1}, dtype));
      all.back().with_others = dtype == DType::kFloat32;
      all.push_back(transformer(
          {.width = 1024, .heads = 16, .context = 256, .vocabulary = 1024, .micro = 2, .shards = 2},
          dtype));
      all.push_back(transformer({.preset = kLlama,
                                 .width = 512,
                                 .heads = 8,
                                 .context = 512,
                                 .vocabulary = 32768,
                                 .micro = 1},
                                dtype));
      all.push_back(images(nn::Preset::kCifar10Cnn, 8, dtype));
      all.push_back(images(nn::Preset::kCifar10Cnn, 32, dtype));
      all.back().with_others = dtype == DType::kFloat32;
      all.push_back(images(nn::Preset::kResnet20, 16, dtype));
    }
  }
  return all;
}

}  // namespace strata::app
