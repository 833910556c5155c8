#include "event_file.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/host_name.hpp"
#include "strata/train/metrics.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "numbers in event files are");

/// How a field of a protocol buffer is stored.
enum class Wire : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <typename T>
std::string raw(T value) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
  return {bytes.data(), bytes.size()};
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(0x80 | (value & 0x7F));
  }
  return bytes + static_cast<char>(value);
}

std::string key(unsigned field, Wire wire) {
  return varint(field << 3 | static_cast<unsigned>(wire));
}

std::string bytes_field(unsigned field, std::string_view bytes) {
  return key(field, Wire::kBytes) + varint(bytes.size()) + std::string(bytes);
}
std::string integer_field(unsigned field, std::int64_t value) {
  return key(field, Wire::kVarint) + varint(static_cast<std::uint64_t>(value));
}

/// A record: length, its checksum, the bytes and theirs.
std::string record(const std::string& bytes) {
  const auto checksum = [](const std::string& of) {
    constexpr std::uint32_t kMask = 0xa282ead8;
    return raw(std::rotr(crc32c_of(of), 15) + kMask);
  };
  const std::string length = raw(static_cast<std::uint64_t>(bytes.size()));
  return length + checksum(length) + bytes + checksum(bytes);
}

/// Event{wall_time = 1, step = 2} with what else it holds.
std::string event(double time, std::int64_t step, const std::string& what) {
  return record(key(1, Wire::kFixed64) + raw(time) + integer_field(2, step) + what);
}

/// Event.summary = 5 of Summary.value = 1.
std::string summary(const std::string& values) {
  return bytes_field(5, values);
}

/// Summary.Value{tag = 1, simple_value = 2}.
std::string scalar(const std::string& tag, double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const float rounded =
      std::abs(value) <= kMost
          ? static_cast<float>(value)
          : std::copysign(std::numeric_limits<float>::infinity(), value > 0 ? 1.0F : -1.0F);
  return bytes_field(1, bytes_field(1, tag) + key(2, Wire::kFixed32) + raw(rounded));
}

/// Summary.Value{tag = 1, tensor = 8, metadata = 9} of the plugin for texts, which are Markdown.
std::string text(const std::string& tag, const std::string& markdown) {
  constexpr std::int64_t kString = 7;  // DataType.DT_STRING
  // TensorProto{dtype = 1, tensor_shape = 2 {dim = 2 {size = 1}}, string_val = 8}.
  const std::string tensor = integer_field(1, kString) +
                             bytes_field(2, bytes_field(2, integer_field(1, 1))) +
                             bytes_field(8, markdown);
  // SummaryMetadata{plugin_data = 1 {plugin_name = 1}}.
  const std::string metadata = bytes_field(1, bytes_field(1, "text"));
  return bytes_field(1, bytes_field(1, tag) + bytes_field(8, tensor) + bytes_field(9, metadata));
}

/// Empty for a line without numbers, as one that was cut.
std::string event_of(const std::string& text, double unknown_time) {
  const auto line = metrics_line_of(text);
  double time = unknown_time;
  std::string values;
  for (const auto& [name, value] : line ? line->numbers : std::vector<MetricsLine::Number>()) {
    if (std::isnan(value) || name == "step") {
      continue;
    }
    if (name == "time") {
      time = value;
    } else {
      values += scalar(line->kind + "/" + name, value);
    }
  }
  return values.empty() || line->kind.empty() ? "" : event(time, line->step, summary(values));
}

}  // namespace

std::string first_events(double time, const std::string& config_text) {
  constexpr std::int64_t kStart = 1;  // SessionLog.START: what came from earlier files is dropped
  return event(time, 0, bytes_field(3, "brain.Event:2")) +           // file_version
         event(time, 0, bytes_field(7, integer_field(1, kStart))) +  // session_log.status
         event(time, 0, summary(text("config/text_summary", "```\n" + config_text + "```\n")));
}

std::string events_of(const std::string& lines, double unknown_time) {
  std::istringstream in(lines);
  std::string events;
  for (std::string line; std::getline(in, line);) {
    events += event_of(line, unknown_time);
  }
  return events;
}

fs::path new_event_file(const fs::path& directory, double time) {
  std::error_code error;
  fs::create_directory(directory, error);
  if (fs::symlink_status(directory).type() != fs::file_type::directory) {
    fail(ExitCode::kUsage, "cannot make the directory {}: {}; move away what has its name",
         directory.string(), error ? error.message() : "it is a link");
  }
  return directory / fmt::format("events.out.tfevents.{:.0f}.{}", std::floor(time), host_name());
}

void delete_other_event_files(const fs::path& path) {
  std::error_code ignored;
  for (fs::directory_iterator entries(path.parent_path(), ignored), end; entries != end;
       entries.increment(ignored)) {
    if (entries->path().filename().string().find(".tfevents.") != std::string::npos &&
        entries->path() != path) {
      std::error_code kept;
      fs::remove(entries->path(), kept);
    }
  }
}

}  // namespace strata::train
