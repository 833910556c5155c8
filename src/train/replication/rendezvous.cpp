#include "replication/rendezvous.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/hash.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/config_changes.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/stop_polls.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSetting = "parallel.island_of";
constexpr const char* kIslandsFile = "islands.json";
constexpr const char* kRounds = "rounds";
constexpr const char* kLock = "island.lock";
constexpr std::string_view kDifferencePrefix = "differences/";

/// Keys of islands.json and of the metadata of differences and rounds.
constexpr const char* kMeeting = "meeting";
constexpr const char* kStart = "start";
constexpr const char* kStep = "step";
constexpr const char* kWeights = "weights";
constexpr const char* kConfigText = "config";
constexpr const char* kChecksum = "checksum";

/// What islands that are jobs of their own must have in common.
nlohmann::json identity_of(const plan::Plan& plan) {
  nlohmann::json identity = identity_in_parts(plan);
  const auto& local = plan.config.local;
  identity["parallel.islands"] = plan.parts;
  identity["local.steps"] = local.steps;
  identity["local.outer_rate"] = local.outer_rate;
  identity["local.outer_momentum"] = local.outer_momentum;
  return identity;
}

fs::path rounds_root(const fs::path& directory) {
  return directory / kRounds;
}

/// The directory of the committed checkpoint of a step; empty where there is none.
fs::path committed_at(const fs::path& root, std::int64_t step) {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(root)) {
    if (entry.step == step) {
      return entry.directory;
    }
  }
  return {};
}

/// Tells a directory from one that another island puts in its place; 0 where there is none.
std::uint64_t inode_of(const fs::path& directory) {
  struct stat status {};
  return ::stat(directory.c_str(), &status) == 0 ? status.st_ino : 0;
}

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string run_text(const std::string& id) {
  return id.empty() ? "an earlier version" : "the run " + id;
}

/// The text of islands.json, with the checksum of the rest.
std::string sealed(nlohmann::json islands) {
  const auto text = [&](int indent) {  // invalid UTF-8, as in a path, is replaced
    return islands.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  islands.erase(kChecksum);
  islands[kChecksum] = hash_text(hash_of(text(-1)));
  return text(2) + "\n";
}

/// islands.json; nothing where there is none.
std::optional<nlohmann::json> read_islands(const fs::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 26U;
  const fs::path path = directory / kIslandsFile;
  const auto text = io::read_text(path, ExitCode::kUsage, kMostBytes);
  if (!text) {
    return std::nullopt;
  }
  auto islands = io::parse_json(*text);
  if (!islands || !islands->is_object() || sealed(*islands) != *text) {
    fail(ExitCode::kUsage,
         "{} is damaged or of an earlier version; remove it, and the next island that continues "
         "writes it again and local.record goes without it, or choose another directory",
         path.string());
  }
  return islands;
}

/// Refuses other weights than those of the first job, after the step that it began with.
void require_same_start(const nlohmann::json& islands, const fs::path& directory, std::int64_t step,
                        const std::string& weights, const char* setting) {
  const nlohmann::json start = islands.value(kStart, nlohmann::json::object());
  if (start.value(kStep, std::int64_t{-1}) == step && text_at(start, kWeights) != weights) {
    fail(ExitCode::kUsage,
         "{}: the islands of {} begin from weights whose hash after step {} is {}, here it is {}; "
         "give all of them the same checkpoint.init, or choose another directory",
         setting, directory.string(), step, text_at(start, kWeights), weights);
  }
}

void require_same_settings(const nlohmann::json& islands, const fs::path& directory,
                           const plan::Plan& plan, const char* setting) {
  const nlohmann::json identity = identity_of(plan);
  for (const auto& [key, value] : identity.items()) {
    const nlohmann::json there = islands.value(key, nlohmann::json());
    if (there != value) {
      fail(ExitCode::kUsage,
           "{}: {} is of a run where {} is {}, here it is {}; all islands need the same, or "
           "another directory",
           setting, directory.string(), key, there.dump(), value.dump());
    }
  }
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

/// A hash of the tensors that the slices of all ranks hold once.
std::string hash_of_all(comm::Communicator& world, const std::vector<io::TensorSlice>& slices,
                        device::Stream& stream) {
  std::uint64_t mine = 0;
  for (const io::TensorSlice& slice : slices) {
    mine += elements_hash(slice, stream);
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(comm::payload_of(std::span(&std::as_const(mine), 1)),
                   comm::payload_of(std::span(all)));
  return hash_text(std::reduce(all.begin(), all.end()));
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
    add(plan::weight_name(spec), outer.weights(piece));
    if (outer.has_momentum()) {
      add(plan::outer_name(plan::kOuterPrefix, plan::kOuterMomentum, spec), outer.momentum(piece));
    }
  }
  return slices;
}

void load_outer(const io::Checkpoint& checkpoint, const RankState& state,
                optim::OuterOptimizer& outer) {
  for (const optim::OuterOptimizer::Piece& piece : outer.pieces()) {
    const nn::ParameterSpec& spec = state.spec_of(piece.owned);
    state.read(checkpoint, plan::weight_name(spec), piece.owned, outer.weights(piece));
    if (outer.has_momentum()) {
      state.read(checkpoint, plan::outer_name(plan::kOuterPrefix, plan::kOuterMomentum, spec),
                 piece.owned, outer.momentum(piece));
    }
  }
}

std::string start_hash(comm::Communicator& world, const RankState& state,
                       const optim::OuterOptimizer& outer, device::Stream& stream,
                       std::int64_t islands_rank) {
  std::vector<io::TensorSlice> slices = outer_slices(state, outer);
  if (islands_rank == 0) {  // all islands have the same
    const std::vector<io::TensorSlice> frozen = state.frozen_slices();
    slices.insert(slices.end(), frozen.begin(), frozen.end());
  }
  return hash_of_all(world, slices, stream);
}

std::string require_same_run(const fs::path& directory, const plan::Plan& plan, std::int64_t step,
                             const std::string& weights, const std::string& config_text,
                             const char* setting, Log& log) {
  const std::optional<nlohmann::json> islands = read_islands(directory);
  if (!islands) {
    log.warn("{}: {} has no {}, so this run is not compared with the one that made it", setting,
             directory.string(), kIslandsFile);
    return "";
  }
  require_same_settings(*islands, directory, plan, setting);
  require_same_start(*islands, directory, step, weights, setting);
  const std::vector<std::string> changes =
      training_changes(text_at(*islands, kConfigText), config_text);
  if (!changes.empty()) {
    log.warn("{}: settings of the island that made {}, which may differ, and those here: {}",
             setting, (directory / kIslandsFile).string(), fmt::join(changes, "; "));
  }
  return text_at(*islands, kMeeting);
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
      island_(rank.own_parts.begin),
      heartbeats_(static_cast<std::size_t>(plan_.parts), {.changed = now_seconds()}),
      averaged_(static_cast<std::size_t>(plan_.parts)) {
  std::iota(averaged_.begin(), averaged_.end(), 0);
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
  if (const auto islands = read_islands(directory_)) {
    require_same_settings(*islands, directory_, plan_, kSetting);
  }
}

std::string IslandRendezvous::identify(std::int64_t step, const std::string& weights) {
  const std::string own =
      setup_.checkpoint != nullptr ? text_at(setup_.checkpoint->metadata(), kMeeting) : "";
  if (!read_islands(directory_)) {
    nlohmann::json islands = identity_of(plan_);
    islands[kMeeting] = own.empty() ? io::make_nonce() : own;
    islands[kStart] = {{kStep, step}, {kWeights, weights}};
    islands[kConfigText] = setup_.config_text;
    // Of several jobs that start at once, the first one wins.
    static_cast<void>(io::create_text(directory_ / kIslandsFile, sealed(std::move(islands))));
  }
  std::string id =
      require_same_run(directory_, plan_, step, weights, setup_.config_text, kSetting, setup_.log);
  if (id.empty()) {
    fail(ExitCode::kUsage,
         "parallel.island_of: {} was removed while this island began; start again",
         (directory_ / kIslandsFile).string());
  }
  if (!own.empty() && own != id) {
    fail(ExitCode::kUsage,
         "parallel.island_of: {} is of the run {}, {} of the run {}; continue the islands of one "
         "run together, or choose another directory",
         directory_.string(), id, setup_.checkpoint->directory().string(), own);
  }
  return id;
}

nlohmann::json IslandRendezvous::record() const {
  return {{kMeeting, id_}};
}

fs::path IslandRendezvous::root_of(std::int64_t island) const {
  return directory_ / fmt::format("island-{}", island);
}

template <typename T>
T IslandRendezvous::from_rank_0(T value) {
  world_.broadcast(comm::payload_of(std::span(&value, 1)), 0);
  return value;
}

std::string IslandRendezvous::outer_hash() {
  return hash_of_all(world_, outer_slices(state_, outer_), setup_.context.stream());
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
    setup_.log.warn("a damaged round is moved to {} and averaged again: {}", aside.string(),
                    problem);
  } else if (fs::exists(round, error)) {
    fail(ExitCode::kCheckpoint, "{}; the round cannot be moved to {}: move it away", problem,
         aside.string());
  }
}

std::optional<io::Checkpoint> IslandRendezvous::open_round(const fs::path& round) {
  const std::uint64_t inode = inode_of(round);
  try {
    io::Checkpoint outer = io::Checkpoint::open(round);
    if (const std::string id = text_at(outer.metadata(), kMeeting); id != id_) {
      fail(ExitCode::kUsage,
           "parallel.island_of: {} is of {}, {} of the run {}; remove {}, or choose another "
           "directory",
           round.string(), run_text(id), (directory_ / kIslandsFile).string(), id_,
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

void IslandRendezvous::write(const fs::path& root, std::int64_t step,
                             const std::vector<io::TensorSlice>& slices, nlohmann::json metadata) {
  metadata[kStep] = step;
  metadata[kMeeting] = id_;
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
  write(root_of(island_), step, slices,
        {{"island", island_}, {kWeights, base_}, {kConfigText, setup_.config_text}});
}

std::string IslandRendezvous::open_difference(std::int64_t island, std::int64_t step) {
  const std::string directory = comm::first_text(world_, [&] {
    return world_.rank() == 0 ? committed_at(root_of(island), step).string() : std::string();
  });
  if (directory.empty()) {
    return "it is not there";
  }
  try {
    OpenedCheckpoint opened = open_verified(world_, directory);
    std::string problem = comm::first_text(world_, [&]() -> std::string {
      if (!opened.unreadable.empty()) {
        return opened.unreadable;
      }
      const nlohmann::json& metadata = opened.checkpoint->metadata();
      if (const std::string id = text_at(metadata, kMeeting); id != id_) {
        return fmt::format("{} is of {}, this is the run {}", directory, run_text(id), id_);
      }
      if (const std::string weights = text_at(metadata, kWeights); weights != base_) {
        return fmt::format(
            "{} is from other outer weights than this island's (their hash is {}, here {})",
            directory, weights, base_);
      }
      return "";
    });
    if (problem.empty()) {
      differences_.insert_or_assign(island, *std::move(opened.checkpoint));
    }
    return problem;
  } catch (const comm::AgreedError& error) {
    if (error.code() != ExitCode::kCheckpoint) {
      throw;
    }
    return error.what();
  }
}

bool IslandRendezvous::continues_difference(std::int64_t step) {
  if (from_rank_0(world_.rank() == 0 && committed_at(root_of(island_), step).empty())) {
    return false;
  }
  std::string problem = open_difference(island_, step);
  if (problem.empty() &&
      !training_changes(text_at(differences_.at(island_).metadata(), kConfigText),
                        setup_.config_text)
           .empty()) {
    differences_.erase(island_);
    problem = "it was computed with other settings";
  }
  if (!problem.empty()) {
    setup_.log.warn("the difference of step {} that is there is replaced: {}", step, problem);
  }
  return problem.empty();
}

IslandRendezvous::Progress IslandRendezvous::progress_of(std::int64_t step, double committed) {
  const auto finished = io::list_checkpoints(rounds_);
  if (!finished.empty() && finished.front().step >= step) {
    return Progress::kAveraged;
  }
  present_.clear();
  bool awaits = false;
  for (std::int64_t island = 0; island < plan_.parts; ++island) {
    const fs::path directory = committed_at(root_of(island), step);
    std::error_code error;
    const auto bad = bad_.find(island);
    if (!directory.empty() &&
        (bad == bad_.end() || bad->second != fs::last_write_time(directory, error))) {
      present_.push_back(island);
    } else {
      awaits = is_alive(island) || awaits;
    }
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

bool IslandRendezvous::verify_differences(std::int64_t step) {
  present_.resize(static_cast<std::size_t>(from_rank_0(std::ssize(present_))));
  world_.broadcast(comm::payload_of(std::span(present_)), 0);
  bool good = true;
  for (const std::int64_t island : present_) {
    if (differences_.contains(island)) {
      continue;
    }
    const std::string problem = open_difference(island, step);
    if (problem.empty()) {
      continue;
    }
    good = false;
    if (island != island_) {
      setup_.log.warn(
          "the difference of island {} after step {} is left out unless it is written again: {}",
          island, step, problem);
      comm::agree(world_, [&] {
        std::error_code error;
        if (world_.rank() == 0) {
          bad_[island] = fs::last_write_time(committed_at(root_of(island), step), error);
        }
      });
    } else if (std::exchange(rewrote_, true)) {
      throw comm::AgreedError(
          ExitCode::kCheckpoint,
          fmt::format("the difference of this island was written again and is still bad: {}; check "
                      "the file system of {}",
                      problem, directory_.string()));
    } else {
      setup_.log.warn("the difference of this island after step {} is written again: {}", step,
                      problem);
      write_differences(step);
    }
  }
  return good;
}

void IslandRendezvous::average(std::int64_t step) {
  comm::agree(world_, [&] {
    outer_.average(present_, [&](std::size_t at, const optim::OuterOptimizer::Piece& piece,
                                 const TensorView& into) {
      state_.read(differences_.at(present_[at]),
                  fmt::format("{}{}", kDifferencePrefix, state_.spec_of(piece.owned).name),
                  piece.owned, into);
    });
  });
  nlohmann::json record = nlohmann::json::array();
  comm::agree(world_, [&] {
    if (world_.rank() == 0) {
      std::vector<IslandRound> all = rounds();
      all.push_back({.step = step, .islands = present_});
      for (const IslandRound& round : all) {
        record.push_back({{kStep, round.step}, {"islands", round.islands}});
      }
    }
  });
  const fs::path own = root_of(island_) / kRounds;
  write(own, step, outer_slices(state_, outer_), {{kRounds, record}, {kWeights, outer_hash()}});
  comm::agree(world_, [&] {
    if (world_.rank() != 0) {
      return;
    }
    const fs::path made = committed_at(own, step);
    std::error_code error;
    fs::create_directories(rounds_, error);
    if (!error) {
      fs::rename(made, rounds_ / made.filename(), error);
    }
    if (!error) {
      prune(rounds_, step);
    } else if (!committed_at(rounds_, step).empty()) {
      fs::remove_all(made, error);  // another island was first
    } else {
      fail(ExitCode::kCheckpoint, "the round of step {} cannot be moved to {}: {}", step,
           rounds_.string(), error.message());
    }
  });
}

bool IslandRendezvous::load(std::int64_t step) {
  const std::string directory = comm::first_text(world_, [&] {
    return world_.rank() == 0 ? committed_at(rounds_, step).string() : std::string();
  });
  if (directory.empty()) {
    return false;
  }
  const std::uint64_t inode = inode_of(directory);
  OpenedCheckpoint opened;
  try {
    opened = open_verified(world_, directory);
  } catch (const comm::AgreedError& error) {
    if (error.code() != ExitCode::kCheckpoint) {
      throw;
    }
    comm::agree(world_, [&] {
      if (world_.rank() == 0) {
        set_aside(directory, inode, error.what());
      }
    });
    return false;
  }
  if (!opened.unreadable.empty()) {
    throw comm::AgreedError(
        ExitCode::kPeer,
        fmt::format("{} cannot be read now: {}. Submit the job again once the file system answers",
                    directory, opened.unreadable));
  }
  comm::agree(world_, [&] { load_outer(*opened.checkpoint, state_, outer_); });
  return true;
}

void IslandRendezvous::report(const IslandRound& round) {
  if (round.islands == averaged_) {
    return;
  }
  averaged_ = round.islands;
  if (std::ssize(averaged_) == plan_.parts) {
    setup_.log.info("all islands are in the average after step {} again", round.step);
    return;
  }
  setup_.log.warn(
      "{}the average after step {} has {} of {} islands: {}; the others were later than "
      "local.deadline = {:g} s, do not run, or left differences that were not good",
      averaged_ == std::vector<std::int64_t>{island_} ? "this island is alone: " : "", round.step,
      averaged_.size(), plan_.parts, fmt::join(averaged_, ", "),
      plan_.config.local.deadline_seconds);
}

std::optional<RoundOutcome> IslandRendezvous::catch_up(std::int64_t step) {
  RoundOutcome outcome{.step = -1};
  comm::agree(world_, [&] {
    if (world_.rank() != 0) {
      return;
    }
    const std::vector<IslandRound> all = rounds();
    if (all.empty() || all.back().step < step) {
      return;  // the newest was damaged
    }
    const bool together = holds(all, step, island_);
    // A round that has this island's difference already is repeated, with the same bits.
    const bool repeats = together && holds(all, step + plan_.config.local.steps, island_);
    outcome = {.kind = together ? RoundOutcome::Kind::kIncluded : RoundOutcome::Kind::kExcluded,
               .step = repeats || all.back().step == step ? step : all.back().step};
    if (outcome.step < all.back().step && committed_at(rounds_, outcome.step).empty()) {
      fail(ExitCode::kCheckpoint,
           "{} has no checkpoint of step {}; it was deleted, so resume the islands from theirs in "
           "a new parallel.island_of",
           rounds_.string(), outcome.step);
    }
    if (!together || outcome.step != step) {
      setup_.log.warn("island {} goes on after step {} of the others: the average of step {} {}",
                      island_, outcome.step, step,
                      together ? "has its weights, later ones do not"
                               : "does not have its weights, whose steps since then are lost");
    }
    const auto round = std::ranges::find(all, outcome.step, &IslandRound::step);
    if (round != all.end()) {
      report(*round);
    }
    prune(root_of(island_), step);
  });
  outcome = from_rank_0(outcome);
  if (outcome.step < 0 || !load(outcome.step)) {
    return std::nullopt;
  }
  return outcome;
}

RoundOutcome IslandRendezvous::synchronize(std::int64_t step,
                                           const std::function<StopRequest()>& stop_request) {
  const FileTimeout timeout(world_);
  base_ = outer_hash();
  differences_.clear();
  bad_.clear();
  rewrote_ = false;
  // A run that was killed after it wrote its differences computes the same ones again.
  if (!continues_difference(step)) {
    write_differences(step);
  }
  const double committed = now_seconds();
  StopPolls polls(world_, stop_request);
  while (true) {
    auto progress = Progress::kIncomplete;
    comm::agree(world_, [&] {
      if (world_.rank() == 0) {
        progress = progress_of(step, committed);
      }
    });
    progress = from_rank_0(progress);
    if (progress == Progress::kAveraged) {
      differences_.clear();  // closes their files
      if (const std::optional<RoundOutcome> outcome = catch_up(step)) {
        return *outcome;
      }
    } else if (progress == Progress::kComplete) {
      if (verify_differences(step)) {
        average(step);
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
  const std::string start = start_hash(world_, state_, outer_, setup_.context.stream(), 0);
  const std::string outer = outer_hash();
  id_ = comm::first_text(
      world_, [&] { return world_.rank() == 0 ? identify(step, start) : std::string(); });
  while (true) {
    RoundOutcome outcome{.step = step};
    comm::agree(world_, [&] {
      if (world_.rank() == 0) {
        outcome = outcome_at_start(step, outer);
      }
    });
    outcome = from_rank_0(outcome);
    if (outcome.kind != RoundOutcome::Kind::kExcluded || load(outcome.step)) {
      return outcome;
    }
  }
}

void IslandRendezvous::require_no_other_start() const {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(root_of(island_))) {
    try {
      const io::Checkpoint there = io::Checkpoint::open(entry.directory);
      const std::vector<std::string> changes =
          training_changes(text_at(there.metadata(), kConfigText), setup_.config_text);
      if (text_at(there.metadata(), kMeeting) == id_ && !changes.empty()) {
        fail(
            ExitCode::kUsage,
            "parallel.island_of: {} is of an earlier start of this island with other settings: {}; "
            "set them back, remove {} to begin anew, or choose another directory",
            entry.directory.string(), fmt::join(changes, "; "), directory_.string());
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
  const bool is_new = setup_.checkpoint == nullptr;
  const std::vector<IslandRound> all = rounds();
  const bool took_part = std::ranges::any_of(all, [&](const IslandRound& round) {
    return round.step > plan_.config.local.steps && std::ranges::count(round.islands, island_) > 0;
  });
  if (is_new && took_part) {
    fail(ExitCode::kUsage,
         "parallel.island_of: {} has rounds with island {}, but this run is new; resume the run "
         "of that island, or choose another directory for new ones",
         directory_.string(), island_);
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
    setup_.log.warn(
        "this island has other outer weights after step {} than {}; it goes on from "
        "the newest round, of step {}",
        step, same.string(), all.back().step);
    return {.kind = RoundOutcome::Kind::kExcluded, .step = all.back().step};
  }
  if (all.back().step > step && !holds(all, step + plan_.config.local.steps, island_)) {
    setup_.log.info("island {} joins the others after step {}", island_, all.back().step);
    return {.kind = RoundOutcome::Kind::kExcluded, .step = all.back().step};
  }
  return {.step = step};
}

}  // namespace strata::train
