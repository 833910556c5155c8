#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cudnn.h>

#include "cudnn/library.hpp"

// cuDNN's operation graphs, each run as one fused kernel. Included only where cuDNN's
// header was found. Source: cuDNN's reference, "Backend API".
namespace strata::ops::cuda {

/// cuDNN with its functions for graphs. It outlives this.
class GraphLibrary {
  const CudnnLibrary& cudnn_;

 public:
  /// Throws: Error(kPeer) where the library was found but lacks a function.
  explicit GraphLibrary(const CudnnLibrary& cudnn) : cudnn_(cudnn) {}

  [[nodiscard]] const CudnnLibrary& cudnn() const { return cudnn_; }

  decltype(&cudnnBackendCreateDescriptor) create = cudnn_.find("cudnnBackendCreateDescriptor");
  decltype(&cudnnBackendDestroyDescriptor) destroy = cudnn_.find("cudnnBackendDestroyDescriptor");
  decltype(&cudnnBackendSetAttribute) set = cudnn_.find("cudnnBackendSetAttribute");
  decltype(&cudnnBackendGetAttribute) get = cudnn_.find("cudnnBackendGetAttribute");
  decltype(&cudnnBackendFinalize) finalize = cudnn_.find("cudnnBackendFinalize");
  decltype(&cudnnBackendExecute) execute = cudnn_.find("cudnnBackendExecute");
};

/// cuDNN's name for the type of an attribute's value.
struct AttributeType {
  using Name = cudnnBackendAttributeType_t;
  static constexpr Name of(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
  static constexpr Name of(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
  static constexpr Name of(bool) { return CUDNN_TYPE_BOOLEAN; }
  static constexpr Name of(char) { return CUDNN_TYPE_CHAR; }
  static constexpr Name of(std::int64_t) { return CUDNN_TYPE_INT64; }
  static constexpr Name of(void*) { return CUDNN_TYPE_VOID_PTR; }
  static constexpr Name of(cudnnBackendHeurMode_t) { return CUDNN_TYPE_HEUR_MODE; }
  static constexpr Name of(cudnnBackendNumericalNote_t) { return CUDNN_TYPE_NUMERICAL_NOTE; }
  static constexpr Name of(cudnnPointwiseMode_t) { return CUDNN_TYPE_POINTWISE_MODE; }
  static constexpr Name of(cudnnReduceTensorOp_t) { return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE; }
};

/// A cuDNN backend descriptor: attributes by name. The library outlives it.
class GraphDescriptor {
 public:
  GraphDescriptor(const GraphLibrary& library, cudnnBackendDescriptorType_t type);

  [[nodiscard]] cudnnBackendDescriptor_t raw() const { return raw_.get(); }
  template <typename T>
  void set(cudnnBackendAttributeName_t name, std::span<const T> values) const {
    set_raw(name, AttributeType::of(T{}), static_cast<std::int64_t>(values.size()), values.data());
  }
  template <typename T>
  void set(cudnnBackendAttributeName_t name, const T& value) const {
    set(name, std::span<const T>(&value, 1));
  }
  void set(cudnnBackendAttributeName_t name, const GraphDescriptor& value) const;
  void set(cudnnBackendAttributeName_t name, std::span<const GraphDescriptor* const> values) const;
  /// The attribute's values, at most `most` of them.
  template <typename T>
  [[nodiscard]] std::vector<T> get(cudnnBackendAttributeName_t name, std::int64_t most) const {
    std::vector<T> values(static_cast<std::size_t>(most));
    values.resize(
        static_cast<std::size_t>(get_raw(name, AttributeType::of(T{}), most, values.data())));
    return values;
  }
  /// The descriptors of this type that the attribute holds, at most `most` of them.
  [[nodiscard]] std::vector<GraphDescriptor> get(cudnnBackendAttributeName_t name,
                                                 cudnnBackendDescriptorType_t type,
                                                 std::int64_t most) const;
  /// Finalizes the descriptor. False where cuDNN does not support it.
  /// Throws: Error(kPeer) where it fails otherwise.
  [[nodiscard]] bool finish() const;
  /// Finalizes one of several candidates: false where this one cannot run, such as a kernel that
  /// does not compile for the device. Throws: Error(kPeer) where memory ran out.
  [[nodiscard]] bool finish_as_candidate() const;

 private:
  void set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::int64_t count, const void* values) const;
  [[nodiscard]] std::int64_t get_raw(cudnnBackendAttributeName_t name,
                                     cudnnBackendAttributeType_t type, std::int64_t most,
                                     void* values) const;

  const GraphLibrary* library_;
  std::unique_ptr<void, cudnnStatus_t (*)(cudnnBackendDescriptor_t)> raw_;
};

/// Storage of a graph's tensor.
enum class GraphStorage {
  kDevice,   ///< in device memory, at an address that each run gives
  kVirtual,  ///< nowhere: it goes from one operation to the next
  kValue     ///< one number in host memory, which each run gives
};

/// A tensor of four dimensions with strides in elements.
struct GraphTensor {
  std::array<std::int64_t, 4> sizes{1, 1, 1, 1};
  std::array<std::int64_t, 4> strides{1, 1, 1, 1};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  GraphStorage place = GraphStorage::kVirtual;
};

/// An execution plan: one kernel for a whole graph.
struct GraphPlan {
  GraphDescriptor plan;
  std::int64_t workspace_bytes = 0;
  /// Its place in cuDNN's heuristic.
  std::int64_t choice = 0;
};

/// The device that a plan is for: a handle's, or a described one that need not be present.
struct GraphTarget {
  cudnnHandle_t handle = nullptr;
  const GraphDescriptor* device = nullptr;
};

/// A graph under construction. Tensors are numbered from 1 in order of creation; operations compute
/// in float32 by default.
class OperationGraph {
 public:
  using Tensor = std::int64_t;

  explicit OperationGraph(const GraphLibrary& library) : library_(library) {}

  /// In memory, bfloat16 begins at a multiple of kLibraryAlignmentBytes, float32 at one of 4 bytes.
  Tensor tensor(const GraphTensor& tensor);
  /// c = a b, matrices of the last two dimensions.
  void matmul(Tensor a, Tensor b, Tensor c);
  /// y = mode(x), or mode(x, b).
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, std::optional<Tensor> b, Tensor y,
                 cudnnDataType_t computes_in = CUDNN_DATA_FLOAT);
  /// y = the index of each element of x along an axis.
  void index(Tensor x, std::int64_t axis, Tensor y);
  /// y = x where `chosen`, else b.
  void select(Tensor x, Tensor b, Tensor chosen, Tensor y);
  /// y = x reduced along the dimensions in which y's size is 1 or divides x's.
  void reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y);
  /// y = x with other sizes and strides.
  void reshape(Tensor x, Tensor y);

  /// The first kernel of cuDNN's heuristic that carries no nondeterminism note and passes `is_fit`;
  /// nothing where there is none. Ends the construction.
  [[nodiscard]] std::optional<GraphPlan> plan(const GraphTarget& target,
                                              const std::function<bool(const GraphPlan&)>& is_fit);

 private:
  [[nodiscard]] const GraphDescriptor& at(Tensor tensor) const {
    return tensors_[static_cast<std::size_t>(tensor - 1)];
  }
  GraphDescriptor made(cudnnBackendDescriptorType_t type) const { return {library_, type}; }
  /// An elementwise operation, to which operands may be added. `axis`: of GEN_INDEX.
  [[nodiscard]] GraphDescriptor elementwise(cudnnPointwiseMode_t how, cudnnDataType_t computes_in,
                                            Tensor x, Tensor y,
                                            std::optional<std::int64_t> axis = {});
  void finish(GraphDescriptor operation);
  [[nodiscard]] std::optional<GraphPlan> plan_of(const GraphTarget& target,
                                                 const GraphDescriptor& choice) const;

  const GraphLibrary& library_;
  std::vector<GraphDescriptor> tensors_;
  /// Descriptors that operations refer to.
  std::vector<GraphDescriptor> modes_;
  std::vector<GraphDescriptor> operations_;
  /// Whether cuDNN supports everything so far.
  bool is_supported_ = true;
};

/// The address of a tensor or scalar in one run of a plan.
struct GraphArgument {
  OperationGraph::Tensor tensor = 0;
  const void* address = nullptr;
};

/// Launches a plan on the stream of the library's handle. False, with nothing enqueued, where cuDNN
/// refuses it.
[[nodiscard]] bool run(const GraphLibrary& library, const GraphPlan& plan,
                       std::span<const GraphArgument> arguments, std::byte* workspace);

}  // namespace strata::ops::cuda
