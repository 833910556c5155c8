#include "commands/run/replay_bisect.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/comm/values.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/config_changes.hpp"
#include "strata/train/receipts.hpp"

#include "commands/run/replay.hpp"

namespace strata::app {
namespace {

using TwoRuns = std::array<ReplayedRun, 2>;

/// Where two runs part.
struct Parting {
  std::int64_t step = 0;     ///< whose receipts differ; 0: none
  std::int64_t missing = 0;  ///< steps before it without a receipt in one of the runs
  std::int64_t begun = 0;    ///< the newest step before it with an equal state that a replay has
  std::size_t base = 0;      ///< the run whose checkpoint that is
};

std::string both_runs(const TwoRuns& runs) {
  return fmt::format("{} and {}", runs[0].directory.string(), runs[1].directory.string());
}

std::int64_t last_of_both(const TwoRuns& runs) {
  return std::min(runs[0].receipts.last_step(), runs[1].receipts.last_step());
}

bool have_receipts(const TwoRuns& runs, std::int64_t step) {
  return runs[0].receipts.has_step(step) && runs[1].receipts.has_step(step);
}

/// The field in which the receipts of a step differ; empty: none, as where one is missing.
std::string field_of(const TwoRuns& runs, std::int64_t step) {
  return have_receipts(runs, step)
             ? train::differing_field(runs[0].receipts.step(step), runs[1].receipts.step(step))
             : "";
}

/// As in "are equal up to step 6".
std::string equal_text(const Parting& parting, std::int64_t last) {
  const std::int64_t steps = parting.missing;
  return fmt::format("are equal up to step {}{}", last,
                     steps == 0 ? ""
                                : fmt::format(", but for {} step{} of which one has no receipt",
                                              steps, steps == 1 ? "" : "s"));
}

/// The digest of the state after a step, where a save or a start has it; else null.
nlohmann::json state_after(const ReplayedRun& run, std::int64_t step) {
  const nlohmann::json save = run.receipts.save(step);
  const nlohmann::json line = save.is_null() ? run.receipts.start(step) : save;
  return line.is_null() ? line : line.at("tensors");
}

/// Throws: Error(kUsage) that names what differs.
void require_same_settings(const TwoRuns& runs, std::int64_t step) {
  const nlohmann::json left = identity_in(runs[0].receipts.start_before(step));
  const nlohmann::json right = identity_in(runs[1].receipts.start_before(step));
  if (left == right) {
    return;
  }
  const auto config_of = [](const ReplayedRun& run) {
    constexpr std::size_t kMostBytes = std::size_t{1} << 24U;
    return io::read_text(run.directory / "config.ini", ExitCode::kUsage, kMostBytes).value_or("");
  };
  std::vector<std::string> changes = train::config_changes(config_of(runs[0]), config_of(runs[1]));
  std::erase_if(changes, [](const std::string& change) {
    return !train::determines_numbers(change.substr(0, change.find(':')));
  });
  for (const auto& [key, value] : left.items()) {
    if (key != "run" && right.value(key, nlohmann::json()) != value) {
      changes.push_back(fmt::format("{}: {} -> {}", key, value.dump(),
                                    right.value(key, nlohmann::json()).dump()));
    }
  }
  fail(ExitCode::kUsage,
       "step {} of {} has other settings in one than in the other: {}. Compare runs whose numbers "
       "should be equal",
       step, both_runs(runs),
       changes.empty() ? "settings that config.ini no longer has"
                       : fmt::format("{}", fmt::join(changes, "; ")));
}

/// Adds the newest state before the parting that both runs had, after step `first` or later, and
/// that a replay can begin with. Throws: Error(kCheckpoint) where there is none.
Parting with_begin(const TwoRuns& runs, Parting parting, std::int64_t first) {
  for (parting.begun = parting.step - 1; parting.begun >= first; --parting.begun) {
    const std::int64_t begun = parting.begun;
    const nlohmann::json state = state_after(runs[0], begun);
    if (state.is_null() || state != state_after(runs[1], begun)) {
      continue;
    }
    for (parting.base = 0; parting.base < runs.size(); ++parting.base) {
      const auto left = io::list_checkpoints(runs[parting.base].directory / "checkpoints");
      if (begun == 0 || std::ranges::count(left, begun, &io::CheckpointEntry::step) > 0) {
        return parting;
      }
    }
  }
  fail(ExitCode::kCheckpoint,
       "{} part in step {}, and no earlier state of equal digests is left to replay from; "
       "checkpoint.keep_every keeps some",
       both_runs(runs), parting.step);
}

/// Compares the receipts of the steps that both runs have. Throws: Error.
Parting find_parting(const TwoRuns& runs) {
  const std::int64_t first =
      std::max(runs[0].receipts.starts().front(), runs[1].receipts.starts().front());
  const std::int64_t last = last_of_both(runs);
  if (last <= first) {
    fail(ExitCode::kUsage,
         "{} have no step in common: the receipts of one end with step {}, those of the other "
         "begin after step {}. Compare runs that have receipts of the same steps",
         both_runs(runs), last, first);
  }
  require_same_settings(runs, first + 1);
  const auto differ_after = [&](std::int64_t step) {
    const nlohmann::json left = state_after(runs[0], step);
    const nlohmann::json right = state_after(runs[1], step);
    return !left.is_null() && !right.is_null() && left != right;
  };
  if (differ_after(first)) {
    fail(ExitCode::kCheckpoint,
         "{} begin with other weights or optimizer states after step {}: compare checkpoint.init, "
         "the checkpoints and the versions of strata",
         both_runs(runs), first);
  }
  Parting parting;
  for (std::int64_t step = first + 1; step <= last; ++step) {
    require_same_settings(runs, step);
    if (!field_of(runs, step).empty() || differ_after(step)) {
      parting.step = step;
      return with_begin(runs, parting, first);
    }
    parting.missing += have_receipts(runs, step) ? 0 : 1;
  }
  return parting;
}

/// When a run went wrong, by what differs from a replay.
std::string when(const train::Comparison& found) {
  const bool is_state =
      found.field == "weights" || found.field == "state" || found.field == "tensors";
  // The state after this step is wrong, or its numbers are.
  const std::int64_t last = found.step - (is_state && found.field != "tensors" ? 1 : 0);
  if (is_state && found.equal > last) {
    return fmt::format("in memory before step {}", found.step);
  }
  if (found.equal < last) {
    return fmt::format(
        "in one of the steps {} to {}: it has no digests between; with run.receipts = 1 it would "
        "name one",
        found.equal, last);
  }
  return is_state ? fmt::format("in the update of step {}, or in memory after it", last)
                  : fmt::format("in step {}", last);
}

/// Prints what was compared. Throws: Error(kCheckpoint), the verdict.
[[noreturn]] void judge(const TwoRuns& runs, const Parting& parting, const Replayed& replayed) {
  const std::string field = field_of(runs, parting.step);
  fmt::print(
      "{} {}; step {}: {}\n", both_runs(runs),
      parting.step == 1 ? "begin equal" : equal_text(parting, parting.step - 1), parting.step,
      field.empty() ? "the digests of the checkpoint differ"
                    : fmt::format("{} differ{}", field,
                                  train::differing_tensor(
                                      field, runs[0].receipts.step(parting.step),
                                      runs[1].receipts.step(parting.step), replayed.tensors)));
  fmt::print("computed again from {} up to step {}:\n",
             parting.begun == 0 ? "the initial weights"
                                : fmt::format("the checkpoint of step {} of {}", parting.begun,
                                              runs[parting.base].directory.string()),
             parting.step);
  std::array<train::Comparison, 2> found;
  std::array<bool, 2> is_equal{};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    found[i] = compared_with(runs[i], replayed, parting.begun + 1);
    // A receipt that a full disk took says nothing of the numbers.
    is_equal[i] = found[i].difference.empty() || found[i].field == train::kNoReceipt;
    fmt::print("  {}: {}\n", runs[i].directory.string(),
               found[i].difference.empty() ? "equal" : found[i].difference);
  }
  std::fflush(stdout);  // before the verdict
  const std::size_t wrong = is_equal[0] ? 1 : 0;
  if (!is_equal[1 - wrong]) {
    fail(ExitCode::kCheckpoint,
         "{} both differ from what this machine computes: bisect on another machine or with the "
         "versions that the runs had",
         both_runs(runs));
  }
  fail(ExitCode::kCheckpoint, "{} went wrong {}; {} is what the replay computes",
       runs[wrong].directory.string(), when(found[wrong]), runs[1 - wrong].directory.string());
}

}  // namespace

ExitCode bisect(const config::CommandLine& line, comm::MpiSession& mpi,
                const config::FailureHandler& on_failure, Log& log) {
  comm::Communicator& world = mpi.world();
  comm::agree(world, [&] {
    if (line.positions().size() != 2) {
      fail(ExitCode::kUsage, "--bisect compares two runs, not {}: strata replay --bisect RUN1 RUN2",
           line.positions().size());
    }
    for (const char* const option : {"steps", "dump", "dump-step", "output"}) {
      if (line.has(option)) {
        fail(ExitCode::kUsage, "--bisect finds the steps itself; leave --{} out", option);
      }
    }
  });
  TwoRuns runs;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::string> settings = line.settings();
    settings.emplace_back("--run.receipts=1");
    runs[i] = read_run(line.positions()[i], settings, mpi);
  }
  const Parting parting = comm::agree_on_first(world, [&] { return find_parting(runs); });
  if (parting.step == 0) {
    comm::agree_on_first(world, [&] {
      fmt::print("{} {}\n", both_runs(runs), equal_text(parting, last_of_both(runs)));
    });
    return ExitCode::kDone;
  }
  const Replayed replayed =
      replay(runs[parting.base], parting.begun + 1, parting.step, mpi, on_failure, log);
  if (replayed.other_settings) {
    refuse_other_settings(runs[parting.base]);
  }
  comm::agree_on_first(world, [&] { judge(runs, parting, replayed); });
  return ExitCode::kDone;
}

}  // namespace strata::app
