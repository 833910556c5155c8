#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/values.hpp"
#include "strata/core/text.hpp"
#include "strata/io/choices.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/generation.hpp"
#include "strata/train/references.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/run/author.hpp"
#include "commands/run/loaded_model.hpp"
#include "environment/execution_environment.hpp"
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

std::string perplexity_text(const plan::Plan& plan, double loss) {
  return plan::has_perplexity(plan) ? fmt::format(", perplexity {:.6g}", std::exp(loss)) : "";
}

/// Prints the result with all digits, so that numbers read back to the same bits.
void print_result(const RunInputs& inputs, const plan::Plan& plan,
                  const train::EvaluationResult& result,
                  const std::optional<train::ClassCounts>& counts,
                  const config::CommandLine& line) {
  const io::Dataset& data = *inputs.test_data;
  std::string text = fmt::format("loss {}{}", result.loss, perplexity_text(plan, result.loss));
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
    fmt::print("loss {}{} of {}\n", loss, perplexity_text(plan, loss), name);
  }
  const std::vector<std::string>& names = plan.train_data.class_names;
  if (line.has("classes")) {
    fmt::print("{}", train::class_table(*counts, names));
  }
  if (line.has("confusion")) {
    train::write_confusion(*counts, names, line.value("confusion", ""));
  }
}

/// Writes the losses of a data set's documents as a table, with all digits.
void write_documents(const io::Dataset& data, std::span<const nn::MicrobatchLoss::Sample> samples,
                     const std::string& file) {
  const std::vector<train::DocumentLoss> losses = train::document_losses(data, samples);
  std::string text = "set,document,tokens,loss,perplexity\n";
  std::size_t at = 0;
  const auto add = [&](const io::Dataset& set) {
    const std::string name = io::csv_field(set.info().path.string());
    for (std::size_t i = 0; i < set.documents().ends.size(); ++i, ++at) {
      const auto& [loss, targets] = losses[at];
      text += fmt::format("{},{},{},{},", name, i, targets, loss);
      text +=
          targets == 0 ? "\n" : fmt::format("{}\n", std::exp(loss / static_cast<double>(targets)));
    }
  };
  if (data.sets().empty()) {
    add(data);
  }
  std::ranges::for_each(data.sets(), add);
  write_file(file, text);
}

void require_language_model(const RunInputs& inputs, std::string_view option) {
  if (inputs.train_info.task != io::Task::kNextToken) {
    fail(ExitCode::kUsage, "the model of {} is not a language model; --{} needs one",
         inputs.checkpoint->directory().string(), option);
  }
}

/// --batch; 0: the default.
std::int64_t questions_at_once(const config::CommandLine& line) {
  constexpr std::int64_t kMostQuestions = 1'000'000'000;
  return line.has("batch") ? line.count("batch", 0, 1, kMostQuestions) : 0;
}

/// The texts of each question's choices. Contexts that are cut may differ, others are the same.
std::vector<std::vector<train::ScoredTexts>> texts_of(const io::Choices& choices) {
  const io::Documents& documents = choices.data.documents();
  const auto tokens = [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(end - begin));
    choices.data.read_tokens(begin, ids);
    return ids;
  };
  std::vector<std::vector<train::ScoredTexts>> questions;
  std::int64_t document = 0;
  for (const io::Question& question : choices.questions) {
    std::vector<train::ScoredTexts>& texts = questions.emplace_back();
    for (std::size_t i = 0; i < question.bytes.size(); ++i, ++document) {
      const std::int64_t choice = documents.counted[static_cast<std::size_t>(2 * document)];
      std::vector<std::int64_t> context = tokens(documents.begin(document), choice);
      if (texts.empty() || texts.back().context != context) {
        texts.push_back({.context = std::move(context), .texts = {}});
      }
      texts.back().texts.push_back(tokens(choice, documents.end(document)));
    }
  }
  return questions;
}

/// Answers questions by the log-likelihood of their choices.
ExitCode answer_questions(const config::CommandLine& line, comm::MpiSession& mpi, Log& log) {
  RunInputs inputs = open_trained(mpi, line.positions().front(), settings_of(line), Evaluates::kNo,
                                  which_checkpoint(line), log);
  const std::string file = line.value("choices", "");
  std::optional<io::Choices> choices;
  comm::agree_plan(mpi.world(), [&]() -> std::vector<comm::PlanItem> {
    require_language_model(inputs, "choices");
    choices = io::read_choices(
        file, inputs.train_info,
        line.choice<io::LongQuestions>("cut").value_or(io::LongQuestions::kRefused));
    return {{file, choices->data.info().checksum}};
  });
  // What a text is worth to the model, also to one that has learned to compare answers.
  inputs.config.train.objective = config::RunConfig().train.objective;
  inputs.config.train.dpo_beta = config::RunConfig().train.dpo_beta;
  if (inputs.config.data.packing == io::Packing::kPairs) {
    inputs.config.data.packing = io::Packing::kBlocks;
  }
  inputs.config.train.recompute = nn::Recompute::kNone;
  inputs.config.parallel.sequence = Switch::kOff;
  plan::Plan plan = make_plan(mpi, inputs, mpi.world().size());
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kEvaluation);
  comm::Groups& groups = environment.groups();
  const auto questions = std::ssize(choices->questions);
  const std::int64_t batch = questions_at_once(line);
  const std::int64_t at_once = std::min(batch > 0 ? batch : train::default_texts_at_once(plan),
                                        (questions + groups.grid.data - 1) / groups.grid.data);
  std::optional<train::Generator> generator;
  {
    const train::FileTimeout timeout(mpi.world());
    comm::agree(mpi.world(), [&] {
      train::require_same_model(plan, *inputs.checkpoint);
      if (groups.coordinates.data < questions) {
        generator.emplace(environment.context(), plan, groups, *inputs.checkpoint, at_once);
      }
    });
  }
  groups.world->enter(comm::Phase::kEvaluation);
  const std::vector<double> all_sums =
      log_likelihoods(groups, generator ? &*generator : nullptr, texts_of(*choices), at_once);

  comm::agree_on_first(mpi.world(), [&] {
    std::string lines;
    std::int64_t right = 0;
    std::int64_t right_by_bytes = 0;
    auto sum = all_sums.begin();
    for (const io::Question& question : choices->questions) {
      std::vector<double> sums;
      std::vector<double> shares;
      for (const std::int64_t bytes : question.bytes) {
        sums.push_back(*sum++);
        if (!std::isfinite(sums.back())) {
          fail(
              ExitCode::kCheckpoint,
              "{}: the log-likelihoods of the choices of line {} of {} are not finite; use another "
              "checkpoint",
              inputs.checkpoint->directory().string(), question.line, file);
        }
        shares.push_back(sums.back() / static_cast<double>(bytes));
      }
      const auto chosen = std::ranges::max_element(sums) - sums.begin();
      const auto by_bytes = std::ranges::max_element(shares) - shares.begin();
      right += chosen == question.answer ? 1 : 0;
      right_by_bytes += by_bytes == question.answer ? 1 : 0;
      const nlohmann::ordered_json found{{"line", question.line},
                                         {"sums", sums},
                                         {"bytes", question.bytes},
                                         {"answer", question.answer},
                                         {"chosen", chosen},
                                         {"right", chosen == question.answer},
                                         {"chosen_by_bytes", by_bytes},
                                         {"right_by_bytes", by_bytes == question.answer}};
      lines += found.dump() + "\n";
    }
    if (line.has("output")) {
      write_file(line.value("output", ""), lines);
    }
    const auto count = std::ssize(choices->questions);
    const auto share = [&](std::int64_t of) {
      return 100.0 * static_cast<double>(of) / static_cast<double>(count);
    };
    fmt::print(
        "{}: accuracy {:.4f} %, by log-likelihood per byte {:.4f} %, over {} questions of "
        "{}\n",
        inputs.checkpoint->directory().string(), share(right), share(right_by_bytes), count, file);
  });
  return ExitCode::kDone;
}

/// Refuses options that do not go together, and files that cannot be written.
void check_options(const config::CommandLine& line, comm::MpiSession& mpi) {
  for (const auto& [file, kind] : {std::pair("confusion", "csv"), std::pair("documents", "csv"),
                                   std::pair("choices", "jsonl"), std::pair("output", "jsonl")}) {
    if (line.has(file) && line.value(file, "").empty()) {
      fail(ExitCode::kUsage, "--{}= names no file; give --{}=FILE.{}", file, file, kind);
    }
  }
  for (const char* const other : {"classes", "confusion", "documents"}) {
    if (line.has("choices") && line.has(other)) {
      fail(ExitCode::kUsage, "--{} is of a data set and --choices of questions; leave one out",
           other);
    }
  }
  for (const char* const further : {"output", "cut", "batch"}) {
    if (line.has(further) && !line.has("choices")) {
      fail(ExitCode::kUsage, "--{} is of --choices; give both, or leave it out", further);
    }
  }
  static_cast<void>(questions_at_once(line));
  for (const char* const written : {"confusion", "documents", "output"}) {
    if (line.has(written) && mpi.world().rank() == 0) {
      require_writable(line.value(written, ""));
    }
  }
}

ExitCode evaluate_model(const config::CommandLine& line, comm::MpiSession& mpi,
                        const config::FailureHandler& /*on_failure*/) {
  Log log(log_role(mpi));
  comm::agree(mpi.world(), [&] { check_options(line, mpi); });
  if (line.has("choices")) {
    return answer_questions(line, mpi, log);
  }
  RunInputs inputs = open_trained(mpi, line.positions().front(), settings_of(line), Evaluates::kYes,
                                  which_checkpoint(line), log);
  plan::Plan plan = make_plan(mpi, inputs, mpi.world().size());
  const bool by_document = line.has("documents");
  if (by_document) {
    comm::agree(mpi.world(), [&] {
      require_language_model(inputs, "documents");
      if (plan::compares_documents(plan)) {
        fail(ExitCode::kUsage,
             "--documents needs single documents, and train.objective is dpo, which compares "
             "pairs; give --train.objective=targets and a --data.test without pairs");
      }
      inputs.test_data->set_context(inputs.train_info.input_shape[0], io::Packing::kDocuments);
      plan.model->keep_sample_losses();
    });
  }
  const std::vector<std::string> matched = match_data(mpi, inputs, plan);
  std::optional<train::ClassCounts> counts;
  comm::agree(mpi.world(), [&] { counts = counts_for(plan, line); });
  if (plan::compares_documents(plan)) {
    train::load_references(plan, mpi.world(), *inputs.test_data);
  }
  LoadedModel model(mpi, inputs, plan);
  std::vector<nn::MicrobatchLoss::Sample> samples;
  const train::EvaluationResult result = model.evaluate(
      *inputs.test_data,
      {.counts = counts ? &*counts : nullptr, .samples = by_document ? &samples : nullptr});
  comm::agree_on_first(mpi.world(), [&] {
    if (by_document) {
      write_documents(*inputs.test_data, samples, line.value("documents", ""));
    }
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
       .synopses = {{"RUN|CONFIG.ini [--classes] [--confusion=FILE.csv] [--documents=FILE.csv] "
                     "[--section.key=value ...]"},
                    {"RUN|CONFIG.ini --choices=FILE.jsonl [--cut=left] [--output=FILE.jsonl] "
                     "[--batch=N] [--section.key=value ...]"}},
       .about =
           R"(Prints loss and accuracy of the newest good checkpoint on data.test, or on data.train if
data.test is empty. RUN is a run's directory. Runs on any number of ranks that the checkpoint's lanes, layers and shards
allow, with the same numbers.

With --choices, a language model answers the questions of a file: the choice with the largest log-likelihood behind the
context, and the one with the largest log-likelihood per byte. Each line is an object as {"context": "2 + 2 =", "choices":
[" 3", " 4"], "answer": 1}.)",
       .options =
           {{"checkpoint", config::words_of<WhichCheckpoint>(),
             "the newest one (default), or the best of checkpoint.best"},
            {"classes", "", "accuracy of each class, and the class it is most often confused with"},
            {"confusion", "FILE.csv", "writes the confusion matrix"},
            {"documents", "FILE.csv",
             "writes the counted tokens, loss and perplexity of each document of a text, "
             "each read by itself"},
            {"choices", "FILE.jsonl", "questions with several choices"},
            {"cut", config::words_of<io::LongQuestions>(),
             "questions longer than model.context: refuse them (default), or cut their "
             "contexts at the left"},
            {"batch", "N",
             R"(questions that a replica scores at once, with the same results: more questions a second, and more memory
(default: 8, or fewer where their keys and values would take more memory than the weights))"},
            {"output", "FILE.jsonl",
             "writes the log-likelihoods of the choices of each question, and what is "
             "chosen"}},
       .lists = {{"Examples",
                  {{"strata evaluate RUN --data.test=FILE.h5", "on another data set"},
                   {"strata evaluate RUN --choices=FILE.jsonl --ranks=4", "questions"}}}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kSome,
       .needs = "a config file or a run's directory",
       .on_ranks = evaluate_model}};
}

}  // namespace strata::app
