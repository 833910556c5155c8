// Encodes the texts on standard input, each after its length in bytes on a line of its own, and
// prints a line with the ids of each.
//   tokenizer_cases encoder.json vocab.bpe

#include <cstdio>
#include <iostream>
#include <string>

#include <fmt/format.h>

#include "strata/io/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "tokenizer_cases encoder.json vocab.bpe\n");
    return 2;
  }
  try {
    const auto tokenizer = strata::io::Tokenizer::gpt2(argv[1], argv[2]);
    std::string line;
    while (std::getline(std::cin, line)) {
      std::string text(std::stoull(line), '\0');
      std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
      const auto ids = tokenizer.encode(text, strata::io::Markers::kAsText);
      if (tokenizer.decode(ids) != text) {
        fmt::print(stderr, "a text of {} bytes is not decoded to what it was\n", text.size());
        return 1;
      }
      fmt::print("{}\n", fmt::join(ids, " "));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
