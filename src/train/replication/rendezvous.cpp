#include "replication/rendezvous.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/config_changes.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/stop_polls.hpp"

#include "replication/outer_state.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSetting = "parallel.island_of";
constexpr const char* kLock = "island.lock";

/// Tells a directory from one that another island puts in its place; 0 where there is none.
std::uint64_t inode_of(const fs::path& directory) {
  struct stat status {};
  return ::stat(directory.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

IslandRendezvous::IslandRendezvous(const TrainerSetup& setup, const plan::RankPlan& rank,
                                   RankState& state, optim::OuterOptimizer& outer)
    : job_{.setup = setup,
           .state = state,
           .outer = outer,
           .directory = setup.plan.config.parallel.island_of,
           .island = rank.own_parts.begin},
      plan_(setup.plan),
      world_(*setup.groups.world),
      log_(setup.log),
      own_(island_root(job_.directory, job_.island)),
      rounds_(job_.directory / kRounds),
      heartbeats_(static_cast<std::size_t>(plan_.parts), {.changed = now_seconds()}),
      averaged_(static_cast<std::size_t>(plan_.parts)) {
  std::iota(averaged_.begin(), averaged_.end(), 0);
  if (world_.rank() != 0) {
    return;
  }
  std::error_code error;
  fs::create_directories(own_, error);
  if (error) {
    fail(ExitCode::kUsage, "parallel.island_of: {} cannot be made: {}", own_.string(),
         error.message());
  }
  job_.lock.emplace(own_,
                    io::LockOptions{.name = kLock,
                                    .setting = "parallel.island",
                                    .subject = fmt::format("island {} of {}", job_.island,
                                                           job_.directory.string())},
                    log_);
  require_same_settings(job_.directory, plan_, kSetting);
}

std::string IslandRendezvous::identify(const IslandsStart& start) {
  const io::Checkpoint* const checkpoint = job_.setup.checkpoint;
  const std::string own = checkpoint != nullptr ? text_at(checkpoint->metadata(), kMeeting) : "";
  create_islands_file(job_.directory, plan_, start, own);
  std::string id = require_same_run(job_.directory, plan_, start, kSetting, log_);
  if (id.empty()) {
    fail(ExitCode::kUsage,
         "parallel.island_of: {} was removed while this island began; start again",
         (job_.directory / kIslandsFile).string());
  }
  if (!own.empty() && own != id) {
    fail(ExitCode::kUsage,
         "parallel.island_of: {} is of the run {}, {} of the run {}; continue the islands of one "
         "run together, or choose another directory",
         job_.directory.string(), id, checkpoint->directory().string(), own);
  }
  return id;
}

void IslandRendezvous::set_aside(const fs::path& round, std::uint64_t inode,
                                 const std::string& problem) {
  if (inode == 0 || inode_of(round) != inode) {
    return;  // another island has moved it, and may have made a good one
  }
  const fs::path aside = rounds_ / ("damaged-" + round.filename().string());
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(round, aside, error);
  if (!error) {
    log_.warn("a damaged round is moved to {} and averaged again: {}", aside.string(), problem);
  } else if (fs::exists(round, error)) {
    fail(ExitCode::kCheckpoint, "{}; the round cannot be moved to {}: move it away", problem,
         aside.string());
  }
}

std::optional<io::Checkpoint> IslandRendezvous::open_round(const fs::path& round) {
  const std::uint64_t inode = inode_of(round);
  try {
    io::Checkpoint outer = io::Checkpoint::open(round);
    if (const std::string id = text_at(outer.metadata(), kMeeting); id != job_.id) {
      fail(ExitCode::kUsage,
           "parallel.island_of: {} is of {}, {} of the run {}; remove {}, or choose another "
           "directory",
           round.string(), run_text(id), (job_.directory / kIslandsFile).string(), job_.id,
           rounds_.string());
    }
    return outer;
  } catch (const FileSystemError&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kCheckpoint) {
      throw;
    }
    set_aside(round, inode, error.what());
    return std::nullopt;
  }
}

std::vector<IslandRound> IslandRendezvous::rounds() {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(rounds_)) {
    if (const auto outer = open_round(entry.directory)) {
      return rounds_of(*outer);
    }
  }
  return {};
}

IslandRendezvous::Progress IslandRendezvous::progress_of(std::int64_t step,
                                                         RoundDifferences& differences,
                                                         double committed) {
  const auto finished = io::list_checkpoints(rounds_);
  if (!finished.empty() && finished.front().step >= step) {
    return Progress::kAveraged;
  }
  bool awaits = false;
  for (const std::int64_t island : differences.missing()) {
    awaits = is_alive(island) || awaits;
  }
  const bool over = now_seconds() - committed >= plan_.config.local.deadline_seconds;
  return !awaits || over ? Progress::kComplete : Progress::kIncomplete;
}

bool IslandRendezvous::is_alive(std::int64_t island) {
  // Twelve heartbeats; a job may also begin a little later than the others.
  constexpr double kSilentSeconds = 60.0;
  Heartbeat& heartbeat = heartbeats_[static_cast<std::size_t>(island)];
  std::string text = heartbeat.text;
  try {
    text = io::read_text(island_root(job_.directory, island) / kLock, ExitCode::kUsage,
                         std::size_t{1} << 16U)
               .value_or("");
  } catch (const Error&) {
    // Another job's file that cannot be read does not end this one.
  }
  if (text != heartbeat.text) {
    heartbeat = {.text = text, .changed = now_seconds()};
  }
  return now_seconds() - heartbeat.changed < kSilentSeconds;
}

void IslandRendezvous::average(std::int64_t step, RoundDifferences& differences) {
  differences.average();
  nlohmann::json record;
  comm::agree_on_first(world_, [&] {
    std::vector<IslandRound> all = rounds();
    all.push_back({.step = step, .islands = differences.present()});
    record = json_of(all);
  });
  const fs::path own = own_ / kRounds;
  job_.write(own, step, outer_slices(job_.state, job_.outer),
             {{kRounds, record}, {kWeights, job_.outer_hash()}});
  comm::agree_on_first(world_, [&] {
    const fs::path made = committed_at(own, step);
    std::error_code error;
    fs::create_directories(rounds_, error);
    if (!error) {
      fs::rename(made, rounds_ / made.filename(), error);
    }
    if (!error) {
      prune_rounds(rounds_, step);
    } else if (!committed_at(rounds_, step).empty()) {
      fs::remove_all(made, error);  // another island was first
    } else {
      fail(ExitCode::kCheckpoint, "the round of step {} cannot be moved to {}: {}", step,
           rounds_.string(), error.message());
    }
  });
}

bool IslandRendezvous::load(std::int64_t step) {
  const std::string directory =
      comm::agree_on_first(world_, [&] { return committed_at(rounds_, step).string(); });
  if (directory.empty()) {
    return false;
  }
  const std::uint64_t inode = inode_of(directory);
  const OpenedCheckpoint opened = open_verified(world_, directory);
  if (!opened.damaged.empty()) {
    comm::agree_on_first(world_, [&] { set_aside(directory, inode, opened.damaged); });
    return false;
  }
  if (!opened.unreadable.empty()) {
    throw comm::AgreedError(
        ExitCode::kPeer,
        fmt::format("{} cannot be read now: {}. Submit the job again once the file system answers",
                    directory, opened.unreadable));
  }
  comm::agree(world_, [&] { load_outer(*opened.checkpoint, job_.state, job_.outer); });
  return true;
}

void IslandRendezvous::report(const IslandRound& round) {
  if (round.islands == averaged_) {
    return;
  }
  averaged_ = round.islands;
  if (std::ssize(averaged_) == plan_.parts) {
    log_.info("all islands are in the average after step {} again", round.step);
    return;
  }
  log_.warn(
      "{}the average after step {} has {} of {} islands: {}; the others were later than "
      "local.deadline = {:g} s, do not run, or left differences that were not good",
      averaged_ == std::vector<std::int64_t>{job_.island} ? "this island is alone: " : "",
      round.step, averaged_.size(), plan_.parts, fmt::join(averaged_, ", "),
      plan_.config.local.deadline_seconds);
}

RoundOutcome IslandRendezvous::outcome_after(std::int64_t step) {
  const std::vector<IslandRound> all = rounds();
  if (all.empty() || all.back().step < step) {
    return {.step = -1};
  }
  const bool together = holds(all, step, job_.island);
  // A round that has this island's difference already is repeated, with the same bits.
  const bool repeats = together && holds(all, step + plan_.config.local.steps, job_.island);
  const RoundOutcome outcome{
      .kind = together ? RoundOutcome::Kind::kIncluded : RoundOutcome::Kind::kExcluded,
      .step = repeats || all.back().step == step ? step : all.back().step};
  if (outcome.step < all.back().step && committed_at(rounds_, outcome.step).empty()) {
    fail(ExitCode::kCheckpoint,
         "{} has no checkpoint of step {}; it was deleted, so resume the islands from theirs in "
         "a new parallel.island_of",
         rounds_.string(), outcome.step);
  }
  if (!together || outcome.step != step) {
    log_.warn("island {} goes on after step {} of the others: the average of step {} {}",
              job_.island, outcome.step, step,
              together ? "has its weights, later ones do not"
                       : "does not have its weights, whose steps since then are lost");
  }
  const auto round = std::ranges::find(all, outcome.step, &IslandRound::step);
  if (round != all.end()) {
    report(*round);
  }
  prune_rounds(own_, step);
  return outcome;
}

std::optional<RoundOutcome> IslandRendezvous::catch_up(std::int64_t step) {
  const RoundOutcome outcome = comm::agree_on_first(world_, [&] { return outcome_after(step); });
  return outcome.step >= 0 && load(outcome.step) ? std::optional(outcome) : std::nullopt;
}

RoundOutcome IslandRendezvous::synchronize(std::int64_t step,
                                           const std::function<StopRequest()>& stop_request) {
  const FileTimeout timeout(world_);
  RoundDifferences differences(job_, step);
  differences.write_own();
  const double committed = now_seconds();
  StopPolls polls(world_, stop_request);
  while (true) {
    const auto progress =
        comm::agree_on_first(world_, [&] { return progress_of(step, differences, committed); });
    if (progress == Progress::kAveraged) {
      differences.close_files();
      if (const std::optional<RoundOutcome> outcome = catch_up(step)) {
        return *outcome;
      }
    } else if (progress == Progress::kComplete) {
      if (differences.verify()) {
        average(step, differences);
      }
    } else if (polls.poll() == StopRequest::kStop) {
      return {.kind = RoundOutcome::Kind::kStopped, .step = step};
    } else {
      constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

RoundOutcome IslandRendezvous::join(std::int64_t step) {
  const FileTimeout timeout(world_);
  const IslandsStart start{
      .step = step,
      .weights = start_hash(world_, job_.state, job_.outer, job_.setup.context.stream(), 0),
      .config_text = job_.setup.config_text};
  const std::string outer = job_.outer_hash();
  job_.id = comm::agree_on_first(world_, [&] { return identify(start); });
  while (true) {
    const RoundOutcome outcome =
        comm::agree_on_first(world_, [&] { return outcome_at_start(step, outer); });
    if (outcome.kind != RoundOutcome::Kind::kExcluded || load(outcome.step)) {
      return outcome;
    }
  }
}

void IslandRendezvous::require_no_other_start() const {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(own_)) {
    try {
      const io::Checkpoint there = io::Checkpoint::open(entry.directory);
      const std::vector<std::string> changes =
          training_changes(text_at(there.metadata(), kConfigText), job_.setup.config_text);
      if (text_at(there.metadata(), kMeeting) == job_.id && !changes.empty()) {
        fail(
            ExitCode::kUsage,
            "parallel.island_of: {} is of an earlier start of this island with other settings: {}; "
            "set them back, remove {} to begin anew, or choose another directory",
            entry.directory.string(), fmt::join(changes, "; "), job_.directory.string());
      }
    } catch (const FileSystemError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kCheckpoint) {
        throw;
      }  // else it is damaged, and written again
    }
  }
}

RoundOutcome IslandRendezvous::outcome_at_start(std::int64_t step, const std::string& outer) {
  const bool is_new = job_.setup.checkpoint == nullptr;
  const std::vector<IslandRound> all = rounds();
  const bool took_part = std::ranges::any_of(all, [&](const IslandRound& round) {
    return round.step > plan_.config.local.steps &&
           std::ranges::count(round.islands, job_.island) > 0;
  });
  if (is_new && took_part) {
    fail(ExitCode::kUsage,
         "parallel.island_of: {} has rounds with island {}, but this run is new; resume the run "
         "of that island, or choose another directory for new ones",
         job_.directory.string(), job_.island);
  }
  if (is_new) {
    require_no_other_start();
  }
  if (all.empty() || all.back().step < step) {
    return {.step = step};
  }
  const fs::path same = committed_at(rounds_, step);
  const auto round = same.empty() ? std::nullopt : open_round(same);
  if (round && text_at(round->metadata(), kWeights) != outer) {
    log_.warn(
        "this island has other outer weights after step {} than {}; it goes on from "
        "the newest round, of step {}",
        step, same.string(), all.back().step);
    return {.kind = RoundOutcome::Kind::kExcluded, .step = all.back().step};
  }
  if (all.back().step > step && !holds(all, step + plan_.config.local.steps, job_.island)) {
    log_.info("island {} joins the others after step {}", job_.island, all.back().step);
    return {.kind = RoundOutcome::Kind::kExcluded, .step = all.back().step};
  }
  return {.step = step};
}

}  // namespace strata::train
