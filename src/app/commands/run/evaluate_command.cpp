#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/values.hpp"
#include "strata/core/text.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/references.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/run/loaded_model.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

/// Counters of a classifier's predictions, where they can be counted. Throws: Error(kUsage) where
/// they are requested but cannot be counted.
std::optional<train::ClassCounts> counts_for(const plan::Plan& plan,
                                             const config::CommandLine& line) {
  // The confusion matrix takes memory quadratic in the classes.
  constexpr std::int64_t kMostByDefault = 1000;
  constexpr std::int64_t kMost = 10000;
  const bool requested = line.has("classes") || line.has("confusion");
  const std::int64_t classes = plan.train_data.classes;
  if (train::counts_classes(plan) && classes <= (requested ? kMost : kMostByDefault)) {
    return train::ClassCounts(classes);
  }
  if (requested && train::counts_classes(plan)) {
    fail(ExitCode::kUsage,
         "--classes and --confusion take at most {} classes, the data set has {}; leave them out",
         kMost, classes);
  }
  if (requested) {
    fail(ExitCode::kUsage,
         "--classes and --confusion need a classifier whose last layer is not split; leave them "
         "out, or end the model with a layer without parallel=column");
  }
  return std::nullopt;
}

/// Prints the result with all digits, so that numbers read back to the same bits.
void print_result(const RunInputs& inputs, const plan::Plan& plan,
                  const train::EvaluationResult& result,
                  const std::optional<train::ClassCounts>& counts,
                  const config::CommandLine& line) {
  const io::Dataset& data = *inputs.test_data;
  std::string text = fmt::format("loss {}", result.loss);
  if (plan::has_perplexity(plan)) {
    text += fmt::format(", perplexity {:.6g}", std::exp(result.loss));
  }
  if (plan.model->loss() == nn::LossKind::kCrossEntropy) {
    text += fmt::format(", accuracy {:.4f} %", 100.0 * result.accuracy);
  }
  if (result.margin) {
    text += fmt::format(", margin {}", *result.margin);
  }
  if (counts) {
    text += fmt::format(", macro F1 {:.6f}", counts->macro_f1());
  }
  if (result.area) {
    text += fmt::format(", AUC {:.6f}", *result.area);
  }
  if (result.values) {
    text += fmt::format(", MAE {}, RMSE {}, R2 {}", result.values->mean_absolute_error,
                        result.values->root_mean_square_error, result.values->r2);
  }
  if (counts && counts->classes() > train::ClassCounts::kFirst) {
    text += fmt::format(", top-{} {:.4f} %", train::ClassCounts::kFirst,
                        100.0 * counts->accuracy_in_first());
  }
  const std::string all =
      result.samples == data.info().samples ? "" : fmt::format("of the {} ", data.info().samples);
  fmt::print("{}: {} over {} {}samples of {}\n", inputs.checkpoint->directory().string(), text,
             result.samples, all, data.info().path.string());
  for (const auto& [name, loss] : result.sets) {
    fmt::print("loss {} of {}\n", loss, name);
  }
  const std::vector<std::string>& names = plan.train_data.class_names;
  if (line.has("classes")) {
    fmt::print("{}", train::class_table(*counts, names));
  }
  if (line.has("confusion")) {
    train::write_confusion(*counts, names, line.value("confusion", ""));
  }
}

ExitCode evaluate_model(const config::CommandLine& line, comm::MpiSession& mpi,
                        const config::FailureHandler& /*on_failure*/) {
  Log log(log_role(mpi));
  comm::agree(mpi.world(), [&] {
    const std::string file = line.value("confusion", "");
    if (line.has("confusion") && file.empty()) {
      fail(ExitCode::kUsage, "--confusion= names no file; give --confusion=FILE.csv");
    }
    if (line.has("confusion") && mpi.world().rank() == 0) {
      require_writable(file);
    }
  });
  RunInputs inputs = open_trained(mpi, line.positions().front(), settings_of(line), Evaluates::kYes,
                                  which_checkpoint(line), log);
  plan::Plan plan = make_plan(mpi, inputs, mpi.world().size());
  const std::vector<std::string> matched = match_data(mpi, inputs, plan);
  std::optional<train::ClassCounts> counts;
  comm::agree(mpi.world(), [&] { counts = counts_for(plan, line); });
  if (plan::compares_documents(plan)) {
    train::load_references(plan, mpi.world(), *inputs.test_data);
  }
  LoadedModel model(mpi, inputs, plan);
  const train::EvaluationResult result =
      model.evaluate(*inputs.test_data, {.counts = counts ? &*counts : nullptr});
  comm::agree_on_first(mpi.world(), [&] {
    print_result(inputs, plan, result, counts, line);
    static_cast<void>(std::fflush(stdout));  // the result is the first line
  });
  for (const std::string& text : matched) {
    log.info("{}", text);
  }
  return ExitCode::kDone;
}

}  // namespace

Commands evaluate_commands() {
  return {
      {.name = "evaluate",
       .purpose = "loss and accuracy of the newest checkpoint",
       .synopses =
           {{"RUN|CONFIG.ini [--classes] [--confusion=FILE.csv] [--section.key=value ...]"}},
       .about =
           R"(Prints loss and accuracy of the newest good checkpoint on data.test, or on data.train if
data.test is empty. RUN is a run's directory. Runs on any number of ranks that the checkpoint's lanes, layers and shards
allow, with the same numbers.)",
       .options = {{"checkpoint", config::words_of<WhichCheckpoint>(),
                    "the newest one (default), or the best of checkpoint.best"},
                   {"classes", "",
                    "accuracy of each class, and the class it is most often confused with"},
                   {"confusion", "FILE.csv", "writes the confusion matrix"}},
       .lists = {{"Examples",
                  {{"strata evaluate RUN --data.test=FILE.h5", "on another data set"}}}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kSome,
       .needs = "a config file or a run's directory",
       .on_ranks = evaluate_model}};
}

}  // namespace strata::app
