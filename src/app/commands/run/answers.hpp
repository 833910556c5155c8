#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/comm/communicator.hpp"
#include "strata/config/command.hpp"
#include "strata/io/prompts.hpp"
#include "strata/plan/plan.hpp"

#include "commands/run/author.hpp"

namespace strata::app {

/// Where rank 0 writes texts; the other ranks write nothing. What cannot be written ends the job.
class TextOutput {
 public:
  /// Of the standard output; by whole lines where the launcher may misplace partial ones.
  TextOutput(comm::Communicator& world, const config::FailureHandler& on_failure);

  /// Goes on with a file. Throws: AgreedError(kUsage) where it cannot be written.
  void open(const std::string& path);
  void write(const std::string& text) const;

 private:
  comm::Communicator& world_;
  const config::FailureHandler& on_failure_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool by_lines_ = false;
};

/// The prompts of the file of --prompts, which rank 0 alone reads.
class Prompts {
 public:
  /// Throws: AgreedError that begins with file and line.
  Prompts(const config::CommandLine& line, comm::Communicator& world, const plan::Plan& plan,
          const io::PromptEncoder& encoder);

  [[nodiscard]] std::int64_t size() const { return std::ssize(ids_); }
  /// Writes a line of JSON for each of `samples` texts after each prompt.
  void answer(Author& author, const train::SamplingOptions& sampling, std::int64_t samples,
              const TextOutput& output);

 private:
  std::vector<std::vector<std::int64_t>> ids_;
  std::vector<io::Continues> continues_;
  std::vector<nlohmann::json> objects_;  ///< on rank 0
};

/// The messages with which a dialogue begins. Throws: Error(kUsage).
[[nodiscard]] nlohmann::json opening_of(const config::CommandLine& line, const plan::Plan& plan,
                                        const io::PromptEncoder& encoder);

/// Answers each line of rank 0's standard input as a message of one dialogue. The oldest messages
/// but the opening ones are left out where the answer would have less than a quarter of the
/// context; `tokens` is the most of an answer. Throws: AgreedError.
void converse(nlohmann::json dialogue, comm::Communicator& world, const plan::Plan& plan,
              Author& author, const io::PromptEncoder& encoder, train::SamplingOptions sampling,
              std::int64_t tokens, const TextOutput& output);

}  // namespace strata::app
