#include "streams.hpp"

#include <thread>

#include "machine.hpp"

namespace standin {
namespace {

std::uint64_t clock_pieces = 0;

}  // namespace

std::uint64_t pieces_done() {
  return clock_pieces;
}

void advance(Stream& stream) {
  const Work work = std::move(stream.waiting.front());
  stream.waiting.pop_front();
  finish(work.after);
  if (work.action && standin_records() != 0) {
    const Memory::Touched touched = machine().memory.touched_by(work.action);
    record_done(stream, touched.read_bytes, touched.written_bytes);
    ++clock_pieces;
  } else if (work.action) {
    work.action();
    ++clock_pieces;
  }
  if (work.reached_at != nullptr) {
    *work.reached_at = clock_pieces;
  }
  ++stream.done;
}

void finish(const Position& position) {
  while (!position.is_reached()) {
    advance(*position.stream);
  }
}

void Worker::run(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  if (!is_started_) {
    is_started_ = true;
    std::thread([this] { serve(); }).detach();
  }
  task_ = &task;
  changed_.notify_all();
  changed_.wait(lock, [this] { return task_ == nullptr; });
}

void Worker::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return task_ != nullptr; });
    (*task_)();
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace standin
