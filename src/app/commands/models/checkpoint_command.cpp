#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "strata/config/config_file.hpp"
#include "strata/core/log.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation_history.hpp"

#include "commands/commands.hpp"
#include "commands/models/model_command.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

/// The checkpoint directory that an argument names, or the newest or best checkpoint of a run's
/// directory.
std::filesystem::path directory_of(const std::string& argument, WhichCheckpoint which) {
  std::filesystem::path path(argument);
  if (which == WhichCheckpoint::kBest) {
    const config::GivenConfig given = config::read_config((path / "config.ini").string(), {});
    return train::best_checkpoint(path, given.config.checkpoint.best).directory;
  }
  for (const std::filesystem::path& root : {path / "checkpoints", path}) {
    const std::vector<io::CheckpointEntry> entries = io::list_checkpoints(root);
    if (!entries.empty()) {
      return entries.front().directory;
    }
  }
  return path;
}

}  // namespace

bool checkpoint_needs_mpi(config::Arguments arguments) {
  return !arguments.empty() && arguments.front() == "export" &&
         std::ranges::find(arguments, "--check-logits") != arguments.end();
}

ExitCode checkpoint_command(config::Arguments arguments, comm::MpiSession* mpi) {
  if (mpi != nullptr) {
    const bool works = mpi->world().rank() == 0;
    mpi->separate();
    if (!works) {
      return ExitCode::kDone;  // waits in MPI_Finalize
    }
  }
  const std::string what = arguments.empty() ? "" : arguments.front();
  if (what == "import") {
    return import_model_command(arguments.subspan(1));
  }
  if (what == "export") {
    return export_model_command(
        arguments.subspan(1),
        [](const std::string& argument, const std::string& which) {
          return directory_of(argument, which_checkpoint(which));
        },
        mpi);
  }
  if (what != "inspect" && what != "verify") {
    fail(ExitCode::kUsage,
         "strata checkpoint has the commands inspect, verify, import and export, not \"{}\"", what);
  }
  const config::CommandLine line(arguments.subspan(1), {"checkpoint"}, {},
                                 config::CommandLine::Values::kOne);
  if (line.positions().size() != 1) {
    fail(ExitCode::kUsage,
         "strata checkpoint {} needs one directory: a checkpoint's, or a run's for its newest "
         "checkpoint",
         what);
  }
  const WhichCheckpoint which = which_checkpoint(line.value("checkpoint", "newest"));
  const io::Checkpoint checkpoint =
      io::Checkpoint::open(directory_of(line.positions().front(), which));
  if (!checkpoint.warning().empty()) {
    print_error(fmt::format("warning: {}\n", printable_lines(checkpoint.warning())));
  }
  if (what == "inspect") {
    fmt::print("{}", printable_lines(checkpoint.describe()));
    return ExitCode::kDone;
  }
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

}  // namespace strata::app
