#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/log.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/run_view.hpp"

#include "commands/commands.hpp"

namespace strata::app {
namespace {

constexpr const char* kRecordKinds[] = {"train", "evaluate", "checkpoint"};

void print(const train::MetricsTable& table) {
  std::vector<std::string> fields;
  fields.reserve(table.keys.size());
  for (const std::string& key : table.keys) {
    fields.push_back(io::csv_field(printable(key)));
  }
  fmt::print("{}\n", fmt::join(fields, ","));
  for (std::size_t record = 0; record < table.records; ++record) {
    fields.clear();
    for (const std::vector<double>& column : table.columns) {
      fields.push_back(std::isnan(column[record]) ? "" : fmt::format("{}", column[record]));
    }
    fmt::print("{}\n", fmt::join(fields, ","));
  }
}

ExitCode export_metrics(const config::CommandLine& line) {
  std::vector<std::string> kinds(std::begin(kRecordKinds), std::end(kRecordKinds));
  if (line.has("kind")) {
    kinds = {line.value("kind", "")};
  }
  const train::RunView run(line.positions().front());
  bool first = true;
  for (const std::string& kind : kinds) {
    if (run.metrics(kind).records > 0) {
      fmt::print("{}", first ? "" : "\n");
      print(run.metrics(kind));
      if (run.metrics(kind).has_more) {
        print_error(fmt::format(
            "warning: the records of the kind {} have more than {} keys; the further ones are left "
            "out\n",
            kind, train::kMostMetrics));
      }
      first = false;
    }
  }
  if (first) {
    fail(ExitCode::kData, "{} has no records of the kind {} yet; its last step is {}",
         run.directory().string(), fmt::join(kinds, ", "), run.step());
  }
  return ExitCode::kDone;
}

}  // namespace

Commands metrics_commands() {
  return {
      {.name = "metrics export",
       .purpose = "the records of a run as CSV",
       .synopses = {{"RUN [--kind=KIND]"}},
       .about =
           R"(Prints the records of a run's metrics.jsonl as CSV: a header, then a line for each
record. RUN is a run's directory, of a run in progress too. Numbers read back to the same bits; a field is empty where a
record lacks the key or has null.)",
       .options =
           {{"kind", fmt::format("{}", fmt::join(kRecordKinds, "|")),
             "only these records; without it, a table for each kind, with an empty line between"}},
       .positions = config::Positions::kOne,
       .needs = "one run",
       .alone = export_metrics}};
}

}  // namespace strata::app
