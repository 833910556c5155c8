#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data_files.hpp"

/// Texts and tokenizer files, made for the tests.
namespace strata::io::test {

/// A byte as encoder.json writes it.
inline std::string byte_character(int byte) {
  int character = byte;
  const auto visible = [](int value) {
    return (value >= '!' && value <= '~') || (value >= 0xA1 && value <= 0xFF && value != 0xAD);
  };
  if (!visible(byte)) {
    character = 256;
    for (int other = 0; other < byte; ++other) {
      character += visible(other) ? 0 : 1;
    }
  }
  if (character < 0x80) {
    return {static_cast<char>(character)};
  }
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

/// The tokens 0 to 255 are the bytes; then come the results of merges, then <|endoftext|>.
struct SmallPairs {
  std::vector<std::pair<std::string, std::string>> merges;

  [[nodiscard]] std::string encoder(const std::string& last = R"("<|endoftext|>")") const {
    std::string json = "{";
    int id = 0;
    const auto add = [&](std::string token) {
      if (token == "\"" || token == "\\") {
        token.insert(0, "\\");
      }
      json += "\"" + token + "\": " + std::to_string(id++) + ", ";
    };
    for (int byte = 0; byte < 256; ++byte) {
      add(byte_character(byte));
    }
    for (const auto& [left, right] : merges) {
      add(left + right);
    }
    return json + last + ": " + std::to_string(id) + "}";
  }

  [[nodiscard]] std::string vocab() const {
    std::string text = "#version: 0.2\n";
    for (const auto& [left, right] : merges) {
      text += left + " " + right + "\n";
    }
    return text;
  }
};

/// Merges with which "the" and " the" are one token: 256 "th", 257 "the", 258 " the", 259 "aa",
/// 260 <|endoftext|>.
inline SmallPairs small_pairs() {
  return {{{"t", "h"}, {"th", "e"}, {"Ġ", "the"}, {"a", "a"}}};
}

inline void write_pairs(const TemporaryDirectory& directory, const SmallPairs& pairs) {
  write_file(directory / "encoder.json", pairs.encoder());
  write_file(directory / "vocab.bpe", pairs.vocab());
}

/// Options for texts that are written to a.txt, b.txt, ...
inline ImportOptions text_options(const TemporaryDirectory& directory, TokenizerKind tokenizer,
                                  const std::vector<std::string>& texts, const std::string& split) {
  ImportOptions options;
  options.format = ImportFormat::kText;
  options.tokenizer = tokenizer;
  char name = 'a';
  for (const std::string& text : texts) {
    options.inputs.push_back(directory / (std::string(1, name++) + ".txt"));
    write_file(options.inputs.back(), text);
  }
  if (tokenizer == TokenizerKind::kGpt2) {
    options.encoder = directory / "encoder.json";
    options.merges = directory / "vocab.bpe";
  }
  options.split = split;
  options.output = directory / "out";
  return options;
}

/// All tokens of a data set.
inline std::vector<std::int64_t> tokens_of(const Dataset& dataset) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(dataset.info().tokens));
  dataset.read_tokens(0, tokens);
  return tokens;
}

}  // namespace strata::io::test
