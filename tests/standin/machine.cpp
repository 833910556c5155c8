#include "machine.hpp"

#include <cstdlib>

namespace standin {
namespace {

std::size_t number_from(const char* variable, std::size_t otherwise) {
  const char* const set = std::getenv(variable);
  return set == nullptr ? otherwise : std::strtoull(set, nullptr, 10);
}

}  // namespace

Machine::Machine()
    : devices(static_cast<int>(number_from("STRATA_STANDIN_GPUS", 0))),
      device_bytes(number_from("STRATA_STANDIN_MEMORY", std::size_t{8} << 30U)) {
  for (int device = 0; device < devices; ++device) {
    default_streams.push_back(std::make_shared<Stream>());
    default_streams.back()->device = device;
  }
}

std::shared_ptr<Stream> Machine::find(cudaStream_t handle) const {
  if (handle == nullptr) {
    const auto device = static_cast<std::size_t>(host_thread().device);
    return device < default_streams.size() ? default_streams[device] : nullptr;
  }
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

void Machine::finish(const std::vector<Position>& positions) {
  bool is_done = true;
  for (const Position& position : positions) {
    is_done = is_done && position.is_reached();
  }
  if (is_done) {
    return;
  }
  worker.run([&] {
    memory.open();
    for (const Position& position : positions) {
      standin::finish(position);
    }
    memory.close();
  });
}

void Machine::finish_device(int device) {
  std::vector<Position> positions;
  for (const auto& stream : default_streams) {
    if (stream->device == device) {
      positions.push_back({stream, stream->queued});
    }
  }
  for (const auto& [handle, stream] : streams) {
    if (stream->device == device) {
      positions.push_back({stream, stream->queued});
    }
  }
  finish(positions);
}

bool Machine::make_progress(const Position& position) {
  if (position.is_reached()) {
    return false;
  }
  finish({{position.stream, position.stream->done + 1}});
  return true;
}

Machine& machine() {
  // Never destroyed: the worker, and what gives memory back at the end, may still use it.
  static auto* const one = new Machine();
  return *one;
}

HostThread& host_thread() {
  static thread_local HostThread own;
  return own;
}

}  // namespace standin
