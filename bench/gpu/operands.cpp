#include "operands.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "strata/core/random.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/elementwise.hpp"

namespace strata::bench {
namespace {

RandomStream numbers_stream() {
  return {1, RandomPurpose::kSynthesise, subject_of("bench.gpu_layer")};
}

}  // namespace

Machine::Machine(const device::Device& device, std::int64_t numbers)
    : context_(ops::Context::cuda(device)),
      own_context_(ops::Context::cuda(device, {.convolution_kernels = ops::LibraryKernels::kOwn,
                                               .attention_kernels = ops::LibraryKernels::kOwn})),
      numbers_(device, numbers * size_bytes(DType::kFloat32)),
      count_(numbers) {
  const RandomStream stream = numbers_stream();
  std::vector<std::uint32_t> words;
  device::write_from_host(numbers_.view(0, Shape{count_}, DType::kFloat32),
                          [&](std::int64_t first, const TensorView& piece) {
                            const auto values = piece.host<float>();
                            words.resize(values.size());
                            stream.fill(0, static_cast<std::uint64_t>(first), words);
                            std::transform(words.begin(), words.end(), values.begin(),
                                           [](std::uint32_t word) {
                                             return static_cast<float>(word) * 0x1p-31F - 1.0F;
                                           });
                          });
}

void Machine::fill(const TensorView& tensor) {
  const TensorView numbers = numbers_.view(0, Shape{count_}, DType::kFloat32);
  for (std::int64_t first = 0; first < tensor.count(); first += count_) {
    const std::int64_t elements = std::min(count_, tensor.count() - first);
    ops::convert(context_, numbers.flat_slice(0, elements), tensor.flat_slice(first, elements));
  }
  context_.synchronize();
}

TensorView Operands::uncounted(const Shape& shape, DType dtype) {
  buffers_.emplace_back(context().device(), shape.count() * size_bytes(dtype));
  return buffers_.back().view(0, shape, dtype);
}

TensorView Operands::written(const Shape& shape, DType dtype) {
  const TensorView tensor = uncounted(shape, dtype);
  count(tensor.bytes());
  return tensor;
}

TensorView Operands::updated(const Shape& shape, DType dtype) {
  const TensorView tensor = written(shape, dtype);
  count(tensor.bytes());
  return tensor;
}

TensorView Operands::read(const Shape& shape, DType dtype) {
  const TensorView tensor = written(shape, dtype);
  machine_->fill(tensor);
  return tensor;
}

TokenIds Operands::token_ids(std::int64_t rows, std::int64_t vocabulary) {
  const RandomStream stream = numbers_stream();
  std::set<std::int64_t> seen;
  const TensorView ids = written({rows}, DType::kInt64);
  device::write_from_host(ids, [&](std::int64_t first, const TensorView& piece) {
    const auto values = piece.host<std::int64_t>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      // (vocabulary + 1)^u, u even over [0, 1), has the density 1 / id.
      const double u = stream.uniform(static_cast<std::uint64_t>(first) + i);
      const double id = std::floor(std::pow(static_cast<double>(vocabulary + 1), u)) - 1.0;
      values[i] = std::min(static_cast<std::int64_t>(id), vocabulary - 1);
      seen.insert(values[i]);
    }
  });
  return {ids, static_cast<std::int64_t>(seen.size())};
}

}  // namespace strata::bench
