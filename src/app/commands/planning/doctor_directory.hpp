#pragma once

#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"

namespace strata::app {

/// What trying out the file system of a directory showed; the same on all ranks.
struct DirectoryReport {
  std::vector<std::string> lines;     ///< what works
  std::vector<std::string> problems;  ///< each with what to do
};

/// Tries out the file system of `directory`: whether all ranks see one directory, can write, sync,
/// rename and lock there, and how fast rank 0 writes. Leaves no files there.
/// Communication: collective over the world.
[[nodiscard]] DirectoryReport try_directory(comm::Communicator& world,
                                            const std::string& directory);

}  // namespace strata::app
