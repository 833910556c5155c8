#include "strata/train/run_view.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/metrics.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// What follows `before` in a text; nothing where the text does not hold it.
std::optional<std::string_view> after(std::string_view text, std::string_view before) {
  const std::size_t at = text.find(before);
  return at == std::string_view::npos ? std::nullopt
                                      : std::optional(text.substr(at + before.size()));
}

/// The number that a text begins with; -1 where it begins with none.
std::int64_t leading_count(std::string_view text) {
  std::int64_t count = -1;
  return parse_int64(text.substr(0, text.find_first_not_of("0123456789")), count) ? count : -1;
}

/// Sizes as bytes_text() writes them, in order: "4.10 MiB  12 B".
std::vector<std::int64_t> sizes_in(std::string_view text) {
  static constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  const std::vector<std::string> words = split_words(text, " ,");
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const auto* const unit = std::ranges::find(kUnits, words[i + 1]);
    double value = 0.0;
    if (unit != kUnits.end() && parse_double(words[i], value) && value >= 0.0) {
      sizes.push_back(
          std::llround(std::ldexp(value, static_cast<int>(10 * (unit - kUnits.begin())))));
    }
  }
  return sizes;
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

RunView::RunView(const fs::path& directory)
    : directory_(directory),
      name_((directory.has_filename() ? directory : directory.parent_path()).filename().string()),
      metrics_file_(directory / "metrics.jsonl", ExitCode::kData),
      log_file_(directory / "log.txt", ExitCode::kData) {
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
  metrics_file_.read([this] { metrics_.clear(); },
                     [this](std::string_view line) { add_metrics(line); });
  log_file_.read([this] { log_ = {}; }, [this](std::string_view line) { add_log(line); });
  read_config();
  read_checkpoint();
  read_state();
}

void RunView::add_metrics(std::string_view text) {
  const std::optional<MetricsLine> line = metrics_line_of(text);
  if (!line || line->kind.empty()) {
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

void RunView::add_log(std::string_view line) {
  // "2026-01-31 12:00:00 text"; further lines of a message have no time.
  constexpr std::size_t kTime = 19;
  const bool begins = line.size() > kTime && line[4] == '-' && line[kTime - 3] == ':';
  const std::string time(begins ? line.substr(0, kTime) : "");
  const std::string_view text = begins ? line.substr(kTime + 1) : line;
  if (log_.began.empty()) {
    log_.began = time;
  }
  if (text.starts_with("grid: ")) {
    ++log_.starts;
    log_.grid = text.substr(6);
    log_.slow.clear();
    log_.stopped.clear();
    log_.finished.clear();
    log_.planned_bytes = 0;
  } else if (text.find("memory per rank") < 6) {
    memory_title_ = text;
  } else if (text.starts_with("total ") && !memory_title_.empty()) {
    const std::vector<std::int64_t> sizes = sizes_in(text);
    if (!sizes.empty() && !memory_title_.starts_with("host")) {
      log_.planned_bytes = std::ranges::max(sizes);
      log_.planned_on_gpu = memory_title_.starts_with("GPU");
    }
    memory_title_.clear();
  } else if (begins && text.starts_with("strata ")) {
    log_.version = text;
  } else if (begins && text.substr(0, 40).find(" on ") < 12 &&
             text.find(" rank") != std::string_view::npos && !text.starts_with("warning")) {
    log_.environment = text;
  } else if (const auto peak = after(text, "peak memory of a rank: ")) {
    const std::vector<std::int64_t> sizes = sizes_in(*peak);
    log_.peak_bytes = sizes.empty() ? 0 : sizes.front();
    log_.mapped_bytes = sizes.size() < 2 ? 0 : sizes[1];
  } else if (text.starts_with("continuing after step ")) {
    log_.continued.push_back(time + " " + std::string(text));
  } else if (begins && text.starts_with("finished after step ")) {
    log_.finished = text;
  } else if (begins && text.starts_with("stopped ")) {
    log_.stopped = text;
  } else if (text.starts_with("warning: ")) {
    const std::string warning(text.substr(9));
    if (const auto rank = after(text, "warning: rank ");
        rank && rank->find(" computes for ") != std::string_view::npos) {
      log_.slow[leading_count(*rank)] = warning.substr(0, warning.find(": a slow"));
    }
    constexpr std::size_t kMostWarnings = 50;
    if (std::ranges::find(log_.warnings, warning) == log_.warnings.end() &&
        log_.warnings.size() < kMostWarnings) {
      log_.warnings.push_back(warning);
    }
  }
}

void RunView::read_config() {
  constexpr std::size_t kMostBytes = std::size_t{1} << 24;
  settings_.clear();
  for (IniLine& line : ini_lines(
           io::read_text(directory_ / "config.ini", ExitCode::kData, kMostBytes).value_or(""))) {
    constexpr std::string_view kDerived = "derived: ";
    if (line.comment.starts_with(kDerived)) {
      line.value = line.comment.substr(kDerived.size());
    }
    if (!settings_.empty() && settings_.back().key == line.key) {
      settings_.back().value += ", " + line.value;
    } else {
      settings_.push_back(std::move(line));
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
    const bool early = !log_.finished.empty();
    // An evaluation follows the save; without test data the newest checkpoint may be older.
    const double last = setting("data.test").empty() ? metrics("train").last("step")
                                                     : metrics("evaluate").last("step");
    const bool finished =
        early || (total_steps() > 0 && last >= static_cast<double>(total_steps()));
    state_ = {.kind = finished ? RunState::Kind::kFinished : RunState::Kind::kStopped,
              .text = early                  ? log_.finished
                      : finished             ? "finished"
                      : log_.stopped.empty() ? fmt::format("ended after step {}", step())
                                             : log_.stopped};
    return;
  }
  // The clocks of this node and of the file server may differ: what counts is a change seen here.
  if (!beat_.empty() && beat_ != lock->beat) {
    beat_changed_ = now_seconds();
  }
  beat_ = lock->beat;
  const double age = beat_changed_ ? now_seconds() - *beat_changed_ : lock->age_seconds;
  const bool gone = lock->state == io::SeenLock::Owner::kGone ||
                    (lock->state == io::SeenLock::Owner::kUnknown && age > options.stale_seconds);
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
