#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "fit.hpp"
#include "memory.hpp"
#include "report.hpp"
#include "step.hpp"

namespace {

using namespace strata;
using namespace strata::bench;

void run(const std::vector<std::string>& arguments) {
  std::string directory;
  std::string rows;
  bool fits = false;
  for (const std::string& argument : arguments) {
    constexpr std::string_view kRows = "--rows=";
    if (argument.starts_with(kRows)) {
      rows = argument.substr(kRows.size());
    } else if (argument == "--fit") {
      fits = true;
    } else if (directory.empty() && !argument.starts_with("-")) {
      directory = argument;
    } else {
      fail(ExitCode::kUsage, "{} is not an argument of bench_planner", argument);
    }
  }
  if (directory.empty()) {
    fail(ExitCode::kUsage,
         "expected bench_planner DIR [--fit] [--rows=FILE], where DIR holds measured-steps.csv and "
         "out-of-memory.csv");
  }
  std::vector<Run> runs = measured_runs(read_table(directory + "/measured-steps.csv"));
  const std::vector<Run> failures = failed_runs(read_table(directory + "/out-of-memory.csv"));
  Constants all = constants();
  const MemoryModel memory;
  for (Run& of : runs) {
    if (of.profile == "nanotron") {
      of.mode = tensor_mode(of, all, memory);
    }
  }
  Predictor predictor;
  if (fits) {
    fit(all, predictor, runs);
  }
  std::vector<Prediction> predictions;
  for (const Run& of : runs) {
    predictions.push_back({&of, of.unknown.empty() ? predictor.step_seconds(of, all) : 0.0});
  }
  report(predictions, verdicts(runs, failures, false, all, memory),
         verdicts(runs, failures, true, all, memory));
  if (!rows.empty()) {
    write_rows(rows, predictions);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_planner: {}\n", error.what());
    return 1;
  }
  return 0;
}
