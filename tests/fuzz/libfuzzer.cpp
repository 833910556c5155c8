#include <cstdint>

#include "targets.hpp"

// STRATA_FUZZ_TARGET is one of the functions of targets.hpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return strata::fuzz::STRATA_FUZZ_TARGET({reinterpret_cast<const std::byte*>(data), size});
}
