#include "strata/core/text.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/familiar_names.hpp"
#include "strata/core/ini_lines.hpp"

namespace strata::text_test {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("dense", "dense"), 0);
  EXPECT_EQ(edit_distance("", "dense"), 5);
  EXPECT_EQ(edit_distance("dens", "dense"), 1);
  EXPECT_EQ(edit_distance("dennse", "dense"), 1);
  EXPECT_EQ(edit_distance("danse", "dense"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3);
}

TEST(Nearest, IsTheCandidateWithTheFewestEdits) {
  const std::vector<std::string> candidates{"batch.global", "batch.micro", "run.dir"};
  EXPECT_EQ(nearest("batch.globl", candidates), "batch.global");
  EXPECT_EQ(nearest("run.dri", candidates), "run.dir");
  EXPECT_EQ(nearest("anything", {}), "");
  EXPECT_EQ(nearest("globl", candidates), "batch.global");
  EXPECT_EQ(nearest("batch_size", candidates), "batch.global");
  // As many edits as the product of the lengths, if all were counted.
  EXPECT_EQ(nearest(std::string(1 << 24, 'x'), candidates), "batch.global");
}

TEST(MeantBy, KnowsSpellingsPartsAndOtherNames) {
  const std::vector<std::string> candidates{"batch.global", "train.steps", "local.steps",
                                            "numerics.split_k", "cross_entropy"};
  const auto name = [&](std::string_view text) {
    const auto meant = meant_by(text, candidates);
    return meant ? meant->name : "";
  };
  EXPECT_EQ(name("Batch.GLOBAL"), "batch.global");
  EXPECT_EQ(name("crossentropy"), "cross_entropy");
  EXPECT_EQ(name("split-k"), "numerics.split_k");
  EXPECT_EQ(name("trainer.batch_size"), "batch.global");
  EXPECT_EQ(name("global"), "batch.global");
  EXPECT_EQ(name("steps"), "train.steps") << "of two parts the one that people mean";
  EXPECT_EQ(name("n_embd"), "") << "no candidate";
  EXPECT_EQ(name("batch_sise"), "");
  EXPECT_EQ(name(""), "");
  EXPECT_EQ(name(std::string(1 << 24, 'x')), "");
  EXPECT_EQ(value_meant_by("CE", candidates), "cross_entropy");
  EXPECT_EQ(value_meant_by("global", candidates), "global") << "values have no parts";
}

TEST(Texts, ForPeople) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1280), "1.25 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{3} << 50), "3072.00 TiB");
  EXPECT_EQ(duration_text(4.23), "4.2 s");
  EXPECT_EQ(duration_text(200.0), "3 min 20 s");
  EXPECT_EQ(duration_text(7500.0), "2 h 05 min");
  EXPECT_EQ(duration_text(172799.0), "47 h 59 min");
  EXPECT_EQ(duration_text(172800.0), "2 d 0 h");
  EXPECT_EQ(duration_text(273599.0), "3 d 4 h");
  EXPECT_EQ(duration_text(1e300), "1e+300 s");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::quiet_NaN()), "nan s");
  EXPECT_EQ(number_text(2.30258), "2.3026");
  EXPECT_EQ(number_text(-97.5, 2), "-97.50");
  EXPECT_EQ(number_text(0.0), "0.0000");
  EXPECT_EQ(number_text(999999.0), "999999.0000");
  EXPECT_EQ(number_text(2e59), "2e+59");
  EXPECT_EQ(number_text(-1.7e308), "-1.7e+308");
  EXPECT_EQ(number_text(3.14159e-7), "3.142e-07");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(101770), "101,770");
  EXPECT_EQ(count_text(-1234567), "-1,234,567");
}

TEST(Words, AreSplitAndTrimmed) {
  EXPECT_EQ(split_words("  dense  128\trelu "), (std::vector<std::string>{"dense", "128", "relu"}));
  EXPECT_EQ(split_words("0, 2,,5", ","), (std::vector<std::string>{"0", "2", "5"}));
  EXPECT_TRUE(split_words("").empty());
  EXPECT_EQ(trimmed(" \t a b\r\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
}

TEST(Numbers, AreTheWholeTextOrNothing) {
  std::int64_t integer = 0;
  EXPECT_TRUE(parse_int64("-42", integer));
  EXPECT_EQ(integer, -42);
  for (const char* text : {"", " 1", "1 ", "1.0", "0x10", "9223372036854775808", "--1"}) {
    EXPECT_FALSE(parse_int64(text, integer)) << text;
  }
  double number = 0.0;
  EXPECT_TRUE(parse_double("+1e-3", number));
  EXPECT_EQ(number, 1e-3);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [text, value] : std::vector<std::pair<const char*, double>>{
           {"1e-325", 0.0}, {"1e-400", 0.0}, {"4.9e-324", 4.9e-324}, {"-1e400", -infinity}}) {
    EXPECT_TRUE(parse_double(text, number)) << text;
    EXPECT_EQ(number, value) << text;
  }
  for (const char* text : {"", "1,5", "1.5x", " 1", "1e400x", "1e-400 "}) {
    EXPECT_FALSE(parse_double(text, number)) << text;
  }
}

TEST(Table, AlignsColumnsAndUnderlinesTheHead) {
  EXPECT_EQ(table_text({{"name", "count"}, {"dense1", "100,480"}, {"d2", "10"}}),
            "name      count\n"
            "---------------\n"
            "dense1  100,480\n"
            "d2           10\n");
  EXPECT_EQ(table_text({}), "");
}

TEST(EnumNames, RoundTripAndAreListed) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kUint8, DType::kInt64}) {
    EXPECT_EQ(enum_from_name<DType>(name_of(dtype)), dtype);
  }
  EXPECT_EQ(enum_from_name<DType>("float16"), std::nullopt);
  EXPECT_EQ(joined_names<DType>("|"), "float32|float64|bfloat16|uint8|uint16|uint32|int64");
}

TEST(IniLines, SplitsSectionKeyValueAndComment) {
  std::string found;
  std::string refused;
  for (const IniLine& line : ini_lines("a = 1\n# x = 2\n[b] # c\n d=  e = f # derived: #7\r\n"
                                       "no key\n[open # c\nlast =",
                                       [&](std::string_view text) { refused += text; })) {
    found += line.key + "|" + line.value + "|" + line.comment + "\n";
  }
  EXPECT_EQ(found, "a|1|\nb.d|e = f|derived: #7\nb.last||\n");
  EXPECT_EQ(refused, "no key[open");
}

}  // namespace
}  // namespace strata::text_test
