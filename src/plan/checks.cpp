#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"
#include "strata/plan/replication.hpp"

#include "resolve.hpp"

// What a plan refuses.
namespace strata::plan {

std::int64_t resolve_value(std::string_view key, std::int64_t configured, std::int64_t stored,
                           std::int64_t otherwise) {
  if (stored != 0 && configured != 0 && stored != configured) {
    fail(ExitCode::kUsage,
         "{} is {}, but the checkpoint that this run continues was made with {}; it determines the "
         "results, so leave it out or set it to {}",
         key, configured, stored, stored);
  }
  return configured != 0 ? configured : stored != 0 ? stored : otherwise;
}

void check_optimizer(const config::RunConfig& config) {
  const auto& optimizer = config.optimizer;
  if (optimizer.kind == optim::OptimizerKind::kSgd && optimizer.options.nesterov == Switch::kOn &&
      optimizer.options.momentum == 0.0) {
    fail(ExitCode::kUsage,
         "optimizer.nesterov is on, but optimizer.momentum is 0; set a momentum, such as 0.9");
  }
}

void check_open_rate(double rate) {
  constexpr double kMostRate = 0.05;
  if (rate > kMostRate) {
    fail(
        ExitCode::kUsage,
        "optimizer.learning_rate is {}, which suits sgd, but no optimizer.kind is chosen, so it is "
        "adamw, which takes rates about 0.001; set optimizer.kind to sgd or adamw, or leave the "
        "rate out",
        rate);
  }
}

void check_unused(const config::RunConfig& given, const Plan& plan) {
  config::check_needs(given);
  const bool tokens = plan.train_data.task == io::Task::kNextToken;
  const std::string data = fmt::format("the data set {} holds {}", plan.train_data.path.string(),
                                       tokens ? "tokens" : "no tokens");
  config::check_used(given,
                     {"model.context", "data.sampling", "data.packing", "data.accept_change",
                      "parallel.sequence", "numerics.row_pieces"},
                     tokens, data, "use one of tokens");
  const std::vector<io::MixtureSet> sets = io::mixture_sets(given.data.train);
  config::check_used(given, {"data.mixture_temperature"}, sets.size() > 1 && !sets.front().weight,
                     "data.train is one data set, or has weights", "name several without");
  config::check_used(given, {"data.mixture_by"}, sets.size() > 1 && sets.front().weight,
                     "data.train is one data set, or has no weights",
                     "name several, each with a weight");
  config::check_used(given, {"data.sampling"}, sets.size() == 1, "data.train is a mixture",
                     "set it to blocks");
  config::check_used(given, {"data.sampling"}, given.data.packing == io::Packing::kBlocks,
                     fmt::format("data.packing is {}", name_of(given.data.packing)),
                     "set data.packing to blocks");
  config::check_used(given, {"data.normalise"}, !tokens, data, "use one of numbers");
  const bool values = plan.train_data.task == io::Task::kRegression;
  config::check_used(given, {"data.targets"}, values,
                     fmt::format("the targets of {} are no values", plan.train_data.path.string()),
                     "leave it out");
  if (values && given.data.targets == io::TargetUnits::kStandard &&
      plan.train_data.target_mean.empty()) {
    fail(ExitCode::kUsage,
         "data.targets is standard, but {} has no statistics of its targets: an earlier version "
         "made it; import it anew, or set data.targets to none",
         plan.train_data.path.string());
  }
  config::check_used(given, {"run.tensorboard_text"},
                     plan.train_data.tokenizer != io::TokenizerKind::kNone,
                     "the data set has no tokenizer that makes text of tokens", "use one that has");
  const bool joins = plan.model->joins_lanes() && plan.grid.data > 1;
  config::check_used(
      given, {"run.cuda_graphs"}, plan.grid.tensor == 1 && !joins,
      joins ? "batch_norm over all lanes puts messages into every pass"
            : fmt::format("parallel.tensor is {}, which puts messages into every pass",
                          plan.grid.tensor),
      joins ? "choose parallel.data = 1, or no sync for batch_norm" : "choose another grid");
  config::check_used(given, {"checkpoint.best"},
                     given.checkpoint.best != config::Best::kAccuracy ||
                         plan.model->loss() == nn::LossKind::kCrossEntropy,
                     "the model has no classes and so no accuracy", "set it to loss");
  config::check_used(given, {"train.label_smoothing", "train.z_loss"},
                     plan.model->loss() == nn::LossKind::kCrossEntropy,
                     "the model's targets are values, not classes", "leave it out");
  config::check_used(
      given, {"numerics.shard_sums", "numerics.row_pieces"}, plan.config.numerics.shards > 1,
      "numerics.shards is 1, which leaves nothing to sum", "set numerics.shards above 1");
  config::check_used(given, {"numerics.loss_pieces"}, plan.model->output().is_logits,
                     "the model does not end in a head", "end it with layer = head");
  config::check_used(given, {"model.sync_batch_norm"}, nn::has_batch_norm(*plan.model),
                     "the model has no batch_norm layer", "give it one");
}

void check_receipts(const config::RunConfig& given, const Plan& plan) {
  if (given.run.receipts == 0) {
    return;
  }
  const auto refuse = [](std::string_view what) {
    fail(ExitCode::kUsage,
         "run.receipts is on, but {}, so that nothing could be compared; set run.receipts to off, "
         "or change it",
         what);
  };
  const ReplicationTraits traits = replication_of(plan).traits(plan);
  if (given.numerics.mode == comm::Summation::kLibrary) {
    refuse("numerics.mode is fast, and a second run has other numbers");
  }
  if (!traits.reproducible()) {
    refuse(traits.irreproducible);
  }
  if (plan.job_parts.count() < plan.parts) {
    refuse("this job trains a part of the run");
  }
  if (!given.local.record.empty()) {
    refuse("the rounds of local.record are of other jobs");
  }
}

void check_objective(const config::RunConfig& given, const Plan& plan) {
  if (given.train.objective != config::Objective::kDpo) {
    if (given.data.packing == io::Packing::kPairs) {
      fail(ExitCode::kUsage,
           "data.packing is pairs, which train.objective = dpo trains on; set it");
    }
    return;
  }
  const auto require_setting = [](bool met, std::string_view what, std::string_view instead) {
    if (!met) {
      fail(ExitCode::kUsage, "train.objective is dpo, but {}; {}", what, instead);
    }
  };
  require_setting(plan.train_data.task == io::Task::kNextToken,
                  fmt::format("{} holds no tokens", plan.train_data.path.string()),
                  "import pairs with strata data import --format=preferences");
  require_setting(
      given.data.packing == io::Packing::kBlocks || given.data.packing == io::Packing::kPairs,
      fmt::format("data.packing is {}", name_of(given.data.packing)),
      "leave it out, or set it to pairs");
  require_setting(given.data.sampling == io::Sampling::kBlocks,
                  fmt::format("data.sampling is {}", name_of(given.data.sampling)), "leave it out");
  require_setting(given.data.accept_change == Switch::kOff, "data.accept_change is on",
                  "leave it out: the reference is known of the data of the run's start alone");
  require_setting(given.parallel.sync == config::Sync::kStep,
                  fmt::format("parallel.sync is {}", name_of(given.parallel.sync)),
                  "set it to step");
  require_setting(given.numerics.loss_pieces <= 1,
                  fmt::format("numerics.loss_pieces is {}", given.numerics.loss_pieces),
                  "set it to 1: the loss compares whole answers");
  for (std::int64_t i = 0; i < plan.model->layer_count(); ++i) {
    const nn::Layer& layer = plan.model->layer(i);
    const bool counts_on =
        !layer.reads_positions() &&
        std::ranges::any_of(layer.parameters(), [](const nn::ParameterSpec& spec) {
          return spec.name.ends_with(".positions.weight");
        });
    require_setting(!layer.text().starts_with("attention") || layer.reads_document_starts(),
                    fmt::format("layer {} lets one answer see the other", layer.name()),
                    "add mask=document to its line");
    require_setting(
        !counts_on,
        fmt::format("layer {} counts positions on from one answer to the other", layer.name()),
        "add reset_positions=on to its line");
  }
}

void check_augmentation(const io::Augmentation& augmentation, const io::DatasetInfo& data) {
  if (augmentation == io::Augmentation()) {
    return;
  }
  if (!io::is_image(data.input_shape)) {
    fail(ExitCode::kUsage,
         "data.flip, data.crop_padding and data.cutout are for images (channels x height x width), "
         "but samples of {} are {}; leave them out",
         data.path.string(), data.input_shape.text());
  }
  const std::int64_t shorter = std::min(data.input_shape[1], data.input_shape[2]);
  const auto require_within = [&](const char* key, std::int64_t pixels) {
    if (pixels > shorter) {
      fail(ExitCode::kUsage, "{} is {}, but the images of {} are {} x {}; give at most {}", key,
           pixels, data.path.string(), data.input_shape[1], data.input_shape[2], shorter);
    }
  };
  require_within("data.crop_padding", augmentation.crop_padding);
  require_within("data.cutout", augmentation.cutout);
}

namespace {

/// The limit of MPI's int counts: bytes of a message, or elements of a reduction.
constexpr double kMostCounted = 2147483647.0;

/// Rejects tensors between stages that are too long for one message.
void check_neighbours(const Plan& plan, const nn::PassShape& pass) {
  const config::RunConfig& c = plan.config;
  for (std::size_t s = 0; s + 1 < plan.split.stages.size(); ++s) {
    for (const std::int64_t tensor : plan.model->boundary_tensors(plan.split.stages[s].end)) {
      const nn::Port& port = plan.model->port_of(tensor);
      const auto bytes = static_cast<double>(nn::local_shape(port, pass).count()) *
                         static_cast<double>(size_bytes(c.numerics.dtype));
      if (bytes > kMostCounted) {
        fail(ExitCode::kUsage,
             "between stages {} and {} a microbatch of {} samples is a message of {:.3g} bytes, "
             "more than the limit of {:.0f}; lower batch.micro",
             s, s + 1, c.batch.micro, bytes, kMostCounted);
      }
    }
  }
}

/// Rejects a reduction over the tensor ranks, of the shape at a layer's input or output, that is
/// too long for its messages.
void check_sum(const Plan& plan, const nn::Layer& layer, const nn::Port& port) {
  const config::RunConfig& c = plan.config;
  if (port.placement == nn::Placement::kFeatures) {
    return;
  }
  const std::int64_t rows = nn::rows_at(port, c.batch.micro);
  const auto width = static_cast<double>(port.shape.back());
  if (c.numerics.mode == comm::Summation::kLibrary) {
    // The library reduces the whole tensor.
    const double elements = static_cast<double>(rows) * width;
    if (elements > kMostCounted) {
      fail(ExitCode::kUsage,
           "the tensor ranks' sums of layer {} have {:.3g} elements with microbatches of {} "
           "samples, more than the limit of {:.0f} in numerics.mode = fast; lower batch.micro",
           layer.name(), elements, c.batch.micro, kMostCounted);
    }
  }
  const std::int64_t most_rows = grid::even_part(rows, plan.grid.tensor, 0).count();
  const double bytes = static_cast<double>(most_rows) * width *
                       static_cast<double>(size_bytes(compute_dtype(c.numerics.dtype)));
  const bool sends_slices =
      c.numerics.mode == comm::Summation::kInvariant || port.placement == nn::Placement::kTokens;
  if (sends_slices && bytes > kMostCounted) {
    fail(ExitCode::kUsage,
         "the tensor ranks' sums of layer {} are messages of {:.3g} bytes with microbatches of {} "
         "samples, more than the limit of {:.0f}; lower batch.micro",
         layer.name(), bytes, c.batch.micro, kMostCounted);
  }
}

}  // namespace

void check_stages(const Plan& plan) {
  const config::RunConfig& c = plan.config;
  // The first rank of a tensor group has the largest share.
  const nn::PassShape pass = pass_shape(plan, 0);
  check_neighbours(plan, pass);
  constexpr std::int64_t kMostRounded = 64;  // parts of cuda::fold_into
  if (pass.shard_sums == DType::kBfloat16 && plan.device == device::DeviceKind::kCuda &&
      plan.grid.tensor > kMostRounded) {
    fail(ExitCode::kUsage,
         "numerics.shard_sums is bfloat16 and parallel.tensor is {}; GPUs add at most {} rounded "
         "sums, so set numerics.shard_sums to float32 or parallel.tensor to at most {}",
         plan.grid.tensor, kMostRounded, kMostRounded);
  }
  const std::int64_t tokens = c.batch.micro * plan.model->input_shape()[0];
  if (pass.row_pieces > 1 && tokens % (pass.row_pieces * c.numerics.shards) != 0) {
    fail(
        ExitCode::kUsage,
        "numerics.row_pieces is {}, but the {} tokens of a microbatch (batch.micro = {} times "
        "model.context = {}) are not divisible by {} pieces of numerics.shards = {} shards; change "
        "one of them",
        pass.row_pieces, tokens, c.batch.micro, tokens / c.batch.micro, pass.row_pieces,
        c.numerics.shards);
  }
  for (std::int64_t i = 0; i < plan.model->layer_count(); ++i) {
    const nn::Layer& layer = plan.model->layer(i);
    layer.check(pass);
    const bool is_split =
        std::ranges::any_of(plan.model->parameters(), [i](const nn::ParameterSpec& spec) {
          return spec.layer == i && spec.split != nn::kNotSplit;
        });
    if (plan.grid.tensor > 1 && is_split) {
      check_sum(plan, layer, layer.input());
      check_sum(plan, layer, layer.output());
    }
    const nn::Port& port = layer.output();
    const std::int64_t rows = nn::rows_at(port, c.batch.micro);
    if (port.placement == nn::Placement::kTokens && rows % c.numerics.shards != 0) {
      fail(ExitCode::kUsage,
           "parallel.sequence is on, but the {} tokens of a microbatch (batch.micro = {} times "
           "model.context = {}) are not divisible by numerics.shards = {}; change one of them",
           rows, c.batch.micro, rows / c.batch.micro, c.numerics.shards);
    }
  }
}

}  // namespace strata::plan
