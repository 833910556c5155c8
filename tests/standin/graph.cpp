#include "graph.hpp"

#include <algorithm>

namespace standin {
namespace {

constexpr std::int64_t kMostHeadSize = 128;

std::string name_of(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return "add";
    case CUDNN_POINTWISE_SUB:
      return "sub";
    case CUDNN_POINTWISE_MUL:
      return "mul";
    case CUDNN_POINTWISE_DIV:
      return "div";
    case CUDNN_POINTWISE_EXP:
      return "exp";
    case CUDNN_POINTWISE_LOG:
      return "log";
    case CUDNN_POINTWISE_CMP_GE:
      return "ge";
    case CUDNN_POINTWISE_GEN_INDEX:
      return "index";
    case CUDNN_POINTWISE_BINARY_SELECT:
      return "select";
    default:
      return "unknown";
  }
}

bool is_broadcast(const Tensor& from, const Tensor& to) {
  for (std::size_t i = 0; i < 4; ++i) {
    if (from.sizes[i] != to.sizes[i] && from.sizes[i] != 1) {
      return false;
    }
  }
  return true;
}

cudnnStatus_t matmul_status(const Operation& all) {
  const auto& a = all.x.sizes;
  const auto& b = all.b->sizes;
  const auto& c = all.y.sizes;
  // Fewer heads on the right serve several on the left.
  const bool fits = a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 &&
                    a[2] == c[2] && a[3] == b[2] && b[3] == c[3];
  return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
}

cudnnStatus_t pointwise_status(const Operation& all) {
  const bool indexes = all.mode == CUDNN_POINTWISE_GEN_INDEX;
  const bool selects = all.mode == CUDNN_POINTWISE_BINARY_SELECT;
  const bool has_one =
      indexes || all.mode == CUDNN_POINTWISE_EXP || all.mode == CUDNN_POINTWISE_LOG;
  if (all.b.has_value() == has_one || all.t.has_value() != selects || (all.axis >= 0) != indexes ||
      all.axis > 3) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (!is_broadcast(all.x, all.y) || (all.b && !is_broadcast(*all.b, all.y)) ||
      (all.t && !is_broadcast(*all.t, all.y))) {
    return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  }
  const bool compares = all.mode == CUDNN_POINTWISE_CMP_GE;
  const cudnnDataType_t result = indexes    ? CUDNN_DATA_INT32
                                 : compares ? CUDNN_DATA_BOOLEAN
                                            : CUDNN_DATA_FLOAT;
  const bool types =
      all.precision == result &&
      (all.y.type == result || (result == CUDNN_DATA_FLOAT && all.y.type == CUDNN_DATA_BFLOAT16)) &&
      (!selects || all.t->type == CUDNN_DATA_BOOLEAN) &&
      (!compares || (all.x.type == CUDNN_DATA_INT32 && all.b->type == CUDNN_DATA_INT32));
  return types ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
}

cudnnStatus_t reduction_status(const Operation& all) {
  for (std::size_t i = 0; i < 4; ++i) {
    if (all.x.sizes[i] % all.y.sizes[i] != 0) {
      return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

/// The rows and columns of matrices exchanged, where they lie.
cudnnStatus_t reshape_status(const Operation& all) {
  Tensor turned = all.x;
  std::swap(turned.sizes[2], turned.sizes[3]);
  std::swap(turned.strides[2], turned.strides[3]);
  return turned.sizes == all.y.sizes && turned.strides == all.y.strides
             ? CUDNN_STATUS_SUCCESS
             : CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
}

/// What cuDNN's flash attention is recognised by.
constexpr const char* kSeen = "matmul mul index index ge select ";
constexpr const char* kForward = "max sub exp sum log add div matmul ";
constexpr const char* kCorrections = "mul sum mul ";

std::string names_of(const Graph& graph) {
  std::string names;
  for (const Operation& operation : graph.operations) {
    names += operation.name() + " ";
  }
  return names;
}

std::string backward_names(bool grouped) {
  const std::string into_kv = grouped ? "reshape matmul sum " : "reshape matmul ";
  return std::string(kCorrections) + kSeen + "sub exp " + into_kv + "matmul sub mul mul " +
         into_kv + "reshape matmul ";
}

/// Rows of heads that lie in memory.
bool is_head_rows(const Tensor& tensor, std::size_t columns) {
  return tensor.strides[columns] == 1 && tensor.sizes[columns] % 8 == 0 &&
         tensor.sizes[columns] <= kMostHeadSize;
}

}  // namespace

std::string Operation::name() const {
  switch (kind) {
    case Kind::kMatmul:
      return "matmul";
    case Kind::kPointwise:
      return name_of(mode);
    case Kind::kReduction:
      return reduction == CUDNN_REDUCE_TENSOR_MAX   ? "max"
             : reduction == CUDNN_REDUCE_TENSOR_ADD ? "sum"
                                                    : "unknown";
    case Kind::kReshape:
      return "reshape";
  }
  return "unknown";
}

cudnnStatus_t Operation::status() const {
  if (kind != Kind::kPointwise && kind != Kind::kReshape && precision != CUDNN_DATA_FLOAT) {
    return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
  }
  switch (kind) {
    case Kind::kMatmul:
      return matmul_status(*this);
    case Kind::kPointwise:
      return pointwise_status(*this);
    case Kind::kReduction:
      return reduction_status(*this);
    case Kind::kReshape:
      return reshape_status(*this);
  }
  return CUDNN_STATUS_BAD_PARAM;
}

bool Graph::is_backward() const {
  const std::string names = names_of(*this);
  return names == backward_names(false) || names == backward_names(true);
}

double Graph::flops() const {
  double flops = 0.0;
  bool is_causal = false;
  for (const Operation& operation : operations) {
    is_causal = is_causal || operation.mode == CUDNN_POINTWISE_GEN_INDEX;
    if (operation.kind == Kind::kMatmul) {
      flops += 2.0 * static_cast<double>(operation.y.count() * operation.x.sizes[3]);
    }
  }
  return is_causal ? flops / 2.0 : flops;
}

cudnnStatus_t Graph::status() const {
  if (!is_backward() && names_of(*this) != std::string(kSeen) + kForward) {
    return CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
  }
  for (const Operation& operation : operations) {
    if (operation.kind != Kind::kMatmul) {
      continue;
    }
    // Tensor cores multiply bfloat16; scores between operations are rounded on the way.
    if (operation.b->type != CUDNN_DATA_BFLOAT16 ||
        (!operation.x.is_virtual && operation.x.type != CUDNN_DATA_BFLOAT16)) {
      return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    }
  }
  for (const auto& [id, tensor] : given()) {
    if (tensor.is_value ? tensor.count() != 1 || tensor.type != CUDNN_DATA_FLOAT
        : tensor.type == CUDNN_DATA_FLOAT
            ? tensor.sizes[3] != 1
            : tensor.type != CUDNN_DATA_BFLOAT16 ||
                  (!is_head_rows(tensor, 3) && !is_head_rows(tensor, 2))) {
      return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

std::int64_t Graph::workspace_bytes() const {
  constexpr std::int64_t kLine = 256;
  std::int64_t weights = 0;
  for (const Operation& operation : operations) {
    if (operation.mode == CUDNN_POINTWISE_BINARY_SELECT) {
      weights = operation.y.count();
    }
  }
  return kLine + (is_backward() ? weights * 2 : 0);
}

std::map<std::int64_t, Tensor> Graph::given() const {
  std::map<std::int64_t, Tensor> tensors;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor.is_virtual) {
      tensors.emplace(tensor.id, tensor);
    }
  };
  for (const Operation& operation : operations) {
    add(operation.x);
    add(operation.y);
    if (operation.b) {
      add(*operation.b);
    }
    if (operation.t) {
      add(*operation.t);
    }
  }
  return tensors;
}

}  // namespace standin
