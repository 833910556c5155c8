#pragma once

#include <string>
#include <vector>

namespace strata::app {

/// A library or the executable itself, with its version.
struct VersionFact {
  std::string name;
  std::string version;

  friend bool operator==(const VersionFact&, const VersionFact&) = default;
};

/// This executable and the libraries that it finds. Needs no GPU.
[[nodiscard]] std::vector<VersionFact> versions();

/// A line for each, as in "MPI: Open MPI v4.1.4".
[[nodiscard]] std::string versions_text(const std::vector<VersionFact>& facts);

}  // namespace strata::app
