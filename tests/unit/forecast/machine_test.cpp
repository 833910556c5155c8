#include "strata/forecast/machine.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "error_of.hpp"

namespace strata::forecast::machine_test {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kSmallest = "[machine]\ndevice = cpu\nnode_devices = 2\nmemory_gb = 8\n";

Machine measured_machine() {
  Machine machine{.name = "node7",
                  .source = "measured",
                  .device = device::DeviceKind::kCpu,
                  .node_devices = 2,
                  .memory_bytes = 8.1e9 + 1.0,
                  .peak_flops = {{DType::kFloat32, 1e12 / 3.0}, {DType::kFloat64, 1e11}},
                  .memory_bytes_per_second = 2e10,
                  .product_efficiency = 0.5,
                  .product_half = {0.0, 3.5, 16.0},
                  .memory_efficiency = 1.0,
                  .launch_seconds = 1e-6 / 7.0,
                  .slowdown_by_ranks = {{2.0, 1.1, 1.6}, {4.0, 1.3, 3.0}},
                  .node = {.latency_seconds = 1e-6,
                           .bytes_per_second = 5e9,
                           .measured = {{1024.0, 1e9}, {1048576.0, 4e9}}},
                  .network = {.latency_seconds = 1e-5,
                              .bytes_per_second = 1e9,
                              .rate_by_nodes = {{2.0, 1.0}, {64.0, 0.25}}}};
  machine.measured[{"matmul_nt", DType::kFloat32}] = {
      {{64, 64, 64}, 524288.0, 49152.0, 2e-5 / 3}, {{256, 256, 256}, 33554432.0, 786432.0, 4e-4}};
  machine.measured[{"copy", DType::kFloat32}] = {{{1, 1024, 0}, 0.0, 8192.0, 1e-6}};
  return machine;
}

ops::OperationWork product_of(std::int64_t m, std::int64_t n, std::int64_t k,
                              DType dtype = DType::kFloat32) {
  const auto count = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a * b); };
  return {.name = "matmul_nt",
          .dtype = dtype,
          .extents = {m, n, k},
          .flops = 2.0 * count(m, n) * static_cast<double>(k),
          .bytes = 4.0 * (count(m, n) + count(n, k) + count(m, k))};
}

std::string error_of(const std::function<void()>& action) {
  return test::error_of(action, ExitCode::kUsage);
}

TEST(MachineFile, IsReadAsItWasWritten) {
  const Machine machine = measured_machine();
  const std::string text = machine_text(machine);
  EXPECT_EQ(parse_machine(text, "file"), machine);
  EXPECT_EQ(machine_text(parse_machine(text, "file")), text);
  for (const char* line :
       {"float64_tflops = 0.1", "latency_us = 1", "memory_gb = 8.100000001",
        "message = 1024 bytes : 1 GB/s", "busy = 2 : 1.1 products, 1.6 others", "nodes = 64 : 0.25",
        "operation = copy float32 1 1024 0 : 0 flops, 8192 bytes, 1 us"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MachineFile, ShippedMachinesPriceEverything) {
  EXPECT_THAT(shipped_machines(),
              ElementsAre("a100-40", "a100-80", "b200", "gb200", "gh200", "h100", "h200"));
  for (const std::string& name : shipped_machines()) {
    const Machine machine = read_machine(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_EQ(parse_machine(machine_text(machine), name), machine);
    for (const DType dtype : {DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
      ops::OperationWork work = product_of(8192, 8192, 8192, dtype);
      for (const char* operation : {"matmul_nt", "attention_forward", "convolution_forward"}) {
        work.name = operation;
        const double part = work.flops / seconds_of(machine, work) / machine.peak_flops.at(dtype);
        EXPECT_TRUE(part > 0.15 && part < 0.8) << name << " " << operation << ": " << part;
      }
    }
    EXPECT_GT(seconds_of(machine, machine.network, 1.0, 1e6),
              seconds_of(machine, machine.node, 1.0, 1e6));
  }
}

TEST(MachineFile, NamesTheFigureThatIsWrong) {
  const struct {
    std::string lines;
    const char* told;
  } cases[] = {
      {"[memory]\nbandwidth_gbs = 0\n", "memory.bandwidth_gbs is \"0\"; it is the bandwidth of"},
      {"[memory]\nbandwidth_gbs = -3\n", "memory.bandwidth_gbs is \"-3\""},
      {"[memory]\nbandwidth_gbs = nan\n", "memory.bandwidth_gbs is \"nan\""},
      {"[memory]\nbandwidth_gbs = 1e30\n", "memory.bandwidth_gbs is \"1e30\""},
      {"[memory]\nbandwidth_gbs = fast\n", "memory.bandwidth_gbs is \"fast\""},
      {"[memory]\nefficiency = 1.2\n", "memory.efficiency is \"1.2\""},
      {"[memory]\nlaunch_us = -1\n", "memory.launch_us is \"-1\""},
      {"[memory]\nlaunch_us = 1\nlaunch_us = 2\n", "memory.launch_us is given twice"},
      {"[machine]\ndevice_threads = 1.5\n", "machine.device_threads is \"1.5\""},
      {"[peak]\nfloat32_tflops = inf\n", "peak.float32_tflops is \"inf\""},
      {"[peak]\nfloat16_tflops = 3\n", "the nearest is peak.bfloat16_tflops"},
      {"[link.node]\nmessage = 1024 : 3\n", "link.node.message is \"1024 : 3\""},
      {"[link.node]\nmessage = 1024 bytes : 0 GB/s\n", "link.node.message is \"0\""},
      {"[link.node]\nmessage = 64 bytes : 1 GB/s\nmessage = 8 bytes : 1 GB/s\n", "do not ascend"},
      {"[ranks]\nbusy = 2 : 1.1\n", "ranks.busy is \"2 : 1.1\""},
      {"[measured]\noperation = copy float32 1 2 3 : 4 us\n", "is no measured operation"},
      {"[measured]\noperation = copy float32 1 2 3 : 0 flops, 8 bytes, 0 us\n",
       "measured.operation is \"0\""},
      {"[measured]\noperation = copy float32 1 2 3 : 0 flops, 0 bytes, 1 us\n", "has no flops"},
  };
  for (const auto& [lines, told] : cases) {
    EXPECT_THAT(error_of([&] { static_cast<void>(parse_machine(kSmallest + lines, "m.ini")); }),
                HasSubstr(told));
  }
  EXPECT_THAT(error_of([] { static_cast<void>(parse_machine("[machine]\n", "m.ini")); }),
              HasSubstr("m.ini has no machine.device"));
  EXPECT_THAT(error_of([] { static_cast<void>(read_machine("h900")); }), HasSubstr("h100, h200"));
}

TEST(Machine, NamesTheFigureThatItLacks) {
  const Machine machine = parse_machine(kSmallest, "m.ini");
  ops::OperationWork work = product_of(8, 8, 8);
  EXPECT_THAT(error_of([&] { static_cast<void>(seconds_of(machine, work)); }),
              HasSubstr("no peak.float32_tflops, which prices matmul_nt"));
  work = {.name = "copy", .bytes = 8.0};
  EXPECT_THAT(error_of([&] { static_cast<void>(seconds_of(machine, work)); }),
              HasSubstr("no memory.bandwidth_gbs, which prices copy"));
  EXPECT_THAT(error_of([&] { static_cast<void>(seconds_of(machine, machine.network, 1.0, 8.0)); }),
              HasSubstr("no link.network.bandwidth_gbs, which prices messages between nodes"));
  EXPECT_EQ(seconds_of(machine, machine.network, 0.0, 0.0), 0.0);
}

TEST(Machine, PricesByFormulas) {
  Machine machine = measured_machine();
  machine.measured.clear();
  const ops::OperationWork work = product_of(512, 512, 512);
  const double efficiency = 0.5 * (512.0 / 515.5) * (512.0 / 528.0);
  EXPECT_THAT(seconds_of(machine, work), DoubleEq(work.flops / (1e12 / 3.0 * efficiency)));
  // A product of vectors moves bytes.
  EXPECT_THAT(seconds_of(machine, product_of(1, 1, 1 << 20)),
              DoubleEq(product_of(1, 1, 1 << 20).bytes / 2e10));
  EXPECT_THAT(seconds_of(machine, {.name = "copy", .bytes = 1e6}), DoubleEq(5e-5));
  EXPECT_THAT(seconds_of(machine, {.name = "copy", .bytes = 1.0}), DoubleEq(1e-6 / 7.0));
  EXPECT_THAT(seconds_of(machine, {.name = "copy", .bytes = 1e6}, 3), DoubleEq(5e-5 * 2.3));
  EXPECT_THAT(seconds_of(machine, {.name = "copy", .bytes = 1e6}, 9), DoubleEq(5e-5 * 3.0));
}

TEST(Machine, PricesByMeasuredOperations) {
  const Machine machine = measured_machine();
  EXPECT_EQ(seconds_of(machine, product_of(64, 64, 64)), 2e-5 / 3);
  EXPECT_EQ(seconds_of(machine, product_of(256, 256, 256)), 4e-4);
  ops::OperationWork fused = product_of(64, 64, 64);
  fused.name = "matmul_nt_gelu";
  EXPECT_EQ(seconds_of(machine, fused), 2e-5 / 3);
  // Between the two, between their rates; beyond them, at most the best rate.
  const double small = 524288.0 / (2e-5 / 3);
  const double large = 33554432.0 / 4e-4;
  double before = 0.0;
  for (std::int64_t size = 1; size <= 8192; size *= 2) {
    const ops::OperationWork work = product_of(size, size, size);
    const double seconds = seconds_of(machine, work);
    const double rate = work.flops / seconds;
    EXPECT_GE(seconds, before) << size;
    EXPECT_LE(rate, std::max(small, large) * (1.0 + 1e-12)) << size;
    EXPECT_GE(rate, 0.0);
    before = seconds;
  }
}

TEST(Machine, PricesMessages) {
  const Machine machine = measured_machine();
  EXPECT_THAT(seconds_of(machine, machine.node, 2.0, 2048.0), DoubleEq(2e-6 + 2048.0 / 1e9));
  EXPECT_NEAR(seconds_of(machine, machine.node, 1.0, 32768.0), 1e-6 + 32768.0 / 2e9, 1e-15);
  EXPECT_THAT(seconds_of(machine, machine.node, 1.0, 0.0), DoubleEq(1e-6));
  EXPECT_THAT(seconds_of(machine, machine.network, 1.0, 1e6, 33.0),
              DoubleEq(1e-5 + 1e6 / (1e9 * 0.625)));
}

}  // namespace
}  // namespace strata::forecast::machine_test
