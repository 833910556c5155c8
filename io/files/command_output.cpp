#include "strata/io/command_output.hpp"

#include <array>
#include <cstdio>
#include <memory>

namespace strata::io {

CommandOutput output_of(const std::string& command) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 16;
  struct Close {
    void operator()(std::FILE* pipe) const { static_cast<void>(::pclose(pipe)); }
  };
  std::unique_ptr<std::FILE, Close> pipe(::popen(command.c_str(), "re"));
  CommandOutput output;
  std::array<char, 4096> piece{};
  while (pipe && output.text.size() < kMostBytes) {
    const std::size_t bytes = std::fread(piece.data(), 1, piece.size(), pipe.get());
    if (bytes == 0) {
      break;
    }
    output.text.append(piece.data(), bytes);
  }
  output.succeeded = pipe && ::pclose(pipe.release()) == 0;
  return output;
}

}  // namespace strata::io
