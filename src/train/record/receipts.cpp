#include "strata/train/receipts.hpp"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/io/json.hpp"
#include "strata/io/sample_order.hpp"
#include "strata/ops/digest.hpp"
#include "strata/plan/replication.hpp"

namespace strata::train {
namespace {

constexpr const char* kStepLine = "step";
constexpr const char* kSaveLine = "save";
constexpr const char* kStartLine = "start";
constexpr std::string_view kChain = ",\"sha256\":\"";
constexpr std::size_t kHashDigits = 64;
/// What the chain begins with.
constexpr std::string_view kNoLine = "strata receipts 1";

std::string bits_text(double number) {
  return hash_text(std::bit_cast<std::uint64_t>(number));
}

/// The line's hash: of the hash before, and of the line without its own.
std::string chained(std::string_view before, std::string_view body) {
  Sha256 hash;
  hash.update(before);
  hash.update(body);
  return hash.finish();
}

/// The step of a line of the kind; -1 for other lines.
std::int64_t number_in(const nlohmann::json& line, const char* kind) {
  return line.contains(kind) ? io::integer_in(line.at(kind)).value_or(-1) : -1;
}

/// What a line that was chained lacks, as in "lanes, a whole number above 0"; empty: nothing.
std::string lacking(const nlohmann::json& line) {
  const auto has = [&](const char* key, const auto& is) {
    const auto found = line.find(key);
    return found != line.end() && is(*found);
  };
  const auto is_text = [](const nlohmann::json& value) { return value.is_string(); };
  const auto is_count = [](const nlohmann::json& value) {
    return io::integer_in(value).value_or(0) > 0;
  };
  const auto is_digest = [](const nlohmann::json& value) {
    const auto* const text = value.get_ptr<const std::string*>();
    return text != nullptr && text->size() == kDigestDigits &&
           text->find_first_not_of("0123456789abcdef") == std::string::npos;
  };
  const auto lacks = [&](std::initializer_list<const char*> keys, const auto& is,
                         const char* expected) {
    const auto key = std::ranges::find_if_not(keys, [&](const char* k) { return has(k, is); });
    return key == keys.end() ? std::string() : fmt::format("{}, {}", *key, expected);
  };
  std::string lack;
  if (line.contains(kStepLine)) {
    lack = lacks({"loss", "norm", "samples"}, is_text, "a text");
  } else if (line.contains(kSaveLine)) {
    lack = lacks({"files"}, is_text, "a text");
  } else {
    lack = lacks({"run"}, is_text, "a text") +
           lacks({"lanes", "shards", "microbatch", "loss_pieces", plan::kPartsKey}, is_count,
                 "a whole number above 0") +
           lacks(
               {"environment"}, [](const nlohmann::json& value) { return value.is_object(); },
               "an object");
  }
  for (const char* const key : {"tensors", "weights", "state", "gradients"}) {
    const bool needed = std::string_view(key) == "tensors" && !line.contains(kStepLine);
    if (lack.empty() && (needed || line.contains(key))) {
      lack = lacks({key}, is_digest, "a digest of 48 hexadecimal digits");
    }
  }
  return lack;
}

/// Whether a file's last byte is no line feed.
bool ends_torn(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

/// Reads a receipts file up to a line that is bad once `step_needed` was read, as one that a crash
/// tore; passes each line and its text. Returns: the hash of the last line.
template <typename Use>
std::string read_chain(const std::filesystem::path& path, std::int64_t step_needed,
                       const Use& use) {
  std::string before(kNoLine);
  std::int64_t number = 0;
  std::int64_t step = -1;
  std::int64_t bad = 0;
  std::string what;
  const auto refuse = [&](std::string why) {
    bad = number;
    what = std::move(why);
  };
  io::read_lines(path, ExitCode::kCheckpoint, [&](std::string_view text) {
    ++number;
    if (bad > 0) {
      return;
    }
    const std::size_t at = text.rfind(kChain);
    const std::optional<nlohmann::json> line = io::parse_json(text);
    if (at == std::string_view::npos || !line || !line->is_object() ||
        text.size() != at + kChain.size() + kHashDigits + 2) {
      return refuse("is no receipt");
    }
    std::string hash = chained(before, text.substr(0, at));
    if (text.substr(at + kChain.size(), kHashDigits) != hash) {
      return refuse(
          "does not follow the line before: it or the line before was changed, or lines between "
          "them were removed");
    }
    if (number_in(*line, kStartLine) < 0 && number_in(*line, kStepLine) < 0 &&
        number_in(*line, kSaveLine) < 0) {
      return refuse("is of no kind that this version knows");
    }
    if (const std::string lack = lacking(*line); !lack.empty()) {
      return refuse("lacks " + lack);
    }
    const std::int64_t start = number_in(*line, kStartLine);
    const std::int64_t next = number_in(*line, kStepLine);
    if (start >= 0 && start >= step) {
      step = start;  // later than the step before where a full disk took the receipts between
    } else if (step < 0 || start >= 0) {
      return refuse(fmt::format("starts after step {}, where a start after step {} was expected",
                                start, std::max<std::int64_t>(0, step)));
    } else if (next >= 0 && next == step + 1) {
      step = next;
    } else if (next >= 0) {
      return refuse(fmt::format("is of step {}, where step {} was expected", next, step + 1));
    }
    use(*line, text);
    before = std::move(hash);
  });
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  if (bad > 0 && step_needed == kAll && bad == number && ends_torn(path)) {
    fail(ExitCode::kCheckpoint,
         "{}: line {}, the last, is torn, as by a crash; continue the run with --run.resume=auto, "
         "which drops it",
         path.string(), bad);
  }
  if (bad > 0 && step < step_needed) {
    fail(ExitCode::kCheckpoint,
         "{}: line {} {}; the receipts before it are whole. Restore the file from a copy, or move "
         "it away, with which the steps so far have no receipts",
         path.string(), bad, what);
  }
  return before;
}

/// The words of the digests.
template <typename Digests, typename Use>
void for_words(Digests& digests, const Use& use) {
  for (auto* const digest : {&digests.weights, &digests.state, &digests.gradients}) {
    use(digest->sum);
    use(digest->check);
    use(digest->place);
  }
}

bool is_digest_field(std::string_view field) {
  return field == "weights" || field == "state" || field == "gradients";
}

/// The elements of the shard's part that are consecutive in the tensor are a row.
ops::DigestPlaces places_of(const io::TensorSlice& slice) {
  const Shape& shape = slice.global_shape;
  const std::int64_t all = std::max<std::int64_t>(1, shape.count());
  if (slice.shard.dimension == io::ShardSlice::kNotSplit) {
    return {.begin = slice.range.begin, .row = all, .stride = all};
  }
  std::int64_t inner = 1;
  for (std::size_t d = shape.rank(); std::cmp_greater(d, slice.shard.dimension + 1); --d) {
    inner *= shape[d - 1];
  }
  return {.begin = slice.range.begin,
          .row = slice.shard.count * inner,
          .stride = shape[static_cast<std::size_t>(slice.shard.dimension)] * inner,
          .first = slice.shard.first * inner};
}

}  // namespace

Digest digest_of(const io::TensorSlice& slice, device::Stream& stream) {
  const device::HostView host(slice.data, stream);
  return ops::digest_of(slice.name, host.view(), places_of(slice));
}

Digest digest_of(const io::TensorSlice& slice, ops::Context& context) {
  return ops::digest_of(context, slice.name, slice.data, places_of(slice));
}

Digest digest_of(std::span<const io::TensorSlice> slices, device::Stream& stream) {
  Digest digest;
  for (const io::TensorSlice& slice : slices) {
    digest += digest_of(slice, stream);
  }
  return digest;
}

StepDigests& StepDigests::operator+=(const StepDigests& other) {
  weights += other.weights;
  state += other.state;
  gradients += other.gradients;
  return *this;
}

std::vector<double> halves_of(const StepDigests& digests) {
  std::vector<double> halves;
  for_words(digests, [&](std::uint64_t word) {
    halves.push_back(static_cast<double>(word >> 32U));
    halves.push_back(static_cast<double>(word & 0xFFFFFFFFU));
  });
  return halves;
}

StepDigests digests_in(std::span<const double> halves) {
  StepDigests digests;
  std::size_t at = 0;
  for_words(digests, [&](std::uint64_t& word) {
    word = (static_cast<std::uint64_t>(halves[at]) << 32U) +
           static_cast<std::uint64_t>(halves[at + 1]);
    at += 2;
  });
  return digests;
}

bool has_digests(const plan::Plan& plan, std::int64_t step) {
  const std::int64_t every = plan.config.run.receipts;
  return every > 0 && (step % every == 0 || step == plan.total_steps);
}

std::uint64_t samples_hash(const plan::Plan& plan, const io::Dataset& data, std::int64_t step) {
  const config::RunConfig& config = plan.config;
  const std::int64_t batch = config.batch.global;
  const bool windows = plan.train_data.task == io::Task::kNextToken &&
                       config.data.sampling == io::Sampling::kWindows;
  std::vector<std::int64_t> places(static_cast<std::size_t>(batch));
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t position = (step - 1) * batch + i;
    places[static_cast<std::size_t>(i)] =
        windows ? io::window_at(config.run.seed, data.info().tokens - data.info().input_shape[0],
                                position)
        : data.mixture() != nullptr ? io::mixed_sample_at(config.run.seed, data, position).sample
                                    : io::sample_at(config.run.seed, data.info().samples, position);
  }
  return hash_of(std::as_bytes(std::span(places)));
}

bool determines_numbers(std::string_view key) {
  // Settings that change no number, or name files.
  constexpr std::string_view kLeftOut[]{
      "data.train",      "data.test",           "data.reader_threads",  "data.accept_change",
      "train.log_every", "train.metrics_every", "train.evaluate_every", "train.evaluate_batches",
      "train.check",     "train.check_every",   "train.repeat_every",   "train.patience",
      "train.recompute", "train.epochs",        "train.steps"};
  constexpr std::string_view kSections[]{"model.",    "lora.",  "optimizer.", "schedule.", "batch.",
                                         "numerics.", "local.", "data.",      "train."};
  const bool is_in = std::ranges::any_of(
      kSections, [&](std::string_view section) { return key.starts_with(section); });
  const bool is_grid = key == "numerics.lanes" || key == "numerics.shards" ||
                       key == "batch.micro" || key == "numerics.loss_pieces";
  return key == "run.seed" || (is_in && !is_grid && std::ranges::count(kLeftOut, key) == 0);
}

std::string identity_hash(const plan::Plan& plan) {
  std::string text = fmt::format("run.seed = {}\ndata = {}\n", plan.config.run.seed,
                                 hash_text(plan.train_data.checksum));
  if (plan.parts > 1) {  // else the resolved schedule has what follows from the number of steps
    text += fmt::format("steps = {}\n", plan.total_steps);
  }
  for (const std::string& layer : plan.config.model.layers) {
    text += fmt::format("{} = {}\n", config::kLayerKey, layer);
  }
  for (const config::Option& option : config::option_table()) {
    if (option.key != "run.seed" && determines_numbers(option.key)) {
      text += fmt::format("{} = {}\n", option.key, option.get(plan.config));
    }
  }
  return sha256_text(text);
}

nlohmann::ordered_json start_facts(const plan::Plan& plan,
                                   const nlohmann::ordered_json& environment) {
  const plan::VirtualGrid grid = plan::virtual_grid_of(plan);
  return {{"run", identity_hash(plan)},    {"data", hash_text(plan.train_data.checksum)},
          {"lanes", grid.lanes},           {"shards", grid.shards},
          {"microbatch", grid.microbatch}, {"loss_pieces", grid.loss_pieces},
          {plan::kPartsKey, plan.parts},   {"environment", environment}};
}

ReceiptsWriter::ReceiptsWriter(const std::filesystem::path& path, std::int64_t step,
                               const Digest& tensors, const nlohmann::ordered_json& start,
                               const std::filesystem::path& checkpoint)
    : last_(kNoLine) {
  const std::string digest = digest_text(tensors);
  std::string kept;
  bool has_save = false;
  if (step > 0 && std::filesystem::exists(path)) {
    bool drops = false;
    static_cast<void>(
        read_chain(path, step, [&](const nlohmann::json& line, std::string_view text) {
          drops = drops || number_in(line, kStepLine) > step || number_in(line, kStartLine) > step;
          if (!checkpoint.empty() && number_in(line, kSaveLine) == step &&
              line.value("tensors", "") != digest) {
            fail(
                ExitCode::kCheckpoint,
                "the checkpoint of step {} is not the one that the run wrote: its tensors have the "
                "digest {}, and {} has {}; restore it from a copy, or delete it to go on from an "
                "earlier one",
                step, digest, path.string(), line.value("tensors", ""));
          }
          if (!drops) {
            has_save = has_save || number_in(line, kSaveLine) == step;
            kept.append(text).push_back('\n');
            last_ = text.substr(text.size() - kHashDigits - 2, kHashDigits);
          }
        }));
  }
  lines_.emplace(path, kept);
  nlohmann::ordered_json object{{kStartLine, step}, {"tensors", digest}};
  object.update(start);
  line(object);
  if (!checkpoint.empty() && !has_save) {
    write(SaveReceipt{.step = step, .tensors = tensors, .files = checkpoint_files(checkpoint)});
  }
}

void ReceiptsWriter::line(const nlohmann::ordered_json& object) {
  std::string text = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.pop_back();  // the brace
  std::string hash = chained(last_, text);
  // Without this line the chain ends before it.
  if (!failed_ && lines_->append(fmt::format("{}{}{}\"}}\n", text, kChain, hash))) {
    last_ = std::move(hash);
  } else {
    failed_ = true;
  }
}

void ReceiptsWriter::write(const StepReceipt& receipt) {
  nlohmann::ordered_json object{{kStepLine, receipt.step},
                                {"loss", bits_text(receipt.loss)},
                                {"norm", bits_text(receipt.grad_norm)},
                                {"samples", hash_text(receipt.samples)}};
  if (receipt.skipped) {
    object["skipped"] = true;
  }
  if (receipt.digests) {
    object["weights"] = digest_text(receipt.digests->weights);
    object["state"] = digest_text(receipt.digests->state);
    object["gradients"] = digest_text(receipt.digests->gradients);
  }
  line(object);
}

void ReceiptsWriter::write(const SaveReceipt& receipt) {
  line({{kSaveLine, receipt.step},
        {"tensors", digest_text(receipt.tensors)},
        {"files", receipt.files}});
}

Receipts Receipts::read(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    fail(ExitCode::kCheckpoint,
         "there is no {}; a run writes it with run.receipts = on, from its start", path.string());
  }
  Receipts receipts;
  receipts.head_ =
      read_chain(path, std::numeric_limits<std::int64_t>::max(),
                 [&](const nlohmann::json& line, std::string_view text) {
                   for (const auto& [kind, index] : {std::pair(kStartLine, &receipts.starts_),
                                                     std::pair(kStepLine, &receipts.steps_),
                                                     std::pair(kSaveLine, &receipts.saves_)}) {
                     if (const std::int64_t step = number_in(line, kind); step >= 0) {
                       (*index)[step] = receipts.lines_.size();
                     }
                   }
                   receipts.lines_.emplace_back(text);
                 });
  if (receipts.lines_.empty()) {
    fail(ExitCode::kCheckpoint, "{} has no lines; restore it from a copy", path.string());
  }
  return receipts;
}

std::vector<std::int64_t> Receipts::starts() const {
  std::vector<std::int64_t> starts;
  std::ranges::transform(starts_, std::back_inserter(starts),
                         [](const auto& start) { return start.first; });
  return starts;
}

bool Receipts::lack_checkpoint(std::int64_t step) const {
  const auto next = starts_.lower_bound(step);
  return !saves_.contains(step) && next != starts_.end() && !steps_.contains(next->first);
}

nlohmann::json Receipts::line(const Index& index, std::int64_t step) const {
  const auto found = index.find(step);
  return found == index.end() ? nlohmann::json() : nlohmann::json::parse(lines_[found->second]);
}

nlohmann::json Receipts::start_before(std::int64_t step) const {
  const auto next = starts_.lower_bound(step);
  return line(starts_, (next == starts_.begin() ? next : std::prev(next))->first);
}

std::string file_sha256(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  std::vector<char> piece(std::size_t{1} << 20);
  while (file) {
    file.read(piece.data(), std::ssize(piece));
    hash.update(std::string_view(piece.data(), static_cast<std::size_t>(file.gcount())));
  }
  if (!file.eof()) {
    fail(ExitCode::kCheckpoint, "cannot read {}", path.string());
  }
  return hash.finish();
}

std::string files_hash(std::vector<std::pair<std::string, std::string>> files) {
  std::ranges::sort(files);
  std::string text;
  for (const auto& [name, hash] : files) {
    text += fmt::format("{} {}\n", hash, name);
  }
  return sha256_text(text);
}

std::string checkpoint_files(const std::filesystem::path& directory) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (const std::string name = entry.path().filename().string(); name.starts_with("part")) {
      files.emplace_back(name, file_sha256(entry.path()));
    }
  }
  return files_hash(std::move(files));
}

void require_receipt(const Receipts& receipts, const io::CheckpointEntry& checkpoint) {
  const nlohmann::json save = receipts.save(checkpoint.step);
  if (save.is_null()) {
    fail(ExitCode::kCheckpoint,
         "the receipts have no line about {}: lines at their end were removed or, as on a full "
         "disk, not written, the checkpoint is of another run, or the run was killed while it "
         "saved. Restore receipts.jsonl or the checkpoint from a copy; if nothing was removed, "
         "continue the run with --run.resume=auto, which writes the line of its newest checkpoint",
         checkpoint.directory.string());
  }
  static_cast<void>(io::Checkpoint::open(checkpoint.directory));  // its name is its step's
  if (checkpoint_files(checkpoint.directory) != save.value("files", "")) {
    fail(ExitCode::kCheckpoint,
         "{} is not the checkpoint that the run wrote: the SHA-256 of its files is another than in "
         "the receipts; restore it from a copy, or delete it",
         checkpoint.directory.string());
  }
}

std::string differing_field(const nlohmann::json& left, const nlohmann::json& right) {
  for (const char* const field :
       {"samples", "weights", "state", "loss", "gradients", "norm", "skipped"}) {
    // One of the two may have fewer digests.
    if (is_digest_field(field) && (!left.contains(field) || !right.contains(field))) {
      continue;
    }
    if (left.value(field, nlohmann::json()) != right.value(field, nlohmann::json())) {
      return field;
    }
  }
  return "";
}

std::string differing_tensor(const std::string& field, const nlohmann::json& left,
                             const nlohmann::json& right, const std::vector<std::string>& tensors) {
  if (!is_digest_field(field)) {
    return "";
  }
  const Digest one = digest_in(left.at(field));
  const Digest other = digest_in(right.at(field));
  const auto tensor = std::ranges::find_if(
      tensors, [&](const std::string& name) { return differ_in(name, one, other); });
  return tensor != tensors.end() ? " in " + *tensor : ", and not in one tensor alone";
}

Comparison compare_receipts(const Receipts& run, const Receipts& replay, std::int64_t first,
                            std::int64_t last, const std::vector<std::string>& tensors) {
  const std::int64_t begun = replay.starts().front();
  Comparison found;
  const auto differs = [&](std::int64_t step, const std::string& field, std::string difference) {
    found.step = step;
    found.field = field;
    found.difference = std::move(difference);
    return found;
  };
  nlohmann::json before = run.start(begun);
  before = before.is_null() ? run.save(begun) : before;
  if (!before.is_null() && before.at("tensors") != replay.start(begun).at("tensors")) {
    return differs(
        begun + 1, "tensors",
        fmt::format(
            "the state before step {} differs: checkpoint.init or the checkpoint is not the "
            "one that the run began with",
            begun + 1));
  }
  found.equal = begun + 1;
  std::int64_t missing = 0;  // the first step without a receipt
  for (std::int64_t step = first; step <= last; ++step) {
    const nlohmann::json was = run.step(step);
    const nlohmann::json is = replay.step(step);
    if (was.is_null() || is.is_null()) {
      missing = missing == 0 ? step : missing;
      continue;
    }
    const bool has_digests = was.contains("weights") && is.contains("weights");
    found.digests += has_digests ? 1 : 0;
    const std::string field = differing_field(was, is);
    if (has_digests && field != "samples" && field != "weights" && field != "state") {
      found.equal = step;
    }
    if (!field.empty()) {
      return differs(step, field,
                     fmt::format("step {}: {} differ{}: the run has {}, the replay {}", step, field,
                                 differing_tensor(field, was, is, tensors),
                                 was.value(field, nlohmann::json()).dump(),
                                 is.value(field, nlohmann::json()).dump()));
    }
  }
  nlohmann::json was = run.save(last);
  was = was.is_null() ? run.start(last) : was;
  const nlohmann::json is = replay.save(last);
  if (!was.is_null() && !is.is_null()) {
    ++found.digests;
    if (was.at("tensors") != is.at("tensors")) {
      return differs(
          last, "tensors",
          fmt::format("the checkpoint of step {} differs: its tensors have the digest {}, those of "
                      "the replay {}",
                      last, was.at("tensors").dump(), is.at("tensors").dump()));
    }
  }
  return missing == 0 ? found
                      : differs(missing, kNoReceipt,
                                fmt::format("step {}: the {} has no receipt", missing,
                                            run.has_step(missing) ? "replay" : "run"));
}

}  // namespace strata::train
