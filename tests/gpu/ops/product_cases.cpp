#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/ops/matmul.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

using Tensors = std::vector<TensorView>;

struct Product {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
};

std::string name_of_product(const std::string& what, const Product& product) {
  return what + "_" + std::to_string(product.m) + "x" + std::to_string(product.n) + "x" +
         std::to_string(product.k);
}

void add_transposes(std::vector<Case>& cases, const Product& p) {
  for (const Transpose a : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose b : {Transpose::kNo, Transpose::kYes}) {
      const bool transposed_a = a == Transpose::kYes;
      const bool transposed_b = b == Transpose::kYes;
      const std::string form = std::string(transposed_a ? "t" : "n") + (transposed_b ? "t" : "n");
      add_case(cases, name_of_product("matmul_" + form, p),
               {read(transposed_a ? Shape{p.k, p.m} : Shape{p.m, p.k}),
                read(transposed_b ? Shape{p.n, p.k} : Shape{p.k, p.n}), written({p.m, p.n})},
               [=](Context& context, const Tensors& t) {
                 matmul(context, t[0], t[1], t[2], {.transpose_a = a, .transpose_b = b});
               });
    }
  }
}

void add_options(std::vector<Case>& cases, const Product& p) {
  const Shape a{p.m, p.k};
  const Shape b{p.k, p.n};
  const Shape c{p.m, p.n};
  add_case(cases, name_of_product("matmul_added", p), {read(a), read(b), updated(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[2], {.accumulate = Accumulate::kAdd});
           });
  add_case(cases, name_of_product("matmul_added_to_computed", p),
           {read(a), read(b), computed(Role::kBoth, c)}, [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[2], {.accumulate = Accumulate::kAdd});
           });
  for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
    const bool is_relu = activation == Activation::kRelu;
    add_case(cases, name_of_product(is_relu ? "matmul_bias_relu" : "matmul_bias", p),
             {read(a), read(b), read({p.n}), written(c)}, [=](Context& context, const Tensors& t) {
               matmul(context, t[0], t[1], t[3], {.bias = t[2], .activation = activation});
             });
    add_case(
        cases,
        name_of_product(is_relu ? "matmul_bias_relu_to_computed" : "matmul_bias_to_computed", p),
        {read(a), read(b), read({p.n}), computed(Role::kWritten, c)},
        [=](Context& context, const Tensors& t) {
          matmul(context, t[0], t[1], t[3], {.bias = t[2], .activation = activation});
        });
  }
  add_case(cases, name_of_product("matmul_relu", p), {read(a), read(b), written(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[2], {.activation = Activation::kRelu});
           });
}

/// Products together with what goes before and behind them.
void add_fused(std::vector<Case>& cases, const Product& p) {
  const Shape a{p.m, p.k};
  const Shape b{p.n, p.k};
  const Shape c{p.m, p.n};
  constexpr Transpose kYes = Transpose::kYes;
  add_case(cases, name_of_product("matmul_addend", p),
           {read(a), read(b), read({p.n}), read(c), written(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[4], {.transpose_b = kYes, .bias = t[2], .addend = t[3]});
           });
  add_case(cases, name_of_product("matmul_addend_in_place", p), {read(a), read(b), updated(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[2], {.transpose_b = kYes, .addend = t[2]});
           });
  add_case(cases, name_of_product("matmul_addend_to_computed", p),
           {read(a), read(b), read({p.n}), computed(Role::kRead, c), computed(Role::kWritten, c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[4], {.transpose_b = kYes, .bias = t[2], .addend = t[3]});
           });
  for (const bool biased : {false, true}) {
    add_case(cases, name_of_product(biased ? "matmul_bias_gelu" : "matmul_gelu", p),
             {read(a), read(b), read({p.n}), written(c), written(c)},
             [=](Context& context, const Tensors& t) {
               matmul(context, t[0], t[1], t[4],
                      {.transpose_b = kYes,
                       .bias = biased ? ConstTensorView(t[2]) : ConstTensorView(),
                       .activation = Activation::kGelu,
                       .pre_activation = t[3]});
             });
  }
  add_case(
      cases, name_of_product("matmul_gelu_to_computed", p),
      {read(a), read(b), read({p.n}), computed(Role::kWritten, c), computed(Role::kWritten, c)},
      [](Context& context, const Tensors& t) {
        matmul(context, t[0], t[1], t[4],
               {.transpose_b = kYes,
                .bias = t[2],
                .activation = Activation::kGelu,
                .pre_activation = t[3]});
      });
  add_case(cases, name_of_product("matmul_gelu_gradient", p),
           {read(a), read({p.k, p.n}), read(c), written(c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[3], {.gelu_gradient_of = t[2]});
           });
  add_case(cases, name_of_product("matmul_gelu_gradient_in_computed", p),
           {read(a), read({p.k, p.n}), computed(Role::kRead, c), computed(Role::kWritten, c)},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[3], {.gelu_gradient_of = t[2]});
           });
}

/// Products of a head, whose logits have longer rows.
void add_padded(std::vector<Case>& cases, const Product& p) {
  constexpr std::int64_t kMore = 7;
  add_case(cases, name_of_product("matmul_padded_c", p),
           {read({p.m, p.k}), read({p.n, p.k}), written({p.m, p.n + kMore})},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[2],
                    {.transpose_b = Transpose::kYes, .padded_rows = true});
           });
  add_case(cases, name_of_product("matmul_padded_a", p),
           {read({p.m, p.k + kMore}), read({p.k, p.n}), written({p.m, p.n})},
           [](Context& context, const Tensors& t) {
             matmul(context, t[0], t[1], t[2], {.padded_rows = true});
           });
  for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    const bool adds = accumulate == Accumulate::kAdd;
    add_case(cases, name_of_product(adds ? "matmul_padded_t_added" : "matmul_padded_t", p),
             {read({p.k, p.m + kMore}), read({p.k, p.n}),
              computed(adds ? Role::kBoth : Role::kWritten, {p.m, p.n})},
             [=](Context& context, const Tensors& t) {
               matmul(
                   context, t[0], t[1], t[2],
                   {.transpose_a = Transpose::kYes, .accumulate = accumulate, .padded_rows = true});
             });
  }
}

}  // namespace

void add_product_cases(std::vector<Case>& cases) {
  for (const Product& product :
       {Product{64, 128, 96}, Product{33, 17, 71}, Product{1, 40, 5}, Product{40, 1, 5},
        Product{17, 9, 1}, Product{1, 1, 1}, Product{64, 64, 8192}, Product{33, 16, 20000}}) {
    const auto first = static_cast<std::ptrdiff_t>(cases.size());
    add_transposes(cases, product);
    if (product.k < 8192) {  // of long sums each layout is enough
      add_options(cases, product);
      add_fused(cases, product);
      add_padded(cases, product);
    }
    std::for_each(cases.begin() + first, cases.end(), [&](Case& test) { test.terms = product.k; });
  }
  // GELU is the library's where rows are a multiple of 8 elements.
  for (const Product& product : {Product{7, 24, 10}, Product{1, 8, 2}, Product{129, 8, 34}}) {
    add_fused(cases, product);
  }
  for (const Shape& shape : {Shape{7, 5}, Shape{64, 128}, Shape{3, 211, 130}, Shape{17000, 24}}) {
    const Operand sum = computed(Role::kBoth, {shape.back()});
    const std::string of = "_of_" + std::to_string(shape.count());
    add_case(cases, "column_sum" + of, {read(shape), sum}, [](Context& context, const Tensors& t) {
      column_sum(context, t[0], t[1], Accumulate::kOverwrite);
    });
    add_case(cases, "column_sum_added" + of, {read(shape), sum},
             [](Context& context, const Tensors& t) {
               column_sum(context, t[0], t[1], Accumulate::kAdd);
             });
  }
  // Together where all are a multiple of 64 wide, up to four at a time.
  for (const std::vector<std::int64_t>& widths :
       std::vector<std::vector<std::int64_t>>{{64, 192}, {128, 64, 64, 256, 64}, {64, 7}}) {
    constexpr std::int64_t kRows = 1100;
    std::vector<Operand> operands;
    for (const std::int64_t width : widths) {
      operands.push_back(read({kRows, width}));
      operands.push_back(computed(Role::kBoth, {width}));
    }
    add_case(cases, fmt::format("column_sums_of_{}", fmt::join(widths, "_")), operands,
             [](Context& context, const Tensors& t) {
               std::vector<ColumnSum> sums;
               for (std::size_t i = 0; i < t.size(); i += 2) {
                 sums.push_back({t[i], t[i + 1]});
               }
               column_sums(context, sums, Accumulate::kAdd);
             });
  }
}

}  // namespace strata::ops::test
