#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/comm/values.hpp"
#include "strata/config/config_file.hpp"
#include "strata/core/text.hpp"
#include "strata/io/sample_order.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/receipts.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/trainer.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "environment/execution_environment.hpp"
#include "environment/run_inputs.hpp"
#include "environment/temporary_directory.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// A directory of a replay, on rank 0; removed with it.
class ReplayDirectory {
 public:
  ReplayDirectory() {
    std::string name = temporary_directory() + "/strata-replay-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      fail(ExitCode::kUsage, "cannot make the directory {}: {}; set TMPDIR to one with room", name,
           std::strerror(errno));
    }
    path_ = name;
  }
  ~ReplayDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ReplayDirectory(const ReplayDirectory&) = delete;
  ReplayDirectory& operator=(const ReplayDirectory&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// A run with receipts, and how it is computed again.
struct ReplayedRun {
  fs::path directory;
  std::vector<std::string> settings;  ///< of the command line
  train::Receipts receipts;           ///< on rank 0: the file of a run that goes on grows
};

/// Steps that were computed again.
struct Replayed {
  std::int64_t first = 1;
  std::int64_t last = 1;
  /// The run had other settings in these steps, so nothing was computed.
  bool other_settings = false;
  train::Comparison compared;  ///< on rank 0
  nlohmann::ordered_json environment;
};

/// What the numbers of a start's steps depend on.
nlohmann::json identity_in(nlohmann::json start) {
  for (const char* const of_launch : {"start", "tensors", "environment", "sha256"}) {
    start.erase(of_launch);
  }
  return start;
}

/// The settings of a replay: what determines the numbers as the run had it, no saves and no
/// evaluations, and any grid. The user's settings come last.
std::vector<std::string> replay_settings(const ReplayedRun& run, const nlohmann::json& start,
                                         const std::string& scratch) {
  std::vector<std::string> settings{"--run.dir=" + scratch};
  for (const char* const setting : {"--run.resume=never",
                                    "--run.threads=0",
                                    "--run.time_limit=0",
                                    "--run.machine=",
                                    "--run.timeline=off",
                                    "--run.tensorboard=off",
                                    "--run.tensorboard_histograms=0",
                                    "--run.tensorboard_text=0",
                                    "--parallel.data=0",
                                    "--parallel.pipeline=0",
                                    "--parallel.tensor=0",
                                    "--parallel.sequence=auto",
                                    "--parallel.schedule=1f1b",
                                    "--parallel.activations=0",
                                    "--parallel.chunks=0",
                                    "--parallel.backward=auto",
                                    "--parallel.split=auto",
                                    "--parallel.node_ranks=0",
                                    "--checkpoint.every=0",
                                    "--checkpoint.minutes=0",
                                    "--checkpoint.keep_every=0",
                                    "--checkpoint.best=off",
                                    "--train.evaluate_every=0",
                                    "--train.evaluate_batches=0",
                                    "--train.patience=0",
                                    "--train.repeat_every=0",
                                    "--data.test="}) {
    settings.emplace_back(setting);
  }
  const auto as_in_run = [&](const std::string& setting, const char* fact) {
    settings.push_back(fmt::format("--{}={}", setting, start.at(fact).get<std::int64_t>()));
  };
  as_in_run("numerics.lanes", "lanes");
  as_in_run("numerics.shards", "shards");
  as_in_run("batch.micro", "microbatch");
  if (start.at("loss_pieces") != 1) {
    as_in_run("numerics.loss_pieces", "loss_pieces");
  }
  if (start.at(plan::kPartsKey) != 1) {
    as_in_run(fmt::format("parallel.{}", plan::kPartsKey), plan::kPartsKey);
  }
  settings.insert(settings.end(), run.settings.begin(), run.settings.end());
  return settings;
}

/// The tensors whose digests are in receipts.
std::vector<std::string> digested_tensors(const plan::Plan& plan) {
  std::vector<std::string> names;
  std::vector<std::string> prefixes{""};
  for (std::int64_t part = 0; part < plan.parts; ++part) {
    prefixes.push_back(plan::part_prefix(part));
  }
  for (const std::string& prefix : prefixes) {
    for (const nn::ParameterSpec& spec : plan.model->parameters()) {
      names.push_back(plan::weight_name(spec, prefix));
      names.push_back(fmt::format("{}gradients/{}", prefix, spec.name));
      std::ranges::move(plan::state_names(spec, plan.config.optimizer.options, prefix),
                        std::back_inserter(names));
    }
  }
  return names;
}

/// What differs between two environments and may change bits; empty: nothing.
std::string environment_difference(const nlohmann::json& run, const nlohmann::json& here) {
  // Of "cpu on 4 ranks (Open MPI), 1 thread each, avx2", ranks and threads change no bit.
  const auto device = [](const nlohmann::json& facts) {
    const std::string all = facts.value("device", nlohmann::json()).dump();
    const std::string kind = all.substr(0, all.find(" on "));
    return kind + (kind == "\"cpu" ? all.substr(std::min(all.rfind(','), all.size())) : "");
  };
  std::string text;
  const auto compare = [&](const std::string& key, const std::string& was, const std::string& is) {
    if (was != is) {
      text += fmt::format("{}{}: the run had {}, this machine has {}", text.empty() ? "" : "; ",
                          key, was, is);
    }
  };
  for (const auto& [key, value] : here.items()) {
    if (key == "device") {
      compare(key, device(run), device(here));
    } else if (key != "grid" && key != "nodes") {
      compare(key, run.value(key, nlohmann::json()).dump(), value.dump());
    }
  }
  return text;
}

/// The newest checkpoint before a step; nothing where the run began there.
std::optional<io::CheckpointEntry> checkpoint_before(const ReplayedRun& run, std::int64_t step) {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(run.directory / "checkpoints")) {
    if (entry.step < step) {
      return entry;
    }
  }
  return std::nullopt;
}

/// The inputs of a replay. A data set's path may be relative to another working directory.
RunInputs open_replayed(const ReplayedRun& run, const std::vector<std::string>& settings,
                        comm::MpiSession& mpi, Log& log) {
  try {
    RunInputs inputs = open_run_inputs(mpi, (run.directory / "config.ini").string(), settings,
                                       DataNeeded::kYes, log);
    if (inputs.config.run.receipts == 0) {  // the run went on without
      inputs.config.run.receipts = 1;
    }
    return inputs;
  } catch (const comm::AgreedError& error) {
    if (error.code() != ExitCode::kData) {
      throw;
    }
    throw comm::AgreedError(
        error.code(),
        fmt::format("{}; if the data set is elsewhere, give its place as --data.train=FILE",
                    error.what()));
  }
}

/// Computes the steps up to `last` from the checkpoint before `first` on, and compares.
/// Communication: collective over the world. Throws: AgreedError.
Replayed replay(const ReplayedRun& run, std::int64_t first, std::int64_t last,
                comm::MpiSession& mpi, const config::FailureHandler& on_failure, Log& log) {
  comm::Communicator& world = mpi.world();
  std::optional<ReplayDirectory> scratch;
  const std::string directory = comm::agree_on_first(world, [&] {
    scratch.emplace();
    return scratch->path().string();
  });
  // Rank 0 alone lists the checkpoints: a run that goes on deletes some.
  const auto source = comm::agree_on_first(world, [&] {
    const auto entry = checkpoint_before(run, first);
    return entry ? entry->directory.string() : std::string();
  });
  const std::optional<std::int64_t> from = source.empty() ? std::nullopt : io::step_of_name(source);
  const std::int64_t begun = from.value_or(0);
  const auto start = nlohmann::json::parse(comm::agree_on_first(world, [&] {
    nlohmann::json line = run.receipts.start_before(last);
    if (const std::int64_t begin = run.receipts.starts().front(); begun < begin) {
      fail(ExitCode::kCheckpoint,
           "steps {} to {} cannot be computed from {}: the run has receipts only after step {}; "
           "choose steps after a checkpoint from then on",
           first, last, from ? source : "the initial weights", begin);
    }
    if (identity_in(run.receipts.start_before(begun + 1)) != identity_in(line)) {
      const std::int64_t begin = line.at("start");
      fail(ExitCode::kCheckpoint,
           "steps {} to {} cannot be computed from {}: the run went on after step {} with other "
           "settings or lanes; choose steps up to {}, or after a checkpoint from then on",
           first, last, from ? source : "the initial weights", begin, begin);
    }
    return line.dump();
  }));
  RunInputs inputs = open_replayed(run, replay_settings(run, start, directory), mpi, log);
  if (from) {
    train::OpenedCheckpoint opened = train::open_verified(world, source);
    if (!opened.checkpoint) {
      throw comm::AgreedError(ExitCode::kCheckpoint, opened.damaged + opened.unreadable);
    }
    inputs.checkpoint = std::move(opened.checkpoint);
    comm::agree(world,
                [&] { train::keep_settings(*inputs.checkpoint, inputs.config, inputs.origins); });
    comm::agree_on_first(world, [&] {  // of pairs of documents
      for (const auto& entry : fs::directory_iterator(run.directory)) {
        if (entry.path().filename().string().starts_with("references")) {
          fs::copy(entry.path(), scratch->path() / entry.path().filename());
        }
      }
    });
  } else {  // on any ranks, as from a checkpoint
    inputs.replayed = {.lanes = start.at("lanes"),
                       .shards = start.at("shards"),
                       .microbatch = start.at("microbatch"),
                       .loss_pieces = start.at("loss_pieces"),
                       .parts = start.at(plan::kPartsKey),
                       .pipeline = 1,
                       .tensor = 1,
                       .consent = inputs.consent};
  }
  open_initial(mpi, inputs, log);
  plan::Plan plan = make_plan(mpi, inputs, world.size());
  static_cast<void>(match_data(mpi, inputs, plan));
  Replayed replayed;
  replayed.first = begun + 1;
  replayed.last = last;
  if (train::identity_hash(plan) != start.at("run") || plan.total_steps < last) {
    replayed.other_settings = true;
    return replayed;
  }
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kTraining);
  replayed.environment = receipt_environment(mpi, plan, environment);
  Log silent(Log::Output::kSilent);
  static_cast<void>(train::train({.plan = plan,
                                  .groups = environment.groups(),
                                  .context = environment.context(),
                                  .train_data = *inputs.train_data,
                                  .checkpoint = inputs.checkpoint ? &*inputs.checkpoint : nullptr,
                                  .initial = inputs.initial ? &*inputs.initial : nullptr,
                                  .config_text = config::config_text(plan.config),
                                  .environment = replayed.environment,
                                  .last_step = last,
                                  .on_failure = on_failure,
                                  .log = silent}));
  environment.groups().world->barrier();
  replayed.first = comm::agree_on_first(world, [&] {
    const auto again = train::Receipts::read(scratch->path() / train::kReceiptsFile);
    if (again.last_step() < last && train::stop_request() != train::StopRequest::kNone) {
      fail(ExitCode::kStoppedEarly, "stopped on request after step {} of {} to {}",
           again.last_step(), replayed.first, last);
    }
    // A full disk may have taken the receipts of steps before the first one asked for.
    std::int64_t compared_first = first;
    while (compared_first > begun + 1 && run.receipts.has_step(compared_first - 1)) {
      --compared_first;
    }
    replayed.compared =
        train::compare_receipts(run.receipts, again, compared_first, last, digested_tensors(plan));
    const std::string machines = environment_difference(
        run.receipts.start_before(last).at("environment"), replayed.environment);
    if (!replayed.compared.difference.empty() && !machines.empty()) {
      replayed.compared.difference +=
          fmt::format(" ({}: such machines need not have the same bits)", machines);
    }
    return compared_first;
  });
  return replayed;
}

[[noreturn]] void refuse_other_settings(const ReplayedRun& run) {
  throw comm::AgreedError(
      ExitCode::kCheckpoint,
      fmt::format(
          "the receipts of {} are of another run than its config.ini and data set: the SHA-256 of "
          "the settings and of the data's checksum differs. If the run went on with other "
          "settings, give those that it had in these steps, as --section.key=value",
          run.directory.string()));
}

ReplayedRun read_run(const config::CommandLine& line, comm::MpiSession& mpi) {
  ReplayedRun run{
      .directory = line.positions().front(), .settings = settings_of(line), .receipts = {}};
  const train::FileTimeout timeout(mpi.world());
  comm::agree_on_first(mpi.world(), [&] {
    run.receipts = train::Receipts::read(run.directory / train::kReceiptsFile);
    if (run.receipts.last_step() == 0) {
      fail(ExitCode::kCheckpoint, "the receipts of {} have no step yet; train first",
           run.directory.string());
    }
  });
  return run;
}

ExitCode replay_command(const config::CommandLine& line, comm::MpiSession& mpi,
                        const config::FailureHandler& on_failure) {
  Log log(log_role(mpi));
  std::int64_t first = 0;
  std::int64_t last = 0;
  comm::agree(mpi.world(), [&] {
    const std::string steps = line.required("steps");
    const std::size_t dash = std::min(steps.find('-'), steps.size());
    const std::string end = dash < steps.size() ? steps.substr(dash + 1) : steps;
    if (!parse_int64(steps.substr(0, dash), first) || !parse_int64(end, last) || first < 1 ||
        last < first) {
      config::refuse_value("steps", steps, "the first and the last step, as in 5-7");
    }
  });
  const ReplayedRun run = read_run(line, mpi);
  comm::agree_on_first(mpi.world(), [&] {
    if (last > run.receipts.last_step()) {
      fail(ExitCode::kUsage, "--steps ends at {}, and {} has receipts up to step {}; choose others",
           last, run.directory.string(), run.receipts.last_step());
    }
  });
  const Replayed replayed = replay(run, first, last, mpi, on_failure, log);
  if (replayed.other_settings) {
    refuse_other_settings(run);
  }
  comm::agree_on_first(mpi.world(), [&] {
    if (!replayed.compared.difference.empty()) {
      fail(ExitCode::kCheckpoint,
           "{}. Replay the steps elsewhere: equal receipts there tell a "
           "fault of this machine",
           replayed.compared.difference);
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
    states.insert(entry.step);
    if (receipts.lack_checkpoint(entry.step)) {
      verified.without.push_back(entry.step);
    } else {
      train::require_receipt(receipts, entry);
      verified.equal.push_back(entry.step);
    }
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
    count = line.count("stretches", 2, 0, kMost);
    length = line.count("length", 10, 1, kMost);
    seed = line.count("seed", 1, 0, kMost);
    if (line.has("output") && mpi.world().rank() == 0) {
      require_writable(line.value("output", ""));
    }
  });
  const ReplayedRun run = read_run(line, mpi);
  Verified verified;
  const auto choices = [&] {
    const train::FileTimeout timeout(mpi.world());  // all checkpoints are read
    return nlohmann::json::parse(comm::agree_on_first(
        mpi.world(), [&] { return choose_stretches(run, length, seed, verified).dump(); }));
  }();
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
    const std::int64_t end = std::max(run.receipts.last_step(), run.receipts.starts().back());
    const nlohmann::ordered_json certificate{
        {"run", run.directory.string()},
        {"receipts_sha256", run.receipts.head()},
        {"steps", end},
        {"steps_without_receipts", end - run.receipts.steps()},
        {"checkpoints_equal", verified.equal},
        {"checkpoints_without_receipts", verified.without},
        {"seed", seed},
        {"recomputed_equal", stretches},
        {"digests_compared", digests},
        {"other_settings",
         own.empty() ? nlohmann::ordered_json::array() : other_settings(run.receipts, own)},
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
       .synopses = {{"RUN --steps=A-B [--ranks=N] [--section.key=value ...]"}},
       .about =
           R"(Computes the steps A to B of a run with run.receipts again, on any number of ranks, from its
last checkpoint before A, and compares them with receipts.jsonl. Says that they are equal, or the first step, field and
tensor that differ. Writes nothing into RUN.)",
       .options = {{"steps", "A-B", "the first and the last step"}},
       .lists = {{"Examples", {{"strata replay RUN --steps=101-120 --ranks=2", "on two ranks"}}}},
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
