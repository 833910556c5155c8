#include "families.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::exchange {
namespace {

using Options = nn::TransformerOptions;
using nn::FamilyOptions;

/// Of all families: token ids, dtypes, training, generation, heads of other tasks, and which
/// program wrote the file.
constexpr std::string_view kIgnoredKeys = R"(
architectures model_type transformers_version transformers.js_config unsloth_fixed unsloth_version
_name_or_path name_or_path _commit_hash auto_map torch_dtype dtype torchscript use_bfloat16
use_cache cache_implementation _attn_implementation _attn_implementation_autoset
attn_implementation use_flash_attn
bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id
initializer_range attention_dropout gradient_checkpointing pretraining_tp chunk_size_feed_forward
output_attentions output_hidden_states output_scores return_dict return_dict_in_generate is_decoder
tokenizer_class prefix task_specific_params finetuning_task problem_type num_labels id2label
label2id classifier_dropout tie_encoder_decoder cross_attention_hidden_size tf_legacy_loss
max_length min_length max_new_tokens min_new_tokens do_sample early_stopping num_beams
num_beam_groups diversity_penalty temperature top_k top_p min_p typical_p repetition_penalty
length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
suppress_tokens begin_suppress_tokens)";

constexpr std::array kComposites{
    Composite{.model_type = "gemma3",
              .family = "gemma3_text",
              .ignored = "mm_tokens_per_image boi_token_index boi_token_id eoi_token_index "
                         "eoi_token_id"},
    Composite{.model_type = "mistral3",
              .family = "mistral",
              .ignored = "multimodal_projector_bias projector_hidden_act spatial_merge_size "
                         "vision_feature_layer"}};

/// Of all composites. Whether the head is tied is a key of the text part: versions of transformers
/// write a default of their own beside it.
constexpr std::string_view kKeysOfComposites =
    "text_config vision_config image_token_index image_token_id tie_word_embeddings";

/// How names of tensors of the other parts begin, also behind "model.".
constexpr std::array<std::string_view, 2> kOtherParts{"vision_tower", "multi_modal_projector"};

using Keys = std::vector<ConfigKey>;

bool has_word(std::string_view words, std::string_view word) {
  const std::vector<std::string> all = split_words(words, " \n");
  return std::ranges::find(all, word) != all.end();
}

Keys joined(Keys keys, Keys more) {
  keys.insert(keys.end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
  return keys;
}

/// What no family of the table has.
Keys absent() {
  return {
      fixed("quantization_config", nullptr, "with floating-point weights, null; convert the model"),
      fixed("pruned_heads", nlohmann::json::object(), "with all heads, {}"),
      fixed("per_layer_config", nullptr, "with layers of one form, null"),
      fixed("is_encoder_decoder", false), fixed("add_cross_attention", false)};
}

/// The keys of Llama and of families with its names; `own` come after the sizes.
Keys decoder_keys(Keys own, RotaryForm rotary = RotaryForm::kWhole) {
  Keys keys{count("num_hidden_layers", &Options::blocks, Null::kDefault, kMostBlocks),
            width("hidden_size"),
            count("num_key_value_heads", &Options::kv_heads, Null::kNone),
            head_size("head_dim"),
            heads("num_attention_heads"),
            count("intermediate_size", &Options::hidden),
            longest_context("max_position_embeddings"),
            count("vocab_size", &Options::vocabulary),
            positive("rms_norm_eps", &Options::epsilon),
            switched("tie_word_embeddings", &Options::tied)};
  return joined(joined(joined(std::move(keys), rotary_keys(rotary)), std::move(own)), absent());
}

ConfigKey silu() {
  return activation("hidden_act", {{"silu", nn::MlpKind::kSwiglu}});
}

ConfigKey no_window() {
  return fixed("sliding_window", nullptr, "attention to all earlier tokens, null");
}

ConfigKey window() {
  return count("sliding_window", &Options::attention_window, Null::kNone);
}

Keys qwen_keys(Keys own) {
  return decoder_keys(joined({silu(), unused_window(), layer_types()}, std::move(own)));
}

Keys gemma_keys(Keys own, RotaryForm rotary) {
  return decoder_keys(
      joined({activation("hidden_activation", {{"gelu_pytorch_tanh", nn::MlpKind::kGeglu}}),
              fixed("hidden_act", "gelu_pytorch_tanh", "gelu_pytorch_tanh"),
              query_scalar("query_pre_attn_scalar", 256.0), window(),
              positive("final_logit_softcapping", &FamilyOptions::logit_softcap, Null::kNone),
              fixed("attention_bias", false), fixed("use_bidirectional_attention", false)},
             joined(std::move(own), {layer_types()})),
      rotary);
}

Keys gpt2_keys() {
  // Settings of training, like those of generation: without any here, they stay.
  const auto dropout = [](const PublishedModel& model, const nlohmann::json* given) {
    const double probability = model.options.dropout;
    return probability > 0.0 || given == nullptr ? nlohmann::json(probability) : *given;
  };
  Keys keys{
      count("n_layer", &Options::blocks, Null::kDefault, kMostBlocks), width("n_embd"),
      heads("n_head"), count("n_inner", &Options::hidden, Null::kNone),
      count("n_positions", &Options::context), count("vocab_size", &Options::vocabulary),
      activation("activation_function", {{"gelu_new", nn::MlpKind::kGelu},
                                         {"gelu_pytorch_tanh", nn::MlpKind::kGelu},
                                         {"gelu", nn::MlpKind::kGeluErf},
                                         {"relu", nn::MlpKind::kRelu}}),
      positive("layer_norm_epsilon", &Options::epsilon),
      switched("tie_word_embeddings", &Options::tied),
      // Of nanoGPT's models, as torch_to_safetensors.py writes it; Hugging Face's have biases.
      switched("bias", &Options::bias, Written::kWhereNeeded), fixed("scale_attn_weights", true),
      fixed("scale_attn_by_inverse_layer_idx", false),
      only_written("n_ctx",
                   [](const PublishedModel& model, const nlohmann::json*) {
                     return nlohmann::json(model.options.context);
                   }),
      only_written("embd_pdrop", dropout), only_written("resid_pdrop", dropout),
      only_written("attn_pdrop", [](const PublishedModel&, const nlohmann::json* given) {
        return given == nullptr ? nlohmann::json(0.0) : *given;
      })};
  return joined(std::move(keys), absent());
}

Keys neox_keys() {
  Keys keys{count("num_hidden_layers", &Options::blocks, Null::kDefault, kMostBlocks),
            width("hidden_size"),
            heads("num_attention_heads"),
            count("intermediate_size", &Options::hidden),
            longest_context("max_position_embeddings"),
            count("vocab_size", &Options::vocabulary),
            activation("hidden_act", {{"gelu", nn::MlpKind::kGeluErf},
                                      {"gelu_new", nn::MlpKind::kGelu},
                                      {"gelu_fast", nn::MlpKind::kGelu},
                                      {"gelu_pytorch_tanh", nn::MlpKind::kGelu},
                                      {"relu", nn::MlpKind::kRelu}}),
            positive("layer_norm_eps", &Options::epsilon),
            switched("tie_word_embeddings", &Options::tied),
            switched("use_parallel_residual", &FamilyOptions::parallel_residual),
            fixed("attention_bias", true)};
  return joined(joined(std::move(keys), rotary_keys(RotaryForm::kNeox)), absent());
}

/// A family of RMS norms, rotary positions, gated MLPs and no biases but those of `options`.
Options decoder(Options options, double epsilon = 1e-6) {
  options.epsilon = epsilon;
  options.preset = nn::Preset::kGpt;
  options.norm = nn::NormChoice::kRmsNorm;
  options.positions = nn::PositionChoice::kRotary;
  options.mlp = options.mlp.value_or(nn::MlpKind::kSwiglu);
  options.rotary_base = options.rotary_base > 0.0 ? options.rotary_base : 10000.0;
  options.bias = Switch::kOff;
  options.tied = options.tied.value_or(Switch::kOff);
  return options;
}

/// Gemma 2's sizes, with what both generations compute.
Options gemma(Options options) {
  options.blocks = 26;
  options.width = 2304;
  options.heads = 8;
  options.kv_heads = 4;
  options.hidden = 9216;
  options.mlp = nn::MlpKind::kGeglu;
  options.tied = Switch::kOn;
  options.attention_window = 4096;
  FamilyOptions& f = options.family;
  f.head_size = 256;
  f.norm_places = nn::NormPlaces::kBoth;
  f.unit_offset = Switch::kOn;
  f.embedding_scale = std::sqrt(2304.0);
  return options;
}

using Names = std::vector<TensorName>;

const std::string kAttention = "blocks.N.attention.";
const std::string kMlp = "blocks.N.mlp.";

/// Queries, keys and values in one tensor.
TensorName joined_heads(const std::string& name) {
  const std::string qkv = kAttention + "qkv";
  return {name,
          {{qkv, TensorRows::kQueries}, {qkv, TensorRows::kKeys}, {qkv, TensorRows::kValues}}};
}

Names gpt2_names() {
  return {{"transformer.wte", {{"embedding.tokens"}}},
          {"transformer.wpe", {{"embedding.positions"}}},
          {"transformer.h.N.ln_1", {{kAttention + "norm"}}},
          joined_heads("transformer.h.N.attn.c_attn"),
          {"transformer.h.N.attn.c_proj", {{kAttention + "output"}}},
          {"transformer.h.N.ln_2", {{kMlp + "norm"}}},
          {"transformer.h.N.mlp.c_fc", {{kMlp + "up"}}},
          {"transformer.h.N.mlp.c_proj", {{kMlp + "down"}}},
          {"transformer.ln_f", {{"norm"}}},
          {"lm_head", {{"head"}}}};
}

/// The rows of query_key_value are, for each head, its query, its key and its value, as strata's.
Names neox_names() {
  const std::string layer = "gpt_neox.layers.N.";
  return {{"gpt_neox.embed_in", {{"embedding.tokens"}}},
          {layer + "input_layernorm", {{kAttention + "norm"}}},
          {layer + "attention.query_key_value", {{kAttention + "qkv"}}},
          {layer + "attention.dense", {{kAttention + "output"}}},
          {layer + "post_attention_layernorm", {{kMlp + "norm"}}},
          {layer + "mlp.dense_h_to_4h", {{kMlp + "up"}}},
          {layer + "mlp.dense_4h_to_h", {{kMlp + "down"}}},
          {"gpt_neox.final_layer_norm", {{"norm"}}},
          {"embed_out", {{"head"}}}};
}

/// Where the names of a decoder's norms and products differ.
enum class DecoderNames {
  kLlama,
  kPostNorms,  ///< post_attention_layernorm is of attention's output
  kFused       ///< Llama's norms; products of one input in one tensor
};

Names decoder_names(DecoderNames form = DecoderNames::kLlama) {
  const std::string layer = "model.layers.N.";
  const std::string qkv = kAttention + "qkv";
  const bool fused = form == DecoderNames::kFused;
  const bool post = form == DecoderNames::kPostNorms;
  Names names{{"model.embed_tokens", {{"embedding.tokens"}}},
              {layer + "input_layernorm", {{kAttention + "norm"}}}};
  const auto add = [&](Names more) {
    names.insert(names.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  if (fused) {
    add({joined_heads(layer + "self_attn.qkv_proj")});
  } else {
    add({{layer + "self_attn.q_proj", {{qkv, TensorRows::kQueries}}},
         {layer + "self_attn.k_proj", {{qkv, TensorRows::kKeys}}},
         {layer + "self_attn.v_proj", {{qkv, TensorRows::kValues}}}});
  }
  add({{layer + "self_attn.q_norm", {{kAttention + "q_norm"}}},
       {layer + "self_attn.k_norm", {{kAttention + "k_norm"}}},
       {layer + "self_attn.o_proj", {{kAttention + "output"}}},
       {layer + "post_attention_layernorm", {{post ? kAttention + "post_norm" : kMlp + "norm"}}}});
  if (post) {
    add({{layer + "pre_feedforward_layernorm", {{kMlp + "norm"}}},
         {layer + "post_feedforward_layernorm", {{kMlp + "post_norm"}}}});
  }
  if (fused) {
    add({{layer + "mlp.gate_up_proj", {{kMlp + "gate"}, {kMlp + "up"}}}});
  } else {
    add({{layer + "mlp.gate_proj", {{kMlp + "gate"}}}, {layer + "mlp.up_proj", {{kMlp + "up"}}}});
  }
  add({{layer + "mlp.down_proj", {{kMlp + "down"}}},
       {"model.norm", {{"norm"}}},
       {"lm_head", {{"head"}}}});
  return names;
}

std::vector<Family> make_families() {
  std::vector<Family> table;
  table.push_back(
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .defaults = {.preset = nn::Preset::kGpt,
                    .blocks = 12,
                    .width = 768,
                    .heads = 12,
                    .context = 1024,
                    .vocabulary = 50257,
                    .norm = nn::NormChoice::kLayerNorm,
                    .mlp = nn::MlpKind::kGelu,
                    .positions = nn::PositionChoice::kLearned,
                    .bias = Switch::kOn,
                    .tied = Switch::kOn},
       .keys = gpt2_keys(),
       .ignored = "reorder_and_upcast_attn summary_type summary_use_proj summary_activation "
                  "summary_proj_to_labels summary_first_dropout n_special predict_special_tokens "
                  "output_past _num_labels",
       .tensors = gpt2_names(),
       .linear = MatrixOrder::kInputsFirst});
  table.push_back({.model_type = "llama",
                   .architecture = "LlamaForCausalLM",
                   .defaults = decoder({.blocks = 32,
                                        .width = 4096,
                                        .heads = 32,
                                        .hidden = 11008,
                                        .context = 2048,
                                        .vocabulary = 32000}),
                   .keys = decoder_keys({silu(), no_window(), fixed("rope_interleaved", false),
                                         fixed("attention_bias", false, Written::kAlways),
                                         fixed("mlp_bias", false, Written::kAlways)}),
                   .ignored = "is_llama_config max_sequence_length",
                   .tensors = decoder_names()});
  table.push_back({.model_type = "qwen2",
                   .architecture = "Qwen2ForCausalLM",
                   .defaults = decoder({.blocks = 32,
                                        .width = 4096,
                                        .heads = 32,
                                        .kv_heads = 32,
                                        .hidden = 22016,
                                        .context = 32768,
                                        .vocabulary = 151936,
                                        .family = {.qkv_bias = Switch::kOn}}),
                   .keys = qwen_keys({fixed("use_mrope", false)}),
                   .ignored = "sliding_window max_window_layers",
                   .tensors = decoder_names()});
  table.push_back(
      {.model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .defaults = decoder({.blocks = 32,
                            .width = 4096,
                            .heads = 32,
                            .kv_heads = 32,
                            .hidden = 22016,
                            .context = 32768,
                            .vocabulary = 151936,
                            .family = {.head_size = 128, .qk_norm = nn::QkNorm::kHead}}),
       .keys = qwen_keys({fixed("attention_bias", false)}),
       .ignored = "sliding_window max_window_layers",
       .tensors = decoder_names()});
  table.push_back({.model_type = "mistral",
                   .architecture = "MistralForCausalLM",
                   .defaults = decoder({.blocks = 32,
                                        .width = 4096,
                                        .heads = 32,
                                        .kv_heads = 8,
                                        .hidden = 14336,
                                        .context = 131072,
                                        .vocabulary = 32000,
                                        .attention_window = 4096}),
                   .keys = decoder_keys({silu(), window(), fixed("attention_bias", false)}),
                   .ignored = "",
                   .tensors = decoder_names()});
  table.push_back({.model_type = "smollm3",
                   .architecture = "SmolLM3ForCausalLM",
                   .defaults = decoder({.blocks = 36,
                                        .width = 2048,
                                        .heads = 16,
                                        .kv_heads = 4,
                                        .hidden = 11008,
                                        .context = 32768,
                                        .vocabulary = 128256,
                                        .rotary_base = 2e6,
                                        .tied = Switch::kOn,
                                        .family = {.unrotated_every = 4}}),
                   .keys = decoder_keys(
                       {silu(), interval("no_rope_layer_interval", &FamilyOptions::unrotated_every),
                        no_rope_layers(), fixed("use_sliding_window", false), layer_types(),
                        fixed("attention_bias", false), fixed("mlp_bias", false)}),
                   .ignored = "sliding_window max_window_layers",
                   .tensors = decoder_names()});
  table.push_back(
      {.model_type = "gemma2",
       .architecture = "Gemma2ForCausalLM",
       .defaults = decoder(gemma(
           {.context = 8192,
            .vocabulary = 256000,
            .family = {.attention_softcap = 50.0, .logit_softcap = 30.0, .global_every = 2}})),
       .keys = gemma_keys(
           {positive("attn_logit_softcapping", &FamilyOptions::attention_softcap, Null::kNone)},
           RotaryForm::kWhole),
       .ignored = "sliding_window_size",
       .tensors = decoder_names(DecoderNames::kPostNorms)});
  table.push_back(
      {.model_type = "gemma3_text",
       .architecture = "Gemma3ForCausalLM",
       .defaults = decoder(gemma({.context = 131072,
                                  .vocabulary = 262208,
                                  .rotary_base = 1e6,
                                  .family = {.qk_norm = nn::QkNorm::kHead,
                                             .global_every = 6,
                                             .local_rotary_base = 10000.0}})),
       .keys = gemma_keys({fixed("attn_logit_softcapping", nullptr, "scores without a bound, null"),
                           interval("sliding_window_pattern", &FamilyOptions::global_every),
                           interval("_sliding_window_pattern", &FamilyOptions::global_every)},
                          RotaryForm::kTwoBases),
       .ignored = "",
       .tensors = decoder_names(DecoderNames::kPostNorms)});
  table.push_back({.model_type = "olmo2",
                   .architecture = "Olmo2ForCausalLM",
                   .defaults = decoder({.blocks = 32,
                                        .width = 4096,
                                        .heads = 32,
                                        .hidden = 11008,
                                        .context = 2048,
                                        .vocabulary = 50304,
                                        .family = {.qk_norm = nn::QkNorm::kWidth,
                                                   .norm_places = nn::NormPlaces::kAfter}},
                                       1e-5),
                   .keys = decoder_keys({silu(), fixed("attention_bias", false)}),
                   .ignored = "",
                   .tensors = decoder_names(DecoderNames::kPostNorms)});
  table.push_back(
      {.model_type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .defaults = decoder({.blocks = 32,
                            .width = 3072,
                            .heads = 32,
                            .hidden = 8192,
                            .context = 4096,
                            .vocabulary = 32064},
                           1e-5),
       .keys = decoder_keys({silu(), window(), fixed("attention_bias", false),
                             fixed("mlp_bias", false), fixed("lm_head_bias", false),
                             fixed("full_attn_mod", 1, "1"), fixed("interpolate_factor", 1, "1")},
                            RotaryForm::kShare),
       .ignored = "embd_pdrop resid_pdrop",
       .tensors = decoder_names(DecoderNames::kFused)});
  table.push_back({.model_type = "gpt_neox",
                   .architecture = "GPTNeoXForCausalLM",
                   .defaults = {.preset = nn::Preset::kGpt,
                                .blocks = 44,
                                .width = 6144,
                                .heads = 64,
                                .hidden = 24576,
                                .context = 2048,
                                .vocabulary = 50432,
                                .norm = nn::NormChoice::kLayerNorm,
                                .mlp = nn::MlpKind::kGeluErf,
                                .positions = nn::PositionChoice::kRotary,
                                .rotary_base = 10000.0,
                                .bias = Switch::kOn,
                                .tied = Switch::kOff,
                                .family = {.rotary_share = 0.25, .parallel_residual = Switch::kOn}},
                   .keys = neox_keys(),
                   .ignored = "hidden_dropout",
                   .tensors = neox_names()});
  return table;
}

std::string model_types(const auto& table) {
  std::string names;
  for (const auto& row : table) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.model_type);
  }
  return names;
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> kTable = make_families();
  return kTable;
}

std::string family_names() {
  return model_types(families());
}

std::string composite_names() {
  return model_types(kComposites);
}

const Family& row_of(const PublishedModel& model) {
  const Family* const row = find_family(model.family.empty() ? family_of(model) : model.family);
  require(row != nullptr, "{} is no family", model.family);
  return *row;
}

const Family* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(families(), model_type, &Family::model_type);
  return found == families().end() ? nullptr : &*found;
}

bool is_ignored(const Family& family, std::string_view key) {
  return has_word(kIgnoredKeys, key) || has_word(family.ignored, key);
}

const Composite* find_composite(std::string_view model_type) {
  const auto* const found = std::ranges::find(kComposites, model_type, &Composite::model_type);
  return found == kComposites.end() ? nullptr : found;
}

bool is_ignored(const Composite& composite, std::string_view key) {
  return has_word(kKeysOfComposites, key) || has_word(composite.ignored, key);
}

bool is_common(std::string_view key) {
  static const Keys kAbsent = absent();
  return has_word(kIgnoredKeys, key) ||
         std::ranges::find(kAbsent, key, &ConfigKey::name) != kAbsent.end();
}

std::vector<std::string> names_in_files(const PublishedModel& model, const std::string& name) {
  std::string without_base = name;
  for (const std::string_view base : {"transformer.", "model.", "gpt_neox."}) {
    if (name.starts_with(base)) {
      without_base = name.substr(base.size());
    }
  }
  if (model.part_of.empty()) {
    return {name, without_base};
  }
  // Up to version 4.51 of transformers, and from 4.52 on, where the head has its own name.
  return {"language_model." + name, "model.language_model." + without_base, name};
}

std::string_view other_part(const PublishedModel& model, std::string_view name) {
  constexpr std::string_view kBase = "model.";
  name.remove_prefix(name.starts_with(kBase) ? kBase.size() : 0);
  const std::string_view first = name.substr(0, name.find('.'));
  const bool is_other = !model.part_of.empty() &&
                        std::ranges::find(kOtherParts, first) != kOtherParts.end() && first != name;
  return is_other ? first : std::string_view();
}

}  // namespace strata::exchange
