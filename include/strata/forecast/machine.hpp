#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/device/device.hpp"
#include "strata/ops/observer.hpp"

namespace strata::forecast {

/// A measured operation: its extents (ops::OperationWork) and the seconds that it took.
struct MeasuredOperation {
  std::array<std::int64_t, 3> extents{};
  double flops = 0.0;
  double bytes = 0.0;
  double seconds = 0.0;

  friend bool operator==(const MeasuredOperation&, const MeasuredOperation&) = default;
};

/// Messages of a size and the rate at which one rank sends them, latency apart.
struct MeasuredMessage {
  double bytes = 0.0;
  double bytes_per_second = 0.0;

  friend bool operator==(const MeasuredMessage&, const MeasuredMessage&) = default;
};

/// A kind of link between ranks.
struct Link {
  double latency_seconds = 0.0;   ///< of a message without contents
  double bytes_per_second = 0.0;  ///< of a rank, in one direction, with large messages
  /// By message size, ascending; empty: latency and rate alone.
  std::vector<MeasuredMessage> measured;
  /// By number of nodes that take part, ascending: the part of the rate that is left. Empty: all.
  std::vector<std::pair<double, double>> rate_by_nodes;

  friend bool operator==(const Link&, const Link&) = default;
};

/// How much longer operations take while `ranks` ranks of a node compute than on one alone.
struct Slowdown {
  double ranks = 1.0;
  double products = 1.0;  ///< of operations that is_dense() is true of
  double memory = 1.0;    ///< of the others

  friend bool operator==(const Slowdown&, const Slowdown&) = default;
};

/// What a node is and how fast. Figures are from data sheets, fitted to published measurements, or
/// measured by calibrate(); docs/planning.md says which are which. 0: not known.
struct Machine {
  std::string name;
  std::string source;
  device::DeviceKind device = device::DeviceKind::kCpu;
  std::int64_t node_devices = 1;    ///< GPUs of a node, or cores that ranks compute on
  std::int64_t device_threads = 0;  ///< of a rank, while operations were measured; 0: not known
  double memory_bytes = 0.0;        ///< of a GPU; of a node without
  double reserved_bytes = 0.0;      ///< of a rank, outside its arenas: the driver's and libraries'
  /// Dense matrix products, FLOP/s of a device; absent: cannot compute in that dtype.
  std::map<DType, double> peak_flops;
  double memory_bytes_per_second = 0.0;

  /// A product of m x k by k x n reaches efficiency x m / (m + half[0]) x n / (n + half[1]) x k /
  /// (k + half[2]) of the peak, unless its bytes take longer.
  double product_efficiency = 0.0;
  std::array<double, 3> product_half{};
  double attention_efficiency = 0.0;  ///< of the peak, in fused attention
  double convolution_efficiency = 0.0;
  /// Operations that memory bounds reach efficiency x b / (b + half) of the bandwidth.
  double memory_efficiency = 0.0;
  double memory_half_bytes = 0.0;
  double launch_seconds = 0.0;  ///< of one operation, at least
  /// Instead of the formulas, by name and dtype.
  std::map<std::pair<std::string, DType>, std::vector<MeasuredOperation>> measured;
  std::vector<Slowdown> slowdown_by_ranks;  ///< ascending; empty: none
  /// What a wait for other ranks costs where ranks share a core, which goes from one to the next.
  double context_switch_seconds = 0.0;

  Link node;     ///< between devices of a node
  Link network;  ///< between nodes

  double file_write_bytes_per_second = 0.0;  ///< of a node
  double file_read_bytes_per_second = 0.0;
  double device_watts = 0.0;  ///< in training; 0: not known
  double node_watts = 0.0;    ///< of the rest of a node

  friend bool operator==(const Machine&, const Machine&) = default;
};

/// Reads the machine from a file; if there is no such file, the shipped machine of that name.
/// Throws: Error(kUsage) that names the first missing, negative or absurd figure and what it is
/// used for, or the shipped names.
[[nodiscard]] Machine read_machine(const std::string& file_or_name);
/// The machine of a file's text; `file` names it in errors. Throws: as read_machine().
[[nodiscard]] Machine parse_machine(std::string_view text, const std::string& file);
/// As a file (docs/formats.md), which gives an equal machine when it is read.
[[nodiscard]] std::string machine_text(const Machine& machine);
[[nodiscard]] std::vector<std::string> shipped_machines();

/// Whether an operation has so many FLOPs for its bytes that the memory's rate does not matter.
[[nodiscard]] bool is_dense(double flops, double bytes);

/// Seconds of an operation on one device, of `ranks` that compute on its node. Measured operations
/// of its name and dtype come first: the time of the same operation, or else the rates of the
/// nearest ones. A product without measurements takes the rates of the nearest name.
/// Throws: Error(kUsage) that names the figure which the machine lacks.
[[nodiscard]] double seconds_of(const Machine& machine, const ops::OperationWork& work,
                                std::int64_t ranks = 1);

/// Seconds from the start of messages that a rank sends over links of one kind, one after the
/// other, to their end. `nodes`: that take part.
[[nodiscard]] double seconds_of(const Machine& machine, const Link& link, double messages,
                                double bytes, double nodes = 1.0);

}  // namespace strata::forecast
