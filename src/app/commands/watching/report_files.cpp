#include "commands/watching/report_files.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "strata/core/text.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/class_counts.hpp"

#include "commands/output_file.hpp"
#include "commands/watching/timeline_command.hpp"
#include "drawing/page.hpp"
#include "environment/run_directory.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// Files in a directory whose names begin and end so, sorted; links are not followed.
std::vector<fs::path> files_in(const fs::path& directory, const std::string& first,
                               const std::string& last) {
  constexpr std::size_t kMost = 8;
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entries(directory, error), end; !error && entries != end;
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(first) && name.ends_with(last) &&
        entries->symlink_status(ignored).type() == fs::file_type::regular) {
      found.push_back(entries->path());
    }
  }
  std::ranges::sort(found);
  found.resize(std::min(found.size(), kMost));
  return found;
}

}  // namespace

Charts::Charts(fs::path plots) : plots_(std::move(plots)) {
  if (!plots_.empty()) {
    make_directory(plots_, "--plots");
  }
}

void Charts::write(const std::string& svg, const std::string& file) const {
  write_file((plots_ / (file + ".svg")).string(), svg);
}

std::string Charts::add(const std::string& svg, const std::string& title,
                        const std::string& file) const {
  if (!plots_.empty()) {
    write(svg, file);
  }
  return html_figure(svg, title);
}

std::string recorded_steps(const Runs& runs, const Charts& charts) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
  std::string pictures;
  for (const auto& [name, number, run] : runs) {
    for (const fs::path& file : files_in(run.directory(), "timeline.json", "timeline.json")) {
      std::error_code ignored;
      if (fs::file_size(file, ignored) > kMostBytes) {
        pictures += fmt::format(
            "<p class=\"soft\">{}: timeline.json is larger than {}; strata timeline draw shows its "
            "steps.</p>\n",
            escaped(name), bytes_text(kMostBytes));
        continue;
      }
      try {
        const StepPicture picture = step_picture(file.string(), {});
        pictures += charts.add(
            picture.svg,
            fmt::format(
                "{}: step {}, replica by replica; boxes have the number of their microbatch", name,
                picture.step),
            fmt::format("timeline-{}", number));
      } catch (const Error& error) {
        pictures +=
            fmt::format("<p class=\"soft\">{}: {}</p>\n", escaped(name), escaped(error.what()));
      }
    }
  }
  return pictures;
}

std::string results(const Runs& runs, const Charts& charts) {
  constexpr std::int64_t kMostBytes = std::int64_t{4} << 20;
  constexpr std::size_t kMostClasses = 100;
  std::string matrices;
  std::string pictures;
  std::string texts;
  for (const auto& [run_name, number, run] : runs) {
    const auto read = [](const fs::path& file) {
      return io::read_input(file, kMostBytes, ExitCode::kData);
    };
    for (const fs::path& file : files_in(run.directory(), "confusion", ".csv")) {
      const auto table = train::confusion_in(read(file));
      if (!table) {
        fail(ExitCode::kData,
             "{} is not a confusion matrix as strata evaluate --confusion writes it; write it "
             "again, or move the file away",
             file.string());
      }
      if (table->names.size() <= kMostClasses) {
        matrices += charts.add(
            MatrixChart{.title = fmt::format("{}: {}", run_name, file.filename().string()),
                        .names = table->names,
                        .counts = table->counts},
            fmt::format("{}-{}", file.stem().string(), number));
      }
    }
    for (const fs::path& file : files_in(run.directory(), "samples", ".png")) {
      const std::string name = escaped(fmt::format("{}: {}", run_name, file.filename().string()));
      pictures += fmt::format(
          "<figure><img alt=\"{}\" src=\"data:image/png;base64,{}\"/><figcaption>{}</figcaption>"
          "</figure>\n",
          name, base64(read(file)), name);
    }
    for (const fs::path& file : files_in(run.directory(), "generated", ".txt")) {
      constexpr std::size_t kMostText = 4000;
      std::string shown;
      const std::string content = read(file);
      const std::string_view part = std::string_view(content).substr(0, kMostText);
      for (std::size_t begin = 0; begin < part.size();) {
        const std::size_t end = std::min(part.find('\n', begin), part.size());
        shown += escaped(part.substr(begin, end - begin), kMostText) + "\n";
        begin = end + 1;
      }
      texts += fmt::format("<h3>{}</h3>\n<pre>{}{}</pre>\n",
                           escaped(fmt::format("{}: {}", run_name, file.filename().string())),
                           shown, content.size() > kMostText ? "\u2026" : "");
    }
  }
  return html_section("Confusion matrices", matrices, "") +
         (pictures.empty() ? "" : "<h2>Pictures</h2>\n" + pictures) +
         (texts.empty() ? "" : "<h2>Generated text</h2>\n" + texts);
}

}  // namespace strata::app
