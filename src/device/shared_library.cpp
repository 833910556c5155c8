#include "strata/device/shared_library.hpp"

#include <filesystem>

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#ifndef STRATA_CUDA_LIBRARY_DIRS
#define STRATA_CUDA_LIBRARY_DIRS ""
#endif

namespace strata::device {

SharedLibrary::SharedLibrary(const std::string& file, std::string_view remedy)
    : file_(file), remedy_(remedy), handle_(dlopen(file.c_str(), RTLD_NOW)) {
  for (const std::string& directory : split_words(STRATA_CUDA_LIBRARY_DIRS, ":")) {
    if (handle_ == nullptr) {
      handle_ = dlopen(fmt::format("{}/{}", directory, file).c_str(), RTLD_NOW);
    }
  }
}

void* SharedLibrary::address(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

bool SharedLibrary::load_beside(const std::string& file) const {
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) {
    return false;
  }
  const std::filesystem::path path = std::filesystem::path(map->l_name).parent_path() / file;
  return dlopen(path.c_str(), RTLD_NOW) != nullptr;
}

FoundFunction SharedLibrary::find(const char* name) const {
  if (!loaded()) {
    fail(ExitCode::kPeer, "{} was not found on this node; {}", file_, remedy_);
  }
  const FoundFunction found(address(name));
  if (static_cast<void*>(found) == nullptr) {
    fail(ExitCode::kPeer, "{} on this node has no {}; {}", file_, name, remedy_);
  }
  return found;
}

SharedLibrary nvrtc_library(int cuda_major) {
  SharedLibrary library(fmt::format("libnvrtc.so.{}", cuda_major));
  const auto version = library.function<int (*)(int*, int*)>("nvrtcVersion");
  int major = 0;
  int minor = 0;
  if (version != nullptr && version(&major, &minor) == 0) {
    // Where they are not beside it, the loader may find them.
    library.load_beside(fmt::format("libnvrtc-builtins.so.{}.{}", major, minor));
  }
  return library;
}

}  // namespace strata::device
