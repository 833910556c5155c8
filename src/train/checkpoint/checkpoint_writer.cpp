#include "strata/train/checkpoint_writer.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/blocked_signals.hpp"
#include "strata/core/clock.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/receipts.hpp"

namespace strata::train {
namespace {

/// Throws: Error(kUsage) where another process has taken over the run directory.
void require_locked(const RunRecord& run) {
  if (run.lock != nullptr) {
    run.lock->require_held();
  }
}

/// Runs a part of a save. A file system that fails now fails the save and not the run.
template <typename Function>
void as_part_of_save(Function&& part) {
  try {
    part();
  } catch (const FileSystemError& error) {
    if (is_exhaustion(error)) {
      const Failure failure = failure_of(error);
      throw Error(failure.code, failure.message);
    }
    throw Error(error.code(), error.what());
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(const plan::Plan& plan, const plan::RankPlan& rank,
                                   comm::Groups& groups, Snapshot snapshot, RunRecord record,
                                   Log& log)
    : plan_(plan),
      world_(*groups.world),
      snapshot_(std::move(snapshot)),
      record_(std::move(record)),
      log_(log),
      memory_(device::Device::cpu(), plan::checkpoint_copy_bytes(plan, rank)) {}

Digest CheckpointWriter::state_digest() {
  device::Stream stream(device::Device::cpu());
  Digest sum;
  for (const Digest& digest : comm::gathered(world_, digest_of(snapshot_(memory_), stream))) {
    sum += digest;
  }
  return sum;
}

std::string CheckpointWriter::result() {
  const comm::WaitMark mark(world_.activity(), comm::WaitKind::kFiles,
                            fmt::format("write the checkpoint of step {} to files", step_));
  return thread_.get();
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.valid()) {
    thread_.wait();
  }
}

bool CheckpointWriter::is_writing() const {
  return thread_.valid() && thread_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

template <typename Function>
void CheckpointWriter::attempt(Function&& phase) {
  const FileTimeout timeout(world_);
  const double before = now_seconds();
  try {
    phase();
    save_.blocked_seconds += now_seconds() - before;
  } catch (const comm::AgreedError& error) {
    if (thread_.valid()) {
      thread_.wait();
      thread_ = {};
    }
    save_.bytes = 0;
    phase_ = Phase::kIdle;
    failed_ = true;
    if (!directory_.empty()) {
      // Only its own: another process may have taken over the run directory and save this step.
      std::error_code ignored;  // the next pruning deletes the rest
      std::filesystem::remove_all(directory_, ignored);
    }
    if (on_failure_ == OnFailure::kThrow || error.code() == ExitCode::kUsage) {
      throw;
    }
    log_.warn("the checkpoint of step {} is not written, and training goes on: {}", step_,
              error.what());
  }
}

void CheckpointWriter::begin(std::int64_t step, OnFailure on_failure, std::int64_t best_step) {
  finish();
  step_ = step;
  best_step_ = best_step;
  save_ = {.step = step};
  on_failure_ = on_failure;
  failed_ = false;
  directory_.clear();
  attempt([&] { start_parts(); });
}

void CheckpointWriter::advance() {
  attempt([&] {
    if (phase_ == Phase::kParts) {
      start_commit();
    } else {
      end_commit();
    }
  });
  if (!is_saving() && save_.bytes > 0) {
    report_ = save_;
  }
}

void CheckpointWriter::finish() {
  while (is_saving()) {
    advance();
  }
}

void CheckpointWriter::start_parts() {
  const std::string begun = comm::agree_on_first(world_, [&] {
    as_part_of_save([&] {
      require_locked(record_);
      directory_ = io::begin_checkpoint(checkpoint_root(plan_.config), step_);
    });
    return directory_.string();
  });
  slices_ = snapshot_(memory_);
  const BlockedSignals blocked;
  thread_ = std::async(std::launch::async, [this, begun] {
    const double start = now_seconds();
    const io::PartRecord record = io::write_part(begun, world_.rank(), slices_);
    std::string part = io::text_of(record);
    if (plan_.config.run.receipts > 0) {
      device::Stream stream(device::Device::cpu());
      part += fmt::format("\n{}{}", digest_text(digest_of(slices_, stream)),
                          file_sha256(std::filesystem::path(begun) / record.file));
    }
    save_.write_seconds += now_seconds() - start;
    return part;
  });
  phase_ = Phase::kParts;
}

void CheckpointWriter::start_commit() {
  std::vector<std::string> records = comm::agree_texts(world_, [&] {
    std::string mine;
    as_part_of_save([&] { mine = result(); });
    return mine;
  });
  phase_ = Phase::kCommit;
  if (world_.rank() != 0) {
    return;
  }
  const BlockedSignals blocked;
  thread_ = std::async(std::launch::async, [this, records = std::move(records)] {
    const double start = now_seconds();
    std::vector<io::PartRecord> parts;
    parts.reserve(records.size());
    SaveReceipt receipt{.step = step_};
    std::vector<std::pair<std::string, std::string>> files;
    for (const std::string& text : records) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      save_.bytes += parts.emplace_back(io::part_record_of(text.substr(0, end))).bytes;
      if (end < text.size()) {
        receipt.tensors += digest_in(text.substr(end + 1, kDigestDigits));
        files.emplace_back(parts.back().file, text.substr(end + 1 + kDigestDigits));
      }
    }
    if (!files.empty()) {
      receipt.files = files_hash(std::move(files));
      save_.receipt = receipt;
    }
    require_locked(record_);
    io::commit_checkpoint(checkpoint_root(plan_.config), step_, parts,
                          checkpoint_metadata(plan_, record_, step_), record_.tokenizer,
                          [&] { require_locked(record_); });
    std::error_code ignored;
    std::filesystem::remove(unsaved_marker(plan_.config), ignored);
    save_.write_seconds += now_seconds() - start;
    require_locked(record_);
    return prune_warning(plan_, step_, best_step_);
  });
}

void CheckpointWriter::end_commit() {
  std::string warning;
  comm::agree(world_, [&] {
    if (thread_.valid()) {
      as_part_of_save([&] { warning = result(); });
    }
  });
  phase_ = Phase::kIdle;
  if (!warning.empty()) {
    log_.warn("{}", warning);
  }
}

}  // namespace strata::train
