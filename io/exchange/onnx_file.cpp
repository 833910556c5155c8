#include "strata/io/onnx_file.hpp"

#include <bit>
#include <cstring>
#include <string_view>

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

namespace strata::io {
namespace {

/// A message of Protocol Buffers, field by field. Source:
/// https://protobuf.dev/programming-guides/encoding; the numbers of fields are those of onnx.proto,
/// which each use names.
class Message {
 public:
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

  void add(int field, std::int64_t value) {
    add_key(field, 0);
    add_varint(static_cast<std::uint64_t>(value));
  }
  void add(int field, float value) {
    add_key(field, 5);
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof raw);
  }
  void add(int field, std::string_view bytes) {
    add_key(field, 2);
    add_varint(bytes.size());
    bytes_ += bytes;
  }
  void add(int field, const Message& message) { add(field, std::string_view(message.bytes_)); }

 private:
  void add_key(int field, unsigned wire_type) {
    add_varint((static_cast<std::uint64_t>(field) << 3U) | wire_type);
  }
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) {
      bytes_ += static_cast<char>((value & 0x7fU) | 0x80U);
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

constexpr std::int64_t kFloat = 1;  // TensorProto.DataType

/// A ValueInfoProto.
Message port_message(const OnnxPort& port) {
  Message shape;  // TensorShapeProto
  const auto add_extent = [&](const auto& extent, int field) {
    Message dimension;
    dimension.add(field, extent);
    shape.add(1, dimension);
  };
  add_extent(std::string_view("samples"), 2);  // dim_param
  for (const std::int64_t extent : port.shape.extents()) {
    add_extent(extent, 1);  // dim_value
  }
  Message tensor;  // TypeProto.Tensor
  tensor.add(1, kFloat);
  tensor.add(2, shape);
  Message type;  // TypeProto
  type.add(1, tensor);
  Message value;
  value.add(1, port.name);
  value.add(2, type);
  return value;
}

/// An AttributeProto.
Message attribute_message(const std::string& name, const OnnxAttribute& value) {
  constexpr int kType = 20;  // of an AttributeType: FLOAT 1, INT 2, INTS 7
  Message attribute;
  attribute.add(1, name);
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) {
    attribute.add(3, *whole);
    attribute.add(kType, std::int64_t{2});
  } else if (const auto* const number = std::get_if<float>(&value)) {
    attribute.add(2, *number);
    attribute.add(kType, std::int64_t{1});
  } else {
    for (const std::int64_t element : std::get<std::vector<std::int64_t>>(value)) {
      attribute.add(8, element);
    }
    attribute.add(kType, std::int64_t{7});
  }
  return attribute;
}

/// A NodeProto.
Message node_message(const OnnxNode& node) {
  Message message;
  for (const std::string& input : node.inputs) {
    message.add(1, input);
  }
  message.add(2, node.output);
  message.add(3, node.output);  // its name
  message.add(4, node.operation);
  for (const auto& [name, value] : node.attributes) {
    message.add(5, attribute_message(name, value));
  }
  return message;
}

/// A TensorProto.
Message tensor_message(const OnnxTensor& tensor) {
  static_assert(std::endian::native == std::endian::little, "raw data are little-endian");
  Message message;
  for (const std::int64_t extent : tensor.shape.extents()) {
    message.add(1, extent);
  }
  message.add(2, kFloat);
  message.add(8, tensor.name);
  message.add(9, std::string_view(reinterpret_cast<const char*>(tensor.values.data()),
                                  tensor.values.size() * sizeof(float)));
  return message;
}

/// A ModelProto.
Message model_message(const OnnxModel& model) {
  Message graph;  // GraphProto
  for (const OnnxNode& node : model.nodes) {
    graph.add(1, node_message(node));
  }
  graph.add(2, "strata");
  for (const OnnxTensor& tensor : model.tensors) {
    graph.add(5, tensor_message(tensor));
  }
  graph.add(11, port_message(model.input));
  graph.add(12, port_message(model.output));
  Message operators;  // OperatorSetIdProto
  operators.add(1, "");
  operators.add(2, kOnnxOperators);
  Message message;
  message.add(1, std::int64_t{5});  // ir_version, the first with operator set 10
  message.add(2, "strata");
  message.add(7, graph);
  message.add(8, operators);
  for (const auto& [key, value] : model.facts) {
    Message fact;  // StringStringEntryProto
    fact.add(1, key);
    fact.add(2, value);
    message.add(14, fact);
  }
  return message;
}

}  // namespace

std::int64_t write_onnx(const OnnxModel& model, const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 31U;
  std::size_t bytes = 0;
  for (const OnnxTensor& tensor : model.tensors) {
    bytes += tensor.values.size() * sizeof(float);
  }
  const Message message = bytes < kMostBytes ? model_message(model) : Message();
  if (bytes >= kMostBytes || message.bytes().size() >= kMostBytes) {
    fail(ExitCode::kUsage,
         "a file of ONNX holds at most 2 GiB, the weights are {} bytes; take them out with "
         "--format=safetensors",
         bytes);
  }
  replace_text(path, message.bytes());
  if (read_text(path, ExitCode::kData, kMostBytes).value_or("") != message.bytes()) {
    fail(ExitCode::kData, "{} reads back with other bytes than were written; check the disk",
         path.string());
  }
  return std::ssize(message.bytes());
}

}  // namespace strata::io
