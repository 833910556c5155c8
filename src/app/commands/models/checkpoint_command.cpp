#include <optional>

#include <fmt/format.h>

#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/train/checkpointing.hpp"

#include "commands/commands.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

ExitCode inspect_checkpoint(const config::CommandLine& line) {
  const io::Checkpoint checkpoint = open_checkpoint(line);
  fmt::print("{}{}", train::former_grids_text(checkpoint), printable_lines(checkpoint.describe()));
  return ExitCode::kDone;
}

ExitCode verify_checkpoint(const config::CommandLine& line) {
  const io::Checkpoint checkpoint = open_checkpoint(line);
  for (std::int64_t part = 0; part < checkpoint.part_count(); ++part) {
    checkpoint.verify_part(part);
  }
  const std::optional<io::DatasetInfo> data = train::data_of(checkpoint);
  if (data && data->tokenizer != io::TokenizerKind::kNone) {
    static_cast<void>(io::Tokenizer::of(*data));  // verifies the tokenizer's checksum
  }
  fmt::print("{}: {} tensors in {} parts, all bytes as they were written\n",
             checkpoint.directory().string(), checkpoint.tensors().size(), checkpoint.part_count());
  return ExitCode::kDone;
}

}  // namespace

Commands checkpoint_commands() {
  const auto row = [](const char* name, const char* purpose, const char* about,
                      ExitCode (*run)(const config::CommandLine&)) {
    return config::Command{
        .name = name,
        .purpose = purpose,
        .synopses = {{"DIR"}},
        .about = about,
        .options = {{"checkpoint", config::words_of<WhichCheckpoint>(),
                     "of a run: the newest one (default), or the best of checkpoint.best"}},
        .positions = config::Positions::kOne,
        .needs = "one directory: a checkpoint's, or a run's for its newest checkpoint",
        .alone = run};
  };
  return {
      row("checkpoint inspect", "list the contents of a checkpoint",
          "Lists the metadata and the tensors of a checkpoint, or of a run's newest one.",
          inspect_checkpoint),
      row("checkpoint verify", "read and check every byte",
          R"(Reads every byte of a checkpoint, or of a run's newest one, and compares it with its checksum.)",
          verify_checkpoint)};
}

}  // namespace strata::app
