#include "harness.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "strata/config/config_file.hpp"
#include "strata/core/random.hpp"
#include "strata/core/text.hpp"
#include "strata/io/import.hpp"
#include "strata/train/receipts.hpp"

#include "../unit/io/data_files.hpp"
#include "commands/commands.hpp"
#include "in_process.hpp"
#include "train_rank.hpp"

namespace strata::grids {
namespace {

namespace fs = std::filesystem;

/// Clusters around one random centre a class, with noise.
void import_classes(const std::string& name, const Shape& shape, std::int64_t classes,
                    std::int64_t train, std::int64_t test) {
  const RandomStream random(1, RandomPurpose::kSynthesise, subject_of(name));
  const auto values = static_cast<std::uint64_t>(shape.count());
  const std::int64_t samples = train + test;
  std::vector<float> inputs;
  std::vector<std::int64_t> targets;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    targets.push_back(sample * 7 % classes);
    const std::uint64_t centre = (1U << 20U) + static_cast<std::uint64_t>(targets.back()) * values;
    for (std::uint64_t i = 0; i < values; ++i) {
      inputs.push_back(
          static_cast<float>(random.normal(centre + i) +
                             random.normal(static_cast<std::uint64_t>(sample) * values + i)));
    }
  }
  std::string extents = fmt::format("({},", samples);
  for (const std::int64_t extent : shape.extents()) {
    extents += fmt::format(" {},", extent);
  }
  io::test::write_file(
      name + "-inputs.npy",
      io::test::npy("<f4", extents + ")", io::test::raw_bytes(std::span<const float>(inputs))));
  io::test::write_file(name + "-targets.npy",
                       io::test::npy("<i8", fmt::format("({},)", samples),
                                     io::test::raw_bytes(std::span<const std::int64_t>(targets))));
  io::import_dataset({.format = io::ImportFormat::kNpy,
                      .inputs = {name + "-inputs.npy"},
                      .targets = {name + "-targets.npy"},
                      .classes = classes,
                      .split = fmt::format("{},{}", train, test),
                      .output = name});
}

/// A plane of values with noise.
void import_values() {
  const RandomStream random(3, RandomPurpose::kSynthesise, 0);
  std::string lines = "a,b,c,d,e,f,value\n";
  for (std::uint64_t row = 0; row < 120; ++row) {
    double value = 0.5;
    for (std::uint64_t i = 0; i < 6; ++i) {
      const double x = random.normal(row * 6 + i);
      value += x * random.normal((1U << 20U) + i);
      lines += fmt::format("{:.6f},", x);
    }
    lines += fmt::format("{:.6f}\n", value);
  }
  io::test::write_file("values.csv", lines);
  io::import_dataset({.format = io::ImportFormat::kCsv,
                      .inputs = {"values.csv"},
                      .table = {.label = "value"},
                      .split = "100,20",
                      .order = io::ImportOrder::kFile,
                      .output = "values"});
}

/// Words, each of them followed by one of three: 26 characters, which 4 shards do not divide.
void import_text() {
  const std::vector<std::string> words = split_words(
      "amber brook cedar dune ember fjord grove heath islet jetty knoll ledge marsh north ocean "
      "plain quarry ridge slope thorn upland vale wharf exile yarrow");
  std::mt19937 random(1);
  std::string text;
  for (const std::string& word : words) {
    text += word + " ";
  }
  for (std::size_t i = 0, word = 0; i < 3200; ++i) {
    text += words[word] + " ";
    word = (word * 5 + 7 * (random() % 3) + 1) % words.size();
  }
  io::test::write_file("text.txt", text);
  io::import_dataset({.format = io::ImportFormat::kText,
                      .inputs = {"text.txt"},
                      .tokenizer = io::TokenizerKind::kChars,
                      .output = "text"});
  // Of `few` not four batches of 8, so that runs cross the ends of epochs.
  for (const auto& [name, end] : {std::pair{"documents", text.size()}, {"few", std::size_t{300}}}) {
    std::string lines;
    for (std::size_t at = 0; at < end;) {
      const std::size_t characters = 1 + random() % 8 * (random() % 6);
      lines += nlohmann::json{{"text", text.substr(at, characters)}}.dump() + "\n";
      at += characters;
    }
    io::test::write_file("lines.jsonl", lines);
    io::import_dataset({.format = io::ImportFormat::kText,
                        .inputs = {"lines.jsonl"},
                        .tokenizer = io::TokenizerKind::kChars,
                        .text_field = "text",
                        .output = name});
  }
}

/// Pairs of short answers, of which the preferred ones begin with an a.
void import_pairs() {
  std::mt19937 random(9);
  const auto word = [&](std::size_t most) {
    std::string text;
    for (std::size_t length = 1 + random() % most; length > 0; --length) {
      text += static_cast<char>('b' + random() % 8);
    }
    return text;
  };
  std::string lines;
  for (int pair = 0; pair < 90; ++pair) {
    const std::string prompt = word(3) + "?";
    const auto dialogue = [&](const std::string& answer) {
      return nlohmann::json{{{"text", prompt}, {"label", false}},
                            {{"text", answer}, {"label", true}}};
    };
    lines += nlohmann::json{{"chosen", dialogue("a" + word(3))}, {"rejected", dialogue(word(3))}}
                 .dump() +
             "\n";
  }
  io::test::write_file("pairs.jsonl", lines);
  io::import_dataset({.format = io::ImportFormat::kPreferences,
                      .inputs = {"pairs.jsonl"},
                      .tokenizer = io::TokenizerKind::kBytes,
                      .chat_template = std::string(io::kRenderedChats),
                      .output = "pairs"});
}

/// Images whose class shows in their colours, in CIFAR-10's records.
void import_images() {
  std::mt19937 random(5);
  std::string records;
  for (unsigned sample = 0; sample < 72; ++sample) {
    const unsigned label = sample % 10;
    records += static_cast<char>(label);
    for (const unsigned level : {label, 9 - label, label % 3 * 3}) {
      for (int pixel = 0; pixel < 32 * 32; ++pixel) {
        records += static_cast<char>(random() % 128 + 12 * level);
      }
    }
  }
  io::test::write_file("batch.bin", records);
  io::import_dataset({.format = io::ImportFormat::kCifar10,
                      .inputs = {"batch.bin"},
                      .split = "64,8",
                      .output = "images"});
}

/// The scratch directory, which is the working directory from here on, with all data sets.
void enter_scratch_directory() {
  static const io::test::TemporaryDirectory kDirectory;
  static bool entered = false;
  if (std::exchange(entered, true)) {
    return;
  }
  fs::current_path(kDirectory.path());
  io::test::write_file("empty.ini", "");
  import_classes("classes", Shape{3, 4}, 5, 200, 50);
  import_classes("more-classes", Shape{3, 4}, 5, 130, 40);
  import_classes("planes", Shape{40, 30}, 5, 77, 33);
  import_classes("squares", Shape{16, 16}, 5, 77, 33);
  import_classes("small-images", Shape{2, 6, 6}, 5, 100, 20);
  import_values();
  import_text();
  import_pairs();
  import_images();
}

/// One part of a run.
struct Part {
  config::RunConfig config;
  std::int64_t ranks = 1;
  std::int64_t stop_rank = -1;
  std::int64_t stop_step = 0;  ///< counted from the part's first
};

Part part_of(const std::string& name, const Settings& given, const std::string& text) {
  std::vector<std::string> settings = split_words(given, "&");
  settings.push_back("run.dir=" + name);
  const std::vector<std::string> words = split_words(text);
  Part part;
  const std::vector<std::string> grid = split_words(words.front(), "x");
  const std::vector<std::string> axes{"data", "pipeline", "tensor"};
  for (std::size_t axis = 0; axis < grid.size(); ++axis) {
    part.ranks *= std::stoll(grid[axis]);
    settings.push_back("parallel." + axes[axis] + "=" + grid[axis]);
  }
  for (const std::string& word : std::span(words).subspan(1)) {
    if (word.starts_with("stop=")) {
      part.stop_rank = std::stoll(word.substr(5));
      part.stop_step = std::stoll(word.substr(word.find(':') + 1));
    } else {
      settings.push_back(word);
    }
  }
  for (std::string& setting : settings) {
    setting.insert(0, "--");
  }
  part.config = config::read_config("empty.ini", settings).config;
  const config::RunConfig& config = part.config;
  if (config.parallel.sync != config::Sync::kAsync && config.parallel.island_of.empty() &&
      config.local.record.empty() && config.numerics.mode == comm::Summation::kInvariant) {
    part.config.run.receipts = 1;
  }
  return part;
}

Result result_of(const config::RunConfig& config) {
  Result result;
  std::ifstream in(fs::path(config.run.dir) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains("compute_seconds")) {
      train::test::expect_parts_of_step(record);
      if (config.async.servers == 0) {
        EXPECT_GT(train::test::seconds_of(record, "compute"), 0.0);
      }
    }
    nlohmann::json kept;
    const std::set<std::string> compared{"kind",          "step",          "loss",
                                         "grad_norm",     "learning_rate", "accuracy",
                                         "accuracy_mean", "margin",        "margin_mean"};
    for (const auto& [key, value] : record.items()) {
      if (compared.contains(key) || key.starts_with("loss/") || key.starts_with("tokens/") ||
          key.starts_with("samples/")) {
        kept[key] = value;
      }
    }
    if (kept.at("kind") != "checkpoint" && kept.at("kind") != "run") {
      result.records.push_back(std::move(kept));
    }
  }
  if (config.run.receipts > 0) {
    // A whole chain, with the same digests on all grids.
    const auto receipts = train::Receipts::read(fs::path(config.run.dir) / train::kReceiptsFile);
    for (std::int64_t step = 1; step <= receipts.last_step(); ++step) {
      result.records.push_back(receipts.step(step));
      result.records.back().erase("sha256");
      result.records.back()["kind"] = "receipt";
    }
    EXPECT_EQ(receipts.save(receipts.last_step()).is_null(), false);
  }
  const auto entries = io::list_checkpoints(train::checkpoint_root(config));
  require(!entries.empty(), "no checkpoint in {}", config.run.dir);
  const io::Checkpoint checkpoint = io::Checkpoint::open(entries.front().directory);
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    StoredTensor& stored = result.tensors[tensor.name];
    stored = {.shape = tensor.shape, .dtype = tensor.dtype};
    stored.bytes.resize(static_cast<std::size_t>(tensor.shape.count() * size_bytes(tensor.dtype)));
    checkpoint.read(tensor.name, tensor.shape, {}, {0, tensor.shape.count()},
                    TensorView(stored.bytes.data(), tensor.shape, tensor.dtype));
  }
  return result;
}

class Grids : public testing::TestWithParam<Case> {};

TEST_P(Grids, GiveTheBitsOfOneRank) {
  const Case& given = GetParam();
  Settings settings = given.settings;
  given.before();
  if (!given.base.empty()) {
    static_cast<void>(train(given.base, "2x1x2", given.name));
    settings += "& checkpoint.init=" + given.name;
  }
  RecordProperty("compared", static_cast<int>(given.runs.size()));
  const Result reference = train(settings, given.reference);
  const std::vector<double> losses = reference.losses();
  EXPECT_FALSE(losses.empty());
  EXPECT_EQ(std::ranges::adjacent_find(losses), losses.end()) << "a step changed nothing";
  given.check(reference);
  for (const std::string& run : given.runs) {
    SCOPED_TRACE(run);
    expect_same(train(settings, run), reference);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& cases :
       {dense_cases(), convolution_cases(), language_cases(), fine_tuning_cases(), local_cases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Case, Grids, testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace

std::vector<double> StoredTensor::values() const {
  std::vector<double> all;
  with_floating(dtype, [&]<typename T>(T) {
    std::vector<T> typed(static_cast<std::size_t>(shape.count()));
    std::memcpy(typed.data(), bytes.data(), bytes.size());
    all.assign(typed.begin(), typed.end());
  });
  return all;
}

std::vector<double> Result::numbers(std::string_view kind, std::string_view key) const {
  std::vector<double> all;
  for (const nlohmann::json& record : records) {
    if (record.at("kind") == kind) {
      all.push_back(record.at(key).get<double>());
    }
  }
  return all;
}

void expect_same(const Result& found, const Result& expected) {
  // One asynchronous worker has the same numbers, and no receipts; they come last.
  const auto compared = [](const Result& result, const Result& other) {
    const auto has = [](const Result& of) {
      return std::ranges::count(of.records, "receipt", [](const nlohmann::json& record) {
        return record.at("kind").get<std::string>();
      });
    };
    return static_cast<std::size_t>(std::ssize(result.records) -
                                    (has(other) == 0 ? has(result) : 0));
  };
  ASSERT_EQ(compared(found, expected), compared(expected, found));
  for (std::size_t i = 0; i < compared(expected, found); ++i) {
    EXPECT_EQ(found.records[i].dump(), expected.records[i].dump());
  }
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(found.tensors.contains(name) && found.tensors.at(name) == tensor)
        << name << " differs";
  }
}

void learns(const Result& result) {
  EXPECT_LT(result.losses().back(), result.losses().front());
}

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

std::vector<std::string> list_of(std::string_view text) {
  return split_words(text, ";");
}

std::vector<std::string> varied(std::string_view grids, const std::vector<Cycle>& cycles,
                                std::string_view more) {
  std::vector<std::string> runs = split_words(grids);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Cycle& cycle : cycles) {
      const std::vector<std::string> values = split_words(cycle.values);
      runs[i] += " " + values[i / cycle.pace % values.size()];
    }
  }
  const std::vector<std::string> others = list_of(more);
  runs.insert(runs.end(), others.begin(), others.end());
  return runs;
}

Result train(const Settings& settings, const std::string& run, std::string name,
             const HooksOfRank& hooks) {
  enter_scratch_directory();
  static int number = 0;
  name = name.empty() ? fmt::format("run-{}", ++number) : name;
  std::string resume;
  Part part;
  for (const std::string& text : split_words(run, "|")) {
    part = part_of(name, settings, text + resume);
    fs::create_directories(train::checkpoint_root(part.config));
    comm::run_in_process_ranks(part.ranks, [&](comm::Communicator& world) {
      world.set_timeout({.seconds = part.config.run.timeout_seconds});
      comm::ProgressEngine engine;
      std::int64_t asked = 0;
      const auto stop_request = [&] {
        return world.rank() == part.stop_rank && ++asked >= part.stop_step
                   ? train::StopRequest::kStop
                   : train::StopRequest::kNone;
      };
      const train::Outcome outcome =
          train::test::train_rank(world, engine, part.config, config::config_text, stop_request,
                                  hooks ? hooks(world.rank()) : train::TrainerHooks());
      require(
          outcome == (part.stop_rank < 0 ? train::Outcome::kFinished : train::Outcome::kStopped),
          "the run ended otherwise");
      world.barrier();
    });
    resume = " run.resume=must";
  }
  return result_of(part.config);
}

void write_scratch(const std::string& name, const std::string& text) {
  enter_scratch_directory();
  io::test::write_file(name, text);
}

void make_schedule(const std::string& arguments) {
  enter_scratch_directory();
  const std::vector<std::string> words = split_words("schedule " + arguments);
  const config::Command& command = app::command_of(words);
  const config::CommandLine line(command, app::arguments_of(command, words));
  ASSERT_EQ(command.alone(line), ExitCode::kDone);
}

}  // namespace strata::grids
