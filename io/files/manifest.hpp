#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/grid/grid.hpp"

/// Checksums of files, kept outside of them: they are compared before HDF5 reads a file's headers.
/// Format: docs/formats.md.
namespace strata::io {

/// Attribute of a master that has a manifest.
inline constexpr const char* kManifestAttribute = "manifest";

/// A file's line in a manifest.
struct ManifestEntry {
  std::string file;
  std::int64_t bytes = 0;
  /// XXH3 of all bytes outside the payload.
  std::uint64_t checksum = 0;
  /// Disjoint ascending ranges of bytes that other checksums cover.
  std::vector<grid::Range> payload;

  friend bool operator==(const ManifestEntry&, const ManifestEntry&) = default;
};

/// The entry of a file as it is on disk. `payload`: ranges in any order, which may touch.
/// Throws: Error where the file cannot be read.
[[nodiscard]] ManifestEntry manifest_entry_of(const std::filesystem::path& path,
                                              std::vector<grid::Range> payload, ExitCode code);

/// The manifest's path beside `master`.
[[nodiscard]] std::filesystem::path manifest_path(const std::filesystem::path& master);

/// The checksums of the files of one data set or checkpoint.
class Manifest {
 public:
  explicit Manifest(std::vector<ManifestEntry> entries) : entries_(std::move(entries)) {}

  /// Reads the manifest beside `master`; nothing where there is none.
  /// Throws: Error with `code` where it is damaged or cannot be read.
  [[nodiscard]] static std::optional<Manifest> read(const std::filesystem::path& master,
                                                    ExitCode code);
  /// Writes a file and calls fsync.
  void write(const std::filesystem::path& path, ExitCode code) const;

  /// Compares size and checksum of a file with its entry; reads all bytes outside its payload.
  /// Pre: the manifest was read. Throws: Error with `code` where they differ, where the manifest
  /// has no such entry, or where the file cannot be read. `advice` ends the message.
  void check(const std::filesystem::path& path, ExitCode code, std::string_view advice) const;

 private:
  [[nodiscard]] std::string text() const;

  std::vector<ManifestEntry> entries_;
};

/// The warning about a master without a manifest.
[[nodiscard]] std::string no_manifest_text(const std::filesystem::path& master);

/// Whether a name is one path component, so that it names a file of its own directory.
[[nodiscard]] bool is_file_name(std::string_view name);

}  // namespace strata::io
