#include "commands/models/check_logits.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/generation.hpp"

#include "commands/output_file.hpp"
#include "environment/cpu_cores.hpp"
#include "environment/execution_environment.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSequences = 4;
constexpr std::int64_t kMostTokens = 64;  // of a sequence

/// Computes logits of checkpoints, one model after the other.
class LogitRunner {
 public:
  LogitRunner(comm::MpiSession& mpi, DType dtype, std::int64_t tokens, std::int64_t vocabulary)
      : mpi_(mpi) {
    config::RunConfig& config = inputs_.config;
    config.model.transformer.context = tokens;
    config.model.transformer.vocabulary = vocabulary;
    config.numerics = {.lanes = 1, .shards = 1, .dtype = dtype};
    config.batch = {.global = 1, .micro = 1};
    config.train.steps = 1;
    inputs_.train_info = {.task = io::Task::kNextToken,
                          .input_shape = {tokens},
                          .input_dtype = DType::kInt64,
                          .target_shape = {tokens},
                          .classes = vocabulary};
    inputs_.threads = default_threads(1);
    for (std::uint64_t sequence = 0; sequence < kSequences; ++sequence) {
      const RandomStream stream(0, RandomPurpose::kSynthesise, sequence);
      std::vector<std::int64_t>& ids = ids_.emplace_back();
      for (std::int64_t token = 0; token < tokens; ++token) {
        ids.push_back(static_cast<std::int64_t>(stream.uniform(static_cast<std::uint64_t>(token)) *
                                                static_cast<double>(vocabulary)));
      }
    }
  }

  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& ids() const { return ids_; }

  /// Of all positions of the batch. Shapes: sequences x tokens x vocabulary.
  [[nodiscard]] std::vector<double> logits(const io::Checkpoint& checkpoint,
                                           const std::vector<std::string>& layers) {
    inputs_.config.model.layers = layers;
    plan::Plan plan = make_plan(mpi_, inputs_, 1);
    if (!environment_) {
      environment_.emplace(mpi_, inputs_, plan, Use::kEvaluation);
    }
    train::Generator generator(environment_->context(), plan, environment_->groups(), checkpoint);
    std::vector<double> result;
    for (const std::vector<std::int64_t>& sequence : ids_) {
      const std::vector<double> more = generator.logits(sequence);
      result.insert(result.end(), more.begin(), more.end());
    }
    return result;
  }

 private:
  comm::MpiSession& mpi_;
  RunInputs inputs_;
  std::vector<std::vector<std::int64_t>> ids_;
  std::optional<ExecutionEnvironment> environment_;
};

/// The largest difference of a rounded weight, relative to the weight.
double rounding(io::StoredType type) {
  switch (type) {
    case io::StoredType::kBfloat16:
      return 0x1p-8;
    case io::StoredType::kFloat16:
      return 0x1p-11;
    case io::StoredType::kFloat32:
      return 0x1p-24;
    default:
      return 0.0;
  }
}

double root_mean_square(const std::vector<double>& numbers) {
  double sum = 0.0;
  for (const double number : numbers) {
    sum += number * number;
  }
  return std::sqrt(sum / static_cast<double>(numbers.size()));
}

}  // namespace

std::string check_logits(comm::MpiSession& mpi, const io::Checkpoint& checkpoint,
                         const fs::path& directory, exchange::ModelFormat format,
                         const std::string& file) {
  const bool llmc = format == exchange::ModelFormat::kLlmc;
  const exchange::ForeignModel model =
      exchange::open_model(llmc ? directory / "model.bin" : directory, format);
  const auto weight = std::ranges::find_if(checkpoint.tensors(), [](const io::TensorInfo& tensor) {
    return tensor.name.starts_with(plan::kWeightPrefix);
  });
  const DType dtype = weight->dtype;
  const io::StoredType type = model.stored.front()->type;
  // Merging adapters rounds the weights, and products add up in another order.
  const bool merges =
      std::ranges::any_of(checkpoint.tensors(), nn::is_adapter, &io::TensorInfo::name);
  double unit = size_bytes(type) < size_bytes(dtype) ? rounding(type) : 0.0;
  if (merges) {
    unit = std::max(unit, dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24);
  }
  const bool rounds = unit > 0.0;
  const nn::TransformerOptions& sizes = model.model.options;
  const std::int64_t tokens = std::min(sizes.context, kMostTokens);
  LogitRunner runner(mpi, dtype, tokens, sizes.vocabulary);
  const auto layers = checkpoint.metadata().at("layers").get<std::vector<std::string>>();
  const std::vector<double> expected = runner.logits(checkpoint, layers);

  const fs::path root = directory / "checked";
  const io::DatasetInfo data{.task = io::Task::kNextToken,
                             .input_shape = {tokens},
                             .input_dtype = DType::kInt64,
                             .target_shape = {tokens},
                             .classes = sizes.vocabulary};
  const std::vector<std::string> read = exchange::layer_lines(model.model);
  exchange::import_model(model, root, dtype,
                         train::imported_metadata(read, data, directory.string()), nullptr);
  const std::vector<double> found =
      runner.logits(io::Checkpoint::open(io::list_checkpoints(root).front().directory), read);
  fs::remove_all(root);

  std::vector<double> differences;
  std::transform(expected.begin(), expected.end(), found.begin(), std::back_inserter(differences),
                 [](double a, double b) { return std::abs(a - b); });
  const double largest = *std::ranges::max_element(differences);
  const double deviation = root_mean_square(differences);
  const double relative = deviation == 0.0 ? 0.0 : deviation / root_mean_square(expected);
  const double layers_deep = static_cast<double>(read.size());
  const double bound = (merges ? 64.0 : 8.0) * unit * std::sqrt(layers_deep);
  const std::string compared = fmt::format("logits of {} x {} token ids", kSequences, tokens);
  // A number that is not finite fails too.
  if (rounds ? !(relative <= bound) : expected != found) {
    fail(
        ExitCode::kCheckpoint,
        "the {} files give other {} than {}: they {}, and {} was allowed; nothing was written{}",
        name_of(format), compared, checkpoint.directory().string(),
        std::isfinite(relative)
            ? fmt::format("differ by up to {:.3g}, in the root mean square by {:.3g} of the logits",
                          largest, relative)
            : "are not finite",
        rounds ? fmt::format("{:.3g}", bound) : "no difference",
        rounds && !merges ? "; choose a wider --dtype" : "");
  }
  if (!file.empty()) {
    nlohmann::json last;
    for (std::int64_t sequence = 0; sequence < kSequences; ++sequence) {
      const auto end = expected.begin() + (sequence + 1) * tokens * sizes.vocabulary;
      last.push_back(std::vector<double>(end - sizes.vocabulary, end));
    }
    write_file(file, nlohmann::json{{"ids", runner.ids()}, {"logits", last}}.dump() + "\n");
  }
  return rounds ? fmt::format(
                      "{}: differ by up to {:.3g}, in the root mean square by {:.3g} of the "
                      "logits ({:.3g} is allowed for {})",
                      compared, largest, relative, bound, name_of(type))
                : fmt::format("{}: equal bits in {}", compared, name_of(dtype));
}

}  // namespace strata::app
