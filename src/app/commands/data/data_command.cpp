#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>

#include <fmt/format.h>

#include "strata/comm/mpi.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/contact_sheet.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/import.hpp"

#include "commands/commands.hpp"
#include "environment/cpu_cores.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kMostIds = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostShardMib = std::int64_t{1} << 30;
constexpr std::int64_t kMostPixels = 1 << 14;
constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kMostShown = 4096;

/// The value of an option; empty where it is not given. Throws: Error(kUsage) for an empty value.
std::string text_argument(const config::CommandLine& line, const std::string& name) {
  std::string text = line.value(name, "");
  if (line.has(name) && text.empty()) {
    fail(ExitCode::kUsage, "--{} is empty; give --{}=VALUE", name, name);
  }
  return text;
}

std::vector<std::filesystem::path> paths(const config::CommandLine& line, const std::string& name) {
  const std::vector<std::string> texts = line.values(name);
  if (std::find(texts.begin(), texts.end(), "") != texts.end()) {
    fail(ExitCode::kUsage, "--{} names an empty file; give --{}=FILE", name, name);
  }
  return {texts.begin(), texts.end()};
}

/// A progress line on standard error, rewritten at most twice a second.
class ProgressLine {
 public:
  ProgressLine(std::string verb, std::string unit)
      : verb_(std::move(verb)), unit_(std::move(unit)) {}

  void operator()(std::int64_t done, std::int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(500)) {
      return;
    }
    last_ = now;
    shown_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const std::string of = total > 0 ? fmt::format(" of {}", count_text(total)) : "";
    print_error(
        fmt::format("\r{} {}{}{}, {}/s   ", verb_, count_text(done), of, unit_,
                    count_text(static_cast<std::int64_t>(static_cast<double>(done) / seconds))));
  }

  void finish() {
    if (shown_) {
      print_error("\n");
    }
  }

 private:
  std::string verb_;
  std::string unit_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
  bool shown_ = false;
};

/// An option that only some formats have.
struct FormatOption {
  const char* name;
  const char* formats;
  enum class Needed { kNo, kYes } needed = Needed::kNo;
};
constexpr const char* kTokenFormats = "text tokens-nanogpt tokens-llmc tokens-megatron";
constexpr FormatOption kFormatOptions[] = {
    {"images", "idx", FormatOption::Needed::kYes},
    {"labels", "idx", FormatOption::Needed::kYes},
    {"inputs", "npy", FormatOption::Needed::kYes},
    {"targets", "npy", FormatOption::Needed::kYes},
    {"files", "csv cifar10 cifar100 images text tokens-nanogpt tokens-llmc tokens-megatron",
     FormatOption::Needed::kYes},
    {"label", "csv", FormatOption::Needed::kYes},
    {"task", "idx csv npy"},
    {"classes", "idx csv npy"},
    {"resize", "images"},
    {"crop", "images"},
    {"channels", "images"},
    {"skip-bad", "images"},
    {"threads", "images"},
    {"tokenizer", kTokenFormats},
    {"encoder", kTokenFormats},
    {"merges", kTokenFormats},
    {"split-pattern", kTokenFormats},
    {"separator", "text"},
    {"special-tokens", "text"},
    {"vocabulary", "tokens-nanogpt tokens-llmc tokens-megatron"},
    {"token-bits", "tokens-nanogpt"}};

void check_format_options(const config::CommandLine& line) {
  const std::string format = line.required("format");
  for (const auto& [name, formats, needed] : kFormatOptions) {
    const std::vector<std::string> all = split_words(formats);
    const bool is_own = std::ranges::find(all, format) != all.end();
    if (line.has(name) && !is_own) {
      fail(ExitCode::kUsage, "--{} is not for --format={} but for {}; leave it out", name, format,
           fmt::join(all, ", "));
    }
    if (!line.has(name) && is_own && needed == FormatOption::Needed::kYes) {
      fail(ExitCode::kUsage, "--format={} needs --{}; see strata data import --help", format, name);
    }
  }
}

/// --tokenizer, a name or a file, with the options that belong to it.
void tokenizer_options(const config::CommandLine& line, io::ImportOptions& options) {
  const std::string text = text_argument(line, "tokenizer");
  const auto kind = enum_from_name<io::TokenizerKind>(text);
  if (kind && *kind <= io::TokenizerKind::kGpt2) {
    options.tokenizer = *kind;
  } else if (std::filesystem::is_regular_file(text) ||
             text.find_first_of("/.") != std::string::npos) {
    options.tokenizer_file = text;
  } else if (!text.empty()) {
    config::refuse_value("tokenizer", text,
                         "one of bytes, chars, gpt2, or the path of a tokenizer.json, a model of "
                         "SentencePiece or a file of ranks");
  }
  if (line.has("split-pattern") && options.tokenizer_file.empty()) {
    fail(ExitCode::kUsage,
         "--split-pattern is for a file of ranks, given as --tokenizer=FILE; leave it out");
  }
  options.split_pattern = text_argument(line, "split-pattern");
  if (line.has("special-tokens")) {
    if (options.tokenizer_file.empty() && options.tokenizer != io::TokenizerKind::kGpt2) {
      fail(ExitCode::kUsage,
           "--special-tokens is for a tokenizer with special tokens; leave it out");
    }
    options.markers = io::Markers::kRecognised;
  }
  for (const char* name : {"encoder", "merges"}) {
    if (line.has(name) != (options.tokenizer == io::TokenizerKind::kGpt2)) {
      fail(ExitCode::kUsage,
           "--tokenizer=gpt2 and --{} are given together or not at all; see strata data import "
           "--help",
           name);
    }
  }
  options.encoder = text_argument(line, "encoder");
  options.merges = text_argument(line, "merges");
}

io::ImageOptions image_options(const config::CommandLine& line) {
  io::ImageOptions images;
  if (line.has("resize")) {
    const std::string text = line.value("resize", "");
    const std::size_t by = text.find('x');
    const bool both = by != std::string::npos;
    std::int64_t& first = both ? images.height : images.shorter_side;
    const auto is_side = [](const std::string& side, std::int64_t& value) {
      return parse_int64(side, value) && value >= 1 && value <= kMostPixels;
    };
    if (!is_side(text.substr(0, by), first) ||
        (both && !is_side(text.substr(by + 1), images.width))) {
      config::refuse_value(
          "resize", text,
          fmt::format("the pixels of the shorter side, or height x width as in 224x224, each from "
                      "1 to {}",
                      kMostPixels));
    }
  }
  images.crop = line.has("crop") ? line.count("crop", 0, 1, kMostPixels) : 0;
  images.channels = line.count("channels", 3, 1, 3);
  images.bad_files = line.has("skip-bad") ? io::BadFiles::kSkip : io::BadFiles::kFail;
  images.threads = line.count("threads", default_threads(1), 1, kMostThreads);
  return images;
}

io::ImportOptions import_options(const config::CommandLine& line) {
  io::ImportOptions options;
  options.output = line.required("output");
  check_format_options(line);
  options.format = line.choice<io::ImportFormat>("format").value();
  options.inputs = paths(line, line.has("images")   ? "images"
                               : line.has("inputs") ? "inputs"
                                                    : "files");
  options.targets = paths(line, line.has("labels") ? "labels" : "targets");
  options.label = text_argument(line, "label");
  tokenizer_options(line, options);
  options.separator = line.choice<io::Separator>("separator").value_or(options.separator);
  options.vocabulary = line.count("vocabulary", 0, 0, kMostIds);
  options.token_bits = line.count("token-bits", 0, 0, 64);
  options.images = image_options(line);
  options.split = line.value("split", options.split);
  options.task = line.choice<io::TaskChoice>("task").value_or(options.task);
  options.classes = line.count("classes", 0, 0, io::kMostClasses);
  options.shard_bytes = line.count("shard-mib", 1024, 1, kMostShardMib) << 20;
  options.existing = line.has("overwrite") ? io::Existing::kReplace : io::Existing::kRefuse;
  return options;
}

/// Refuses ranks beyond 0 of a parallel launch: every rank would do the whole import.
void refuse_other_ranks() {
  if (const std::int64_t rank = comm::launch_in_environment().rank; rank > 0) {
    fail(ExitCode::kUsage,
         "this is rank {} of a parallel launch, and an import is one process with threads; start "
         "strata data import without mpirun, under srun with --ntasks=1",
         rank);
  }
}

ExitCode import_data(const config::CommandLine& line) {
  std::signal(SIGPIPE, SIG_IGN);  // the files are written to the end
  refuse_other_ranks();
  const io::ImportOptions options = import_options(line);
  const bool tokens = io::holds_tokens(options.format);
  const std::string unit = tokens ? "tokens" : "samples";
  ProgressLine checking("checked", " files");
  ProgressLine progress("imported", " " + unit);
  const double start = now_seconds();
  const io::ImportReport report =
      io::import_dataset(options, std::ref(progress), std::ref(checking));
  const double seconds = now_seconds() - start;
  checking.finish();
  progress.finish();
  for (const std::string& file : report.skipped) {
    print_error(fmt::format("left out: {}\n", printable(file, 1000)));
  }
  fmt::print("{}: {} training {}", report.train.string(), count_text(report.train_samples), unit);
  if (!report.test.empty()) {
    fmt::print("; {}: {} test {}", report.test.string(), count_text(report.test_samples), unit);
  }
  if (report.classes > 0) {
    fmt::print("; {} classes", report.classes);
  }
  if (report.unused_samples > 0) {
    fmt::print("; the last {} {} are in no split", count_text(report.unused_samples), unit);
  }
  if (!report.skipped.empty()) {
    fmt::print("; {} bad file{} left out", count_text(std::ssize(report.skipped)),
               report.skipped.size() == 1 ? " is" : "s are");
  }
  if (tokens) {
    const std::int64_t all = report.train_samples + report.test_samples + report.unused_samples;
    fmt::print("; vocabulary of {}; {} tokens/s", count_text(report.vocabulary),
               count_text(static_cast<std::int64_t>(static_cast<double>(all) / seconds)));
  }
  fmt::print("\n");
  return ExitCode::kDone;
}

ExitCode inspect_data(const config::CommandLine& line) {
  const bool draws = line.has("contact-sheet");
  if (line.has("samples") && !draws) {
    fail(ExitCode::kUsage, "--samples is for --contact-sheet=FILE.png; give both or neither");
  }
  if (draws && line.positions().size() > 1) {
    fail(ExitCode::kUsage, "--contact-sheet shows one data set, {} are named; give one",
         line.positions().size());
  }
  const std::string sheet = text_argument(line, "contact-sheet");
  const std::int64_t shown = line.count("samples", 64, 1, kMostShown);
  std::int64_t bad = 0;
  for (const std::string& path : line.positions()) {
    ProgressLine progress("verified", "");
    const io::Inspection inspection = io::inspect_dataset(
        path, line.has("verify") ? io::Inspect::kVerify : io::Inspect::kDescribe,
        std::ref(progress));
    progress.finish();
    if (!inspection.warning.empty()) {
      print_error(fmt::format("warning: {}\n", printable_lines(inspection.warning)));
    }
    fmt::print("{}", printable_lines(inspection.text));
    bad += inspection.bad_shards;
  }
  if (draws) {
    const io::Dataset dataset = io::Dataset::open(line.positions().front());
    io::write_contact_sheet(dataset, sheet, shown);
    fmt::print("{}: {} of {} samples\n", sheet, count_text(std::min(shown, dataset.info().samples)),
               count_text(dataset.info().samples));
  }
  if (bad > 0) {
    fail(ExitCode::kData, "{} shard{} bad; import the data set again", bad,
         bad == 1 ? " is" : "s are");
  }
  return ExitCode::kDone;
}

}  // namespace

Commands data_commands() {
  return {
      {.name = "data import",
       .purpose = "make a data set",
       .synopses = {{"--format=FORMAT ... --output=DIR"}},
       .about = "Makes a data set: DIR/train.h5, DIR/test.h5 and the shards that they name.",
       .options =
           {{"format", config::words_of<io::ImportFormat>(),
             R"(idx: IDX files, plain or gzip, as --images and --labels; csv: --files with a header line, then one
sample per line; npy: NumPy arrays as --inputs and --targets, the first dimension is the samples; cifar10, cifar100:
CIFAR's binary version as --files; images: --files=DIR, in each DIR one folder per class, with JPEG and PNG files; text:
UTF-8 text as --files; tokens-nanogpt: uint16 tokens and nothing else; tokens-llmc: llm.c's header, then tokens;
tokens-megatron: .bin files with their .idx beside them)"},
            {"output", "DIR", "where the data set goes"},
            {"files", "FILE...", "the files to import, except for idx and npy"},
            {"images", "FILE...", "idx: the inputs"},
            {"labels", "FILE...", "idx: the targets"},
            {"inputs", "FILE...", "npy: the inputs"},
            {"targets", "FILE...", "npy: the targets"},
            {"label", "COLUMN", "csv: the column of the targets"},
            {"split", "8000,2000 or 0.9,0.1",
             "samples or tokens of train, then of test, in file order (default 0.9,0.1)"},
            {"task", config::words_of<io::TaskChoice>(), "what the targets are (default auto)"},
            {"classes", "N", "number of classes (default: one more than the largest label)"},
            {"shard-mib", "N", "limit of MiB of inputs or tokens per shard file (default 1024)"},
            {"overwrite", "", "replaces a data set that is there already"},
            {"resize", "N or HxW", "images: the shorter side, or height and width, in pixels"},
            {"crop", "N", "images: crops the centre to N x N pixels"},
            {"channels", "3|1", "images: 3: colour, 1: luma (default 3)"},
            {"skip-bad", "",
             "images: skips and lists files that are not JPEG or PNG images; without --skip-bad "
             "such a "
             "file fails the import"},
            {"threads", "N", "images: decoder threads (default: the cores)"},
            {"tokenizer", "bytes|chars|gpt2|FILE",
             R"(text: bytes, chars: one token per byte or character; gpt2: byte pairs of --encoder and --merges; FILE: the
tokenizer of another program, as Hugging Face's tokenizer.json (byte pairs), SentencePiece's tokenizer.model, or a file
of ranks from tiktoken or Llama 3, with the tokens that added_tokens.json and tokenizer_config.json beside it add.
tokens: the tokenizer that made them, instead of --vocabulary, so that they can be decoded)"},
            {"encoder", "encoder.json", "text: of --tokenizer=gpt2"},
            {"merges", "vocab.bpe", "text: of --tokenizer=gpt2"},
            {"separator", config::words_of<io::Separator>(),
             R"(text: puts gpt2's <|endoftext|> between files; or around each file what the template of a tokenizer.json
or a tokenizer_config.json beside tokenizer.model adds, such as <|begin_of_text|> (default auto: if the tokenizer has
one))"},
            {"split-pattern", "gpt2|llama3|o200k|EXPRESSION",
             R"(text: the pattern that splits text into words, which a file of ranks does not hold; llama3 has that of
cl100k)"},
            {"special-tokens", "",
             R"(text: reads the spelling of a special token, such as <|endoftext|>, as that token instead of as text)"},
            {"vocabulary", "N", "tokens: the number of token ids"},
            {"token-bits", "16|32|64",
             "tokens-nanogpt: bits of a token, which these files do not record (default 16)"}},
       .lists =
           {{"Examples",
             {{"strata data import --format=csv --files=FILE... --label=COLUMN --output=DIR"},
              {"strata data import --format=idx --images=FILE... --labels=FILE... --output=DIR"},
              {"strata data import --format=text --tokenizer=bytes --files=FILE... --output=DIR"},
              {"strata data import --format=tokens-llmc --vocabulary=N --files=FILE... "
               "--output=DIR"}}}},
       .positions = config::Positions::kNone,
       .values = config::Values::kList,
       .alone = import_data},
      {.name = "data inspect",
       .purpose = "show a data set, or check every byte",
       .synopses = {{"DIR/train.h5 ... [--verify] [--contact-sheet=FILE.png [--samples=64]]"}},
       .about = "Shows what data sets hold.",
       .options = {{"verify", "", "reads every byte and compares it with its checksum"},
                   {"contact-sheet", "FILE.png", "a picture of images spread over a data set"},
                   {"samples", "N", "how many (default 64)"}},
       .positions = config::Positions::kSome,
       .needs = "a master file",
       .alone = inspect_data}};
}

}  // namespace strata::app
