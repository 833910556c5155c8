#include "primitives.hpp"

#include <array>
#include <span>

#include <omp.h>

#include "strata/core/error.hpp"

namespace strata::ops {
namespace {

using Strides = dnnl::memory::dims;

dnnl::memory::data_type library_type(DType dtype) {
  require(dtype == DType::kFloat32 || dtype == DType::kBfloat16, "a library product of {}",
          name_of(dtype));
  return dtype == DType::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc matrix(DType dtype, std::int64_t rows, std::int64_t columns,
                          Transpose transpose = Transpose::kNo) {
  const Strides strides = transpose == Transpose::kYes ? Strides{1, rows} : Strides{columns, 1};
  return {{rows, columns}, library_type(dtype), strides};
}

dnnl::matmul::primitive_desc description(const dnnl::engine& engine, const ProductKey& key) {
  // Threads are ours (matmul.cpp): a primitive that never splits its work has the same bits
  // whatever their number. oneDNN reads the number when a primitive is made.
  omp_set_num_threads(1);
  const auto a = matrix(key.operands, key.m, key.k, key.transpose_a);
  const auto b = matrix(key.operands, key.k, key.n, key.transpose_b);
  const auto c = matrix(key.result, key.m, key.n);
  const auto bias = matrix(key.operands, 1, key.n);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate == Accumulate::kAdd) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const auto operation =
      key.has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  return {operation, attributes, engine};
}

void grow(std::span<device::Buffer> buffers, std::int64_t bytes) {
  for (device::Buffer& buffer : buffers) {
    if (buffer.bytes() < bytes) {
      buffer = device::Buffer(device::Device::cpu(), bytes);
    }
  }
}

}  // namespace

Product::Product(const dnnl::engine& engine, int threads, const ProductKey& key)
    : has_bias_(key.has_bias) {
  const auto described = description(engine, key);
  primitive_ = dnnl::matmul(described);
  scratch_bytes_ = static_cast<std::int64_t>(described.scratchpad_desc().get_size());
  for (int thread = 0; thread < threads; ++thread) {
    const auto unplaced = [&](const dnnl::memory::desc& desc) {
      return dnnl::memory(desc, engine, DNNL_MEMORY_NONE);
    };
    Memories memories;
    memories.a = unplaced(described.src_desc());
    memories.b = unplaced(described.weights_desc());
    memories.c = unplaced(described.dst_desc());
    memories.scratch = unplaced(described.scratchpad_desc());
    if (has_bias_) {
      memories.bias = unplaced(described.bias_desc());
    }
    memories_.push_back(std::move(memories));
  }
}

void Product::run(int thread, dnnl::stream& stream, std::byte* scratch,
                  const ProductOperands& operands) {
  Memories& memories = memories_[static_cast<std::size_t>(thread)];
  // oneDNN has one type of handle for what it reads and what it writes.
  memories.a.set_data_handle(const_cast<std::byte*>(operands.a));
  memories.b.set_data_handle(const_cast<std::byte*>(operands.b));
  memories.c.set_data_handle(operands.c);
  memories.scratch.set_data_handle(scratch);
  std::array<dnnl_exec_arg_t, 5> arguments{{{DNNL_ARG_SRC, memories.a.get()},
                                            {DNNL_ARG_WEIGHTS, memories.b.get()},
                                            {DNNL_ARG_DST, memories.c.get()},
                                            {DNNL_ARG_SCRATCHPAD, memories.scratch.get()},
                                            {DNNL_ARG_BIAS, nullptr}}};
  int count = 4;
  if (has_bias_) {
    memories.bias.set_data_handle(const_cast<std::byte*>(operands.bias));
    arguments.back().memory = memories.bias.get();
    ++count;
  }
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), stream.get(), count, arguments.data()),
      "a matrix product failed");
}

Primitives::Primitives(int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0) {
  for (int thread = 0; thread < threads; ++thread) {
    streams_.emplace_back(engine_);
  }
  scratch_.resize(static_cast<std::size_t>(threads));
  staging_.resize(static_cast<std::size_t>(threads));
}

void Primitives::reserve_staging(std::int64_t bytes) {
  grow(staging_, bytes);
}

Product& Primitives::product(const ProductKey& key) {
  std::unique_ptr<Product>& slot = products_[key];
  if (slot == nullptr) {
    slot = std::make_unique<Product>(engine_, threads_, key);
    grow(scratch_, slot->scratch_bytes());
  }
  return *slot;
}

std::byte* Primitives::sums(std::int64_t bytes) {
  grow(std::span(&sums_, 1), bytes);
  return sums_.raw();
}

void Primitives::run(Product& product, int thread, const ProductOperands& operands) {
  // Some of oneDNN's implementations read the number at each run.
  omp_set_num_threads(1);
  const auto index = static_cast<std::size_t>(thread);
  product.run(thread, streams_[index], scratch_[index].raw(), operands);
}

}  // namespace strata::ops
