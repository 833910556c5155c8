#include "tokenizer/rank_file.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

#include "tokenizer/byte_characters.hpp"

namespace strata::io {
namespace {

// The splits of one token are tried, each with a hash of its bytes. Published tokens are shorter.
constexpr std::size_t kLongestToken = 1024;

/// The ranks of p50k leave out the id of its end of text.
constexpr std::size_t kP50kIds = 50'281;
constexpr std::uint32_t kP50kEnd = 50'256;

/// Source: llama3's llama/tokenizer.py as published with the model.
std::vector<AddedToken> llama3_special_tokens() {
  std::vector<AddedToken> tokens;
  const auto add = [&](const std::string& text) {
    tokens.push_back({static_cast<std::uint32_t>(128'000 + tokens.size()), text});
  };
  int reserved = 0;
  const auto reserve = [&](int count) {
    for (int i = 0; i < count; ++i) {
      add(fmt::format("<|reserved_special_token_{}|>", reserved++));
    }
  };
  add("<|begin_of_text|>");
  add("<|end_of_text|>");
  reserve(4);
  add("<|start_header_id|>");
  add("<|end_header_id|>");
  reserve(1);
  add("<|eot_id|>");
  reserve(246);
  return tokens;
}

/// The special tokens of published files, which the number of their ranks tells; the first
/// separates documents. Source: tiktoken's openai_public.py for r50k, p50k, cl100k and o200k.
std::vector<AddedToken> special_tokens(const std::vector<std::string>& tokens,
                                       std::string_view pattern) {
  const std::size_t ranks = tokens.size();
  if (ranks == 128'000 && pattern == kLlama3Expression) {
    return llama3_special_tokens();
  }
  if (ranks == kP50kIds && tokens[kP50kEnd].empty()) {
    return {{kP50kEnd, kGpt2Separator}};
  }
  if (ranks == 100'256) {
    return {{100'257, kGpt2Separator},
            {100'258, "<|fim_prefix|>"},
            {100'259, "<|fim_middle|>"},
            {100'260, "<|fim_suffix|>"},
            {100'276, "<|endofprompt|>"}};
  }
  if (ranks == 199'998) {
    return {{199'999, kGpt2Separator}, {200'018, "<|endofprompt|>"}};
  }
  return {{static_cast<std::uint32_t>(ranks), kGpt2Separator}};
}

/// Tokens by rank; of p50k, whose ranks leave out the end of a text, one is empty.
std::vector<std::string> read_ranks(std::string_view text, const std::filesystem::path& path) {
  struct Entry {
    std::string token;
    std::int64_t rank = 0;
    std::int64_t line = 0;
  };
  std::vector<Entry> entries;
  for_each_line(text, [&](std::int64_t number, std::string_view line) {
    if (line.empty()) {
      return;
    }
    const std::size_t space = std::min(line.find(' '), line.size());
    auto token = from_base64(line.substr(0, space));
    std::int64_t rank = -1;
    if (!token || token->size() > kLongestToken ||
        !parse_int64(std::string(line.substr(std::min(space + 1, line.size()))), rank) ||
        rank < 0) {
      fail(ExitCode::kData,
           "{} line {}: \"{}\"; a token of at most {} bytes in base64, a space and its rank were "
           "expected (the other tokenizer files are tokenizer.json and models of SentencePiece)",
           path.string(), number, printable(line, 60), kLongestToken);
    }
    entries.push_back({*std::move(token), rank, number});
  });
  const bool p50k = entries.size() + 1 == kP50kIds &&
                    std::ranges::find(entries, kP50kEnd, &Entry::rank) == entries.end();
  const std::size_t count = p50k ? kP50kIds : entries.size();
  std::vector<std::string> tokens(count);
  std::vector<std::int64_t> lines(count);
  for (Entry& entry : entries) {
    if (entry.rank >= std::ssize(tokens)) {
      fail(ExitCode::kData, "{} line {} has the rank {}; {} tokens have the ranks 0 to {}",
           path.string(), entry.line, entry.rank, tokens.size(), tokens.size() - 1);
    }
    const auto rank = static_cast<std::size_t>(entry.rank);
    if (lines[rank] > 0) {
      fail(ExitCode::kData, "{} line {} repeats the rank {} of line {}", path.string(), entry.line,
           entry.rank, lines[rank]);
    }
    lines[rank] = entry.line;
    tokens[rank] = std::move(entry.token);
  }
  return tokens;
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr std::size_t kGroup = 4;
  if (text.empty() || text.size() % kGroup != 0) {
    return std::nullopt;
  }
  const std::size_t digits = text.ends_with("==")  ? text.size() - 2
                             : text.ends_with('=') ? text.size() - 1
                                                   : text.size();
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char character : text.substr(0, digits)) {
    const std::size_t digit = kDigits.find(character);
    if (digit == std::string_view::npos) {
      return std::nullopt;
    }
    bits = (bits << 6U | static_cast<std::uint32_t>(digit)) & 0xFFFFU;
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> static_cast<unsigned>(count) & 0xFFU);
    }
  }
  return bytes;
}

BytePairTables parse_rank_file(std::string_view text, const std::string& pattern,
                               const std::filesystem::path& path) {
  BytePairTables tables;
  tables.tokens = read_ranks(text, path);
  tables.splits = {{pattern}};
  tables.order = MergeOrder::kLowestResult;
  tables.whole_words = WholeWords::kYes;
  require_bytes(tables.tokens, path);
  tables.added = special_tokens(tables.tokens, pattern);
  std::unordered_map<std::string_view, std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < tables.tokens.size(); ++rank) {
    const std::string& token = tables.tokens[rank];
    const auto [earlier, is_new] = ranks.emplace(token, rank);
    if (!is_new) {
      fail(ExitCode::kData, "{} has the token {} twice, with the ranks {} and {}", path.string(),
           quoted_text(token), earlier->second, rank);
    }
    if (std::ranges::find(tables.added, token, &AddedToken::text) != tables.added.end()) {
      fail(ExitCode::kData, "{} has the special token {} among its ranks", path.string(), token);
    }
  }
  for (const std::string& token : tables.tokens) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(std::string_view(token).substr(0, cut));
      const auto right = ranks.find(std::string_view(token).substr(cut));
      if (left != ranks.end() && right != ranks.end()) {
        tables.merges.push_back({left->second, right->second});
      }
    }
  }
  for (const AddedToken& token : tables.added) {
    tables.tokens.resize(std::max(tables.tokens.size(), std::size_t{token.id} + 1));
    if (!tables.tokens[token.id].empty()) {
      fail(ExitCode::kData, "{} gives the rank {} to {}, where {} was expected", path.string(),
           token.id, quoted_text(tables.tokens[token.id]), token.text);
    }
    tables.tokens[token.id] = token.text;
  }
  // Of Llama 3 <|end_of_text|>.
  tables.separator = tables.added[tables.added.front().text == "<|begin_of_text|>" ? 1 : 0].id;
  return tables;
}

}  // namespace strata::io
