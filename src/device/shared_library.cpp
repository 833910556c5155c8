#include "strata/device/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "strata/core/text.hpp"

#ifndef STRATA_CUDA_LIBRARY_DIRS
#define STRATA_CUDA_LIBRARY_DIRS ""
#endif

namespace strata::device {

SharedLibrary::SharedLibrary(const std::string& file) : handle_(dlopen(file.c_str(), RTLD_NOW)) {
  for (const std::string& directory : split_words(STRATA_CUDA_LIBRARY_DIRS, ":")) {
    if (handle_ == nullptr) {
      handle_ = dlopen(fmt::format("{}/{}", directory, file).c_str(), RTLD_NOW);
    }
  }
}

void* SharedLibrary::address(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace strata::device
