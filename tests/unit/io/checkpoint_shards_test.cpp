#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/checkpoint.hpp"

#include "checkpoint_cases.hpp"

namespace strata::io::checkpoint_shards_test {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_error;
using test::flip_bit;
using test::TemporaryDirectory;
using ::testing::HasSubstr;

/// How a tensor is cut: shards along a dimension, and flat ranges within each.
struct Cut {
  std::int64_t dimension = ShardSlice::kNotSplit;
  std::int64_t shards = 1;
  std::int64_t ranges = 1;

  [[nodiscard]] std::string text() const {
    return fmt::format("{} shards of dimension {}, {} ranges", shards, dimension, ranges);
  }
};

/// One slice of a cut, with the elements that belong there.
struct Held {
  ShardSlice shard;
  grid::Range range;
  std::vector<float> elements;
};

/// Element i is i.
std::vector<float> counted(const Shape& shape) {
  std::vector<float> elements(static_cast<std::size_t>(shape.count()));
  std::iota(elements.begin(), elements.end(), 0.0F);
  return elements;
}

/// The elements of a shard's part, found one by one.
std::vector<float> part_of(const Shape& shape, const ShardSlice& shard) {
  std::vector<float> part;
  std::int64_t inner = 1;
  for (auto d = static_cast<std::size_t>(shard.dimension) + 1; d < shape.rank(); ++d) {
    inner *= shape[d];
  }
  for (const float element : counted(shape)) {
    const std::int64_t index = static_cast<std::int64_t>(element) / inner %
                               shape[static_cast<std::size_t>(shard.dimension)];
    if (index >= shard.first && index < shard.first + shard.count) {
      part.push_back(element);
    }
  }
  return part;
}

std::vector<Held> slices_of(const Shape& shape, const Cut& cut) {
  std::vector<Held> slices;
  for (std::int64_t s = 0; s < cut.shards; ++s) {
    ShardSlice shard;
    std::vector<float> part = counted(shape);
    if (cut.dimension != ShardSlice::kNotSplit) {
      const grid::Range indices =
          grid::even_part(shape[static_cast<std::size_t>(cut.dimension)], cut.shards, s);
      shard = {.dimension = cut.dimension, .first = indices.begin, .count = indices.count()};
      part = part_of(shape, shard);
    }
    for (std::int64_t r = 0; r < cut.ranges; ++r) {
      const grid::Range range = grid::even_part(std::ssize(part), cut.ranges, r);
      slices.push_back(
          {.shard = shard,
           .range = range,
           .elements = std::vector<float>(part.begin() + range.begin, part.begin() + range.end)});
    }
  }
  return slices;
}

TensorSlice written(const Shape& shape, const Held& held, const std::string& name = "weights/w") {
  return {.name = name,
          .global_shape = shape,
          .range = held.range,
          .data = ConstTensorView(std::span<const float>(held.elements),
                                  Shape{std::ssize(held.elements)}),
          .shard = held.shard};
}

/// A checkpoint in which slice i of the cut lies in part i % 3.
fs::path write_cut(const fs::path& root, const Shape& shape, const Cut& cut) {
  const std::vector<Held> all = slices_of(shape, cut);
  std::array<std::vector<TensorSlice>, 3> parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    parts[i % 3].push_back(written(shape, all[i]));
  }
  const fs::path directory = begin_checkpoint(root, 1);
  std::vector<PartRecord> records;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const PartRecord record = write_part(directory, static_cast<std::int64_t>(p), parts[p]);
    records.push_back(part_record_of(text_of(record)));
  }
  return commit_checkpoint(root, 1, records, {});
}

void expect_reads(const Checkpoint& checkpoint, const Shape& shape, const Cut& cut,
                  const std::string& what) {
  for (const Held& expected : slices_of(shape, cut)) {
    std::vector<float> out(expected.elements.size(), -1.0F);
    checkpoint.read("weights/w", shape, expected.shard, expected.range,
                    TensorView(std::span<float>(out), Shape{std::ssize(out)}));
    EXPECT_TRUE(out == expected.elements) << what << " read as " << cut.text();
  }
}

std::vector<Cut> cuts_of(const Shape& shape) {
  std::vector<Cut> cuts{{}, {.ranges = 4}};
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    for (const std::int64_t shards : {1, 2, 3, 4}) {
      for (const std::int64_t ranges : {1, 3}) {
        cuts.push_back(
            {.dimension = static_cast<std::int64_t>(d), .shards = shards, .ranges = ranges});
      }
    }
  }
  return cuts;
}

class CheckpointShards : public ::testing::TestWithParam<Shape> {};

TEST_P(CheckpointShards, AreReadWithAnyOtherSplit) {
  const TemporaryDirectory scratch;
  for (const Cut& stored : cuts_of(GetParam())) {
    const Checkpoint checkpoint = Checkpoint::open(write_cut(scratch.path(), GetParam(), stored));
    for (const Cut& read : cuts_of(GetParam())) {
      expect_reads(checkpoint, GetParam(), read, "stored as " + stored.text());
    }
  }
}

// Extents that shards do not divide, and one with fewer indices than shards.
INSTANTIATE_TEST_SUITE_P(Shapes, CheckpointShards,
                         ::testing::Values(Shape{7}, Shape{7, 5}, Shape{5, 7, 3},
                                           Shape{2, 3, 2, 5}));

TEST(CheckpointShards, LargeOnesAreCutOutOfLargerReads) {
  const TemporaryDirectory scratch;
  // More elements than one read holds, in short rows; and rows that are read by themselves.
  for (const Shape& shape : {Shape{1700, 1000}, Shape{3, 120000}}) {
    for (const Cut& stored :
         {Cut{}, Cut{.dimension = 1, .shards = 3}, Cut{.dimension = 0, .shards = 3, .ranges = 2}}) {
      const Checkpoint checkpoint = Checkpoint::open(write_cut(scratch.path(), shape, stored));
      for (const Cut& read : {Cut{}, Cut{.dimension = 1, .shards = 2, .ranges = 3}}) {
        expect_reads(checkpoint, shape, read, "stored as " + stored.text());
      }
    }
  }
}

TEST(CheckpointShards, AreShownWholeToH5py) {
  const TemporaryDirectory scratch;
  const Shape shape{5, 7, 3};
  std::string directories;
  for (const std::int64_t dimension : {0, 1, 2}) {
    const Cut cut{.dimension = dimension, .shards = 3, .ranges = 2};
    directories +=
        " " + write_cut(scratch.path() / fmt::format("split{}", dimension), shape, cut).string();
  }
  const fs::path script = scratch.path() / "read.py";
  std::ofstream(script) << R"(import sys
import h5py, numpy
expected = numpy.arange(105, dtype="f4").reshape(5, 7, 3)
for directory in sys.argv[1:]:
    with h5py.File(directory + "/master.h5", "r") as master:
        array = master["weights/w"][()]
        assert array.dtype == "f4" and array.shape == (5, 7, 3), array.shape
        assert (array == expected).all(), (directory, array)
        assert (master["weights/w"][1:4, 2:6, 1] == expected[1:4, 2:6, 1]).all(), directory
print("equal")
)";
  const fs::path output = scratch.path() / "output";
  const std::string command =
      fmt::format("/usr/bin/python3 {}{} > {} 2>&1", script.string(), directories, output.string());
  const int status = std::system(command.c_str());
  std::ifstream in(output);
  const std::string said((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(said, "equal\n");
}

/// The message with which these slices of a 4 x 6 tensor are refused, one a part; "" where they
/// are not.
std::string commit_message(const std::vector<std::pair<ShardSlice, grid::Range>>& slices) {
  const TemporaryDirectory scratch;
  const fs::path directory = begin_checkpoint(scratch.path(), 1);
  std::vector<PartRecord> records;
  for (const auto& [shard, range] : slices) {
    const Held held{.shard = shard,
                    .range = range,
                    .elements = std::vector<float>(static_cast<std::size_t>(range.count()))};
    const std::array<TensorSlice, 1> part{written(Shape{4, 6}, held)};
    records.push_back(write_part(directory, std::ssize(records), part));
  }
  try {
    commit_checkpoint(scratch.path(), 1, records, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
    return error.what();
  }
  return "";
}

TEST(CheckpointShards, MustCoverATensorExactlyOnce) {
  const ShardSlice left{.dimension = 1, .first = 0, .count = 2};
  const ShardSlice right{.dimension = 1, .first = 2, .count = 4};
  EXPECT_EQ(commit_message({{right, {0, 16}}, {left, {0, 3}}, {left, {3, 8}}}), "");
  EXPECT_EQ(commit_message({{left, {0, 8}}}),
            "indices 2 to 5 of dimension 1 of tensor 'weights/w' are in no part");
  EXPECT_EQ(commit_message({{right, {0, 16}}}),
            "indices 0 to 1 of dimension 1 of tensor 'weights/w' are in no part");
  EXPECT_EQ(commit_message({{left, {0, 8}}, {right, {0, 16}}, {{1, 3, 2}, {0, 8}}}),
            "index 3 of dimension 1 of tensor 'weights/w' is in two parts, the second is "
            "part-00002.h5");
  EXPECT_EQ(commit_message({{left, {0, 8}}, {{1, 0, 3}, {0, 12}}, {{1, 3, 3}, {0, 12}}}),
            "index 0 of dimension 1 of tensor 'weights/w' is in two parts, the second is "
            "part-00001.h5");
  EXPECT_EQ(commit_message({{left, {0, 8}}, {right, {0, 7}}, {right, {8, 16}}}),
            "elements 7 to 7 of tensor 'weights/w' (indices 2 to 5 of dimension 1) are in no part");
  EXPECT_EQ(commit_message({{left, {0, 7}}, {right, {0, 16}}}),
            "elements 7 to 7 of tensor 'weights/w' (indices 0 to 1 of dimension 1) are in no part");
  EXPECT_EQ(commit_message({{left, {0, 8}}, {right, {0, 16}}, {left, {7, 8}}}),
            "element 7 of tensor 'weights/w' (indices 0 to 1 of dimension 1) is in two parts, the "
            "second is part-00002.h5");
  EXPECT_EQ(commit_message({{left, {0, 8}}, {{}, {0, 24}}}),
            "tensor 'weights/w' and tensor 'weights/w' (indices 0 to 1 of dimension 1) are both in "
            "the checkpoint: only one dimension is split");
  EXPECT_THAT(commit_message({{{0, 0, 2}, {0, 12}}, {right, {0, 16}}}),
              HasSubstr("only one dimension is split"));
}

TEST(CheckpointShards, OneShardIsTheWholeTensor) {
  EXPECT_EQ(commit_message({{{1, 0, 6}, {0, 10}}, {{0, 0, 4}, {10, 20}}, {{}, {20, 24}}}), "");
}

TEST(CheckpointShards, DamageIsNamed) {
  const TemporaryDirectory scratch;
  const Shape shape{4, 6};
  const Cut cut{.dimension = 1, .shards = 3};
  const fs::path directory = write_cut(scratch.path(), shape, cut);
  const std::vector<Held> slices = slices_of(shape, cut);
  flip_bit(directory / "part-00001.h5",
           {reinterpret_cast<const char*>(slices[1].elements.data()), 32});
  const Checkpoint checkpoint = Checkpoint::open(directory);
  EXPECT_NO_THROW(checkpoint.verify_part(0));
  EXPECT_THAT(checkpoint_error([&] { checkpoint.verify_part(1); }),
              HasSubstr("elements 0 to 7 of tensor 'weights/w' (indices 2 to 3 of dimension 1)"));
}

TEST(CheckpointShards, OutsideTheTensorAreRefused) {
  const TemporaryDirectory scratch;
  const auto write = [&](const ShardSlice& shard) {
    const Held held{.shard = shard, .range = {0, 8}, .elements = std::vector<float>(8)};
    const std::array<TensorSlice, 1> part{written(Shape{4, 6}, held)};
    (void)write_part(scratch.path(), 0, part);
  };
  EXPECT_NO_THROW(write({.dimension = 1, .first = 4, .count = 2}));
  EXPECT_THROW(write({.dimension = 1, .first = 5, .count = 2}), std::logic_error);
  EXPECT_THROW(write({.dimension = 2, .first = 0, .count = 2}), std::logic_error);
  EXPECT_THROW(write({.dimension = -2, .first = 0, .count = 2}), std::logic_error);
  EXPECT_THROW(write({.dimension = 1, .first = -1, .count = 2}), std::logic_error);
  // Eight elements are more than a shard of one column has.
  EXPECT_THROW(write({.dimension = 1, .first = 0, .count = 1}), std::logic_error);

  const Checkpoint checkpoint =
      Checkpoint::open(write_cut(scratch.path() / "whole", Shape{4, 6}, {}));
  std::vector<float> out(8);
  const TensorView view(std::span<float>(out), Shape{8});
  const auto read = [&](const ShardSlice& shard) {
    checkpoint.read("weights/w", Shape{4, 6}, shard, {.begin = 0, .end = 8}, view);
  };
  EXPECT_NO_THROW(read({.dimension = 1, .first = 4, .count = 2}));
  EXPECT_THROW(read({.dimension = 1, .first = 5, .count = 2}), std::logic_error);
  EXPECT_THROW(read({.dimension = 1, .first = 0, .count = 1}), std::logic_error);
}

TEST(CheckpointShards, FormatVersionsWithoutThemAreRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_cut(scratch.path(), Shape{4, 6}, {});
  const std::string command = fmt::format(
      "/usr/bin/python3 -c 'import h5py; h5py.File(\"{}\", \"r+\").attrs.modify(\"version\", 1)'",
      (directory / "master.h5").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  test::remove_manifest(directory / "master.h5");
  EXPECT_THAT(checkpoint_error([&] { (void)Checkpoint::open(directory); }),
              HasSubstr("has format version 1, this program reads version 2"));
}

TEST(CheckpointRecord, KeepsShards) {
  SliceRecord slice;
  slice.tensor.name = "w";
  slice.tensor.shape = {4, 6};
  slice.shard = {.dimension = 1, .first = 2, .count = 3};
  slice.range = {.begin = 0, .end = 12};
  slice.dataset = "slice-00000";
  const PartRecord record{.file = "part-00000.h5", .bytes = 10, .slices = {slice}};
  const std::string text = text_of(record);
  EXPECT_EQ(part_record_of(text), record);
  for (const char* shard : {"[1,4,3]", "[2,0,1]", "[0,-1,2]"}) {
    std::string damaged = text;
    damaged.replace(damaged.find("[1,2,3]"), 7, shard);
    EXPECT_THAT(checkpoint_error([&] { (void)part_record_of(damaged); }),
                HasSubstr("of a tensor of 4 x 6"));
  }
}

}  // namespace
}  // namespace strata::io::checkpoint_shards_test
