#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/loader.hpp"

#include "text_files.hpp"

namespace strata::io::token_loader_test {
namespace {

using test::error_of;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Ids = std::vector<std::int64_t>;

// Token i of the data set of numbered().
std::int64_t token(std::int64_t i) {
  return i * 7 % 50021;
}

// uint16 tokens in shards of 8192.
ImportOptions numbered_options(const TemporaryDirectory& directory, std::int64_t count) {
  std::vector<std::uint16_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::uint16_t>(token(i)));
  }
  write_file(directory / "tokens.bin", test::raw_bytes(std::span<const std::uint16_t>(tokens)));
  ImportOptions options;
  options.format = ImportFormat::kNanoGptTokens;
  options.inputs = {directory / "tokens.bin"};
  options.vocabulary = 50021;
  options.split = "1.0";
  options.shard_bytes = 8192 * 2;
  options.output = directory / "out";
  return options;
}

Dataset numbered(const TemporaryDirectory& directory, std::int64_t count, std::int64_t context) {
  Dataset dataset = Dataset::open(import_dataset(numbered_options(directory, count)).train);
  dataset.set_context(context);
  return dataset;
}

Ids row_of(const ConstTensorView& view, std::int64_t row) {
  const auto values = view.host<std::int64_t>();
  const auto first = values.begin() + row * view.shape()[1];
  return {first, first + view.shape()[1]};
}

// Expects tokens from `first` on.
void expect_tokens(const Ids& ids, std::int64_t first) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(ids[i], token(first + static_cast<std::int64_t>(i))) << "token " << i;
  }
}

LoaderOptions loader_options(std::int64_t batch, std::int64_t steps) {
  LoaderOptions options;
  options.seed = 5;
  options.global_batch = batch;
  options.microbatch = batch;
  options.steps = steps;
  return options;
}

// Where each sample of a loader begins, in the order in which they come.
Ids beginnings(const Dataset& dataset, const LoaderOptions& options) {
  std::vector<std::int64_t> place_of(50021, -1);
  for (std::int64_t i = std::min<std::int64_t>(dataset.info().tokens, 50021); i-- > 0;) {
    place_of[static_cast<std::size_t>(token(i))] = i;
  }
  Ids beginnings;
  Loader loader(dataset, options);
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const LoadedStep& loaded = loader.next();
    for (std::size_t m = 0; m < options.offsets.size(); ++m) {
      const auto microbatch = static_cast<std::int64_t>(m);
      for (std::int64_t row = 0; row < options.microbatch; ++row) {
        const Ids inputs = row_of(loaded.inputs(microbatch), row);
        const std::int64_t first = place_of[static_cast<std::size_t>(inputs[0])];
        expect_tokens(inputs, first);
        expect_tokens(row_of(loaded.targets(microbatch), row), first + 1);
        beginnings.push_back(first);
      }
    }
  }
  return beginnings;
}

TEST(TokenDataset, AContextMakesSamples) {
  const TemporaryDirectory directory;
  Dataset dataset = Dataset::open(import_dataset(numbered_options(directory, 101)).train);
  EXPECT_EQ(dataset.info().samples, 0);
  dataset.set_context(10);
  EXPECT_EQ(dataset.info().samples, 10);
  EXPECT_EQ(dataset.info().input_shape, Shape{10});
  EXPECT_EQ(dataset.info().target_shape, Shape{10});
  EXPECT_EQ(dataset.info().target_dtype, DType::kInt64);
  EXPECT_EQ(dataset.info().classes, 50021);
  EXPECT_EQ(facts_checksum(dataset.info()), dataset.info().checksum);
  dataset.set_context(11);
  EXPECT_EQ(dataset.info().samples, 9);
  dataset.set_context(100);
  EXPECT_EQ(dataset.info().samples, 1);
  EXPECT_THAT(error_of([&] { dataset.set_context(101); }),
              AllOf(HasSubstr("101 tokens"), HasSubstr("needs 102")));
  EXPECT_EQ(dataset.info().samples, 1);
  EXPECT_TRUE(dataset.class_counts().empty());
  EXPECT_THROW((void)dataset.sample_input(0), std::logic_error);
}

TEST(TokenDataset, OthersHaveNoContext) {
  const TemporaryDirectory directory;
  Dataset dataset = Dataset::open(test::import_images(directory, 4, "4").train);
  EXPECT_THAT(error_of([&] { dataset.set_context(2); }), HasSubstr("classification"));
  EXPECT_THAT(error_of([&] { (void)Tokenizer::of(dataset.info()); }), HasSubstr("--tokenizer"));
}

TEST(TokenLoader, EveryBlockComesOnceAnEpoch) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 30000, 100);
  ASSERT_EQ(dataset.info().samples, 299);
  const Ids order = beginnings(dataset, loader_options(13, 46));
  for (const std::size_t epoch : {0U, 1U}) {
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(epoch * 299);
    const std::set<std::int64_t> met(first, first + 299);
    EXPECT_EQ(met.size(), 299U);
    EXPECT_EQ(*met.rbegin(), 298 * 100);
    for (const std::int64_t begin : met) {
      EXPECT_EQ(begin % 100, 0);
    }
  }
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 299, order.begin() + 299));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.begin() + 299));
}

TEST(TokenLoader, EvaluationTakesBlocksInOrder) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 1001, 100);
  LoaderOptions options = loader_options(4, 3);
  options.order = Order::kSequential;
  const Ids expected{0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 900, 900};
  EXPECT_EQ(beginnings(dataset, options), expected);
  options.sampling = Sampling::kWindows;
  EXPECT_EQ(beginnings(dataset, options), expected);
}

TEST(TokenLoader, WindowsAreTheSameHoweverTheBatchIsCut) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 40000, 64);
  LoaderOptions whole = loader_options(12, 5);
  whole.sampling = Sampling::kWindows;
  const Ids expected = beginnings(dataset, whole);
  LoaderOptions cut = whole;
  cut.microbatch = 3;
  cut.offsets = {0, 3, 6, 9};
  EXPECT_EQ(beginnings(dataset, cut), expected);
  LoaderOptions later = cut;
  later.first_step = 3;
  later.steps = 2;
  EXPECT_EQ(beginnings(dataset, later), Ids(expected.begin() + 36, expected.end()));
  EXPECT_EQ(expected[17], window_at(5, 40000 - 64, 17));
  LoaderOptions other_seed = whole;
  other_seed.seed = 6;
  EXPECT_NE(beginnings(dataset, other_seed), expected);
}

TEST(TokenLoader, WindowsAreUniform) {
  constexpr std::int64_t kChoices = 7;
  constexpr std::int64_t kDraws = 70000;
  std::vector<std::int64_t> counts(kChoices);
  for (std::int64_t i = 0; i < kDraws; ++i) {
    ++counts.at(static_cast<std::size_t>(window_at(11, kChoices, i)));
  }
  // Five deviations of a binomial with the probability 1 / 7.
  EXPECT_THAT(counts, Each(::testing::AllOf(::testing::Ge(9537), ::testing::Le(10463))));
  const TemporaryDirectory directory;
  // One place only: all windows begin there.
  const Dataset dataset = numbered(directory, 65, 64);
  LoaderOptions options = loader_options(2, 2);
  options.sampling = Sampling::kWindows;
  EXPECT_THAT(beginnings(dataset, options), Each(0));
}

TEST(TokenLoader, GivesInputsOrTargetsAlone) {
  const TemporaryDirectory directory;
  const Dataset dataset = numbered(directory, 1000, 8);
  LoaderOptions options = loader_options(2, 1);
  options.order = Order::kSequential;
  options.parts = Parts::kInputs;
  Loader inputs(dataset, options);
  const LoadedStep& step = inputs.next();
  const ConstTensorView read = step.inputs(0);
  EXPECT_EQ(read.dtype(), DType::kInt64);
  EXPECT_EQ(read.shape(), (Shape{2, 8}));
  expect_tokens(row_of(read, 1), 8);
  EXPECT_EQ(2 * step.memory().bytes(), Loader::memory_bytes(dataset.info(), options));
  options.parts = Parts::kTargets;
  Loader targets(dataset, options);
  expect_tokens(row_of(targets.next().targets(0), 1), 9);
}

TEST(TokenLoader, NeedsAContext) {
  const TemporaryDirectory directory;
  const Dataset dataset = Dataset::open(import_dataset(numbered_options(directory, 100)).train);
  EXPECT_THROW(Loader(dataset, loader_options(1, 1)), std::logic_error);
}

std::string stored(std::int64_t first, std::int64_t count) {
  std::vector<std::uint16_t> ids;
  for (std::int64_t i = first; i < first + count; ++i) {
    ids.push_back(static_cast<std::uint16_t>(token(i)));
  }
  return test::raw_bytes(std::span<const std::uint16_t>(ids));
}

TEST(TokenDataset, DamagedBlocksAreFoundWhenRead) {
  const TemporaryDirectory directory;
  const ImportReport report = import_dataset(numbered_options(directory, 20000));
  test::flip_bit(directory / "out" / "train-00001.h5", stored(13000, 20));
  Dataset dataset = Dataset::open(report.train);
  dataset.set_context(64);
  Ids tokens(64);
  dataset.read_tokens(12288 - 64, tokens);
  const auto problem = AllOf(HasSubstr("block 1 of"), HasSubstr("train-00001.h5"),
                             HasSubstr("the tokens 12288 to 16383"), HasSubstr("checksum"));
  EXPECT_THAT(error_of([&] { dataset.read_tokens(12288 - 63, tokens); }), problem);
  LoaderOptions options = loader_options(1, 250);
  options.order = Order::kSequential;
  Loader loader(dataset, options);
  EXPECT_THAT(error_of([&] {
                for (int i = 0; i < 250; ++i) {
                  (void)loader.next();
                }
              }),
              problem);
  const std::vector<ShardCheck> checks = dataset.verify();
  ASSERT_EQ(checks.size(), 3U);
  EXPECT_EQ(checks[0].problem, "");
  EXPECT_EQ(checks[1].problem, "block 1 is damaged");
  EXPECT_EQ(checks[1].bad_samples, 1);
  EXPECT_EQ(checks[2].problem, "");
  const Inspection inspection = inspect_dataset(report.train, Inspect::kVerify);
  EXPECT_EQ(inspection.bad_shards, 1);
  EXPECT_THAT(inspection.text, HasSubstr("BAD: block 1 is damaged (1 bad blocks)"));
}

TEST(TokenDataset, AMissingOrForeignShardIsFoundWhenOpened) {
  const TemporaryDirectory directory;
  const ImportReport report = import_dataset(numbered_options(directory, 20000));
  const auto problem = [&] { return error_of([&] { (void)Dataset::open(report.train); }); };
  const std::filesystem::path shard = directory / "out" / "train-00002.h5";
  const std::string good = read_file(shard);
  std::filesystem::remove(shard);
  EXPECT_THAT(problem(), AllOf(HasSubstr("train-00002.h5"), HasSubstr("missing")));
  std::filesystem::copy_file(directory / "out" / "train-00001.h5", shard);
  EXPECT_THAT(problem(), HasSubstr("train-00002.h5"));
  write_file(shard, good.substr(0, good.size() - 100));
  EXPECT_THAT(problem(), HasSubstr("train-00002.h5"));
  write_file(shard, good);
  EXPECT_EQ(Dataset::open(report.train).info().tokens, 20000);
}

TEST(TokenDataset, IsDescribedForPeople) {
  const TemporaryDirectory directory;
  const ImportReport report = import_dataset(
      test::text_options(directory, TokenizerKind::kChars, {"one \"é\"\ntwo\x01"}, "1.0"));
  const Inspection inspection = inspect_dataset(report.train, Inspect::kVerify);
  EXPECT_EQ(inspection.bad_shards, 0);
  EXPECT_THAT(inspection.text,
              AllOf(HasSubstr("task        next_token"), HasSubstr("tokens      12 uint16"),
                    HasSubstr("vocabulary  10"), HasSubstr("tokenizer   chars"),
                    HasSubstr(R"(begins      "one \"é\"\ntwo\x01")"), HasSubstr("ok")));
}

TEST(TokenDataset, ADamagedTokenizerIsRefused) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  const ImportReport report =
      import_dataset(test::text_options(directory, TokenizerKind::kGpt2, {"the theory"}, "1.0"));
  test::remove_manifest(report.train);
  test::flip_bit(report.train, "ththe the");
  const Dataset dataset = Dataset::open(report.train);
  EXPECT_THAT(error_of([&] { (void)Tokenizer::of(dataset.info()); }),
              HasSubstr("the tokenizer in"));
}

TEST(TokenLoader, MissingShardsAreNamedTogether) {
  const TemporaryDirectory directory;
  const std::filesystem::path master = import_dataset(numbered_options(directory, 30000)).train;
  const auto opened = [&] { return error_of([&] { static_cast<void>(Dataset::open(master)); }); };
  std::filesystem::remove(directory / "out/train-00002.h5");
  EXPECT_THAT(opened(), HasSubstr("the shard train-00002.h5 of"));
  std::filesystem::remove(directory / "out/train-00000.h5");
  EXPECT_THAT(opened(), AllOf(HasSubstr("2 of the 4 shards of"),
                              HasSubstr("train-00000.h5, train-00002.h5; put them")));
}

}  // namespace
}  // namespace strata::io::token_loader_test
