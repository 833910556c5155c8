#include <string>

#include "strata/core/random.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/update.hpp"

#include "cases.hpp"

namespace strata::ops::test {
namespace {

using Tensors = std::vector<TensorView>;

// Long enough for several blocks, and no multiple of a chunk.
const Shape kMany{37, 61};

void add_activations(std::vector<Case>& cases) {
  for (const auto& [activation, name] : enum_table<Activation>()) {
    const Activation f = activation;
    const bool is_exact = f == Activation::kNone || f == Activation::kRelu;
    const Nearness nearness = is_exact ? Nearness::kSameBits : Nearness::kRounded;
    add_case(
        cases, std::string(name) + "_forward", {read(kMany), written(kMany)},
        [f](Context& context, const Tensors& t) { activation_forward(context, f, t[0], t[1]); },
        nearness);
    add_case(
        cases, std::string(name) + "_backward",
        {read(kMany), read(kMany), read(kMany), written(kMany)},
        [f](Context& context, const Tensors& t) {
          activation_backward(context, f, t[0], t[1], t[2], t[3]);
        },
        nearness);
  }
  for (const auto& [gate, name] : enum_table<Gate>()) {
    const Gate f = gate;
    add_case(
        cases, std::string(name) + "_forward", {read(kMany), read(kMany), written(kMany)},
        [f](Context& context, const Tensors& t) { gated_forward(context, f, t[0], t[1], t[2]); });
    add_case(cases, std::string(name) + "_backward",
             {read(kMany), read(kMany), read(kMany), written(kMany), written(kMany)},
             [f](Context& context, const Tensors& t) {
               gated_backward(context, f, t[0], t[1], t[2], t[3], t[4]);
             });
  }
}

void add_conversions(std::vector<Case>& cases) {
  for (const DType to : {DType::kFloat32, DType::kFloat64, DType::kBfloat16}) {
    Operand y = written(kMany);
    y.fixed = to;
    add_case(
        cases, "convert_to_" + std::string(name_of(to)), {read(kMany), y},
        [](Context& context, const Tensors& t) { convert(context, t[0], t[1]); },
        Nearness::kSameBits);
  }
}

void add_dropouts(std::vector<Case>& cases) {
  const RandomStream stream(7, RandomPurpose::kDropout, 3);
  for (const double probability : {0.0, 0.3}) {
    add_case(
        cases, probability == 0.0 ? "dropout_of_nothing" : "dropout_forward",
        {read(kMany), written(kMany), bytes(Role::kWritten, kMany)},
        [=](Context& context, const Tensors& t) {
          dropout_forward(context, t[0], probability, stream, {5}, t[1], t[2]);
        },
        Nearness::kSameBits);
  }
  const Shape cut{5, 3, 26};
  add_case(
      cases, "dropout_of_columns", {read(cut), written(cut), bytes(Role::kWritten, cut)},
      [=](Context& context, const Tensors& t) {
        dropout_forward(context, t[0], 0.5, stream, {2}, t[1], t[2], {.first = 11, .of = 41});
      },
      Nearness::kSameBits);
  // Rows of 61 begin within a call's words, rows of 64 do not.
  for (const std::int64_t columns : {61, 64}) {
    const std::string of = "_of_" + std::to_string(columns);
    const Shape rows{37, columns};
    add_case(
        cases, "bias_dropout_residual" + of,
        {computed(Role::kRead, rows), read({columns}), read(rows), written(rows),
         bytes(Role::kWritten, rows)},
        [=](Context& context, const Tensors& t) {
          bias_dropout_residual(context, t[0], t[1], t[2], 0.3, stream, {5}, t[3], t[4]);
        },
        Nearness::kSameBits);
    add_case(
        cases, "bias_dropout_in_place" + of,
        {updated(rows), read({columns}), bytes(Role::kWritten, rows)},
        [=](Context& context, const Tensors& t) {
          bias_dropout_residual(context, t[0], t[1], {}, 0.3, stream, {5}, t[0], t[2]);
        },
        Nearness::kSameBits);
    add_case(
        cases, "dropout_residual" + of,
        {read(rows), read(rows), written(rows), bytes(Role::kWritten, rows)},
        [=](Context& context, const Tensors& t) {
          bias_dropout_residual(context, t[0], {}, t[1], 0.3, stream, {5}, t[2], t[3]);
        },
        Nearness::kSameBits);
    add_case(
        cases, "add_bias_residual" + of,
        {computed(Role::kRead, rows), read({columns}), read(rows), written(rows)},
        [](Context& context, const Tensors& t) {
          add_bias_residual(context, t[0], t[1], t[2], t[3]);
        },
        Nearness::kSameBits);
  }
  const Shape quarters{5, 3, 28};
  add_case(
      cases, "dropout_of_columns_of_whole_words",
      {read(quarters), written(quarters), bytes(Role::kWritten, quarters)},
      [=](Context& context, const Tensors& t) {
        dropout_forward(context, t[0], 0.5, stream, {2}, t[1], t[2], {.first = 12, .of = 44});
      },
      Nearness::kSameBits);
  add_case(
      cases, "dropout_backward", {read(kMany), bytes(Role::kRead, kMany), written(kMany)},
      [](Context& context, const Tensors& t) { dropout_backward(context, t[0], t[1], 0.3, t[2]); },
      Nearness::kSameBits);
}

}  // namespace

void add_element_cases(std::vector<Case>& cases) {
  add_case(
      cases, "fill_zero", {updated(kMany)},
      [](Context& context, const Tensors& t) { fill_zero(context, t[0]); }, Nearness::kSameBits);
  add_case(
      cases, "copy", {read(kMany), written(kMany)},
      [](Context& context, const Tensors& t) { copy(context, t[0], t[1]); }, Nearness::kSameBits);
  add_case(
      cases, "add", {read(kMany), updated(kMany)},
      [](Context& context, const Tensors& t) { add(context, t[0], t[1]); }, Nearness::kSameBits);
  add_case(
      cases, "scaled", {read(kMany), written(kMany)},
      [](Context& context, const Tensors& t) {
        scaled(context, 0.3, t[0], t[1], Accumulate::kOverwrite);
      },
      Nearness::kSameBits);
  add_case(
      cases, "scaled_and_added", {read(kMany), updated(kMany)},
      [](Context& context, const Tensors& t) {
        scaled(context, 0.3, t[0], t[1], Accumulate::kAdd);
      },
      Nearness::kSameBits);
  add_case(
      cases, "add_bias_in_place", {updated(kMany), read({61})},
      [](Context& context, const Tensors& t) { add_bias_residual(context, t[0], t[1], {}, t[0]); },
      Nearness::kSameBits);
  add_activations(cases);
  add_conversions(cases);
  add_dropouts(cases);
}

void add_update_cases(std::vector<Case>& cases) {
  for (const Switch nesterov : {Switch::kOff, Switch::kOn}) {
    add_case(
        cases, nesterov == Switch::kOn ? "sgd_nesterov" : "sgd_momentum",
        {updated(kMany), read(kMany), updated(kMany)},
        [=](Context& context, const Tensors& t) {
          sgd_update(context, t[0], t[1], t[2],
                     {.learning_rate = 0.1,
                      .momentum = 0.9,
                      .nesterov = nesterov,
                      .weight_decay = 0.01,
                      .gradient_scale = 0.7});
        },
        Nearness::kSameBits, false);
  }
  add_case(
      cases, "sgd", {updated(kMany), read(kMany)},
      [](Context& context, const Tensors& t) {
        sgd_update(context, t[0], t[1], {}, {.learning_rate = 0.1, .weight_decay = 0.01});
      },
      Nearness::kSameBits, false);
  for (const DecayKind decay : {DecayKind::kInGradient, DecayKind::kDecoupled}) {
    add_case(
        cases, decay == DecayKind::kDecoupled ? "adamw" : "adam",
        {updated(kMany),
         read(kMany),
         updated(kMany),
         {.role = Role::kBoth, .shape = kMany, .low = 0.0, .high = 1.0}},
        [=](Context& context, const Tensors& t) {
          adam_update(context, t[0], t[1], t[2], t[3],
                      {.learning_rate = 1e-2,
                       .weight_decay = 0.1,
                       .decay = decay,
                       .step = 3,
                       .gradient_scale = 0.7});
        },
        Nearness::kSameBits, false);
  }
  cases.push_back(
      {.name = "adamw_rounded",
       .operands =
           {computed(Role::kBoth, kMany),
            computed(Role::kRead, kMany),
            computed(Role::kBoth, kMany),
            {.type = Type::kComputed, .role = Role::kBoth, .shape = kMany, .low = 0.0, .high = 1.0},
            written(kMany)},
       .call =
           [](Context& context, const Tensors& t) {
             adam_update(context, t[0], t[1], t[2], t[3],
                         {.learning_rate = 1e-2,
                          .weight_decay = 0.1,
                          .decay = DecayKind::kDecoupled,
                          .step = 3},
                         t[4]);
             return std::vector<double>();
           },
       .nearness = Nearness::kSameBits,
       .only_bfloat16 = true});
  add_case(
      cases, "adagrad",
      {updated(kMany), read(kMany), {.role = Role::kBoth, .shape = kMany, .low = 0.0, .high = 1.0}},
      [](Context& context, const Tensors& t) {
        adagrad_update(context, t[0], t[1], t[2], {.learning_rate = 0.1, .weight_decay = 0.01});
      },
      Nearness::kSameBits, false);
  add_case(
      cases, "average", {updated(kMany), read(kMany)},
      [](Context& context, const Tensors& t) { average_update(context, t[0], t[1], 0.99); },
      Nearness::kSameBits, false);
}

}  // namespace strata::ops::test
