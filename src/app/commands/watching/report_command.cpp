#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
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
#include "strata/train/run_view.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/run/sweep.hpp"
#include "commands/watching/report_files.hpp"
#include "commands/watching/step_parts.hpp"
#include "drawing/chart.hpp"
#include "drawing/page.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

/// The directories, those of a sweep's runs in place of the sweep's.
std::vector<std::string> with_runs_of_sweeps(const std::vector<std::string>& directories) {
  std::vector<std::string> all;
  for (const std::string& directory : directories) {
    if (std::error_code error; !std::filesystem::exists(sweep_file(directory), error)) {
      all.push_back(directory);
      continue;
    }
    std::ranges::transform(begun_runs(directory), std::back_inserter(all),
                           [](const std::filesystem::path& run) { return run.string(); });
  }
  return all;
}

/// Each run with its name, or its path where two have the same name.
Runs opened(const std::vector<std::string>& directories) {
  Runs runs;
  std::map<std::string, std::int64_t> uses;
  for (const std::string& directory : directories) {
    runs.push_back({.name = {}, .number = runs.size(), .view = train::RunView(directory)});
    ++uses[runs.back().view.name()];
  }
  for (NamedRun& run : runs) {
    run.name = uses[run.view.name()] > 1 ? run.view.directory().string() : run.view.name();
  }
  return runs;
}

/// The head of a table with a column for each run.
std::vector<std::string> head_of(const char* first, const Runs& runs) {
  std::vector<std::string> head{first};
  std::ranges::transform(runs, std::back_inserter(head), &NamedRun::name);
  return head;
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
std::string summary(const Runs& runs) {
  Rows rows{head_of("", runs)};
  const auto add = [&](const std::string& fact, auto&& text_of) {
    std::vector<std::string> row{fact};
    for (const NamedRun& run : runs) {
      row.push_back(text_of(run.view));
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
  add("margin, last", [](Run run) { return number(run.metrics("evaluate").last("margin")); });
  add("perplexity, last",
      [](Run run) { return number(run.metrics("evaluate").last("perplexity")); });
  add("mean time of a step",
      [](Run run) { return number(run.metrics("train").sum("step_seconds").mean(), " ms", 1e3); });
  add("mean MFU",
      [](Run run) { return number(run.metrics("train").sum("mfu").mean(), " %", 100.0); });
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
std::string differences(const Runs& runs) {
  if (runs.size() < 2) {
    return "";
  }
  std::vector<std::string> keys;
  std::map<std::string, std::vector<std::string>> values_of;
  for (const NamedRun& run : runs) {
    for (const IniLine& line : run.view.settings()) {
      const auto [values, is_new] = values_of.try_emplace(line.key, runs.size());
      if (is_new) {
        keys.push_back(line.key);
      }
      if (std::string& value = values->second[run.number]; value.empty()) {
        value = line.value;
      }
    }
  }
  Rows rows{head_of("setting", runs)};
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
    {"margin", "Test margin", "evaluate", "margin", LineChart::Scale::kRange},
    {"perplexity", "Test perplexity", "evaluate", "perplexity", LineChart::Scale::kWide},
    {"learning-rate", "Learning rate", "train", "learning_rate", LineChart::Scale::kFromZero},
    {"gradient-norm", "Gradient norm", "train", "grad_norm", LineChart::Scale::kWide},
    {"tokens-per-second", "Tokens per second", "train", "tokens_per_second",
     LineChart::Scale::kFromZero},
    {"samples-per-second", "Samples per second", "train", "samples_per_second",
     LineChart::Scale::kFromZero},
    {"mfu", "MFU", "train", "mfu", LineChart::Scale::kFromZero}};

std::string curves(const Runs& runs, const Charts& charts) {
  std::string text;
  const bool tokens = std::ranges::all_of(runs, [](const NamedRun& run) {
    return !run.view.metrics("train").column("tokens_per_second").empty();
  });
  for (const CurveKind& kind : kCurves) {
    LineChart chart{
        .title = fmt::format("{} by step", kind.title), .scale = kind.scale, .curves = {}};
    for (const auto& [name, number, run] : runs) {
      const train::MetricsTable& table = run.metrics(kind.kind);
      const std::span<const double> y = table.column(kind.key);
      if (!y.empty()) {
        chart.curves.push_back({.name = name, .colour = number, .x = table.column("step"), .y = y});
      }
    }
    if (!chart.empty() && !(tokens && std::string(kind.key) == "samples_per_second")) {
      text += charts.add(chart, kind.file);
    }
  }
  return html_section("Curves", text, "");
}

std::string times(const Runs& runs, const Charts& charts) {
  BarChart chart{.title = "Mean time of a step", .names = {}, .bars = {}};
  std::ranges::transform(kStepParts, std::back_inserter(chart.names), &StepPart::name);
  for (const NamedRun& run : runs) {
    const train::MetricsTable& steps = run.view.metrics("train");
    const double whole = steps.sum("step_seconds").mean();
    if (!(whole > 0.0) || !std::isfinite(whole)) {
      continue;
    }
    BarChart::Bar bar{.label = fmt::format("{}: {:.4g} ms", short_name(run.name), 1e3 * whole),
                      .parts = {},
                      .inside = {}};
    for (const auto& [key, name] : kStepParts) {
      const double part = steps.sum(key).mean();
      bar.parts.push_back(std::isfinite(part) ? part : 0.0);
      bar.inside.push_back(fmt::format("{:.1f} %", 100.0 * bar.parts.back() / whole));
    }
    chart.bars.push_back(std::move(bar));
  }
  return chart.bars.empty() ? "" : charts.add(chart, "time");
}

std::string memory(const Runs& runs, const Charts& charts) {
  BarChart chart{
      .title = "Memory of the rank with the most",
      .names = {"planned", "used in training", "used before training", "used, mapped files"},
      .bars = {}};
  for (const NamedRun& run : runs) {
    const auto bytes = [&](const char* key) {
      std::int64_t count = 0;
      return parse_int64(run.view.fact(key), count) ? std::max<std::int64_t>(count, 0) : 0;
    };
    const bool gpu = run.view.fact("device") == name_of(device::DeviceKind::kCuda);
    const std::int64_t planned = bytes("planned_bytes");
    const std::int64_t peak = bytes("peak_bytes");
    const std::int64_t mapped = std::min(bytes("mapped_bytes"), peak);
    const std::int64_t base = std::min(bytes("base_bytes"), peak - mapped);
    if (planned > 0) {
      chart.bars.push_back({.label = fmt::format("{}: planned{} {}", short_name(run.name),
                                                 gpu ? " on the GPU" : "", bytes_text(planned)),
                            .parts = {static_cast<double>(planned), 0.0, 0.0, 0.0},
                            .inside = {}});
    }
    if (peak > 0) {
      chart.bars.push_back(
          {.label = fmt::format("{}: used{} {}, of it mapped files {}", short_name(run.name),
                                gpu ? " on the host" : "", bytes_text(peak), bytes_text(mapped)),
           .parts = {0.0, static_cast<double>(peak - mapped - base), static_cast<double>(base),
                     static_cast<double>(mapped)},
           .inside = {}});
    }
  }
  return chart.bars.empty() ? "" : charts.add(chart, "memory");
}

/// Restarts and warnings, and the settings that were given.
std::string details(const Runs& runs) {
  std::string events;
  std::string settings;
  for (const auto& [name, number, run] : runs) {
    const train::RunHistory& history = run.history();
    const std::string list = html_list(history.continued) + html_list(history.warnings);
    events += list.empty() ? "" : fmt::format("<h3>{}</h3>\n{}", escaped(name), list);
    Rows rows{{"setting", "value"}};
    for (const IniLine& line : run.settings()) {
      if (line.comment != "default") {
        rows.push_back({line.key, line.value});
      }
    }
    settings += fmt::format(
        "<details><summary>{}: {} settings that are not defaults</summary>\n{}"
        "</details>\n",
        escaped(name), rows.size() - 1, html_table(rows));
  }
  return (events.empty() ? "" : "<h2>Restarts and warnings</h2>\n" + events) +
         "<h2>Settings</h2>\n" + settings;
}

std::string page_of(const Runs& runs, const Charts& charts) {
  const std::string text =
      summary(runs) + differences(runs) + curves(runs, charts) +
      html_section("Time and memory", times(runs, charts) + memory(runs, charts),
                   "Times are of rank 0, averaged over all steps.") +
      recorded_steps(runs, charts) + results(runs, charts) + details(runs) +
      fmt::format(
          "<p class=\"soft\">Written by strata report {}. Long curves show the least and the "
          "greatest value of each pixel column; noisy ones are pale, with their moving mean over "
          "19 "
          "columns above them. All values are in metrics.jsonl.</p>\n",
          escaped(own_version()));
  return html_page(runs.size() == 1 ? runs.front().name : fmt::format("{} runs", runs.size()),
                   text);
}

ExitCode report_runs(const config::CommandLine& line) {
  const std::string output = line.required("output");
  write_file(output, page_of(opened(with_runs_of_sweeps(line.positions())),
                             Charts(line.value("plots", ""))));
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
directory, of a run in progress too, or that of a sweep, whose runs come by the values of their settings.

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
