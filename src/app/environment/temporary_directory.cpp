#include "environment/temporary_directory.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <sys/statvfs.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/text.hpp"

namespace strata::app {

std::string temporary_directory() {
  const char* const given = std::getenv("TMPDIR");
  return given == nullptr || *given == '\0' ? "/tmp" : given;
}

void require_temporary_directory(const std::string& directory, std::int64_t least_bytes) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);  // as MPI does
  struct statvfs system {};
  if (::access((directory + "/.").c_str(), W_OK | X_OK) != 0 ||
      ::statvfs(directory.c_str(), &system) != 0) {
    fail(ExitCode::kUsage,
         "TMPDIR: the directory for temporary files, {} on {}, cannot be written ({}), and MPI "
         "needs "
         "it; make it on every node, or set TMPDIR to one that exists there",
         directory, host_name(), std::strerror(errno));
  }
  const auto free_bytes =
      static_cast<std::int64_t>(system.f_bavail) * static_cast<std::int64_t>(system.f_frsize);
  const bool no_files = system.f_files > 0 && system.f_favail == 0;
  if (free_bytes < least_bytes || no_files) {
    fail(ExitCode::kPeer,
         "TMPDIR: the directory for temporary files, {} on {}, has {} left, and MPI needs {} and "
         "some files; delete files there, or set TMPDIR to another directory",
         directory, host_name(), no_files ? "no files" : bytes_text(free_bytes),
         bytes_text(least_bytes));
  }
}

}  // namespace strata::app
