#pragma once

#include <string>

namespace strata::device {

/// A named range of this thread's work in NVIDIA's profilers (NVTX), for as long as the object
/// lives. Nothing where CUDA is not built or no profiler runs.
class ProfileRange {
 public:
  explicit ProfileRange(const std::string& name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace strata::device
