#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/generation.hpp"

#include "environment/execution_environment.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

constexpr const char* kGenerateHelp =
    R"(strata generate CONFIG.ini [options] [--section.key=value ...]

Continues text with the newest good checkpoint of run.dir. Runs on one rank, whatever grid trained.

  --prompt=TEXT        what the text begins with (default: the separator of documents, else a line feed)
  --tokens=N           tokens to make (default 200)
  --samples=N          texts to make (default 1)
  --temperature=X      logits are divided by it; 0: always the likeliest token (default 1)
  --top-k=N            only the N likeliest tokens; 0: all (default 0)
  --top-p=X            only the likeliest tokens that together reach this probability (default 1)
  --seed=N             of the draws; the same seed gives the same text (default: run.seed)
)";

struct GenerateArguments {
  std::string config;
  std::vector<std::string> settings;
  std::optional<std::string> prompt;
  std::int64_t tokens = 200;
  std::int64_t samples = 1;
  train::SamplingOptions sampling;
  bool has_seed = false;
  bool wants_help = false;
};

double number_of(const CommandLine& line, const char* name, double least, double most) {
  const std::string text = line.value(name, "1");
  double value = 0.0;
  if (!parse_double(text, value) || !(value >= least && value <= most)) {
    fail(ExitCode::kUsage, "--{} is \"{}\", it must be a number from {} to {}", name, text, least,
         most);
  }
  return value;
}

GenerateArguments arguments_of(Arguments arguments) {
  GenerateArguments result;
  std::vector<std::string> own;
  for (const std::string& argument : arguments) {
    // Settings have a section before a point.
    const std::string name = argument.substr(0, argument.find('='));
    if (argument.starts_with("--") && name.find('.') != std::string::npos) {
      result.settings.push_back(argument);
    } else {
      own.push_back(argument);
    }
  }
  const CommandLine line(own,
                         {"prompt", "tokens", "samples", "temperature", "top-k", "top-p", "seed"},
                         {"help"}, CommandLine::Values::kOne);
  if (line.has("help")) {
    result.wants_help = true;
    return result;
  }
  if (line.positions().size() != 1) {
    fail(ExitCode::kUsage, "strata generate needs one config file\n{}", kGenerateHelp);
  }
  result.config = line.positions().front();
  if (line.has("prompt")) {
    result.prompt = line.value("prompt", "");
  }
  if (result.prompt && result.prompt->empty()) {
    fail(ExitCode::kUsage,
         "--prompt is empty; give the text to go on from, or leave --prompt out to begin with the "
         "separator of documents or a line feed");
  }
  constexpr std::int64_t kMost = 1'000'000'000;
  constexpr double kHottest = 1e6;
  constexpr double kLeastShare = 1e-9;
  result.tokens = line.count("tokens", result.tokens, 1, kMost);
  result.samples = line.count("samples", result.samples, 1, kMost);
  result.sampling.temperature = number_of(line, "temperature", 0.0, kHottest);
  result.sampling.top_k = line.count("top-k", 0, 0, kMost);
  result.sampling.top_p = number_of(line, "top-p", kLeastShare, 1.0);
  result.has_seed = line.has("seed");
  result.sampling.seed = static_cast<std::uint64_t>(
      line.count("seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
  return result;
}

/// The plan of the checkpoint's model on one rank.
plan::Plan plan_alone(comm::MpiSession& mpi, RunInputs& inputs) {
  const plan::VirtualGrid stored = train::virtual_grid_of(*inputs.checkpoint);
  plan::RunConfig& c = inputs.config;
  c.parallel.data = c.parallel.pipeline = c.parallel.tensor = 1;
  c.parallel.split = "auto";
  c.parallel.sequence = plan::Switch::kOff;
  c.numerics.mode = comm::Summation::kInvariant;
  c.numerics.lanes = stored.lanes;
  c.numerics.shards = stored.shards;
  c.train.recompute = nn::Recompute::kNone;
  return make_plan(mpi, inputs, 1);
}

std::vector<std::int64_t> prompt_ids(const GenerateArguments& given,
                                     const io::Tokenizer& tokenizer) {
  if (given.prompt) {
    try {
      return tokenizer.encode(*given.prompt);
    } catch (const Error& error) {
      fail(ExitCode::kUsage, "--prompt cannot be turned into tokens: {}", error.what());
    }
  }
  if (tokenizer.separator() >= 0) {
    return {tokenizer.separator()};
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
    fail(ExitCode::kData, "cannot write to the standard output: {}; give it a place that takes it",
         std::strerror(errno));
  }
}

}  // namespace

ExitCode generate_command(comm::MpiSession& mpi, Arguments arguments) {
  if (mpi.world().size() != 1) {
    throw comm::AgreedError(
        ExitCode::kUsage,
        fmt::format("strata generate runs on one rank, this job has {}; start it without mpirun",
                    mpi.world().size()));
  }
  Log log(log_role(mpi));
  const GenerateArguments given = arguments_of(arguments);
  if (given.wants_help) {
    fmt::print("{}", kGenerateHelp);
    return ExitCode::kDone;
  }
  RunInputs inputs =
      open_run_inputs(mpi, given.config, given.settings, DataNeeded::kYes, Splits::kTrain);
  if (inputs.train_info.task != io::Task::kNextToken) {
    fail(ExitCode::kUsage,
         "{} holds no tokens; strata generate continues text with language models",
         inputs.train_info.path.string());
  }
  const io::Tokenizer tokenizer = io::Tokenizer::of(inputs.train_info);
  open_checkpoint(mpi, inputs, log);
  const plan::Plan plan = plan_alone(mpi, inputs);
  train::require_same_model(plan, *inputs.checkpoint);
  const std::vector<std::int64_t> prompt = prompt_ids(given, tokenizer);
  train::require_prompt_fits(plan, prompt);
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kEvaluation);
  train::Generator generator(environment.context(), plan, environment.groups(), *inputs.checkpoint);

  train::SamplingOptions sampling = given.sampling;
  sampling.seed = given.has_seed ? sampling.seed : inputs.config.run.seed;
  std::int64_t made = 0;
  const double began = now_seconds();
  for (; sampling.text < given.samples; ++sampling.text) {
    write_text(given.prompt.value_or(""));
    generator.generate(prompt, given.tokens, sampling, [&](std::int64_t token) {
      ++made;
      if (token == tokenizer.separator()) {
        return false;
      }
      write_text(tokenizer.decode(std::span(&token, 1)));
      return true;
    });
    write_text(sampling.text + 1 < given.samples ? "\n---\n" : "\n");
  }
  fmt::print(stderr, "{} tokens, {} tokens/s\n", count_text(made),
             count_text(std::llround(static_cast<double>(made) / (now_seconds() - began))));
  return ExitCode::kDone;
}

}  // namespace strata::app
