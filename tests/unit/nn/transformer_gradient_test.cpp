// The layers of transformers, and dense layers that shards split, against central differences in
// f64, with 1, 2 and 4 shards on one rank.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layer_gradients.hpp"

namespace strata::nn::test::transformer_gradient_test {
namespace {

class ShardedLayerGradients : public testing::TestWithParam<GradientCase> {};

TEST_P(ShardedLayerGradients, AgreeWithDifferences) {
  for (const std::int64_t shards : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} shards", shards));
    GradientCase with_shards = GetParam();
    with_shards.shards = shards;
    expect_layer_gradients(with_shards);
  }
}

GradientCase sublayer(const std::string& name, const std::string& line) {
  return {name, {line, "flatten"}, Shape{3, 8}, 24};
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ShardedLayerGradients,
    testing::Values(
        sublayer("rms_norm", "rms_norm"), sublayer("rms_norm_epsilon", "rms_norm epsilon=0.1"),
        sublayer("layer_norm_without_bias", "layer_norm bias=off"),
        sublayer("attention", "attention 4"),
        sublayer("attention_uneven", "attention 11 head_size=2"),
        sublayer("attention_uneven_grouped", "attention 22 kv_heads=11 head_size=2 rotary=10"),
        sublayer("attention_grouped", "attention 8 kv_heads=4 head_size=2"),
        sublayer("attention_one_query_norm_none", "attention 4 norm=none"),
        sublayer("attention_rotary", "attention 4 rotary=10000 norm=rms_norm"),
        sublayer("attention_grouped_rotary",
                 "attention 8 kv_heads=4 head_size=2 rotary=100 norm=rms_norm bias=off"),
        sublayer("attention_plain", "attention 4 bias=off residual=off norm=none"),
        sublayer("attention_dropout", "attention 4 dropout=0.3"),
        sublayer("attention_without_residual_dropout", "attention 4 dropout=0.3 residual=off"),
        sublayer("mlp_gelu", "mlp 12"), sublayer("mlp_relu", "mlp 12 relu epsilon=0.01"),
        sublayer("mlp_gelu_erf", "mlp 12 gelu_erf"),
        sublayer("mlp_swiglu", "mlp 12 swiglu norm=rms_norm"),
        sublayer("mlp_geglu", "mlp 12 geglu norm=rms_norm bias=off"),
        sublayer("mlp_without_bias", "mlp 12 gelu bias=off"),
        sublayer("mlp_plain", "mlp 12 gelu norm=none residual=off bias=off"),
        sublayer("mlp_swiglu_plain", "mlp 12 swiglu norm=none residual=off"),
        sublayer("mlp_dropout", "mlp 12 swiglu dropout=0.3"),
        sublayer("attention_lora", "attention 4 lora=2 lora_alpha=3"),
        sublayer("attention_lora_of_queries_keys_values",
                 "attention 8 kv_heads=4 head_size=2 rotary=10 norm=rms_norm bias=off lora=2 "
                 "lora_products=qkv"),
        sublayer("mlp_lora", "mlp 12 lora=3 lora_alpha=2 dropout=0.3"),
        sublayer("mlp_relu_lora_of_down", "mlp 12 relu lora=1 lora_alpha=0.5 lora_products=down"),
        sublayer(
            "mlp_swiglu_lora",
            "mlp 12 swiglu norm=none residual=off lora=2 lora_alpha=5 lora_products=down,gate"),
        sublayer("attention_bias_of_qkv", "attention 4 bias=off qkv_bias=on"),
        sublayer("attention_bias_of_output", "attention 4 qkv_bias=off"),
        sublayer("attention_norm_behind", "attention 4 norm=none post_norm=rms_norm bias=off"),
        sublayer("mlp_norms_around",
                 "mlp 12 swiglu norm=rms_norm post_norm=rms_norm dropout=0.3 epsilon=0.01"),
        sublayer("mlp_norm_behind", "mlp 12 norm=none post_norm=layer_norm lora=2 residual=off"),
        sublayer("attention_norm_of_heads",
                 "attention 8 kv_heads=4 head_size=4 rotary=10 rotary_share=0.5 norm=rms_norm "
                 "bias=off qk_norm=head scale=0.7"),
        sublayer("attention_as_in_gemma",
                 "attention 4 head_size=4 norm=rms_norm post_norm=rms_norm unit_offset=on "
                 "bias=off qk_norm=head softcap=1.5 window=2 dropout=0.2"),
        sublayer("attention_norm_of_all_heads",
                 "attention 8 kv_heads=4 head_size=2 rotary=10 norm=none post_norm=rms_norm "
                 "bias=off qk_norm=width"),
        sublayer("attention_uneven_norm_of_all_heads",
                 "attention 22 kv_heads=11 head_size=2 norm=rms_norm unit_offset=on qk_norm=width"),
        // With 4 shards, and with one key-value head with 2, several shards share a head.
        sublayer("attention_two_kv_heads", "attention 4 kv_heads=2 rotary=10"),
        sublayer("attention_one_kv_head",
                 "attention 4 kv_heads=1 head_size=4 rotary=10 norm=rms_norm"),
        sublayer("attention_one_kv_head_of_eight",
                 "attention 8 kv_heads=1 bias=off qkv_bias=on rotary=10 head_size=2 dropout=0.2"),
        sublayer("attention_shared_norm_of_heads",
                 "attention 4 kv_heads=2 head_size=4 rotary=10 norm=rms_norm bias=off qk_norm=head "
                 "softcap=1.5 window=2"),
        sublayer("attention_shared_norm_of_all_heads",
                 "attention 8 kv_heads=2 head_size=4 norm=none post_norm=rms_norm unit_offset=on "
                 "qk_norm=width"),
        sublayer("attention_one_norm_of_all_heads",
                 "attention 4 kv_heads=1 head_size=4 rotary=10 bias=off qk_norm=width lora=2"),
        sublayer("attention_shared_lora", "attention 4 kv_heads=2 lora=2 lora_alpha=3"),
        sublayer("mlp_geglu_lora", "mlp 12 geglu norm=rms_norm unit_offset=on lora=2"),
        sublayer("rms_norm_unit_offset", "rms_norm unit_offset=on"),
        GradientCase{"mlp_of_one_row", {"mlp 12"}, Shape{6}, 6},
        GradientCase{
            "column_then_row", {"dense 8 parallel=column", "dense 5 parallel=row"}, Shape{6}, 5},
        GradientCase{"column_relu_then_row_relu",
                     {"dense 8 relu parallel=column", "dense 5 relu parallel=row", "dense 4"},
                     Shape{6},
                     4},
        GradientCase{"column_between_activations",
                     {"dense 8 parallel=column bias=off", "gelu", "dropout 0.3", "tanh",
                      "dense 5 parallel=row bias=off"},
                     Shape{6},
                     5},
        GradientCase{"column_on_rows",
                     {"dense 8 parallel=column", "sigmoid", "dense 4 parallel=row", "flatten"},
                     Shape{2, 3},
                     8},
        GradientCase{"column_alone", {"dense 8 parallel=column"}, Shape{6}, 8}),
    [](const auto& test) { return test.param.name; });

struct LanguageCase {
  std::string name;
  std::vector<std::string> layers;
};

void PrintTo(const LanguageCase& c, std::ostream* out) {
  *out << c.name;
}

class LanguageModelGradients : public testing::TestWithParam<LanguageCase> {};

// From token ids to the loss.
TEST_P(LanguageModelGradients, AgreeWithDifferences) {
  constexpr std::int64_t kSamples = 3;
  constexpr std::int64_t kContext = 4;
  constexpr std::int64_t kVocabulary = 7;
  const std::vector<std::int64_t> ids{3, 0, 6, 3, 1, 3, 5, 2, 4, 4, 0, 6};
  const std::vector<std::int64_t> next{0, 6, 3, 1, 3, 5, 2, 4, 4, 0, 6, 1};
  const Shape shape{kSamples, kContext};
  const ConstTensorView input{std::span(ids), shape};
  const ConstTensorView targets{std::span(next), shape};
  struct Ways {
    std::int64_t shards;
    std::int64_t loss_pieces;
    std::int64_t row_pieces;
  };
  for (const auto& [shards, loss_pieces, row_pieces] : std::vector<Ways>{
           {1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {1, 3, 1}, {2, 2, 1}, {2, 1, 3}, {4, 12, 3}}) {
    SCOPED_TRACE(fmt::format("{} shards, {} pieces of the loss, {} of the rows", shards,
                             loss_pieces, row_pieces));
    const Model model({.layers = GetParam().layers,
                       .input_shape = Shape{kContext},
                       .outputs = kVocabulary,
                       .seed = 4,
                       .input_kind = InputKind::kTokenIds,
                       .shards = shards});
    StageSpec spec = spec_of<double>({0, model.layer_count()}, kSamples);
    spec.pass.row_pieces = row_pieces;
    if (model.output().is_logits) {
      spec.pass.loss_pieces = loss_pieces;
      spec.order = BackwardOrder::kFused;
    }
    StageBench<double> bench(model, spec);
    ArenaSink<double> sink(bench.layout().elements);
    expect_loss_gradients(bench, sink, input, targets, kSamples);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LanguageModelGradients,
    testing::Values(
        LanguageCase{"tied", {"embedding 4", "head"}},
        LanguageCase{"untied", {"embedding 4", "head tied=off"}},
        LanguageCase{"tied_positions_dropout",
                     {"embedding 4 positions=6 dropout=0.2", "tanh", "head"}},
        LanguageCase{"gpt",
                     {"embedding 4 positions=4", "attention 4 dropout=0.1", "mlp 8 dropout=0.1",
                      "layer_norm", "head"}},
        LanguageCase{"scaled_and_capped",
                     {"embedding 4 scale=1.5 dropout=0.1",
                      "attention 4 norm=none post_norm=rms_norm bias=off",
                      "mlp 8 swiglu norm=rms_norm post_norm=rms_norm bias=off", "rms_norm",
                      "head softcap=0.5"}},
        LanguageCase{"capped_untied", {"embedding 4 scale=3", "head tied=off softcap=0.3"}},
        LanguageCase{"parallel_residual",
                     {"embedding 4", "attention 4 dropout=0.1 rotary=10 head_size=2",
                      "mlp 8 dropout=0.1 parallel_residual=on lora=2", "tanh", "head tied=off"}},
        LanguageCase{"parallel_attention",
                     {"embedding 4 positions=4", "mlp 8",
                      "attention 4 norm=none parallel_residual=on", "layer_norm", "head"}},
        LanguageCase{"lora",
                     {"embedding 4", "attention 4 dropout=0.1 lora=2 lora_products=output",
                      "mlp 8 lora=2 lora_alpha=3", "layer_norm", "head"}},
        LanguageCase{"llama",
                     {"embedding 4",
                      "attention 8 kv_heads=4 head_size=2 rotary=10000 norm=rms_norm "
                      "bias=off",
                      "mlp 8 swiglu norm=rms_norm bias=off", "rms_norm", "head tied=off"}},
        LanguageCase{"one_kv_head",
                     {"embedding 4 positions=4", "attention 4 kv_heads=1 dropout=0.1 bias=off",
                      "mlp 8", "layer_norm", "head"}},
        LanguageCase{
            "dense_head",
            {"embedding 4", "dense 8 parallel=column", "dense 3 parallel=row", "dense 8"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace strata::nn::test::transformer_gradient_test
