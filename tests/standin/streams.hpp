#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "record.hpp"

namespace standin {

struct Stream;

/// A place in the order of a stream: the end of its first `count` pieces of work.
struct Position {
  std::shared_ptr<Stream> stream;
  std::uint64_t count = 0;

  [[nodiscard]] bool is_reached() const;
};

/// One piece of work: what to do, after what of another stream.
struct Work {
  std::function<void()> action;
  Position after;
  /// Where the clock's time goes when its turn has come; may be null.
  std::shared_ptr<std::uint64_t> reached_at;
};

/// What was put on a stream while it was recorded.
struct Recording {
  int device = 0;
  std::vector<std::function<void()>> actions;
  /// A call that cannot be recorded came between.
  bool is_broken = false;
};

/// Work that waits. It is done as late as may be: when the host waits for it, or work that it waits
/// for.
struct Stream {
  int device = 0;
  std::deque<Work> waiting;
  std::uint64_t queued = 0;
  std::uint64_t done = 0;
  /// Where work goes while it is recorded; else null.
  std::shared_ptr<Recording> recording;
};

inline bool Position::is_reached() const {
  return stream == nullptr || stream->done >= count;
}

inline void put(Stream& stream, Work work) {
  if (stream.recording != nullptr) {
    // A wait for another stream would draw that one into the recording, and an event of it has no
    // time.
    stream.recording->is_broken |= work.after.stream != nullptr || work.reached_at != nullptr;
    stream.recording->actions.push_back(std::move(work.action));
    return;
  }
  if (standin_records() != 0) {
    record_put(stream, work);
  }
  stream.waiting.push_back(std::move(work));
  ++stream.queued;
}

/// The GPUs' clock: pieces of work with an action, of all streams, that are done.
std::uint64_t pieces_done();

/// Does the work before a position, that of other streams which it waits for before it. All waits
/// are for earlier calls of the host, so they end.
void finish(const Position& position);
/// Does the next piece.
void advance(Stream& stream);

/// The thread that does the GPUs' work. It is one of its own since kernels spoil the thread_local
/// memory of the thread that they run on.
class Worker {
 public:
  /// One caller at a time. Returns when the task is done.
  void run(const std::function<void()>& task);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;
  bool is_started_ = false;
};

}  // namespace standin
