#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/input.hpp"
#include "strata/train/class_counts.hpp"
#include "strata/train/run_view.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/watching/timeline_command.hpp"
#include "drawing/chart.hpp"
#include "drawing/page.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

using Runs = std::vector<train::RunView>;

/// The time account's keys in metrics.jsonl, in the order of bars.
constexpr std::pair<const char*, const char*> kStepParts[] = {
    {"compute_seconds", "compute"},
    {"communication_seconds", "exposed communication"},
    {"bubble_seconds", "bubble"},
    {"data_seconds", "data wait"},
    {"other_seconds", "other"}};

/// Each run's name, or its path where two have the same name.
std::vector<std::string> names_of(const Runs& runs) {
  std::map<std::string, std::int64_t> uses;
  for (const train::RunView& run : runs) {
    ++uses[run.name()];
  }
  std::vector<std::string> names;
  for (const train::RunView& run : runs) {
    names.push_back(uses[run.name()] > 1 ? run.directory().string() : run.name());
  }
  return names;
}

double mean_of(std::span<const double> values) {
  double sum = 0.0;
  double count = 0.0;
  for (const double value : values) {
    sum += std::isfinite(value) ? value : 0.0;
    count += std::isfinite(value) ? 1.0 : 0.0;
  }
  return count > 0.0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

/// A run's name in a label that ends with a figure.
std::string short_name(const std::string& name) {
  constexpr std::size_t kLength = 24;
  return shortened(name, kLength);
}

/// The evaluation with the least loss.
std::string best_text(const train::MetricsTable& tests) {
  const std::span<const double> losses = tests.column("loss");
  const std::span<const double> steps = tests.column("step");
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    best = std::isfinite(losses[i]) && (!best || losses[i] < losses[*best]) ? i : best;
  }
  return best ? fmt::format("{:.6g} (step {:.0f})", losses[*best], steps[*best]) : "";
}

std::string number(double value, const char* unit = "", double factor = 1.0) {
  return std::isfinite(value) ? fmt::format("{:.6g}{}", factor * value, unit) : "";
}

/// Facts about runs, one column each; facts that no run has are left out.
std::string summary(const Runs& runs, const std::vector<std::string>& names) {
  Rows rows{{""}};
  rows.front().insert(rows.front().end(), names.begin(), names.end());
  const auto add = [&](const std::string& fact, auto&& text_of) {
    std::vector<std::string> row{fact};
    for (const train::RunView& run : runs) {
      row.push_back(text_of(run));
    }
    if (std::any_of(row.begin() + 1, row.end(), [](const auto& cell) { return !cell.empty(); })) {
      rows.push_back(std::move(row));
    }
  };
  using Run = const train::RunView&;
  add("state", [](Run run) { return run.state().text; });
  add("steps", [](Run run) {
    return run.total_steps() > 0 ? fmt::format("{} of {}", run.step(), run.total_steps())
                                 : fmt::format("{}", run.step());
  });
  add("training loss, last step",
      [](Run run) { return number(run.metrics("train").last("loss")); });
  add("test loss, last", [](Run run) { return number(run.metrics("evaluate").last("loss")); });
  add("test loss, least", [](Run run) { return best_text(run.metrics("evaluate")); });
  add("accuracy, last",
      [](Run run) { return number(run.metrics("evaluate").last("accuracy"), " %", 100.0); });
  add("perplexity, last",
      [](Run run) { return number(run.metrics("evaluate").last("perplexity")); });
  add("mean time of a step", [](Run run) {
    return number(mean_of(run.metrics("train").column("step_seconds")), " ms", 1e3);
  });
  add("mean MFU",
      [](Run run) { return number(mean_of(run.metrics("train").column("mfu")), " %", 100.0); });
  add("grid", [](Run run) { return run.fact("grid"); });
  add("version and nodes", [](Run run) {
    const std::string version = run.fact("version");
    return version.empty() ? "" : fmt::format("strata {} on {}", version, run.fact("nodes"));
  });
  add("ranks and libraries", [](Run run) { return run.fact("environment"); });
  add("first start", [](Run run) { return run.history().began; });
  add("starts", [](Run run) {
    return run.history().starts > 0 ? fmt::format("{}", run.history().starts) : "";
  });
  add("last checkpoint", [](Run run) {
    return run.checkpoint() ? fmt::format("step {}", run.checkpoint()->step) : "";
  });
  return "<h2>Runs</h2>\n" + html_table(rows);
}

/// The settings whose values differ between runs.
std::string differences(const Runs& runs, const std::vector<std::string>& names) {
  if (runs.size() < 2) {
    return "";
  }
  std::vector<std::string> keys;
  std::map<std::string, std::vector<std::string>> values_of;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const IniLine& line : runs[i].settings()) {
      const auto [values, is_new] = values_of.try_emplace(line.key, runs.size());
      if (is_new) {
        keys.push_back(line.key);
      }
      if (values->second[i].empty()) {
        values->second[i] = line.value;
      }
    }
  }
  Rows rows{{"setting"}};
  rows.front().insert(rows.front().end(), names.begin(), names.end());
  for (const std::string& key : keys) {
    const std::vector<std::string>& values = values_of[key];
    std::vector<std::string> row{key};
    row.insert(row.end(), values.begin(), values.end());
    if (std::ranges::adjacent_find(values, std::ranges::not_equal_to()) != values.end() &&
        key != "run.dir" && key != "run.resume") {
      rows.push_back(std::move(row));
    }
  }
  return "<h2>Differences of the configs</h2>\n" +
         (rows.size() > 1 ? html_table(rows) : "<p>The settings are the same.</p>\n");
}

struct CurveKind {
  const char* file;  ///< name of the SVG file
  const char* title;
  const char* kind;  ///< of records
  const char* key;
  LineChart::Scale scale;
};

constexpr CurveKind kCurves[] = {
    {"training-loss", "Training loss", "train", "loss", LineChart::Scale::kWide},
    {"test-loss", "Test loss", "evaluate", "loss", LineChart::Scale::kWide},
    {"accuracy", "Test accuracy", "evaluate", "accuracy", LineChart::Scale::kRange},
    {"perplexity", "Test perplexity", "evaluate", "perplexity", LineChart::Scale::kWide},
    {"learning-rate", "Learning rate", "train", "learning_rate", LineChart::Scale::kFromZero},
    {"gradient-norm", "Gradient norm", "train", "grad_norm", LineChart::Scale::kWide},
    {"tokens-per-second", "Tokens per second", "train", "tokens_per_second",
     LineChart::Scale::kFromZero},
    {"samples-per-second", "Samples per second", "train", "samples_per_second",
     LineChart::Scale::kFromZero},
    {"mfu", "MFU", "train", "mfu", LineChart::Scale::kFromZero}};

/// Files in a directory whose names begin and end so, sorted; links are not followed.
std::vector<fs::path> files_in(const fs::path& directory, const std::string& first,
                               const std::string& last) {
  constexpr std::size_t kMost = 8;
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entries(directory, error), end; !error && entries != end;
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(first) && name.ends_with(last) &&
        entries->symlink_status(ignored).type() == fs::file_type::regular) {
      found.push_back(entries->path());
    }
  }
  std::ranges::sort(found);
  found.resize(std::min(found.size(), kMost));
  return found;
}

/// Charts for the page, and for files where these are asked for.
class Charts {
 public:
  explicit Charts(fs::path plots) : plots_(std::move(plots)) {
    std::error_code error;
    if (!plots_.empty() && !fs::create_directories(plots_, error) && error) {
      fail(ExitCode::kUsage, "cannot make the directory {}: {}; choose another --plots",
           plots_.string(), error.message());
    }
  }

  template <typename Chart>
  std::string add(const Chart& chart, const std::string& file) const {
    if (!plots_.empty()) {
      write_file((plots_ / (file + ".svg")).string(), svg_of(chart, SvgPlace::kFile));
    }
    return svg_of(chart, SvgPlace::kPage);
  }
  /// A picture that is an SVG of its own.
  std::string add(const std::string& svg, const std::string& title, const std::string& file) const {
    if (!plots_.empty()) {
      write_file((plots_ / (file + ".svg")).string(), svg);
    }
    return html_figure(svg, title);
  }

 private:
  fs::path plots_;
};

std::string curves(const Runs& runs, const std::vector<std::string>& names, const Charts& charts) {
  std::string text;
  const bool tokens = std::ranges::all_of(runs, [](const train::RunView& run) {
    return !run.metrics("train").column("tokens_per_second").empty();
  });
  for (const CurveKind& kind : kCurves) {
    LineChart chart{
        .title = fmt::format("{} by step", kind.title), .scale = kind.scale, .curves = {}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const train::MetricsTable& table = runs[i].metrics(kind.kind);
      const std::span<const double> y = table.column(kind.key);
      if (!y.empty()) {
        chart.curves.push_back({.name = names[i], .colour = i, .x = table.column("step"), .y = y});
      }
    }
    if (!chart.empty() && !(tokens && std::string(kind.key) == "samples_per_second")) {
      text += charts.add(chart, kind.file);
    }
  }
  return html_section("Curves", text, "");
}

std::string times(const Runs& runs, const std::vector<std::string>& names, const Charts& charts) {
  BarChart chart{.title = "Mean time of a step", .names = {}, .bars = {}};
  for (const auto& [key, name] : kStepParts) {
    chart.names.emplace_back(name);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const train::MetricsTable& steps = runs[i].metrics("train");
    const double whole = mean_of(steps.column("step_seconds"));
    if (!(whole > 0.0) || !std::isfinite(whole)) {
      continue;
    }
    BarChart::Bar bar{.label = fmt::format("{}: {:.4g} ms", short_name(names[i]), 1e3 * whole),
                      .parts = {},
                      .inside = {}};
    for (const auto& [key, name] : kStepParts) {
      const double part = mean_of(steps.column(key));
      bar.parts.push_back(std::isfinite(part) ? part : 0.0);
      bar.inside.push_back(fmt::format("{:.1f} %", 100.0 * bar.parts.back() / whole));
    }
    chart.bars.push_back(std::move(bar));
  }
  return chart.bars.empty() ? "" : charts.add(chart, "time");
}

std::string memory(const Runs& runs, const std::vector<std::string>& names, const Charts& charts) {
  BarChart chart{.title = "Memory of the rank with the most",
                 .names = {"planned", "used, without mapped files", "used, mapped files"},
                 .bars = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto bytes = [&](const char* key) {
      std::int64_t count = 0;
      return parse_int64(runs[i].fact(key), count) ? std::max<std::int64_t>(count, 0) : 0;
    };
    const bool gpu = runs[i].fact("device") == name_of(device::DeviceKind::kCuda);
    const std::int64_t planned = bytes("planned_bytes");
    const std::int64_t peak = bytes("peak_bytes");
    const std::int64_t mapped = std::min(bytes("mapped_bytes"), peak);
    if (planned > 0) {
      chart.bars.push_back({.label = fmt::format("{}: planned{} {}", short_name(names[i]),
                                                 gpu ? " on the GPU" : "", bytes_text(planned)),
                            .parts = {static_cast<double>(planned), 0.0, 0.0},
                            .inside = {}});
    }
    if (peak > 0) {
      chart.bars.push_back(
          {.label = fmt::format("{}: used{} {}, of it mapped files {}", short_name(names[i]),
                                gpu ? " on the host" : "", bytes_text(peak), bytes_text(mapped)),
           .parts = {0.0, static_cast<double>(peak - mapped), static_cast<double>(mapped)},
           .inside = {}});
    }
  }
  return chart.bars.empty() ? "" : charts.add(chart, "memory");
}

/// A recorded step of each run that has a timeline.json.
std::string recorded_steps(const Runs& runs, const std::vector<std::string>& names,
                           const Charts& charts) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
  std::string pictures;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const fs::path& file : files_in(runs[i].directory(), "timeline.json", "timeline.json")) {
      std::error_code ignored;
      if (fs::file_size(file, ignored) > kMostBytes) {
        pictures += fmt::format(
            "<p class=\"soft\">{}: timeline.json is larger than {}; strata timeline draw shows its "
            "steps.</p>\n",
            escaped(names[i]), bytes_text(kMostBytes));
        continue;
      }
      try {
        const StepPicture picture = step_picture(file.string(), {});
        pictures += charts.add(
            picture.svg,
            fmt::format(
                "{}: step {} on the ranks of replica 0; boxes have the number of their microbatch",
                names[i], picture.step),
            fmt::format("timeline-{}", i));
      } catch (const Error& error) {
        pictures +=
            fmt::format("<p class=\"soft\">{}: {}</p>\n", escaped(names[i]), escaped(error.what()));
      }
    }
  }
  return pictures;
}

/// What files in the runs' directories hold beside the record of training.
std::string results(const Runs& runs, const std::vector<std::string>& names, const Charts& charts) {
  constexpr std::int64_t kMostBytes = std::int64_t{4} << 20;
  constexpr std::size_t kMostClasses = 100;
  std::string matrices;
  std::string pictures;
  std::string texts;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto read = [](const fs::path& file) {
      return io::read_input(file, kMostBytes, ExitCode::kData);
    };
    for (const fs::path& file : files_in(runs[i].directory(), "confusion", ".csv")) {
      const auto table = train::confusion_in(read(file));
      if (!table) {
        fail(ExitCode::kData,
             "{} is not a confusion matrix as strata evaluate --confusion writes it; write it "
             "again, or move the file away",
             file.string());
      }
      if (table->names.size() <= kMostClasses) {
        matrices += charts.add(
            MatrixChart{.title = fmt::format("{}: {}", names[i], file.filename().string()),
                        .names = table->names,
                        .counts = table->counts},
            fmt::format("{}-{}", file.stem().string(), i));
      }
    }
    for (const fs::path& file : files_in(runs[i].directory(), "samples", ".png")) {
      const std::string name = escaped(fmt::format("{}: {}", names[i], file.filename().string()));
      pictures += fmt::format(
          "<figure><img alt=\"{}\" src=\"data:image/png;base64,{}\"/><figcaption>{}</figcaption>"
          "</figure>\n",
          name, base64(read(file)), name);
    }
    for (const fs::path& file : files_in(runs[i].directory(), "generated", ".txt")) {
      constexpr std::size_t kMostText = 4000;
      std::string shown;
      const std::string content = read(file);
      const std::string_view part = std::string_view(content).substr(0, kMostText);
      for (std::size_t begin = 0; begin < part.size();) {
        const std::size_t end = std::min(part.find('\n', begin), part.size());
        shown += escaped(part.substr(begin, end - begin), kMostText) + "\n";
        begin = end + 1;
      }
      texts += fmt::format("<h3>{}</h3>\n<pre>{}{}</pre>\n",
                           escaped(fmt::format("{}: {}", names[i], file.filename().string())),
                           shown, content.size() > kMostText ? "\u2026" : "");
    }
  }
  return html_section("Confusion matrices", matrices, "") +
         (pictures.empty() ? "" : "<h2>Pictures</h2>\n" + pictures) +
         (texts.empty() ? "" : "<h2>Generated text</h2>\n" + texts);
}

/// Restarts and warnings, and the settings that were given.
std::string details(const Runs& runs, const std::vector<std::string>& names) {
  std::string events;
  std::string settings;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const train::RunHistory& history = runs[i].history();
    const std::string list = html_list(history.continued) + html_list(history.warnings);
    events += list.empty() ? "" : fmt::format("<h3>{}</h3>\n{}", escaped(names[i]), list);
    Rows rows{{"setting", "value"}};
    for (const IniLine& line : runs[i].settings()) {
      if (line.comment != "default") {
        rows.push_back({line.key, line.value});
      }
    }
    settings += fmt::format(
        "<details><summary>{}: {} settings that are not defaults</summary>\n{}"
        "</details>\n",
        escaped(names[i]), rows.size() - 1, html_table(rows));
  }
  return (events.empty() ? "" : "<h2>Restarts and warnings</h2>\n" + events) +
         "<h2>Settings</h2>\n" + settings;
}

std::string page_of(const Runs& runs, const Charts& charts) {
  const std::vector<std::string> names = names_of(runs);
  std::string text = summary(runs, names) + differences(runs, names) + curves(runs, names, charts);
  const std::string account = times(runs, names, charts);
  text += html_section("Time and memory", account + memory(runs, names, charts),
                       "Times are of rank 0, averaged over all steps.");
  text += recorded_steps(runs, names, charts);
  text += results(runs, names, charts) + details(runs, names);
  text += fmt::format(
      "<p class=\"soft\">Written by strata report {}. Long curves show the least and the greatest "
      "value of each pixel column; all values are in metrics.jsonl.</p>\n",
      escaped(own_version()));
  return html_page(runs.size() == 1 ? names.front() : fmt::format("{} runs", runs.size()), text);
}

ExitCode report_runs(const config::CommandLine& line) {
  const std::string output = line.value("output", "");
  if (output.empty()) {
    fail(ExitCode::kUsage, "strata report needs a run and --output=FILE.html");
  }
  Runs runs;
  for (const std::string& directory : line.positions()) {
    runs.emplace_back(directory);
  }
  write_file(output, page_of(runs, Charts(line.value("plots", ""))));
  fmt::print("{}\n", printable_lines(output));
  return ExitCode::kDone;
}

}  // namespace

Commands report_commands() {
  return {
      {.name = "report",
       .purpose = "a page that shows and compares runs",
       .synopses = {{"RUN... --output=FILE.html [--plots=DIR]"}},
       .about =
           R"(Writes one HTML page about runs: differences of their configs, curves on common axes, where
the time of a step went, memory, restarts and warnings. The page needs neither a network nor scripts. A RUN is a run's
directory, of a run in progress too.

The page also shows what a run's directory holds of these files: of timeline.json a picture of the first step that
run.timeline recorded, of confusion.csv the confusion matrix, the pictures samples*.png and the texts generated*.txt.)",
       .options = {{"output", "FILE.html", "the page"},
                   {"plots", "DIR", "also writes each chart as an SVG file"}},
       .lists = {{"Examples",
                  {{"strata evaluate RUN --confusion=RUN/confusion.csv", "a confusion matrix"},
                   {"strata generate RUN > RUN/generated.txt", "a text"}}}},
       .positions = config::Positions::kSome,
       .needs = "a run and --output=FILE.html",
       .alone = report_runs}};
}

}  // namespace strata::app
