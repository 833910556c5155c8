#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "strata/io/checkpoint.hpp"

#include "checkpoint_cases.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;
using test::flip_bit;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::checkpoint_error;
using ::testing::HasSubstr;
using testing::Model;
using testing::write_checkpoint;

std::string open_error(const fs::path& directory) {
  return checkpoint_error([&] { (void)Checkpoint::open(directory); });
}

// Runs `function` in a child process, so that limits and mounts end with it; its exit code.
int in_child(const std::function<void()>& function) {
  const pid_t child = ::fork();
  if (child == 0) {
    function();
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

TEST(CheckpointDamage, FlippedBitIsFoundAndNamed) {
  const TemporaryDirectory scratch;
  const Model model;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 3);
  // Elements 16 to 18 of tensor 4 lie in the last of three parts.
  const std::string_view bytes(reinterpret_cast<const char*>(&model.floats[4][16]), 12);
  flip_bit(directory / "part-00002.h5", bytes);
  const Checkpoint checkpoint = Checkpoint::open(directory);
  EXPECT_NO_THROW(checkpoint.verify_part(0));
  EXPECT_NO_THROW(checkpoint.verify_part(1));
  EXPECT_THAT(checkpoint_error([&] { checkpoint.verify_part(2); }),
              AllOf(HasSubstr((directory / "part-00002.h5").string() + " is damaged"),
                    HasSubstr("elements 15 to 34 of tensor 'weights/dense1.weight'")));
}

TEST(CheckpointDamage, FlippedBitOfTheMasterIsFound) {
  // Beyond 64 KiB HDF5 stores an attribute without a checksum of its own.
  for (const char* damaged : {"seventeen", "\"range\":["}) {
    const TemporaryDirectory scratch;
    const fs::path directory = write_checkpoint(
        scratch.path(), 1, 2, Model(), {{"config", std::string(100000, 'x') + "seventeen"}});
    flip_bit(directory / "master.h5", damaged);
    EXPECT_THAT(open_error(directory), HasSubstr("master.h5 is damaged")) << damaged;
  }
}

TEST(CheckpointDamage, TruncatedPartIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 3);
  const fs::path part = directory / "part-00001.h5";
  const auto bytes = fs::file_size(part);
  fs::resize_file(part, bytes - 1);
  EXPECT_THAT(open_error(directory),
              AllOf(HasSubstr("part-00001.h5"),
                    HasSubstr(fmt::format("has {} bytes, {} were written", bytes - 1, bytes))));
}

TEST(CheckpointDamage, MissingPartIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 3);
  fs::remove(directory / "part-00002.h5");
  EXPECT_THAT(open_error(directory), HasSubstr("part-00002.h5 of the checkpoint"));
}

TEST(CheckpointDamage, PartThatGoesAfterOpeningIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1);
  const Checkpoint checkpoint = Checkpoint::open(directory);
  fs::remove(directory / "part-00000.h5");
  std::vector<float> out(7);
  EXPECT_THAT(checkpoint_error([&] {
                checkpoint.read("weights/dense1.bias", Shape{7}, {}, {.begin = 0, .end = 7},
                                TensorView(std::span<float>(out), Shape{7}));
              }),
              HasSubstr("part-00000.h5 of the checkpoint"));
}

TEST(CheckpointDamage, PartOfAnotherCheckpointIsFound) {
  const TemporaryDirectory scratch;
  const fs::path one = write_checkpoint(scratch.path(), 1, 2);
  const fs::path two = write_checkpoint(scratch.path(), 2, 2, Model(0.25));
  fs::copy_file(one / "part-00001.h5", two / "part-00001.h5", fs::copy_options::overwrite_existing);
  const Checkpoint checkpoint = Checkpoint::open(two);
  EXPECT_THAT(checkpoint_error([&] { checkpoint.verify_part(1); }),
              HasSubstr("part-00001.h5 belongs to another save"));
}

TEST(CheckpointDamage, MissingOrForeignMasterIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1);
  EXPECT_THAT(open_error(scratch.path() / "none"), HasSubstr("there is no checkpoint directory"));
  fs::remove(directory / "master.h5");
  EXPECT_THAT(open_error(directory), HasSubstr("has no master.h5"));
  fs::copy_file(directory / "part-00000.h5", directory / "master.h5");
  EXPECT_THAT(open_error(directory),
              HasSubstr("master.h5 is not the master file of a strata checkpoint"));
  std::ofstream(directory / "master.h5") << "text";
  EXPECT_THAT(open_error(directory), HasSubstr("master.h5 is not an HDF5 file"));
}

TEST(CheckpointDamage, MasterCutAtAnyLengthIsRefused) {
  const TemporaryDirectory scratch;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 2);
  const fs::path master = directory / "master.h5";
  const auto bytes = fs::file_size(master);
  for (const std::uintmax_t kept :
       {bytes - 1, bytes / 2, bytes / 4, std::uintmax_t{100}, std::uintmax_t{0}}) {
    fs::resize_file(master, kept);
    EXPECT_THAT(open_error(directory), HasSubstr("master.h5")) << kept;
  }
}

// Whether `directory` holds a checkpoint that proves good; what it then says must be true.
bool proves_good(const fs::path& directory, const Model& model, const std::string& description) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    checkpoint.verify_part(0);
    EXPECT_EQ(checkpoint.describe(), description);
    std::vector<float> out(35);
    checkpoint.read("weights/dense1.weight", Shape{7, 5}, {}, {.begin = 0, .end = 35},
                    TensorView(std::span<float>(out), Shape{35}));
    EXPECT_EQ(out, model.floats[4]);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
    return false;
  }
}

TEST(CheckpointDamage, NoFlippedBitChangesWhatIsReadUnnoticed) {
  const TemporaryDirectory scratch;
  const Model model;
  const fs::path directory = write_checkpoint(scratch.path(), 1, 1);
  const std::string description = Checkpoint::open(directory).describe();
  // In a child, for HDF5 1.10 does not free all that it read of some damaged files.
  EXPECT_EQ(in_child([&] {
              for (const char* name : {"master.h5", "part-00000.h5"}) {
                const std::string good = test::read_file(directory / name);
                std::int64_t found = 0;
                for (std::size_t position = 0; position < good.size(); position += 37) {
                  std::string bad = good;
                  bad[position] = static_cast<char>(bad[position] ^ (1 << position % 8));
                  std::ofstream(directory / name, std::ios::binary) << bad;
                  found += proves_good(directory, model, description) ? 0 : 1;
                }
                std::ofstream(directory / name, std::ios::binary) << good;
                EXPECT_GT(found, 10) << name;
              }
              EXPECT_TRUE(proves_good(directory, model, description));
            }),
            0);
}

// A part of 4 MiB more than there is room for fails, says what it needs and leaves the earlier
// checkpoint as it was; with room again, writing works.
void expect_full_disk_is_met(const fs::path& root, const std::function<void()>& fill,
                             const std::function<void()>& clear) {
  const fs::path good = write_checkpoint(root, 1, 2);
  const std::vector<float> large(1 << 20, 1.5F);
  const std::array<TensorSlice, 1> slices{
      {{.name = "weights/large",
        .global_shape = Shape{1 << 20},
        .range = {.begin = 0, .end = 1 << 20},
        .data = ConstTensorView(std::span<const float>(large), Shape{1 << 20})}}};
  const fs::path partial = begin_checkpoint(root, 2);
  fill();
  EXPECT_THAT(checkpoint_error([&] { (void)write_part(partial, 0, slices); }),
              AllOf(HasSubstr("part-00000.h5: "),
                    AnyOf(HasSubstr("No space left on device"), HasSubstr("File too large")),
                    HasSubstr("; the file needs 4211712 bytes"), HasSubstr("(4.0"),
                    HasSubstr("the last good checkpoint is kept")));
  EXPECT_FALSE(fs::exists(partial / "part-00000.h5"));
  const std::vector<CheckpointEntry> left = list_checkpoints(root);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].directory, good);
  const Checkpoint checkpoint = Checkpoint::open(good);
  checkpoint.verify_part(0);
  checkpoint.verify_part(1);
  clear();
  const std::vector<PartRecord> records{write_part(begin_checkpoint(root, 2), 0, slices)};
  commit_checkpoint(root, 2, records, {});
  EXPECT_EQ(list_checkpoints(root).size(), 2U);
}

TEST(CheckpointDiskFull, FileSizeLimitIsReported) {
  const TemporaryDirectory scratch;
  EXPECT_EQ(in_child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              rlimit limit{};
              ::getrlimit(RLIMIT_FSIZE, &limit);
              const rlim_t usual = limit.rlim_cur;
              const auto set = [&](rlim_t bytes) {
                limit.rlim_cur = bytes;
                ::setrlimit(RLIMIT_FSIZE, &limit);
              };
              expect_full_disk_is_met(
                  scratch.path(), [&] { set(1 << 20); }, [&] { set(usual); });
            }),
            0);
}

// A file system of `bytes` at `directory`, gone with its holder.
class SmallFileSystem {
 public:
  SmallFileSystem(const fs::path& directory, const std::string& bytes) : directory_(directory) {
    fs::create_directories(directory);
    mounted_ = ::mount("tmpfs", directory.c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) {
      ::umount2(directory_.c_str(), MNT_DETACH);
    }
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  fs::path directory_;
  bool mounted_ = false;
};

// Fills what is left of a file system but for `spare` bytes.
void fill_up(const fs::path& file, std::uintmax_t spare) {
  std::ofstream out(file, std::ios::binary);
  const std::uintmax_t free = fs::space(file.parent_path()).available;
  const std::string block(static_cast<std::size_t>(free - std::min(free, spare)), 'x');
  out << block;
}

class FullFileSystem : public ::testing::TestWithParam<std::uintmax_t> {};

TEST_P(FullFileSystem, IsReported) {
  const TemporaryDirectory scratch;
  const fs::path root = scratch.path() / "small";
  const SmallFileSystem small(root, "8m");
  if (!small.mounted()) {
    GTEST_SKIP() << "mounting a file system takes root: " << std::strerror(errno);
  }
  expect_full_disk_is_met(
      root, [&] { fill_up(root / "filler", GetParam()); }, [&] { fs::remove(root / "filler"); });
}

INSTANTIATE_TEST_SUITE_P(SpareBytes, FullFileSystem,
                         ::testing::Values(0, 4096, 65536, 3 << 20, (4 << 20) - 4096));

}  // namespace
}  // namespace strata::io
