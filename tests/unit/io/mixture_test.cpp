#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/loader.hpp"

#include "text_files.hpp"

namespace strata::io::mixture_test {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(const std::vector<MixtureSet>& sets) {
  std::string text;
  for (const MixtureSet& set : sets) {
    text += set.master.string() + "=" +
            (set.weight ? std::to_string(std::lround(100.0 * *set.weight)) : "-") + " ";
  }
  return text;
}

TEST(Mixture, ReadsFilesWithAndWithoutWeights) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a.h5", "a.h5=- "},
      {"a.h5:0.7, b.h5:0.3", "a.h5=70 b.h5=30 "},
      {" d/a.h5 ,b.h5", "d/a.h5=- b.h5=- "},
      {"a.h5:2", "a.h5=200 "},
      {"c:/x/a.h5,b.h5", "c:/x/a.h5=- b.h5=- "}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(text_of(mixture_sets(text)), expected) << text;
  }
  for (const auto& [text, why] :
       std::vector<std::pair<std::string, std::string>>{{"a.h5:x, b.h5:1", "the weight \"x\""},
                                                        {"a.h5:0, b.h5:1", "above 0"},
                                                        {"a.h5:-1, b.h5:1", "above 0"},
                                                        {"a.h5:nan, b.h5:1", "above 0"},
                                                        {"a.h5:1, b.h5", "others none"},
                                                        {"a.h5, , b.h5", "no name"}}) {
    EXPECT_THAT(error_of([&] { static_cast<void>(mixture_sets(text)); }, ExitCode::kUsage),
                HasSubstr(why))
        << text;
  }
  const TemporaryDirectory directory;
  const std::filesystem::path odd = directory / "a:1, b.h5";
  test::write_file(odd, "");
  EXPECT_EQ(mixture_sets(odd.string()).front().master, odd);
}

TEST(Mixture, SharesAreExactInEveryPrefixOfBlocks) {
  std::vector<double> thousands(10000, 1.0);
  thousands[7] = 50.0;
  for (const std::vector<double>& weights :
       {std::vector<double>{0.7, 0.2, 0.1}, {1.0}, {1.0, 1.0 / 60000.0}, thousands}) {
    const Mixture mixture(weights);
    double sum = 0.0;
    for (const double weight : weights) {
      sum += weight;
    }
    for (const std::int64_t blocks : {1, 2, 3, 10, 12345}) {
      std::int64_t all = 0;
      for (std::size_t set = 0; set < weights.size(); ++set) {
        const std::int64_t count = mixture.count(static_cast<std::int64_t>(set), blocks);
        const double share = weights[set] / sum * static_cast<double>(blocks * Mixture::kBlock);
        ASSERT_LT(std::abs(static_cast<double>(count) - share), 1.01) << set << " " << blocks;
        ASSERT_GE(count, mixture.count(static_cast<std::int64_t>(set), blocks - 1));
        all += count;
      }
      EXPECT_EQ(all, blocks * Mixture::kBlock);
    }
  }
}

TEST(Mixture, EachSetsSamplesComeInOrderWithoutAGap) {
  const Mixture mixture({5.0, 3.0, 1.0});
  EXPECT_EQ(mixture.text(), "0.555555555556, 0.333333333333, 0.111111111111");
  std::map<std::int64_t, std::vector<bool>> seen;
  for (std::int64_t place = 0; place < 2 * Mixture::kBlock; ++place) {
    const Mixture::Place at = mixture.at(3, place);
    std::vector<bool>& of_set = seen[at.set];
    of_set.resize(std::max(of_set.size(), static_cast<std::size_t>(at.index) + 1));
    EXPECT_FALSE(of_set[static_cast<std::size_t>(at.index)]);
    of_set[static_cast<std::size_t>(at.index)] = true;
  }
  for (const auto& [set, indices] : seen) {
    EXPECT_EQ(std::ssize(indices), mixture.count(set, 2));
    EXPECT_TRUE(std::ranges::all_of(indices, [](bool found) { return found; }));
  }
  // Another seed, another order; and the sets of neighbouring places differ.
  int same = 0;
  int changes = 0;
  for (std::int64_t place = 0; place < 1000; ++place) {
    same += mixture.at(3, place).index == mixture.at(4, place).index ? 1 : 0;
    changes += mixture.at(3, place).set != mixture.at(3, place + 1).set ? 1 : 0;
  }
  EXPECT_LT(same, 100);
  EXPECT_GT(changes, 300);
}

std::filesystem::path imported(const TemporaryDirectory& directory, const std::string& name,
                               const std::vector<std::string>& texts,
                               TokenizerKind tokenizer = TokenizerKind::kBytes) {
  ImportOptions options = test::text_options(directory, tokenizer, texts, "1.0");
  options.output = directory / name;
  return import_dataset(options).train;
}

TEST(Mixture, ALoaderReadsItsSetsByTheirShares) {
  const TemporaryDirectory directory;
  const std::vector<MixtureSet> sets{
      {.master = imported(directory, "a", {std::string(40, 'a'), "a"}), .weight = 3.0},
      {.master = imported(directory, "b", {"bb", "bbb"}), .weight = 1.0}};
  Dataset data = Dataset::open_several(sets, MixtureRules{});
  data.set_context(4);
  EXPECT_EQ(data.info().samples, 10 + 1);
  EXPECT_EQ(data.info().tokens, 46);
  EXPECT_EQ(data.info().mixture, "0.75, 0.25");
  EXPECT_THAT(data.documents().ends, ElementsAre(40, 41, 43, 46));
  LoaderOptions options;
  options.global_batch = options.microbatch = 4096;
  Loader loader(data, options);
  const ConstTensorView inputs = loader.next().inputs(0);
  std::int64_t of_a = 0;
  for (std::int64_t row = 0; row < 4096; ++row) {
    of_a += inputs.host<std::int64_t>()[static_cast<std::size_t>(row) * 4] == 'a' ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(of_a), 0.75 * 4096, 100.0);
  // In sequence the sets follow each other.
  options.order = Order::kSequential;
  options.global_batch = options.microbatch = 11;
  Loader all(data, options);
  const ConstTensorView rows = all.next().inputs(0);
  EXPECT_EQ(rows.host<std::int64_t>()[39], 'a');
  EXPECT_EQ(rows.host<std::int64_t>()[40], 'b');
  data.set_context(4, Packing::kBestFit);
  EXPECT_EQ(data.info().packed_inputs, 39 + 1 + 2);
}

TEST(Mixture, ATemperatureMakesSharesMoreAlike) {
  const TemporaryDirectory directory;
  const std::vector<MixtureSet> sets{{.master = imported(directory, "a", {std::string(65, 'a')})},
                                     {.master = imported(directory, "b", {std::string(17, 'b')})}};
  for (const auto& [temperature, text] :
       {std::pair{1.0, "0.8, 0.2"}, {2.0, "0.666666666667, 0.333333333333"}}) {
    Dataset data = Dataset::open_several(sets, MixtureRules{.temperature = temperature});
    data.set_context(4);
    EXPECT_EQ(data.info().mixture, text);
  }
}

TEST(Mixture, WeightsArePartsOfSamplesTokensOrEpochs) {
  const TemporaryDirectory directory;
  // As documents 16 samples of 4 inputs and 8 of 1 input; in blocks 19 and 3 samples.
  const auto documents = [](char letter, int count, std::size_t letters) {
    return std::vector<std::string>(static_cast<std::size_t>(count), std::string(letters, letter));
  };
  const std::vector<MixtureSet> sets{
      {.master = imported(directory, "a", documents('a', 16, 5)), .weight = 1.0},
      {.master = imported(directory, "b", documents('b', 8, 2)), .weight = 2.0}};
  for (const auto& [by, packing, text] :
       {std::tuple{MixtureBy::kSamples, Packing::kDocuments, "0.333333333333, 0.666666666667"},
        {MixtureBy::kTokens, Packing::kDocuments, "0.111111111111, 0.888888888889"},
        {MixtureBy::kEpochs, Packing::kDocuments, "0.5, 0.5"},
        {MixtureBy::kTokens, Packing::kBlocks, "0.333333333333, 0.666666666667"},
        {MixtureBy::kEpochs, Packing::kBlocks, "0.76, 0.24"}}) {
    Dataset data = Dataset::open_several(sets, MixtureRules{.by = by});
    data.set_context(4, packing);
    EXPECT_EQ(data.info().mixture, text) << name_of(by) << " " << name_of(packing);
    EXPECT_EQ(data.mixture()->sets(), 2);
  }
}

TEST(Mixture, RefusesSetsThatDoNotFit) {
  const TemporaryDirectory directory;
  const MixtureSet bytes{.master = imported(directory, "a", {"some text"})};
  const MixtureSet chars{.master = imported(directory, "b", {"other text"}, TokenizerKind::kChars)};
  EXPECT_THAT(error_of([&] {
                static_cast<void>(Dataset::open_several({bytes, chars}, MixtureRules{}));
              }),
              HasSubstr("another one"));
  EXPECT_THAT(error_of(
                  [&] {
                    static_cast<void>(Dataset::open_several({bytes, bytes}, {}));
                  },
                  ExitCode::kUsage),
              HasSubstr("a/train.h5 is named twice"));
  const MixtureSet more{.master = imported(directory, "c", {"more text"}), .weight = 1e-9};
  Dataset tiny = Dataset::open_several({{bytes.master, 1.0}, more}, MixtureRules{});
  EXPECT_THAT(error_of([&] { tiny.set_context(2); }, ExitCode::kUsage),
              HasSubstr("less than 1 of 65536"));
}

}  // namespace
}  // namespace strata::io::mixture_test
