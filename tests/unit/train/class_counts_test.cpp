#include "strata/train/class_counts.hpp"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../io/data_files.hpp"
#include "error_of.hpp"
#include "in_process.hpp"

namespace strata::train::class_counts_test {
namespace {

constexpr std::int64_t kClasses = 7;

/// Rows of logits, in the order of likelihood given: the first is the likeliest.
std::vector<float> logits_of(const std::vector<std::vector<std::int64_t>>& orders) {
  std::vector<float> logits;
  for (const std::vector<std::int64_t>& order : orders) {
    std::vector<float> row(kClasses, -100.0F);
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      row[static_cast<std::size_t>(order[rank])] = -static_cast<float>(rank);
    }
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

void add(ClassCounts& counts, const std::vector<std::vector<std::int64_t>>& orders,
         const std::vector<std::int64_t>& labels, std::int64_t valid) {
  const std::vector<float> logits = logits_of(orders);
  counts.add({std::span(logits), Shape{std::ssize(orders), kClasses}},
             {std::span(labels), Shape{std::ssize(labels)}}, valid);
}

TEST(ClassCounts, CountAnswersAndFirstFive) {
  ClassCounts counts(kClasses);
  add(counts,
      {{2, 1, 0, 3, 4, 5, 6}, {2, 1, 0, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1, 0}, {0, 1, 2, 3, 4, 5, 6}},
      {2, 4, 1, 0}, 3);
  EXPECT_EQ(counts.count(2, 2), 1);
  EXPECT_EQ(counts.count(4, 2), 1);
  EXPECT_EQ(counts.count(1, 6), 1);
  EXPECT_EQ(counts.samples(0), 0) << "a row that does not count";
  // The fifth rank counts, the sixth does not.
  EXPECT_DOUBLE_EQ(counts.accuracy_in_first(), 2.0 / 3.0);
}

TEST(ClassCounts, AverageF1OverTheClassesSeen) {
  ClassCounts counts(kClasses);
  add(counts, {{0}, {0}, {1}, {2}}, {0, 0, 0, 1}, 4);
  // Class 0: 2 of 3 samples, 2 predictions; class 1: 1 sample and 1 other's; class 2: a prediction.
  EXPECT_DOUBLE_EQ(counts.macro_f1(), (4.0 / 5.0 + 0.0 + 0.0) / 3.0);
}

TEST(ClassCounts, TakeTheFirstOfEqualLogits) {
  ClassCounts counts(kClasses);
  const std::vector<float> equal(2 * kClasses, 1.0F);
  const std::vector<std::int64_t> labels{4, 5};
  counts.add({std::span(equal), Shape{2, kClasses}}, {std::span(labels), Shape{2}}, 2);
  EXPECT_EQ(counts.count(4, 0), 1);
  EXPECT_EQ(counts.count(5, 0), 1);
  EXPECT_DOUBLE_EQ(counts.accuracy_in_first(), 0.5);
}

TEST(ClassCounts, AddUpOverRanks) {
  comm::run_in_process_ranks(3, [](comm::Communicator& group) {
    ClassCounts counts(kClasses);
    const std::int64_t label = group.rank();
    add(counts, {{label, 3, 4, 5, 6}, {1, 0, 2, 3, 4, 5, 6}}, {label, 2}, 2);
    counts.add_up(group);
    for (std::int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(counts.count(c, c), 1);
    }
    EXPECT_EQ(counts.count(2, 1), 3);
    EXPECT_EQ(counts.samples(2), 4);
  });
}

TEST(ClassCounts, AreWrittenAsCsv) {
  const io::test::TemporaryDirectory directory;
  ClassCounts counts(2);
  const std::vector<float> logits{1.0F, 0.0F, 1.0F, 0.0F, 0.0F, 1.0F};
  const std::vector<std::int64_t> labels{0, 1, 1};
  counts.add({std::span(logits), Shape{3, 2}}, {std::span(labels), Shape{3}}, 3);
  const std::vector<std::string> names{"a \"b\", c"};
  const std::filesystem::path file = directory / "confusion.csv";
  write_confusion(counts, names, file);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(), "class,\"a \"\"b\"\", c\",1\n\"a \"\"b\"\", c\",1,0\n1,1,1\n");
  const std::optional<ConfusionTable> read = confusion_in(text.str());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->names, (std::vector<std::string>{names[0], "1"}));
  EXPECT_EQ(read->counts, (std::vector<std::vector<double>>{{1, 0}, {1, 1}}));
  EXPECT_THAT(class_table(counts, names),
              testing::AllOf(testing::HasSubstr("100.00 %"), testing::HasSubstr("50.00 %")));
  EXPECT_THAT(strata::test::error_of([&] { write_confusion(counts, names, directory.path()); },
                                     ExitCode::kUsage),
              testing::HasSubstr("cannot write the confusion matrix"));
}

}  // namespace
}  // namespace strata::train::class_counts_test
