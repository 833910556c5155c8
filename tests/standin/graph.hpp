#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cudnn.h>

// What the stand-in for cuDNN knows of graphs: tensors and operations, done one after the other in
// float on whole tensors.
namespace standin {

/// A tensor of a graph.
struct Tensor {
  std::int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 4> sizes{};
  std::array<std::int64_t, 4> strides{};
  /// What its address is a multiple of.
  std::int64_t alignment_bytes = 0;
  /// Between operations only.
  bool is_virtual = false;
  /// One number in host memory.
  bool is_value = false;

  [[nodiscard]] std::int64_t count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  /// Elements from the first to the one with these indices.
  [[nodiscard]] std::int64_t offset(const std::array<std::int64_t, 4>& at) const {
    return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
  }
};

enum class Kind { kMatmul, kPointwise, kReduction, kReshape };

struct Operation {
  Kind kind = Kind::kMatmul;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_IDENTITY;
  cudnnReduceTensorOp_t reduction = CUDNN_REDUCE_TENSOR_ADD;
  /// What it is computed in.
  cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  /// Of an index.
  std::int64_t axis = -1;
  Tensor x;
  std::optional<Tensor> b;
  /// What is selected by.
  std::optional<Tensor> t;
  Tensor y;

  /// Whether cuDNN's reference has it, as far as strata needs it.
  [[nodiscard]] cudnnStatus_t status() const;
  /// A word that tells it from the others.
  [[nodiscard]] std::string name() const;
};

struct Graph {
  std::vector<Operation> operations;

  /// Success where the operations are attention's, forward or backward, as cuDNN knows them, of
  /// sizes and types that it takes.
  [[nodiscard]] cudnnStatus_t status() const;
  [[nodiscard]] bool is_backward() const;
  /// Of its products; half of them where later keys are masked.
  [[nodiscard]] double flops() const;
  /// What a kernel that gives the same bits on every run works in.
  [[nodiscard]] std::int64_t workspace_bytes() const;
  /// All that are not between operations, by id.
  [[nodiscard]] std::map<std::int64_t, Tensor> given() const;
};

/// A graph with addresses of given(), and host values as they were when it was put on the stream.
struct GraphRun {
  Graph graph;
  std::map<std::int64_t, void*> addresses;
  std::map<std::int64_t, float> values;
  void* workspace = nullptr;

  void run() const;
  /// Reads what is read and overwrites what is written.
  void touch_all() const;
};

}  // namespace standin
