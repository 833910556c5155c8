#include "commands/run/answers.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/mpi_library.hpp"
#include "strata/comm/values.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

namespace strata::app {
namespace {

/// JSON of a text that need not be valid UTF-8.
std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The prompts of a file, all of which can be answered.
std::vector<io::Prompt> read_answerable(const std::string& path, const plan::Plan& plan,
                                        const io::PromptEncoder& encoder) {
  std::vector<io::Prompt> prompts = io::read_prompts(path, encoder);
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

/// Rank 0's text or numbers on all ranks.
template <typename Elements>
Elements broadcast_whole(comm::Communicator& world, Elements elements) {
  elements.resize(static_cast<std::size_t>(comm::broadcast_from(world, std::ssize(elements))));
  if (!elements.empty()) {
    world.broadcast(comm::payload_of(std::span(elements)), 0);
  }
  return elements;
}

/// As comm::agree_on_first(), of errors that name the file, not rank 0.
void agree_on_file(comm::Communicator& world, const std::function<void()>& step) {
  try {
    comm::agree_on_first(world, step);
  } catch (const comm::AgreedError& error) {
    throw comm::AgreedError(error.code(), error.by_rank().front(), error.by_rank());
  }
}

nlohmann::json message_of(std::string_view role, std::string_view said) {
  if (utf8_prefix(said).bytes != said.size()) {
    fail(ExitCode::kData, "the message of the {} is no UTF-8 text: {}", role, printable(said));
  }
  return {{"role", role}, {"content", said}};
}

/// The next line of rank 0's standard input; nothing at its end.
std::optional<std::string> next_line(comm::Communicator& world) {
  comm::Activity* const activity = world.activity();
  const auto sleep_until = [&](double seconds) {
    if (activity != nullptr) {
      activity->sleep_until_seconds = seconds;
    }
  };
  // A person types for long; ranks that wait leave the cores to others.
  sleep_until(std::numeric_limits<double>::infinity());
  std::string said;
  const bool is_there = comm::agree_on_first(world, [&] {
    print_error(isatty(STDIN_FILENO) == 1 ? "> " : "");
    return !std::getline(std::cin, said).fail();
  });
  sleep_until(0.0);
  return is_there ? std::optional(broadcast_whole(world, std::move(said))) : std::nullopt;
}

}  // namespace

TextOutput::TextOutput(comm::Communicator& world, const config::FailureHandler& on_failure)
    : world_(world), on_failure_(on_failure), file_(nullptr, &std::fclose) {
  if (comm::launch_in_environment().by_launcher) {
    const comm::LaunchProgram* const program = comm::launch_program();
    by_lines_ = program != nullptr && program->buffers_partial_lines;
  }
}

void TextOutput::open(const std::string& path) {
  agree_on_file(world_, [&] {
    io::refuse_hdf5(path);
    file_.reset(std::fopen(path.c_str(), "we"));
    if (!file_) {
      fail(ExitCode::kUsage, "cannot write {}: {}; choose another --output", path,
           std::strerror(errno));
    }
  });
}

void TextOutput::write(const std::string& text) const {
  if (world_.rank() != 0) {
    return;
  }
  std::FILE* const file = file_ ? file_.get() : stdout;
  const bool flushes = !by_lines_ || text.find('\n') != std::string::npos;
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() ||
      (flushes && std::fflush(file) != 0)) {
    const Error error(
        ExitCode::kData,
        fmt::format("cannot write to the {}: {}; redirect it to a writable file",
                    file_ ? "file of --output" : "standard output", std::strerror(errno)));
    on_failure_(error);  // does not return on several ranks, which do not know of it
    throw error;
  }
}

Prompts::Prompts(const config::CommandLine& line, comm::Communicator& world, const plan::Plan& plan,
                 const io::PromptEncoder& encoder) {
  // Of each prompt whether it is a text, the number of its tokens, and these.
  std::vector<std::int64_t> numbers;
  agree_on_file(world, [&] {
    for (io::Prompt& prompt : read_answerable(line.required("prompts"), plan, encoder)) {
      numbers.push_back(prompt.continues == io::Continues::kYes ? 1 : 0);
      numbers.push_back(std::ssize(prompt.ids));
      numbers.insert(numbers.end(), prompt.ids.begin(), prompt.ids.end());
      objects_.push_back(std::move(prompt.object));
    }
  });
  numbers = broadcast_whole(world, std::move(numbers));
  for (auto at = numbers.begin(); at != numbers.end(); at += at[1] + 2) {
    continues_.push_back(at[0] == 1 ? io::Continues::kYes : io::Continues::kNo);
    ids_.emplace_back(at + 2, at + 2 + at[1]);
  }
}

void Prompts::answer(Author& author, const train::SamplingOptions& sampling, std::int64_t samples,
                     const TextOutput& output) {
  std::string whole;
  author.write(
      samples * size(),
      [&](std::int64_t text) {
        const auto prompt = static_cast<std::size_t>(text / samples);
        TextOrder order{
            .prompt = ids_[prompt], .sampling = sampling, .continues = continues_[prompt]};
        order.sampling.text = text;
        return order;
      },
      [&](std::int64_t /*text*/, const std::string& piece) { whole += piece; },
      [&](std::int64_t text, std::int64_t tokens) {
        if (!objects_.empty()) {
          nlohmann::json& object = objects_[static_cast<std::size_t>(text / samples)];
          object["tokens"] = tokens;
          object["text"] = whole;
          output.write(json_text(object) + "\n");
        }
        whole.clear();
      });
}

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

void converse(nlohmann::json dialogue, comm::Communicator& world, const plan::Plan& plan,
              Author& author, const io::PromptEncoder& encoder, train::SamplingOptions sampling,
              std::int64_t tokens, const TextOutput& output) {
  const std::int64_t context = plan.model->input_shape()[0];
  const std::int64_t most = context - std::min(tokens, context / 4);
  nlohmann::json& messages = dialogue["messages"];
  const auto first = std::ssize(messages);
  while (const std::optional<std::string> said = next_line(world)) {
    if (trimmed(*said).empty()) {
      continue;
    }
    std::vector<std::int64_t> ids;
    comm::agree(world, [&] {
      messages.push_back(message_of("user", trimmed(*said)));
      ids = encoder.of_dialogue(dialogue);
      const auto is_too_long = [&] {
        return std::ssize(ids) > most && std::ssize(messages) > first + 1;
      };
      if (is_too_long() && world.rank() == 0) {
        print_error(fmt::format("the oldest messages are left out: {} tokens, the context has {}\n",
                                count_text(std::ssize(ids)), count_text(context)));
      }
      while (is_too_long()) {
        messages.erase(messages.begin() + first, messages.begin() + first + 2);
        ids = encoder.of_dialogue(dialogue);
      }
      train::require_prompt_fits(plan, ids);
    });
    std::string answer;
    author.write(
        1,
        [&](std::int64_t /*text*/) {
          return TextOrder{.prompt = ids,
                           .sampling = sampling,
                           .continues = io::Continues::kNo,
                           .past = train::PastTokens::kKept};
        },
        [&](std::int64_t /*text*/, const std::string& piece) {
          answer += piece;
          output.write(piece);
        },
        [&](std::int64_t /*text*/, std::int64_t /*tokens*/) { output.write("\n"); });
    ++sampling.text;
    messages.push_back({{"role", "assistant"}, {"content", *io::parse_json(json_text(answer))}});
  }
}

}  // namespace strata::app
