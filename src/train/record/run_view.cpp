#include "strata/train/run_view.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/config_changes.hpp"
#include "strata/train/metrics.hpp"

#include "record/stragglers.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Units: seconds since 1970. Empty before 1970 and after about the year 8300.
std::string time_text(double seconds) {
  constexpr double kMost = 2e11;
  return seconds >= 0.0 && seconds < kMost
             ? fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::llround(seconds)))
             : "";
}

}  // namespace

std::span<const double> MetricsTable::column(std::string_view key) const {
  const auto found = std::ranges::find(keys, key);
  return found == keys.end() ? std::span<const double>()
                             : columns[static_cast<std::size_t>(found - keys.begin())];
}

double MetricsTable::last(std::string_view key) const {
  const std::span<const double> values = column(key);
  return values.empty() ? kNone : values.back();
}

double MetricsTable::steps_of(std::size_t record) const {
  const std::span<const double> steps = column(kStepsKey);
  return record < steps.size() && steps[record] >= 1.0 ? steps[record] : 1.0;
}

MetricsTable::Sum MetricsTable::sum(std::string_view key, std::size_t most) const {
  const std::span<const double> values = column(key);
  Sum sum;
  for (std::size_t i = records - std::min(most, records); i < values.size(); ++i) {
    if (std::isfinite(values[i])) {
      const double steps = steps_of(i);
      sum.total += steps * values[i];
      sum.steps += steps;
    }
  }
  return sum;
}

RunView::RunView(const fs::path& directory)
    : directory_(directory),
      name_((directory.has_filename() ? directory : directory.parent_path()).filename().string()),
      metrics_file_(directory / "metrics.jsonl", ExitCode::kData) {
  if (name_.empty() || name_ == "." || name_ == "..") {
    std::error_code ignored;
    name_ = fs::weakly_canonical(directory, ignored).filename().string();
  }
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  const auto holds = [&](const char* file) {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(directory / file, ignored));
  };
  if (!fs::is_directory(status) ||
      !(holds("config.ini") || holds("metrics.jsonl") || holds("run.lock"))) {
    fail(ExitCode::kUsage,
         "{} {}; give the directory that strata train wrote to (run.dir), which holds config.ini "
         "and metrics.jsonl",
         printable_lines(directory.string()),
         status.type() == fs::file_type::not_found ? "does not exist"
         : !fs::exists(status)                     ? "cannot be opened: " + error.message()
         : fs::is_directory(status)                ? "is not the directory of a run"
                                                   : "is not a directory");
  }
  update();
}

void RunView::update() {
  metrics_file_.read(
      [this] {
        metrics_.clear();
        history_ = {};
        facts_.clear();
      },
      [this](std::string_view line) { add_metrics(line); });
  read_config();
  read_checkpoint();
  read_state();
}

void RunView::add_metrics(std::string_view text) {
  const std::optional<MetricsLine> line = metrics_line_of(text);
  if (!line || line->kind.empty()) {
    return;
  }
  if (line->kind == kRunKind) {
    add_facts(text);
    return;
  }
  MetricsTable& table = metrics_[line->kind];
  if (table.keys.empty()) {
    table.keys.emplace_back("step");
    table.columns.emplace_back();
  }
  // A key that the record lacks keeps NaN.
  for (std::vector<double>& column : table.columns) {
    column.push_back(kNone);
  }
  ++table.records;
  for (const auto& [key, value] : line->numbers) {
    const auto found = std::ranges::find(table.keys, key);
    const auto at = static_cast<std::size_t>(found - table.keys.begin());
    if (found == table.keys.end()) {
      if (table.keys.size() == kMostMetrics) {
        table.has_more = true;
        continue;
      }
      table.keys.push_back(key);
      table.columns.emplace_back(table.records, kNone);
    }
    table.columns[at].back() = value;
  }
}

void RunView::add_facts(std::string_view text) {
  const nlohmann::json record = io::parse_json(text).value();
  std::map<std::string, std::string> facts;
  for (const auto& [key, value] : record.items()) {
    facts[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  const auto number = [&](const char* key) {
    double value = 0.0;
    return parse_double(facts[key], value) ? value : 0.0;
  };
  const std::optional<RunEvent> event = enum_from_name<RunEvent>(facts["event"]);
  if (event == RunEvent::kWarning) {
    constexpr std::size_t kMostWarnings = 50;
    std::vector<std::string>& warnings = history_.warnings;
    if (std::ranges::find(warnings, facts["text"]) == warnings.end() &&
        warnings.size() < kMostWarnings) {
      warnings.push_back(facts["text"]);
    }
  } else if (event == RunEvent::kSlow) {
    const SlowRank slow{.rank = io::integer_in(record.value("rank", nlohmann::json())).value_or(-1),
                        .seconds = number("seconds"),
                        .peers_seconds = number("peers_seconds")};
    history_.slow[slow.rank] = slow.text();
  } else if (event) {
    if (event == RunEvent::kStart) {
      const std::string time = time_text(number("time"));
      history_.began = history_.starts == 0 ? time : history_.began;
      ++history_.starts;
      history_.slow.clear();
      facts_.clear();
      if (!facts["checkpoint"].empty()) {
        history_.continued.push_back(fmt::format("{} continuing after step {} from {}", time,
                                                 facts["step"], facts["checkpoint"]));
      }
    }
    facts.merge(facts_);
    facts_ = std::move(facts);
  }
}

void RunView::read_config() {
  constexpr std::size_t kMostBytes = std::size_t{1} << 24;
  settings_ = settings_in(
      io::read_text(directory_ / "config.ini", ExitCode::kData, kMostBytes).value_or(""));
  for (IniLine& setting : settings_) {
    constexpr std::string_view kDerived = "derived: ";
    if (setting.comment.starts_with(kDerived)) {
      setting.value = setting.comment.substr(kDerived.size());
    }
  }
}

void RunView::read_checkpoint() {
  checkpoint_.reset();
  const std::vector<io::CheckpointEntry> all = io::list_checkpoints(directory_ / "checkpoints");
  if (all.empty()) {
    return;
  }
  std::error_code error;
  const fs::file_time_type written =
      fs::last_write_time(all.front().directory / "master.h5", error);
  const auto age = fs::file_time_type::clock::now() - written;
  checkpoint_ = CheckpointAge{
      .step = all.front().step,
      .seconds = error ? kNone : std::max(0.0, std::chrono::duration<double>(age).count())};
}

void RunView::read_state() {
  const io::LockOptions options;
  const std::optional<io::SeenLock> lock = io::look_at_lock(directory_, options);
  if (!lock) {
    const bool early = !fact("finished").empty();
    // An evaluation follows the save; without test data the newest checkpoint may be older.
    const double last = setting("data.test").empty() ? metrics("train").last("step")
                                                     : metrics("evaluate").last("step");
    const bool finished =
        early || (total_steps() > 0 && last >= static_cast<double>(total_steps()));
    state_ = {.kind = finished ? RunState::Kind::kFinished : RunState::Kind::kStopped,
              .text = early                     ? fact("finished")
                      : finished                ? "finished"
                      : fact("stopped").empty() ? fmt::format("ended after step {}", step())
                                                : fact("stopped")};
    return;
  }
  // The clocks of this node and of the file server may differ: what counts is a change seen here.
  if (!beat_.empty() && beat_ != lock->beat) {
    beat_changed_ = now_seconds();
  }
  beat_ = lock->beat;
  const double age = beat_changed_ ? now_seconds() - *beat_changed_ : lock->age_seconds;
  const bool gone = lock->state == io::OwnerState::kGone ||
                    (lock->state == io::OwnerState::kUnknown && age > options.stale_seconds);
  state_ = {
      .kind = gone ? RunState::Kind::kSilent : RunState::Kind::kRunning,
      .text = gone ? fmt::format("lost its heartbeat {} ago ({})", duration_text(age), lock->owner)
                   : fmt::format("running ({})", lock->owner)};
}

const MetricsTable& RunView::metrics(const std::string& kind) const {
  static const MetricsTable kEmpty;
  const auto found = metrics_.find(kind);
  return found == metrics_.end() ? kEmpty : found->second;
}

std::string RunView::fact(const std::string& key) const {
  const auto found = facts_.find(key);
  return found == facts_.end() ? "" : found->second;
}

std::string RunView::setting(std::string_view key) const {
  const auto found = std::ranges::find(settings_, key, &IniLine::key);
  return found == settings_.end() ? "" : found->value;
}

std::int64_t RunView::total_steps() const {
  std::int64_t steps = 0;
  return parse_int64(setting("train.steps"), steps) ? steps : 0;
}

std::int64_t RunView::step() const {
  const double last = metrics("train").last("step");
  constexpr double kMost = 9e18;
  return std::isfinite(last) ? std::llround(std::clamp(last, -kMost, kMost)) : 0;
}

}  // namespace strata::train
