#pragma once

#include <string>

namespace strata::device {

/// A library that is loaded when it is first used: the CUDA libraries cost a process 150 MB as soon
/// as they are mapped, and a run on CPU cores never calls them
/// (docs/decisions/0001-cuda-libraries-on-demand.md). Stays loaded.
class SharedLibrary {
 public:
  /// Looks where the system's loader looks, then in the directories where the build found it.
  explicit SharedLibrary(const std::string& file);

  [[nodiscard]] bool loaded() const { return handle_ != nullptr; }

  /// The function of this name, or null.
  template <typename Function>
  [[nodiscard]] Function function(const char* name) const {
    return reinterpret_cast<Function>(address(name));
  }

 private:
  [[nodiscard]] void* address(const char* name) const;

  void* handle_ = nullptr;
};

}  // namespace strata::device
