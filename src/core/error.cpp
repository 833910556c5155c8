#include "strata/core/error.hpp"

namespace strata {

void vfail(ExitCode code, fmt::string_view format, fmt::format_args args) {
  throw Error(code, fmt::vformat(format, args));
}

void vfail_precondition(fmt::string_view format, fmt::format_args args) {
  throw std::logic_error(fmt::vformat(format, args));
}

}  // namespace strata
