#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"

/// Tensors on standard input and output, for the programs that are compared with PyTorch. A tensor
/// comes as its rank and extents (int64) and its elements; results are elements alone. All in this
/// machine's byte order.
namespace strata::reference {

template <typename T>
class Tensor {
 public:
  explicit Tensor(const Shape& shape)
      : shape_(shape), elements_(static_cast<std::size_t>(shape.count())) {}

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] TensorView view() { return {std::span(elements_), shape_}; }
  [[nodiscard]] std::vector<T>& elements() { return elements_; }

 private:
  Shape shape_;
  std::vector<T> elements_;
};

template <typename T>
void read_elements(std::span<T> elements) {
  if (std::fread(elements.data(), sizeof(T), elements.size(), stdin) != elements.size()) {
    fail(ExitCode::kUsage, "standard input ends within a tensor");
  }
}

template <typename T>
Tensor<T> read_tensor() {
  std::int64_t rank = 0;
  read_elements(std::span(&rank, 1));
  std::vector<std::int64_t> extents(static_cast<std::size_t>(rank));
  read_elements(std::span(extents));
  Tensor<T> tensor{Shape(extents)};
  read_elements(std::span(tensor.elements()));
  return tensor;
}

template <typename T>
void write(std::span<const T> elements) {
  if (std::fwrite(elements.data(), sizeof(T), elements.size(), stdout) != elements.size()) {
    fail(ExitCode::kUsage, "standard output cannot be written");
  }
}

template <typename T>
void write(Tensor<T>& tensor) {
  write(std::span<const T>(tensor.elements()));
}

template <typename T>
void write_scalar(double value) {
  const T narrowed = static_cast<T>(value);
  write(std::span<const T>(&narrowed, 1));
}

/// The whole of a program "PROGRAM CASE float32|float64": calls run(CASE, T{}). Returns the exit
/// code.
template <typename Run>
int run_case(std::string_view program, int argc, char** argv, const Run& run) {
  try {
    const std::span arguments(argv, static_cast<std::size_t>(argc));
    const auto dtype = argc == 3 ? enum_from_name<DType>(arguments[2]) : std::nullopt;
    if (!dtype) {
      fail(ExitCode::kUsage, "usage: {} CASE float32|float64", program);
    }
    with_floating(*dtype, [&](auto zero) { run(std::string(arguments[1]), zero); });
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return 1;
  }
}

}  // namespace strata::reference
