#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "strata/core/error.hpp"

namespace strata::test {

/// What `action` says when it fails with the expected exit code.
inline std::string error_of(const std::function<void()>& action, ExitCode expected) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace strata::test
