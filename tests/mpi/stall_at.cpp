// Preloaded into the ranks: rank STALL_RANK stops itself (SIGSTOP) at its call number STALL_CALL of
// the MPI function STALL_AT.
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <mpi.h>

namespace {

void stall_at(const char* function) {
  static int calls = 0;
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* const stalled = std::getenv("STALL_RANK");
  const char* const at = std::getenv("STALL_AT");
  const char* const call = std::getenv("STALL_CALL");
  if (rank != nullptr && stalled != nullptr && at != nullptr && std::strcmp(rank, stalled) == 0 &&
      std::strcmp(function, at) == 0 && ++calls == (call == nullptr ? 1 : std::atoi(call))) {
    std::raise(SIGSTOP);
  }
}

}  // namespace

extern "C" {

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
