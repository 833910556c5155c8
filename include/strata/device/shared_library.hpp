#pragma once

#include <string>
#include <string_view>

namespace strata::device {

/// A library that is loaded when it is first used: the CUDA libraries cost a process 150 MB as soon
/// as they are mapped, and a run on CPU cores never calls them
/// (docs/decisions/0001-cuda-libraries-on-demand.md). Stays loaded.
class SharedLibrary {
 public:
  /// What a user can do where a library is missing.
  static constexpr std::string_view kRemedy =
      "put its directory into LD_LIBRARY_PATH on every node";

  /// Looks where the system's loader looks, then in the directories where the build found it.
  /// `remedy` is what find() tells to do.
  explicit SharedLibrary(const std::string& file, std::string_view remedy = kRemedy);

  [[nodiscard]] bool loaded() const { return handle_ != nullptr; }

  /// The function of this name, or null.
  template <typename Function>
  [[nodiscard]] Function function(const char* name) const {
    return reinterpret_cast<Function>(address(name));
  }
  /// Looks up a function that must be there.
  /// Throws: Error(kPeer) where the library was not found or does not have it.
  template <typename Function>
  void find(const char* name, Function& found) const {
    found = function<Function>(name);
    if (found == nullptr) {
      missing(name);
    }
  }

 private:
  [[nodiscard]] void* address(const char* name) const;
  [[noreturn]] void missing(const char* name) const;

  std::string file_;
  std::string remedy_;
  void* handle_ = nullptr;
};

}  // namespace strata::device
