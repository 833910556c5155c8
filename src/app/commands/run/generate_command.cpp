// Longer than 400 lines: a text, the prompts of a file and a dialogue share options and checks.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/json.hpp"
#include "strata/io/prompts.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/generation.hpp"
#include "strata/train/stop_texts.hpp"

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
  constexpr std::array<std::array<const char*, 2>, 4> kExclusive{
      {{"chat", "prompt"}, {"chat", "prompts"}, {"chat", "samples"}, {"prompts", "prompt"}}};
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
  if (line.has("chat") && !line.has("template")) {
    fail(ExitCode::kUsage,
         "--chat needs the template that the model learned, which no checkpoint names: give "
         "--template=NAME as the import of its dialogues was given");
  }
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

void write_text(const std::string& text, std::FILE* file = stdout) {
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fflush(file) != 0) {
    fail(ExitCode::kData, "cannot write to the {}: {}; redirect it to a writable file",
         file == stdout ? "standard output" : "file of --output", std::strerror(errno));
  }
}

/// A model that writes texts.
class Author {
 public:
  Author(train::Generator& generator, const io::Tokenizer& tokenizer, std::set<std::int64_t> ends,
         std::vector<std::string> stops, std::int64_t most_tokens)
      : generator_(generator),
        tokenizer_(tokenizer),
        ends_(std::move(ends)),
        stops_(std::move(stops)),
        most_tokens_(most_tokens) {}

  /// Passes the text after a prompt on to `write`, piece by piece. Returns its tokens, with the one
  /// that ends it.
  std::int64_t write(std::span<const std::int64_t> prompt, const train::SamplingOptions& sampling,
                     io::Continues continues, const std::function<void(const std::string&)>& write,
                     train::PastTokens past = train::PastTokens::kDropped) {
    const double start = now_seconds();
    std::int64_t tokens = 0;
    generator_.generate(
        prompt, most_tokens_, sampling,
        [&](std::int64_t token) {
          ++tokens;
          if (ends_.contains(token)) {
            return false;
          }
          write(stops_.take(tokenizer_.decode(std::span(&token, 1),
                                              std::exchange(continues, io::Continues::kYes))));
          return !stops_.reached();
        },
        past);
    write(stops_.finish());
    tokens_ += tokens;
    seconds_ += now_seconds() - start;
    return tokens;
  }

  void report() const {
    print_error(fmt::format(
        "{} tokens, {} tokens/s\n", count_text(tokens_),
        count_text(tokens_ == 0 ? 0 : std::llround(static_cast<double>(tokens_) / seconds_))));
  }

 private:
  train::Generator& generator_;
  const io::Tokenizer& tokenizer_;
  std::set<std::int64_t> ends_;
  train::StopTexts stops_;
  std::int64_t most_tokens_;
  std::int64_t tokens_ = 0;  ///< of all texts
  double seconds_ = 0.0;
};

/// JSON of a text that need not be valid UTF-8.
std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The prompts of a file, all of which can be answered.
std::vector<io::Prompt> prompts_of(const config::CommandLine& line, const plan::Plan& plan,
                                   const io::PromptEncoder& encoder) {
  std::vector<io::Prompt> prompts = io::read_prompts(line.required("prompts"), encoder);
  for (const io::Prompt& prompt : prompts) {
    try {
      train::require_prompt_fits(plan, prompt.ids);
      for (const char* key : {"text", "tokens"}) {
        if (prompt.object.contains(key)) {
          fail(ExitCode::kData, "there is a \"{}\", which the answer is to have; rename it", key);
        }
      }
    } catch (const Error& error) {
      fail(error.code(), "{}: {}", prompt.place, error.what());
    }
  }
  return prompts;
}

/// Writes a line of JSON for each text after the prompts.
void answer_prompts(const config::CommandLine& line, std::vector<io::Prompt>& prompts,
                    Author& author, train::SamplingOptions sampling, std::int64_t samples) {
  const std::string path = line.has("output") ? line.required("output") : "";
  std::error_code ignored;
  if (std::filesystem::equivalent(path, line.required("prompts"), ignored)) {
    fail(ExitCode::kUsage, "--output={} is the file of --prompts; choose another file", path);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      path.empty() ? nullptr : std::fopen(path.c_str(), "we"), &std::fclose);
  if (!path.empty() && !file) {
    fail(ExitCode::kUsage, "cannot write {}: {}; choose another --output", path,
         std::strerror(errno));
  }
  for (io::Prompt& prompt : prompts) {
    for (std::int64_t i = 0; i < samples; ++i, ++sampling.text) {
      std::string text;
      const auto continues =
          prompt.object.contains("prompt") ? io::Continues::kYes : io::Continues::kNo;
      prompt.object["tokens"] = author.write(prompt.ids, sampling, continues,
                                             [&](const std::string& piece) { text += piece; });
      prompt.object["text"] = text;
      write_text(json_text(prompt.object) + "\n", file ? file.get() : stdout);
    }
  }
}

nlohmann::json message_of(std::string_view role, std::string_view said) {
  if (utf8_prefix(said).bytes != said.size()) {
    fail(ExitCode::kData, "the message of the {} is no UTF-8 text: {}", role, printable(said));
  }
  return {{"role", role}, {"content", said}};
}

/// The messages with which a dialogue begins. Throws: Error(kUsage).
nlohmann::json opening_of(const config::CommandLine& line, const plan::Plan& plan,
                          const io::PromptEncoder& encoder) {
  nlohmann::json dialogue{{"messages", nlohmann::json::array()}};
  if (line.has("system")) {
    try {
      dialogue["messages"].push_back(message_of("system", line.required("system")));
      train::require_prompt_fits(plan, encoder.of_dialogue(dialogue));
    } catch (const Error& error) {
      fail(ExitCode::kUsage, "--system: {}", error.what());
    }
  }
  return dialogue;
}

/// Answers each line of the standard input as a message of one dialogue. The oldest messages but
/// the opening ones are left out where the answer would have less than a quarter of the context.
void converse(nlohmann::json dialogue, const plan::Plan& plan, Author& author,
              const io::PromptEncoder& encoder, train::SamplingOptions sampling,
              std::int64_t tokens) {
  const std::int64_t context = plan.model->input_shape()[0];
  const std::int64_t most = context - std::min(tokens, context / 4);
  nlohmann::json& messages = dialogue["messages"];
  const auto first = std::ssize(messages);
  const bool asks = isatty(STDIN_FILENO) == 1;
  std::string said;
  while (print_error(asks ? "> " : ""), std::getline(std::cin, said)) {
    if (trimmed(said).empty()) {
      continue;
    }
    messages.push_back(message_of("user", trimmed(said)));
    std::vector<std::int64_t> ids = encoder.of_dialogue(dialogue);
    if (std::ssize(ids) > most && std::ssize(messages) > first + 1) {
      print_error(fmt::format("the oldest messages are left out: {} tokens, the context has {}\n",
                              count_text(std::ssize(ids)), count_text(context)));
    }
    while (std::ssize(ids) > most && std::ssize(messages) > first + 1) {
      messages.erase(messages.begin() + first, messages.begin() + first + 2);
      ids = encoder.of_dialogue(dialogue);
    }
    std::string answer;
    author.write(
        ids, sampling, io::Continues::kNo,
        [&](const std::string& piece) {
          answer += piece;
          write_text(piece);
        },
        train::PastTokens::kKept);
    ++sampling.text;
    write_text("\n");
    messages.push_back({{"role", "assistant"}, {"content", *io::parse_json(json_text(answer))}});
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
  refuse_contradictions(line);
  const std::optional<std::string> given = prompt_of(line);
  const std::int64_t tokens = line.count("tokens", 200, 1, kMostGenerated);
  const std::int64_t samples = line.count("samples", 1, 1, kMostGenerated);
  const std::string chat_template = line.has("template") ? line.required("template") : "";
  train::SamplingOptions sampling = sampling_of(line);
  std::vector<std::string> stops = stops_of(line);
  RunInputs inputs = open_trained(mpi, line.positions().front(), line.settings(), Evaluates::kNo,
                                  which_checkpoint(line), log);
  if (inputs.train_info.task != io::Task::kNextToken) {
    fail(ExitCode::kUsage, "the model of {} is not a language model; strata generate needs one",
         inputs.checkpoint->directory().string());
  }
  const io::Tokenizer tokenizer = io::Tokenizer::of(inputs.train_info);
  const io::PromptEncoder encoder(tokenizer, chat_template);
  inputs.config.train.recompute = nn::Recompute::kNone;
  plan::Plan plan = make_plan(mpi, inputs, 1);
  train::require_same_model(plan, *inputs.checkpoint);
  const nlohmann::json opening = opening_of(line, plan, encoder);
  std::vector<io::Prompt> prompts;
  std::vector<std::int64_t> prompt;
  if (line.has("prompts")) {
    prompts = prompts_of(line, plan, encoder);
  } else if (!line.has("chat")) {
    prompt = prompt_ids(given, encoder, tokenizer);
    train::require_prompt_fits(plan, prompt);
  }
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kEvaluation);
  train::Generator generator(environment.context(), plan, environment.groups(), *inputs.checkpoint);

  sampling.seed = line.has("seed") ? sampling.seed : inputs.config.run.seed;
  std::set<std::int64_t> ends = exchange::end_tokens(*inputs.checkpoint, tokenizer);
  ends.insert(encoder.answer_end());
  Author author(generator, tokenizer, std::move(ends), std::move(stops), tokens);
  if (line.has("prompts")) {
    answer_prompts(line, prompts, author, sampling, samples);
  } else if (line.has("chat")) {
    converse(opening, plan, author, encoder, sampling, tokens);
  } else {
    for (; sampling.text < samples; ++sampling.text) {
      write_text(given.value_or(""));
      author.write(prompt, sampling, given ? io::Continues::kYes : io::Continues::kNo,
                   [](const std::string& piece) { write_text(piece); });
      write_text(sampling.text + 1 < samples ? "\n---\n" : "\n");
    }
  }
  author.report();
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
                    {"RUN|CONFIG.ini --chat --template=NAME [--system=TEXT] [...]",
                     "answers each line of the standard input as a message of one dialogue"}},
       .about =
           R"(Generates text with the newest good checkpoint. RUN is a run's directory. One rank
generates, whatever grid trained the model; other ranks wait.

A token is sampled from the logits in this order: repetition penalty, temperature, top-k, top-p, min-p.)",
       .options =
           {{"prompt", "TEXT",
             R"(start of the text (default: the separator of documents, else a line feed), after the
tokens that the tokenizer puts before a document, as <|begin_of_text|>)"},
            {"prompts", "FILE.jsonl",
             R"(JSON lines with a text as "prompt", or a dialogue as "messages" (needs --template). Writes each line
with "text", the text after it, and "tokens", how many were generated)"},
            {"output", "FILE.jsonl",
             "with --prompts: the file for them (default: the standard output)"},
            {"chat", "",
             R"(a dialogue: each line of the standard input is a message of the user, and the answer is written)"},
            {"template", "NAME",
             "with --chat and --prompts: how messages are written, as in strata data import: "
             "chatml, "
             "llama3, gemma, phi3, zephyr or mistral"},
            {"system", "TEXT", "with --chat: a message of the system at the begin"},
            {"tokens", "N", "tokens to generate for a text, at most (default 200)"},
            {"samples", "N", "texts to generate, for each prompt (default 1)"},
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
