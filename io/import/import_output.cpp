#include "import/import_output.hpp"

#include <string>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/manifest.hpp"

namespace strata::io {

void refuse_existing(const ImportOptions& options) {
  for (const char* master : {"train.h5", "test.h5"}) {
    const std::filesystem::path path = options.output / master;
    std::error_code error;
    if (options.existing == Existing::kRefuse && std::filesystem::exists(path, error)) {
      fail(ExitCode::kUsage,
           "{} already exists; choose another --output or give --overwrite to replace it",
           path.string());
    }
  }
}

EmptyDirectories::EmptyDirectories(const std::filesystem::path& path) {
  std::error_code error;
  for (std::filesystem::path at = path;
       !at.empty() && !std::filesystem::exists(at, error) && !error; at = at.parent_path()) {
    absent_.push_back(at);
  }
}

EmptyDirectories::~EmptyDirectories() {
  std::error_code error;
  for (auto at = absent_.begin(); at != absent_.end() && !error; ++at) {
    std::error_code absent;
    if (std::filesystem::is_directory(*at, absent)) {
      std::filesystem::remove(*at, error);
    }
  }
}

// Masters first: shards without a master are no data set, but a master with the wrong shards is a
// broken one.
void remove_existing(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> shards;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    for (const std::string split : {"train", "test"}) {
      if (name == split + ".h5") {
        std::filesystem::remove(entry.path());
      }
      if (entry.path() == manifest_path(directory / (split + ".h5"))) {
        shards.push_back(entry.path());
      }
      const std::string digits = name.starts_with(split + "-") && name.ends_with(".h5")
                                     ? name.substr(split.size() + 1, name.size() - split.size() - 4)
                                     : std::string();
      if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos) {
        shards.push_back(entry.path());
      }
    }
  }
  for (const std::filesystem::path& shard : shards) {
    std::filesystem::remove(shard);
  }
}

void check_space(const ImportOptions& options, std::int64_t needed) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(options.output, error);
  if (!error && space.available < static_cast<std::uintmax_t>(needed)) {
    fail(ExitCode::kData, "the data set takes {} but the disk of {} has only {} left",
         bytes_text(needed), options.output.string(),
         bytes_text(static_cast<std::int64_t>(space.available)));
  }
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!std::filesystem::is_directory(directory)) {
    fail(ExitCode::kData, "cannot make the directory {}: {}", directory.string(),
         error ? error.message() : "a file is in the way");
  }
}

}  // namespace strata::io
