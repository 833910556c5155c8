#include "commands/run/sweep.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/ini_lines.hpp"
#include "strata/core/random.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/evaluation_history.hpp"
#include "strata/train/run_view.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostRuns = 10'000;
constexpr std::int64_t kMostCombinations = std::int64_t{1} << 40;
constexpr const char* kFormat = "strata-sweep";
// File systems take names of 255 bytes; a hash and ".out" follow.
constexpr std::size_t kLongestName = 200;

std::string last_part(const std::string& key) {
  return key.substr(key.find('.') + 1);
}

/// Keys without their section, where they stay different.
std::vector<std::string> short_keys(const std::vector<SweptSetting>& swept) {
  std::vector<std::string> keys;
  for (const SweptSetting& setting : swept) {
    const auto same = std::ranges::count_if(swept, [&](const SweptSetting& other) {
      return last_part(other.key) == last_part(setting.key);
    });
    keys.push_back(same > 1 ? setting.key : last_part(setting.key));
  }
  return keys;
}

std::int64_t combinations_of(const Sweep& sweep) {
  std::int64_t count = 1;
  for (const SweptSetting& setting : sweep.swept) {
    count *= std::ssize(setting.values);
    if (count > kMostCombinations) {
      fail(ExitCode::kUsage, "the sweep has more than {} combinations; sweep fewer settings",
           count_text(kMostCombinations));
    }
  }
  return count;
}

std::string description_of(const Sweep& sweep) {
  std::string text;
  for (const SweptSetting& setting : sweep.swept) {
    text += fmt::format("{}--set {}={}", text.empty() ? "" : " ", setting.key,
                        fmt::join(setting.values, ","));
  }
  return text +
         (sweep.random > 0 ? fmt::format(" --random={} --seed={}", sweep.random, sweep.seed) : "");
}

std::string text_of(const Sweep& sweep) {
  nlohmann::ordered_json swept = nlohmann::ordered_json::object();
  for (const SweptSetting& setting : sweep.swept) {
    swept[setting.key] = setting.values;
  }
  const nlohmann::ordered_json document{{"format", kFormat},  {"version", 1},
                                        {"set", swept},       {"random", sweep.random},
                                        {"seed", sweep.seed}, {"config", sweep.config}};
  return document.dump(1) + "\n";
}

/// The first setting in which two complete configs differ, apart from where and how they run; empty
/// where there is none.
std::string difference_of(const std::string& there, const std::string& here) {
  const auto values_of = [](const std::string& config) {
    std::map<std::string, std::vector<std::string>> values;  // layers have several
    for (const IniLine& line : ini_lines(config)) {
      values[line.key].push_back(line.value);
    }
    return values;
  };
  auto values = values_of(there);
  for (const auto& [key, value] : values_of(here)) {
    if (!key.starts_with("run.") && !key.starts_with("parallel.") && values[key] != value) {
      return fmt::format("{} is \"{}\" there and \"{}\" here", key, fmt::join(values[key], ";"),
                         fmt::join(value, ";"));
    }
  }
  return "";
}

std::string value_text(double value, config::Best by) {
  return by == config::Best::kAccuracy ? fmt::format("{:.2f} %", 100.0 * value)
                                       : number_text(value);
}

config::Best compared_by(const std::string& config) {
  for (const IniLine& line : ini_lines(config)) {
    if (line.key == "checkpoint.best" && line.value == name_of(config::Best::kAccuracy)) {
      return config::Best::kAccuracy;
    }
  }
  return config::Best::kLoss;
}

}  // namespace

std::string in_name(const std::string& text) {
  std::string name = text;
  for (char& letter : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
                       std::string_view("._+-").find(letter) != std::string_view::npos;
    letter = plain ? letter : '-';
  }
  return name;
}

SweptSetting swept_setting_of(const std::string& text) {
  const std::size_t equals = std::min(text.find('='), text.size());
  SweptSetting setting{.key = text.substr(0, equals), .values = {}};
  if (equals + 1 >= text.size()) {
    fail(ExitCode::kUsage,
         "--set {} has no values; give them as in --set optimizer.learning_rate=1e-4,3e-4", text);
  }
  // An empty value too, as of a list.
  for (std::size_t begin = equals + 1, end = 0; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    setting.values.push_back(text.substr(begin, end - begin));
  }
  if (std::set<std::string>(setting.values.begin(), setting.values.end()).size() !=
      setting.values.size()) {
    fail(ExitCode::kUsage, "--set {} has a value twice; give each once", text);
  }
  if (setting.key == "run.dir" || setting.key == "run.resume") {
    fail(ExitCode::kUsage,
         "--set {}: the sweep chooses run.dir and run.resume of its runs; sweep "
         "other settings",
         setting.key);
  }
  return setting;
}

std::vector<SweepRun> runs_of(const Sweep& sweep) {
  const std::int64_t combinations = combinations_of(sweep);
  const std::int64_t count = sweep.random > 0 ? sweep.random : combinations;
  if (count > combinations) {
    fail(ExitCode::kUsage,
         "--random is {}, but the settings have {} combinations; give fewer runs or more values",
         count, combinations);
  }
  if (count > kMostRuns) {
    fail(ExitCode::kUsage, "the sweep has {} runs, at most {} are possible; give --random=N",
         count_text(count), count_text(kMostRuns));
  }
  const Permutation order(RandomStream(sweep.seed, RandomPurpose::kSample, subject_of("sweep")),
                          combinations);
  const std::vector<std::string> keys = short_keys(sweep.swept);
  std::map<std::string, int> names;
  std::vector<SweepRun> runs;
  for (std::int64_t number = 0; number < count; ++number) {
    std::int64_t left = sweep.random > 0 ? order(number) : number;
    SweepRun run;
    run.values.resize(sweep.swept.size());
    for (std::size_t i = sweep.swept.size(); i-- > 0;) {
      const std::vector<std::string>& values = sweep.swept[i].values;
      run.values[i] = values[static_cast<std::size_t>(left % std::ssize(values))];
      left /= std::ssize(values);
    }
    for (std::size_t i = 0; i < sweep.swept.size(); ++i) {
      run.name += fmt::format("{}{}={}", i == 0 ? "" : "_", keys[i], in_name(run.values[i]));
      run.settings.push_back(fmt::format("--{}={}", sweep.swept[i].key, run.values[i]));
    }
    if (run.name.size() > kLongestName) {
      run.name =
          fmt::format("{}~{}", run.name.substr(0, kLongestName), hash_text(hash_of(run.name)));
    }
    // Values may differ only in letters that names do not have.
    if (const int same = names[run.name]++; same > 0) {
      run.name += fmt::format("~{}", same);
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

fs::path sweep_file(const fs::path& directory) {
  return directory / "sweep.json";
}

void open_sweep_directory(const fs::path& directory, const Sweep& sweep) {
  std::error_code error;
  if (!fs::exists(sweep_file(directory), error)) {
    if (fs::exists(directory / "config.ini", error)) {
      fail(ExitCode::kUsage, "{} holds a run; choose another --dir", directory.string());
    }
    if (io::create_text(sweep_file(directory), text_of(sweep))) {
      return;
    }
  }
  const Sweep there = sweep_in(directory);
  if (description_of(there) != description_of(sweep)) {
    fail(ExitCode::kUsage, "{} holds another sweep, {}; choose another --dir", directory.string(),
         description_of(there));
  }
  const std::string difference = difference_of(there.config, sweep.config);
  if (!difference.empty()) {
    fail(ExitCode::kUsage,
         "{} holds a sweep with another config: {}; set it back, or choose another --dir",
         directory.string(), difference);
  }
}

Sweep sweep_in(const fs::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 26;
  const fs::path path = sweep_file(directory);
  const auto text = io::read_text(path, ExitCode::kUsage, kMostBytes);
  if (!text) {
    fail(ExitCode::kUsage, "{} holds no sweep: there is no sweep.json", directory.string());
  }
  try {
    const nlohmann::ordered_json document = nlohmann::ordered_json::parse(*text);
    if (document.at("format") != kFormat || document.at("version") != 1) {
      fail(ExitCode::kUsage, "it is of another format or version");
    }
    Sweep sweep{.config = document.at("config"), .swept = {}};
    sweep.random = io::integer_of(document.at("random"));
    sweep.seed = static_cast<std::uint64_t>(io::integer_of(document.at("seed")));
    for (const auto& [key, values] : document.at("set").items()) {
      sweep.swept.push_back({.key = key, .values = values});
      if (sweep.swept.back().values.empty()) {
        fail(ExitCode::kUsage, "{} has no values", key);
      }
    }
    return sweep;
  } catch (const std::exception& error) {
    fail(ExitCode::kUsage, "{} is damaged ({}); choose another --dir, or delete it to begin anew",
         path.string(), error.what());
  }
}

SweepResult result_of(const fs::path& run_directory, config::Best by) {
  std::error_code error;
  if (!fs::exists(run_directory / "config.ini", error)) {
    return {};
  }
  const train::RunView run(run_directory);
  SweepResult result{.step = run.step(),
                     .steps = run.total_steps(),
                     .seconds = run.metrics("train").sum("step_seconds").total,
                     .finished = run.state().kind == train::RunState::Kind::kFinished};
  if (const auto best = train::EvaluationHistory(run_directory / "metrics.jsonl", by).best()) {
    result.evaluated = true;
    result.best = by == config::Best::kAccuracy ? best->accuracy.value_or(0.0) : best->loss;
    result.best_step = best->step;
  }
  return result;
}

std::vector<fs::path> begun_runs(const fs::path& directory) {
  std::vector<SweepRun> runs = runs_of(sweep_in(directory));
  std::erase_if(runs, [&](const SweepRun& run) {
    std::error_code error;
    return !fs::exists(directory / run.name / "config.ini", error);
  });
  if (runs.empty()) {
    fail(ExitCode::kUsage, "no run of the sweep in {} has begun; start it with strata sweep",
         directory.string());
  }
  const auto is_before = [](const std::string& left, const std::string& right) {
    double first = 0.0;
    double second = 0.0;
    const bool left_is_number = parse_double(left, first);
    const bool right_is_number = parse_double(right, second);
    if (left_is_number != right_is_number) {
      return left_is_number;  // numbers come first
    }
    return left_is_number ? first < second : left < right;
  };
  std::ranges::stable_sort(runs, [&](const SweepRun& left, const SweepRun& right) {
    return std::ranges::lexicographical_compare(left.values, right.values, is_before);
  });
  std::vector<fs::path> directories(runs.size());
  std::ranges::transform(runs, directories.begin(),
                         [&](const SweepRun& run) { return directory / run.name; });
  return directories;
}

std::string sweep_table(const Sweep& sweep, const fs::path& directory) {
  const config::Best by = compared_by(sweep.config);
  struct Row {
    SweepRun run;
    SweepResult result;
  };
  std::vector<Row> rows;
  for (SweepRun& run : runs_of(sweep)) {
    const SweepResult result = result_of(directory / run.name, by);
    rows.push_back({.run = std::move(run), .result = result});
  }
  std::ranges::stable_sort(rows, [&](const Row& left, const Row& right) {
    if (left.result.evaluated != right.result.evaluated) {
      return left.result.evaluated;
    }
    return by == config::Best::kAccuracy ? left.result.best > right.result.best
                                         : left.result.best < right.result.best;
  });
  constexpr std::size_t kWidestCell = 40;
  std::vector<std::vector<std::string>> cells{{"#"}};
  for (const std::string& key : short_keys(sweep.swept)) {
    cells[0].push_back(key);
  }
  cells[0].insert(cells[0].end(),
                  {by == config::Best::kAccuracy ? "best test accuracy" : "best test loss",
                   "at step", "trained", "time", "state"});
  for (const auto& [run, result] : rows) {
    std::vector<std::string> row{std::to_string(cells.size())};
    for (const std::string& value : run.values) {
      row.push_back(printable(value, kWidestCell));
    }
    const bool begun = result.steps > 0;
    row.push_back(result.evaluated ? value_text(result.best, by) : "-");
    row.push_back(result.evaluated ? std::to_string(result.best_step) : "-");
    row.push_back(begun ? fmt::format("{} of {}", result.step, result.steps) : "-");
    row.push_back(begun ? duration_text(result.seconds) : "-");
    row.emplace_back(result.finished ? "finished" : begun ? "unfinished" : "not begun");
    cells.push_back(std::move(row));
  }
  return table_text(cells);
}

}  // namespace strata::app
