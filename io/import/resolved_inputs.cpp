#include "import/resolved_inputs.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <span>
#include <string>

#include <unistd.h>

#include "strata/core/error.hpp"

#include "files/posix_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

using Paths = std::vector<fs::path>;

constexpr const char* kDefaultSplit = "0.9,0.1";

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

enum class Held { kFolders, kAny };

/// What is not hidden in a directory.
std::set<fs::path> names_in(const fs::path& directory, Held which) {
  std::set<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const fs::path name = at->path().filename();
    if (!name.string().starts_with('.') && (which == Held::kAny || is_folder(at->path()))) {
      names.insert(name);
    }
  }
  return names;
}

/// Replaces a directory that holds the folders train and test by these.
void take_split_folders(ImportOptions& options) {
  if (options.inputs.size() != 1 || !options.test_inputs.empty()) {
    return;
  }
  const fs::path whole = options.inputs.front();
  const fs::path train = whole / "train";
  const fs::path test = whole / "test";
  // Classes of images may have these names.
  const bool splits =
      is_folder(train) && is_folder(test) &&
      (options.format != ImportFormat::kImages || !names_in(train, Held::kFolders).empty());
  if (!splits) {
    return;
  }
  std::set<fs::path> others =
      names_in(whole, options.format == ImportFormat::kImages ? Held::kFolders : Held::kAny);
  others.erase("train");
  others.erase("test");
  if (!others.empty()) {
    fail(ExitCode::kUsage,
         "{} holds train, test and {}, which is of neither split; give the directories of each, as "
         "in --files={} --test-files={}",
         whole.string(), others.begin()->string(), train.string(), test.string());
  }
  options.inputs = {train};
  options.test_inputs = {test};
}

void add_files(const fs::path& directory, Paths& files) {
  const std::size_t before = files.size();
  std::error_code error;
  for (fs::recursive_directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const bool folder = is_folder(at->path());
    if (at->path().filename().string().starts_with('.')) {
      folder ? at.disable_recursion_pending() : void();
    } else if (!folder) {
      files.push_back(at->path());
    }
  }
  if (error) {
    fail(ExitCode::kData, "cannot list the directory {}: {}", directory.string(), error.message());
  }
  if (files.size() == before) {
    fail(ExitCode::kData, "the directory {} holds no files; fill it or leave it out",
         directory.string());
  }
  std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
}

/// Refuses an output among the data: the import would read what it writes.
void require_output_elsewhere(const ImportOptions& options) {
  std::error_code ignored;
  const fs::path output = fs::weakly_canonical(options.output, ignored);
  const auto begins_with_dot = [](const fs::path& name) { return name.string().starts_with('.'); };
  for (const Paths* const paths : {&options.inputs, &options.test_inputs}) {
    for (const fs::path& path : *paths) {
      const fs::path from = output.lexically_relative(fs::weakly_canonical(path, ignored));
      // Neither files beside the folders of classes are read nor what is hidden.
      const bool among = from == "." ? options.format != ImportFormat::kImages
                                     : !from.empty() && std::ranges::none_of(from, begins_with_dot);
      if (is_folder(path) && among) {
        fail(ExitCode::kUsage,
             "{} would be written among the files of {}, which are read; choose another --output",
             options.output.string(), path.string());
      }
    }
  }
}

/// Copies standard input, which can be read once, to a file that can be read again.
void copy_standard_input(const PendingFile& copy) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  if (::isatty(STDIN_FILENO) != 0) {
    fail(ExitCode::kUsage,
         "the file - is standard input, which is a terminal; pipe or redirect a file into it");
  }
  PosixFile file(copy.temporary());
  std::vector<std::byte> bytes(kPiece);
  for (std::int64_t offset = 0;;) {
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) {
      fail(ExitCode::kData, "cannot read standard input: {}", std::strerror(errno));
    }
    if (count == 0) {
      return;
    }
    if (count > 0) {
      file.write_at(offset, std::span(bytes).first(static_cast<std::size_t>(count)));
      offset += count;
    }
  }
}

Paths files_in(const Paths& paths) {
  Paths files;
  for (const fs::path& path : paths) {
    is_folder(path) ? add_files(path, files) : files.push_back(path);
  }
  return files;
}

}  // namespace

ResolvedInputs::ResolvedInputs(const ImportOptions& given) : options(given) {
  require_output_elsewhere(options);
  for (Paths* const paths :
       {&options.inputs, &options.targets, &options.test_inputs, &options.test_targets}) {
    for (fs::path& path : *paths) {
      if (path == "-") {
        if (standard_input) {
          fail(ExitCode::kUsage, "the file -, standard input, is named twice; name it once");
        }
        standard_input.emplace(given.output / "stdin");
        copy_standard_input(*standard_input);
        path = standard_input->temporary();
      }
    }
  }
  if (options.model == nullptr) {
    take_split_folders(options);
  }
  if (options.documents.held_out > 0.0 && (!options.test_inputs.empty() || !given.split.empty())) {
    fail(ExitCode::kUsage, "--held-out={} and {} both say what is in the test split; leave one out",
         options.documents.held_out,
         given.split.empty() ? "the test files " + options.test_inputs.front().string()
                             : "--split=" + given.split);
  }
  if (options.test_inputs.empty()) {
    options.split = given.split.empty() ? kDefaultSplit : given.split;
  } else if (!given.split.empty()) {
    fail(ExitCode::kUsage,
         "--split={} and the test files {} both say what is in the test split; {}", given.split,
         options.test_inputs.front().string(),
         given.test_inputs.empty()
             ? fmt::format("leave --split out, or give --files {} {}",
                           options.inputs.front().string(), options.test_inputs.front().string())
             : "give one of them");
  }
  if (options.format == ImportFormat::kText || holds_chats(options.format) ||
      options.format == ImportFormat::kCsv || options.format == ImportFormat::kJsonLines ||
      options.model != nullptr) {
    options.inputs = files_in(options.inputs);
    options.test_inputs = files_in(options.test_inputs);
  }
  options.inputs.insert(options.inputs.end(), options.test_inputs.begin(),
                        options.test_inputs.end());
  options.targets.insert(options.targets.end(), options.test_targets.begin(),
                         options.test_targets.end());
}

void require_samples(const ImportOptions& resolved, const SplitCounts& counts,
                     std::string_view unit) {
  if (counts.train == 0 || counts.test == 0) {
    const fs::path& empty =
        counts.train == 0 ? resolved.inputs.front() : resolved.test_inputs.front();
    fail(ExitCode::kData, "the {} files hold no {}: {}", counts.train == 0 ? "train" : "test", unit,
         empty.string());
  }
}

}  // namespace strata::io
