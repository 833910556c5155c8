#include "commands/data/import_options.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/text.hpp"

#include "commands/image_options.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kMostIds = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostShardMib = std::int64_t{1} << 30;

std::vector<std::filesystem::path> paths(const config::CommandLine& line, const std::string& name) {
  const std::vector<std::string> texts = line.values(name);
  if (std::find(texts.begin(), texts.end(), "") != texts.end()) {
    fail(ExitCode::kUsage, "--{} names an empty file; give --{}=FILE", name, name);
  }
  return {texts.begin(), texts.end()};
}

/// Names after an option, as words or with commas between them.
std::vector<std::string> names_argument(const config::CommandLine& line, const std::string& name,
                                        const char* what = "COLUMN") {
  std::vector<std::string> names;
  for (const std::string& value : line.values(name)) {
    const std::vector<std::string> words = split_words(value, ",");
    if (words.empty()) {
      fail(ExitCode::kUsage, "--{} is empty; give --{}={},...", name, name, what);
    }
    names.insert(names.end(), words.begin(), words.end());
  }
  return names;
}

/// An option that only some formats have.
struct FormatOption {
  const char* name;
  const char* formats;
  enum class Needed { kNo, kYes } needed = Needed::kNo;
};
constexpr const char* kTables = "csv jsonl";
constexpr const char* kSampleFormats = "idx csv jsonl npy cifar10 cifar100 images";
constexpr const char* kTokenFormats =
    "text chat preferences tokens-nanogpt tokens-llmc tokens-megatron";
constexpr FormatOption kFormatOptions[] = {
    {"images", "idx", FormatOption::Needed::kYes},
    {"labels", "idx", FormatOption::Needed::kYes},
    {"inputs", "npy", FormatOption::Needed::kYes},
    {"targets", "npy", FormatOption::Needed::kYes},
    {"files",
     "csv jsonl cifar10 cifar100 images text chat preferences tokens-nanogpt tokens-llmc "
     "tokens-megatron",
     FormatOption::Needed::kYes},
    {"test-images", "idx"},
    {"test-labels", "idx"},
    {"test-inputs", "npy"},
    {"test-targets", "npy"},
    {"test-files",
     "csv jsonl cifar10 cifar100 images text chat preferences tokens-nanogpt tokens-llmc "
     "tokens-megatron"},
    {"order", kSampleFormats},
    {"seed", kSampleFormats},
    {"label", kTables},
    {"columns", kTables},
    {"ignore", kTables},
    {"categories", kTables},
    {"missing", kTables},
    {"task", "idx csv jsonl npy"},
    {"classes", "idx csv jsonl npy"},
    {"text-field", "text"},
    {"resize", "images"},
    {"crop", "images"},
    {"channels", "images"},
    {"skip-bad", "images"},
    {"threads", "images text chat preferences"},
    {"tokenizer", kTokenFormats},
    {"encoder", kTokenFormats},
    {"merges", kTokenFormats},
    {"split-pattern", kTokenFormats},
    {"separator", "text"},
    {"special-tokens", "text chat preferences"},
    {"template", "chat preferences"},
    {"roles", "chat preferences"},
    {"deduplicate", "text chat preferences"},
    {"min-characters", "text chat preferences"},
    {"max-characters", "text chat preferences"},
    {"held-out", "text chat preferences"},
    {"max-tokens", "chat preferences"},
    {"too-long", "chat preferences"},
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

io::DocumentRules document_rules(const config::CommandLine& line) {
  io::DocumentRules rules;
  if (line.has("deduplicate")) {
    rules.repeated = io::Repeated::kLeftOut;
  }
  rules.min_characters = line.count("min-characters", 0, 0, rules.max_characters);
  rules.max_characters = line.count("max-characters", rules.max_characters, rules.min_characters,
                                    rules.max_characters);
  rules.max_tokens = line.count("max-tokens", rules.max_tokens, 1, rules.max_tokens);
  rules.too_long = line.choice<io::TooLong>("too-long").value_or(rules.too_long);
  if (line.has("too-long") && !line.has("max-tokens")) {
    fail(ExitCode::kUsage, "--too-long needs --max-tokens, which says what is too long");
  }
  if (line.has("max-tokens") && rules.too_long == io::TooLong::kCut &&
      line.required("format") == name_of(io::ImportFormat::kPreferences)) {
    fail(ExitCode::kUsage,
         "--max-tokens of pairs needs --too-long=leave-out or refuse: a part of an answer is "
         "another one");
  }
  if (line.has("held-out")) {
    const std::string text = text_argument(line, "held-out");
    if (!parse_double(text, rules.held_out) || rules.held_out <= 0.0 || rules.held_out >= 1.0) {
      config::refuse_value("held-out", text, "a share between 0 and 1, as in --held-out=0.01");
    }
  }
  return rules;
}

}  // namespace

std::string text_argument(const config::CommandLine& line, const std::string& name) {
  std::string text = line.value(name, "");
  if (line.has(name) && text.empty()) {
    fail(ExitCode::kUsage, "--{} is empty; give --{}=VALUE", name, name);
  }
  return text;
}

io::ImportOptions import_options(const config::CommandLine& line) {
  io::ImportOptions options;
  options.output = line.required("output");
  check_format_options(line);
  options.format = line.choice<io::ImportFormat>("format").value();
  const std::string inputs = line.has("images")   ? "images"
                             : line.has("inputs") ? "inputs"
                                                  : "files";
  const std::string targets = line.has("labels") ? "labels" : "targets";
  options.inputs = paths(line, inputs);
  options.targets = paths(line, targets);
  options.test_inputs = paths(line, "test-" + inputs);
  options.test_targets = paths(line, "test-" + targets);
  options.order = line.choice<io::ImportOrder>("order");
  options.seed = static_cast<std::uint64_t>(
      line.count("seed", 1, 0, std::numeric_limits<std::int64_t>::max()));
  options.table.label = text_argument(line, "label");
  options.table.columns = names_argument(line, "columns");
  options.table.ignore = names_argument(line, "ignore");
  options.table.categories = names_argument(line, "categories");
  options.table.missing = line.choice<io::Missing>("missing").value_or(options.table.missing);
  options.text_field = text_argument(line, "text-field");
  options.chat_template = text_argument(line, "template");
  if (line.has("roles")) {
    options.roles = names_argument(line, "roles", "ROLE");
  }
  options.documents = document_rules(line);
  tokenizer_options(line, options);
  options.separator = line.choice<io::Separator>("separator").value_or(options.separator);
  options.vocabulary = line.count("vocabulary", 0, 0, kMostIds);
  options.token_bits = line.count("token-bits", 0, 0, 64);
  options.images = image_options(line);
  // More wait for the one that reads, and each has tables of words.
  constexpr std::int64_t kMostByDefault = 8;
  options.threads = line.has("threads") ? options.images.threads
                                        : std::min(options.images.threads, kMostByDefault);
  options.split = text_argument(line, "split");
  options.task = line.choice<io::TaskChoice>("task").value_or(options.task);
  options.classes = line.count("classes", 0, 0, io::kMostClasses);
  options.shard_bytes = line.count("shard-mib", 1024, 1, kMostShardMib) << 20;
  options.existing = line.has("overwrite") ? io::Existing::kReplace : io::Existing::kRefuse;
  return options;
}

}  // namespace strata::app
