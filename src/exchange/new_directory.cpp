#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/log.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/directory_lock.hpp"

namespace strata::exchange {

namespace fs = std::filesystem;

void fill_new_directory(const fs::path& output, const std::function<void(const fs::path&)>& fill) {
  std::error_code error;
  const auto require_new = [&] {
    if (fs::exists(output, error) && !fs::is_empty(output, error)) {
      fail(ExitCode::kUsage, "{} exists and is not empty; choose another --output",
           output.string());
    }
  };
  require_new();
  const fs::path absolute = fs::absolute(output / "").parent_path();
  const fs::path parent = absolute.parent_path();
  const std::string name = absolute.filename().string();
  fs::create_directories(parent, error);
  if (error) {
    fail(ExitCode::kUsage, "cannot make the directory {}: {}; choose another --output",
         parent.string(), error.message());
  }
  Log log(Log::Output::kPrint);
  const io::DirectoryLock lock(
      parent,
      {.name = fmt::format(".{}.lock", name), .setting = "--output", .subject = output.string()},
      log);
  require_new();  // another process may have filled it meanwhile
  const fs::path directory = parent / fmt::format(".{}.partial", name);
  fs::remove_all(directory, error);
  fs::create_directories(directory, error);
  if (error) {
    fail(ExitCode::kUsage, "cannot make the directory {}: {}; choose another --output",
         directory.string(), error.message());
  }
  try {
    fill(directory);
    io::publish_directory(directory, absolute);
  } catch (...) {
    fs::remove_all(directory, error);
    throw;
  }
}

}  // namespace strata::exchange
