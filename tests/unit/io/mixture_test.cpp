#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include <fmt/format.h>
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

std::filesystem::path imported_table(const TemporaryDirectory& directory, const std::string& name,
                                     const std::string& lines) {
  test::write_file(directory / (name + ".csv"), lines);
  return import_dataset({.format = ImportFormat::kCsv,
                         .inputs = {directory / (name + ".csv")},
                         .table = {.label = "label"},
                         .split = "1.0",
                         .order = ImportOrder::kFile,
                         .output = directory / name})
      .train;
}

TEST(Mixture, SetsOfSamplesAreReadByNameAndDescribedTogether) {
  const TemporaryDirectory directory;
  const MixtureSet first{.master = imported_table(
                             directory, "a", "x,y,label\n1,10,cat\n2,20,dog\n3,30,cat\n4,40,dog\n"),
                         .weight = 1.0};
  // Columns and classes in another order.
  const MixtureSet second{
      .master = imported_table(directory, "b", "y,label,x\n50,dog,5\n60,dog,6\n"), .weight = 3.0};
  const MixtureSet third{
      .master = imported_table(directory, "c", "label,x,y\ndog,7,70\ncat,8,80\n"), .weight = 4.0};
  const Dataset data = Dataset::open_several({first, second, third}, MixtureRules{});
  EXPECT_EQ(data.info().samples, 8);
  EXPECT_EQ(data.info().mixture, "0.125, 0.375, 0.5");
  EXPECT_THAT(data.warning(), HasSubstr("b/train.h5 has its columns in another order"));
  EXPECT_EQ(data.info().classes, 2);
  std::vector<std::string> rows;
  std::vector<std::byte> buffer;
  for (std::int64_t i = 0; i < 8; ++i) {
    std::array<float, 2> row{};
    std::memcpy(row.data(), data.ordered_input(i, buffer).data(), sizeof row);
    rows.push_back(fmt::format("{} {} {}", row[0], row[1],
                               data.info().class_names[static_cast<std::size_t>(data.label(i))]));
  }
  EXPECT_THAT(rows, ElementsAre("1 10 cat", "2 20 dog", "3 30 cat", "4 40 dog", "5 50 dog",
                                "6 60 dog", "7 70 dog", "8 80 cat"));
  EXPECT_THAT(data.class_counts(), ElementsAre(3, 5));
  EXPECT_THAT(data.sample_text(5), HasSubstr("sample 1 (number 1 of"));
  // Of all samples, whatever the weights: 1 to 8.
  EXPECT_DOUBLE_EQ(data.info().mean[0], 4.5);
  EXPECT_NEAR(data.info().deviation[0], std::sqrt(63.0 / 12.0), 1e-12);
  EXPECT_NEAR(data.info().deviation[1], 10.0 * std::sqrt(63.0 / 12.0), 1e-12);
  LoaderOptions options;
  options.global_batch = options.microbatch = 4096;
  Loader loader(data, options);
  const ConstTensorView targets = loader.next().targets(0);
  const auto dogs = std::ranges::count(targets.host<std::int64_t>(), 1);
  EXPECT_NEAR(static_cast<double>(dogs), (0.125 * 0.5 + 0.375 + 0.5 * 0.5) * 4096, 100.0);
  // Another model's order of all of them.
  Dataset again = Dataset::open_several({first, second}, MixtureRules{});
  DatasetInfo model = again.info();
  model.class_names = {"dog", "cat"};
  EXPECT_THAT(again.match_names(model, ""), HasSubstr("numbers its classes otherwise"));
  EXPECT_EQ(again.info().class_names, model.class_names);
  EXPECT_EQ(again.label(0), 1);
  EXPECT_EQ(again.label(5), 0);
}

TEST(Mixture, RefusesSamplesThatDiffer) {
  const TemporaryDirectory directory;
  const std::string rows = "x,y,label\n1,2,cat\n2,3,dog\n";
  const MixtureSet good{.master = imported_table(directory, "good", rows)};
  for (const auto& [name, lines, words] : std::vector<std::array<std::string, 3>>{
           {"shape", "x,y,z,label\n1,2,3,cat\n2,3,4,dog\n", "a sample is there 2, 3 here"},
           {"column", "x,z,label\n1,2,cat\n2,3,dog\n", "has the input column 'z', which"},
           {"class", "x,y,label\n1,2,cat\n2,3,cow\n", "has samples of the class 'cow', which"},
           {"numbers", "x,y,label\n1,2,0\n2,3,1\n1,2,0\n2,3,1\n",
            "the classes are there cat, dog, unnamed here"},
           {"values", "x,y,label\n1,2,0.5\n2,3,1.5\n",
            "the targets are for there classification"}}) {
    SCOPED_TRACE(name);
    const MixtureSet other{.master = imported_table(directory, name, lines)};
    const std::string error = error_of([&] {
      static_cast<void>(Dataset::open_several({good, other}, MixtureRules{}));
    });
    EXPECT_THAT(error, HasSubstr(words));
    EXPECT_THAT(error, HasSubstr("good/train.h5"));
    EXPECT_THAT(error, HasSubstr(name + "/train.h5"));
  }
  const MixtureSet text{.master = imported(directory, "text", {"some text"})};
  EXPECT_THAT(error_of([&] {
                static_cast<void>(Dataset::open_several({text, good}, MixtureRules{}));
              }),
              HasSubstr("the targets are for there next_token, classification here"));
  const MixtureSet more{.master = imported_table(directory, "more", rows), .weight = 1.0};
  EXPECT_THAT(error_of(
                  [&] {
                    static_cast<void>(Dataset::open_several(
                        {{good.master, 1.0}, more}, MixtureRules{.by = MixtureBy::kTokens}));
                  },
                  ExitCode::kUsage),
              HasSubstr("data.mixture_by is tokens, but"));
}

}  // namespace
}  // namespace strata::io::mixture_test
