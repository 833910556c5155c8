#include "images/image_folders.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

enum class Wanted { kFolders, kFiles };

/// Sorted names in a directory, without those that begin with a dot.
std::vector<std::string> names_in(const std::filesystem::path& directory, Wanted wanted) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(directory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::string name = at->path().filename().string();
    std::error_code unreadable;
    const bool folder = at->is_directory(unreadable);
    if (name.starts_with('.') || (wanted == Wanted::kFolders && !folder)) {
      continue;
    }
    if (const std::string problem = wanted == Wanted::kFolders ? name_problem(name) : "";
        !problem.empty()) {
      fail(ExitCode::kData, "the name of the class folder {} {}; rename it", at->path().string(),
           problem);
    }
    if (wanted == Wanted::kFiles && folder) {
      fail(ExitCode::kData, "{} is a folder where images of the class {} were expected",
           at->path().string(), directory.filename().string());
    }
    names.push_back(std::move(name));
  }
  if (error) {
    fail(ExitCode::kData, "cannot list the directory {}: {}", directory.string(), error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

ImageFolders::ImageFolders(const std::vector<std::filesystem::path>& directories)
    : directories_(directories) {
  for (const std::filesystem::path& directory : directories) {
    list(directory);
  }
  for (std::uint32_t directory = 0; directory < directories_.size(); ++directory) {
    const std::vector<Names>& classes = names_[directory];
    bool more = true;
    for (std::uint32_t number = 0; more; ++number) {
      more = false;
      for (std::uint32_t index = 0; index < classes.size(); ++index) {
        if (number < classes[index].size()) {
          order_.push_back({directory, index, number});
          more = true;
        }
      }
    }
  }
}

ImageFolders ImageFolders::without_classes(std::vector<std::filesystem::path> files) {
  ImageFolders all;
  all.files_ = std::move(files);
  for (std::uint32_t number = 0; number < all.files_.size(); ++number) {
    all.order_.push_back({0, 0, number});
  }
  return all;
}

void ImageFolders::list(const std::filesystem::path& directory) {
  Names classes = names_in(directory, Wanted::kFolders);
  if (classes.empty()) {
    fail(ExitCode::kData,
         "{} has no folders; a folder for each class was expected, with its images",
         directory.string());
  }
  if (names_.empty()) {
    classes_ = classes;
  }
  const auto require_all = [](const Names& all, const Names& some, const std::string& here,
                              const std::string& there) {
    for (const std::string& name : all) {
      if (!std::binary_search(some.begin(), some.end(), name)) {
        fail(ExitCode::kData,
             "{} has a folder for the class {}, {} has none; all directories need the same classes",
             here, name, there);
      }
    }
  };
  const std::string first = directories_.front().string();
  require_all(classes, classes_, directory.string(), first);
  require_all(classes_, classes, first, directory.string());
  std::vector<Names>& names = names_.emplace_back();
  for (const std::string& name : classes) {
    names.push_back(names_in(directory / name, Wanted::kFiles));
    if (names.back().empty()) {
      fail(ExitCode::kData, "the class folder {} is empty; fill it or take it away",
           (directory / name).string());
    }
  }
}

std::filesystem::path ImageFolders::path(std::int64_t file) const {
  if (!files_.empty()) {
    return files_[static_cast<std::size_t>(file)];
  }
  const FileIndex& at = index_of(file);
  return directories_[at.directory] / classes_[at.class_index] /
         names_[at.directory][at.class_index][at.number];
}

}  // namespace strata::io
