#ifdef STRATA_HAVE_CUDNN

#include "cudnn/operation_graph.hpp"

#include <algorithm>

#include <cuda_runtime.h>

#include "cuda/aligned.hpp"

namespace strata::ops::cuda {

GraphDescriptor::GraphDescriptor(const GraphLibrary& library, cudnnBackendDescriptorType_t type)
    : library_(&library), raw_(nullptr, library.destroy) {
  cudnnBackendDescriptor_t raw = nullptr;
  library.cudnn().check(library.create(type, &raw), "making a descriptor of cuDNN's");
  raw_.reset(raw);
}

void GraphDescriptor::set(cudnnBackendAttributeName_t name, const GraphDescriptor& value) const {
  const GraphDescriptor* const values[] = {&value};
  set(name, std::span<const GraphDescriptor* const>(values));
}

void GraphDescriptor::set(cudnnBackendAttributeName_t name,
                          std::span<const GraphDescriptor* const> values) const {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const GraphDescriptor* value : values) {
    raw.push_back(value->raw());
  }
  set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()), raw.data());
}

std::vector<GraphDescriptor> GraphDescriptor::get(cudnnBackendAttributeName_t name,
                                                  cudnnBackendDescriptorType_t type,
                                                  std::int64_t most) const {
  // cuDNN fills in descriptors that were made before.
  std::vector<GraphDescriptor> values;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) {
    values.emplace_back(*library_, type);
    raw.push_back(values.back().raw());
  }
  const std::int64_t count = get_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, raw.data());
  values.erase(values.begin() + count, values.end());
  return values;
}

bool GraphDescriptor::finish_as_candidate() const {
  const cudnnStatus_t status = library_->finalize(raw());
  if (status == CUDNN_STATUS_SUCCESS) {
    return true;
  }
  // Clears the sticky error, which the next launch would report.
  const cudaError_t error = cudaGetLastError();
  if (error == cudaErrorMemoryAllocation ||
      status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    // Other ranks may have the memory, and would compute other bits.
    library_->cudnn().check(status, "making a plan of cuDNN's");
  }
  return false;
}

bool GraphDescriptor::finish() const {
  return library_->cudnn().takes(library_->finalize(raw()), "describing an operation to cuDNN");
}

void GraphDescriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                              std::int64_t count, const void* values) const {
  library_->cudnn().check(library_->set(raw(), name, type, count, values),
                          "giving cuDNN attribute " + std::to_string(name));
}

std::int64_t GraphDescriptor::get_raw(cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, std::int64_t most,
                                      void* values) const {
  std::int64_t count = 0;
  library_->cudnn().check(library_->get(raw(), name, type, most, &count, values),
                          "asking cuDNN for attribute " + std::to_string(name));
  return std::min(count, most);
}

OperationGraph::Tensor OperationGraph::tensor(const GraphTensor& tensor) {
  GraphDescriptor made(library_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const auto number = static_cast<Tensor>(tensors_.size()) + 1;
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor.type);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor.type == CUDNN_DATA_BFLOAT16
                                                 ? std::int64_t{kLibraryAlignmentBytes}
                                                 : std::int64_t{4});
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(tensor.sizes));
  made.set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(tensor.strides));
  made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, tensor.place == GraphStorage::kVirtual);
  made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, tensor.place == GraphStorage::kValue);
  is_supported_ = made.finish() && is_supported_;
  tensors_.push_back(std::move(made));
  return number;
}

void OperationGraph::finish(GraphDescriptor operation) {
  is_supported_ = is_supported_ && operation.finish();
  operations_.push_back(std::move(operation));
}

void OperationGraph::matmul(Tensor a, Tensor b, Tensor c) {
  GraphDescriptor& mode = modes_.emplace_back(made(CUDNN_BACKEND_MATMUL_DESCRIPTOR));
  mode.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  is_supported_ = mode.finish() && is_supported_;
  GraphDescriptor operation = made(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, mode);
  finish(std::move(operation));
}

GraphDescriptor OperationGraph::elementwise(cudnnPointwiseMode_t how, cudnnDataType_t computes_in,
                                            Tensor x, Tensor y, std::optional<std::int64_t> axis) {
  GraphDescriptor& mode = modes_.emplace_back(made(CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
  mode.set(CUDNN_ATTR_POINTWISE_MODE, how);
  mode.set(CUDNN_ATTR_POINTWISE_MATH_PREC, computes_in);
  if (axis) {
    mode.set(CUDNN_ATTR_POINTWISE_AXIS, *axis);
  }
  is_supported_ = mode.finish() && is_supported_;
  GraphDescriptor operation = made(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  return operation;
}

void OperationGraph::pointwise(cudnnPointwiseMode_t how, Tensor x, std::optional<Tensor> b,
                               Tensor y, cudnnDataType_t computes_in) {
  GraphDescriptor operation = elementwise(how, computes_in, x, y);
  if (b) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(*b));
  }
  finish(std::move(operation));
}

void OperationGraph::index(Tensor x, std::int64_t axis, Tensor y) {
  finish(elementwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, x, y, axis));
}

void OperationGraph::select(Tensor x, Tensor b, Tensor chosen, Tensor y) {
  GraphDescriptor operation = elementwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, y);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(chosen));
  finish(std::move(operation));
}

void OperationGraph::reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y) {
  GraphDescriptor& mode = modes_.emplace_back(made(CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
  mode.set(CUDNN_ATTR_REDUCTION_OPERATOR, how);
  mode.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  is_supported_ = mode.finish() && is_supported_;
  GraphDescriptor operation = made(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  finish(std::move(operation));
}

void OperationGraph::reshape(Tensor x, Tensor y) {
  GraphDescriptor operation = made(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  finish(std::move(operation));
}

std::optional<GraphPlan> OperationGraph::plan(const GraphTarget& target,
                                              const std::function<bool(const GraphPlan&)>& is_fit) {
  if (!is_supported_) {
    return std::nullopt;
  }
  GraphDescriptor graph = made(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<const GraphDescriptor*> operations;
  for (const GraphDescriptor& operation : operations_) {
    operations.push_back(&operation);
  }
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const GraphDescriptor* const>(operations));
  if (target.handle != nullptr) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  }
  if (!graph.finish()) {
    return std::nullopt;
  }
  GraphDescriptor heuristic = made(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target.device != nullptr) {
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
  }
  if (!heuristic.finish_as_candidate()) {
    return std::nullopt;
  }
  constexpr std::int64_t kMost = 32;
  std::int64_t number = 0;
  for (const GraphDescriptor& choice :
       heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMost)) {
    auto plan = plan_of(target, choice);
    if (plan && is_fit(*plan)) {
      plan->choice = number;
      return plan;
    }
    ++number;
  }
  return std::nullopt;
}

std::optional<GraphPlan> OperationGraph::plan_of(const GraphTarget& target,
                                                 const GraphDescriptor& choice) const {
  const auto engines = choice.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  for (const cudnnBackendNumericalNote_t note : engines.at(0).get<cudnnBackendNumericalNote_t>(
           CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)) {
    if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
      return std::nullopt;
    }
  }
  GraphPlan made{{library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR}};
  made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
  if (target.handle != nullptr) {
    made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
  }
  if (target.device != nullptr) {
    made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
  }
  if (!made.plan.finish_as_candidate()) {
    return std::nullopt;
  }
  made.workspace_bytes =
      made.plan.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 1).at(0);
  return made;
}

bool run(const GraphLibrary& library, const GraphPlan& plan,
         std::span<const GraphArgument> arguments, std::byte* workspace) {
  std::vector<std::int64_t> numbers;
  std::vector<void*> addresses;
  for (const GraphArgument& argument : arguments) {
    numbers.push_back(argument.tensor);
    addresses.push_back(const_cast<void*>(argument.address));
  }
  const GraphDescriptor pack(library, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const std::int64_t>(numbers));
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::span<void* const>(addresses));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, static_cast<void*>(workspace));
  library.cudnn().check(library.finalize(pack.raw()), "giving cuDNN addresses");
  return library.cudnn().takes(
      library.execute(library.cudnn().handle(), plan.plan.raw(), pack.raw()),
      "running attention by cuDNN (numerics.attention = own does without)");
}

}  // namespace strata::ops::cuda

#endif
