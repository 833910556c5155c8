#pragma once

#include "strata/comm/communicator.hpp"

namespace strata::train {

/// A longer timeout while files are read and written: ranks with few files wait for others.
class FileTimeout {
 public:
  explicit FileTimeout(comm::Communicator& group) : group_(group), before_(group.timeout()) {
    constexpr double kTimesLonger = 10.0;
    set({.seconds = kTimesLonger * before_.seconds});
  }
  ~FileTimeout() { set(before_); }
  FileTimeout(const FileTimeout&) = delete;
  FileTimeout& operator=(const FileTimeout&) = delete;

 private:
  void set(comm::Timeout timeout) {
    group_.set_timeout(timeout);
    if (group_.activity() != nullptr) {
      group_.activity()->set_file_seconds(timeout.seconds);
    }
  }

  comm::Communicator& group_;
  comm::Timeout before_;
};

}  // namespace strata::train
