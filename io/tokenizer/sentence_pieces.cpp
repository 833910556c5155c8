#include "tokenizer/sentence_pieces.hpp"

#include <cstdlib>
#include <exception>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

#include "tokenizer/character_map.hpp"

#if STRATA_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#else
namespace sentencepiece {

/// Stands for the library in a build without it, which refuses every model.
// NOLINTBEGIN(readability-identifier-naming): the library's names.
struct SentencePieceProcessor {
  struct Status {
    static bool ok() { return false; }
    static const char* message() { return ""; }
  };
  static Status LoadFromSerializedProto(const std::string& /*model*/) { return {}; }
  template <typename Pieces>
  static Status Encode(std::string_view /*text*/, Pieces* /*pieces*/) {
    return {};
  }
  static int GetPieceSize() { return 0; }
  static int bos_id() { return -1; }
  static int eos_id() { return -1; }
  static int unk_id() { return -1; }
  static int PieceToId(std::string_view /*piece*/) { return -1; }
  static const char* IdToPiece(int /*id*/) { return ""; }
  static bool IsControl(int /*id*/) { return false; }
  static bool IsUnknown(int /*id*/) { return false; }
  static bool IsByte(int /*id*/) { return false; }
};
// NOLINTEND(readability-identifier-naming)

}  // namespace sentencepiece
#endif

namespace strata::io {
namespace {

/// What the library writes for a space (U+2581).
constexpr std::string_view kSpace = "\xE2\x96\x81";
constexpr std::string_view kUnknownText = " \xE2\x81\x87 ";

}  // namespace

struct SentencePieces::Library {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieces::SentencePieces(std::string model, const std::string& name)
    : model_(std::move(model)) {
#if !STRATA_HAVE_SENTENCEPIECE
  fail(ExitCode::kUsage,
       "{} is a model of SentencePiece, and this strata was built without that library; install "
       "libsentencepiece-dev and build strata again",
       name);
#endif
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::kData, "{} is no model of SentencePiece ({}); copy the file again", name, why);
  };
  if (!character_maps_are_sound(model_)) {
    refuse("its character map is damaged");
  }
  auto library = std::make_unique<Library>();
  std::vector<std::string> pieces;
  try {
    auto status = library->processor.LoadFromSerializedProto(model_);
    if (status.ok()) {
      status = library->processor.Encode("a b", &pieces);
    }
    if (!status.ok() || library->processor.GetPieceSize() == 0) {
      refuse(status.ok() ? "it has no pieces" : printable(status.message()));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse(printable(error.what()));
  }
  library_ = std::move(library);
  std::string joined;
  for (const std::string& piece : pieces) {
    joined += piece;
  }
  puts_space_before_ = joined.starts_with(kSpace);
  can_cut_ = puts_space_before_ &&
             library_->processor.PieceToId(kSpace) != library_->processor.unk_id() &&
             pieces_end_at_spaces();
}

SentencePieces::~SentencePieces() = default;

std::int64_t SentencePieces::vocabulary() const {
  return library_->processor.GetPieceSize();
}

std::int64_t SentencePieces::separator() const {
  return end() >= 0 ? end() : begin();
}

std::int64_t SentencePieces::begin() const {
  return library_->processor.bos_id();
}

std::int64_t SentencePieces::end() const {
  return library_->processor.eos_id();
}

std::vector<std::uint32_t> SentencePieces::control_symbols() const {
  std::vector<std::uint32_t> symbols;
  for (int id = 0; id < library_->processor.GetPieceSize(); ++id) {
    if (library_->processor.IsControl(id)) {
      symbols.push_back(static_cast<std::uint32_t>(id));
    }
  }
  return symbols;
}

std::string SentencePieces::piece(std::uint32_t id) const {
  return library_->processor.IdToPiece(static_cast<int>(id));
}

std::int64_t SentencePieces::id_of(const std::string& piece) const {
  const int id = library_->processor.PieceToId(piece);
  return id >= 0 && library_->processor.IdToPiece(id) == piece ? id : -1;
}

std::string SentencePieces::text_of(std::uint32_t id) const {
  const auto& processor = library_->processor;
  const int number = static_cast<int>(id);
  if (processor.IsControl(number)) {
    return "";
  }
  if (processor.IsUnknown(number)) {
    return std::string(kUnknownText);
  }
  std::string text = piece(id);
  if (processor.IsByte(number)) {
    // As in <0x0A>; the library refuses others.
    return std::string(1, static_cast<char>(std::strtol(text.c_str() + 3, nullptr, 16)));
  }
  for (std::size_t at = text.find(kSpace); at != std::string::npos; at = text.find(kSpace, at)) {
    text.replace(at, kSpace.size(), " ");
  }
  return text;
}

void SentencePieces::encode(std::string_view text, std::vector<std::uint32_t>& ids) const {
  std::vector<int> found;
  const auto status = library_->processor.Encode(text, &found);
  if (!status.ok()) {
    fail(ExitCode::kData, "SentencePiece cannot encode a text of {} bytes: {}", text.size(),
         printable(status.message()));
  }
  ids.insert(ids.end(), found.begin(), found.end());
}

std::size_t SentencePieces::cut_of(std::string_view text) const {
  constexpr std::size_t kPart = 4096;
  const auto visible = [&](std::size_t at) { return text[at] > 0x20 && text[at] < 0x7F; };
  if (can_cut_) {
    for (std::size_t at = text.find(' ', kPart); at < text.size() - 1;
         at = text.find(' ', at + 1)) {
      if (visible(at - 1) && visible(at + 1)) {
        return at;
      }
    }
  }
  return std::string_view::npos;
}

bool SentencePieces::pieces_end_at_spaces() const {
  for (int id = 0; id < library_->processor.GetPieceSize(); ++id) {
    std::string_view rest = library_->processor.IdToPiece(id);
    while (rest.starts_with(kSpace)) {
      rest.remove_prefix(kSpace.size());
    }
    if (rest.find(kSpace) != std::string_view::npos || rest.find(' ') != std::string_view::npos) {
      return false;
    }
  }
  return true;
}

}  // namespace strata::io
