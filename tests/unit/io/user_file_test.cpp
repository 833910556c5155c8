#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/io/tokenizer.hpp"

#include "data_files.hpp"
#include "image_files.hpp"

namespace strata::io::user_file_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMost = 1000;

void make_socket(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  // The file stays.
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(socket);
}

struct Special {
  fs::path path;
  std::string words;
};

std::vector<Special> special_files(const TemporaryDirectory& directory) {
  fs::create_directory(directory / "folder");
  EXPECT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  make_socket(directory / "socket");
  fs::create_symlink(directory / "fifo", directory / "link");
  return {{directory / "none", "does not exist"},
          {directory / "folder", "is a directory, a regular file was expected"},
          {directory / "fifo", "is a FIFO (named pipe), a regular file was expected"},
          {directory / "link", "is a FIFO (named pipe), a regular file was expected"},
          {directory / "socket", "is a socket, a regular file was expected"},
          {"/dev/zero", "is a character device, a regular file was expected"}};
}

/// A way to read a file of a user.
struct Reader {
  std::string name;
  std::function<void(const fs::path&)> read;
};

std::vector<Reader> readers(const TemporaryDirectory& directory) {
  write_file(directory / "good", "1\n");
  const auto import_of = [&](ImportFormat format, std::function<void(ImportOptions&, fs::path)> set,
                             TokenizerKind tokenizer = TokenizerKind::kNone) {
    return [&directory, format, set, tokenizer](const fs::path& path) {
      ImportOptions options;
      options.order = ImportOrder::kFile;
      options.format = format;
      options.tokenizer = tokenizer;
      options.output = directory / "out";
      options.table.label = "kind";
      set(options, path);
      (void)import_dataset(options);
    };
  };
  const auto as_input = [](ImportOptions& options, const fs::path& path) {
    options.inputs = {path};
  };
  const auto as_pair = [](ImportOptions& options, const fs::path& path) {
    options.inputs = options.targets = {path};
  };
  const auto as_tokens = [](ImportOptions& options, const fs::path& path) {
    options.inputs = {path};
    options.vocabulary = 10;
  };
  const auto as_image = [](ImportOptions& options, const fs::path& path) {
    const fs::path folder = options.output.parent_path() / "images" / "a";
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::create_symlink(path, folder / "image");
    options.inputs = {folder.parent_path()};
  };
  return {
      {"config", [](const fs::path& path) { (void)read_input(path, kMost, ExitCode::kData); }},
      {"encoder", [&](const fs::path& path) { (void)Tokenizer::gpt2(path, directory / "good"); }},
      {"csv", import_of(ImportFormat::kCsv, as_input)},
      {"idx", import_of(ImportFormat::kIdx, as_pair)},
      {"npy", import_of(ImportFormat::kNpy, as_pair)},
      {"cifar", import_of(ImportFormat::kCifar10, as_input)},
      {"text", import_of(ImportFormat::kText, as_input, TokenizerKind::kBytes)},
      {"nanogpt", import_of(ImportFormat::kNanoGptTokens, as_tokens)},
      {"llmc", import_of(ImportFormat::kLlmcTokens, as_tokens)},
      {"images", import_of(ImportFormat::kImages, as_image)},
  };
}

TEST(UserFile, SpecialFilesAreRefusedByEveryReaderAtOnce) {
  const TemporaryDirectory directory;
  const std::vector<Special> files = special_files(directory);
  for (const Reader& reader : readers(directory)) {
    for (const Special& file : files) {
      if (reader.name == "images" && file.path.filename() == "folder") {
        continue;  // a class's folder
      }
      const bool stands_for_its_files =
          file.path.filename() == "folder" && (reader.name == "csv" || reader.name == "text");
      const auto start = std::chrono::steady_clock::now();
      EXPECT_THAT(error_of([&] { reader.read(file.path); }),
                  HasSubstr(stands_for_its_files ? "folder holds no files" : file.words))
          << reader.name << " of " << file.path;
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
    }
  }
}

TEST(UserFile, AnOutputIsReplacedWhereItIsARegularFile) {
  const TemporaryDirectory directory;
  const fs::path file = directory / "out";
  write_file(file, "old");
  fs::permissions(file, fs::perms(0750));
  fs::create_directory(directory / "folder");
  fs::create_symlink("../out", directory / "folder/link");
  std::ifstream reader(file);
  EXPECT_TRUE(write_output(directory / "folder/link", "new"));
  std::string kept;
  reader >> kept;
  EXPECT_EQ(kept, "old");
  EXPECT_EQ(test::read_file(file), "new");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0750));
  EXPECT_TRUE(fs::is_symlink(directory / "folder/link"));
  // What does not fit leaves the old text.
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = 2, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &full);
  EXPECT_FALSE(write_output(file, "newer"));
  EXPECT_EQ(errno, EFBIG);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(test::read_file(file), "new");
  // Other names of a file, and who holds an open one, get the text.
  fs::create_hard_link(file, directory / "other");
  EXPECT_TRUE(write_output(file, "both"));
  EXPECT_EQ(test::read_file(directory / "other"), "both");
  fs::remove(directory / "other");
  const int open = ::open(file.c_str(), O_WRONLY | O_APPEND);
  EXPECT_TRUE(write_output(fmt::format("/proc/self/fd/{}", open), "open "));
  EXPECT_EQ(::write(open, "file", 4), 4);
  ::close(open);
  EXPECT_EQ(test::read_file(file), "open file");
  EXPECT_TRUE(write_output("/dev/null", "x"));
  EXPECT_FALSE(write_output(directory / "folder", "x"));
  write_file(directory / "data.h5", "\x89HDF\r\n\x1a\n...");
  EXPECT_NE(test::error_of([&] { static_cast<void>(write_output(directory / "data.h5", "x")); },
                           ExitCode::kUsage)
                .find("data.h5 is an HDF5 file"),
            std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 3);
}

TEST(UserFile, SizesAreBounded) {
  const TemporaryDirectory directory;
  const auto read = [&](const fs::path& path) { return read_input(path, kMost, ExitCode::kUsage); };
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
    write_file(directory / "file", std::string(size, 'x'));
    EXPECT_EQ(read(directory / "file"), std::string(size, 'x'));
  }
  write_file(directory / "file", "\xEF\xBB\xBF[a]");
  EXPECT_EQ(read(directory / "file"), "[a]");
  write_file(directory / "file", std::string(1001, 'x'));
  EXPECT_THAT(test::error_of([&] { (void)read(directory / "file"); }, ExitCode::kUsage),
              AllOf(HasSubstr("file has more than 1000 B"), HasSubstr("name the right file")));
  // Files of /proc say that they are empty.
  EXPECT_THAT(read("/proc/self/comm"), HasSubstr("unit_io"));
  // A few compressed bytes that become many.
  const std::string bomb(std::size_t{65} << 20, ' ');
  test::write_gzip(directory / "bomb", bomb);
  EXPECT_LT(fs::file_size(directory / "bomb"), 100000U);
  EXPECT_THAT(error_of([&] { (void)Tokenizer::gpt2(directory / "bomb", directory / "bomb"); }),
              HasSubstr("bomb has more than 64.00 MiB"));
}

TEST(ParseJson, BoundsTheDepth) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(64)));
  EXPECT_FALSE(parse_json(nested(66)));
  EXPECT_FALSE(parse_json(nested(5000000)));
  std::string objects;
  for (int i = 0; i < 100000; ++i) {
    objects += "{\"a\":";
  }
  EXPECT_FALSE(parse_json(objects));
  EXPECT_FALSE(parse_json("{"));
  EXPECT_FALSE(parse_json("\"\xff\""));
  EXPECT_EQ(parse_json("{\"a\": [1, 2.5, null]}"), (nlohmann::json{{"a", {1, 2.5, nullptr}}}));
}

}  // namespace
}  // namespace strata::io::user_file_test
