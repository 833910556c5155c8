// Families of published models: config.json, layer lines, and the rows that tensors hold. Long for
// its table of published files.
#include "families.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/nn/model.hpp"

#include "../io/text_files.hpp"
#include "error_of.hpp"
#include "huggingface_config.hpp"
#include "rows_once.hpp"

namespace strata::exchange::test::families_test {
namespace {

using nlohmann::json;

/// A published model: its config.json, words of its lines, its tensors and its weights.
struct FamilyCase {
  std::string name;
  std::string config;
  std::vector<std::string> words;
  std::int64_t tensors;
  std::int64_t weights;
  nn::Preset preset = nn::Preset::kNone;

  friend std::ostream& operator<<(std::ostream& out, const FamilyCase& c) { return out << c.name; }
};

/// Of the config.json of huggingface.co/NAME, but for keys that say nothing about weights.
std::vector<FamilyCase> published_cases() {
  return {
      {"gpt2",
       R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
           "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
           "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
           "n_inner": 3072, "n_positions": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index",
           "task_specific_params": {"text-generation": {"do_sample": true}}, "vocab_size": 50257,
           "tie_word_embeddings": true})",
       {"attention 12", "positions=1024"},
       148,
       124'439'808,
       nn::Preset::kGpt2M124},
      {"meta-llama/Llama-3.2-1B",
       R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": false,
           "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
           "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32,
           "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
           "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
           "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
           "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256})",
       {"attention 32 kv_heads=8 rotary=500000 rotary_scaling=llama3:32:1:4:8192 norm=rms_norm"},
       146,
       1'235'814'400,
       nn::Preset::kLlama32B1},
      {"HuggingFaceTB/SmolLM2-135M",
       R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": false,
           "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
           "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192,
           "mlp_bias": false, "num_attention_heads": 9, "num_hidden_layers": 30,
           "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_interleaved": false,
           "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
           "use_cache": true, "vocab_size": 49152})",
       {"attention 9 kv_heads=3 rotary=100000"},
       272,
       134'515'008,
       nn::Preset::kSmollm2M135},
      {"Qwen/Qwen2.5-0.5B",
       R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
           "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
           "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14,
           "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
           "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 32768,
           "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false,
           "vocab_size": 151936})",
       {"attention 14 kv_heads=2 qkv_bias=on rotary=1000000", "bias=off", "epsilon=1e-06"},
       290,
       494'032'768,
       nn::Preset::kQwen25B05},
      {"Qwen/Qwen3-0.6B",
       R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
           "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
           "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
           "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
           "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
           "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})",
       {"attention 16 kv_heads=8 head_size=128 qk_norm=head rotary=1000000"},
       310,
       596'049'920,
       nn::Preset::kQwen3B06},
      {"mistralai/Mistral-7B-v0.1",
       R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_act": "silu",
           "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
           "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
           "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})",
       {"attention 32 kv_heads=8 rotary=10000 window=4096", "head tied=off"},
       291,
       7'241'732'096,
       nn::Preset::kMistralV01B7},
      {"HuggingFaceTB/SmolLM3-3B",
       R"({"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false,
           "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
           "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false,
           "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1,
           1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0],
           "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
           "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null,
           "rope_theta": 5000000.0, "sliding_window": null, "tie_word_embeddings": true,
           "use_sliding_window": false, "vocab_size": 128256})",
       {"attention 16 kv_heads=4 rotary=5000000 norm", "attention 16 kv_heads=4 norm"},
       326,
       3'075'098'624,
       nn::Preset::kSmollm3B3},
      {"google/gemma-2-2b",
       R"({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
           "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
           "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
           "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
           "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8,
           "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
           "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0,
           "sliding_window": 4096, "tie_word_embeddings": true, "vocab_size": 256000})",
       {"embedding 2304 vocabulary=256000 scale=48", "softcap=50 rotary=10000 window=4096",
        "softcap=50 rotary=10000 norm=rms_norm post_norm=rms_norm unit_offset=on", "geglu",
        "head softcap=30"},
       288,
       2'614'341'888,
       nn::Preset::kGemma2B2},
      {"google/gemma-3-270m",
       R"({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
           "_sliding_window_pattern": 6, "attention_bias": false, "attn_logit_softcapping": null,
           "final_logit_softcapping": null, "head_dim": 256,
           "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640,
           "intermediate_size": 2048, "layer_types": ["sliding_attention", "sliding_attention",
           "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
           "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
           "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
           "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
           "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 18,
           "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
           "rope_local_base_freq": 10000.0, "rope_scaling": null, "rope_theta": 1000000.0,
           "sliding_window": 512, "tie_word_embeddings": true,
           "use_bidirectional_attention": false, "vocab_size": 262144})",
       {"qk_norm=head rotary=10000 window=512", "qk_norm=head rotary=1000000 norm=rms_norm"},
       236,
       268'098'176,
       nn::Preset::kGemma3M270},
      {"allenai/OLMo-2-0425-1B",
       R"({"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "attention_bias": false,
           "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
           "max_position_embeddings": 4096, "num_attention_heads": 16, "num_hidden_layers": 16,
           "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_scaling": null,
           "rope_theta": 500000, "tie_word_embeddings": false, "vocab_size": 100352})",
       {"attention 16 qk_norm=width rotary=500000 norm=none post_norm=rms_norm"},
       179,
       1'484'916'736,
       nn::Preset::kOlmo2B1},
      {"microsoft/Phi-3-mini-4k-instruct",
       R"({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
           "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0,
           "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
           "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
           "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
           "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
           "sliding_window": 2047, "tie_word_embeddings": false, "vocab_size": 32064})",
       {"attention 32 rotary=10000 window=2047"},
       195,
       3'821'079'552,
       nn::Preset::kPhi3MiniB4},
      {"microsoft/phi-4",
       R"({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
           "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17920,
           "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40,
           "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
           "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 250000,
           "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 100352})",
       {"attention 40 kv_heads=10 rotary=250000 norm"},
       243,
       14'659'507'200,
       nn::Preset::kPhi4B14},
      {"microsoft/Phi-4-mini-instruct",
       R"({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
           "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size":
           3072, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias":
           false, "max_position_embeddings": 131072, "mlp_bias": false,
           "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
           "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {"long_factor":
           [1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,
           1.956131817, 2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075,
           3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555,
           7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651,
           14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418,
           28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7,
           32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77], "short_factor": [1.0,
           1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
           1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
           1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
           1.0, 1.0], "type": "longrope"}, "rope_theta": 10000.0, "sliding_window":
           262144, "tie_word_embeddings": true, "vocab_size": 200064})",
       {"attention 24 kv_heads=8 rotary=10000 rotary_scaling=longrope:32:4096:1,1,1,1,",
        ",1:1,1.118320672,", ",44.16,47.77 rotary_share=0.75 window=262144", "head"},
       194,
       3'836'021'760,
       nn::Preset::kPhi4MiniB4},
      {"Qwen/Qwen2.5-1.5B with yarn",
       R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu",
           "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 32768,
           "max_window_layers": 28, "num_attention_heads": 12, "num_hidden_layers": 28,
           "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 4.0,
           "original_max_position_embeddings": 32768, "beta_fast": 32.0, "beta_slow": 1.0,
           "rope_type": "yarn"}, "rope_theta": 1000000.0, "sliding_window": 32768,
           "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})",
       {"attention 12 kv_heads=2 qkv_bias=on rotary=1000000 rotary_scaling=yarn:4:32768"},
       338,
       1'543'714'304},
      {"EleutherAI/pythia-1b",
       R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu",
           "hidden_size": 2048, "intermediate_size": 8192, "layer_norm_eps": 1e-05,
           "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 16,
           "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
           "use_parallel_residual": true, "vocab_size": 50304})",
       {"attention 8 rotary=10000 rotary_share=0.25", "mlp 8192 gelu_erf parallel_residual=on"},
       196,
       1'011'781'632,
       nn::Preset::kPythiaB1}};
}

/// Reads a config.json of these values.
PublishedModel model_read(const json& config) {
  const io::test::TemporaryDirectory directory;
  io::test::write_file(directory / "config.json", config.dump());
  return read_huggingface_config(directory / "config.json");
}

PublishedModel from_lines(const PublishedModel& model) {
  return published_model_of(layer_lines(model), model.options.context, model.options.vocabulary);
}

void expect_preset(const PublishedModel& model, nn::Preset preset) {
  const PublishedModel expected{.options = nn::resolved({.preset = preset})};
  EXPECT_EQ(layer_lines(model), layer_lines(expected));
  EXPECT_EQ(model.options.context, expected.options.context);
}

class PublishedFamilies : public testing::TestWithParam<FamilyCase> {};

TEST_P(PublishedFamilies, ConfigsGoThroughLinesAndBack) {
  json config = json::parse(GetParam().config);
  config["torch_dtype"] = "bfloat16";
  const std::string type = config.at("model_type");
  const PublishedModel model = model_read(config);
  EXPECT_EQ(model.family, type);
  const std::string lines = fmt::format("{}", fmt::join(layer_lines(model), "\n"));
  for (const std::string& words : GetParam().words) {
    EXPECT_THAT(lines, testing::HasSubstr(words));
  }
  PublishedModel back = from_lines(model);
  EXPECT_EQ(layer_lines(back), layer_lines(model));
  back.family = family_of(back, type);
  EXPECT_EQ(back.family, type);
  const auto written = [&](const train::ModelTexts& texts) {
    return huggingface_config(back, io::StoredType::kBfloat16, {}, texts);
  };
  // As it came; and without what it came with, another file of the same model.
  EXPECT_EQ(written({{"config.json", config.dump()}}), config);
  const PublishedModel again = model_read(written({}));
  EXPECT_EQ(layer_lines(again), layer_lines(model));
  EXPECT_EQ(again.options.context, model.options.context);
  if (const nn::Preset preset = GetParam().preset; preset != nn::Preset::kNone) {
    expect_preset(model, preset);
  }
}

TEST_P(PublishedFamilies, TensorsHoldEveryRowOnce) {
  const PublishedModel model = model_read(json::parse(GetParam().config));
  const auto tensors = published_tensors(model, MatrixOrder::kInputsFirst);
  EXPECT_EQ(std::ssize(tensors), GetParam().tensors);
  EXPECT_EQ(expect_rows_once(tensors), GetParam().weights);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedFamilies, testing::ValuesIn(published_cases()),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

/// The config.json of models with a vision part, as above; the preset is that of the text part.
std::vector<FamilyCase> composite_cases() {
  const std::string gemma3 = R"({"model_type": "gemma3", "architectures":
      ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
      "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02,
      "mm_tokens_per_image": 256, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
      "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
      "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
      "patch_size": 14, "vision_use_head": false}, "text_config": {"model_type": "gemma3_text",
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, )";
  return {{"google/gemma-3-4b-it",
           gemma3 + R"("hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}})",
           {},
           444,
           3'880'263'168,
           nn::Preset::kGemma3B4},
          {"google/gemma-3-12b-it",
           gemma3 + R"("hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16,
                   "num_hidden_layers": 48, "num_key_value_heads": 8}})",
           {},
           626,
           11'766'034'176,
           nn::Preset::kGemma3B12},
          {"google/gemma-3-27b-it",
           gemma3 + R"("head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
                   "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
                   "query_pre_attn_scalar": 168}})",
           {},
           808,
           27'009'346'304,
           nn::Preset::kGemma3B27},
          {"mistralai/Mistral-Small-3.1-24B-Instruct-2503",
           R"({"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
           "image_token_index": 10, "multimodal_projector_bias": false,
           "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config":
           {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
           "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings":
           131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
           "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
           "sliding_window": null, "use_cache": true, "vocab_size": 131072},
           "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config":
           {"hidden_size": 1024, "model_type": "pixtral"}, "vision_feature_layer": -1})",
           {},
           363,
           23'572'403'200,
           nn::Preset::kMistralSmall31B24}};
}

TEST(Composites, AreTheirTextPartAlone) {
  for (const FamilyCase& published : composite_cases()) {
    SCOPED_TRACE(published.name);
    const json whole = json::parse(published.config);
    const io::test::TemporaryDirectory directory;
    io::test::write_file(directory / "config.json", whole.dump());
    const PublishedModel model = read_huggingface_config(directory / "config.json");
    EXPECT_EQ(whole.at("model_type"), model.part_of);
    EXPECT_EQ(whole.at("text_config").at("model_type"), model.family);
    expect_preset(model, published.preset);
    const auto tensors = published_tensors(model, MatrixOrder::kInputsFirst);
    EXPECT_EQ(std::ssize(tensors), published.tensors);
    EXPECT_EQ(expect_rows_once(tensors), published.weights);
    // What goes out has text_config and what the whole says of token ids, but no other part.
    const json out = huggingface_config(model, io::StoredType::kBfloat16, {},
                                        read_model_texts(directory.path()));
    EXPECT_EQ(
        out.at("architectures"),
        json::array({model.family == "mistral" ? "MistralForCausalLM" : "Gemma3ForCausalLM"}));
    for (const auto& [key, value] : whole.at("text_config").items()) {
      EXPECT_EQ(out.at(key), value) << key;
    }
    EXPECT_EQ(out.value("eos_token_id", json()), whole.value("eos_token_id", json()));
    EXPECT_EQ(out.at("transformers_version"), "4.50.0.dev0");
    for (const char* key : {"text_config", "vision_config", "image_token_index"}) {
      EXPECT_FALSE(out.contains(key)) << key;
    }
    const PublishedModel alone = model_read(out);
    EXPECT_EQ(layer_lines(alone), layer_lines(model));
    EXPECT_EQ(alone.part_of, "");
  }
}

TEST(FamilyTensors, AreTheParametersOfTheLayers) {
  for (const FamilyCase& published : published_cases()) {
    const PublishedModel model = model_read(json::parse(published.config));
    const nn::Model network({.layers = layer_lines(model),
                             .input_shape = {model.options.context},
                             .outputs = model.options.vocabulary,
                             .input_kind = nn::InputKind::kTokenIds});
    std::map<std::string, Shape> expected;
    for (const nn::ParameterSpec& parameter : network.parameters()) {
      if (parameter.ownership == nn::Ownership::kOwned) {
        expected[parameter.name] = parameter.shape;
      }
    }
    std::map<std::string, Shape> found;
    for (const PublishedTensor& tensor : published_tensors(model, MatrixOrder::kInputsFirst)) {
      for (const ParameterRows& part : tensor.rows) {
        found[part.parameter] = part.shape;
      }
    }
    EXPECT_EQ(found, expected) << published.name;
  }
}

TEST(FamilyTensors, AreThoseOfTheirFiles) {
  const std::map<std::string, std::map<std::string, Shape>> expected{
      {"Qwen/Qwen2.5-0.5B",
       {{"model.layers.23.self_attn.q_proj.weight", {896, 896}},
        {"model.layers.23.self_attn.k_proj.bias", {128}}}},
      {"Qwen/Qwen3-0.6B",
       {{"model.layers.0.self_attn.q_proj.weight", {2048, 1024}},
        {"model.layers.0.self_attn.o_proj.weight", {1024, 2048}},
        {"model.layers.0.self_attn.k_norm.weight", {128}}}},
      {"google/gemma-2-2b",
       {{"model.layers.3.pre_feedforward_layernorm.weight", {2304}},
        {"model.layers.3.post_feedforward_layernorm.weight", {2304}},
        {"model.layers.3.self_attn.o_proj.weight", {2304, 2048}}}},
      {"allenai/OLMo-2-0425-1B",
       {{"model.layers.0.self_attn.q_norm.weight", {2048}},
        {"model.layers.0.post_attention_layernorm.weight", {2048}}}},
      {"microsoft/phi-4",
       {{"model.layers.0.self_attn.qkv_proj.weight", {7680, 5120}},
        {"model.layers.0.mlp.gate_up_proj.weight", {35840, 5120}}}}};
  for (const FamilyCase& published : published_cases()) {
    const auto tensors =
        published_tensors(model_read(json::parse(published.config)), MatrixOrder::kInputsFirst);
    const auto found = expected.find(published.name);
    for (const auto& [name, shape] :
         found == expected.end() ? std::map<std::string, Shape>() : found->second) {
      const auto tensor = std::ranges::find(tensors, name, &PublishedTensor::name);
      ASSERT_NE(tensor, tensors.end()) << name;
      EXPECT_EQ(tensor->shape, shape) << name;
    }
    // The gate's rows are above those that it multiplies.
    if (const auto fused = std::ranges::find(tensors, "model.layers.1.mlp.gate_up_proj.weight",
                                             &PublishedTensor::name);
        fused != tensors.end()) {
      EXPECT_EQ(fused->rows[0].parameter, "blocks.1.mlp.gate.weight");
      EXPECT_EQ(fused->rows[1].parameter, "blocks.1.mlp.up.weight");
    }
  }
}

/// A config.json of the family's usual sizes, with all its keys.
json usual_config(const Family& family) {
  PublishedModel model{.options = family.defaults};
  model.options = nn::resolved(model.options);
  model.family = family.model_type;
  json config = huggingface_config(model, io::StoredType::kFloat32, {}, {});
  const json null;  // as a file may have for any key
  for (const ConfigKey& key : family.keys) {
    if (key.written != Written::kWhereGiven) {
      config[key.name] = key.write(model, &null);
    }
  }
  return config;
}

std::string refusal_of(const json& config) {
  return strata::test::error_of([&] { static_cast<void>(model_read(config)); }, ExitCode::kData);
}

TEST(FamilyKeys, WithValuesThatAreNotComputedAreRefusedByName) {
  const std::set<std::string> switches{"tie_word_embeddings", "bias", "use_parallel_residual"};
  for (const Family& family : families()) {
    SCOPED_TRACE(family.model_type);
    const json usual = usual_config(family);
    EXPECT_EQ(layer_lines(model_read(usual)),
              layer_lines(model_read({{"model_type", family.model_type}})));
    for (const ConfigKey& key : family.keys) {
      if (!key.read) {
        continue;
      }
      std::vector<json> wrong{{{"other", 1}}, "other", -1};
      if (usual.contains(key.name) && usual[key.name].is_boolean() &&
          !switches.contains(key.name)) {
        wrong.emplace_back(!usual[key.name].get<bool>());
      }
      for (const json& value : wrong) {
        json config = usual;
        config[key.name] = value;
        EXPECT_THAT(refusal_of(config), testing::HasSubstr(fmt::format("{} is {}, strata computes",
                                                                       key.name, value.dump())));
      }
    }
    json config = usual;
    config["attention_of_another_kind"] = nullptr;
    EXPECT_THAT(refusal_of(config),
                testing::HasSubstr("attention_of_another_kind is null, a key that strata does not "
                                   "know of " +
                                   std::string(family.model_type)));
  }
  EXPECT_THAT(refusal_of({{"model_type", "bert"}}),
              testing::HasSubstr("model_type is \"bert\", strata computes gpt2, llama, qwen2"));
}

TEST(Composites, KeysAreRefusedUnderTheirNameInTheFile) {
  const json bits{{"bits", 4}};
  const json dynamic{{"rope_type", "dynamic"}, {"factor", 4.0}};
  const std::vector<std::pair<json, std::string>> cases{
      {{{"text_config", nullptr}}, ": text_config is missing, an object that describes the text"},
      {{{"text_config", {1}}}, ": text_config is [1], an object"},
      {{{"text_config", {{"model_type", "gemma2"}}}},
       ": text_config.model_type is \"gemma2\", strata computes gemma3_text"},
      {{{"text_config", {{"model_type", 5}}}}, ": text_config.model_type is 5, strata computes"},
      {{{"text_config", {{"experts", 1}}}},
       ": text_config.experts is 1, a key that strata does not know of gemma3_text"},
      {{{"text_config", {{"text_config", 1}}}}, ": text_config.text_config is 1, a key"},
      {{{"text_config", {{"num_attention_heads", 3}}}},
       ": text_config.num_attention_heads is 3, s"},
      {{{"text_config", {{"head_dim", 3}}}},
       ": text_config.num_attention_heads is missing, strata"},
      {{{"text_config", {{"rope_scaling", dynamic}}}}, ": text_config.rope_scaling is {"},
      {{{"experts", 1}}, ": experts is 1, a key that strata does not know of gemma3;"},
      {{{"hidden_size", 64}}, ": hidden_size is 64, a key that strata does not know of gemma3;"},
      {{{"audio_config", bits}}, ": audio_config is {\"bits\":4}, a key"},
      {{{"quantization_config", bits}}, ": quantization_config is {\"bits\":4}, strata computes"},
      {{{"text_config", {{"quantization_config", bits}}}}, ": text_config.quantization_config is"},
      {{{"is_encoder_decoder", true}}, ": is_encoder_decoder is true, strata computes with false"}};
  for (const auto& [change, expected] : cases) {
    json config{{"model_type", "gemma3"}, {"text_config", {{"num_hidden_layers", 2}}}};
    EXPECT_EQ(model_read(config).options.blocks, 2);
    config.merge_patch(change);
    EXPECT_THAT(refusal_of(config), testing::HasSubstr(expected)) << change;
  }
  // Versions of transformers write other defaults of the whole than those of the text part.
  EXPECT_EQ(model_read({{"model_type", "mistral3"},
                        {"text_config", {{"head_dim", 128}}},
                        {"tie_word_embeddings", true}})
                .options.tied,
            Switch::kOff);
}

TEST(FamilyKeys, OfOtherFamiliesSayWhatIsNotComputed) {
  const json mrope{{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  const json vision{{"vision_config", {{"image_size", 336}}}};
  const std::vector<std::pair<json, std::string>> cases{
      {{{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}}}},
       ": vision_config is {\"image_size\":336}, strata computes texts, without images; model_type "
       "is \"llava\", strata computes gpt2"},
      {{{"model_type", "llama4"}, {"text_config", {{"num_local_experts", 16}}}},
       ": text_config.num_local_experts is 16, strata computes MLPs without experts; model_type is "
       "\"llama4\", strata computes gpt2"},
      {{{"model_type", "qwen2_5_vl"}, {"rope_scaling", mrope}},
       ": rope_scaling is {\"mrope_section\":[16,24,24],\"type\":\"mrope\"}, strata computes "
       "rotary "
       "positions of one number for each token; model_type is \"qwen2_5_vl\""},
      {{{"model_type", "qwen2_vl"}, {"text_config", {{"rope_parameters", mrope}}}},
       ": text_config.rope_parameters is {"},
      {{{"model_type", "mistral3"}, {"text_config", {{"model_type", "ministral3"}}}},
       ": text_config.model_type is \"ministral3\", strata computes mistral"}};
  for (auto [config, expected] : cases) {
    config.update(vision);
    EXPECT_THAT(refusal_of(config), testing::HasSubstr(expected));
  }
  EXPECT_THAT(refusal_of({{"model_type", "qwen3_moe"}, {"num_experts", 128}}),
              testing::AllOf(testing::HasSubstr(": num_experts is 128, strata computes MLPs"),
                             testing::EndsWith(", and the text part of gemma3, mistral3")));
}

TEST(FamilyKeys, WithListsAndRotaryPositionsOfOtherFormsAreRefused) {
  const json windowed = "sliding_attention";
  const json whole = "full_attention";
  const json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 0.7}};
  const json dynamic{{"rope_type", "dynamic"}, {"factor", 4.0}};
  const json linear{{"rope_type", "linear"}, {"factor", 4.0}};
  const json usual{{"rope_type", "default"}, {"rope_theta", 1e4}};
  const json longrope{{"type", "longrope"}, {"long_factor", {1.0}}, {"short_factor", {1.0}}};
  const json no_list{{"type", "longrope"}, {"long_factor", 1.0}, {"short_factor", {{"a", 1.0}}}};
  json scaled = longrope;
  scaled["long_mscale"] = 1.2;
  const std::vector<std::pair<json, std::string>> cases{
      {{{"model_type", "gemma2"}, {"num_hidden_layers", 3}, {"layer_types", {windowed, whole}}},
       "layer_types"},
      {{{"model_type", "gemma2"},
        {"num_hidden_layers", 3},
        {"layer_types", {windowed, whole, whole}}},
       "layer_types"},
      {{{"model_type", "gemma2"},
        {"num_hidden_layers", 2},
        {"sliding_window", nullptr},
        {"layer_types", {windowed, whole}}},
       "layer_types"},
      {{{"model_type", "qwen3"}, {"num_hidden_layers", 2}, {"layer_types", {whole, windowed}}},
       "layer_types"},
      {{{"model_type", "qwen2"}, {"use_sliding_window", true}, {"max_window_layers", 31}},
       "use_sliding_window"},
      {{{"model_type", "smollm3"}, {"num_hidden_layers", 3}, {"no_rope_layers", {1, 0, 0}}},
       "no_rope_layers"},
      {{{"model_type", "smollm3"}, {"num_hidden_layers", 2}, {"no_rope_layers", {0, 0}}},
       "no_rope_layers"},
      {{{"model_type", "phi3"},
        {"rope_scaling", {{"type", "longrope"}, {"long_factor", {1.0}}, {"short_factor", {1.0}}}}},
       "rope_scaling"},
      {{{"model_type", "llama"}, {"hidden_size", 64}, {"rope_scaling", longrope}}, "rope_scaling"},
      {{{"model_type", "phi3"}, {"hidden_size", 128}, {"rope_scaling", longrope}}, "rope_scaling"},
      {{{"model_type", "phi3"},
        {"hidden_size", 64},
        {"original_max_position_embeddings", "many"},
        {"rope_scaling", longrope}},
       "rope_scaling"},
      {{{"model_type", "phi3"}, {"hidden_size", 64}, {"rope_scaling", no_list}}, "rope_scaling"},
      {{{"model_type", "phi3"}, {"hidden_size", 64}, {"rope_scaling", scaled}}, "rope_scaling"},
      {{{"model_type", "phi3"}, {"partial_rotary_factor", 0.71}}, "partial_rotary_factor"},
      {{{"model_type", "qwen2"}, {"rope_scaling", yarn}}, "rope_scaling"},
      {{{"model_type", "qwen2"}, {"rope_scaling", dynamic}}, "rope_scaling"},
      {{{"model_type", "gemma3_text"},
        {"rope_parameters", {{whole, {{"rope_type", "default"}}}, {windowed, yarn}}}},
       "rope_parameters"},
      // What an older key beside it says otherwise.
      {{{"model_type", "qwen3"}, {"rope_scaling", linear}, {"rope_parameters", usual}},
       "rope_parameters"},
      {{{"model_type", "llama"}, {"rope_theta", 5e5}, {"rope_parameters", usual}},
       "rope_parameters"},
      {{{"model_type", "phi3"},
        {"partial_rotary_factor", 0.5},
        {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.75}}}},
       "rope_parameters"},
      {{{"model_type", "gpt_neox"}, {"rope_theta", 5e5}, {"rope_parameters", usual}},
       "rope_parameters"},
      {{{"model_type", "gpt_neox"}, {"rotary_emb_base", 20000}, {"rope_theta", 10000}},
       "rope_theta"},
      {{{"model_type", "gpt_neox"}, {"rotary_pct", 0.25}, {"partial_rotary_factor", 0.5}},
       "partial_rotary_factor"},
      {{{"model_type", "gemma3_text"},
        {"rope_local_base_freq", 1e3},
        {"rope_parameters", {{whole, usual}, {windowed, usual}}}},
       "rope_parameters"},
      {{{"model_type", "llama"}, {"num_key_value_heads", 5}}, "num_attention_heads"},
      {{{"model_type", "llama"}, {"head_dim", 5}}, "num_attention_heads"},
      {{{"model_type", "gpt2"}, {"n_embd", 100}}, "n_head"}};
  for (const auto& [config, key] : cases) {
    EXPECT_THAT(refusal_of(config), testing::HasSubstr(": " + key + " is ")) << config;
  }
}

TEST(FamilyKeys, OfOtherFormsSayTheSame) {
  const auto lines_of = [](json config, const json& changes) {
    config.update(changes);
    return layer_lines(model_read(config));
  };
  const json gemma{{"model_type", "gemma3_text"}, {"num_hidden_layers", 7}};
  const json smollm{{"model_type", "smollm3"}, {"num_hidden_layers", 5}};
  const json qwen{{"model_type", "qwen2"}};
  const std::string local = "sliding_attention";
  const std::string global = "full_attention";
  EXPECT_EQ(
      lines_of({{"model_type", "gpt2"}}, {{"n_special", 0}, {"predict_special_tokens", true}}),
      lines_of({{"model_type", "gpt2"}}, json::object()));
  EXPECT_EQ(
      lines_of({{"model_type", "gpt_neox"}},
               {{"partial_rotary_factor", 0.5}, {"rope_theta", 20000}}),
      lines_of({{"model_type", "gpt_neox"}}, {{"rotary_pct", 0.5}, {"rotary_emb_base", 20000}}));
  EXPECT_EQ(lines_of({{"model_type", "llama"}}, {{"max_sequence_length", 2048}}),
            lines_of({{"model_type", "llama"}}, json::object()));
  EXPECT_EQ(lines_of({{"model_type", "gemma2"}}, {{"sliding_window_size", 4096}}),
            lines_of({{"model_type", "gemma2"}}, json::object()));
  EXPECT_EQ(
      lines_of(gemma, {{"rope_parameters",
                        {{global, {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                         {local, {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}}),
      lines_of(gemma, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}));
  // Bases that rope_parameters lacks are those of the older keys.
  const json usual{{"rope_type", "default"}};
  EXPECT_EQ(lines_of(gemma, {{"rope_parameters", {{global, usual}, {local, usual}}}}),
            lines_of(gemma, json::object()));
  EXPECT_EQ(lines_of(gemma, {{"rope_theta", 1e5},
                             {"rope_local_base_freq", 1e3},
                             {"rope_parameters", {{global, usual}, {local, usual}}}}),
            lines_of(gemma, {{"rope_theta", 1e5}, {"rope_local_base_freq", 1e3}}));
  EXPECT_EQ(lines_of(gemma, {{"layer_types", {local, local, global, local, local, global, local}}}),
            lines_of(gemma, {{"sliding_window_pattern", 3}}));
  EXPECT_NE(lines_of(gemma, {{"sliding_window_pattern", 3}}), lines_of(gemma, json::object()));
  EXPECT_EQ(lines_of(smollm, {{"no_rope_layers", {1, 0, 1, 0, 1}}}),
            lines_of(smollm, {{"no_rope_layer_interval", 2}}));
  EXPECT_EQ(lines_of(qwen, {{"use_sliding_window", true}, {"max_window_layers", 32}}),
            lines_of(qwen, json::object()));
  EXPECT_EQ(
      lines_of({{"model_type", "mistral"}}, {{"sliding_window", nullptr}}),
      lines_of({{"model_type", "mistral"}}, {{"sliding_window", nullptr}, {"head_dim", 128}}));
  json yarn{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const auto short_form = lines_of(qwen, {{"rope_scaling", yarn}});
  EXPECT_THAT(short_form[1], testing::HasSubstr(" rotary_scaling=yarn:4:32768"));
  yarn.update({{"beta_fast", 32.0}, {"beta_slow", 1}, {"attention_factor", nullptr}});
  EXPECT_EQ(lines_of(qwen, {{"rope_scaling", yarn}}), short_form);
  yarn.erase("original_max_position_embeddings");
  EXPECT_EQ(lines_of(qwen, {{"rope_scaling", yarn}, {"max_position_embeddings", 32768}}),
            short_form);
  // With or without what follows from Phi-3's contexts, and in the form of newer files.
  const json phi{{"model_type", "phi3"}, {"hidden_size", 128}, {"max_position_embeddings", 131072}};
  const json pairs{{"short_factor", {1.0, 1.5}}, {"long_factor", {2, 3.5}}};
  json longrope = pairs;
  longrope["type"] = "longrope";
  const auto long_lines = lines_of(phi, {{"rope_scaling", longrope}});
  EXPECT_THAT(long_lines[1], testing::HasSubstr(" rotary_scaling=longrope:32:4096:1,1.5:2,3.5 "));
  longrope = pairs;
  longrope.update({{"rope_type", "longrope"},
                   {"factor", 32.0},
                   {"rope_theta", 1e4},
                   {"original_max_position_embeddings", 4096}});
  EXPECT_EQ(lines_of(phi, {{"rope_parameters", longrope}, {"original_max_position_embeddings", 1}}),
            long_lines);
  longrope["attention_factor"] = 1.5;
  EXPECT_THAT(lines_of(phi, {{"rope_scaling", longrope}})[1],
              testing::HasSubstr("longrope:32:4096:1,1.5:2,3.5:1.5 "));
  longrope.erase("attention_factor");
  EXPECT_EQ(
      lines_of({{"model_type", "llama"}, {"hidden_size", 128}}, {{"rope_scaling", longrope}})[1]
          .substr(0, 60),
      "attention 32 rotary=10000 rotary_scaling=longrope:32:4096:1,");
  EXPECT_THAT(lines_of({{"model_type", "gpt_neox"}}, {{"use_parallel_residual", false}})[2],
              testing::Not(testing::HasSubstr("parallel_residual")));
  EXPECT_THAT(lines_of({{"model_type", "gemma2"}}, {{"query_pre_attn_scalar", 144}})[1],
              testing::HasSubstr(" scale=0.08333333333333333 "));
  EXPECT_THAT(lines_of({{"model_type", "phi3"}}, {{"partial_rotary_factor", 0.75}})[1],
              testing::HasSubstr(" rotary_share=0.75 "));
}

TEST(FamilyOf, IsTheOneThatAModelCameAsOrTheFirstThatWritesIt) {
  const PublishedModel llama = from_lines(model_read({{"model_type", "llama"}}));
  EXPECT_EQ(family_of(llama), "llama");
  EXPECT_EQ(family_of(llama, "phi3"), "phi3");
  EXPECT_EQ(family_of(llama, "qwen2"), "llama");  // which has biases
  EXPECT_EQ(family_of(llama, "bert"), "llama");
  PublishedModel windowed = llama;
  windowed.options.attention_window = 512;
  EXPECT_EQ(family_of(windowed, "llama"), "mistral");
  // What only the other family's file may say is left out.
  windowed.family = "mistral";
  const json config = huggingface_config(
      windowed, io::StoredType::kFloat32, {},
      {{"config.json",
        json{{"model_type", "llama"}, {"mlp_bias", false}, {"eos_token_id", 2}}.dump()}});
  EXPECT_FALSE(config.contains("mlp_bias"));
  EXPECT_EQ(config.at("eos_token_id"), 2);
  EXPECT_EQ(layer_lines(model_read(config)), layer_lines(windowed));
  // Blocks that alternate in no family.
  windowed.options.family.unrotated_every = 3;
  EXPECT_THAT(
      strata::test::error_of([&] { static_cast<void>(family_of(windowed)); }, ExitCode::kUsage),
      testing::AllOf(testing::HasSubstr("is of none of the families gpt2, llama"),
                     testing::HasSubstr(".2.attention"), testing::HasSubstr("where mistral has")));
}

TEST(FamilyOf, OtherHeadSizesThanTheWidthsShareAreWritten) {
  for (const auto& [preset, head_size] : {std::pair{nn::Preset::kGemma3B1, json(256)},
                                          {nn::Preset::kQwen3B06, json(128)},
                                          {nn::Preset::kQwen3B8, json()},
                                          {nn::Preset::kLlama3B8, json()}}) {
    PublishedModel model{.options = nn::resolved({.preset = preset})};
    model.family = family_of(model);
    const json config = huggingface_config(model, io::StoredType::kFloat32, {}, {});
    EXPECT_EQ(config.value("head_dim", json()), head_size) << name_of(preset);
  }
}

TEST(FamilyOf, LongropeOfOtherContextsIsWritten) {
  json config = json::parse(published_cases()[12].config);
  const PublishedModel published = model_read(config);
  const auto written = [](const PublishedModel& model) {
    return huggingface_config(model, io::StoredType::kFloat32, {}, {});
  };
  // Shorter samples change nothing; longer ones would raise the factor that follows from contexts.
  for (const std::int64_t context : {4096, 1024, 262144}) {
    PublishedModel model = published;
    model.options.context = context;
    const json out = written(model);
    EXPECT_EQ(out.at("max_position_embeddings"), std::max<std::int64_t>(context, 131072));
    EXPECT_EQ(out.at("rope_scaling").size(), context == 262144 ? 4U : 3U);
    EXPECT_TRUE(have_same_weights(layer_lines(model_read(out)), layer_lines(model)));
    EXPECT_EQ(family_of(model), "phi3");
  }
}

TEST(FamilyOf, EveryOptionIsReadFromTheLines) {
  for (const Family& family : families()) {
    PublishedModel model{.options = family.defaults};
    nn::TransformerOptions& o = model.options;
    o.blocks = 7;
    o.context = 48;
    o.vocabulary = 96;
    o.family.head_size = 80;
    o.family.logit_softcap = 20.0;
    o.family.attention_softcap = 30.0;
    o.family.attention_scale = 0.3;
    o.family.embedding_scale = o.positions == nn::PositionChoice::kLearned ? 1.0 : 1.7;
    if (o.positions == nn::PositionChoice::kRotary) {
      o.attention_window = 5;
      o.family.global_every = 3;
      o.family.local_rotary_base = 777.0;
      o.family.unrotated_every = 4;
      o.family.rotary_share = 0.5;
      o.rotary_scaling = {.kind = ops::RotaryScalingKind::kLinear, .factor = 2.0};
    }
    o = nn::resolved(o);
    EXPECT_EQ(from_lines(model), model) << family.model_type;
  }
}

}  // namespace
}  // namespace strata::exchange::test::families_test
