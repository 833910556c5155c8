#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>

#include <fmt/format.h>
#include <unistd.h>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/contact_sheet.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/import.hpp"
#include "strata/train/file_timeout.hpp"

#include "commands/commands.hpp"
#include "commands/data/import_options.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kMostShown = 4096;

/// A progress line on standard error, rewritten at most twice a second; none where that is not a
/// terminal.
class ProgressLine {
 public:
  ProgressLine(std::string verb, std::string unit, std::int64_t rank = 0)
      : verb_(std::move(verb)),
        unit_(std::move(unit)),
        terminal_(rank == 0 && isatty(STDERR_FILENO) == 1) {}

  void operator()(std::int64_t done, std::int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - last_ < std::chrono::milliseconds(500)) {
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
  bool terminal_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
  bool shown_ = false;
};

/// As agree_texts(), with an error's text as the rank gives it: which one met with a bad file is
/// nothing that a user can act on.
std::vector<std::string> gathered_texts(comm::Communicator& world,
                                        const io::ImportRanks::Step& step) {
  try {
    return comm::agree_texts(world, step);
  } catch (const comm::AgreedError& error) {
    const std::vector<std::string>& all = error.by_rank();
    const auto first = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
    throw comm::AgreedError(error.code(), first == all.end() ? error.what() : *first, all);
  }
}

ExitCode import_data(const config::CommandLine& line, comm::MpiSession& mpi,
                     const config::FailureHandler& /*on_failure*/) {
  std::signal(SIGPIPE, SIG_IGN);  // the files are written to the end
  comm::Communicator& world = mpi.world();
  io::ImportOptions options;
  comm::agree(world, [&] { options = import_options(line); });
  if (!line.has("threads")) {
    // The ranks of a node share its cores.
    options.threads =
        std::clamp<std::int64_t>(options.images.threads / mpi.ranks_on_node(), 1, options.threads);
  }
  // Ranks that read less wait for the others.
  const train::FileTimeout timeout(world);
  io::ImportRanks ranks{.rank = world.rank(), .count = world.size()};
  ranks.gather = [&](const auto& step) { return gathered_texts(world, step); };
  const bool tokens = io::holds_tokens(options.format);
  const std::string unit = tokens ? "tokens" : "samples";
  ProgressLine checking("checked", " files", world.rank());
  ProgressLine progress("imported", " " + unit, world.rank());
  const double start = now_seconds();
  const io::ImportReport report =
      io::import_dataset(options, std::ref(progress), std::ref(checking), ranks);
  if (world.rank() > 0) {
    return ExitCode::kDone;
  }
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
    fmt::print("; {} {} are in neither", count_text(report.unused_samples), unit);
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
  for (const std::string& note : report.notes) {
    fmt::print("{}\n", printable(note, 1000));
  }
  return ExitCode::kDone;
}

ExitCode inspect_data(const config::CommandLine& line) {
  const bool draws = line.has("contact-sheet");
  if (line.has("samples") && !draws) {
    fail(ExitCode::kUsage, "--samples is for --contact-sheet=FILE.png; give both or neither");
  }
  const bool reads = line.has("document");
  if ((draws || reads) && line.positions().size() > 1) {
    fail(ExitCode::kUsage, "--{} shows one data set, {} are named; give one",
         draws ? "contact-sheet" : "document", line.positions().size());
  }
  if (reads && (draws || line.has("verify"))) {
    fail(ExitCode::kUsage, "--document shows a text and nothing else; leave --{} out",
         draws ? "contact-sheet" : "verify");
  }
  if (reads) {
    const std::int64_t number =
        line.count("document", 0, 0, std::numeric_limits<std::int64_t>::max());
    fmt::print("{}", printable_lines(
                         io::document_text(io::Dataset::open(line.positions().front()), number)));
    return ExitCode::kDone;
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
       .about =
           "Makes a data set: DIR/train.h5, DIR/test.h5 and the shards that they name. Several "
           "ranks share the files of text, chat and preferences; the data set does not depend on "
           "their number. An import of these that was killed goes on where it was when the same "
           "command is given again.",
       .options =
           {{"format", config::words_of<io::ImportFormat>(),
             R"(idx: IDX files, plain or gzip, as --images and --labels; csv: --files with a header line, then one
sample per line, separated by commas, semicolons, tabs or bars; jsonl: --files with a JSON object per line, a sample each; npy: NumPy arrays as --inputs and --targets, the first dimension is the samples; cifar10, cifar100:
CIFAR's binary version as --files; images: --files=DIR, in each DIR one folder per class, with JPEG and PNG files; text:
UTF-8 text as --files, with --text-field JSON
lines with a document each; chat: JSON lines with a dialogue each, as {"messages": [{"role": ..., "content": ...}, ...]};
preferences: JSON lines with a pair of answers each, as {"prompt": ..., "chosen": ..., "rejected": ...}, texts or lists of
messages; tokens-nanogpt: uint16 tokens and nothing else; tokens-llmc: llm.c's header, then tokens;
tokens-megatron: .bin files with their .idx beside them)"},
            {"output", "DIR", "where the data set goes"},
            {"files", "FILE...",
             "the files to import, except for idx and npy; .gz and .zst are read, - is standard "
             "input, a directory stands for its files (csv, jsonl, text, chat, preferences)"},
            {"images", "FILE...", "idx: the inputs"},
            {"labels", "FILE...", "idx: the targets"},
            {"inputs", "FILE...", "npy: the inputs"},
            {"targets", "FILE...", "npy: the targets"},
            {"test-files", "FILE...",
             "the files of the test split, instead of --split; for idx --test-images and "
             "--test-labels, for npy --test-inputs and --test-targets. A directory as --files that "
             "holds the folders train and test stands for both"},
            {"test-images", "FILE...", "idx: the inputs of the test split"},
            {"test-labels", "FILE...", "idx: its targets"},
            {"test-inputs", "FILE...", "npy: the inputs of the test split"},
            {"test-targets", "FILE...", "npy: its targets"},
            {"label", "COLUMN", "csv, jsonl: the column of the targets"},
            {"columns", "COLUMN,...", "csv, jsonl: the input columns (default: all others)"},
            {"ignore", "COLUMN,...", "csv, jsonl: columns that are left out"},
            {"categories", "COLUMN,...",
             "csv, jsonl: columns whose fields are names, though they may be numbers. Columns of "
             "texts always are; each name becomes an input that is 0 or 1"},
            {"missing", config::words_of<io::Missing>(),
             R"(csv, jsonl: for fields that are empty, NA, nan, null or ?: the mean or median of the column's other numbers (among
names, a name of its own), or drop leaves such rows out (default refuse). A label cannot be filled in: its row is left out)"},
            {"split", "8000,2000 or 90%,10%",
             "samples or tokens of train, then of test, as counts or fractions; texts and tokens "
             "are cut in their order (default 90%,10%)"},
            {"order", config::words_of<io::ImportOrder>(),
             R"(shuffled: a random permutation, with each class spread evenly over the splits; file: the order of the files
(default shuffled))"},
            {"seed", "N", "of the permutation (default 1)"},
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
            {"threads", "N",
             "images, text with --text-field, chat, preferences: threads of a rank that read and "
             "encode; the data set does not depend on them (default: its share of the cores, for "
             "text at most 8)"},
            {"tokenizer", "bytes|chars|gpt2|FILE",
             R"(text: bytes, chars: one token per byte or character; gpt2: byte pairs of --encoder and --merges; FILE: the
tokenizer of another program, as Hugging Face's tokenizer.json (byte pairs, unigram), SentencePiece's tokenizer.model, or a
file of ranks from tiktoken or Llama 3, with the tokens that added_tokens.json and tokenizer_config.json beside it add.
tokens: the tokenizer that made them, instead of --vocabulary, so that they can be decoded)"},
            {"encoder", "encoder.json", "text: of --tokenizer=gpt2"},
            {"merges", "vocab.bpe", "text: of --tokenizer=gpt2"},
            {"text-field", "FIELD",
             "text: the files are JSON lines, a document each, whose text is in this field"},
            {"separator", config::words_of<io::Separator>(),
             R"(text: puts gpt2's <|endoftext|> between files; or around each file what the template of a tokenizer.json
or a tokenizer_config.json beside the tokenizer adds, such as <|begin_of_text|> (default auto: if the tokenizer has
one))"},
            {"split-pattern", "gpt2|llama3|o200k|EXPRESSION",
             R"(text: the pattern that splits text into words, which a file of ranks does not hold; llama3 has that of
cl100k)"},
            {"special-tokens", "",
             R"(text, chat, preferences: reads the spelling of a special token in a document or message, such as <|endoftext|>, as that token instead of as text)"},
            {"template", "NAME",
             "chat, preferences: how messages are written: chatml, llama3, gemma, phi3, zephyr, "
             "mistral; or rendered: lines that strata_chat.py made with a model's own template "
             "(default: the one in the directory of --tokenizer, if it is one of these)"},
            {"roles", "ROLE,...",
             "chat, preferences: the roles whose messages are learned; others are read (default "
             "assistant)"},
            {"deduplicate", "",
             "text with --text-field, chat, preferences: leaves out documents whose text an "
             "earlier one has"},
            {"min-characters", "N", "likewise: leaves out shorter documents"},
            {"max-characters", "N", "likewise: leaves out longer ones"},
            {"held-out", "SHARE",
             "likewise: the test split is this share of documents, chosen by the hash of their "
             "text, so that each keeps its split when files are added"},
            {"max-tokens", "N", "chat, preferences: the most tokens of a dialogue or pair"},
            {"too-long", config::words_of<io::TooLong>(),
             "likewise: what happens to a longer one; cut, of a dialogue alone: it ends after the "
             "last learned message within --max-tokens; leave-out; refuse: the import ends "
             "(default cut)"},
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
       .on_ranks = import_data},
      {.name = "data inspect",
       .purpose = "show a data set, or check every byte",
       .synopses = {{"DIR/train.h5 ... [--verify] [--document=N] [--contact-sheet=FILE.png "
                     "[--samples=64]]"}},
       .about = "Shows what data sets hold.",
       .options =
           {{"verify", "", "reads every byte and compares it with its checksum"},
            {"contact-sheet", "FILE.png", "a picture of images spread over a data set"},
            {"samples", "N", "how many (default 64)"},
            {"document", "N",
             "the text of document N, counted from 0; where only a part counts as a target, that "
             "part stands between U+27E6 and U+27E7"}},
       .positions = config::Positions::kSome,
       .needs = "a master file",
       .alone = inspect_data}};
}

}  // namespace strata::app
