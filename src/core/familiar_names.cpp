#include "strata/core/familiar_names.hpp"

#include <algorithm>

#include "strata/core/text.hpp"

// The names that people type, long because it is one table for settings, layers, values, options
// and commands: a name leads to those of its rows that are among the candidates.
namespace strata {
namespace {

struct FamiliarName {
  std::string_view typed;  ///< names that are spelt alike without case, '-' and '_' have one row
  std::string_view ours;
  std::string_view value = {};  ///< in place of the one that was given
};

constexpr FamiliarName kFamiliarNames[] = {
    // Settings: model.
    {"model", "model.preset"},
    {"model_name", "model.preset"},
    {"model_type", "model.preset"},
    {"arch", "model.preset"},
    {"architecture", "model.preset"},
    {"network", "model.layer"},
    {"layers", "model.layer"},
    {"n_embd", "model.width"},
    {"d_model", "model.width"},
    {"dim", "model.width"},
    {"hidden_size", "model.width"},
    {"hidden_dim", "model.width"},
    {"embed_dim", "model.width"},
    {"embedding_dim", "model.width"},
    {"embedding_size", "model.width"},
    {"n_layer", "model.blocks"},
    {"n_layers", "model.blocks"},
    {"num_layers", "model.blocks"},
    {"num_hidden_layers", "model.blocks"},
    {"depth", "model.blocks"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_kv_head", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"num_kv_heads", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"intermediate_size", "model.hidden"},
    {"ffn_hidden_size", "model.hidden"},
    {"ffn_dim", "model.hidden"},
    {"d_ff", "model.hidden"},
    {"block_size", "model.context"},
    {"seq_len", "model.context"},
    {"seq_length", "model.context"},
    {"sequence_length", "model.context"},
    {"max_seq_len", "model.context"},
    {"max_length", "model.context"},
    {"context_length", "model.context"},
    {"context_size", "model.context"},
    {"n_ctx", "model.context"},
    {"n_positions", "model.context"},
    {"max_position_embeddings", "model.context"},
    {"vocab_size", "model.vocabulary"},
    {"tie_weights", "model.tied"},
    {"tie_word_embeddings", "model.tied"},
    {"rope_theta", "model.rotary_base"},
    {"rope_scaling", "model.rotary_scaling"},
    {"sliding_window", "model.attention_window"},
    {"reset_attention_mask", "model.attention_mask", "document"},
    {"reset_position_ids", "model.reset_positions", "on"},
    {"criterion", "model.loss"},
    {"loss_fn", "model.loss"},
    {"sync_bn", "model.sync_batch_norm"},
    {"lora_r", "lora.rank"},
    {"r", "lora.rank"},
    {"lora_rank", "lora.rank"},
    {"lora_alpha", "lora.alpha"},
    {"target_modules", "lora.products"},
    // Settings: data and batch.
    {"data", "data.train"},
    {"dataset", "data.train"},
    {"data_dir", "data.train"},
    {"data_path", "data.train"},
    {"train_data", "data.train"},
    {"train_dataset", "data.train"},
    {"train_file", "data.train"},
    {"train_path", "data.train"},
    {"data.training", "data.train"},
    {"val", "data.test"},
    {"valid", "data.test"},
    {"validation", "data.test"},
    {"eval_data", "data.test"},
    {"test_data", "data.test"},
    {"test_file", "data.test"},
    {"val_data", "data.test"},
    {"valid_data", "data.test"},
    {"validation_data", "data.test"},
    {"validation_file", "data.test"},
    {"sample_packing", "data.packing", "best-fit"},
    {"normalize", "data.normalise"},
    {"normalization", "data.normalise"},
    {"horizontal_flip", "data.flip"},
    {"random_flip", "data.flip"},
    {"hflip", "data.flip"},
    {"random_crop", "data.crop_padding"},
    {"num_workers", "data.reader_threads"},
    {"workers", "data.reader_threads"},
    {"dataloader_num_workers", "data.reader_threads"},
    {"batch", "batch.global"},
    {"batch_size", "batch.global"},
    {"bs", "batch.global"},
    {"train_batch_size", "batch.global"},
    {"global_batch_size", "batch.global"},
    {"total_batch_size", "batch.global"},
    {"micro_batch", "batch.micro"},
    {"micro_batch_size", "batch.micro"},
    {"mbs", "batch.micro"},
    {"device_batch_size", "batch.micro"},
    {"per_device_batch_size", "batch.micro"},
    {"per_device_train_batch_size", "batch.micro"},
    {"grad_accum", "batch.micro", "SAMPLES"},
    {"accumulate_grad_batches", "batch.micro", "SAMPLES"},
    {"gradient_accumulation", "batch.micro", "SAMPLES"},
    {"gradient_accumulation_steps", "batch.micro", "SAMPLES"},
    // Settings: grid and numerics.
    {"dp", "parallel.data"},
    {"ddp", "parallel.data"},
    {"dp_size", "parallel.data"},
    {"data_parallel", "parallel.data"},
    {"data_parallel_size", "parallel.data"},
    {"replicas", "parallel.data"},
    {"pp", "parallel.pipeline"},
    {"pp_size", "parallel.pipeline"},
    {"pipeline_parallel", "parallel.pipeline"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"stages", "parallel.pipeline"},
    {"num_stages", "parallel.pipeline"},
    {"tp", "parallel.tensor"},
    {"tp_size", "parallel.tensor"},
    {"tensor_parallel", "parallel.tensor"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"sp", "parallel.sequence"},
    {"sequence_parallel", "parallel.sequence"},
    {"virtual_stages", "parallel.chunks"},
    {"bucket_cap_mb", "parallel.bucket"},
    {"pipeline_schedule", "parallel.schedule"},
    {"precision", "numerics.dtype"},
    {"dtype", "numerics.dtype"},
    {"torch_dtype", "numerics.dtype"},
    {"amp", "numerics.dtype", "bfloat16"},
    {"bf16", "numerics.dtype", "bfloat16"},
    {"fp16", "numerics.dtype", "bfloat16"},
    {"mixed_precision", "numerics.dtype", "bfloat16"},
    {"allow_tf32", "numerics.tf32"},
    {"deterministic", "numerics.mode", "invariant"},
    // Settings: optimizer and learning rate.
    {"optimizer", "optimizer.kind"},
    {"optim", "optimizer.kind"},
    {"optimizer.name", "optimizer.kind"},
    {"optimizer.type", "optimizer.kind"},
    {"lr", "optimizer.learning_rate"},
    {"eta", "optimizer.learning_rate"},
    {"base_lr", "optimizer.learning_rate"},
    {"max_lr", "optimizer.learning_rate"},
    {"peak_lr", "optimizer.learning_rate"},
    {"step_size", "schedule.every"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"betas", "optimizer.beta2", "BETA2"},
    {"eps", "optimizer.epsilon"},
    {"adam_epsilon", "optimizer.epsilon"},
    {"wd", "optimizer.weight_decay"},
    {"l2", "optimizer.weight_decay"},
    {"grad_clip", "optimizer.clip_norm"},
    {"clip_grad", "optimizer.clip_norm"},
    {"clip", "optimizer.clip_norm"},
    {"clip_grad_norm", "optimizer.clip_norm"},
    {"gradient_clipping", "optimizer.clip_norm"},
    {"gradient_clip_val", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"label_smoothing_factor", "train.label_smoothing"},
    {"smoothing", "train.label_smoothing"},
    {"z_loss_weight", "train.z_loss"},
    {"z_loss_coeff", "train.z_loss"},
    {"freeze", "optimizer.frozen"},
    {"scheduler", "schedule.kind"},
    {"lr_scheduler", "schedule.kind"},
    {"lr_schedule", "schedule.kind"},
    {"lr_scheduler_type", "schedule.kind"},
    {"schedule", "schedule.kind"},
    {"decay_lr", "schedule.kind", "cosine"},
    {"warmup", "schedule.warmup_steps"},
    {"warmup_iters", "schedule.warmup_steps"},
    {"lr_warmup_steps", "schedule.warmup_steps"},
    {"num_warmup_steps", "schedule.warmup_steps"},
    {"warmup_ratio", "schedule.warmup_steps", "STEPS"},
    {"lr_decay_iters", "schedule.decay_steps"},
    {"lr_decay_steps", "schedule.decay_steps"},
    {"min_lr", "schedule.minimum"},
    {"eta_min", "schedule.minimum"},
    {"gamma", "schedule.factor"},
    // Settings: train, checkpoint and run.
    {"steps", "train.steps"},
    {"num_steps", "train.steps"},
    {"max_steps", "train.steps"},
    {"max_iters", "train.steps"},
    {"iterations", "train.steps"},
    {"iters", "train.steps"},
    {"train_iters", "train.steps"},
    {"max_epochs", "train.epochs"},
    {"n_epochs", "train.epochs"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"epoch", "train.epochs"},
    {"eval_every", "train.evaluate_every"},
    {"eval_interval", "train.evaluate_every"},
    {"eval_steps", "train.evaluate_every"},
    {"eval_freq", "train.evaluate_every"},
    {"val_interval", "train.evaluate_every"},
    {"val_check_interval", "train.evaluate_every"},
    {"eval_iters", "train.evaluate_batches"},
    {"eval_batches", "train.evaluate_batches"},
    {"early_stopping", "train.patience"},
    {"early_stopping_patience", "train.patience"},
    {"gradient_checkpointing", "train.recompute", "full"},
    {"activation_checkpointing", "train.recompute", "full"},
    {"remat", "train.recompute", "full"},
    {"log_interval", "train.log_every"},
    {"logging_steps", "train.log_every"},
    {"print_freq", "train.log_every"},
    {"log_freq", "train.log_every"},
    {"save_every", "checkpoint.every"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"checkpoint_interval", "checkpoint.every"},
    {"checkpoint_every", "checkpoint.every"},
    {"ckpt_every", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"save_best", "checkpoint.best", "loss"},
    {"pretrained", "checkpoint.init"},
    {"from_pretrained", "checkpoint.init"},
    {"init_from", "checkpoint.init"},
    {"load_from", "checkpoint.init"},
    {"finetune", "checkpoint.init"},
    {"resume", "run.resume", "auto"},
    {"resume_from", "run.resume", "auto"},
    {"resume_from_checkpoint", "run.resume", "auto"},
    {"restart", "run.resume", "auto"},
    {"continue", "run.resume", "auto"},
    {"dir", "run.dir"},
    {"log_dir", "run.dir"},
    {"out_dir", "run.dir"},
    {"output_dir", "run.dir"},
    {"output", "run.dir"},
    {"save_dir", "run.dir"},
    {"random_seed", "run.seed"},
    {"random_state", "run.seed"},
    {"num_threads", "run.threads"},
    {"omp_num_threads", "run.threads"},
    {"accelerator", "run.device"},
    {"gpu", "run.device", "cuda"},
    {"cuda", "run.device", "cuda"},
    {"cpu", "run.device", "cpu"},
    {"backend", "run.transport"},
    {"wandb", "run.tensorboard", "on"},
    {"profile", "run.timeline", "5-7"},
    {"profiler", "run.timeline", "5-7"},
    {"trace", "run.timeline", "5-7"},
    // Layers.
    {"linear", "dense"},
    {"fc", "dense"},
    {"fully_connected", "dense"},
    {"affine", "dense"},
    {"conv2d", "conv"},
    {"convolution", "conv"},
    {"convolutional", "conv"},
    {"max_pool2d", "max_pool"},
    {"max_pooling", "max_pool"},
    {"max_pooling2d", "max_pool"},
    {"pool", "max_pool"},
    {"avg_pool2d", "avg_pool"},
    {"average_pool", "avg_pool"},
    {"average_pooling2d", "avg_pool"},
    {"mean_pool", "avg_pool"},
    {"gap", "global_avg_pool"},
    {"adaptive_avg_pool2d", "global_avg_pool"},
    {"global_average_pooling2d", "global_avg_pool"},
    {"batch_norm2d", "batch_norm"},
    {"batch_normalization", "batch_norm"},
    {"bn", "batch_norm"},
    {"layer_normalization", "layer_norm"},
    {"ln", "layer_norm"},
    {"gn", "group_norm"},
    {"embed", "embedding"},
    {"embeddings", "embedding"},
    {"wte", "embedding"},
    {"attn", "attention"},
    {"self_attention", "attention"},
    {"multihead_attention", "attention"},
    {"mha", "attention"},
    {"ffn", "mlp"},
    {"feed_forward", "mlp"},
    {"lm_head", "head"},
    {"unembedding", "head"},
    {"reshape", "flatten"},
    {"log_softmax", "softmax"},
    {"skip", "residual"},
    {"zero_padding2d", "zero_pad"},
    // Options of layers.
    {"pad", "padding"},
    {"strides", "stride"},
    {"eps", "epsilon"},
    {"use_bias", "bias"},
    {"num_groups", "groups"},
    {"head_dim", "head_size"},
    // Values.
    {"bf16", "bfloat16"},
    {"fp32", "float32"},
    {"f32", "float32"},
    {"float", "float32"},
    {"single", "float32"},
    {"fp64", "float64"},
    {"f64", "float64"},
    {"double", "float64"},
    {"fp16", "float16"},
    {"f16", "float16"},
    {"half", "float16"},
    {"gpu", "cuda"},
    {"cuda:0", "cuda"},
    {"true", "on"},
    {"yes", "on"},
    {"1", "on"},
    {"false", "off"},
    {"no", "off"},
    {"0", "off"},
    {"none", "off"},
    {"off", "none"},
    {"off", "never"},
    {"no", "never"},
    {"false", "never"},
    {"latest", "newest"},
    {"last", "newest"},
    {"cosine_annealing", "cosine"},
    {"step_lr", "step"},
    {"mse", "mean_squared_error"},
    {"l2", "mean_squared_error"},
    {"ce", "cross_entropy"},
    {"cross_entropy_loss", "cross_entropy"},
    {"standardize", "standard"},
    {"standardise", "standard"},
    {"acc", "accuracy"},
    {"hf", "huggingface"},
    {"transformers", "huggingface"},
    {"llm.c", "llmc"},
    {"numpy", "npy"},
    {"mnist", "idx"},
    {"cifar", "cifar10"},
    {"txt", "text"},
    {"nanogpt", "tokens-nanogpt"},
    {"megatron", "tokens-megatron"},
    {"char", "chars"},
    {"byte", "bytes"},
    {"bpe", "gpt2"},
    {"gpt2", "gpt2-124m"},
    {"gpt2_small", "gpt2-124m"},
    {"gpt2_medium", "gpt2-355m"},
    {"gpt2_large", "gpt2-774m"},
    {"gpt2_xl", "gpt2-1558m"},
    {"transformer", "gpt"},
    // Options of commands.
    {"num_nodes", "nodes"},
    {"nnodes", "nodes"},
    {"walltime", "time"},
    {"time_limit", "time"},
    {"queue", "partition"},
    {"project", "account"},
    {"image", "container"},
    {"num_gpus", "ranks"},
    {"gpus", "ranks"},
    {"rank", "ranks"},
    {"np", "ranks"},
    {"nproc", "ranks"},
    {"nproc_per_node", "ranks"},
    {"world_size", "ranks"},
    {"ntasks_per_node", "ranks-per-node"},
    {"gpus_per_node", "ranks-per-node"},
    {"out", "output"},
    {"output_dir", "output"},
    {"max_new_tokens", "tokens"},
    {"num_tokens", "tokens"},
    {"num_samples", "samples"},
    {"temp", "temperature"},
    {"input", "prompt"},
    {"target", "label"},
    {"label_column", "label"},
    {"data", "files"},
    {"file", "files"},
    {"type", "format"},
    // Commands.
    {"fit", "train"},
    {"learn", "train"},
    {"run", "train"},
    {"training", "train"},
    {"eval", "evaluate"},
    {"test", "evaluate"},
    {"validate", "evaluate"},
    {"sample", "generate"},
    {"complete", "generate"},
    {"infer", "predict"},
    {"inference", "predict"},
    {"import", "data import"},
    {"prepare", "data import"},
    {"convert", "data import"},
    {"export", "checkpoint export"},
    {"submit", "job"},
    {"sbatch", "job"},
    {"slurm", "job"},
    {"status", "watch"},
    {"monitor", "watch"},
    {"plot", "report"},
    {"tune", "sweep"},
    {"search", "sweep"},
    {"simulate", "schedule simulate"},
    {"diagnose", "doctor"},
};

/// For comparison: without case, '-' and '_'.
std::string plain(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c != '-' && c != '_') {
      result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return result;
}

std::string_view last_part(std::string_view text) {
  return text.substr(text.rfind('.') + 1);
}

std::optional<MeantName> familiar(std::string_view text, std::span<const std::string> candidates) {
  const std::string typed = plain(text);
  for (const FamiliarName& row : kFamiliarNames) {
    if (plain(row.typed) == typed && std::ranges::find(candidates, row.ours) != candidates.end()) {
      return MeantName{std::string(row.ours), std::string(row.value)};
    }
  }
  return std::nullopt;
}

/// The candidate with this text; with kParts the only one that ends in it behind a '.'.
enum class Compared { kWhole, kParts };
std::optional<MeantName> spelt(std::string_view text, std::span<const std::string> candidates,
                               Compared compared) {
  const std::string typed = plain(text);
  const std::string* found = nullptr;
  for (const std::string& candidate : candidates) {
    const bool same = plain(compared == Compared::kWhole ? std::string_view(candidate)
                                                         : last_part(candidate)) == typed;
    if (same && found != nullptr && *found != candidate) {
      return std::nullopt;
    }
    found = same ? &candidate : found;
  }
  return found == nullptr ? std::nullopt : std::optional(MeantName{*found, ""});
}

}  // namespace

std::optional<MeantName> meant_by(std::string_view text, std::span<const std::string> candidates) {
  constexpr std::size_t kLongest = 64;
  if (text.empty() || text.size() > kLongest) {
    return std::nullopt;
  }
  const std::string_view last = last_part(text);
  auto meant = spelt(text, candidates, Compared::kWhole);
  meant = meant ? meant : familiar(text, candidates);
  meant = meant ? meant : familiar(last, candidates);
  return meant ? meant : spelt(last, candidates, Compared::kParts);
}

bool means_off(std::string_view value) {
  const std::vector<std::string> off{"off"};
  return value_meant_by(value, off) == off.front();
}

std::string value_meant_by(std::string_view text, std::span<const std::string> candidates) {
  if (std::ranges::find(candidates, text) != candidates.end()) {
    return std::string(text);
  }
  auto meant = spelt(text, candidates, Compared::kWhole);
  meant = meant ? meant : familiar(text, candidates);
  return meant ? meant->name : std::string(text);
}

}  // namespace strata
