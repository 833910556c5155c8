// Encodes the texts on standard input, each after its length in bytes on a line of its own, and
// prints a line with the ids of each. For SentencePiece and its like, which may change text, a |
// and the bytes that the ids decode to follow.
//   tokenizer_cases encoder.json vocab.bpe
//   tokenizer_cases FILE [PATTERN]        another program's tokenizer, which is also
//                                         written to the directory of FILE

#include <cstdio>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/io/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fmt::print(stderr, "tokenizer_cases encoder.json vocab.bpe | FILE [PATTERN]\n");
    return 2;
  }
  try {
    const std::string second = argc == 3 ? argv[2] : "";
    const bool is_gpt2 = second.ends_with(".bpe");
    const auto tokenizer = is_gpt2 ? strata::io::Tokenizer::gpt2(argv[1], second)
                                   : strata::io::Tokenizer::from_file(argv[1], second);
    if (!is_gpt2) {
      strata::io::write_tokenizer_files(tokenizer, std::filesystem::path(argv[1]).parent_path());
    }
    std::string line;
    while (std::getline(std::cin, line)) {
      std::string text(std::stoull(line), '\0');
      std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
      const auto ids = tokenizer.encode(text, strata::io::Markers::kAsText);
      const std::string decoded = tokenizer.decode(ids);
      const bool may_differ = tokenizer.kind() >= strata::io::TokenizerKind::kSentencePiece;
      if (decoded != text && !may_differ) {
        fmt::print(stderr, "a text of {} bytes is not decoded to what it was\n", text.size());
        return 1;
      }
      fmt::print("{}", fmt::join(ids, " "));
      if (may_differ) {
        fmt::print("|");
        for (const char byte : decoded) {
          fmt::print("{:02x}", static_cast<unsigned char>(byte));
        }
      }
      fmt::print("\n");
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
