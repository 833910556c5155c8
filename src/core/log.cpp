#include "strata/core/log.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "strata/core/error.hpp"

namespace strata {
namespace {

/// Returns to the start of the line and erases it.
constexpr const char* kErase = "\r\x1b[K";

/// Columns that fit on one line of the terminal.
std::size_t columns() {
  constexpr std::size_t kUnknown = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1
                                                                         : kUnknown - 1;
}

}  // namespace

void print_error(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

Log::Log(Output output)
    : output_(output), screen_(isatty(STDERR_FILENO) == 1 ? Screen::kTerminal : Screen::kNone) {}

Log::~Log() {
  if (!progress_.empty()) {
    print_error("\n");
  }
}

void Log::open_file(const std::string& path) {
  if (output_ == Output::kSilent) {
    return;
  }
  file_.reset(std::fopen(path.c_str(), "a"));
  if (!file_) {
    fail(ExitCode::kUsage, "cannot write the log {}: {}; choose another run.dir", path,
         std::strerror(errno));
  }
  for (const std::string& text : early_lines_) {
    write(text);
  }
  early_lines_.clear();
}

void Log::line(std::string_view text) {
  print_error(fmt::format("{}{}\n", progress_.empty() ? "" : kErase, text));
  show_progress();
  keep(text);
}

void Log::progress_line(const std::string& text) {
  if (screen_ == Screen::kNone) {
    line(text);
    return;
  }
  progress_ = text;
  show_progress();
  keep(text);
}

void Log::show_progress() const {
  if (!progress_.empty()) {
    print_error(kErase + progress_.substr(0, columns()));
  }
}

void Log::keep(std::string_view text) {
  if (file_) {
    write(text);
  } else {
    early_lines_.emplace_back(text);
  }
}

void Log::write(std::string_view text) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  // Errors are ignored: a full disk must not end a run because of a log line.
  std::fputs(fmt::format("{:%Y-%m-%d %H:%M:%S} {}\n", fmt::localtime(now), text).c_str(),
             file_.get());
  std::fflush(file_.get());
}

}  // namespace strata
