#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/log.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/json.hpp"
#include "strata/io/prompts.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/generation.hpp"

#include "commands/commands.hpp"
#include "commands/run/answers.hpp"
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
  constexpr double kLeastPenalty = 0.01;
  constexpr double kMostPenalty = 100.0;
  train::SamplingOptions sampling;
  sampling.temperature = line.number("temperature", 1.0, 0.0, kMostTemperature);
  sampling.top_k = line.count("top-k", 0, 0, kMostGenerated);
  sampling.top_p = line.number("top-p", 1.0, kLeastTopP, 1.0);
  sampling.min_p = line.number("min-p", 0.0, 0.0, 1.0);
  sampling.repetition_penalty = line.number("repetition-penalty", 1.0, kLeastPenalty, kMostPenalty);
  sampling.seed = static_cast<std::uint64_t>(
      line.count("seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
  return sampling;
}

/// The texts of --stop: each is one, or a list of texts in JSON, in which a line feed is \n.
std::vector<std::string> stops_of(const config::CommandLine& line) {
  std::vector<std::string> stops;
  for (const std::string& given : line.values("stop")) {
    const auto list = given.starts_with('[') ? io::parse_json(given) : std::nullopt;
    if (!list) {
      stops.push_back(given);
      continue;
    }
    for (const nlohmann::json& stop : *list) {
      stops.push_back(stop.is_string() ? stop.get<std::string>() : "");
    }
  }
  if (line.has("stop") && (stops.empty() || std::ranges::find(stops, "") != stops.end())) {
    config::refuse_value("stop", fmt::format("{}", fmt::join(line.values("stop"), " ")),
                         "a text that is not empty, or a list of such texts in JSON");
  }
  return stops;
}

void refuse_contradictions(const config::CommandLine& line) {
  constexpr std::array<std::array<const char*, 2>, 5> kExclusive{{{"chat", "prompt"},
                                                                  {"chat", "prompts"},
                                                                  {"chat", "samples"},
                                                                  {"chat", "batch"},
                                                                  {"prompts", "prompt"}}};
  for (const auto& [one, other] : kExclusive) {
    if (line.has(one) && line.has(other)) {
      fail(ExitCode::kUsage, "--{} and --{} exclude each other; give one of them", one, other);
    }
  }
  constexpr std::array<std::array<const char*, 2>, 3> kNeeded{
      {{"output", "prompts"}, {"system", "chat"}, {"template", "chat"}}};
  for (const auto& [option, needed] : kNeeded) {
    const bool for_prompts = needed != std::string_view("prompts") &&
                             option == std::string_view("template") && line.has("prompts");
    if (line.has(option) && !line.has(needed) && !for_prompts) {
      fail(ExitCode::kUsage, "--{0} does nothing without --{1}; give --{1} too, or leave it out",
           option, needed);
    }
  }
}

/// The template of dialogues: --template, or what the checkpoint says that its model learned; empty
/// where no dialogue is written. Throws: Error(kUsage) where --chat needs one.
std::string template_of(const config::CommandLine& line, const RunInputs& inputs, Log& log) {
  std::string given = line.has("template") ? line.required("template") : "";
  if (!line.has("chat") && !line.has("prompts")) {
    return given;
  }
  const io::PublishedTemplate learned = exchange::learned_template(*inputs.checkpoint);
  const std::string directory = inputs.checkpoint->directory().string();
  if (!given.empty() && !learned.name.empty() && given != learned.name) {
    log.warn("--template={} is used, but the model of {} learned the template {}", given, directory,
             learned.name);
  }
  if (given.empty() && learned.name.empty() && line.has("chat")) {
    fail(ExitCode::kUsage,
         "--chat needs --template=NAME, as the import of the dialogues had: {} {}", directory,
         learned.file.empty()
             ? "does not say which template its model learned"
             : fmt::format("keeps a {} with a template that strata does not know: {}", learned.file,
                           learned.difference));
  }
  return given.empty() ? learned.name : given;
}

/// The ids of --prompt, or those that a text begins with without one.
std::vector<std::int64_t> prompt_ids(const std::optional<std::string>& prompt,
                                     const io::PromptEncoder& encoder,
                                     const io::Tokenizer& tokenizer) {
  if (prompt) {
    try {
      return encoder.of_text(*prompt);
    } catch (const Error& error) {
      fail(ExitCode::kUsage, "--prompt cannot be turned into tokens: {}", error.what());
    }
  }
  if (std::vector<std::int64_t> ids = io::begin_document(tokenizer, {}); !ids.empty()) {
    return ids;
  }
  try {
    return tokenizer.encode("\n");
  } catch (const Error&) {
    fail(ExitCode::kUsage,
         "the data set's text has no line feed to begin with; give a text as --prompt=TEXT");
  }
}

/// What the command line asks for.
struct GenerateRequest {
  std::optional<std::string> prompt;
  std::int64_t tokens = 0;
  std::int64_t samples = 1;
  std::int64_t batch = 0;  ///< 0: the default
  train::SamplingOptions sampling;
  std::vector<std::string> stops;
};

GenerateRequest generate_request_of(const config::CommandLine& line) {
  refuse_contradictions(line);
  return {.prompt = prompt_of(line),
          .tokens = line.count("tokens", 200, 1, kMostGenerated),
          .samples = line.count("samples", 1, 1, kMostGenerated),
          .batch = line.has("batch") ? line.count("batch", 0, 1, kMostGenerated) : 0,
          .sampling = sampling_of(line),
          .stops = stops_of(line)};
}

/// Ranks wait for a user, who may read and type for hours, and for texts of any length; heartbeats
/// still tell of a rank that is gone.
void wait_without_limit(comm::Groups& groups) {
  constexpr double kForever = std::numeric_limits<double>::infinity();
  groups.world->set_timeout({.seconds = kForever});
  for (const std::unique_ptr<comm::Communicator>& group : groups.axes) {
    group->set_timeout({.seconds = kForever});
  }
  if (comm::Activity* const activity = groups.world->activity()) {
    activity->set_file_seconds(kForever);
    activity->enter(comm::Phase::kEvaluation);
  }
}

ExitCode generate_text(const config::CommandLine& line, comm::MpiSession& mpi,
                       const config::FailureHandler& on_failure) {
  comm::Communicator& world = mpi.world();
  Log log(log_role(mpi));
  GenerateRequest request;
  comm::agree(world, [&] { request = generate_request_of(line); });
  RunInputs inputs = open_trained(mpi, line.positions().front(), line.settings(), Evaluates::kNo,
                                  which_checkpoint(line), log);
  std::optional<io::Tokenizer> tokenizer;
  std::optional<io::PromptEncoder> encoder;
  comm::agree(world, [&] {
    if (inputs.train_info.task != io::Task::kNextToken) {
      fail(ExitCode::kUsage, "the model of {} is not a language model; strata generate needs one",
           inputs.checkpoint->directory().string());
    }
    tokenizer.emplace(io::Tokenizer::of(inputs.train_info));
    encoder.emplace(*tokenizer, template_of(line, inputs, log));
  });
  inputs.config.train.recompute = nn::Recompute::kNone;
  inputs.config.parallel.sequence = Switch::kOff;
  plan::Plan plan = make_plan(mpi, inputs, world.size());
  nlohmann::json opening;
  std::vector<std::int64_t> prompt;
  comm::agree(world, [&] {
    train::require_same_model(plan, *inputs.checkpoint);
    opening = opening_of(line, plan, *encoder);
    if (!line.has("prompts") && !line.has("chat")) {
      prompt = prompt_ids(request.prompt, *encoder, *tokenizer);
      train::require_prompt_fits(plan, prompt);
    }
  });
  TextOutput output(world, on_failure);
  std::optional<Prompts> prompts;
  if (line.has("prompts")) {
    prompts.emplace(line, world, plan, *encoder);
    if (line.has("output")) {
      output.open(line.required("output"));
    }
  }
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kEvaluation);
  comm::Groups& groups = environment.groups();
  std::optional<train::Generator> generator;
  const std::int64_t texts =
      line.has("chat") ? 1 : request.samples * (prompts ? prompts->size() : 1);
  const std::int64_t texts_at_once =
      std::min(request.batch > 0 ? request.batch : train::default_texts_at_once(plan),
               (texts + groups.grid.data - 1) / groups.grid.data);
  {
    const train::FileTimeout timeout(world);
    comm::agree(world, [&] {
      if (groups.coordinates.data < texts) {
        generator.emplace(environment.context(), plan, groups, *inputs.checkpoint, texts_at_once);
      }
    });
  }
  wait_without_limit(groups);

  train::SamplingOptions& sampling = request.sampling;
  sampling.seed = line.has("seed") ? sampling.seed : inputs.config.run.seed;
  std::set<std::int64_t> ends = exchange::end_tokens(*inputs.checkpoint, *tokenizer);
  ends.insert(encoder->answer_end());
  Author author(groups, generator ? &*generator : nullptr, *tokenizer, std::move(ends),
                std::move(request.stops), request.tokens, texts_at_once);
  if (prompts) {
    prompts->answer(author, sampling, request.samples, output);
  } else if (line.has("chat")) {
    converse(opening, world, plan, author, *encoder, sampling, request.tokens, output);
  } else {
    const std::string begin = request.prompt.value_or("");
    const auto continues = request.prompt ? io::Continues::kYes : io::Continues::kNo;
    output.write(begin);
    author.write(
        request.samples,
        [&](std::int64_t text) {
          sampling.text = text;
          return TextOrder{.prompt = prompt, .sampling = sampling, .continues = continues};
        },
        [&](std::int64_t /*text*/, const std::string& piece) { output.write(piece); },
        [&](std::int64_t text, std::int64_t /*tokens*/) {
          output.write(text + 1 < request.samples ? "\n---\n" + begin : "\n");
        });
  }
  if (world.rank() == 0) {
    print_error(author.rate_text() + "\n");
  }
  return ExitCode::kDone;
}

}  // namespace

Commands generate_commands() {
  return {
      {.name = "generate",
       .purpose = "text from a language model",
       .synopses = {{"RUN|CONFIG.ini [--prompt=TEXT ...] [--section.key=value ...]",
                     "goes on from a text"},
                    {"RUN|CONFIG.ini --prompts=FILE.jsonl [--output=FILE.jsonl] [...]",
                     "answers the prompts of a file"},
                    {"RUN|CONFIG.ini --chat [--system=TEXT] [...]",
                     "answers each line of the standard input as a message of one dialogue"}},
       .about =
           R"(Generates text with the newest good checkpoint. RUN is a run's directory. Runs on any number of ranks, with
the same text; several replicas share the texts of --prompts and --samples.

A token is sampled from the logits in this order: repetition penalty, temperature, top-k, top-p, min-p.)",
       .options =
           {{"prompt", "TEXT",
             R"(start of the text (default: the separator of documents, else a line feed), after the
tokens that the tokenizer puts before a document, as <|begin_of_text|>)"},
            {"prompts", "FILE.jsonl",
             R"(JSON lines with a text as "prompt", or a dialogue as "messages". Writes each line
with "text", the text after it, and "tokens", how many were generated)"},
            {"output", "FILE.jsonl",
             "with --prompts: the file for them (default: the standard output)"},
            {"chat", "",
             R"(a dialogue: each line of the standard input is a message of the user, and the answer is written)"},
            {"template", "NAME",
             "with --chat and --prompts: how messages are written, as in strata data import: "
             "chatml, "
             "llama3, gemma, phi3, zephyr or mistral (default: the one that the model learned, "
             "where its checkpoint says so)"},
            {"system", "TEXT", "with --chat: a message of the system at the begin"},
            {"tokens", "N", "tokens to generate for a text, at most (default 200)"},
            {"samples", "N", "texts to generate, for each prompt (default 1)"},
            {"batch", "N",
             R"(texts that a replica decodes at once, with the same results: more tokens a second, and more memory
(default: 8, or fewer where their keys and values would take more memory than the weights))"},
            {"stop", "TEXT",
             R"(a text ends before TEXT; may be given several times, or as a list in JSON, as in '["\n", "###"]')",
             config::OptionRepeats::kAllCount},
            {"repetition-penalty", "X",
             "divides positive logits of tokens in prompt and text, and multiplies negative ones "
             "(default 1: none)"},
            {"temperature", "X",
             "divisor of the logits; 0: always the most likely token (default 1)"},
            {"top-k", "N", "only the N most likely tokens; 0: all (default 0)"},
            {"top-p", "X",
             "only the most likely tokens that together reach this probability (default 1)"},
            {"min-p", "X",
             "only tokens with at least X times the probability of the most likely one (default "
             "0)"},
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
