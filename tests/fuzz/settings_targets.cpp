#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <vector>

#include "strata/config/config_file.hpp"
#include "strata/config/site_file.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/exchange/published_model.hpp"
#include "strata/io/tensor_files.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/schedule_file.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/checkpointing.hpp"

#include "families.hpp"
#include "huggingface_config.hpp"
#include "memory_file.hpp"
#include "refused_or_read.hpp"
#include "scratch_directory.hpp"
#include "targets.hpp"

namespace strata::fuzz {
namespace {

/// Larger runs only take longer to plan.
bool is_small(const config::RunConfig& config) {
  constexpr std::int64_t kMost = 64;
  const nn::TransformerOptions& transformer = config.model.transformer;
  return config.batch.global <= kMost && config.parallel.data <= kMost &&
         config.parallel.pipeline <= kMost && config.parallel.tensor <= kMost &&
         config.numerics.lanes <= kMost && config.numerics.shards <= kMost &&
         transformer.blocks <= kMost && config.model.layers.size() <= kMost;
}

io::DatasetInfo small_data(io::Task task) {
  io::DatasetInfo data{.path = "train.h5", .task = task, .samples = 100, .classes = 8};
  data.target_shape = task == io::Task::kRegression ? Shape{2} : Shape{};
  data.target_dtype = task == io::Task::kRegression ? DType::kFloat64 : DType::kInt64;
  data.input_shape = task == io::Task::kRegression ? Shape{10} : Shape{3, 8, 8};
  data.mean = data.deviation = {1.0};
  return data;
}

io::DatasetInfo small_data(const config::RunConfig& config) {
  if (config.data.train == "values") {
    return small_data(io::Task::kRegression);
  }
  if (config.data.train == "images") {
    return small_data(io::Task::kClassification);
  }
  return plan::assumed_data(config);
}

}  // namespace

int run_config(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  return refused_or_read([&] {
    const config::GivenConfig given = config::read_config(file.path(), {});
    static_cast<void>(config::resolved_config_text(given, given.config, {}));
  });
}

int run_plan(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  return refused_or_read([&] {
    const config::RunConfig config = config::read_config(file.path(), {}).config;
    if (is_small(config)) {
      const plan::Plan plan = plan::prepare(config, 0, small_data(config), {});
      static_cast<void>(plan::plan_text(plan));
    }
  });
}

int run_schedule(std::span<const std::byte> bytes) {
  constexpr const char* kName = "s.csv";
  return refused_or_read([&] {
    const pipeline::ScheduleFile file = pipeline::parse_schedule(
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kName);
    const pipeline::Schedule schedule = pipeline::schedule_of(file, kName);
    static_cast<void>(pipeline::file_errors(file, schedule, pipeline::check(schedule), kName));
    for (const auto content : {pipeline::FileContent::kCompute, pipeline::FileContent::kMessages}) {
      static_cast<void>(text_of(pipeline::converted(file, content, kName)));
    }
  });
}

int run_site(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  ::setenv("STRATA_SITE", file.path().c_str(), 1);
  return refused_or_read([] {
    static_cast<void>(config::read_site_file({"nodes", "time", "partition"}));
  });
}

int run_continued(std::span<const std::byte> bytes) {
  return open_checkpoint(bytes, [](const io::Checkpoint& checkpoint) {
    refused_or_read([&] { static_cast<void>(train::virtual_grid_of(checkpoint)); });
    refused_or_read([&] {
      if (const auto data = train::data_of(checkpoint);
          data && data->task == io::Task::kNextToken) {
        static_cast<void>(io::Tokenizer::of(*data));
      }
    });
  });
}

// A config.json beside the weights that it asks for, or, of a large model, one other weight.
int run_huggingface(std::span<const std::byte> bytes) {
  static const Directory kDirectory;
  const fs::path directory = kDirectory.fresh("model");
  std::ofstream(directory / "config.json", std::ios::binary) << text_of(bytes);
  return refused_in_one_line_or_read([&] {
    const exchange::PublishedModel model =
        exchange::read_huggingface_config(directory / "config.json");
    const nn::TransformerOptions& o = model.options;
    std::vector<io::TensorToStore> weights{{"a", io::StoredType::kFloat32, {1}}};
    if (std::max({o.blocks, o.width, o.hidden, o.context, o.vocabulary,
                  o.heads * nn::head_size_of(o)}) <= 100) {
      weights.clear();
      for (const exchange::PublishedTensor& tensor :
           exchange::published_tensors(model, exchange::MatrixOrder::kInputsFirst)) {
        weights.push_back({exchange::names_in_files(model, tensor.name).front(),
                           io::StoredType::kFloat32, tensor.shape});
      }
      if (!model.part_of.empty()) {
        weights.push_back({"vision_tower.a", io::StoredType::kFloat32, {1}});
      }
    }
    auto file = io::TensorFileWriter::safetensors(directory / "model.safetensors", weights);
    for (const io::TensorToStore& weight : weights) {
      file.append(std::vector<std::byte>(static_cast<std::size_t>(weight.shape.count()) * 4));
    }
    file.finish();
    const exchange::ForeignModel foreign = exchange::open_model(directory, std::nullopt);
    static_cast<void>(exchange::layer_lines(foreign.model));
  });
}

}  // namespace strata::fuzz
