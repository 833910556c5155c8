#pragma once

#include <string>
#include <utility>

#include "strata/comm/communicator.hpp"

namespace strata::comm {

/// What another group's begin_*() gave, as an operation of this one.
class Forwarded final : public Request::Operation {
 public:
  explicit Forwarded(Request request) : request_(std::move(request)) {}

  bool test() override { return request_.test(); }
  [[nodiscard]] std::string awaited() const override { return request_.awaited(); }

 private:
  Request request_;
};

}  // namespace strata::comm
