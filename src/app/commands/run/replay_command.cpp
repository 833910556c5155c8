#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/comm/values.hpp"
#include "strata/core/text.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/empty_directories.hpp"
#include "strata/io/sample_order.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/receipts.hpp"
#include "strata/train/stop_signal.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/run/replay.hpp"
#include "commands/run/replay_bisect.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

/// What --dump asks for of the steps [first, last]. Throws: Error(kUsage).
std::optional<WantedDump> wanted_dump(const config::CommandLine& line, std::int64_t first,
                                      std::int64_t last) {
  if (!line.has("dump")) {
    for (const char* const option : {"dump-step", "output"}) {
      if (line.has(option)) {
        fail(ExitCode::kUsage, "--{} says nothing without --dump; add it, or leave --{} out",
             option, option);
      }
    }
    return std::nullopt;
  }
  return WantedDump{.kinds = train::dumped_kinds(line.value("dump", "")),
                    .step = line.count("dump-step", last, first, last),
                    .directory = line.value("output", "dump")};
}

/// Makes the directory of a dump, for one that is not there yet. Throws: Error(kUsage).
void make_directory_of(const WantedDump& dump) {
  const std::filesystem::path file = train::StepDump::file_in(dump.directory, dump.step);
  if (std::filesystem::exists(file)) {
    fail(ExitCode::kUsage, "{} exists; remove it, or choose another directory with --output=DIR",
         file.string());
  }
  std::error_code error;
  std::filesystem::create_directories(dump.directory, error);
  if (error) {
    fail(ExitCode::kUsage, "cannot make {}: {}; choose another directory with --output=DIR",
         dump.directory.string(), error.message());
  }
  require_writable(file.string());
}

/// The run of a command that takes one.
const std::string& only_run(const config::CommandLine& line) {
  if (line.positions().size() > 1) {
    fail(ExitCode::kUsage, "strata {} takes one run, not {}; strata replay --bisect compares two",
         line.command(), line.positions().size());
  }
  return line.positions().front();
}

ExitCode replay_command(const config::CommandLine& line, comm::MpiSession& mpi,
                        const config::FailureHandler& on_failure) {
  Log log(log_role(mpi));
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::optional<WantedDump> dump;
  if (line.has("bisect")) {
    return bisect(line, mpi, on_failure, log);
  }
  comm::agree(mpi.world(), [&] {
    static_cast<void>(only_run(line));
    const std::string steps = line.required("steps");
    const std::size_t dash = std::min(steps.find('-'), steps.size());
    const std::string end = dash < steps.size() ? steps.substr(dash + 1) : steps;
    if (!parse_int64(steps.substr(0, dash), first) || !parse_int64(end, last) || first < 1 ||
        last < first) {
      config::refuse_value("steps", steps, "the first and the last step, as in 5-7");
    }
    dump = wanted_dump(line, first, last);
  });
  ReplayedRun run = read_run(only_run(line), settings_of(line), mpi, dump ? 0 : 1);
  run.dump = dump;
  std::optional<io::EmptyDirectories> made;  // of a dump that is not written
  comm::agree_on_first(mpi.world(), [&] {
    std::int64_t end = run.receipts.last_step();
    if (dump && run.receipts.start_before(last).at(plan::kPartsKey) == 1) {
      // The step in which a run diverged has tensors and no receipt.
      end = std::max(end, run.receipts.starts().back()) + 1;
    }
    if (last > end) {
      fail(ExitCode::kUsage, "--steps ends at {}, and {} has receipts up to step {}; choose others",
           last, run.directory.string(), run.receipts.last_step());
    }
    if (dump) {
      made.emplace(dump->directory);
      make_directory_of(*dump);
    }
  });
  const Replayed replayed = replay(run, first, last, mpi, on_failure, log);
  if (replayed.other_settings) {
    refuse_other_settings(run);
  }
  comm::agree_on_first(mpi.world(), [&] {
    if (!replayed.compared.difference.empty()) {
      fail(ExitCode::kCheckpoint, "{}{}", replayed.compared.difference,
           replayed.compared.field == train::kNoReceipt
               ? ""
               : ". Replay the steps elsewhere: equal receipts there tell a fault of this machine");
    }
    const std::int64_t ranks = mpi.world().size();
    fmt::print("{}: steps {} to {} are equal on {} rank{}\n", run.directory.string(),
               replayed.first, replayed.last, ranks, ranks == 1 ? "" : "s");
  });
  return ExitCode::kDone;
}

/// What verify looked at, on rank 0.
struct Verified {
  nlohmann::ordered_json equal = nlohmann::ordered_json::array();    ///< steps of checkpoints
  nlohmann::ordered_json without = nlohmann::ordered_json::array();  ///< those without receipts
};

/// Checks the checkpoints, and chooses the stretches that may be computed again, on rank 0.
/// Returns: of each the step before it, its last step and the hash of its settings, in the order in
/// which they are tried: those with digests first.
nlohmann::json choose_stretches(const ReplayedRun& run, std::int64_t length, std::int64_t seed,
                                Verified& verified) {
  const train::Receipts& receipts = run.receipts;
  std::set<std::int64_t> states{0, receipts.last_step()};
  for (const io::CheckpointEntry& entry : io::list_checkpoints(run.directory / "checkpoints")) {
    if (receipts.lack_checkpoint(entry.step)) {
      verified.without.push_back(entry.step);
    } else {
      try {
        train::require_receipt(receipts, entry);
      } catch (const std::exception&) {
        if (std::filesystem::exists(entry.directory)) {
          throw;
        }
        continue;  // a run that goes on has deleted it
      }
      verified.equal.push_back(entry.step);
    }
    states.insert(entry.step);
  }
  std::vector<nlohmann::json> stretches;
  std::vector<bool> digested;
  for (const std::int64_t begin : states) {
    if (!receipts.has_step(begin + 1)) {
      continue;
    }
    const auto next_state = states.upper_bound(begin);
    const nlohmann::json identity = identity_in(receipts.start_before(begin + 1));
    std::int64_t last = begin + 1;
    bool has_digest = false;
    for (;; ++last) {
      has_digest = has_digest || receipts.step(last).contains("weights");
      // Not over the next checkpoint, which may begin a stretch of its own.
      if (last == begin + length || last == *next_state || !receipts.has_step(last + 1) ||
          identity_in(receipts.start_before(last + 1)) != identity) {
        break;
      }
    }
    digested.push_back(has_digest || !receipts.save(last).is_null());
    stretches.push_back({begin, last, identity.at("run")});
  }
  const std::int64_t choices = std::ssize(stretches);
  nlohmann::json order = nlohmann::json::array();
  for (const bool with_digests : {true, false}) {
    for (std::int64_t i = 0; i < choices; ++i) {
      const auto chosen =
          static_cast<std::size_t>(io::sample_at(static_cast<std::uint64_t>(seed), choices, i));
      if (digested[chosen] == with_digests) {
        order.push_back(stretches[chosen]);
      }
    }
  }
  return order;
}

/// The steps that the run had other settings in than those with the hash `own`, as [first, last].
nlohmann::ordered_json other_settings(const train::Receipts& receipts, const std::string& own) {
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  std::vector<std::int64_t> starts = receipts.starts();
  starts.push_back(receipts.last_step());
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i] < starts[i + 1] && receipts.start(starts[i]).at("run") != own) {
      ranges.push_back({starts[i] + 1, starts[i + 1]});
    }
  }
  return ranges;
}

ExitCode verify_command(const config::CommandLine& line, comm::MpiSession& mpi,
                        const config::FailureHandler& on_failure) {
  Log log(log_role(mpi));
  std::int64_t count = 0;
  std::int64_t length = 0;
  std::int64_t seed = 0;
  comm::agree(mpi.world(), [&] {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    static_cast<void>(only_run(line));
    count = line.count("stretches", 2, 0, kMost);
    length = line.count("length", 10, 1, kMost);
    seed = line.count("seed", 1, 0, kMost);
    if (line.has("output") && mpi.world().rank() == 0) {
      require_writable(line.value("output", ""));
    }
  });
  ReplayedRun run = read_run(only_run(line), settings_of(line), mpi);
  Verified verified;
  const auto choices = [&] {
    const train::FileTimeout timeout(mpi.world());  // all checkpoints are read
    return nlohmann::json::parse(comm::agree_on_first(
        mpi.world(), [&] { return choose_stretches(run, length, seed, verified).dump(); }));
  }();
  run.checkpoints_match =
      comm::agree_on_first(mpi.world(), [&] { return verified.without.empty(); });
  nlohmann::ordered_json stretches = nlohmann::ordered_json::array();
  nlohmann::ordered_json environment;
  std::int64_t steps = 0;
  std::int64_t digests = 0;
  std::string own;  // the hash of the settings now
  std::set<std::string> others;
  for (const nlohmann::json& choice : choices) {
    const std::string settings = choice[2];
    if (std::ssize(stretches) == count || others.contains(settings)) {
      continue;
    }
    const Replayed replayed =
        replay(run, choice[0].get<std::int64_t>() + 1, choice[1], mpi, on_failure, log);
    if (replayed.other_settings) {
      others.insert(settings);
      continue;
    }
    own = settings;
    stretches.push_back({{"first", replayed.first}, {"last", replayed.last}});
    steps += replayed.last - replayed.first + 1;
    digests += replayed.compared.digests;
    environment = replayed.environment;
    comm::agree_on_first(mpi.world(), [&] {
      if (!replayed.compared.difference.empty()) {
        fail(ExitCode::kCheckpoint, "{} is not verified: {}", run.directory.string(),
             replayed.compared.difference);
      }
    });
  }
  if (own.empty() && !others.empty()) {
    refuse_other_settings(run);
  }
  comm::agree_on_first(mpi.world(), [&] {
    // A full disk may have taken the receipts of the last steps before a start.
    const std::int64_t last_start = run.receipts.starts().back();
    const std::int64_t end = std::max(run.receipts.last_step(), last_start);
    if (own.empty()) {  // without a stretch
      own = run.receipts.start(last_start).at("run").get<std::string>();
    }
    const nlohmann::ordered_json certificate{{"run", run.directory.string()},
                                             {"receipts_sha256", run.receipts.head()},
                                             {"steps", end},
                                             {"steps_without_receipts", end - run.receipts.steps()},
                                             {"checkpoints_equal", verified.equal},
                                             {"checkpoints_without_receipts", verified.without},
                                             {"seed", seed},
                                             {"recomputed_equal", stretches},
                                             {"digests_compared", digests},
                                             {"other_settings", other_settings(run.receipts, own)},
                                             {"steps_recomputed", steps},
                                             {"steps_not_recomputed", end - steps},
                                             {"where", environment}};
    const std::string text =
        certificate.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (line.has("output")) {
      write_file(line.value("output", ""), text);
    }
    fmt::print("{}", text);
  });
  return ExitCode::kDone;
}

}  // namespace

Commands replay_commands() {
  const auto before_mpi = [] {
    std::signal(SIGPIPE, SIG_IGN);
    train::install_stop_signals();
  };
  return {
      {.name = "replay",
       .purpose = "compute steps of a run again and compare with its receipts",
       .synopses = {{"RUN --steps=A-B [--dump=KIND[:PATTERN],... [--output=DIR]] [--ranks=N] "
                     "[--section.key=value ...]",
                     "compares steps of a run with the same steps computed again"},
                    {"--bisect RUN1 RUN2 [--ranks=N] [--section.key=value ...]",
                     "finds where two runs of the same settings parted, and which went wrong"}},
       .about =
           R"(Computes the steps A to B of a run with run.receipts again, on any number of ranks, from its
last checkpoint before A, and compares them with receipts.jsonl. Says that they are equal, or the first step, field and
tensor that differ. Writes nothing into RUN.

--dump writes tensors of a step to a file of safetensors, whole and by name, the same on any number of ranks, also where
the step differs or the run diverged in it: activations (the output of each layer for the samples in order), reduced
gradients, and the weights and optimizer state that the step begins with.

--bisect compares the receipts of two runs up to the first difference, computes the steps since their last equal state
again with digests in every step, and names the step, the tensor and the run that went wrong.)",
       .options = {{"steps", "A-B", "the first and the last step"},
                   {"dump", "KIND[:PATTERN],...",
                    "activations, gradients, state or weights, of the layers or parameters that "
                    "match, as in activations:blocks.0.*"},
                   {"dump-step", "N", "the step of the tensors (default: B)"},
                   {"output", "DIR",
                    "where they are written, as step-N.safetensors (default: dump)"},
                   {"bisect", "", "compares two runs with each other"}},
       .lists = {{"Examples",
                  {{"strata replay RUN --steps=101-120 --ranks=2", "on two ranks"},
                   {"strata replay RUN --steps=120 --dump=gradients,activations",
                    "all gradients and activations of step 120"},
                   {"strata replay --bisect RUN1 RUN2", "where two runs parted"}}}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kSome,
       .needs = "a run's directory",
       .on_ranks = replay_command,
       .before_mpi = before_mpi},
      {.name = "verify",
       .purpose = "check a run's receipts and checkpoints, and replay parts of it",
       .synopses = {{"RUN [--stretches=K] [--length=M] [--seed=S] [--output=FILE.json] "
                     "[--ranks=N] [--section.key=value ...]"}},
       .about =
           R"(Checks that receipts.jsonl of a run is a whole chain, that its checkpoints are those of the
receipts, and that K stretches of M steps, computed again, are equal. Stretches begin with the run and after the
checkpoints that are left; the seed chooses. Prints a certificate: what was computed again, where, and what was not.)",
       .options = {{"stretches", "K", "how many stretches are computed again (default: 2)"},
                   {"length", "M", "the most steps of each (default: 10)"},
                   {"seed", "S", "chooses the stretches (default: 1)"},
                   {"output", "FILE.json", "writes the certificate there too"}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kSome,
       .needs = "a run's directory",
       .on_ranks = verify_command,
       .before_mpi = before_mpi}};
}

}  // namespace strata::app
