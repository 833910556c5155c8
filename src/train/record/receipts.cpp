#include "strata/train/receipts.hpp"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/json.hpp"
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
    fail(
        ExitCode::kCheckpoint,
        "{}: line {}, the last, is torn, as by a crash, or while the run writes it; continue a run "
        "that ended with --run.resume=auto, which drops it",
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

}  // namespace

ReceiptsWriter::ReceiptsWriter(const std::filesystem::path& path, std::int64_t step,
                               const Digest& tensors, const nlohmann::ordered_json& start,
                               const std::filesystem::path& checkpoint, io::Syncing syncing)
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
  lines_.emplace(path, kept, syncing);
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
  std::vector<char> piece(std::size_t{1} << 17);  // stays in the cache
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
         "saved or has saved only now. Restore receipts.jsonl or the checkpoint from a copy; if "
         "nothing was removed, continue the run with --run.resume=auto, which writes the line of "
         "its newest checkpoint",
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

}  // namespace strata::train
