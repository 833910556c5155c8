#include "strata/device/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

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

void SharedLibrary::missing(const char* name) const {
  if (loaded()) {
    fail(ExitCode::kPeer, "{} on this node has no {}; {}", file_, name, remedy_);
  }
  fail(ExitCode::kPeer, "{} was not found on this node; {}", file_, remedy_);
}

}  // namespace strata::device
