// The cases of unit_comm between real MPI ranks. Prints what any rank found wrong; ends with 1
// then.
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/core.h>

#include "strata/comm/mpi.hpp"

#include "../unit/comm/comm_cases.hpp"

namespace strata::comm::test {
namespace {

int run_all(Communicator& world) {
  int failures = 0;
  for (const CommCase& comm_case : comm_and_window_cases()) {
    const std::string report = run_case(comm_case, world);
    failures += report.empty() ? 0 : 1;
    if (world.rank() == 0) {
      fmt::print("{} {}\n{}", report.empty() ? "passed" : "FAILED", comm_case.name, report);
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace strata::comm::test

int main(int argc, char** argv) {
  strata::comm::MpiSession mpi(&argc, &argv);
  int status = 0;
  try {
    mpi.world().set_timeout({.seconds = 60.0});
    status = strata::comm::test::run_all(mpi.world());
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", mpi.world().rank(), error.what());
    strata::comm::MpiSession::abort(1);
  }
  mpi.finalize();
  return status;
}
