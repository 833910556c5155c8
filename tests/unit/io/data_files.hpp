#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <hdf5.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "strata/core/error.hpp"
#include "strata/io/import.hpp"

#include "error_of.hpp"

/// Files in the formats that are imported, made for the tests.
namespace strata::io::test {

/// A directory that is removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "strata-io-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      throw std::runtime_error("cannot make a temporary directory");
    }
    path_ = path;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  ASSERT_TRUE(file.good()) << path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Flips a bit in the middle of the first place where `file` holds `bytes`.
inline void flip_bit(const std::filesystem::path& file, std::string_view bytes) {
  std::string content = read_file(file);
  const std::size_t position = content.find(bytes);
  ASSERT_NE(position, std::string::npos);
  char& flipped = content[position + bytes.size() / 2];
  flipped = static_cast<char>(flipped ^ 1);
  write_file(file, content);
}

inline void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

template <typename T>
std::string raw_bytes(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

inline std::string idx_header(char type, const std::vector<std::uint32_t>& extents) {
  std::string bytes{'\0', '\0', type, static_cast<char>(extents.size())};
  for (const std::uint32_t extent : extents) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(extent >> shift & 0xFFU);
    }
  }
  return bytes;
}

/// Pixel `element` of image `sample` in images().
inline std::uint8_t pixel(std::int64_t sample, std::int64_t element) {
  return static_cast<std::uint8_t>((sample * 7 + element * 3 + sample * element) % 256);
}

/// The stored bytes of image `sample` of `elements` pixels in images().
inline std::string image_bytes(std::int64_t sample, std::int64_t elements) {
  std::string bytes;
  for (std::int64_t element = 0; element < elements; ++element) {
    bytes += static_cast<char>(pixel(sample, element));
  }
  return bytes;
}

/// An IDX file of rows x columns images.
inline std::string images(std::int64_t count, std::int64_t rows, std::int64_t columns) {
  std::string bytes =
      idx_header(0x08, {static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(rows),
                        static_cast<std::uint32_t>(columns)});
  for (std::int64_t sample = 0; sample < count; ++sample) {
    bytes += image_bytes(sample, rows * columns);
  }
  return bytes;
}

/// An IDX file whose label of sample i is i % classes.
inline std::string labels(std::int64_t count, std::int64_t classes) {
  std::string bytes = idx_header(0x08, {static_cast<std::uint32_t>(count)});
  for (std::int64_t sample = 0; sample < count; ++sample) {
    bytes += static_cast<char>(sample % classes);
  }
  return bytes;
}

/// A .npy file; `shape` as in "(3, 4)".
inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                       const std::string& fortran_order = "False") {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + fortran_order +
                       ", 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 64) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xFFU);
  bytes += static_cast<char>(header.size() >> 8U);
  return bytes + header + data;
}

template <typename T>
std::string npy_of(const std::string& descr, const std::string& shape,
                   const std::vector<T>& values) {
  return npy(descr, shape, raw_bytes(std::span<const T>(values)));
}

inline ImportOptions idx_options(const TemporaryDirectory& directory, const std::string& split) {
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = ImportFormat::kIdx;
  options.inputs = {directory / "images"};
  options.targets = {directory / "labels"};
  options.split = split;
  options.output = directory / "out";
  return options;
}

/// Options for x.npy and y.npy, which are written where `x` is not empty.
inline ImportOptions npy_options(const TemporaryDirectory& directory, const std::string& split,
                                 const std::string& x = {}, const std::string& y = {}) {
  ImportOptions options;
  options.order = ImportOrder::kFile;
  options.format = ImportFormat::kNpy;
  options.inputs = {directory / "x.npy"};
  options.targets = {directory / "y.npy"};
  options.split = split;
  options.output = directory / "out";
  if (!x.empty()) {
    write_file(directory / "x.npy", x);
    write_file(directory / "y.npy", y);
  }
  return options;
}

/// Writes images and labels and imports them; the options may be changed before.
inline ImportReport import_images(
    const TemporaryDirectory& directory, std::int64_t count, const std::string& split,
    const std::function<void(ImportOptions&)>& change = [](ImportOptions&) {}) {
  write_file(directory / "images", images(count, 4, 5));
  write_file(directory / "labels", labels(count, 3));
  ImportOptions options = idx_options(directory, split);
  change(options);
  return import_dataset(options);
}

/// Makes a data set or checkpoint one of an earlier version, which has no manifest.
inline void remove_manifest(const std::filesystem::path& master) {
  ASSERT_TRUE(
      std::filesystem::remove(std::filesystem::path(master).replace_extension(".manifest")));
  const hid_t file = H5Fopen(master.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(H5Adelete(file, "manifest"), 0);
  ASSERT_GE(H5Fclose(file), 0);
}

/// Runs `function` in a child process, so that limits, mounts and crashes end with it; its exit
/// code, or 100 and the signal.
inline int in_child(const std::function<void()>& function) {
  const pid_t child = ::fork();
  if (child == 0) {
    function();
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

/// What `action` says when it fails, by default for bad data.
inline std::string error_of(const std::function<void()>& action,
                            ExitCode expected = ExitCode::kData) {
  return strata::test::error_of(action, expected);
}

template <typename T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace strata::io::test
