#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "strata/core/shape.hpp"

// Models in files of ONNX (https://onnx.ai).
namespace strata::io {

/// A constant of a graph.
struct OnnxTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

using OnnxAttribute = std::variant<std::int64_t, float, std::vector<std::int64_t>>;

/// An operation with one output.
struct OnnxNode {
  std::string operation;  ///< as ONNX names it, of operator set kOnnxOperators
  std::vector<std::string> inputs;
  std::string output;
  std::map<std::string, OnnxAttribute> attributes;
};

/// A tensor of float32 that goes into the graph or comes out, of any number of samples.
struct OnnxPort {
  std::string name;
  Shape shape;  ///< of one sample
};

struct OnnxModel {
  OnnxPort input;
  OnnxPort output;
  std::vector<OnnxNode> nodes;  ///< each behind those whose outputs it reads
  std::vector<OnnxTensor> tensors;
  std::map<std::string, std::string> facts;  ///< metadata_props
};

/// The version of ONNX's operators that nodes are of.
inline constexpr std::int64_t kOnnxOperators = 10;

/// Writes a model and reads it back. Returns: the bytes of the file. Throws: Error(kUsage) for a
/// model of more than 2 GiB, which the format cannot hold; Error(kData) where the file cannot be
/// written or reads back otherwise.
std::int64_t write_onnx(const OnnxModel& model, const std::filesystem::path& path);

}  // namespace strata::io
