#include "strata/io/checkpoint.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_cases.hpp"

namespace strata::io::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_error;
using test::Model;
using test::TemporaryDirectory;
using test::write_checkpoint;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename T>
std::vector<T> read(const Checkpoint& checkpoint, const TensorInfo& info,
                    const grid::Range& range) {
  std::vector<T> out(static_cast<std::size_t>(range.count()), T{-1});
  checkpoint.read(info.name, info.shape, {}, range,
                  TensorView(std::span<T>(out), Shape{range.count()}));
  return out;
}

// Every tensor read in `readers` uneven ranges gives the model's own elements.
void expect_model(const Checkpoint& checkpoint, const Model& model, std::int64_t readers) {
  ASSERT_EQ(checkpoint.tensors(), model.infos);
  for (std::size_t t = 0; t < model.infos.size(); ++t) {
    for (std::int64_t reader = 0; reader < readers; ++reader) {
      const TensorSlice slice = model.slices_of(reader, readers)[t];
      const auto begin = slice.range.begin;
      const auto end = slice.range.end;
      if (model.infos[t].dtype == DType::kFloat32) {
        EXPECT_EQ(
            read<float>(checkpoint, model.infos[t], slice.range),
            std::vector<float>(model.floats[t].begin() + begin, model.floats[t].begin() + end));
      } else {
        EXPECT_EQ(
            read<double>(checkpoint, model.infos[t], slice.range),
            std::vector<double>(model.doubles[t].begin() + begin, model.doubles[t].begin() + end));
      }
    }
  }
}

class Writers : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(Writers, GiveWhatAnyNumberOfReadersReads) {
  const TemporaryDirectory scratch;
  const Model model;
  const fs::path directory = write_checkpoint(scratch.path() / "checkpoints", 100, GetParam());
  EXPECT_EQ(directory, scratch.path() / "checkpoints" / "step-00000100");
  const Checkpoint checkpoint = Checkpoint::open(directory);
  EXPECT_EQ(checkpoint.step(), 100);
  EXPECT_EQ(checkpoint.part_count(), GetParam());
  EXPECT_EQ(checkpoint.metadata(), (nlohmann::json{{"seed", 7}}));
  for (const std::int64_t readers : {1, 2, 3, 4, 5}) {
    expect_model(checkpoint, model, readers);
  }
  for (std::int64_t part = 0; part < checkpoint.part_count(); ++part) {
    EXPECT_NO_THROW(checkpoint.verify_part(part));
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, Writers, ::testing::Values(1, 3, 4));

TEST(Checkpoint, IsReadWholeByH5py) {
  const TemporaryDirectory scratch;
  const nlohmann::json metadata{{"samples_seen", 1280}, {"config", "[model]\nlayer = dense 10\n"}};
  const fs::path directory = write_checkpoint(scratch.path(), 7, 4, Model(), metadata);
  const fs::path script = scratch.path() / "read.py";
  std::ofstream(script) << R"(import json, sys
import h5py, numpy
names = []
with h5py.File(sys.argv[1] + "/master.h5", "r") as master:
    assert master.attrs["format"] == b"strata-checkpoint", master.attrs["format"]
    assert master.attrs["step"] == 7
    metadata = json.loads(master.attrs["metadata"])
    assert metadata == {"samples_seen": 1280, "config": "[model]\nlayer = dense 10\n"}, metadata
    master.visititems(lambda name, item: names.append(name)
                      if isinstance(item, h5py.Dataset) and name != "parts" else None)
    names.sort()
    shapes = [(7, 5), (), (3, 2, 5, 3), (7,), (7, 5), (4, 3, 5)]
    kinds = ["f4", "f8", "f8", "f4", "f4", "f4"]
    assert len(names) == 6, names
    for t, name in enumerate(names):
        expected = 1000.0 * t + 0.125 + numpy.arange(int(numpy.prod(shapes[t]))).reshape(shapes[t])
        array = master[name][()]
        assert array.shape == shapes[t] and array.dtype == kinds[t], (name, array.shape)
        assert (array == expected.astype(kinds[t])).all(), name
print("equal")
)";
  // Moved as a whole, from another working directory: part names are relative to the master.
  const fs::path moved = scratch.path() / "moved";
  fs::rename(directory, moved);
  const std::string output = (scratch.path() / "output").string();
  const std::string command = fmt::format("cd / && /usr/bin/python3 {} {} > {} 2>&1",
                                          script.string(), moved.string(), output);
  const int status = std::system(command.c_str());
  std::ifstream in(output);
  const std::string said((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(said, "equal\n");
}

TEST(Checkpoint, KeepsMetadataOfAnyLength) {
  const TemporaryDirectory scratch;
  const nlohmann::json metadata{{"config", std::string(300000, 'x')}, {"rate", 0.1}, {"empty", ""}};
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1, Model(), metadata);
  EXPECT_EQ(Checkpoint::open(directory).metadata(), metadata);
}

TEST(Checkpoint, RefusesATensorThatItDoesNotHave) {
  const TemporaryDirectory scratch;
  const Checkpoint checkpoint = Checkpoint::open(write_checkpoint(scratch.path(), 1, 2));
  std::vector<float> out(35);
  const TensorView view(std::span<float>(out), Shape{35});
  EXPECT_THAT(
      checkpoint_error([&] {
        checkpoint.read("weights/dense2.weight", Shape{7, 5}, {}, {.begin = 0, .end = 35}, view);
      }),
      AllOf(HasSubstr("has no tensor 'weights/dense2.weight' (the nearest is "
                      "'weights/dense1.weight')")));
  EXPECT_THAT(
      checkpoint_error([&] {
        checkpoint.read("weights/dense1.weight", Shape{5, 7}, {}, {.begin = 0, .end = 35}, view);
      }),
      AllOf(HasSubstr("tensor 'weights/dense1.weight' is float32 7 x 5"),
            HasSubstr("float32 5 x 7 was expected")));
  std::vector<double> wide(35);
  EXPECT_THAT(checkpoint_error([&] {
                checkpoint.read("weights/dense1.weight", Shape{7, 5}, {}, {.begin = 0, .end = 35},
                                TensorView(std::span<double>(wide), Shape{35}));
              }),
              HasSubstr("float64 7 x 5 was expected"));
  EXPECT_THROW(
      checkpoint.read("weights/dense1.weight", Shape{7, 5}, {}, {.begin = 1, .end = 36}, view),
      std::logic_error);
  EXPECT_THROW(
      checkpoint.read("weights/dense1.weight", Shape{7, 5}, {}, {.begin = 0, .end = 34}, view),
      std::logic_error);
}

TEST(Checkpoint, DescribesItself) {
  const TemporaryDirectory scratch;
  const Checkpoint checkpoint = Checkpoint::open(write_checkpoint(
      scratch.path(), 12, 3, Model(), {{"samples_seen", 96}, {"config", std::string(100, '\n')}}));
  const std::string text = checkpoint.describe();
  EXPECT_THAT(text, StartsWith(fmt::format("checkpoint {}/step-00000012\nstep 12\npart files 3, ",
                                           scratch.path().string())));
  EXPECT_THAT(text, HasSubstr("samples_seen = 96\n"));
  EXPECT_THAT(text, HasSubstr("config = (100 characters)\n"));
  EXPECT_THAT(text, HasSubstr("3 x 2 x 5 x 3"));
  EXPECT_THAT(text, HasSubstr("weights/dense1.weight"));
  // 35 + 7 + 35 + 60 floats, 1 + 90 doubles.
  EXPECT_THAT(text, HasSubstr("228"));
  EXPECT_THAT(text, HasSubstr("1,276"));
}

TEST(CheckpointRecord, KeepsEverythingAsText) {
  PartRecord record;
  record.file = "part-00003.h5";
  record.bytes = 4096;
  record.slices.resize(2);
  record.slices[0].tensor = {"a \"quoted\" name", Shape{2, 3}, DType::kFloat64};
  record.slices[0].range = {.begin = 1, .end = 6};
  record.slices[0].dataset = "slice-00000";
  record.slices[0].checksum = 0xfedcba9876543210ULL;
  record.slices[1].tensor.name = "scalar";
  record.slices[1].range = {.begin = 0, .end = 1};
  EXPECT_EQ(part_record_of(text_of(record)), record);
  EXPECT_THAT(checkpoint_error([] { (void)part_record_of("{\"file\": 3}"); }),
              HasSubstr("record of a part cannot be read"));
  std::string text = text_of(record);
  text.replace(text.find("float64"), 7, "float16");
  EXPECT_THAT(checkpoint_error([&] { (void)part_record_of(text); }), HasSubstr("'float16'"));
}

TEST(CheckpointCommit, RefusesTensorsNotCoveredExactlyOnce) {
  const TemporaryDirectory scratch;
  const Model model;
  const auto commit = [&](const std::vector<grid::Range>& ranges) {
    const fs::path directory = begin_checkpoint(scratch.path(), 5);
    std::vector<PartRecord> records;
    for (std::size_t part = 0; part < ranges.size(); ++part) {
      const std::array<TensorSlice, 1> slices{model.slice(4, ranges[part])};
      records.push_back(write_part(directory, static_cast<std::int64_t>(part), slices));
    }
    commit_checkpoint(scratch.path(), 5, records, {});
  };
  EXPECT_EQ(checkpoint_error([&] {
              commit({{0, 12}, {13, 35}});
            }),
            "elements 12 to 12 of tensor 'weights/dense1.weight' are in no part");
  EXPECT_EQ(checkpoint_error([&] {
              commit({{13, 35}, {0, 14}});
            }),
            "element 13 of tensor 'weights/dense1.weight' is in two parts, the second is "
            "part-00000.h5");
  EXPECT_EQ(checkpoint_error([&] {
              commit({{0, 30}});
            }),
            "elements 30 to 34 of tensor 'weights/dense1.weight' are in no part");
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
  EXPECT_NO_THROW(commit({{13, 35}, {0, 13}}));
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 1U);
}

TEST(CheckpointCommit, RefusesTensorsThatDifferAmongParts) {
  const TemporaryDirectory scratch;
  const Model model;
  const fs::path directory = begin_checkpoint(scratch.path(), 5);
  std::array<TensorSlice, 1> slices{model.slice(4, {.begin = 0, .end = 12})};
  std::vector<PartRecord> records{write_part(directory, 0, slices)};
  slices[0] = model.slice(4, {.begin = 12, .end = 35});
  slices[0].global_shape = Shape{5, 7};
  records.push_back(write_part(directory, 1, slices));
  EXPECT_EQ(checkpoint_error([&] { commit_checkpoint(scratch.path(), 5, records, {}); }),
            "tensor 'weights/dense1.weight' is float32 7 x 5 in one part of the checkpoint and "
            "float32 5 x 7 in part-00001.h5");
}

TEST(CheckpointCommit, IsNotVisibleWhereTheLastLookAtTheLockThrows) {
  const TemporaryDirectory scratch;
  const fs::path directory = begin_checkpoint(scratch.path(), 5);
  const std::vector<PartRecord> records{write_part(directory, 0, Model().slices_of(0, 1))};
  const auto lost = [&] {
    EXPECT_TRUE(fs::exists(directory / "master.h5"));
    fail(ExitCode::kCheckpoint, "the lock is lost");
  };
  EXPECT_EQ(
      checkpoint_error([&] { commit_checkpoint(scratch.path(), 5, records, {}, nullptr, lost); }),
      "the lock is lost");
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
}

TEST(CheckpointCommit, RefusesMissingAndChangedParts) {
  const TemporaryDirectory scratch;
  const Model model;
  const fs::path directory = begin_checkpoint(scratch.path(), 5);
  const std::vector<PartRecord> records{write_part(directory, 0, model.slices_of(0, 1))};
  std::ofstream(directory / "part-00000.h5", std::ios::app) << "more";
  EXPECT_THAT(checkpoint_error([&] { commit_checkpoint(scratch.path(), 5, records, {}); }),
              HasSubstr("bytes, "));
  fs::remove(directory / "part-00000.h5");
  EXPECT_THAT(checkpoint_error([&] { commit_checkpoint(scratch.path(), 5, records, {}); }),
              HasSubstr("part-00000.h5 of the checkpoint is not there"));
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
}

TEST(CheckpointWrite, RefusesSlicesThatAreNone) {
  const TemporaryDirectory scratch;
  const Model model;
  const auto write = [&](auto change) {
    std::array<TensorSlice, 1> slices{model.slice(4, {.begin = 3, .end = 9})};
    change(slices[0]);
    (void)write_part(scratch.path(), 0, slices);
  };
  EXPECT_NO_THROW(write([](TensorSlice&) {}));
  for (const char* name : {"", "parts", "parts/x", "text/x", "/a", "a/", "a//b"}) {
    EXPECT_THROW(write([&](TensorSlice& slice) { slice.name = name; }), std::logic_error) << name;
  }
  EXPECT_THROW(write([](TensorSlice& slice) { slice.range.end = 10; }), std::logic_error);
  EXPECT_THROW(write([](TensorSlice& slice) { slice.range = {.begin = 30, .end = 36}; }),
               std::logic_error);
}

}  // namespace
}  // namespace strata::io::checkpoint_test
