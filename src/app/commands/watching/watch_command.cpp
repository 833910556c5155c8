#include <algorithm>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <cwchar>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/train/run_view.hpp"

#include "commands/commands.hpp"
#include "commands/watching/loss_curve.hpp"
#include "commands/watching/step_parts.hpp"

namespace strata::app {
namespace {

struct Size {
  std::size_t columns = 80;
  std::size_t rows = 24;
};

enum class Screen { kNone, kTerminal };

Size size_of_terminal() {
  constexpr std::size_t kLeast = 10;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {.columns = std::max<std::size_t>(size.ws_col, kLeast), .rows = size.ws_row};
}

/// Columns that a character takes on a terminal.
std::size_t columns_of(char32_t character) {
  return static_cast<std::size_t>(std::max(wcwidth(static_cast<wchar_t>(character)), 0));
}

/// A text cut to this many columns, and the columns that it takes.
struct Fitted {
  std::string text;
  std::size_t columns = 0;
};
Fitted fitted(const std::string& text, std::size_t columns, Characters characters) {
  constexpr std::size_t kMostBytes = 4000;
  const std::string clean = printable(text, kMostBytes);
  Fitted result;
  for (std::string_view rest = clean; !rest.empty();) {
    const Utf8Character character = first_character(rest);
    const bool shown = characters == Characters::kUnicode || character.value < 0x80;
    const std::size_t width = shown ? columns_of(character.value) : 1;
    if (result.columns + width > columns) {
      break;
    }
    result.text += shown ? rest.substr(0, character.bytes) : "?";
    result.columns += width;
    rest.remove_prefix(character.bytes);
  }
  return result;
}

/// Sums over the last steps.
struct Recent {
  double seconds = 0.0;  ///< mean of a step
  double rate = 0.0;     ///< per second
  const char* unit = "samples";
  std::vector<std::pair<const char*, double>> shares;  ///< of the time of a step

  explicit Recent(const train::MetricsTable& steps) {
    constexpr std::size_t kRecords = 100;
    const train::MetricsTable::Sum all = steps.sum("step_seconds", kRecords);
    if (all.total <= 0.0) {
      return;
    }
    seconds = all.mean();
    const bool tokens = !steps.column("tokens_per_second").empty();
    unit = tokens ? "tokens" : "samples";
    // A step's work is its rate times its time, and equal for all steps.
    const std::span<const double> rates =
        steps.column(tokens ? "tokens_per_second" : "samples_per_second");
    const double last = steps.last("step_seconds");
    rate = rates.empty() ? 0.0 : rates.back() * last / seconds;
    for (const auto& [key, name] : kStepParts) {
      shares.emplace_back(name, steps.sum(key, kRecords).total / all.total);
    }
  }
};

/// Texts joined into lines of at most this many columns.
std::vector<std::string> flowed(const std::vector<std::string>& texts, std::size_t columns,
                                Characters characters) {
  std::vector<std::string> lines;
  std::size_t used = 0;
  for (const std::string& text : texts) {
    const Fitted piece = fitted(text, columns, characters);
    if (lines.empty() || used + 2 + piece.columns > columns) {
      lines.push_back(piece.text);
      used = piece.columns;
    } else {
      lines.back() += "  " + piece.text;
      used += 2 + piece.columns;
    }
  }
  return lines;
}

std::string finite_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : "not finite";
}

std::vector<std::string> progress_of(const train::RunView& run) {
  const train::MetricsTable& steps = run.metrics("train");
  const train::MetricsTable& tests = run.metrics("evaluate");
  const std::int64_t step = run.step();
  const std::int64_t total = run.total_steps();
  std::vector<std::string> texts{total > 0 ? fmt::format("step {}/{}", step, total)
                                           : fmt::format("step {}", step)};
  if (steps.records == 0) {
    texts.emplace_back("no step yet");
    return texts;
  }
  const Recent recent(steps);
  texts.push_back(fmt::format("loss {}", finite_text(steps.last("loss"))));
  constexpr double kMostCounted = 1e15;
  texts.push_back(fmt::format("{} {}/s",
                              std::abs(recent.rate) < kMostCounted
                                  ? count_text(std::llround(recent.rate))
                                  : finite_text(recent.rate),
                              recent.unit));
  texts.push_back(fmt::format("{:.4g} ms/step", 1e3 * recent.seconds));
  if (run.state().kind == train::RunState::Kind::kRunning && total > step) {
    texts.push_back(
        fmt::format("ETA {}", duration_text(recent.seconds * static_cast<double>(total - step))));
  }
  if (tests.records > 0) {
    texts.push_back(fmt::format("test loss {} (step {:.0f})", finite_text(tests.last("loss")),
                                tests.last("step")));
    if (const double accuracy = tests.last("accuracy"); std::isfinite(accuracy)) {
      texts.push_back(fmt::format("accuracy {} %", number_text(100.0 * accuracy, 2)));
    }
    if (const double margin = tests.last("margin"); std::isfinite(margin)) {
      texts.push_back(fmt::format("margin {}", number_text(margin)));
    }
  }
  return texts;
}

/// The whole view. Lines are at most as long as the terminal is wide, and fit its rows.
std::vector<std::string> view_of(const train::RunView& run, Size size, Characters characters) {
  std::vector<std::string> lines = flowed({run.name(), run.state().text}, size.columns, characters);
  const auto add = [&](const std::vector<std::string>& texts) {
    std::ranges::move(flowed(texts, size.columns, characters), std::back_inserter(lines));
  };
  add(progress_of(run));
  std::vector<std::string> account;
  for (const auto& [name, share] : Recent(run.metrics("train")).shares) {
    account.push_back(fmt::format("{} {:.1f} %", name, 100.0 * share));
  }
  add(account);
  if (const auto& saved = run.checkpoint()) {
    add({fmt::format("checkpoint: step {}", saved->step),
         std::isfinite(saved->seconds) ? duration_text(saved->seconds) + " ago"
                                       : "of unknown age"});
  } else {
    add({"no checkpoint yet"});
  }
  for (const auto& [rank, text] : run.history().slow) {
    add({"slow: " + text});
  }
  const std::span<const double> losses = run.metrics("train").column("loss");
  constexpr std::size_t kLeastRows = 3;
  constexpr std::size_t kMostRows = 16;
  // The last row of a terminal holds the cursor.
  const std::size_t used = lines.size() + 2;
  if (std::ranges::any_of(losses, [](double loss) { return std::isfinite(loss); }) &&
      size.rows >= used + kLeastRows && size.columns > 2 * kLossLabel) {
    const std::span<const double> steps = run.metrics("train").column("step");
    const std::string first = fmt::format("{:.0f}", steps.front());
    const std::string last = fmt::format("{:.0f}", steps.back());
    const std::size_t columns = size.columns - kLossLabel;
    std::ranges::move(
        loss_curve(steps, losses, columns, std::min(size.rows - used, kMostRows), characters),
        std::back_inserter(lines));
    lines.push_back(fitted(fmt::format("{:>8}  {}{:>{}}", "loss", first, last,
                                       columns - std::min(columns, first.size())),
                           size.columns, characters)
                        .text);
  }
  if (lines.size() >= size.rows && size.rows > 1) {
    lines.resize(size.rows - 1);
  }
  return lines;
}

/// Holds back the signals that end the view or change its size, until wait() takes them.
class Signals {
 public:
  enum class Event { kTime, kResize, kEnd };

  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) {
      sigaddset(&set_, signal);
    }
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] Event wait(double seconds) const {
    const auto whole = static_cast<std::time_t>(seconds);
    const timespec time{.tv_sec = whole,
                        .tv_nsec = std::lround(1e9 * (seconds - static_cast<double>(whole)))};
    const int signal = sigtimedwait(&set_, nullptr, &time);
    return signal == SIGWINCH ? Event::kResize : signal > 0 ? Event::kEnd : Event::kTime;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

/// Draws over the last view, without a blank screen between; shows the cursor again at the end.
class Display {
 public:
  Display() { fmt::print("\x1b[?25l\x1b[2J"); }
  ~Display() {
    std::fputs("\x1b[?25h", stdout);
    std::fflush(stdout);
  }
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;

  void show(const std::vector<std::string>& lines) const {
    std::string text = "\x1b[H";
    for (const std::string& line : lines) {
      text += "\x1b[2K" + line + "\n";
    }
    fmt::print("{}\x1b[J", text);
    std::fflush(stdout);
  }
};

/// Looks at the run again. Why it could not, where the file system fails for now; else empty.
std::string look_at(train::RunView& run) {
  try {
    run.update();
    return "";
  } catch (const FileSystemError& error) {
    if (!error.is_passing()) {
      throw;
    }
    return fmt::format("{}; tries again", error.what());
  }
}

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    fmt::print("{}\n", line);
  }
  std::fflush(stdout);
}

void watch_on_terminal(train::RunView& run, double interval, Characters characters) {
  const Signals signals;
  const Display display;
  std::string problem;
  for (;;) {
    const Size size = size_of_terminal();
    std::vector<std::string> lines = view_of(run, size, characters);
    if (!problem.empty()) {
      lines.back() = fitted(problem, size.columns, characters).text;
    }
    display.show(lines);
    if (run.state().kind == train::RunState::Kind::kFinished) {
      return;
    }
    const Signals::Event event = signals.wait(interval);
    if (event == Signals::Event::kEnd) {
      return;
    }
    if (event == Signals::Event::kTime) {
      problem = look_at(run);
    }
  }
}

void watch_by_lines(train::RunView& run, double interval, Characters characters) {
  const Signals signals;
  std::string last;
  for (;;) {
    std::vector<std::string> texts = progress_of(run);
    // An ETA changes with the clock; a line needs news.
    texts.push_back(run.state().text.substr(0, run.state().text.find(" (")));
    const std::string key = fmt::format("{} {} {}", run.step(), run.metrics("evaluate").records,
                                        static_cast<int>(run.state().kind));
    if (key != last) {
      constexpr std::size_t kUnlimited = 1000;
      print_lines(flowed(texts, kUnlimited, characters));
    }
    last = key;
    if (run.state().kind == train::RunState::Kind::kFinished ||
        signals.wait(interval) == Signals::Event::kEnd) {
      return;
    }
    if (const std::string problem = look_at(run); !problem.empty()) {
      print_lines({printable_lines(problem)});
    }
  }
}

ExitCode watch(const config::CommandLine& line) {
  constexpr double kLeastSeconds = 0.1;
  constexpr double kMostSeconds = 86400.0;
  const double interval = line.number("interval", 2.0, kLeastSeconds, kMostSeconds);
  std::setlocale(LC_CTYPE, "");
  const Characters characters =
      std::string_view(nl_langinfo(CODESET)) == "UTF-8" ? Characters::kUnicode : Characters::kAscii;
  const char* const kind = std::getenv("TERM");
  const Screen screen =
      isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb"
          ? Screen::kTerminal
          : Screen::kNone;
  train::RunView run(line.positions().front());
  if (line.has("once")) {
    Size size = size_of_terminal();
    print_lines(view_of(
        run, {.columns = size.columns, .rows = std::max<std::size_t>(size.rows, 24)}, characters));
  } else if (screen == Screen::kTerminal) {
    watch_on_terminal(run, interval, characters);
  } else {
    watch_by_lines(run, interval, characters);
  }
  return ExitCode::kDone;
}

}  // namespace

Commands watch_commands() {
  return {
      {.name = "watch",
       .purpose = "the progress of a run on a terminal",
       .synopses = {{"RUN [--interval=S] [--once]"}},
       .about =
           R"(Shows a run's loss curve, step, speed, time account, last checkpoint and slow ranks. It
reads the files in the run's directory again every S seconds, on any node that sees them. It ends when the run has done
all steps, or with Ctrl-C. Without a terminal it prints a line at each change.)",
       .options = {{"interval", "S", "seconds between looks (default 2)"},
                   {"once", "", "shows the run once and ends"}},
       .positions = config::Positions::kOne,
       .needs = "one run",
       .alone = watch}};
}

}  // namespace strata::app
