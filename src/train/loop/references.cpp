#include "strata/train/references.hpp"

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"
#include "strata/io/tensor_files.hpp"
#include "strata/train/evaluation.hpp"

namespace strata::train {
namespace {

constexpr const char* kName = "log_ratios";

std::filesystem::path file_of(const plan::Plan& plan, const io::DatasetInfo& data) {
  return std::filesystem::path(plan.config.run.dir) /
         fmt::format("references-{:016x}.safetensors", data.checksum);
}

void store(const std::filesystem::path& path, std::span<const double> references) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::filesystem::remove(temporary);
  const std::array<io::TensorToStore, 1> tensors{
      {{.name = kName, .type = io::StoredType::kFloat64, .shape = {std::ssize(references)}}}};
  io::TensorFileWriter writer = io::TensorFileWriter::safetensors(temporary, tensors);
  writer.append(std::as_bytes(references));
  writer.finish();
  std::filesystem::rename(temporary, path);
}

std::vector<double> stored(const std::filesystem::path& path, const io::DatasetInfo& data) {
  if (!std::filesystem::exists(path)) {
    fail(ExitCode::kData,
         "{} is missing, which holds what the initial weights say of the pairs of {}; restore it, "
         "or start a new run with --checkpoint.init, whose weights are the reference then",
         path.string(), data.path.string());
  }
  const io::TensorFiles files = io::TensorFiles::open_safetensors(path);
  const auto found = files.tensors().find(kName);
  if (found == files.tensors().end() || found->second.type != io::StoredType::kFloat64 ||
      found->second.shape != Shape{data.samples}) {
    fail(ExitCode::kData, "{} holds no {} of {} pairs in float64; restore it", path.string(), kName,
         data.samples);
  }
  std::vector<double> references(static_cast<std::size_t>(data.samples));
  io::read_elements(found->second, 0,
                    TensorView(reinterpret_cast<std::byte*>(references.data()), Shape{data.samples},
                               DType::kFloat64));
  return references;
}

}  // namespace

StopRequest make_references(ops::Context& context, const plan::Plan& plan,
                            const plan::RankPlan& rank, comm::Groups& groups,
                            pipeline::Executor& executor, io::Dataset& data, StopPolls& polls) {
  std::vector<double> references;
  if (!evaluate(context, plan, rank, groups, executor, data,
                {.differences = &references, .polls = &polls})) {
    return StopRequest::kStop;
  }
  comm::agree(*groups.world, [&] {
    if (groups.world->rank() == 0) {
      store(file_of(plan, data.info()), references);
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
