// Preloaded into the ranks: rank STALL_RANK raises the signal STALL_SIGNAL, by default SIGSTOP, at
// its call number STALL_CALL of the MPI function STALL_AT. Rank HANG_RANK hangs where it opens a
// file whose path contains HANG_PATH, once the file HANG_FROM exists, as on a file system that does
// not respond.
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

namespace {

const char* own_rank() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank != nullptr ? rank : std::getenv("PMI_RANK");
}

void stall_at(const char* function) {
  static int calls = 0;
  const char* const rank = own_rank();
  const char* const stalled = std::getenv("STALL_RANK");
  const char* const at = std::getenv("STALL_AT");
  const char* const call = std::getenv("STALL_CALL");
  const char* const signal = std::getenv("STALL_SIGNAL");
  if (rank != nullptr && stalled != nullptr && at != nullptr && std::strcmp(rank, stalled) == 0 &&
      std::strcmp(function, at) == 0 && ++calls == (call == nullptr ? 1 : std::atoi(call))) {
    std::raise(signal == nullptr ? SIGSTOP : std::atoi(signal));
  }
}

void hang_at(const char* path) {
  const char* const rank = own_rank();
  const char* const hung = std::getenv("HANG_RANK");
  const char* const part = std::getenv("HANG_PATH");
  const char* const from = std::getenv("HANG_FROM");
  if (rank != nullptr && hung != nullptr && part != nullptr && from != nullptr &&
      std::strcmp(rank, hung) == 0 && std::strstr(path, part) != nullptr &&
      access(from, F_OK) == 0) {
    while (true) {
      pause();
    }
  }
}

using Open = int (*)(const char*, int, ...);

int open_with(const char* name, const char* path, int flags, mode_t mode) {
  hang_at(path);
  return reinterpret_cast<Open>(dlsym(RTLD_NEXT, name))(path, flags, mode);
}

mode_t mode_of(int flags, std::va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_with("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_with("open64", path, flags, mode);
}

// Of std::ifstream.
FILE* fopen64(const char* path, const char* mode) {
  hang_at(path);
  return reinterpret_cast<decltype(&fopen64)>(dlsym(RTLD_NEXT, "fopen64"))(path, mode);
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  stall_at("MPI_Init_thread");
  return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* split) {
  stall_at("MPI_Comm_split");
  return PMPI_Comm_split(comm, color, key, split);
}

int MPI_Iallgather(const void* mine, int count, MPI_Datatype type, void* all, int counts,
                   MPI_Datatype types, MPI_Comm comm, MPI_Request* request) {
  stall_at("MPI_Iallgather");
  return PMPI_Iallgather(mine, count, type, all, counts, types, comm, request);
}

int MPI_Finalize() {
  stall_at("MPI_Finalize");
  return PMPI_Finalize();
}
}
