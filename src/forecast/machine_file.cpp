#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/familiar_names.hpp"
#include "strata/core/ini_lines.hpp"
#include "strata/core/text.hpp"
#include "strata/forecast/machine.hpp"
#include "strata/io/text_file.hpp"

#include "shipped_machines.hpp"

namespace strata::forecast {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{64} << 20;
constexpr double kTiny = 1e-9;  // the least of a figure that is not 0, in its unit

/// A figure of a file: its place, its unit as a power of ten, and its valid range.
struct Figure {
  std::string_view key;
  double& (*of)(Machine&);
  int power = 0;
  double least = 0.0;
  double most = 0.0;
  std::string_view use;
};

constexpr auto kFigures = std::to_array<Figure>({
    {"machine.memory_gb", [](Machine& m) -> double& { return m.memory_bytes; }, 9, kTiny, 1e6,
     "the memory of a GPU, or of a node without, that a plan has to fit into"},
    {"machine.reserved_gb", [](Machine& m) -> double& { return m.reserved_bytes; }, 9, 0.0, 1e6,
     "the memory of a rank that libraries take"},
    {"product.efficiency", [](Machine& m) -> double& { return m.product_efficiency; }, 0, kTiny,
     1.0, "the part of the peak that large matrix products reach"},
    {"product.half_m", [](Machine& m) -> double& { return m.product_half[0]; }, 0, 0.0, 1e6,
     "the m at which a product is half as fast"},
    {"product.half_n", [](Machine& m) -> double& { return m.product_half[1]; }, 0, 0.0, 1e6,
     "the n at which a product is half as fast"},
    {"product.half_k", [](Machine& m) -> double& { return m.product_half[2]; }, 0, 0.0, 1e6,
     "the k at which a product is half as fast"},
    {"attention.efficiency", [](Machine& m) -> double& { return m.attention_efficiency; }, 0, kTiny,
     1.0, "the part of the peak that attention reaches"},
    {"convolution.efficiency", [](Machine& m) -> double& { return m.convolution_efficiency; }, 0,
     kTiny, 1.0, "the part of the peak that convolutions reach"},
    {"memory.bandwidth_gbs", [](Machine& m) -> double& { return m.memory_bytes_per_second; }, 9,
     kTiny, 1e6, "the bandwidth of a device's memory"},
    {"memory.efficiency", [](Machine& m) -> double& { return m.memory_efficiency; }, 0, kTiny, 1.0,
     "the part of the bandwidth that large operations reach"},
    {"memory.half_kb", [](Machine& m) -> double& { return m.memory_half_bytes; }, 3, 0.0, 1e9,
     "the bytes at which an operation reaches half of that"},
    {"memory.launch_us", [](Machine& m) -> double& { return m.launch_seconds; }, -6, 0.0, 1e5,
     "the time of the smallest operation"},
    {"ranks.context_switch_us", [](Machine& m) -> double& { return m.context_switch_seconds; }, -6,
     0.0, 1e6, "what a wait costs ranks that share a core"},
    {"link.node.latency_us", [](Machine& m) -> double& { return m.node.latency_seconds; }, -6, 0.0,
     1e6, "the latency of a message in a node"},
    {"link.node.bandwidth_gbs", [](Machine& m) -> double& { return m.node.bytes_per_second; }, 9,
     kTiny, 1e6, "the rate at which a rank sends to others of its node"},
    {"link.network.latency_us", [](Machine& m) -> double& { return m.network.latency_seconds; }, -6,
     0.0, 1e6, "the latency of a message between nodes"},
    {"link.network.bandwidth_gbs", [](Machine& m) -> double& { return m.network.bytes_per_second; },
     9, kTiny, 1e6, "the rate at which a rank sends to other nodes"},
    {"files.write_gbs", [](Machine& m) -> double& { return m.file_write_bytes_per_second; }, 9,
     kTiny, 1e6, "the rate at which a node writes checkpoints"},
    {"files.read_gbs", [](Machine& m) -> double& { return m.file_read_bytes_per_second; }, 9, kTiny,
     1e6, "the rate at which a node reads files"},
    {"power.device_w", [](Machine& m) -> double& { return m.device_watts; }, 0, kTiny, 1e6,
     "the power of a device in training"},
    {"power.node_w", [](Machine& m) -> double& { return m.node_watts; }, 0, kTiny, 1e6,
     "the power of the rest of a node"},
});

constexpr std::array kPeakDTypes{DType::kBfloat16, DType::kFloat32, DType::kFloat64};

std::string peak_key(DType dtype) {
  return fmt::format("peak.{}_tflops", name_of(dtype));
}

/// Parses a number and multiplies it by a power of ten, rounded once.
std::optional<double> scaled(std::string_view text, int power) {
  const std::size_t mark = std::min(text.find_first_of("eE"), text.size());
  std::int64_t exponent = 0;
  if (mark < text.size()) {
    std::string_view digits = text.substr(mark + 1);
    digits.remove_prefix(digits.starts_with('+') ? 1 : 0);
    if (!parse_int64(digits, exponent) || std::abs(exponent) > 1000) {
      return {};
    }
  }
  double value = 0.0;
  const bool is_number = parse_double(
      power == 0 ? std::string(text) : fmt::format("{}e{}", text.substr(0, mark), exponent + power),
      value);
  return is_number ? std::optional(value) : std::nullopt;
}

/// The shortest text that scaled() turns into `value`.
std::string unscaled(double value, int power) {
  for (int digits = 1; digits < 17; ++digits) {
    // Without an exponent where the number has few digits before the point.
    const double number = value * std::pow(10.0, -power);
    const double rounded = std::strtod(fmt::format("{:.{}e}", number, digits).c_str(), nullptr);
    std::string text = fmt::format("{}", rounded);
    if (scaled(text, power) == value) {
      return text;
    }
  }
  const std::string text = fmt::format("{:.16e}", value);
  const std::size_t mark = text.find('e');
  std::int64_t exponent = 0;
  const std::string_view digits = std::string_view(text).substr(mark + 1);
  static_cast<void>(parse_int64(digits.starts_with('+') ? digits.substr(1) : digits, exponent));
  return fmt::format("{}e{}", text.substr(0, mark), exponent - power);
}

/// Reads one file; `where` names it in errors.
class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : where_(where) {
    for (const IniLine& line : ini_lines(text)) {
      read(line);
    }
    for (const char* key : {"machine.device", "machine.node_devices", "machine.memory_gb"}) {
      if (!seen_.contains(key)) {
        fail(ExitCode::kUsage, "{} has no {}; every machine needs it (docs/formats.md)", where_,
             key);
      }
    }
    check();
  }

  Machine take() { return std::move(machine_); }

 private:
  void read(const IniLine& line) {
    if (!is_list(line.key) && !seen_.insert(line.key).second) {
      fail(ExitCode::kUsage, "{}: {} is given twice; keep one", where_, line.key);
    }
    const auto figure = std::ranges::find(kFigures, line.key, &Figure::key);
    if (figure != kFigures.end()) {
      figure->of(machine_) =
          number(line, line.value, figure->power, figure->least, figure->most, figure->use);
    } else if (line.key == "machine.name") {
      machine_.name = line.value;
    } else if (line.key == "machine.source") {
      machine_.source = line.value;
    } else if (line.key == "machine.device") {
      const auto device = enum_from_name<device::DeviceKind>(line.value);
      if (!device) {
        fail(ExitCode::kUsage, "{}: {} is \"{}\"; it is one of {}", where_, line.key, line.value,
             joined_names<device::DeviceKind>());
      }
      machine_.device = *device;
    } else if (line.key == "machine.node_devices") {
      machine_.node_devices = count(line, "the GPUs of a node, or the cores that ranks compute on");
    } else if (line.key == "machine.device_threads") {
      machine_.device_threads = count(line, "the threads of a rank that was measured");
    } else if (line.key == "link.node.message" || line.key == "link.network.message") {
      const auto [bytes, rate] =
          values<2>(line, {"bytes :", "GB/s"}, {0, 9}, "the rate of messages of a size");
      link_of(line).measured.push_back({bytes, rate});
    } else if (line.key == "link.node.nodes" || line.key == "link.network.nodes") {
      const auto [nodes, part] =
          values<2>(line, {":", ""}, {0, 0}, "the part of the rate that is left on so many nodes");
      link_of(line).rate_by_nodes.emplace_back(nodes, part);
    } else if (line.key == "ranks.busy") {
      const auto [ranks, products, memory] =
          values<3>(line, {":", "products,", "others"}, {0, 0, 0},
                    "how much longer operations take while so many ranks compute");
      machine_.slowdown_by_ranks.push_back({ranks, products, memory});
    } else if (line.key == "measured.operation") {
      read_operation(line);
    } else {
      read_peak(line);
    }
  }

  static bool is_list(const std::string& key) {
    return key.ends_with(".message") || key.ends_with(".nodes") || key == "ranks.busy" ||
           key == "measured.operation";
  }

  Link& link_of(const IniLine& line) {
    return line.key.starts_with("link.node.") ? machine_.node : machine_.network;
  }

  void read_peak(const IniLine& line) {
    for (const DType dtype : kPeakDTypes) {
      if (line.key == peak_key(dtype)) {
        machine_.peak_flops[dtype] =
            number(line, line.value, 12, kTiny, 1e6, "the peak of matrix products");
        return;
      }
    }
    std::vector<std::string> keys{"machine.name",      "machine.source",     "machine.device",
                                  "link.node.message", "link.network.nodes", "ranks.busy",
                                  "measured.operation"};
    for (const Figure& figure : kFigures) {
      keys.emplace_back(figure.key);
    }
    for (const DType dtype : kPeakDTypes) {
      keys.push_back(peak_key(dtype));
    }
    fail(ExitCode::kUsage, "{}: a machine has no {}; the nearest is {} (docs/formats.md)", where_,
         line.key, nearest(line.key, keys));
  }

  /// As in "matmul_nt float32 256 768 768 : 3.02e+08 flops, 3.9e+06 bytes, 123.4 us".
  void read_operation(const IniLine& line) {
    const std::vector<std::string> words = split_words(line.value, " \t:,");
    const auto dtype = words.size() == 11 ? enum_from_name<DType>(words[1]) : std::nullopt;
    MeasuredOperation operation;
    bool good =
        dtype.has_value() && words[6] == "flops" && words[8] == "bytes" && words[10] == "us";
    for (std::size_t i = 0; good && i < 3; ++i) {
      good = parse_int64(words[2 + i], operation.extents[i]) && operation.extents[i] >= 0;
    }
    if (!good) {
      fail(ExitCode::kUsage,
           "{}: \"{}\" is no measured operation; one looks like \"matmul_nt float32 256 768 768 : "
           "3.02e+08 flops, 3.9e+06 bytes, 123.4 us\"",
           where_, line.value);
    }
    constexpr std::string_view kUse = "a measured operation";
    operation.flops = number(line, words[5], 0, 0.0, 1e24, kUse);
    operation.bytes = number(line, words[7], 0, 0.0, 1e18, kUse);
    operation.seconds = number(line, words[9], -6, kTiny, 1e12, kUse);
    if (operation.flops + operation.bytes <= 0.0) {
      fail(ExitCode::kUsage,
           "{}: the measured operation \"{}\" has no flops and no bytes; remove it", where_,
           line.value);
    }
    machine_.measured[{words[0], *dtype}].push_back(operation);
  }

  /// A list's values, each before a text.
  template <std::size_t N>
  std::array<double, N> values(const IniLine& line, const std::array<std::string_view, N>& texts,
                               const std::array<int, N>& powers, std::string_view use) {
    std::string form;
    std::array<double, N> result{};
    std::string_view rest = line.value;
    bool good = true;
    for (std::size_t i = 0; i < N; ++i) {
      form += fmt::format("{}NUMBER{}{}", i == 0 ? "" : " ", texts[i].empty() ? "" : " ", texts[i]);
      const std::size_t end =
          texts[i].empty() ? rest.size() : std::min(rest.find(texts[i]), rest.size());
      const std::string_view word = trimmed(rest.substr(0, end));
      good = good && scaled(word, powers[i]) && (texts[i].empty() || end < rest.size());
      if (good) {
        result[i] = number(line, word, powers[i], kTiny, 1e15, use);
        rest.remove_prefix(end + texts[i].size());
      }
    }
    if (!good || !trimmed(rest).empty()) {
      fail(ExitCode::kUsage, "{}: {} is \"{}\"; it gives {}, as \"{}\"", where_, line.key,
           line.value, use, form);
    }
    return result;
  }

  double number(const IniLine& line, std::string_view text, int power, double least, double most,
                std::string_view use) {
    const auto value = scaled(text, power);
    const auto as_given = scaled(text, 0);
    if (!value || !as_given || !(*as_given >= least && *as_given <= most)) {
      fail(ExitCode::kUsage, "{}: {} is \"{}\"; it is {}: a number {} {}, at most {}", where_,
           line.key, text, use, least == kTiny ? "above" : "of at least",
           least == kTiny ? 0.0 : least, most);
    }
    return *value;
  }

  std::int64_t count(const IniLine& line, std::string_view use) {
    const double value = number(line, line.value, 0, 1.0, 1e5, use);
    if (value != std::floor(value)) {
      fail(ExitCode::kUsage, "{}: {} is \"{}\"; it is {}: a whole number", where_, line.key,
           line.value, use);
    }
    return static_cast<std::int64_t>(value);
  }

  /// Lists ascend.
  void check() {
    const auto ascends = [&](const auto& points, const char* key, const auto& x) {
      const auto falls = std::ranges::adjacent_find(
          points, [&](const auto& a, const auto& b) { return x(a) >= x(b); });
      if (falls != points.end()) {
        fail(ExitCode::kUsage, "{}: the lines of {} do not ascend; sort them, and keep one of each",
             where_, key);
      }
    };
    const auto bytes = [](const MeasuredMessage& m) { return m.bytes; };
    const auto nodes = [](const auto& point) { return point.first; };
    ascends(machine_.node.measured, "link.node.message", bytes);
    ascends(machine_.network.measured, "link.network.message", bytes);
    ascends(machine_.node.rate_by_nodes, "link.node.nodes", nodes);
    ascends(machine_.network.rate_by_nodes, "link.network.nodes", nodes);
    ascends(machine_.slowdown_by_ranks, "ranks.busy", [](const Slowdown& s) { return s.ranks; });
  }

  const std::string& where_;
  Machine machine_;
  std::set<std::string> seen_;
};

/// The lines of a link's lists.
std::string lists_text(const Link& link) {
  std::string text;
  for (const MeasuredMessage& message : link.measured) {
    text += fmt::format("message = {} bytes : {} GB/s\n", unscaled(message.bytes, 0),
                        unscaled(message.bytes_per_second, 9));
  }
  for (const auto& [nodes, part] : link.rate_by_nodes) {
    text += fmt::format("nodes = {} : {}\n", unscaled(nodes, 0), unscaled(part, 0));
  }
  return text;
}

}  // namespace

Machine parse_machine(std::string_view text, const std::string& file) {
  return Reader(text, file).take();
}

Machine read_machine(const std::string& file_or_name) {
  if (std::filesystem::exists(file_or_name)) {
    Machine machine =
        parse_machine(io::read_input(file_or_name, kMostFileBytes, ExitCode::kUsage), file_or_name);
    if (machine.name.empty()) {
      machine.name = file_or_name;
    }
    return machine;
  }
  const std::vector<std::string> names = shipped_machines();
  const std::string meant = value_meant_by(file_or_name, names);
  for (const auto& [name, text] : shipped_texts()) {
    if (name == meant) {
      return parse_machine(text, meant);
    }
  }
  fail(ExitCode::kUsage,
       "there is no machine file \"{}\", and no machine of that name: give a file that strata plan "
       "--calibrate=FILE wrote, or one of {}",
       file_or_name, fmt::join(names, ", "));
}

std::vector<std::string> shipped_machines() {
  std::vector<std::string> names;
  for (const auto& [name, text] : shipped_texts()) {
    names.emplace_back(name);
  }
  return names;
}

std::string machine_text(const Machine& machine) {
  Machine of = machine;
  std::map<std::string, std::string> sections;
  for (const Figure& figure : kFigures) {
    const double value = figure.of(of);
    const std::size_t dot = figure.key.rfind('.');
    if (value != 0.0) {
      sections[std::string(figure.key.substr(0, dot))] +=
          fmt::format("{} = {}\n", figure.key.substr(dot + 1), unscaled(value, figure.power));
    }
  }
  for (const auto& [dtype, flops] : machine.peak_flops) {
    sections["peak"] += fmt::format("{}_tflops = {}\n", name_of(dtype), unscaled(flops, 12));
  }
  sections["link.node"] += lists_text(machine.node);
  sections["link.network"] += lists_text(machine.network);
  for (const Slowdown& slowdown : machine.slowdown_by_ranks) {
    sections["ranks"] +=
        fmt::format("busy = {} : {} products, {} others\n", unscaled(slowdown.ranks, 0),
                    unscaled(slowdown.products, 0), unscaled(slowdown.memory, 0));
  }
  for (const auto& [key, operations] : machine.measured) {
    for (const MeasuredOperation& of_key : operations) {
      sections["measured"] += fmt::format("operation = {} {} {} : {} flops, {} bytes, {} us\n",
                                          key.first, name_of(key.second),
                                          fmt::join(of_key.extents, " "), unscaled(of_key.flops, 0),
                                          unscaled(of_key.bytes, 0), unscaled(of_key.seconds, -6));
    }
  }
  std::string text = fmt::format(
      "[machine]\nname = {}\nsource = {}\ndevice = {}\nnode_devices = {}\n{}{}", machine.name,
      machine.source, name_of(machine.device), machine.node_devices,
      machine.device_threads == 0 ? ""
                                  : fmt::format("device_threads = {}\n", machine.device_threads),
      sections["machine"]);
  for (const char* section : {"peak", "product", "attention", "convolution", "memory", "link.node",
                              "link.network", "files", "power", "ranks", "measured"}) {
    if (!sections[section].empty()) {
      text += fmt::format("\n[{}]\n{}", section, sections[section]);
    }
  }
  return text;
}

}  // namespace strata::forecast
