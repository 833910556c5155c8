#include <cstdlib>

#include "strata/app/config_file.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/schedule_file.hpp"
#include "strata/plan/plan.hpp"

#include "config/site_file.hpp"
#include "memory_file.hpp"
#include "refused_or_read.hpp"
#include "targets.hpp"

namespace strata::fuzz {
namespace {

/// Larger runs only take longer to plan.
bool is_small(const plan::RunConfig& config) {
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

io::DatasetInfo small_data(const plan::RunConfig& config) {
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
    const app::GivenConfig given = app::read_config(file.path(), {});
    static_cast<void>(app::resolved_config_text(given, given.config, {}));
  });
}

int run_plan(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  return refused_or_read([&] {
    const plan::RunConfig config = app::read_config(file.path(), {}).config;
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
    static_cast<void>(app::read_site_file({"nodes", "time", "partition"}));
  });
}

}  // namespace strata::fuzz
