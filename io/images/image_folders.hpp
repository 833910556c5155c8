#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace strata::io {

/// The files of directories that have a folder for each class, in the order in which they are
/// imported: directory by directory, and in each the first file of every class, then the second of
/// every class, and so on, so that classes are spread evenly. Classes and files of a class are
/// sorted by name; names that begin with a dot are passed over, and so are files beside the
/// folders.
class ImageFolders {
 public:
  /// Throws: Error(kData) for a directory without folders, an empty folder, a folder within a
  /// class, and directories whose classes differ.
  explicit ImageFolders(const std::vector<std::filesystem::path>& directories);

  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  [[nodiscard]] std::int64_t files() const { return std::ssize(order_); }
  [[nodiscard]] std::int64_t class_of(std::int64_t file) const { return place(file).kind; }
  [[nodiscard]] std::filesystem::path path(std::int64_t file) const;

 private:
  struct Place {
    std::uint32_t directory;
    std::uint32_t kind;
    std::uint32_t number;
  };
  using Names = std::vector<std::string>;

  [[nodiscard]] const Place& place(std::int64_t file) const {
    return order_[static_cast<std::size_t>(file)];
  }
  void list(const std::filesystem::path& directory);

  std::vector<std::filesystem::path> directories_;
  Names classes_;
  std::vector<std::vector<Names>> names_;  ///< [directory][class][number]
  std::vector<Place> order_;
};

}  // namespace strata::io
