#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/elementwise.hpp"

#include "streams.hpp"

/// What the programs of operations share.
namespace strata::reference {

/// A tensor in T. One of bfloat16 comes as bfloat16 numbers stored as float.
template <typename T>
Tensor<T> read_stored(ops::Context& context) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    auto wide = read_tensor<float>();
    Tensor<BFloat16> narrow(wide.shape());
    convert(context, wide.view(), narrow.view());
    return narrow;
  } else {
    return read_tensor<T>();
  }
}

/// Writes a tensor, one of bfloat16 as float.
template <typename T>
void write_stored(ops::Context& context, Tensor<T>& tensor) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    Tensor<float> wide(tensor.shape());
    convert(context, tensor.view(), wide.view());
    write(wide);
  } else {
    write(tensor);
  }
}

/// What a normalisation with weight and bias reads, and what it writes.
template <typename T>
struct NormCase {
  explicit NormCase(ops::Context& context)
      : x(read_stored<T>(context)),
        weight(read_stored<T>(context)),
        bias(read_stored<T>(context)),
        dy(read_stored<T>(context)),
        y(x.shape()),
        dx(x.shape()),
        dweight(weight.shape()),
        dbias(bias.shape()) {}

  void write_results(ops::Context& context) {
    write_stored(context, y);
    write_stored(context, dx);
    write(dweight);
    write(dbias);
  }

  Tensor<T> x;
  Tensor<T> weight;
  Tensor<T> bias;
  Tensor<T> dy;
  Tensor<T> y;
  Tensor<T> dx;
  Tensor<Compute<T>> dweight;
  Tensor<Compute<T>> dbias;
};

/// Runs the case of a name. Throws: Error(kUsage) where there is none.
inline void run_named(const std::map<std::string, std::function<void()>>& cases,
                      const std::string& name) {
  const auto found = cases.find(name);
  if (found == cases.end()) {
    fail(ExitCode::kUsage, "no case is called {}", name);
  }
  found->second();
}

}  // namespace strata::reference
