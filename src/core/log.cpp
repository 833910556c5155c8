#include "strata/core/log.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

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

/// Opens a regular file for appending, or makes one. A link or FIFO in its place is refused: it may
/// lead to another user's file, or wait for a reader.
std::FILE* open_log(const std::string& path) {
  const int descriptor = ::open(
      path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  const int error = errno;
  struct stat status {};
  const bool regular =
      descriptor >= 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) {
    // ELOOP: a link; ENXIO: a FIFO without a reader, or a socket.
    const bool special = descriptor >= 0 || error == ELOOP || error == ENXIO;
    if (descriptor >= 0) {
      ::close(descriptor);
    }
    fail(ExitCode::kUsage, "cannot write the log {}: {}; {}choose another run.dir", path,
         special ? "it is a link or a special file, a regular file was expected"
                 : std::strerror(error),
         special ? "remove it or " : "");
  }
  return ::fdopen(descriptor, "a");
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
  file_.reset(open_log(path));
  for (const std::string& text : early_lines_) {
    write(text);
  }
  early_lines_.clear();
}

void Log::on_warning(std::function<void(const std::string&)> take) {
  on_warning_ = std::move(take);
  if (on_warning_) {
    for (const std::string& text : std::exchange(early_warnings_, {})) {
      on_warning_(text);
    }
  }
}

void Log::pass_warnings(std::string_view text) {
  for (std::string& line : split_words(text, "\n")) {
    if (line.starts_with(kWarning)) {
      line.erase(0, std::string_view(kWarning).size());
      on_warning_ ? on_warning_(line) : early_warnings_.push_back(std::move(line));
    }
  }
}

void Log::line(std::string_view line_text) {
  const std::string text = printable_lines(line_text);
  print_error(fmt::format("{}{}\n", progress_.empty() ? "" : kErase, text));
  show_progress();
  keep(text);
  pass_warnings(text);
}

void Log::progress_line(std::string_view line_text) {
  const std::string text = printable_lines(line_text);
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
