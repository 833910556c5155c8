// A calibration with small models between MPI ranks gives a machine that prices what ranks do.
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/forecast/machine.hpp"

#include "commands/planning/calibrate.hpp"

namespace strata::app {
namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) {
    ++failures;
    fmt::print("FAILED: {}\n", what);
  }
}

void check(const forecast::Machine& machine, std::int64_t ranks) {
  expect(machine == forecast::parse_machine(forecast::machine_text(machine), "text"), "round trip");
  expect(machine.device == device::DeviceKind::kCpu && machine.device_threads == 1, "the device");
  expect(machine.node_devices == 4, "the cores that were given");
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat64}) {
    for (const char* name :
         {"matmul_nt", "matmul_tn", "attention_forward", "convolution_forward", "unheard_of"}) {
      ops::OperationWork work{
          .name = name, .dtype = dtype, .extents = {64, 96, 32}, .bytes = 16384.0};
      work.flops = std::string_view(name) == "unheard_of" ? 0.0 : 393216.0;
      const double seconds = forecast::seconds_of(machine, work);
      expect(seconds > 1e-7 && seconds < 1.0, name);
    }
  }
  expect(machine.measured.contains({"adam_update", DType::kFloat32}), "the update is measured");
  expect(machine.memory_bytes > 1e8 && machine.reserved_bytes > 1e6, "memory");
  if (ranks == 1) {
    expect(machine.node.bytes_per_second == 0.0, "no link of one rank");
    return;
  }
  expect(machine.slowdown_by_ranks.back().ranks == static_cast<double>(ranks), "busy ranks");
  expect(forecast::seconds_of(machine, machine.node, 1.0, 1e6) < 10.0, "a message");
}

int run(comm::MpiSession& mpi, const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "machine.ini";
  if (mpi.world().rank() == 0) {
    std::filesystem::create_directories(directory);
  }
  mpi.world().barrier();
  const ExitCode code = calibrate(
      mpi, {.file = file, .directory = directory, .cores = 4, .threads = 1, .small = true});
  expect(code == ExitCode::kDone, "done");
  try {
    static_cast<void>(calibrate(mpi, {.file = directory / "missing" / "machine.ini"}));
    expect(false, "a file that cannot be written is refused");
  } catch (const comm::AgreedError&) {
  }
  if (mpi.world().rank() == 0) {
    check(forecast::read_machine(file), mpi.world().size());
    std::filesystem::remove_all(directory);
  }
  return failures;
}

}  // namespace
}  // namespace strata::app

int main(int argc, char** argv) {
  strata::comm::MpiSession mpi(&argc, &argv);
  int status = 1;
  try {
    status = strata::app::run(mpi, argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", mpi.world().rank(), error.what());
    strata::comm::MpiSession::abort(1);
  }
  mpi.finalize();
  return status == 0 ? 0 : 1;
}
