#include "loop/saves.hpp"

#include <nlohmann/json.hpp>

#include "strata/core/clock.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::train {

void Saves::open(MetricsFile* metrics, const io::Tokenizer* tokenizer) {
  metrics_ = metrics;
  saved_step_ = setup_.checkpoint != nullptr ? setup_.checkpoint->step() : -1;
  writer_.emplace(
      setup_.plan, rank_, setup_.groups,
      [this](const device::Buffer& memory) { return replication_.snapshot(memory); },
      RunRecord{.config_text = setup_.config_text,
                .texts = setup_.checkpoint != nullptr ? model_texts(*setup_.checkpoint)
                         : setup_.initial != nullptr  ? initial_texts(setup_.plan, *setup_.initial)
                                                      : ModelTexts(),
                .former_grids = setup_.checkpoint != nullptr
                                    ? former_grids(setup_.plan, *setup_.checkpoint)
                                    : nlohmann::json::array(),
                .tokenizer = tokenizer,
                .lock = setup_.lock,
                .further = [this] { return replication_.record(); }},
      setup_.log);
}

void Saves::save(std::int64_t step, std::int64_t updates, OnFailure on_failure) {
  if (has(step) && saved_updates_ == updates) {
    return;
  }
  saved_updates_ = updates;
  const PhaseMark phase(*setup_.groups.world, comm::Phase::kSave);
  finish();  // best_step() lists committed checkpoints
  if (clock_) {
    clock_->save_began(now_seconds());
  }
  state_.drain();
  if (metrics_ != nullptr) {
    metrics_->sync();
  }
  if (receipts_ != nullptr && !receipts_->sync()) {
    setup_.log.warn("{} could not be synced, so a crash of this node may take its last lines",
                    kReceiptsFile);
  }
  replication_.require_good();
  writer_->begin(step, on_failure, evaluation_.best_step(step));
  if (on_failure == OnFailure::kThrow ||
      setup_.plan.config.checkpoint.background == config::Switch::kOff ||
      plan::replication_of(setup_.plan).traits(setup_.plan).saves_at_once) {
    writer_->finish();
  }
  saved_step_ = step;
  // Stalls outside steps do not count.
  static_cast<void>(setup_.groups.engine->take_device_waits());
}

void Saves::keep(std::int64_t step) {
  if (metrics_ != nullptr) {
    metrics_->sync();
  }
  tidy_checkpoints(setup_.plan, *setup_.groups.world, step, evaluation_.best_step(step),
                   setup_.log);
}

void Saves::advance() {
  if (writer_->is_saving()) {
    writer_->advance();
  }
}

void Saves::finish() {
  writer_->finish();
  report();
}

void Saves::finish_after_failure() {
  try {
    if (writer_) {
      const PhaseMark phase(*setup_.groups.world, comm::Phase::kSave);
      finish();
    }
  } catch (const comm::AgreedError& error) {
    setup_.log.warn("{}", error.what());
  }
}

void Saves::report() {
  if (clock_ && writer_->has_failed()) {
    clock_->save_failed(now_seconds());
  } else if (clock_ && !writer_->is_saving()) {
    clock_->save_ended(now_seconds());
  }
  const std::optional<CheckpointRecord> saved = writer_->take_report();
  if (saved && metrics_ != nullptr) {
    metrics_->write(*saved);
  }
  if (saved && saved->receipt && receipts_ != nullptr) {
    receipts_->write(*saved->receipt);
  }
}

}  // namespace strata::train
