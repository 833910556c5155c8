#include <algorithm>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"

#include "checkpoint/metadata.hpp"

namespace strata::train {
namespace {

std::vector<io::TensorInfo> tensors_of(const plan::Plan& plan) {
  std::vector<io::TensorInfo> tensors;
  const DType dtype = compute_dtype(plan.config.numerics.dtype);
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kBorrowed) {
      continue;
    }
    const auto add = [&](const std::string& name) { tensors.push_back({name, spec.shape, dtype}); };
    add(plan::weight_name(spec));
    for (const std::string& name : plan::replication_of(plan).state_tensors(plan, spec)) {
      add(name);
    }
  }
  return tensors;
}

std::string text_of(const io::TensorInfo& tensor) {
  return fmt::format("{} ({} {})", tensor.name, tensor.shape.text(), name_of(tensor.dtype));
}

[[noreturn]] void refuse_model(const io::Checkpoint& checkpoint, const std::string& difference) {
  fail(ExitCode::kCheckpoint,
       "{} is a checkpoint of another model: {}; use the config that it was made with, or another "
       "run.dir",
       checkpoint.directory().string(), difference);
}

/// Compares the tensors whose names begin with `prefix`.
void require_same_tensors(const plan::Plan& plan, const io::Checkpoint& checkpoint,
                          std::string_view prefix) {
  std::set<std::string> expected;
  for (const io::TensorInfo& tensor : tensors_of(plan)) {
    expected.insert(tensor.name);
    if (!tensor.name.starts_with(prefix)) {
      continue;
    }
    const io::TensorInfo* const found = checkpoint.find(tensor.name);
    if (found == nullptr) {
      refuse_model(checkpoint, fmt::format("it has no {}", text_of(tensor)));
    }
    if (!(*found == tensor)) {
      refuse_model(checkpoint, fmt::format("it has {} where the config has {}", text_of(*found),
                                           text_of(tensor)));
    }
  }
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.name.starts_with(prefix) && !expected.contains(tensor.name)) {
      refuse_model(checkpoint, fmt::format("it has {}, which the config lacks", text_of(tensor)));
    }
  }
}

/// The first difference in layer properties that the tensors do not show, such as activations;
/// empty for none. Where adapters are initialized `anew`, they are none.
std::string different_layer(const plan::Plan& plan, const io::Checkpoint& checkpoint,
                            const nn::NamePatterns& anew = {}) {
  const std::vector<std::string> lines = model_lines(plan);
  const bool adapts =
      std::ranges::any_of(plan.model->parameters(), [&](const nn::ParameterSpec& spec) {
        return nn::is_adapter(spec.name) && anew.matches(spec.name);
      });
  const auto same = [&](const std::string& here, const std::string& there) {
    if (adapts) {
      return nn::without_adapters(here) == nn::without_adapters(there);
    }
    return is_imported(checkpoint) ? nn::line_of_weights(here) == nn::line_of_weights(there)
                                   : here == there;
  };
  const auto stored = metadata_entry<std::vector<std::string>>(checkpoint, "layers");
  for (std::size_t i = 0; i < std::max(lines.size(), stored.size()); ++i) {
    const std::string here = i < lines.size() ? lines[i] : "nothing";
    const std::string there = i < stored.size() ? comparable(stored[i]) : "nothing";
    if (!same(here, there)) {
      return fmt::format("its layer {} is \"{}\" where the config has \"{}\"", i, there, here);
    }
  }
  return "";
}

void require_same_layers(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  if (const std::string difference = different_layer(plan, checkpoint); !difference.empty()) {
    refuse_model(checkpoint, difference);
  }
}

/// Compares the tokenizers of a language model.
void require_same_tokenizer(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  if (plan.train_data.task != io::Task::kNextToken) {
    return;
  }
  const nlohmann::json stored = metadata_entry<nlohmann::json>(checkpoint, kTokenizer);
  if (is_imported(checkpoint) && stored == nlohmann::json(hash_text(0))) {
    return;  // no tokenizer was given; the user answers for the data set
  }
  if (stored != nlohmann::json(hash_text(plan.train_data.tokenizer_checksum))) {
    fail(ExitCode::kData,
         "{} learned from ids of another tokenizer than the one that {} was made with, so that "
         "they mean different text; use a data set made with that tokenizer, or another run.dir",
         checkpoint.directory().string(), plan.train_data.path.string());
  }
}

config::Sync sync_of(const io::Checkpoint& checkpoint) {
  return enum_from_name<config::Sync>(metadata_entry<std::string>(checkpoint, kSync))
      .value_or(config::Sync::kStep);  // earlier versions had no other
}

/// What makes the optimizer state useless; empty for nothing.
std::string sync_change(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const std::string there =
      plan::replication_of(sync_of(checkpoint)).name(virtual_grid_of(checkpoint).parts).name;
  const std::string here = plan::replication_of(plan).name(plan.parts).name;
  return there == here ? ""
                       : fmt::format("{} is of a run with parallel.sync = {}, here it is {}",
                                     checkpoint.directory().string(), there, here);
}

}  // namespace

void require_same_model(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  require_same_tensors(plan, checkpoint, plan::kWeightPrefix);
  require_same_layers(plan, checkpoint);
  require_same_tokenizer(plan, checkpoint);
}

nn::NamePatterns initialized_anew(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  std::string names = plan.config.checkpoint.init_except;
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (nn::is_adapter(spec.name) && checkpoint.find(plan::weight_name(spec)) == nullptr) {
      names += "," + spec.name;
    }
  }
  return nn::NamePatterns(names);
}

void require_initial(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const nn::NamePatterns except = initialized_anew(plan, checkpoint);
  std::vector<std::string> names;
  std::set<std::string> model;
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kOwned) {
      names.push_back(spec.name);
      model.insert(spec.name);
    }
  }
  std::vector<io::TensorInfo> file;
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.name.starts_with(plan::kWeightPrefix)) {
      names.push_back(tensor.name.substr(std::string_view(plan::kWeightPrefix).size()));
      file.push_back({names.back(), tensor.shape});
    }
  }
  except.require_matches("checkpoint.init_except", names);
  const auto refuse = [&](const std::string& difference, const std::string& name,
                          const char* effect) {
    fail(
        ExitCode::kCheckpoint,
        "checkpoint.init: {} does not fit the model: {}; give a checkpoint of such a model, or add "
        "{} to checkpoint.init_except, to {}",
        checkpoint.directory().string(), difference, name, effect);
  };
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    const io::TensorInfo* const found = checkpoint.find(plan::weight_name(spec));
    if (spec.ownership != nn::Ownership::kOwned || except.matches(spec.name) ||
        (found != nullptr && found->shape == spec.shape)) {
      continue;
    }
    refuse(found == nullptr
               ? fmt::format("it has no {}, which is {} in the model", spec.name, spec.shape.text())
               : fmt::format("its {} is {}, that of the model {}", spec.name, found->shape.text(),
                             spec.shape.text()),
           spec.name, "initialize it anew");
  }
  for (const io::TensorInfo& tensor : file) {
    if (!except.matches(tensor.name) && !model.contains(tensor.name)) {
      if (nn::is_adapter(tensor.name)) {
        fail(ExitCode::kCheckpoint,
             "checkpoint.init: {} has adapters, as {} ({}), which the model lacks; set lora.rank, "
             "lora.alpha and lora.products as its run did, or merge the adapters with strata "
             "checkpoint export --format=huggingface and import that",
             checkpoint.directory().string(), tensor.name, tensor.shape.text());
      }
      refuse(fmt::format("it has {} ({}), which the model lacks", tensor.name, tensor.shape.text()),
             tensor.name, "leave it out");
    }
  }
  const std::string tokenizer = metadata_entry<std::string>(checkpoint, kTokenizer);
  const bool known = !tokenizer.empty() && tokenizer != hash_text(0);
  if (plan.train_data.task == io::Task::kNextToken && known &&
      tokenizer != hash_text(plan.train_data.tokenizer_checksum) &&
      !except.matches(plan.model->parameters().front().name)) {
    fail(ExitCode::kData,
         "checkpoint.init: {} learned from ids of another tokenizer than the one that {} was made "
         "with, so that they mean different text; make the data set with the checkpoint's "
         "tokenizer, or initialize the embedding and the head anew with checkpoint.init_except",
         checkpoint.directory().string(), plan.train_data.path.string());
  }
}

bool keeps_token_ids(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  return !initialized_anew(plan, checkpoint).matches(plan.model->parameters().front().name);
}

ModelTexts initial_texts(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  return keeps_token_ids(plan, checkpoint) ? model_texts(checkpoint) : ModelTexts();
}

NamesOfCheckpoint initial_names(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  NamesOfCheckpoint names{.data = data_of(checkpoint).value_or(plan.train_data), .advice = ""};
  const std::vector<nn::ParameterSpec>& parameters = plan.model->parameters();
  if (parameters.empty()) {
    return names;
  }
  const nn::NamePatterns except = initialized_anew(plan, checkpoint);
  const auto is_anew = [&](std::int64_t layer) {
    return std::ranges::any_of(parameters, [&](const nn::ParameterSpec& spec) {
      return spec.layer == layer && !nn::is_adapter(spec.name) && except.matches(spec.name);
    });
  };
  const io::DatasetInfo& ours = plan.train_data;
  std::vector<std::string>& columns = names.data.column_names;
  const bool tables = !columns.empty() && !ours.column_names.empty();
  const bool first = is_anew(parameters.front().layer);
  const bool last = is_anew(parameters.back().layer);
  if (tables) {
    const std::string label = last ? ours.column_names.back() : columns.back();
    columns = first ? ours.column_names : columns;
    names.data.table = first ? ours.table : names.data.table;
    columns.back() = label;
  }
  if (last) {
    names.data.class_names = ours.class_names;
    names.data.target_mean = ours.target_mean;
    names.data.target_deviation = ours.target_deviation;
  }
  const auto pattern_of = [](const std::string& name) {
    return name.substr(0, name.rfind('.')) + ".*";
  };
  names.advice = fmt::format(
      "give data with the names that checkpoint.init learned, or initialize the layer that they "
      "belong to anew with checkpoint.init_except: {} for columns, {} for classes",
      pattern_of(parameters.front().name), pattern_of(parameters.back().name));
  return names;
}

std::string initial_text(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const nn::NamePatterns except = initialized_anew(plan, checkpoint);
  std::vector<std::string> anew;
  bool adapters = false;
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kOwned && except.matches(spec.name)) {
      if (nn::is_adapter(spec.name)) {
        adapters = true;
      } else {
        anew.push_back(spec.name);
      }
    }
  }
  if (adapters) {
    anew.emplace_back("adapters");
  }
  std::string text =
      fmt::format("starting from the weights of {}{}", checkpoint.directory().string(),
                  anew.empty() ? "" : fmt::format("; initialized anew: {}", fmt::join(anew, ", ")));
  if (const std::string difference = different_layer(plan, checkpoint, except);
      !difference.empty()) {
    text += "; " + difference;
  }
  return text;
}

namespace {

/// A fact of a run's identity that differs from a checkpoint's.
struct Difference {
  std::string key;
  nlohmann::json there;
  nlohmann::json here;

  /// Whether data.accept_change accepts it.
  [[nodiscard]] bool is_of_data() const {
    return key == kMixture || key == kTrainSamples || key == kTrainChecksum;
  }
};

std::vector<Difference> differences(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  std::vector<Difference> found;
  const auto stored = metadata_entry<nlohmann::json::object_t>(checkpoint, "identity");
  const nlohmann::ordered_json identity = identity_of(plan);
  for (const auto& [key, value] : identity.items()) {
    const auto at = stored.find(key);
    const nlohmann::json there = at != stored.end() ? at->second
                                 // Of earlier versions.
                                 : key == kFrozen || key == kTrained || key == kMixture
                                     ? nlohmann::json("")
                                 : key == kTargets ? nlohmann::json("none")
                                 : key == kPacking ? nlohmann::json("blocks")
                                                   : nlohmann::json();
    if (const nlohmann::json here(value); there != here) {
      found.push_back({key, there, here});
    }
  }
  return found;
}

}  // namespace

void require_same_run(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  require_same_model(plan, checkpoint);
  if (is_imported(checkpoint)) {
    return;
  }
  // Of other tasks a data set's statistics go into the inputs.
  const bool accepts =
      plan.config.data.accept_change == Switch::kOn && plan.train_data.task == io::Task::kNextToken;
  for (const Difference& one : differences(plan, checkpoint)) {
    if (!(accepts && one.is_of_data())) {
      fail(ExitCode::kUsage,
           "{} holds another run: there {} is {}, here it is {}; set it back, {}choose another "
           "run.dir",
           checkpoint.directory().string(), one.key, one.there.dump(), one.here.dump(),
           one.is_of_data() && plan.train_data.task == io::Task::kNextToken &&
                   !compares_documents(plan)
               ? "set data.accept_change to on to go on with the new data, or "
               : "or ");
    }
  }
}

std::string data_change(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  std::vector<std::string> changes;
  for (const Difference& one :
       is_imported(checkpoint) ? std::vector<Difference>() : differences(plan, checkpoint)) {
    if (one.is_of_data()) {
      changes.push_back(
          fmt::format("{} was {}, it is {}", one.key, one.there.dump(), one.here.dump()));
    }
  }
  return changes.empty() ? ""
                         : fmt::format("from step {} on the run has other training data: {}",
                                       checkpoint.step() + 1, fmt::join(changes, "; "));
}

void require_continues(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  require_same_run(plan, checkpoint);
  if (is_imported(checkpoint)) {
    return;
  }
  if (const std::string change = sync_change(plan, checkpoint); !change.empty()) {
    if (plan.config.checkpoint.drop_state == config::Switch::kOff) {
      fail(ExitCode::kUsage,
           "{}: its optimizer state does not fit and would be dropped{}; set it back, or, to go on "
           "from the weights alone, set checkpoint.drop_state to on",
           change, plan::replication_of(sync_of(checkpoint)).name(plan.parts).state);
    }
    return;
  }
  for (const std::string_view prefix :
       {plan::kStatePrefix, plan::kPartPrefix, plan::kOuterPrefix}) {
    require_same_tensors(plan, checkpoint, prefix);
  }
}

bool has_state(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  return !is_imported(checkpoint) && sync_change(plan, checkpoint).empty();
}

std::int64_t checkpoint_bytes(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const io::TensorInfo& tensor : tensors_of(plan)) {
    bytes += tensor.shape.count() * size_bytes(tensor.dtype);
  }
  return bytes;
}

std::string bits_change(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const DType dtype = plan.config.numerics.dtype;
  std::vector<std::string> there;
  std::vector<std::string> here;
  bool certain = false;
  if (!is_imported(checkpoint) && metadata_entry<std::string>(checkpoint, kNormOrder).empty()) {
    there.emplace_back("gradient norms added block after block");
    here.emplace_back("gradient norms added in a tree");
  }
  if (plan.device == device::DeviceKind::kCpu && dtype != DType::kFloat64) {
    const std::string version = metadata_entry<std::string>(checkpoint, kOneDnn);
    if (!version.empty() && version != ops::onednn_version()) {
      there.push_back("oneDNN " + version);
      here.push_back("oneDNN " + ops::onednn_version());
    }
    const std::string set = metadata_entry<std::string>(checkpoint, kInstructionSet);
    const ops::InstructionSet used = ops::used_instruction_set();
    const auto stored = enum_from_name<ops::InstructionSet>(set);
    certain = !set.empty() && !(stored && ops::same_bits(*stored, used, dtype));
    if (certain) {
      there.push_back("numerics.isa = " + set);
      here.push_back(fmt::format("numerics.isa = {}", name_of(used)));
    }
  }
  if (there.empty()) {
    return "";
  }
  return fmt::format(
      "{} was made with {} and the run goes on with {}, which {} other bits in {}: from here on "
      "its numbers are not those of a run that stays with {}",
      checkpoint.directory().string(), fmt::join(there, " and "), fmt::join(here, " and "),
      certain ? "gives" : "may give", name_of(dtype), fmt::join(there, " and "));
}

}  // namespace strata::train
