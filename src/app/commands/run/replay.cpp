#include "commands/run/replay.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/comm/values.hpp"
#include "strata/config/config_file.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/scratch_directory.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/trainer.hpp"

#include "environment/execution_environment.hpp"
#include "environment/run_inputs.hpp"
#include "environment/temporary_directory.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

fs::path make_replay_directory() {
  std::string name = temporary_directory() + "/strata-replay-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    fail(ExitCode::kUsage, "cannot make the directory {}: {}; set TMPDIR to one with room", name,
         std::strerror(errno));
  }
  return name;
}

/// The settings of a replay: what determines the numbers as the run had it, no saves and no
/// evaluations, and any grid. The user's settings come after these.
std::vector<std::string> replay_settings(const ReplayedRun& run, const nlohmann::json& start,
                                         const std::string& scratch) {
  std::vector<std::string> settings;
  for (const char* const setting : {"--run.resume=never",
                                    "--run.threads=0",
                                    "--run.time_limit=0",
                                    "--run.machine=",
                                    "--run.timeline=off",
                                    "--run.sniff=off",  // unless asked for
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
  settings.push_back("--run.dir=" + scratch);  // whatever the user's: it would lose its receipts
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
    if (run.dump) {  // activations are copied to the host in passes
      inputs.config.run.cuda_graphs = config::Switch::kOff;
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

/// Whether a failure of all ranks is that of a run that diverged.
bool diverged(const std::exception& error) {
  const auto* const agreed = dynamic_cast<const comm::AgreedError*>(&error);
  return agreed != nullptr && agreed->code() == ExitCode::kDiverged;
}

}  // namespace

ReplayedRun read_run(const std::string& directory, const std::vector<std::string>& settings,
                     comm::MpiSession& mpi, std::int64_t least_steps) {
  ReplayedRun run{.directory = directory, .settings = settings, .receipts = {}};
  const train::FileTimeout timeout(mpi.world());
  comm::agree_on_first(mpi.world(), [&] {
    run.receipts = train::Receipts::read(run.directory / train::kReceiptsFile);
    if (run.receipts.last_step() < least_steps) {
      fail(ExitCode::kCheckpoint, "the receipts of {} have no step yet; train first",
           run.directory.string());
    }
  });
  return run;
}

void refuse_other_settings(const ReplayedRun& run) {
  throw comm::AgreedError(
      ExitCode::kCheckpoint,
      fmt::format(
          "the receipts of {} are of another run than its config.ini and data set: the SHA-256 of "
          "the settings and of the data's checksum, or the virtual grid, differs. If the run went "
          "on with other settings, give those that it had in these steps, as --section.key=value",
          run.directory.string()));
}

train::Comparison compared_with(const ReplayedRun& run, const Replayed& replayed,
                                std::int64_t first) {
  train::Comparison compared = train::compare_receipts(run.receipts, replayed.receipts, first,
                                                       replayed.last, replayed.tensors);
  const std::string machines = environment_difference(
      run.receipts.start_before(replayed.last).at("environment"), replayed.environment);
  if (!compared.difference.empty() && !machines.empty()) {
    compared.difference +=
        fmt::format(" ({}: such machines need not have the same bits)", machines);
  }
  return compared;
}

nlohmann::json identity_in(nlohmann::json start) {
  for (const char* const of_launch : {"start", "tensors", "environment", "sha256"}) {
    start.erase(of_launch);
  }
  return start;
}

Replayed replay(const ReplayedRun& run, std::int64_t first, std::int64_t last,
                comm::MpiSession& mpi, const config::FailureHandler& on_failure, Log& log) {
  comm::Communicator& world = mpi.world();
  std::optional<io::ScratchDirectory> scratch;  // on rank 0
  const std::string directory = comm::agree_on_first(world, [&] {
    scratch.emplace(make_replay_directory());
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
    if (!run.checkpoints_match) {
      train::OpenedCheckpoint opened = train::open_verified(world, source);
      if (!opened.checkpoint) {
        throw comm::AgreedError(ExitCode::kCheckpoint, opened.damaged + opened.unreadable);
      }
      inputs.checkpoint = std::move(opened.checkpoint);
    }
    comm::agree(world, [&] {
      if (run.checkpoints_match) {
        inputs.checkpoint = io::Checkpoint::open(source);
        inputs.checkpoint->set_verified();
      }
      train::keep_settings(*inputs.checkpoint, inputs.config, inputs.origins);
    });
    comm::agree_on_first(world, [&] {  // of pairs of documents
      for (const auto& entry : fs::directory_iterator(run.directory)) {
        if (entry.path().filename().string().starts_with("references")) {
          fs::create_symlink(fs::absolute(entry.path()), scratch->path() / entry.path().filename());
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
  comm::agree_on_first(world, [&] {
    if (plan.total_steps < last && run.receipts.last_step() < last) {  // of a dump
      fail(ExitCode::kUsage, "--steps ends at {}, and {} with step {}; choose others", last,
           run.directory.string(), plan.total_steps);
    }
  });
  Replayed replayed;
  replayed.first = begun + 1;
  replayed.last = last;
  if (identity_in(start) != identity_in(train::start_facts(plan, {})) || plan.total_steps < last) {
    replayed.other_settings = true;
    return replayed;
  }
  std::optional<train::StepDump> dump;
  if (run.dump) {
    comm::agree(world, [&] { dump.emplace(plan, run.dump->kinds, run.dump->step); });
  }
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kTraining);
  replayed.environment = receipt_environment(mpi, plan, environment);
  replayed.tensors = digested_tensors(plan);
  // Elsewhere the run has no digest to compare with.
  const bool digests_end = comm::agree_on_first(world, [&] {
    return plan.config.run.receipts == 1 || !run.receipts.save(last).is_null() ||
           !run.receipts.start(last).is_null();
  });
  const auto write_dump = [&] {
    if (dump && dump->is_complete()) {
      dump->write(world, run.dump->directory);
      comm::agree_on_first(world, [&] {
        fmt::print("tensors of step {}: {}\n", dump->step(),
                   train::StepDump::file_in(run.dump->directory, dump->step()).string());
        std::fflush(stdout);  // before an error
      });
    }
  };
  // Where the run diverges, the dump comes first, or why it cannot be written.
  const auto on_failure_but_of_dump = [&](const std::exception& error) {
    if (!dump || !diverged(error)) {
      on_failure(error);
    }
  };
  Log silent(Log::Output::kSilent);
  try {
    static_cast<void>(train::train({.plan = plan,
                                    .groups = environment.groups(),
                                    .context = environment.context(),
                                    .train_data = *inputs.train_data,
                                    .checkpoint = inputs.checkpoint ? &*inputs.checkpoint : nullptr,
                                    .initial = inputs.initial ? &*inputs.initial : nullptr,
                                    .config_text = config::config_text(plan.config),
                                    .environment = replayed.environment,
                                    .last_step = last,
                                    .digests_end = digests_end,
                                    .dump = dump ? &*dump : nullptr,
                                    .on_failure = on_failure_but_of_dump,
                                    .log = silent}));
  } catch (const comm::AgreedError& error) {
    if (diverged(error) && plan.parts == 1) {  // other parts may not have come to the step
      write_dump();
    }
    throw;
  }
  environment.groups().world->barrier();
  write_dump();
  replayed.first = comm::agree_on_first(world, [&] {
    replayed.receipts = train::Receipts::read(scratch->path() / train::kReceiptsFile);
    const std::int64_t end = std::max(begun, replayed.receipts.last_step());
    if (end < last) {  // any rank may have got the request
      fail(ExitCode::kStoppedEarly, "stopped on request after step {} of {} to {}", end,
           replayed.first, last);
    }
    // A full disk may have taken the receipts of steps before the first one asked for.
    std::int64_t compared_first = first;
    while (compared_first > begun + 1 && run.receipts.has_step(compared_first - 1)) {
      --compared_first;
    }
    replayed.compared = compared_with(run, replayed, compared_first);
    return compared_first;
  });
  return replayed;
}

}  // namespace strata::app
