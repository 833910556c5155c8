#include "strata/train/step_dump.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/values.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/io/scratch_directory.hpp"
#include "strata/io/tensor_files.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/file_timeout.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

/// The layer's or the parameter's name at the end of a tensor's.
std::string_view last_name(std::string_view tensor) {
  return tensor.substr(tensor.rfind('/') + 1);
}

std::vector<std::string> names_of(DumpKind kind, const plan::Plan& plan) {
  std::vector<std::string> names;
  const nn::Model& model = *plan.model;
  if (kind == DumpKind::kActivation) {
    const bool in_pieces = plan.config.numerics.loss_pieces > 1;
    for (std::int64_t i = 0; i < model.layer_count() - (in_pieces ? 1 : 0); ++i) {
      if (!model.layer(i).is_view()) {
        names.push_back(model.layer(i).name());
      }
    }
    return names;
  }
  for (const nn::ParameterSpec& spec : model.parameters()) {
    const bool is_in = kind == DumpKind::kWeight ||
                       (kind == DumpKind::kGradient
                            ? spec.rule == nn::ParameterRule::kTrained
                            : !plan::state_names(spec, plan.config.optimizer.options).empty());
    if (is_in) {
      names.push_back(spec.name);
    }
  }
  return names;
}

/// Appends elements as float32, or float64 where they are.
void append_elements(const ConstTensorView& elements, std::vector<std::byte>& to) {
  with_stored(elements.dtype(), [&]<typename T>(T) {
    const std::span<const T> stored = elements.host<T>();
    std::vector<Compute<T>> values(stored.size());
    std::ranges::transform(stored, values.begin(),
                           [](T element) { return static_cast<Compute<T>>(element); });
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    to.insert(to.end(), bytes.begin(), bytes.end());
  });
}

/// Runs a step of writing a dump, whose errors have advice about checkpoints, or none.
template <typename Step>
auto with_own_advice(const Step& step) {
  try {
    return step();
  } catch (const Error& error) {
    const auto* const of_file = dynamic_cast<const FileSystemError*>(&error);
    if (of_file != nullptr && of_file->is_passing()) {
      throw;
    }
    const std::string what = error.what();
    fail(ExitCode::kUsage, "{}; free some space, or choose another --output",
         what.substr(0, what.find(';')));
  }
}

void write_safetensors(const io::Checkpoint& tensors, const fs::path& path) {
  std::vector<io::TensorToStore> stored;
  for (const io::TensorInfo& tensor : tensors.tensors()) {
    stored.push_back({.name = tensor.name,
                      .type = tensor.dtype == DType::kFloat64 ? io::StoredType::kFloat64
                                                              : io::StoredType::kFloat32,
                      .shape = tensor.shape});
  }
  io::TensorFileWriter file = io::TensorFileWriter::safetensors(path, stored);
  std::vector<std::byte> memory;
  for (const io::TensorInfo& tensor : tensors.tensors()) {
    constexpr std::int64_t kMost = std::int64_t{1} << 20U;
    for (std::int64_t begin = 0; begin < tensor.shape.count(); begin += kMost) {
      const std::int64_t end = std::min(begin + kMost, tensor.shape.count());
      memory.resize(static_cast<std::size_t>((end - begin) * size_bytes(tensor.dtype)));
      const TensorView piece(memory.data(), {end - begin}, tensor.dtype);
      tensors.read(tensor.name, tensor.shape, {}, {begin, end}, piece);
      file.append(memory);
    }
  }
  file.finish();
}

}  // namespace

DumpedKinds dumped_kinds(std::string_view text) {
  DumpedKinds kinds;
  for (const std::string& word : split_words(text, ",")) {
    const std::size_t colon = std::min(word.find(':'), word.size());
    const std::string name = word.substr(0, colon);
    const std::optional<DumpKind> kind = enum_from_name<DumpKind>(name);
    if (!kind) {
      fail(ExitCode::kUsage, "--dump has \"{}\"; give some of {}, each with :PATTERN if you want",
           name, joined_names<DumpKind>());
    }
    const std::string pattern = colon < word.size() ? word.substr(colon + 1) : "*";
    if (pattern.empty()) {
      fail(ExitCode::kUsage,
           "--dump has no pattern after \"{}:\"; give one, or leave the colon out", name);
    }
    if (!kinds.emplace(*kind, nn::NamePatterns(pattern)).second) {
      fail(ExitCode::kUsage, "--dump has {} twice; give it once", name);
    }
  }
  if (kinds.empty()) {
    fail(ExitCode::kUsage, "--dump is empty; give some of {}", joined_names<DumpKind>());
  }
  return kinds;
}

StepDump::StepDump(const plan::Plan& plan, DumpedKinds kinds, std::int64_t step)
    : plan_(plan), kinds_(std::move(kinds)), step_(step) {
  for (const auto& [kind, patterns] : kinds_) {
    const nn::NamePatterns& wanted = patterns;
    const std::vector<std::string> names = names_of(kind, plan);
    if (names.empty()) {
      fail(ExitCode::kUsage, "--dump={0}: the run has no {0}; leave it out", name_of(kind));
    }
    if (std::ranges::none_of(names,
                             [&](const std::string& name) { return wanted.matches(name); })) {
      fail(ExitCode::kUsage,
           "--dump={}: no {} is called \"{}\"; the nearest is \"{}\". Give names, or patterns "
           "with * and ?",
           name_of(kind),
           kind == DumpKind::kActivation ? "layer with an output"
           : kind == DumpKind::kWeight   ? "parameter"
                                         : "trained parameter",
           patterns.text(), nearest(patterns.text(), names));
    }
  }
}

fs::path StepDump::file_in(const fs::path& directory, std::int64_t step) {
  return directory / fmt::format("step-{:08}.safetensors", step);
}

bool StepDump::has(DumpKind kind, std::string_view tensor) const {
  const auto found = kinds_.find(kind);
  return found != kinds_.end() && found->second.matches(std::string(last_name(tensor)));
}

void StepDump::begin(const std::string& part, RankState& state) {
  Kept& kept = parts_[part];
  kept = {};
  if (!kinds_.contains(DumpKind::kActivation)) {
    return;
  }
  for (nn::Stage* const chunk : state.chunks()) {
    chunk->observe_outputs([this, &kept](std::int64_t index, const nn::LayerPass& pass) {
      const nn::Layer& layer = plan_.model->layer(index);
      if (has(DumpKind::kActivation, layer.name())) {
        keep_output(kept, layer, pass);
      }
    });
  }
}

void StepDump::end(const std::string& part, RankState& state, device::Stream& stream) {
  for (nn::Stage* const chunk : state.chunks()) {
    chunk->observe_outputs({});
  }
  Kept& kept = parts_.at(part);
  const auto keep = [&](const std::vector<io::TensorSlice>& slices, const std::string& prefix) {
    for (io::TensorSlice slice : slices) {
      const bool is_state = slice.name.find(plan::kStatePrefix) != std::string::npos;
      const bool is_weight = slice.name.find(plan::kWeightPrefix) != std::string::npos;
      if (has(is_state    ? DumpKind::kState
              : is_weight ? DumpKind::kWeight
                          : DumpKind::kGradient,
              slice.name)) {
        const device::HostView host(slice.data, stream);
        append_elements(host.view(), kept.memory.emplace_back());
        slice.name = prefix + slice.name;
        slice.data = {kept.memory.back().data(), {slice.range.count()}, slice.data.dtype()};
        kept.slices.push_back(std::move(slice));
      }
    }
  };
  keep(state.slices(part), "");
  if (parts_.size() == 1) {  // all parts have the same
    keep(state.frozen_slices(), "");
  }
  keep(state.gradient_slices(), part);
  is_complete_ = true;
}

void StepDump::keep_output(Kept& kept, const nn::Layer& layer, const nn::LayerPass& pass) const {
  const nn::Port& port = layer.output();
  const grid::Range& own = pass.shape.shards.own;
  if (port.placement == nn::Placement::kReplicated && own.begin > 0) {
    return;  // the first tensor rank has it
  }
  const device::HostView host(pass.output, pass.context.stream());
  const std::int64_t batch = plan_.config.batch.global;
  const std::int64_t width = port.shape.back();
  const std::int64_t rows = nn::rows_at(port, pass.shape.microbatch);
  const std::int64_t first_row = (pass.first_sample - (step_ - 1) * batch) * nn::rows_at(port, 1);
  std::int64_t at = 0;
  // The next rows in memory, each of `stride` elements: rows of the microbatch, and their columns.
  const auto keep = [&](const grid::Range& held, const grid::Range& columns, std::int64_t stride) {
    std::vector<std::byte>& memory = kept.memory.emplace_back();
    for (std::int64_t r = held.begin; r < held.end; ++r, at += stride) {
      append_elements(host.view().flat_slice(at, columns.count()), memory);
    }
    const grid::Range range{(first_row + held.begin) * columns.count(),
                            (first_row + held.end) * columns.count()};
    kept.slices.push_back(
        {.name = "activations/" + layer.name(),
         .global_shape = port.shape.prepended(batch),
         .range = range,
         .data = {memory.data(), {range.count()}, compute_dtype(pass.output.dtype())},
         .shard = {static_cast<std::int64_t>(port.shape.rank()), columns.begin, columns.count()}});
  };
  switch (port.placement) {
    case nn::Placement::kReplicated:
      keep({0, rows}, {0, width}, width);
      break;
    case nn::Placement::kTokens:
      for (std::int64_t p = 0; p < pass.shape.row_pieces; ++p) {
        const grid::Range piece = grid::even_part(rows, pass.shape.row_pieces, p);
        const grid::Range part = pass.shards.own_rows(piece.count());
        keep({piece.begin + part.begin, piece.begin + part.end}, {0, width}, width);
      }
      break;
    case nn::Placement::kFeatures:
      for (std::int64_t s = own.begin; s < own.end; ++s) {
        const grid::Range columns = nn::shard_part(width, port.unit, pass.shape.shards.count, s);
        keep({0, rows}, columns,
             ops::padded_row(columns.count(), port.is_logits ? pass.shape.logit_multiple : 1));
      }
      break;
  }
}

void StepDump::write(comm::Communicator& world, const fs::path& directory) const {
  const FileTimeout timeout(world);
  std::optional<io::ScratchDirectory> scratch;  // on rank 0
  // Of parts as of a checkpoint, which is read and removed again.
  const fs::path root = directory / fmt::format(".step-{:08}", step_);
  const std::string parts = comm::agree_on_first(world, [&] {
    scratch.emplace(root);
    return with_own_advice([&] { return io::begin_checkpoint(root, step_).string(); });
  });
  const std::vector<std::string> texts = comm::agree_texts(world, [&] {
    std::vector<io::TensorSlice> slices;
    for (const auto& [part, kept] : parts_) {
      slices.insert(slices.end(), kept.slices.begin(), kept.slices.end());
    }
    return with_own_advice(
        [&] { return io::text_of(io::write_part(parts, world.rank(), slices)); });
  });
  comm::agree_on_first(world, [&] {
    with_own_advice([&] {
      std::vector<io::PartRecord> records;
      std::ranges::transform(texts, std::back_inserter(records), io::part_record_of);
      const fs::path file = root / "tensors";
      write_safetensors(io::Checkpoint::open(
                            io::commit_checkpoint(root, step_, records, nlohmann::json::object())),
                        file);
      std::error_code error;
      fs::rename(file, file_in(directory, step_), error);
      if (error) {
        fail(ExitCode::kUsage, "cannot write {}: {}", file_in(directory, step_).string(),
             error.message());
      }
    });
  });
}

}  // namespace strata::train
