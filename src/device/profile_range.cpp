#include "strata/device/profile_range.hpp"

#include "cuda_calls.hpp"

namespace strata::device {

ProfileRange::ProfileRange(const std::string& name) {
  cuda::begin_range(name.c_str());
}

ProfileRange::~ProfileRange() {
  cuda::end_range();
}

}  // namespace strata::device
