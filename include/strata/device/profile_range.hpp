#pragma once

#include <string>

namespace strata::device {

/// An NVTX range of the calling thread for the object's lifetime. No effect without CUDA or a
/// profiler.
class ProfileRange {
 public:
  explicit ProfileRange(const std::string& name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace strata::device
