#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "strata/core/error.hpp"

#include "statistics.hpp"

namespace strata::bench {
namespace {

using Predictions = std::vector<Prediction>;
using Outliers = std::set<Outlier>;

/// What is set aside.
struct Rule {
  std::string name;
  Outliers aside;
};
const Rule kNoRule{"nothing set aside", {}};
const Rule kStated{"stated rule: twins and replicas set aside",
                   {Outlier::kTwin, Outlier::kReplicas}};
const Rule kThird{"with stalls set aside too (an addition, after the fitted part was seen)",
                  {Outlier::kTwin, Outlier::kReplicas, Outlier::kStall}};

Predictions select(const Predictions& all, const std::function<bool(const Run&)>& which) {
  Predictions result;
  std::ranges::copy_if(all, std::back_inserter(result),
                       [&](const Prediction& p) { return which(*p.run); });
  return result;
}

Predictions in_scope(const Predictions& all, bool judged, const Rule& rule) {
  return select(all, [&](const Run& run) {
    return run.outside.empty() && run.judged == judged && !rule.aside.contains(run.outlier);
  });
}

std::vector<double> errors_of(const Predictions& of) {
  std::vector<double> errors;
  std::ranges::transform(of, std::back_inserter(errors), &Prediction::error);
  return errors;
}

std::string errors_text(const Predictions& of) {
  const std::vector<double> errors = errors_of(of);
  return fmt::format("{:5} runs  median {:5.1f} %  90th percentile {:6.1f} %", errors.size(),
                     100.0 * quantile(errors, 0.5), 100.0 * quantile(errors, 0.9));
}

std::map<std::string, Predictions> grouped(const Predictions& of,
                                           const std::function<std::string(const Run&)>& by) {
  std::map<std::string, Predictions> groups;
  for (const Prediction& p : of) {
    groups[by(*p.run)].push_back(p);
  }
  return groups;
}

void print_groups(const Predictions& of, const std::function<std::string(const Run&)>& by) {
  for (const auto& [name, group] : grouped(of, by)) {
    fmt::print("    {:60.60} {}\n", name, errors_text(group));
  }
}

std::string number(const char* name, std::int64_t n) {
  return fmt::format("{} {:4}", name, n);
}

/// Of each group of at least 5 grids: the speed of the one predicted fastest, to the fastest.
std::map<std::string, double> choices(const Predictions& of, bool by_batch) {
  std::map<std::string, double> result;
  const auto groups = grouped(of, [&](const Run& run) {
    return fmt::format("{} on {} GPUs{}", run.model, run.gpus,
                       by_batch ? fmt::format(", batch {}", run.global) : "");
  });
  for (const auto& [name, group] : groups) {
    // Per sample, where batches differ.
    const auto measured = [](const Prediction& p) {
      return p.run->seconds / static_cast<double>(p.run->global);
    };
    std::set<std::string> grids;
    for (const Prediction& p : group) {
      grids.insert(fmt::format("{} {} {} {} {} {} {}", p.run->data, p.run->tensor, p.run->pipeline,
                               p.run->chunks, p.run->micro, p.run->zero, p.run->global));
    }
    if (grids.size() >= 5) {
      const auto chosen = std::ranges::min_element(group, {}, [](const Prediction& p) {
        return p.seconds / static_cast<double>(p.run->global);
      });
      const auto best = std::ranges::min_element(group, {}, measured);
      result[name] = measured(*best) / measured(*chosen);
    }
  }
  return result;
}

/// Of choices.
struct ChoiceFigures {
  std::size_t groups = 0;
  double median = 0.0;
  double good = 0.0;  ///< part of the groups at 85 % or more

  explicit ChoiceFigures(const std::map<std::string, double>& of) : groups(of.size()) {
    std::vector<double> reached;
    for (const auto& [name, part] : of) {
      reached.push_back(part);
      good += part >= 0.85 ? 1.0 / static_cast<double>(groups) : 0.0;
    }
    median = quantile(reached, 0.5);
  }
};

void print_choices(const Predictions& of) {
  for (const bool by_batch : {true, false}) {
    const auto all = choices(of, by_batch);
    const ChoiceFigures figures(all);
    fmt::print(
        "  {} groups (model, GPUs{}): median {:.1f} % of the best, {:.1f} % at 85 % or more\n",
        figures.groups, by_batch ? ", global batch" : "", 100.0 * figures.median,
        100.0 * figures.good);
    for (const auto& [name, part] : all) {
      if (part < 0.85) {
        fmt::print("    {}: {:.1f} %\n", name, 100.0 * part);
      }
    }
  }
}

void print_scope(const Predictions& all) {
  fmt::print("Runs in scope, by source\n");
  for (const auto& [name, group] :
       grouped(select(all, [](const Run& run) { return run.outside.empty(); }),
               [](const Run& run) { return run.source; })) {
    const auto judged = std::ranges::count_if(group, [](const auto& p) { return p.run->judged; });
    fmt::print("    {:60.60} {:5}, of which {} judged\n", name, group.size(), judged);
  }
  fmt::print("Runs out of scope, not judged; predicted with assumed constants where possible\n");
  for (const auto& [name, group] :
       grouped(select(all, [](const Run& run) { return !run.outside.empty(); }),
               [](const Run& run) { return run.source + ": " + run.outside; })) {
    Predictions made;
    std::ranges::copy_if(group, std::back_inserter(made),
                         [](const Prediction& p) { return p.seconds > 0.0; });
    fmt::print("    {:100.100} {:4}", name, group.size());
    fmt::print(", {}\n", made.empty() ? "not predicted" : errors_text(made));
  }
}

void print_outliers(const Predictions& all) {
  const std::map<Outlier, std::string> names{
      {Outlier::kTwin, "twin: same grid, batch and note, times more than 1.6x apart; all of them"},
      {Outlier::kReplicas, "replicas: less than 1/4 of the speed of half the replicas"},
      {Outlier::kStall,
       "stall: pipelined, more than twice the time per microbatch of a run of the same model,\n"
       "      tensor and pipeline size with microbatches as large (an addition to the stated "
       "rule)"}};
  fmt::print("Outliers, by rules that read data alone\n");
  for (const auto& [outlier, text] : names) {
    const Predictions of = select(all, [&](const Run& run) { return run.outlier == outlier; });
    const auto judged = std::ranges::count_if(of, [](const auto& p) { return p.run->judged; });
    fmt::print("  {}\n      {} runs, of which {} judged\n", text, of.size(), judged);
    for (const Prediction& p : of) {
      fmt::print("      {} {} seconds{}\n", p.run->key, p.run->seconds,
                 p.run->judged ? ", judged" : "");
    }
  }
}

void print_part(const Predictions& all, bool judged) {
  fmt::print("\n{} part\n", judged ? "Judged" : "Fitted");
  for (const Rule& rule : {kNoRule, kStated, kThird}) {
    const Predictions of = in_scope(all, judged, rule);
    fmt::print("{}\n  {}\n", rule.name, errors_text(of));
    print_groups(of, [](const Run& run) { return run.source; });
    if (!rule.aside.empty()) {
      print_groups(of, [](const Run& run) { return run.model; });
      print_groups(of, [](const Run& run) { return number("pp", run.pipeline); });
      print_groups(of, [](const Run& run) { return number("tp", run.tensor); });
      print_groups(of, [](const Run& run) { return number("GPUs", run.gpus); });
    }
    print_choices(of);
  }
}

void print_verdicts(const Verdicts& of, const char* part) {
  fmt::print(
      "Out of memory, {} part: {} failures, {} missed; {} runs, {} refused. Left out: {} with "
      "fewer\n"
      "  microbatches than nanotron's 1F1B accepts, {} with a stage without blocks, {} that needed "
      "no\n"
      "  more than a grid of the same model that ran, {} of systems without a profile. Memory of "
      "runs:\n"
      "  median error {:.1f} %, 90th percentile {:.1f} %\n",
      part, of.failures, of.missed, of.runs, of.refused, of.few, of.empty, of.no_more,
      of.no_profile, 100.0 * of.error_median, 100.0 * of.error_p90);
}

void bar(const std::string& name, double figure, double limit, bool at_most) {
  const bool pass = at_most ? figure <= limit : figure >= limit;
  fmt::print("  {:64} {:6.1f} %  bar {} {:4.0f} %  {}\n", name, 100.0 * figure,
             at_most ? "<=" : ">=", 100.0 * limit, pass ? "pass" : "MISS");
}

void print_bars(const Predictions& all, const Verdicts& verdicts, const Rule& rule) {
  const Predictions of = in_scope(all, true, rule);
  const std::vector<double> errors = errors_of(of);
  fmt::print("\nBars, judged part, {}\n", rule.name);
  bar("median error of a step", quantile(errors, 0.5), 0.10, true);
  bar("90th percentile", quantile(errors, 0.9), 0.25, true);
  for (const auto& [source, group] : grouped(of, [](const Run& run) { return run.source; })) {
    if (group.size() >= 10) {
      bar(fmt::format("median error of {:.40}", source), quantile(errors_of(group), 0.5), 0.20,
          true);
    }
  }
  const ChoiceFigures figures(choices(of, false));
  bar(fmt::format("choice in {} groups of model and GPUs: median of the best", figures.groups),
      figures.median, 0.93, false);
  bar("  groups at 85 % of the best or more", figures.good, 0.90, false);
  bar("out of memory: told right", verdicts.right_share(), 0.95, false);
  bar("  failures missed", verdicts.missed_share(), 0.05, true);
  bar("  runs refused", verdicts.refused_share(), 0.05, true);
}

}  // namespace

double Prediction::error() const {
  return std::abs(seconds / run->seconds - 1.0);
}

void report(const std::vector<Prediction>& predictions, const Verdicts& fitted,
            const Verdicts& judged) {
  print_scope(predictions);
  print_outliers(predictions);
  fmt::print(
      "Split: bit 32 of FNV-1a (64 bits) of model|gpus|dp|tp|pp|vpp|micro_batch|global_batch\n");
  print_part(predictions, false);
  print_part(predictions, true);
  fmt::print("\n");
  print_verdicts(fitted, "fitted");
  print_verdicts(judged, "judged");
  print_bars(predictions, judged, kThird);
  print_bars(predictions, judged, kStated);
}

void write_rows(const std::string& file, const std::vector<Prediction>& predictions) {
  std::ofstream out(file);
  out << "source,model,gpus,dp,tp,pp,chunks,micro_batch,global_batch,zero,outside,outlier,judged,"
         "measured_s,predicted_s\n";
  for (const Prediction& p : predictions) {
    const Run& r = *p.run;
    fmt::print(out, "\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{:.6g}\n", r.source, r.model,
               r.gpus, r.data, r.tensor, r.pipeline, r.chunks, r.micro, r.global, r.zero, r.outside,
               static_cast<int>(r.outlier), r.judged ? 1 : 0, r.seconds, p.seconds);
  }
  if (!out.flush()) {
    fail(ExitCode::kUsage, "{} cannot be written", file);
  }
}

}  // namespace strata::bench
