#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include <cuda_bf16.h>

#include "graph.hpp"
#include "record.hpp"

namespace standin {
namespace {

using Indices = std::array<std::int64_t, 4>;

/// A tensor's elements, the last index fastest, as floats that its type holds.
class Values {
 public:
  explicit Values(const Tensor& tensor)
      : tensor_(tensor), values_(static_cast<std::size_t>(tensor.count()), NAN) {}

  [[nodiscard]] const Tensor& tensor() const { return tensor_; }
  /// The element for an index of a larger tensor; `heads` of which share one of this.
  [[nodiscard]] float at(const Indices& index) const { return values_[place(index)]; }
  /// From the element for an index.
  [[nodiscard]] const float* row(const Indices& index) const { return &values_[place(index)]; }
  void set(const Indices& index, float value) {
    values_[place(index)] =
        tensor_.type == CUDNN_DATA_BFLOAT16 ? __bfloat162float(__float2bfloat16_rn(value)) : value;
  }

 private:
  [[nodiscard]] std::size_t place(const Indices& index) const {
    std::int64_t place = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      place = place * tensor_.sizes[i] + (tensor_.sizes[i] == 1 ? 0 : index[i]);
    }
    return static_cast<std::size_t>(place);
  }

  Tensor tensor_;
  std::vector<float> values_;
};

template <typename Function>
void for_each(const Tensor& tensor, const Function& function) {
  Indices i{};
  for (i[0] = 0; i[0] < tensor.sizes[0]; ++i[0]) {
    for (i[1] = 0; i[1] < tensor.sizes[1]; ++i[1]) {
      for (i[2] = 0; i[2] < tensor.sizes[2]; ++i[2]) {
        for (i[3] = 0; i[3] < tensor.sizes[3]; ++i[3]) {
          function(i);
        }
      }
    }
  }
}

void multiply(const Values& a, const Values& b, Values& c) {
  const std::int64_t inner = a.tensor().sizes[3];
  const std::int64_t shared = c.tensor().sizes[1] / b.tensor().sizes[1];
  // Tensor cores take bfloat16.
  const auto rounded = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
  // An element's terms are added in order; those of a row side by side, for speed.
  Tensor rows = c.tensor();
  rows.sizes[3] = 1;
  std::vector<float> sums(static_cast<std::size_t>(c.tensor().sizes[3]));
  for_each(rows, [&](const Indices& i) {
    std::ranges::fill(sums, 0.0F);
    for (std::int64_t k = 0; k < inner; ++k) {
      const float factor = rounded(a.at({i[0], i[1], i[2], k}));
      const float* const row = b.row({i[0], i[1] / shared, k, 0});
      for (std::size_t j = 0; j < sums.size(); ++j) {
        sums[j] += factor * row[j];
      }
    }
    for (std::size_t j = 0; j < sums.size(); ++j) {
      c.set({i[0], i[1], i[2], static_cast<std::int64_t>(j)}, sums[j]);
    }
  });
}

float applied(cudnnPointwiseMode_t mode, float x, float b, float t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1.0F : 0.0F;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0.0F ? x : b;
    default:
      return NAN;
  }
}

void reduce(cudnnReduceTensorOp_t how, const Values& x, Values& y) {
  Indices each{};
  for (std::size_t i = 0; i < 4; ++i) {
    each[i] = x.tensor().sizes[i] / y.tensor().sizes[i];
  }
  for_each(y.tensor(), [&](const Indices& at) {
    Tensor block;
    block.sizes = each;
    float result = how == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0.0F;
    for_each(block, [&](const Indices& i) {
      const float value = x.at({at[0] * each[0] + i[0], at[1] * each[1] + i[1],
                                at[2] * each[2] + i[2], at[3] * each[3] + i[3]});
      result = how == CUDNN_REDUCE_TENSOR_MAX ? std::fmax(result, value) : result + value;
    });
    y.set(at, result);
  });
}

/// The values of all tensors while a graph runs.
class Memory {
 public:
  explicit Memory(const GraphRun& run) : run_(run) {}

  const Values& read(const Tensor& tensor) {
    if (const auto known = known_.find(tensor.id); known != known_.end()) {
      return known->second;
    }
    Values& values = known_.emplace(tensor.id, Values(tensor)).first->second;
    if (tensor.is_value) {
      values.set({}, run_.values.at(tensor.id));
    } else if (!tensor.is_virtual) {
      const void* const from = run_.addresses.at(tensor.id);
      for_each(tensor, [&](const Indices& i) {
        const std::int64_t place = tensor.offset(i);
        values.set(i, tensor.type == CUDNN_DATA_BFLOAT16
                          ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[place])
                          : static_cast<const float*>(from)[place]);
      });
    }
    return values;
  }
  /// What an operation writes; an address is written to in the end.
  Values& written(const Tensor& tensor) {
    return known_.insert_or_assign(tensor.id, Values(tensor)).first->second;
  }
  void store(const Tensor& tensor) {
    if (tensor.is_virtual) {
      return;
    }
    const Values& values = known_.at(tensor.id);
    void* const to = run_.addresses.at(tensor.id);
    for_each(tensor, [&](const Indices& i) {
      const std::int64_t place = tensor.offset(i);
      if (tensor.type == CUDNN_DATA_BFLOAT16) {
        static_cast<__nv_bfloat16*>(to)[place] = __float2bfloat16_rn(values.at(i));
      } else {
        static_cast<float*>(to)[place] = values.at(i);
      }
    });
  }

 private:
  const GraphRun& run_;
  std::map<std::int64_t, Values> known_;
};

void run_pointwise(const Operation& operation, Memory& memory) {
  const Values& x = memory.read(operation.x);
  const Values* const b = operation.b ? &memory.read(*operation.b) : nullptr;
  const Values* const t = operation.t ? &memory.read(*operation.t) : nullptr;
  Values& y = memory.written(operation.y);
  for_each(operation.y, [&](const Indices& i) {
    if (operation.mode == CUDNN_POINTWISE_GEN_INDEX) {
      y.set(i, static_cast<float>(i[static_cast<std::size_t>(operation.axis)]));
    } else {
      y.set(i, applied(operation.mode, x.at(i), b != nullptr ? b->at(i) : 0.0F,
                       t != nullptr ? t->at(i) : 0.0F));
    }
  });
}

}  // namespace

void GraphRun::touch_all() const {
  std::set<std::int64_t> written;
  for (const Operation& operation : graph.operations) {
    written.insert(operation.y.id);
  }
  for (const auto& [id, tensor] : graph.given()) {
    if (tensor.is_value) {
      continue;
    }
    const std::size_t element = tensor.type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
    const std::int64_t last = tensor.offset(
        {tensor.sizes[0] - 1, tensor.sizes[1] - 1, tensor.sizes[2] - 1, tensor.sizes[3] - 1});
    // Heads of one fused tensor lie between those of others: rows one after the other.
    void* const at = addresses.at(id);
    if (!written.contains(id)) {
      touch(at, static_cast<std::size_t>(last + 1) * element);
      continue;
    }
    for_each(tensor, [&](const Indices& i) {
      std::memset(static_cast<char*>(at) + static_cast<std::size_t>(tensor.offset(i)) * element, 0,
                  element);
    });
  }
}

void GraphRun::run() const {
  if (standin_records() != 0) {
    touch_all();
    return;
  }
  // As a kernel may that works there.
  std::memset(workspace, 0xFF, static_cast<std::size_t>(graph.workspace_bytes()));
  Memory memory(*this);
  for (const Operation& operation : graph.operations) {
    switch (operation.kind) {
      case Kind::kMatmul: {
        const Values& a = memory.read(operation.x);
        const Values& b = memory.read(*operation.b);
        multiply(a, b, memory.written(operation.y));
        break;
      }
      case Kind::kPointwise:
        run_pointwise(operation, memory);
        break;
      case Kind::kReduction: {
        const Values& x = memory.read(operation.x);
        reduce(operation.reduction, x, memory.written(operation.y));
        break;
      }
      case Kind::kReshape: {
        const Values& x = memory.read(operation.x);
        Values& y = memory.written(operation.y);
        for_each(operation.y, [&](const Indices& i) { y.set(i, x.at({i[0], i[1], i[3], i[2]})); });
        break;
      }
    }
    memory.store(operation.y);
  }
}

}  // namespace standin
