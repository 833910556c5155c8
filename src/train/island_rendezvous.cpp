#include "island_rendezvous.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/hash.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/checkpoint_names.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/stop_polls.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRounds = "rounds";
constexpr const char* kLock = "island.lock";
constexpr std::string_view kDifferencePrefix = "differences/";

fs::path rounds_root(const fs::path& directory) {
  return directory / kRounds;
}

/// The names of committed checkpoints are step-00000012.
bool is_committed(const fs::path& root, std::int64_t step) {
  return std::ranges::any_of(io::list_checkpoints(root), [step](const io::CheckpointEntry& entry) {
    return entry.step == step;
  });
}

io::Checkpoint open_at(const fs::path& root, std::int64_t step) {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(root)) {
    if (entry.step == step) {
      return io::Checkpoint::open(entry.directory);
    }
  }
  fail(
      ExitCode::kCheckpoint,
      "{} has no checkpoint of step {}; it was deleted, so resume the islands from theirs in a new "
      "parallel.island_of",
      root.string(), step);
}

std::vector<IslandRound> rounds_of(const io::Checkpoint& outer) {
  std::vector<IslandRound> rounds;
  try {
    for (const nlohmann::json& round : outer.metadata().at(kRounds)) {
      rounds.push_back({.step = round.at("step").get<std::int64_t>(),
                        .islands = round.at("islands").get<std::vector<std::int64_t>>()});
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::kCheckpoint, "{} has no valid record of its rounds ({})",
         outer.directory().string(), error.what());
  }
  return rounds;
}

bool holds(const std::vector<IslandRound>& rounds, std::int64_t step, std::int64_t island) {
  return std::ranges::any_of(rounds, [&](const IslandRound& round) {
    return round.step == step && std::ranges::count(round.islands, island) > 0;
  });
}

/// Deletes checkpoints that no island needs any more: one that was killed goes back by two rounds.
void prune(const fs::path& root, std::int64_t step) {
  constexpr std::int64_t kKept = 4;
  try {
    io::prune_checkpoints(root, step, kKept);
  } catch (const Error&) {
    return;  // another island has deleted them, or the next one will
  }
}

}  // namespace

std::vector<IslandRound> island_rounds(const fs::path& directory) {
  const auto newest = io::list_checkpoints(rounds_root(directory));
  return newest.empty() ? std::vector<IslandRound>()
                        : rounds_of(io::Checkpoint::open(newest.front().directory));
}

std::vector<io::TensorSlice> outer_slices(const RankState& state,
                                          const optim::OuterOptimizer& outer) {
  std::vector<io::TensorSlice> slices;
  for (const optim::OuterOptimizer::Piece& piece : outer.summed_pieces()) {
    const nn::ParameterSpec& spec = state.spec_of(piece.owned);
    const auto add = [&](const std::string& name, const TensorView& data) {
      if (auto slice = state.slice_of(name, piece.owned, data)) {
        slices.push_back(std::move(*slice));
      }
    };
    add(weight_name(spec), outer.weights(piece));
    if (outer.has_momentum()) {
      add(outer_name(kOuterPrefix, kOuterMomentum, spec), outer.momentum(piece));
    }
  }
  return slices;
}

void load_outer(const io::Checkpoint& checkpoint, const RankState& state,
                optim::OuterOptimizer& outer) {
  for (const optim::OuterOptimizer::Piece& piece : outer.pieces()) {
    const nn::ParameterSpec& spec = state.spec_of(piece.owned);
    state.read(checkpoint, weight_name(spec), piece.owned, outer.weights(piece));
    if (outer.has_momentum()) {
      state.read(checkpoint, outer_name(kOuterPrefix, kOuterMomentum, spec), piece.owned,
                 outer.momentum(piece));
    }
  }
}

IslandRendezvous::IslandRendezvous(const TrainerSetup& setup, const plan::RankPlan& rank,
                                   RankState& state, optim::OuterOptimizer& outer)
    : setup_(setup),
      plan_(setup.plan),
      world_(*setup.groups.world),
      state_(state),
      outer_(outer),
      directory_(plan_.config.parallel.island_of),
      rounds_(rounds_root(directory_)),
      island_(rank.first_island),
      heartbeats_(static_cast<std::size_t>(plan_.islands), {.changed = now_seconds()}) {
  if (world_.rank() != 0) {
    return;
  }
  std::error_code error;
  fs::create_directories(root_of(island_), error);
  if (error) {
    fail(ExitCode::kUsage, "parallel.island_of: {} cannot be made: {}", root_of(island_).string(),
         error.message());
  }
  lock_.emplace(
      root_of(island_),
      io::LockOptions{.name = kLock,
                      .setting = "parallel.island",
                      .subject = fmt::format("island {} of {}", island_, directory_.string())},
      setup_.log);
  const fs::path path = directory_ / "islands.json";
  const nlohmann::json identity = islands_identity(plan_);
  const std::string mine = identity.dump(2) + "\n";
  const auto there = io::read_text(path, ExitCode::kUsage, std::size_t{1} << 20U);
  if (!there) {
    io::replace_text(path, mine);
  } else if (*there != mine) {
    const nlohmann::json before = io::parse_json(*there).value_or(nlohmann::json::object());
    for (const auto& [key, value] : identity.items()) {
      if (before.value(key, nlohmann::json()) != value) {
        fail(ExitCode::kUsage,
             "parallel.island_of: {} is of a run where {} is {}, here it is {}; all islands need "
             "the same, or another directory",
             directory_.string(), key, before.value(key, nlohmann::json()).dump(), value.dump());
      }
    }
  }
}

fs::path IslandRendezvous::root_of(std::int64_t island) const {
  return directory_ / fmt::format("island-{}", island);
}

template <typename T>
T IslandRendezvous::from_rank_0(T value) {
  world_.broadcast(comm::payload_of(std::span(&value, 1)), 0);
  return value;
}

void IslandRendezvous::write(const fs::path& root, std::int64_t step,
                             const std::vector<io::TensorSlice>& slices,
                             const nlohmann::json& metadata) {
  const std::vector<std::string> directories = comm::agree_texts(world_, [&] {
    if (world_.rank() != 0) {
      return std::string();
    }
    lock_->require_held();
    return io::begin_checkpoint(root, step).string();
  });
  const std::vector<std::string> records = comm::agree_texts(world_, [&] {
    return io::text_of(io::write_part(directories.front(), world_.rank(), slices));
  });
  comm::agree(world_, [&] {
    if (world_.rank() == 0) {
      std::vector<io::PartRecord> parts;
      std::ranges::transform(records, std::back_inserter(parts), io::part_record_of);
      io::commit_checkpoint(root, step, parts, metadata, nullptr, [&] { lock_->require_held(); });
    }
  });
}

void IslandRendezvous::write_differences(std::int64_t step) {
  // A run that was killed after it wrote them computes the same ones again.
  if (from_rank_0(world_.rank() == 0 && is_committed(root_of(island_), step))) {
    return;
  }
  std::vector<io::TensorSlice> slices;
  outer_.add(0, 0, [&](const optim::OuterOptimizer::Piece& piece, const TensorView& into) {
    state_.copy_master(piece.owned, into);
  });
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    const std::string name =
        fmt::format("{}{}", kDifferencePrefix, state_.spec_of(piece.owned).name);
    if (auto slice = state_.slice_of(name, piece.owned, outer_.difference(piece))) {
      slices.push_back(std::move(*slice));
    }
  }
  write(root_of(island_), step, slices, {{"step", step}, {"island", island_}});
}

IslandRendezvous::Sight IslandRendezvous::look(std::int64_t step, double committed) {
  const auto finished = io::list_checkpoints(rounds_);
  if (!finished.empty() && finished.front().step >= step) {
    return Sight::kFinished;
  }
  present_.clear();
  bool awaits = false;
  for (std::int64_t island = 0; island < plan_.islands; ++island) {
    if (is_committed(root_of(island), step)) {
      present_.push_back(island);
    } else {
      awaits = is_alive(island) || awaits;
    }
  }
  const bool over = now_seconds() - committed >= plan_.config.local.deadline_seconds;
  return !awaits || over ? Sight::kComplete : Sight::kWait;
}

bool IslandRendezvous::is_alive(std::int64_t island) {
  // Twelve heartbeats; a job may also begin a little later than the others.
  constexpr double kSilentSeconds = 60.0;
  Heartbeat& heartbeat = heartbeats_[static_cast<std::size_t>(island)];
  std::string text = heartbeat.text;
  try {
    text = io::read_text(root_of(island) / kLock, ExitCode::kUsage, std::size_t{1} << 16U)
               .value_or("");
  } catch (const Error&) {
    // Another job's file that cannot be read does not end this one.
  }
  if (text != heartbeat.text) {
    heartbeat = {.text = text, .changed = now_seconds()};
  }
  return now_seconds() - heartbeat.changed < kSilentSeconds;
}

void IslandRendezvous::average(std::int64_t step) {
  present_.resize(static_cast<std::size_t>(from_rank_0(std::ssize(present_))));
  world_.broadcast(comm::payload_of(std::span(present_)), 0);
  comm::agree(world_, [&] {
    std::vector<io::Checkpoint> differences;
    for (const std::int64_t island : present_) {
      differences.push_back(open_at(root_of(island), step));
    }
    outer_.average(present_, [&](std::size_t at, const optim::OuterOptimizer::Piece& piece,
                                 const TensorView& into) {
      state_.read(differences[at],
                  fmt::format("{}{}", kDifferencePrefix, state_.spec_of(piece.owned).name),
                  piece.owned, into);
    });
  });
  nlohmann::json record = nlohmann::json::array();
  comm::agree(world_, [&] {
    if (world_.rank() == 0) {
      std::vector<IslandRound> rounds = island_rounds(directory_);
      rounds.push_back({.step = step, .islands = present_});
      for (const IslandRound& round : rounds) {
        record.push_back({{"step", round.step}, {"islands", round.islands}});
      }
    }
  });
  const fs::path own = root_of(island_) / kRounds;
  write(own, step, outer_slices(state_, outer_), {{"step", step}, {kRounds, record}});
  comm::agree(world_, [&] {
    if (world_.rank() != 0) {
      return;
    }
    const fs::path made = open_at(own, step).directory();
    std::error_code error;
    fs::create_directories(rounds_, error);
    if (!error) {
      fs::rename(made, rounds_ / made.filename(), error);
    }
    if (!error) {
      prune(rounds_, step);
    } else if (is_committed(rounds_, step)) {
      fs::remove_all(made, error);  // another island was first
    } else {
      fail(ExitCode::kCheckpoint, "the round of step {} cannot be moved to {}: {}", step,
           rounds_.string(), error.message());
    }
  });
}

void IslandRendezvous::load(std::int64_t step) {
  comm::agree(world_, [&] { load_outer(open_at(rounds_, step), state_, outer_); });
}

IslandRendezvous::Met IslandRendezvous::go_on_after(std::int64_t step) {
  Met met;
  comm::agree(world_, [&] {
    if (world_.rank() != 0) {
      return;
    }
    const std::vector<IslandRound> rounds = island_rounds(directory_);
    const bool together = holds(rounds, step, island_);
    // A round that has this island's difference already is repeated, with the same bits.
    const bool repeats = together && holds(rounds, step + plan_.config.local.steps, island_);
    met = {.kind = together ? Kind::kTogether : Kind::kLeftOut,
           .step = repeats || rounds.back().step == step ? step : rounds.back().step};
    if (!together || met.step != step) {
      setup_.log.warn("island {} goes on after step {} of the others: the average of step {} {}",
                      island_, met.step, step,
                      together ? "has its weights, later ones do not"
                               : "does not have its weights, whose steps since then are lost");
    }
    prune(root_of(island_), step);
  });
  met = from_rank_0(met);
  load(met.step);
  return met;
}

IslandRendezvous::Met IslandRendezvous::meet(std::int64_t step,
                                             const std::function<StopRequest()>& stop_request) {
  const FileTimeout timeout(world_);
  write_differences(step);
  const double committed = now_seconds();
  StopPolls polls(world_, stop_request);
  while (true) {
    auto sight = Sight::kWait;
    comm::agree(world_, [&] {
      if (world_.rank() == 0) {
        sight = look(step, committed);
      }
    });
    sight = from_rank_0(sight);
    if (sight == Sight::kFinished) {
      return go_on_after(step);
    }
    if (sight == Sight::kComplete) {
      average(step);
    } else if (polls.poll() == StopRequest::kStop) {
      return {.kind = Kind::kStopped, .step = step};
    } else {
      constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

IslandRendezvous::Met IslandRendezvous::join(std::int64_t step, bool is_new) {
  const FileTimeout timeout(world_);
  Met met{.step = step};
  comm::agree(world_, [&] {
    if (world_.rank() != 0) {
      return;
    }
    const std::vector<IslandRound> rounds = island_rounds(directory_);
    const bool took_part = std::ranges::any_of(rounds, [&](const IslandRound& round) {
      return round.step > plan_.config.local.steps &&
             std::ranges::count(round.islands, island_) > 0;
    });
    if (is_new && took_part) {
      fail(ExitCode::kUsage,
           "parallel.island_of: {} has rounds with island {}, but this run is new; resume the run "
           "of that island, or choose another directory for new ones",
           directory_.string(), island_);
    }
    if (!rounds.empty() && rounds.back().step > step &&
        !holds(rounds, step + plan_.config.local.steps, island_)) {
      met = {.kind = Kind::kLeftOut, .step = rounds.back().step};
      setup_.log.info("island {} joins the others after step {}", island_, met.step);
    }
  });
  met = from_rank_0(met);
  if (met.kind == Kind::kLeftOut) {
    load(met.step);
  }
  return met;
}

}  // namespace strata::train
