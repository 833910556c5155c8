#include <string>

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
      const bool turned_a = a == Transpose::kYes;
      const bool turned_b = b == Transpose::kYes;
      const std::string form = std::string(turned_a ? "t" : "n") + (turned_b ? "t" : "n");
      add_case(cases, name_of_product("matmul_" + form, p),
               {read(turned_a ? Shape{p.k, p.m} : Shape{p.m, p.k}),
                read(turned_b ? Shape{p.n, p.k} : Shape{p.k, p.n}), written({p.m, p.n})},
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

}  // namespace

void add_product_cases(std::vector<Case>& cases) {
  for (const Product& product :
       {Product{64, 128, 96}, Product{33, 17, 71}, Product{1, 40, 5}, Product{40, 1, 5},
        Product{17, 9, 1}, Product{1, 1, 1}, Product{64, 64, 8192}}) {
    add_transposes(cases, product);
    add_options(cases, product);
  }
  for (const Shape& shape : {Shape{7, 5}, Shape{64, 128}, Shape{3, 211, 130}}) {
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
}

}  // namespace strata::ops::test
