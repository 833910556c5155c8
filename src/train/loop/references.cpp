#include "strata/train/references.hpp"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/evaluation.hpp"

namespace strata::train {
namespace {

constexpr const char* kLogRatios = "log_ratios";
constexpr const char* kLogRatiosChecksum = "checksum";

std::filesystem::path file_of(const plan::Plan& plan, const io::DatasetInfo& data) {
  return std::filesystem::path(plan.config.run.dir) /
         fmt::format("references-{:016x}.json", data.checksum);
}

std::string checksum_of(std::span<const double> references) {
  return hash_text(hash_of(std::as_bytes(references)));
}

std::vector<double> stored(const std::filesystem::path& path, const io::DatasetInfo& data) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 32;
  if (!std::filesystem::exists(path)) {
    fail(ExitCode::kData,
         "{} is missing: what the initial weights say of the pairs of {} is computed at the start "
         "of a run, for its data.train and data.test alone; restore the file, use data of the run, "
         "or start a new one with checkpoint.init, whose weights are the reference then",
         path.string(), data.path.string());
  }
  const auto file = io::parse_json(io::read_input(path, kMostBytes, ExitCode::kData));
  std::vector<double> references;
  if (file && file->is_object() && file->contains(kLogRatios) && file->at(kLogRatios).is_array() &&
      std::ranges::all_of(file->at(kLogRatios),
                          [](const nlohmann::json& value) { return value.is_number(); })) {
    references = file->at(kLogRatios).get<std::vector<double>>();
  }
  if (std::ssize(references) != data.samples ||
      file->value(kLogRatiosChecksum, nlohmann::json()) != checksum_of(references)) {
    fail(ExitCode::kData, "{} is damaged, or not of the {} pairs of {}; restore it from a copy",
         path.string(), data.samples, data.path.string());
  }
  return references;
}

}  // namespace

StopRequest make_references(ops::Context& context, const plan::Plan& plan,
                            const plan::RankPlan& rank, comm::Groups& groups,
                            pipeline::Executor& executor, io::Dataset& data, StopPolls& polls,
                            Log& log) {
  std::vector<double> references;
  const std::string name = data.info().path.string();
  const std::string all = count_text(data.info().samples);
  log.info("{}: the reference is what the initial weights say of its {} pairs", name, all);
  const double began = now_seconds();
  double gap = 2.0;  // seconds to the next line
  double last = began;
  const auto report = [&](std::int64_t done) {
    const double now = now_seconds();
    if (now - last < gap || done == data.info().samples) {
      return;
    }
    constexpr double kLongestGap = 60.0;
    gap = std::min(kLongestGap, 2.0 * gap);
    last = now;
    const double share = static_cast<double>(done) / static_cast<double>(data.info().samples);
    log.info("{}: reference of {} of {} pairs ({:.0f} %), {} left", name, count_text(done), all,
             100.0 * share, duration_text((now - began) * (1.0 - share) / share));
  };
  if (!evaluate(context, plan, rank, groups, executor, data,
                {.differences = &references, .progress = report, .polls = &polls})) {
    return StopRequest::kStop;
  }
  log.info("{}: reference of all {} pairs in {}", name, all, duration_text(now_seconds() - began));
  comm::agree(*groups.world, [&] {
    if (groups.world->rank() == 0) {
      const nlohmann::ordered_json file{{"data", data.info().path.string()},
                                        {kLogRatiosChecksum, checksum_of(references)},
                                        {kLogRatios, references}};
      io::replace_text(file_of(plan, data.info()), file.dump() + "\n");
    }
  });
  data.set_references(std::move(references));
  return StopRequest::kNone;
}

void load_references(const plan::Plan& plan, comm::Communicator& world, io::Dataset& data) {
  std::vector<double> references(static_cast<std::size_t>(data.info().samples));
  comm::agree(world, [&] {
    if (world.rank() == 0) {
      references = stored(file_of(plan, data.info()), data.info());
    }
  });
  world.broadcast(comm::payload_of(std::span(references)), 0);
  data.set_references(std::move(references));
}

}  // namespace strata::train
