#include "record/event_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/text_file.hpp"
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

std::string double_field(unsigned field, double value) {
  return key(field, Wire::kFixed64) + raw(value);
}
/// A repeated field, packed.
std::string doubles_field(unsigned field, const std::vector<double>& values) {
  return bytes_field(field, {reinterpret_cast<const char*>(values.data()), 8 * values.size()});
}

/// Takes a protocol buffer apart. What is damaged reads as empty.
class Fields {
 public:
  explicit Fields(std::string_view rest) : rest_(rest) {}

  /// Moves to the next field; false after the last.
  bool next() {
    if (rest_.empty()) {
      return false;
    }
    const std::uint64_t key = varint();
    number_ = key >> 3;
    const auto wire = static_cast<Wire>(key & 7);
    integer_ = wire == Wire::kVarint ? varint() : 0;
    bytes_ = take(wire == Wire::kVarint    ? 0
                  : wire == Wire::kFixed64 ? 8
                  : wire == Wire::kFixed32 ? 4
                                           : varint());
    return true;
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::int64_t integer() const { return static_cast<std::int64_t>(integer_); }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

  /// The bytes of the first field `number` of a message; empty where it has none.
  static std::string_view find(std::string_view message, std::uint64_t number) {
    Fields fields(message);
    while (fields.next()) {
      if (fields.number() == number) {
        return fields.bytes();
      }
    }
    return {};
  }

 private:
  std::string_view take(std::uint64_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) {
        break;
      }
    }
    return value;
  }

  std::string_view rest_;
  std::uint64_t number_ = 0;
  std::uint64_t integer_ = 0;
  std::string_view bytes_;
};

/// A record: length, its checksum, the bytes and theirs.
std::string record(std::string_view bytes) {
  const auto checksum = [](std::string_view of) {
    constexpr std::uint32_t kMask = 0xa282ead8;
    return raw(std::rotr(crc32c_of(of), 15) + kMask);
  };
  const std::string length = raw(static_cast<std::uint64_t>(bytes.size()));
  return (length + checksum(length)).append(bytes) + checksum(bytes);
}

/// The bytes of the first record of a file; empty where it is damaged.
std::string_view first_record(std::string_view file) {
  constexpr std::size_t kBefore = 12;
  std::uint64_t length = 0;
  if (file.size() < kBefore) {
    return {};
  }
  std::memcpy(&length, file.data(), sizeof(length));
  const std::string_view bytes = file.substr(kBefore, length);
  return file.starts_with(record(bytes)) ? bytes : std::string_view();
}

/// Event{wall_time = 1, step = 2} with what else it holds.
std::string event(double time, std::int64_t step, const std::string& what) {
  return record(double_field(1, time) + integer_field(2, step) + what);
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

/// NodeDef{name = 1, op = 2, input = 3, attr = 5} of a GraphDef.node = 1. AttrValue{s = 2}, and
/// {list = 1 {shape = 7}} of TensorShapeProto{dim = 2 {size = 1}}; the first size is not known.
std::string graph_node(const std::string& name, const std::string& op,
                       const std::vector<std::string>& inputs, const nn::Port& output,
                       const std::string& line) {
  std::string node = bytes_field(1, name) + bytes_field(2, op);
  for (const std::string& input : inputs) {
    node += bytes_field(3, input);
  }
  const auto attribute = [&](const char* attribute_name, const std::string& value) {
    node += bytes_field(5, bytes_field(1, attribute_name) + bytes_field(2, value));
  };
  std::string shape = bytes_field(2, integer_field(1, -1));
  const Shape& stored = output.shape;  // of images the channels are last
  const Shape users = is_image(output) ? Shape{stored[2], stored[0], stored[1]} : stored;
  for (const std::int64_t extent : users.extents()) {
    shape += bytes_field(2, integer_field(1, extent));
  }
  attribute("_output_shapes", bytes_field(1, bytes_field(7, shape)));
  if (!line.empty()) {
    attribute("layer", bytes_field(2, line));
  }
  return bytes_field(1, node);
}

/// A GraphDef of the model's layers. A layer reads the last view of a tensor, as of a flatten
/// layer.
std::string graph_of(const nn::Model& model) {
  std::map<std::int64_t, std::string> names{{nn::kModelInput, "input"}};
  std::string graph =
      graph_node(names[nn::kModelInput], "Placeholder", {}, model.port_of(nn::kModelInput), "");
  for (std::int64_t i = 0; i < model.layer_count(); ++i) {
    const nn::Layer& layer = model.layer(i);
    const nn::LayerSources& sources = model.sources(i);
    std::vector<std::string> inputs{names[sources.input]};
    if (sources.added) {
      inputs.push_back(names[*sources.added]);
    }
    names[layer.is_view() ? sources.input : i] = layer.name();
    const std::string line = layer.text();
    graph += graph_node(layer.name(), line.substr(0, line.find(' ')), inputs, layer.output(), line);
  }
  return graph;
}

/// Empty for a line without numbers, as one that was cut, and for one that belongs to no step.
std::string event_of(const std::optional<MetricsLine>& line, double unknown_time) {
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
  return values.empty() || line->kind.empty() || line->kind == kRunKind
             ? ""
             : event(time, line->step, summary(values));
}

bool is_event_file(const fs::path& path) {
  return path.filename().string().find(".tfevents.") != std::string::npos;
}

}  // namespace

std::string first_events(double time, const std::string& config_text, const nn::Model* model) {
  constexpr std::int64_t kStart = 1;  // SessionLog.START: what came from earlier files is dropped
  return event(time, 0, bytes_field(3, "brain.Event:2")) +           // file_version
         event(time, 0, bytes_field(7, integer_field(1, kStart))) +  // session_log.status
         event(time, 0, summary(value_of("config/text_summary", config_text))) +
         (model != nullptr ? event(time, 0, bytes_field(4, graph_of(*model))) : "");  // graph_def
}

/// Summary.Value{tag = 1, histo = 5} of HistogramProto.
std::string value_of(const Histogram& histogram) {
  const std::string proto = double_field(1, histogram.min) + double_field(2, histogram.max) +
                            double_field(3, histogram.count) + double_field(4, histogram.sum) +
                            double_field(5, histogram.sum_squares) +
                            doubles_field(6, histogram.limits) + doubles_field(7, histogram.counts);
  return bytes_field(1, bytes_field(1, histogram.name) + bytes_field(5, proto));
}

/// Summary.Value{tag = 1, image = 4 {height = 1, width = 2, colorspace = 3, encoded = 4}}.
std::string value_of(const std::string& tag, const io::Picture& picture) {
  constexpr std::int64_t kColours = 3;
  const std::string image = integer_field(1, picture.height) + integer_field(2, picture.width) +
                            integer_field(3, kColours) + bytes_field(4, picture.png);
  return bytes_field(1, bytes_field(1, tag) + bytes_field(4, image));
}

namespace {

/// A text as a block of code in Markdown. Invalid UTF-8 and NUL, which TensorBoard does not read,
/// become U+FFFD.
std::string code_block(std::string_view text) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::string valid;
  std::size_t ticks = 0;
  std::size_t most_ticks = 2;
  while (!text.empty()) {
    const std::size_t bytes = utf8_prefix(text).bytes;
    for (const char c : text.substr(0, bytes)) {
      ticks = c == '`' ? ticks + 1 : 0;
      most_ticks = std::max(most_ticks, ticks);
      if (c == '\0') {
        append_utf8(kReplacement, valid);
      } else {
        valid += c;
      }
    }
    text.remove_prefix(bytes);
    if (!text.empty()) {
      append_utf8(kReplacement, valid);
      text.remove_prefix(1);
    }
  }
  const std::string fence(most_ticks + 1, '`');
  return fence + "\n" + valid + fence + "\n";
}

}  // namespace

/// Summary.Value{tag = 1, tensor = 8, metadata = 9} of the plugin for texts, which are Markdown.
std::string value_of(const std::string& tag, const std::string& text) {
  constexpr std::int64_t kString = 7;  // DataType.DT_STRING
  // TensorProto{dtype = 1, tensor_shape = 2 {dim = 2 {size = 1}}, string_val = 8}.
  const std::string tensor = integer_field(1, kString) +
                             bytes_field(2, bytes_field(2, integer_field(1, 1))) +
                             bytes_field(8, code_block(text));
  // SummaryMetadata{plugin_data = 1 {plugin_name = 1}}.
  const std::string metadata = bytes_field(1, bytes_field(1, "text"));
  return bytes_field(1, bytes_field(1, tag) + bytes_field(8, tensor) + bytes_field(9, metadata));
}

std::string event_of_values(double time, std::int64_t step, const std::string& values) {
  return event(time, step, summary(values));
}

AddedEvents added_events(const fs::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 34;
  fs::path newest;
  std::error_code ignored;
  for (fs::directory_iterator entries(directory, ignored), end; entries != end;
       entries.increment(ignored)) {
    std::error_code unknown;
    if (is_event_file(entries->path()) &&
        entries->symlink_status(unknown).type() == fs::file_type::regular) {
      newest = std::max(newest, entries->path());
    }
  }
  const std::string file =
      newest.empty() ? "" : io::read_text(newest, ExitCode::kData, kMostBytes).value_or("");
  AddedEvents added;
  std::string_view rest = file;
  for (std::string_view bytes = first_record(rest); !bytes.empty(); bytes = first_record(rest)) {
    std::int64_t step = 0;
    for (Fields fields(bytes); fields.next();) {
      step = fields.number() == 2 ? fields.integer() : step;
    }
    const std::string_view value = Fields::find(Fields::find(bytes, 5), 1);
    if (!value.empty() && Fields::find(value, 2).empty()) {
      const bool evaluated = Fields::find(value, 1).starts_with("evaluate/");
      added[{evaluated ? "evaluate" : "train", step}] += record(bytes);
    }
    rest.remove_prefix(record(bytes).size());
  }
  return added;
}

std::string events_of(const std::string& lines, double unknown_time, const AddedEvents& added) {
  std::istringstream in(lines);
  std::string events;
  for (std::string text; std::getline(in, text);) {
    const auto line = metrics_line_of(text);
    if (const auto found = line ? added.find({line->kind, line->step}) : added.end();
        found != added.end()) {
      events += found->second;
    }
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
    if (is_event_file(entries->path()) && entries->path() != path) {
      std::error_code kept;
      fs::remove(entries->path(), kept);
    }
  }
}

}  // namespace strata::train
