#include "loop/step_receipts.hpp"

#include <filesystem>
#include <limits>

#include "strata/comm/values.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::train {

void StepReceipts::open(std::int64_t step) {
  if (setup_.plan.config.run.receipts == 0) {
    return;
  }
  const Digest tensors = state_digest();
  comm::agree_on_first(*setup_.groups.world, [&] {
    // A replay has nothing to add, and a state that is dropped is not the checkpoint's.
    const bool continues =
        setup_.checkpoint != nullptr && has_state(setup_.plan, *setup_.checkpoint) && !is_replay();
    writer_.emplace(std::filesystem::path(setup_.plan.config.run.dir) / kReceiptsFile, step,
                    tensors, start_facts(setup_.plan, setup_.environment),
                    continues ? setup_.checkpoint->directory() : std::filesystem::path(),
                    is_replay() ? io::Syncing::kOff : io::Syncing::kOn);
  });
  saves_.write_receipts(writer_ ? &*writer_ : nullptr);
}

void StepReceipts::write(const StepResult& result) {
  if (!writer_) {
    return;
  }
  writer_->write({.step = result.step,
                  .loss = result.summary.loss,
                  .grad_norm = result.summary.grad_norm,
                  .skipped = result.update == StepResult::Update::kSkipped,
                  .samples = samples_hash(setup_.plan, setup_.train_data, result.step),
                  .digests = result.summary.digests});
  if (writer_->failed() && !warned_) {
    warned_ = true;
    setup_.log.warn(
        "{} cannot be written, so steps from {} on have no receipts; check the disk's free space",
        kReceiptsFile, result.step);
  }
}

bool StepReceipts::is_replay() const {
  return setup_.last_step != std::numeric_limits<std::int64_t>::max();
}

void StepReceipts::end_replay(std::int64_t step) {
  state_.drain();  // the messages of the last update, whose memory goes with the trainer
  if (setup_.digests_end) {
    const Digest tensors = state_digest();
    if (writer_) {
      writer_->write(SaveReceipt{.step = step, .tensors = tensors, .files = ""});
    }
  }
  comm::agree_on_first(*setup_.groups.world, [&] {
    if (writer_ && writer_->failed()) {
      fail(ExitCode::kUsage,
           "{} of the replay cannot be written in {}: it has no room left; set TMPDIR to a "
           "directory with room",
           kReceiptsFile, setup_.plan.config.run.dir);
    }
  });
}

Digest StepReceipts::state_digest() {
  state_.drain();
  return saves_.state_digest();
}

}  // namespace strata::train
