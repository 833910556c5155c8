#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "strata/core/blocked_signals.hpp"

#include "files/json_lines.hpp"
#include "import/input_pieces.hpp"

namespace strata::io {

/// What several threads make of the lines in parts of files of JSON lines, in their order. An
/// error is thrown where its line's turn comes, so that neither results nor errors depend on the
/// threads.
template <typename Result>
class ParallelLines {
 public:
  /// make(line, place, thread): each thread has a number.
  using Make = std::function<Result(std::string_view, const LinePlace&, std::size_t)>;

  /// `batch_bytes`: of lines that are read before threads go to work.
  ParallelLines(const std::vector<std::filesystem::path>& files, std::vector<InputPart> parts,
                std::int64_t threads, Make make, std::size_t batch_bytes = std::size_t{8} << 20)
      : files_(files),
        parts_(std::move(parts)),
        threads_(static_cast<std::size_t>(std::max<std::int64_t>(1, threads))),
        make_(std::move(make)),
        batch_bytes_(batch_bytes) {}

  /// Advances to the next result; false at the end. Throws: as `make` and JsonLines.
  [[nodiscard]] bool next() {
    if (++at_ >= entries_.size()) {
      read();
      run();
      at_ = 0;
      if (entries_.empty()) {
        return false;
      }
    }
    if (entries_[at_].error) {
      std::rethrow_exception(entries_[at_].error);
    }
    return true;
  }
  [[nodiscard]] Result& result() { return *entries_[at_].result; }
  /// Where it is from.
  [[nodiscard]] LinePlace place() const { return place_of(entries_[at_]); }

 private:
  struct Entry {
    std::size_t file = 0;
    std::int64_t begin = 0;   ///< of its lines in the file
    std::int64_t number = 0;  ///< of the line
    std::string line;
    std::optional<Result> result = {};
    std::exception_ptr error = {};
  };

  [[nodiscard]] LinePlace place_of(const Entry& entry) const {
    return {files_[entry.file], entry.begin, entry.number};
  }

  /// Reads the lines of the next results.
  void read() {
    entries_.clear();
    for (std::size_t bytes = 0; bytes < batch_bytes_;) {
      if (!lines_ && opened_ == parts_.size()) {
        return;
      }
      try {
        if (!lines_) {
          const InputPart& part = parts_[opened_++];
          lines_.emplace(files_[part.file], part.begin, part.end);
        }
        if (!lines_->next_line()) {
          lines_.reset();
          continue;
        }
      } catch (...) {
        entries_.push_back({.error = std::current_exception()});
        return;
      }
      Entry& entry = entries_.emplace_back(Entry{.file = parts_[opened_ - 1].file,
                                                 .begin = lines_->place().begin,
                                                 .number = lines_->line(),
                                                 .line = std::string(lines_->text())});
      bytes += sizeof(Entry) + entry.line.size();
    }
  }

  void run() {
    std::atomic<std::size_t> next = 0;
    const auto work = [&](std::size_t thread) {
      for (std::size_t i = next++; i < entries_.size(); i = next++) {
        Entry& entry = entries_[i];
        if (entry.error) {
          continue;
        }
        try {
          entry.result = make_(entry.line, place_of(entry), thread);
        } catch (...) {
          entry.error = std::current_exception();
        }
        std::string().swap(entry.line);
      }
    };
    std::vector<std::jthread> threads;
    {
      const BlockedSignals blocked;
      for (std::size_t thread = 1; thread < threads_ && thread < entries_.size(); ++thread) {
        try {
          threads.emplace_back(work, thread);
        } catch (const std::system_error&) {
          break;  // no more threads can be started: there is one at least
        }
      }
    }
    work(0);
  }

  const std::vector<std::filesystem::path>& files_;
  std::vector<InputPart> parts_;
  std::size_t threads_;
  Make make_;
  std::size_t batch_bytes_;
  std::size_t opened_ = 0;
  std::optional<JsonLines> lines_;
  std::vector<Entry> entries_;
  std::size_t at_ = 0;
};

}  // namespace strata::io
