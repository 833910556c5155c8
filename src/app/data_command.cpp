#include <chrono>

#include <fmt/format.h>

#include "strata/core/text.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/import.hpp"

#include "commands.hpp"

namespace strata::app {
namespace {

template <typename Enum>
Enum enum_argument(const CommandLine& line, const std::string& name, Enum otherwise) {
  const std::string text = line.value(name, std::string(name_of(otherwise)));
  const auto value = enum_from_name<Enum>(text);
  if (!value) {
    fail(ExitCode::kUsage, "--{}={} is not allowed; give one of {}", name, text,
         joined_names<Enum>());
  }
  return *value;
}

std::int64_t count_argument(const CommandLine& line, const std::string& name,
                            std::int64_t otherwise) {
  const std::string text = line.value(name, std::to_string(otherwise));
  std::int64_t value = 0;
  if (!parse_int64(text, value) || value < 0) {
    fail(ExitCode::kUsage, "--{}={} is not allowed; give a whole number from 0", name, text);
  }
  return value;
}

std::vector<std::filesystem::path> paths(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

/// A line that is written over itself about twice a second.
class ProgressLine {
 public:
  explicit ProgressLine(std::string verb) : verb_(std::move(verb)) {}

  void operator()(std::int64_t done, std::int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(500)) {
      return;
    }
    last_ = now;
    shown_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const std::string of = total > 0 ? fmt::format(" of {}", count_text(total)) : "";
    fmt::print(stderr, "\r{} {}{} samples, {}/s   ", verb_, count_text(done), of,
               count_text(static_cast<std::int64_t>(static_cast<double>(done) / seconds)));
  }

  void finish() {
    if (shown_) {
      fmt::print(stderr, "\n");
    }
  }

 private:
  std::string verb_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
  bool shown_ = false;
};

constexpr const char* kImportHelp =
    R"(strata data import --format=FORMAT ... --output=DIR   makes DIR/train.h5 and DIR/test.h5
  --format=idx --images=FILE... --labels=FILE...       IDX files, plain or gzip
  --format=csv --files=FILE... --label=COLUMN          a header line, then one sample a line
  --format=npy --inputs=FILE... --targets=FILE...      NumPy arrays, the first dimension is the samples
  --split=8000,2000 or 0.9,0.1   samples for train, then for test, in file order (default 0.9,0.1)
  --task=auto|classification|regression   what the targets are (default auto)
  --classes=N          number of classes (default: one more than the largest label)
  --shard-mib=N        most MiB of inputs in one shard file (default 1024)
  --overwrite          replaces a data set that is there already
)";

io::ImportOptions import_options(const CommandLine& line) {
  io::ImportOptions options;
  if (!line.has("format") || !line.has("output")) {
    fail(ExitCode::kUsage, "--format and --output are needed\n{}", kImportHelp);
  }
  options.format = enum_argument(line, "format", io::ImportFormat::kIdx);
  const auto take = [&](const char* name) {
    if (!line.has(name)) {
      fail(ExitCode::kUsage, "--format={} needs --{}\n{}", name_of(options.format), name,
           kImportHelp);
    }
    return paths(line.values(name));
  };
  switch (options.format) {
    case io::ImportFormat::kIdx:
      options.inputs = take("images");
      options.targets = take("labels");
      break;
    case io::ImportFormat::kCsv:
      options.inputs = take("files");
      options.label = take("label").front().string();
      break;
    case io::ImportFormat::kNpy:
      options.inputs = take("inputs");
      options.targets = take("targets");
      break;
  }
  options.split = line.value("split", options.split);
  options.task = enum_argument(line, "task", options.task);
  options.classes = count_argument(line, "classes", 0);
  options.shard_bytes = std::max<std::int64_t>(1, count_argument(line, "shard-mib", 1024)) << 20;
  options.output = line.value("output", "");
  options.existing = line.has("overwrite") ? io::Existing::kReplace : io::Existing::kRefuse;
  return options;
}

ExitCode import_command(Arguments arguments) {
  const CommandLine line(arguments,
                         {"format", "output", "images", "labels", "files", "label", "inputs",
                          "targets", "split", "task", "classes", "shard-mib"},
                         {"overwrite", "help"});
  if (line.has("help")) {
    fmt::print("{}", kImportHelp);
    return ExitCode::kDone;
  }
  ProgressLine progress("imported");
  const io::ImportReport report = io::import_dataset(import_options(line), std::ref(progress));
  progress.finish();
  fmt::print("{}: {} training samples", report.train.string(), count_text(report.train_samples));
  if (!report.test.empty()) {
    fmt::print("; {}: {} test samples", report.test.string(), count_text(report.test_samples));
  }
  if (report.classes > 0) {
    fmt::print("; {} classes", report.classes);
  }
  if (report.unused_samples > 0) {
    fmt::print("; {} samples behind the splits are not used", count_text(report.unused_samples));
  }
  fmt::print("\n");
  return ExitCode::kDone;
}

ExitCode inspect_command(Arguments arguments) {
  const CommandLine line(arguments, {}, {"verify"});
  if (line.positions().empty()) {
    fail(ExitCode::kUsage,
         "strata data inspect needs a master file: strata data inspect DIR/train.h5 [--verify]");
  }
  std::int64_t bad = 0;
  for (const std::string& path : line.positions()) {
    ProgressLine progress("verified");
    const io::Inspection inspection = io::inspect_dataset(
        path, line.has("verify") ? io::Inspect::kVerify : io::Inspect::kDescribe,
        std::ref(progress));
    progress.finish();
    fmt::print("{}", inspection.text);
    bad += inspection.bad_shards;
  }
  if (bad > 0) {
    fail(ExitCode::kData, "{} shard{} bad; import the data set again", bad,
         bad == 1 ? " is" : "s are");
  }
  return ExitCode::kDone;
}

}  // namespace

ExitCode data_command(Arguments arguments) {
  const std::string what = arguments.empty() ? "" : arguments.front();
  if (what == "import") {
    return import_command(arguments.subspan(1));
  }
  if (what == "inspect") {
    return inspect_command(arguments.subspan(1));
  }
  fail(ExitCode::kUsage, "strata data has the commands import and inspect, not \"{}\"", what);
}

}  // namespace strata::app
