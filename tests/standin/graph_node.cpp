#include "graph_node.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace standin {
namespace {

/// What may be set: to which descriptor, of which type and count (0: any), and whether it has to.
struct Rule {
  cudnnBackendDescriptorType_t descriptor;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  bool is_needed;
};

constexpr Rule kRules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, false},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
     true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
     true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, false},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
     true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
     1, true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
     true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
     1, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 0,
     true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, 0, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
     1, true},
};

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
      return sizeof(std::int64_t);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return sizeof(void*);
    default:
      return sizeof(int);  // an enumeration
  }
}

Tensor tensor_of(const Node& node) {
  Tensor tensor;
  tensor.id = node.value<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  tensor.type = node.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  std::ranges::copy(node.values<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), tensor.sizes.begin());
  std::ranges::copy(node.values<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES), tensor.strides.begin());
  tensor.alignment_bytes = node.value<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  tensor.is_virtual =
      node.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && node.value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  tensor.is_value =
      node.has(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && node.value<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  return tensor;
}

std::optional<Tensor> tensor_at(const Node& node, cudnnBackendAttributeName_t name) {
  return node.has(name) ? std::optional(tensor_of(node.node(name))) : std::nullopt;
}

Operation operation_of(const Node& node) {
  Operation made;
  switch (node.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      made.kind = Kind::kMatmul;
      made.precision = node.node(CUDNN_ATTR_OPERATION_MATMUL_DESC)
                           .value<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE);
      made.x = *tensor_at(node, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
      made.b = tensor_at(node, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
      made.y = *tensor_at(node, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Node& how = node.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      made.kind = Kind::kPointwise;
      made.mode = how.value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
      made.precision = how.value<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
      made.axis = how.has(CUDNN_ATTR_POINTWISE_AXIS)
                      ? how.value<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS)
                      : -1;
      made.x = *tensor_at(node, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      made.b = tensor_at(node, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      made.t = tensor_at(node, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
      made.y = *tensor_at(node, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
      const Node& how = node.node(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
      made.kind = Kind::kReduction;
      made.reduction = how.value<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
      made.precision = how.value<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE);
      made.x = *tensor_at(node, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
      made.y = *tensor_at(node, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      break;
    }
    default:
      made.kind = Kind::kReshape;
      made.x = *tensor_at(node, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
      made.y = *tensor_at(node, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
      break;
  }
  return made;
}

bool is_operation(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

cudnnStatus_t tensor_status(const Node& node) {
  const Tensor tensor = tensor_of(node);
  const bool sizes = std::ranges::all_of(tensor.sizes, [](auto size) { return size > 0; });
  return sizes && !(tensor.is_virtual && tensor.is_value) &&
                 tensor.alignment_bytes == (tensor.type == CUDNN_DATA_BFLOAT16 ? 16 : 4)
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_BAD_PARAM;
}

/// What a descriptor with all of its attributes is worth; then it knows its graph.
cudnnStatus_t finished_status(Node& node) {
  switch (node.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return tensor_status(node);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      for (const Held& held : node.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
        if (!is_operation(held->type)) {
          return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
        }
        node.graph.operations.push_back(operation_of(*held));
      }
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      node.graph = node.node(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
      return node.value<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A
                 ? node.graph.status()
                 : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const Node& choice = node.node(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      node.graph = choice.graph;
      node.engine = choice.engine;
      return choice.engine == Engine::kUnsupported
                 ? CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT
                 : CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return node.values<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() ==
                     node.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()
                 ? CUDNN_STATUS_SUCCESS
                 : CUDNN_STATUS_BAD_PARAM;
    default:
      return is_operation(node.type) ? operation_of(node).status() : CUDNN_STATUS_SUCCESS;
  }
}

}  // namespace

cudnnStatus_t set_attribute(Node& node, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, std::int64_t elements,
                            const void* values) {
  const auto* const rule = std::ranges::find_if(
      kRules, [&](const Rule& each) { return each.descriptor == node.type && each.name == name; });
  if (rule == std::end(kRules) || node.is_finished || values == nullptr || elements < 1 ||
      (rule->count != 0 && rule->count != elements)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (rule->type != type) {
    return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  }
  Attribute attribute{type, {}, {}};
  const auto count = static_cast<std::size_t>(elements);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto* const held =
          static_cast<Handle*>(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
      if (!(*held)->is_finished) {
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
      }
      attribute.nodes.push_back(*held);
    }
  } else {
    const auto* const bytes = static_cast<const std::byte*>(values);
    attribute.bytes.assign(bytes, bytes + count * size_of(type));
  }
  node.attributes.insert_or_assign(name, std::move(attribute));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish(Node& node) {
  for (const Rule& rule : kRules) {
    if (rule.descriptor == node.type && rule.is_needed && !node.has(rule.name)) {
      return CUDNN_STATUS_BAD_PARAM;
    }
  }
  const cudnnStatus_t status = finished_status(node);
  node.is_finished = status == CUDNN_STATUS_SUCCESS;
  return status;
}

}  // namespace standin
