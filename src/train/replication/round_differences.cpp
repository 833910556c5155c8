#include "replication/round_differences.hpp"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/config_changes.hpp"

#include "replication/island_directory.hpp"
#include "replication/outer_state.hpp"

namespace strata::train {

namespace fs = std::filesystem;

void IslandJob::write(const fs::path& root, std::int64_t step,
                      const std::vector<io::TensorSlice>& slices, nlohmann::json metadata) {
  metadata[kStep] = step;
  metadata[kMeeting] = id;
  const std::string begun = comm::agree_on_first(world(), [&] {
    lock->require_held();
    return io::begin_checkpoint(root, step).string();
  });
  const std::vector<std::string> records = comm::agree_texts(
      world(), [&] { return io::text_of(io::write_part(begun, world().rank(), slices)); });
  comm::agree_on_first(world(), [&] {
    std::vector<io::PartRecord> parts;
    std::ranges::transform(records, std::back_inserter(parts), io::part_record_of);
    io::commit_checkpoint(root, step, parts, metadata, nullptr, [&] { lock->require_held(); });
  });
}

std::string IslandJob::outer_hash() const {
  return tensors_hash(world(), outer_slices(state, outer), setup.context.stream());
}

std::string RoundDifferences::name_of(const optim::OuterOptimizer::Piece& piece) const {
  return fmt::format("differences/{}", job_.state.spec_of(piece.owned).name);
}

void RoundDifferences::write() {
  job_.outer.add(0, 0, [&](const optim::OuterOptimizer::Piece& piece, const TensorView& into) {
    job_.state.copy_master(piece.owned, into);
  });
  std::vector<io::TensorSlice> slices;
  for (const optim::OuterOptimizer::Piece& piece : job_.outer.pieces()) {
    job_.state.add_slice(slices, name_of(piece), piece.owned, job_.outer.difference(piece));
  }
  job_.write(island_root(job_.directory, job_.island), step_, slices,
             {{"island", job_.island}, {kWeights, base_}, {kConfigText, job_.setup.config_text}});
}

std::string RoundDifferences::open(std::int64_t island) {
  comm::Communicator& world = job_.world();
  const std::string directory = comm::agree_on_first(
      world, [&] { return committed_at(island_root(job_.directory, island), step_).string(); });
  if (directory.empty()) {
    return "it is not there";
  }
  OpenedCheckpoint opened = open_verified(world, directory);
  if (!opened.checkpoint) {
    return opened.damaged + opened.unreadable;
  }
  std::string problem = comm::first_text(world, [&]() -> std::string {
    const nlohmann::json& metadata = opened.checkpoint->metadata();
    if (const std::string id = text_at(metadata, kMeeting); id != job_.id) {
      return fmt::format("{} is of {}, this is the run {}", directory, run_text(id), job_.id);
    }
    if (const std::string weights = text_at(metadata, kWeights); weights != base_) {
      return fmt::format(
          "{} is from other outer weights than this island's (their hash is {}, here {})",
          directory, weights, base_);
    }
    return "";
  });
  if (problem.empty()) {
    opened_.insert_or_assign(island, *std::move(opened.checkpoint));
  }
  return problem;
}

bool RoundDifferences::is_written() {
  const fs::path root = island_root(job_.directory, job_.island);
  if (comm::agree_on_first(job_.world(), [&] { return committed_at(root, step_).empty(); })) {
    return false;
  }
  std::string problem = open(job_.island);
  if (problem.empty() && !training_changes(text_at(opened_.at(job_.island).metadata(), kConfigText),
                                           job_.setup.config_text)
                              .empty()) {
    opened_.erase(job_.island);
    problem = "it was computed with other settings";
  }
  if (!problem.empty()) {
    job_.setup.log.warn("the difference of step {} that is there is replaced: {}", step_, problem);
  }
  return problem.empty();
}

void RoundDifferences::write_own() {
  // A run that was killed after it wrote its differences computes the same ones again.
  if (!is_written()) {
    write();
  }
}

std::vector<std::int64_t> RoundDifferences::missing() {
  std::vector<std::int64_t> missing;
  present_.clear();
  for (std::int64_t island = 0; island < job_.setup.plan.parts; ++island) {
    const fs::path directory = committed_at(island_root(job_.directory, island), step_);
    std::error_code error;
    const auto bad = bad_.find(island);
    const bool is_there =
        !directory.empty() &&
        (bad == bad_.end() || bad->second != fs::last_write_time(directory, error));
    (is_there ? present_ : missing).push_back(island);
  }
  return missing;
}

bool RoundDifferences::verify() {
  comm::Communicator& world = job_.world();
  Log& log = job_.setup.log;
  present_.resize(static_cast<std::size_t>(comm::broadcast_from(world, std::ssize(present_))));
  world.broadcast(comm::payload_of(std::span(present_)), 0);
  bool good = true;
  for (const std::int64_t island : present_) {
    const std::string problem = opened_.contains(island) ? "" : open(island);
    if (problem.empty()) {
      continue;
    }
    good = false;
    if (island != job_.island) {
      log.warn(
          "the difference of island {} after step {} is left out unless it is written again: {}",
          island, step_, problem);
      comm::agree_on_first(world, [&] {
        std::error_code error;
        bad_[island] =
            fs::last_write_time(committed_at(island_root(job_.directory, island), step_), error);
      });
    } else if (std::exchange(rewrote_, true)) {
      throw comm::AgreedError(
          ExitCode::kCheckpoint,
          fmt::format("the difference of this island was written again and is still bad: {}; check "
                      "the file system of {}",
                      problem, job_.directory.string()));
    } else {
      log.warn("the difference of this island after step {} is written again: {}", step_, problem);
      write();
    }
  }
  return good;
}

void RoundDifferences::average() {
  comm::agree(job_.world(), [&] {
    job_.outer.average(present_, [&](std::size_t at, const optim::OuterOptimizer::Piece& piece,
                                     const TensorView& into) {
      job_.state.read(opened_.at(present_[at]), name_of(piece), piece.owned, into);
    });
  });
}

}  // namespace strata::train
