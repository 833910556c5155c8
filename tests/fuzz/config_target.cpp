#include "strata/app/config_file.hpp"
#include "strata/core/error.hpp"

#include "memory_file.hpp"
#include "targets.hpp"

namespace strata::fuzz {

int run_config(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  try {
    const app::GivenConfig given = app::read_config(file.path(), {});
    static_cast<void>(app::config_text(given.config));
  } catch (const Error&) {
    return 0;
  }
  return 0;
}

}  // namespace strata::fuzz
