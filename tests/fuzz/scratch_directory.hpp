#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <system_error>

#include <stdlib.h>

#include "strata/io/checkpoint.hpp"

namespace strata::fuzz {

namespace fs = std::filesystem;

/// A directory in memory for one process, empty for each input.
class Directory {
 public:
  Directory() {
    std::string name = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    name += "/strata-fuzz-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  /// `root` / `name`, new and empty.
  [[nodiscard]] fs::path fresh(const std::string& name) const {
    fs::remove_all(root_ / name);
    fs::create_directory(root_ / name);
    return root_ / name;
  }

 private:
  fs::path root_;
};

using CheckpointUse = std::function<void(const io::Checkpoint&)>;

/// Writes the checkpoint that the bytes describe and, where it opens, hands it to `use`. Returns 0.
int open_checkpoint(std::span<const std::byte> bytes, const CheckpointUse& use);

}  // namespace strata::fuzz
