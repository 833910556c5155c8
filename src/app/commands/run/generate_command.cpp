#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/generation.hpp"

#include "commands/commands.hpp"
#include "environment/execution_environment.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

/// Throws: Error(kUsage) for an empty prompt.
std::optional<std::string> prompt_of(const config::CommandLine& line) {
  if (!line.has("prompt")) {
    return std::nullopt;
  }
  const std::string prompt = line.value("prompt", "");
  if (prompt.empty()) {
    fail(ExitCode::kUsage,
         "--prompt is empty; give the text to go on from, or leave --prompt out to begin with the "
         "separator of documents or a line feed");
  }
  return prompt;
}

constexpr std::int64_t kMostGenerated = 1'000'000'000;

train::SamplingOptions sampling_of(const config::CommandLine& line) {
  constexpr double kMostTemperature = 1e6;
  constexpr double kLeastTopP = 1e-9;
  train::SamplingOptions sampling;
  sampling.temperature = line.number("temperature", 1.0, 0.0, kMostTemperature);
  sampling.top_k = line.count("top-k", 0, 0, kMostGenerated);
  sampling.top_p = line.number("top-p", 1.0, kLeastTopP, 1.0);
  sampling.seed = static_cast<std::uint64_t>(
      line.count("seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
  return sampling;
}

/// The prompt's ids, as a document begins.
std::vector<std::int64_t> prompt_ids(const std::optional<std::string>& prompt,
                                     const io::Tokenizer& tokenizer) {
  std::vector<std::int64_t> ids;
  try {
    ids = tokenizer.encode(prompt.value_or(""));
  } catch (const Error& error) {
    fail(ExitCode::kUsage, "--prompt cannot be turned into tokens: {}", error.what());
  }
  ids = io::begin_document(tokenizer, std::move(ids));
  if (!ids.empty()) {
    return ids;
  }
  try {
    return tokenizer.encode("\n");
  } catch (const Error&) {
    fail(ExitCode::kUsage,
         "the data set's text has no line feed to begin with; give a text as --prompt=TEXT");
  }
}

void write_text(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail(ExitCode::kData, "cannot write to the standard output: {}; redirect it to a writable file",
         std::strerror(errno));
  }
}

ExitCode generate_text(const config::CommandLine& line, comm::MpiSession& mpi,
                       const config::FailureHandler& /*on_failure*/) {
  const bool generates = mpi.world().rank() == 0;
  mpi.separate();
  if (!generates) {
    return ExitCode::kDone;  // waits in MPI_Finalize
  }
  Log log(log_role(mpi));
  const std::optional<std::string> given = prompt_of(line);
  const std::int64_t tokens = line.count("tokens", 200, 1, kMostGenerated);
  const std::int64_t samples = line.count("samples", 1, 1, kMostGenerated);
  train::SamplingOptions sampling = sampling_of(line);
  RunInputs inputs = open_trained(mpi, line.positions().front(), line.settings(), Evaluates::kNo,
                                  which_checkpoint(line), log);
  if (inputs.train_info.task != io::Task::kNextToken) {
    fail(ExitCode::kUsage, "the model of {} is not a language model; strata generate needs one",
         inputs.checkpoint->directory().string());
  }
  const io::Tokenizer tokenizer = io::Tokenizer::of(inputs.train_info);
  inputs.config.train.recompute = nn::Recompute::kNone;
  plan::Plan plan = make_plan(mpi, inputs, 1);
  train::require_same_model(plan, *inputs.checkpoint);
  const std::vector<std::int64_t> prompt = prompt_ids(given, tokenizer);
  train::require_prompt_fits(plan, prompt);
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kEvaluation);
  train::Generator generator(environment.context(), plan, environment.groups(), *inputs.checkpoint);

  sampling.seed = line.has("seed") ? sampling.seed : inputs.config.run.seed;
  const std::set<std::int64_t> ends = exchange::end_tokens(*inputs.checkpoint, tokenizer);
  std::int64_t generated = 0;
  const double start = now_seconds();
  for (; sampling.text < samples; ++sampling.text) {
    write_text(given.value_or(""));
    bool starts = !given;
    generator.generate(prompt, tokens, sampling, [&](std::int64_t token) {
      ++generated;
      if (ends.contains(token)) {
        return false;
      }
      const bool first = std::exchange(starts, false);
      write_text(
          tokenizer.decode(std::span(&token, 1), first ? io::Continues::kNo : io::Continues::kYes));
      return true;
    });
    write_text(sampling.text + 1 < samples ? "\n---\n" : "\n");
  }
  print_error(fmt::format(
      "{} tokens, {} tokens/s\n", count_text(generated),
      count_text(std::llround(static_cast<double>(generated) / (now_seconds() - start)))));
  return ExitCode::kDone;
}

}  // namespace

Commands generate_commands() {
  return {
      {.name = "generate",
       .purpose = "text from a language model",
       .synopses = {{"RUN|CONFIG.ini [--prompt=TEXT ...] [--section.key=value ...]"}},
       .about =
           R"(Generates text with the newest good checkpoint. RUN is a run's directory. One rank
generates, whatever grid trained the model; other ranks wait.)",
       .options =
           {{"prompt", "TEXT",
             R"(start of the text (default: the separator of documents, else a line feed), after the
tokens that the tokenizer puts before a document, as <|begin_of_text|>)"},
            {"tokens", "N", "tokens to generate (default 200)"},
            {"samples", "N", "texts to generate (default 1)"},
            {"temperature", "X",
             "divisor of the logits; 0: always the most likely token (default 1)"},
            {"top-k", "N", "only the N most likely tokens; 0: all (default 0)"},
            {"top-p", "X",
             "only the most likely tokens that together reach this probability (default 1)"},
            {"seed", "N",
             "seed of sampling; the same seed gives the same text (default: run.seed)"},
            {"checkpoint", config::words_of<WhichCheckpoint>(),
             "the newest one (default), or the best of checkpoint.best"}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kOne,
       .needs = "one config file or run's directory",
       .on_ranks = generate_text}};
}

}  // namespace strata::app
