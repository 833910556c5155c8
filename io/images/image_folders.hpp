#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace strata::io {

/// The files of directories with one folder per class, in import order: directory by directory, and
/// within a directory the first file of every class, then the second of every class, and so on, so
/// that classes alternate. Classes and the files of a class are sorted by name. Names that begin
/// with a dot and files beside the folders are skipped.
class ImageFolders {
 public:
  /// Throws: Error(kData) for a directory without folders, an empty folder, a folder within a
  /// class, and directories whose classes differ.
  explicit ImageFolders(const std::vector<std::filesystem::path>& directories);
  /// Files of one class without a name.
  [[nodiscard]] static ImageFolders without_classes(std::vector<std::filesystem::path> files);

  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  [[nodiscard]] std::int64_t files() const { return std::ssize(order_); }
  [[nodiscard]] std::int64_t class_of(std::int64_t file) const {
    return index_of(file).class_index;
  }
  /// The number of its directory.
  [[nodiscard]] std::uint32_t directory_of(std::int64_t file) const {
    return index_of(file).directory;
  }
  [[nodiscard]] std::filesystem::path path(std::int64_t file) const;

 private:
  struct FileIndex {
    std::uint32_t directory;
    std::uint32_t class_index;
    std::uint32_t number;  ///< within the class
  };
  using Names = std::vector<std::string>;

  [[nodiscard]] const FileIndex& index_of(std::int64_t file) const {
    return order_[static_cast<std::size_t>(file)];
  }
  ImageFolders() = default;
  void list(const std::filesystem::path& directory);

  std::vector<std::filesystem::path> directories_;
  Names classes_;
  std::vector<std::vector<Names>> names_;  ///< [directory][class][number]
  std::vector<FileIndex> order_;
  std::vector<std::filesystem::path> files_;  ///< without classes
};

}  // namespace strata::io
