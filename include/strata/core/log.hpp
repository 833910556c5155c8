#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace strata {

/// Prints to standard error. A failure is dropped: nobody may be reading any more.
void print_error(std::string_view text);

/// Lines for people, to standard error and, once opened, to a log file. Every rank has one; only
/// ranks with Output::kPrint write them, as printable_lines(). A line that cannot be written is
/// dropped.
class Log {
 public:
  enum class Output { kPrint, kSilent };

  explicit Log(Output output);
  /// Ends the progress line.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Appends all lines, including earlier ones, to a file, each with the time of day.
  /// Throws: Error(kUsage) where it cannot be opened.
  void open_file(const std::string& path);

  /// Passes the text of each warning to `take`: earlier ones now, later ones as they come. Without
  /// `take`, keeps later ones.
  void on_warning(std::function<void(const std::string&)> take);

  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (output_ == Output::kPrint) {
      line(fmt::format(format, std::forward<Args>(args)...));
    }
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    if (output_ == Output::kPrint) {
      line(kWarning + fmt::format(format, std::forward<Args>(args)...));
    }
  }

  /// A line that the next one of its kind replaces on a terminal; elsewhere a line as any other.
  template <typename... Args>
  void progress(fmt::format_string<Args...> format, Args&&... args) {
    if (output_ == Output::kPrint) {
      progress_line(fmt::format(format, std::forward<Args>(args)...));
    }
  }

 private:
  /// Lines that begin with it are warnings, in texts of several lines too.
  static constexpr const char* kWarning = "warning: ";

  /// What standard error is.
  enum class Screen { kNone, kTerminal };

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void line(std::string_view line_text);
  void progress_line(std::string_view line_text);
  void show_progress() const;
  /// Writes to the log file, or keeps the line until the file is open.
  void keep(std::string_view text);
  void pass_warnings(std::string_view text);
  void write(std::string_view text);

  Output output_;
  Screen screen_ = Screen::kNone;
  std::string progress_;  ///< on the terminal now
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::string> early_lines_;  ///< said before the file was open
  std::function<void(const std::string&)> on_warning_;
  std::vector<std::string> early_warnings_;  ///< said before on_warning()
};

}  // namespace strata
