#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace strata {

/// Lines for people, to standard error and, once opened, to a log file. Every rank has one; only
/// ranks with Output::kPrint write them.
class Log {
 public:
  enum class Output { kPrint, kSilent };

  explicit Log(Output output) : output_(output) {}

  /// Appends all lines, those said before too, to a file, each with the time of day.
  /// Throws: Error(kUsage) where it cannot be opened.
  void open_file(const std::string& path);

  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (output_ == Output::kPrint) {
      line(fmt::format(format, std::forward<Args>(args)...));
    }
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    if (output_ == Output::kPrint) {
      line("warning: " + fmt::format(format, std::forward<Args>(args)...));
    }
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void line(std::string_view text);
  void write(std::string_view text);

  Output output_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::string> early_lines_;  ///< said before the file was open
};

}  // namespace strata
