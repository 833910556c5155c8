#pragma once

#include <string>
#include <string_view>

namespace strata::device {

/// The address of a library's function, which becomes a pointer to a function of any type.
class FoundFunction {
 public:
  explicit FoundFunction(void* address) : address_(address) {}
  template <typename Pointer>
  operator Pointer() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Pointer>(address_);
  }

 private:
  void* address_;
};

/// A library that is loaded at first use: the CUDA libraries cost a process 150 MB once mapped, and
/// a run on CPU cores never calls them (docs/decisions/0001-cuda-libraries-on-demand.md). Stays
/// loaded.
class SharedLibrary {
 public:
  /// Advice for a user whose library is missing.
  static constexpr std::string_view kRemedy =
      "put its directory into LD_LIBRARY_PATH on every node";

  /// Searches the system loader's paths, then the directories where the build found the library.
  /// `remedy` is what find() tells to do.
  explicit SharedLibrary(const std::string& file, std::string_view remedy = kRemedy);

  [[nodiscard]] bool loaded() const { return handle_ != nullptr; }
  /// Loads a second library from the directory of this one, which is loaded. False where it is not
  /// there. It stays loaded, and a later dlopen() of its bare name finds it.
  bool load_beside(const std::string& file) const;

  /// The function of this name, or null.
  template <typename Function>
  [[nodiscard]] Function function(const char* name) const {
    return FoundFunction(address(name));
  }
  /// A required function.
  /// Throws: Error(kPeer) where the library was not found or does not have it.
  [[nodiscard]] FoundFunction find(const char* name) const;

 private:
  [[nodiscard]] void* address(const char* name) const;

  std::string file_;
  std::string remedy_;
  void* handle_ = nullptr;
};

/// NVRTC of a major version of CUDA, with its builtins. It opens these by bare name, which fails
/// where the loader does not search its directory. cuDNN compiles kernels with it.
[[nodiscard]] SharedLibrary nvrtc_library(int cuda_major);

}  // namespace strata::device
