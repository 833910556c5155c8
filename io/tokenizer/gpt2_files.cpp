#include <algorithm>
#include <array>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "files/input_stream.hpp"
#include "tokenizer/byte_characters.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

using Ids = std::unordered_map<std::string, std::uint32_t>;

std::vector<std::string> read_encoder(const std::filesystem::path& path,
                                      const ByteCharacters& characters) {
  const nlohmann::json ids =
      parse_json(InputStream(path).read_whole(kMostTokenizerBytes)).value_or(nlohmann::json());
  if (!ids.is_object() || ids.empty()) {
    fail(ExitCode::kData,
         "{} is not an encoder.json: a JSON object of tokens and their ids was expected",
         path.string());
  }
  std::vector<std::string> tokens(ids.size());
  std::vector<bool> seen(ids.size());
  for (const auto& [token, value] : ids.items()) {
    const std::int64_t id = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    if (id < 0 || id >= std::ssize(tokens)) {
      fail(ExitCode::kData,
           "{} gives the token \"{}\" the id {}; {} tokens have the ids 0 to {} without holes",
           path.string(), token, value.dump(), tokens.size(), tokens.size() - 1);
    }
    const auto index = static_cast<std::size_t>(id);
    if (seen[index]) {
      fail(ExitCode::kData, "{} gives the id {} to two tokens; one is \"{}\"", path.string(), id,
           token);
    }
    seen[index] = true;
    auto bytes = characters.bytes_of(token);
    if (!bytes || bytes->empty()) {
      fail(ExitCode::kData, "{}: the token \"{}\" is not written in GPT-2's byte characters",
           path.string(), token);
    }
    tokens[index] = *std::move(bytes);
  }
  return tokens;
}

class MergeReader {
 public:
  MergeReader(const std::filesystem::path& path, const std::filesystem::path& encoder,
              const ByteCharacters& characters, const Ids& ids)
      : path_(path), encoder_(encoder), characters_(characters), ids_(ids) {}

  void add(std::int64_t number, std::string_view line) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) {
      return;
    }
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      fail(ExitCode::kData, "{} line {}: \"{}\"; two tokens with a space between were expected",
           path_.string(), number, line);
    }
    const std::uint32_t left = id_of(line.substr(0, space), number);
    const std::uint32_t right = id_of(line.substr(space + 1), number);
    std::string result(line);
    result.erase(space, 1);
    static_cast<void>(id_of(result, number));
    const auto [earlier, is_new] = lines_.emplace(std::uint64_t{left} << 32U | right, number);
    if (!is_new) {
      fail(ExitCode::kData, "{} line {} repeats the merge of line {}", path_.string(), number,
           earlier->second);
    }
    merges_.push_back({left, right});
  }

  [[nodiscard]] std::vector<std::array<std::uint32_t, 2>> release() { return std::move(merges_); }

 private:
  [[nodiscard]] std::uint32_t id_of(std::string_view token, std::int64_t number) const {
    const auto bytes = characters_.bytes_of(token);
    const auto id = bytes ? ids_.find(*bytes) : ids_.end();
    if (id == ids_.end()) {
      fail(ExitCode::kData,
           "{} line {}: \"{}\" is no token of {}; give the two files that belong "
           "together",
           path_.string(), number, token, encoder_.string());
    }
    return id->second;
  }

  const std::filesystem::path& path_;
  const std::filesystem::path& encoder_;
  const ByteCharacters& characters_;
  const Ids& ids_;
  std::unordered_map<std::uint64_t, std::int64_t> lines_;
  std::vector<std::array<std::uint32_t, 2>> merges_;
};

}  // namespace

BytePairTables read_gpt2_files(const std::filesystem::path& encoder,
                               const std::filesystem::path& merges) {
  const ByteCharacters characters;
  BytePairTables tables;
  tables.tokens = read_encoder(encoder, characters);
  Ids ids;
  for (const std::string& token : tables.tokens) {
    ids.emplace(token, static_cast<std::uint32_t>(ids.size()));
  }
  require_bytes(tables.tokens, encoder);
  MergeReader reader(merges, encoder, characters, ids);
  const std::string text = InputStream(merges).read_whole(kMostTokenizerBytes);
  for_each_line(text,
                [&](std::int64_t number, std::string_view line) { reader.add(number, line); });
  tables.merges = reader.release();
  if (tables.merges.empty()) {
    fail(ExitCode::kData, "{} holds no merges", merges.string());
  }
  const auto separator = ids.find(kGpt2Separator);
  if (separator != ids.end()) {
    tables.separator = separator->second;
  }
  return tables;
}

}  // namespace strata::io
