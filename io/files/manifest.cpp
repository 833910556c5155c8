#include "files/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "files/posix_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "strata-manifest 1\n";
constexpr std::string_view kChecksum = "checksum ";
/// Bounds the memory that a file of another kind takes.
constexpr std::int64_t kMostManifestBytes = std::int64_t{1} << 30;

/// The ranges of `size` bytes outside the payload.
std::vector<grid::Range> outside(const std::vector<grid::Range>& payload, std::int64_t size) {
  std::vector<grid::Range> ranges;
  std::int64_t at = 0;
  for (const grid::Range& range : payload) {
    if (range.begin > at) {
      ranges.push_back({at, range.begin});
    }
    at = range.end;
  }
  if (at < size) {
    ranges.push_back({at, size});
  }
  return ranges;
}

std::uint64_t checksum_of(const InputFile& file, const std::vector<grid::Range>& payload) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  StreamingHash hash;
  std::vector<std::byte> block;
  for (const grid::Range& range : outside(payload, file.size())) {
    for (std::int64_t at = range.begin; at < range.end; at += std::ssize(block)) {
      block.resize(static_cast<std::size_t>(std::min(kBlockBytes, range.end - at)));
      file.read_at(at, block);
      hash.update(block);
    }
  }
  return hash.digest();
}

std::vector<grid::Range> merged(std::vector<grid::Range> ranges) {
  std::ranges::sort(ranges, {}, &grid::Range::begin);
  std::vector<grid::Range> result;
  for (const grid::Range& range : ranges) {
    if (!result.empty() && range.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, range.end);
    } else if (range.count() > 0) {
      result.push_back(range);
    }
  }
  return result;
}

bool parse_hash(std::string_view text, std::uint64_t& hash) {
  constexpr int kBase = 16;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, kBase);
  return text.size() == hash_text(0).size() && error == std::errc() &&
         end == text.data() + text.size();
}

/// Appends a range such as "2048-20480".
bool parse_range(std::string_view text, std::vector<grid::Range>& payload, std::int64_t size) {
  const std::size_t dash = std::min(text.find('-'), text.size());
  const std::int64_t least = payload.empty() ? 0 : payload.back().end;
  grid::Range range;
  if (dash == text.size() || !parse_int64(text.substr(0, dash), range.begin) ||
      !parse_int64(text.substr(dash + 1), range.end) || range.begin < least ||
      range.end < range.begin || range.end > size) {
    return false;
  }
  payload.push_back(range);
  return true;
}

std::optional<ManifestEntry> parse_entry(std::string_view line) {
  const std::vector<std::string> words = split_words(line, " ");
  ManifestEntry entry;
  if (words.size() < 3 || !is_file_name(words[0]) || !parse_int64(words[1], entry.bytes) ||
      entry.bytes < 0 || !parse_hash(words[2], entry.checksum)) {
    return std::nullopt;
  }
  entry.file = words[0];
  for (std::size_t i = 3; i < words.size(); ++i) {
    if (!parse_range(words[i], entry.payload, entry.bytes)) {
      return std::nullopt;
    }
  }
  return entry;
}

/// The entries of a manifest's text; nothing where it is damaged.
std::optional<std::vector<ManifestEntry>> parse(std::string_view text) {
  const std::size_t last = kChecksum.size() + hash_text(0).size() + 1;
  if (text.size() < kFirstLine.size() + last || !text.starts_with(kFirstLine)) {
    return std::nullopt;
  }
  std::string_view body = text.substr(0, text.size() - last);
  if (text.substr(body.size()) != fmt::format("{}{}\n", kChecksum, hash_text(hash_of(body)))) {
    return std::nullopt;
  }
  std::vector<ManifestEntry> entries;
  for (body.remove_prefix(kFirstLine.size()); !body.empty();) {
    const std::size_t end = body.find('\n');
    const auto entry = parse_entry(body.substr(0, end));
    if (!entry || end == std::string_view::npos) {
      return std::nullopt;
    }
    entries.push_back(*entry);
    body.remove_prefix(end + 1);
  }
  return entries;
}

}  // namespace

ManifestEntry manifest_entry_of(const fs::path& path, std::vector<grid::Range> payload,
                                ExitCode code) {
  const InputFile file(path, code);
  ManifestEntry entry{.file = path.filename().string(),
                      .bytes = file.size(),
                      .checksum = 0,
                      .payload = merged(std::move(payload))};
  entry.checksum = checksum_of(file, entry.payload);
  return entry;
}

fs::path manifest_path(const fs::path& master) {
  return fs::path(master).replace_extension(".manifest");
}

std::string Manifest::text() const {
  std::string text(kFirstLine);
  for (const ManifestEntry& entry : entries_) {
    text += fmt::format("{} {} {}", entry.file, entry.bytes, hash_text(entry.checksum));
    for (const grid::Range& range : entry.payload) {
      text += fmt::format(" {}-{}", range.begin, range.end);
    }
    text += '\n';
  }
  return text + fmt::format("{}{}\n", kChecksum, hash_text(hash_of(text)));
}

std::optional<Manifest> Manifest::read(const fs::path& master, ExitCode code) {
  const fs::path path = manifest_path(master);
  if (!regular_file_bytes(path, code)) {
    return std::nullopt;
  }
  const InputFile file(path, code);
  std::string text;
  if (file.size() <= kMostManifestBytes) {
    text.resize(static_cast<std::size_t>(file.size()));
    file.read_at(0, std::as_writable_bytes(std::span(text)));
  }
  auto entries = parse(text);
  if (!entries) {
    fail(code, "{} is damaged or of a later version; copy {} with all its files again",
         path.string(), master.string());
  }
  std::ranges::stable_sort(*entries, {}, &ManifestEntry::file);
  return Manifest(std::move(*entries));
}

void Manifest::write(const fs::path& path, ExitCode code) const {
  write_whole_file(path, text(), code);
}

void Manifest::check(const fs::path& path, ExitCode code, std::string_view advice) const {
  const std::string name = path.filename().string();
  const auto entry = std::ranges::lower_bound(entries_, name, {}, &ManifestEntry::file);
  if (entry == entries_.end() || entry->file != name) {
    fail(code, "{} is not in the manifest beside it: it belongs to another set of files; {}",
         path.string(), advice);
  }
  const InputFile file(path, code);
  if (file.size() != entry->bytes) {
    fail(code, "{} is damaged: it has {} bytes, {} were written; {}", path.string(), file.size(),
         entry->bytes, advice);
  }
  if (checksum_of(file, entry->payload) != entry->checksum) {
    fail(code, "{} is damaged: its {} does not match the checksum in the manifest; {}",
         path.string(), entry->payload.empty() ? "content" : "header", advice);
  }
}

std::string no_manifest_text(const fs::path& master) {
  return fmt::format(
      "{} has no manifest: it was written by an earlier version, so damage in HDF5's own headers "
      "may go unnoticed",
      master.string());
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace strata::io
