#pragma once

#include "strata/comm/communicator.hpp"

namespace strata::train {

/// A longer timeout while files are read and written: ranks with few files wait for others.
class FileTimeout {
 public:
  explicit FileTimeout(comm::Communicator& group) : group_(group), before_(group.timeout()) {
    constexpr double kTimesLonger = 10.0;
    group.set_timeout({.seconds = kTimesLonger * before_.seconds});
  }
  ~FileTimeout() { group_.set_timeout(before_); }
  FileTimeout(const FileTimeout&) = delete;
  FileTimeout& operator=(const FileTimeout&) = delete;

 private:
  comm::Communicator& group_;
  comm::Timeout before_;
};

}  // namespace strata::train
