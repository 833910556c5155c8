#pragma once

#include <string>
#include <vector>

namespace strata::device {

/// A library of the CUDA part and the version that is linked.
struct LibraryVersion {
  std::string name;
  std::string version;
};

/// The libraries of the CUDA part, as they answer at run time; empty in a build without CUDA. Needs
/// no GPU.
[[nodiscard]] std::vector<LibraryVersion> cuda_libraries();

}  // namespace strata::device
