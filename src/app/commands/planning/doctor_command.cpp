#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>

#include "strata/comm/clock_offset.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/core/hash.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/train/sniff.hpp"

#include "commands/commands.hpp"
#include "commands/planning/doctor_directory.hpp"
#include "commands/planning/doctor_messages.hpp"
#include "commands/planning/doctor_report.hpp"
#include "environment/cpu_cores.hpp"
#include "environment/execution_environment.hpp"
#include "environment/gpu_assignment.hpp"
#include "environment/instruction_sets.hpp"

namespace strata::app {
namespace {

/// Tells apart executables of one version that were built from different sources.
std::string executable_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  StreamingHash hash;
  std::vector<char> piece(std::size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.update(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
  }
  return hash_text(hash.digest());
}

/// Runs a small product and a small attention, for which cuBLASLt and cuDNN make plans.
/// Returns: why cuDNN runs no attention; empty where it does, or is not there.
/// Throws: Error(kPeer) where a library or the GPU fails.
std::string library_trouble(std::int64_t gpu) {
  ops::Context context = ops::Context::cuda(device::Device::cuda(gpu));
  constexpr ops::AttentionShape kShape{.tokens = 128, .head_size = 64};
  const Shape square{kShape.tokens, kShape.tokens};
  const Shape rows{kShape.rows(), kShape.width()};
  const Shape qkv_rows{kShape.rows(), kShape.qkv_width()};
  const device::Buffer memory(context.device(), square.count() * size_bytes(DType::kFloat32));
  const auto zeros = [&](const Shape& shape) { return memory.view(0, shape, DType::kBfloat16); };
  const device::Buffer results(context.device(), square.count() * size_bytes(DType::kFloat32));
  ops::matmul(context, zeros(square), zeros(square), results.view(0, square, DType::kBfloat16));
  const device::Buffer log_sums(context.device(), kShape.rows() * size_bytes(DType::kFloat32));
  ops::causal_attention_forward(context, kShape, zeros(qkv_rows),
                                results.view(0, rows, DType::kBfloat16),
                                log_sums.view(0, Shape{1, 1, kShape.tokens}, DType::kFloat32));
  context.synchronize();
  for (const auto& [operation, kernels] : context.kernels()) {
    if (kernels.starts_with("own") && !kernels.ends_with("not found")) {
      return fmt::format(
          "{} runs by {}: other GPUs may run it by cuDNN's, with other bits; "
          "compare the versions of cuDNN and NVRTC",
          operation, kernels);
    }
  }
  return {};
}

void collect_gpu_facts(RankFacts& facts, const GpuAssignment& assignment) {
  const device::CudaVersions versions = device::cuda_versions();
  facts.driver_version = versions.driver;
  facts.runtime_version = versions.runtime;
  try {
    const std::vector<device::GpuInfo> gpus = device::gpus();
    if (gpus.empty()) {
      if (const std::string trouble = device::gpu_trouble(); !trouble.empty()) {
        facts.gpu_failure = "the GPUs do not answer: " + trouble + "; nvidia-smi tells more";
      }
      return;
    }
    const std::int64_t own =
        device::choose_gpu(assignment.local_rank, assignment.ranks, std::ssize(gpus)).index;
    const device::GpuInfo& gpu = gpus[static_cast<std::size_t>(own)];
    facts.gpu_name = gpu.name;
    place_gpu(facts, gpu, std::ssize(gpus));
    facts.gpu_memory_bytes = gpu.memory_bytes;
    const std::int64_t used = std::min<std::int64_t>(assignment.ranks, std::ssize(gpus));
    for (std::int64_t other = 0; other < used; ++other) {
      if (other != own && !device::has_peer_access(own, other)) {
        facts.unreachable.push_back(gpus[static_cast<std::size_t>(other)].bus_id);
      }
    }
    facts.gpu_free_bytes = device::free_memory_bytes(own);
    facts.gpu_failure = library_trouble(own);
  } catch (const Error& error) {
    facts.gpu_failure = error.what();
  }
}

/// A soft limit of the process; 0 where there is none.
std::int64_t soft_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  const bool known = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return known ? static_cast<std::int64_t>(limit.rlim_cur) : 0;
}

/// Network interfaces that are up, without the loopback.
std::vector<std::string> interfaces_up() {
  std::set<std::string> names;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) == 0) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      if ((entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0) {
        names.insert(entry->ifa_name);
      }
    }
    freeifaddrs(first);
  }
  return {names.begin(), names.end()};
}

/// Seconds since the epoch.
double wall_clock_seconds() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count();
}

/// Communication: collective over the world.
RankFacts collect_facts(comm::MpiSession& mpi) {
  RankFacts facts;
  static_cast<Placement&>(facts) =
      find_placement(mpi.ranks_on_node(), default_threads(mpi.ranks_on_node()));
  facts.rank_on_node = mpi.rank_on_node();
  facts.ranks_on_node = mpi.ranks_on_node();
  facts.instruction_set = name_of(ops::native_instruction_set());
  facts.versions = versions();
  facts.versions.push_back({"executable", executable_hash()});
  facts.nccl_absence = comm::nccl_absence();
  facts.clock_offset_seconds = comm::clock_offset_seconds(mpi.world(), wall_clock_seconds);
  facts.open_files = soft_limit(RLIMIT_NOFILE);
  facts.locked_memory_bytes = soft_limit(RLIMIT_MEMLOCK);
  facts.interfaces = interfaces_up();
  collect_gpu_facts(facts, assign_gpus(mpi));
  return facts;
}

std::string gpus_text(std::span<const RankFacts> ranks) {
  const RankFacts& first = ranks.front();
  if (first.runtime_version == 0) {
    return "GPUs: this executable was built without CUDA; ranks compute on their cores\n";
  }
  const bool any = std::any_of(ranks.begin(), ranks.end(),
                               [](const RankFacts& facts) { return !facts.gpu_bus_id.empty(); });
  return fmt::format("GPUs: {}; CUDA of the driver: {}, of the executable: {}\n",
                     any ? "as above" : "none, ranks compute on their cores",
                     device::cuda_version_text(first.driver_version),
                     device::cuda_version_text(first.runtime_version));
}

/// The machine of --machine or --run.machine.
std::optional<forecast::Machine> machine_of(const config::CommandLine& line,
                                            comm::Communicator& world) {
  const std::string name = line.value("machine", line.value("run.machine", ""));
  std::optional<forecast::Machine> machine;
  comm::agree(world, [&] {
    if (!name.empty()) {
      machine = forecast::read_machine(name);
    }
  });
  return machine;
}

/// The sniff test of a run: all ranks reduce as one data group, and pass messages in a ring.
/// `world`: of the transport to be tested. Communication: collective over the world.
void try_problem(ops::Context& context, comm::Communicator& world, comm::ProgressEngine& engine,
                 DirectoryReport& report) {
  const std::int64_t ranks = world.size();
  comm::Groups groups = comm::make_groups(world, engine, {.data = ranks}, {});
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<comm::Route> ring;
  for (std::int64_t from = 0; ranks > 1 && from < ranks; ++from) {
    ring.push_back({.from = from, .to = (from + 1) % ranks});
  }
  groups.axes[static_cast<std::size_t>(grid::Axis::kPipeline)] = world.subgroup(all, "ring");
  groups.along(grid::Axis::kPipeline).open_routes(ring);
  const std::vector<train::SniffResult> results =
      train::sniff({.context = context, .groups = groups, .routes = ring});
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    std::vector<std::string> parts;
    for (const auto& [part, name] : enum_table<train::SniffPart>()) {
      const double seconds = results[rank].seconds[static_cast<std::size_t>(part)];
      parts.push_back(fmt::format("{} {:.3g} ms", name, 1e3 * seconds));
    }
    report.lines.push_back(fmt::format("sniff test, rank {}: {}; bits of the products {}", rank,
                                       fmt::join(parts, ", "), hash_text(results[rank].bits[0])));
  }
  const train::SniffFindings found = train::findings_of(results);
  if (!found.wrong.empty()) {
    report.problems.push_back(
        fmt::format("wrong results of the sniff test: {}. Have the memory, the cores and the GPUs "
                    "there checked, and start runs without these nodes (sbatch --exclude)",
                    train::text_of(world, context.device(), found.wrong)));
  }
  if (!found.slow.empty()) {
    report.problems.push_back(
        fmt::format("slow ranks in the sniff test: {}. Look for other work there, and at clocks "
                    "and cooling",
                    train::text_of(world, context.device(), found.slow)));
  }
}

/// Times messages as a run sends them, and runs the sniff test.
/// Communication: collective over the world.
void try_messages(comm::MpiSession& mpi, std::span<const RankFacts> ranks,
                  const std::optional<forecast::Machine>& machine, DirectoryReport& report) {
  const bool on_gpus = std::ranges::all_of(ranks, [](const RankFacts& facts) {
    return !facts.gpu_bus_id.empty() && facts.gpu_failure.empty();
  });
  std::vector<MessageTimes> times;
  if (on_gpus) {
    const GpuAssignment assignment = assign_gpus(mpi);
    const std::vector<device::GpuInfo> gpus = device::gpus();
    const auto index =
        device::choose_gpu(assignment.local_rank, assignment.ranks, std::ssize(gpus)).index;
    const device::GpuInfo& gpu = gpus[static_cast<std::size_t>(index)];
    try {
      std::optional<ops::Context> context;
      comm::agree(mpi.world(),
                  [&] { context.emplace(ops::Context::cuda(device::Device::cuda(index))); });
      const GpuTransport transport =
          open_transport(mpi, *context, gpu, sharing_of(mpi.world(), gpu.uuid).on_this_gpu,
                         comm::Summation::kInvariant);
      report.lines.push_back(transport.obstacle.empty()
                                 ? "messages of GPUs: by NCCL"
                                 : fmt::format("messages of GPUs: through pinned host memory ({})",
                                               transport.obstacle));
      times = time_messages(*transport.world.ranks, *transport.world.engine, context->device(),
                            mpi.rank_on_node());
      try_problem(*context, *transport.world.ranks, *transport.world.engine, report);
    } catch (const comm::AgreedError& error) {
      report.problems.emplace_back(error.what());
    }
  } else {
    times = time_messages(mpi.world(), mpi.engine(), device::Device::cpu(), mpi.rank_on_node());
    try {
      static_cast<void>(set_instruction_set(mpi, ops::InstructionSet::kNative, DType::kFloat32));
      ops::Context context(default_threads(mpi.ranks_on_node()));
      try_problem(context, mpi.world(), mpi.engine(), report);
    } catch (const comm::AgreedError& error) {
      report.problems.emplace_back(error.what());
    }
  }
  const bool fits = machine && (machine->device == device::DeviceKind::kCuda) == on_gpus;
  if (machine && !fits) {
    report.lines.push_back(
        fmt::format("messages are not compared: the machine {} is of {}, the ranks compute on {}",
                    machine->name, name_of(machine->device), on_gpus ? "cuda" : "cpu"));
  }
  for (const MessageTimes& of : times) {
    report.lines.push_back(message_line(of));
    const std::vector<std::string> far =
        fits ? message_problems(of, *machine) : std::vector<std::string>();
    report.problems.insert(report.problems.end(), far.begin(), far.end());
  }
}

ExitCode check_node(const config::CommandLine& line, comm::MpiSession& mpi,
                    const config::FailureHandler& /*on_failure*/) {
  const std::string directory = line.value("run.dir", ".");
  const std::optional<forecast::Machine> machine = machine_of(line, mpi.world());
  comm::request_hardware_queues();
  std::vector<RankFacts> ranks;
  for (const std::string& text : mpi.world().all_gather_texts(packed(collect_facts(mpi)))) {
    ranks.push_back(unpacked(text));
  }
  DirectoryReport tried = try_directory(mpi.world(), directory);
  try_messages(mpi, ranks, machine, tried);
  // With what messages have loaded.
  const std::vector<Placement> after = gathered(mpi.world(), {.libraries = loaded_libraries()});
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].libraries = after[r].libraries;
  }
  std::vector<std::string> found = problems(ranks);
  found.insert(found.end(), tried.problems.begin(), tried.problems.end());
  if (mpi.world().rank() == 0) {
    fmt::print("{}\n{}{}", facts_text(ranks), gpus_text(ranks), system_text(ranks));
    for (const std::string& text : tried.lines) {
      fmt::print("{}\n", text);
    }
    fmt::print("{}\n", versions_text(ranks.front().versions));
    for (const std::string& problem : found) {
      fmt::print("- {}\n", problem);
    }
    fmt::print("{}\n",
               found.empty() ? "no problems found" : fmt::format("problems: {}", found.size()));
  }
  return found.empty() ? ExitCode::kDone : ExitCode::kPeer;
}

}  // namespace

Commands doctor_commands() {
  return {
      {.name = "doctor",
       .purpose = "check the node and, on ranks, the launch",
       .synopses = {{"[--run.dir=DIR] [--machine=FILE]"}},
       .about =
           R"(Checks the node and, with --ranks or under mpirun or srun, the launch: cores, GPUs, clocks, limits,
network, libraries, executables, the file system of DIR, what messages of three sizes take, and whether all ranks give
the same bits in the sniff test (run.sniff). Ends with exit code 5 if it
finds a problem.)",
       .options = {{"run.dir", "DIR", "where a run will write (default: the working directory)"},
                   {"machine", "FILE",
                    "what messages should take: a file of \"strata plan --calibrate\" or a shipped "
                    "machine's name"},
                   {"run.machine", "FILE", "the same"}},
       .positions = config::Positions::kNone,
       .on_ranks = check_node,
       // It says what is wrong with a launch, and does not refuse it.
       .rank_options = config::RankOptions::kAny}};
}

}  // namespace strata::app
