#include "strata/train/test_fault.hpp"

#include <cstdlib>
#include <sstream>
#include <string>

namespace strata::train {

std::optional<TestFault> TestFault::of_rank(std::int64_t rank) {
  const char* text = std::getenv("STRATA_TEST_FAULT");
  if (text == nullptr) {
    return std::nullopt;
  }
  std::istringstream in(text);
  std::string place;
  char colon = ' ';
  std::int64_t step = 0;
  std::int64_t victim = -1;
  std::getline(in, place, ':') >> step >> colon >> victim;
  const auto kind = enum_from_name<FaultPlace>(place);
  if (!in || !kind || victim != rank) {
    return std::nullopt;
  }
  TestFault fault;
  fault.place_ = *kind;
  fault.step_ = step;
  std::getline(in.ignore(), fault.runs_);
  return fault;
}

double test_delay_seconds(std::int64_t rank) {
  const char* text = std::getenv("STRATA_TEST_DELAY");
  std::istringstream in(text == nullptr ? "" : text);
  std::int64_t slow = -1;
  char colon = ' ';
  double seconds = 0.0;
  in >> slow >> colon >> seconds;
  return in && slow == rank ? seconds : 0.0;
}

bool TestFault::happens(FaultPlace place, std::int64_t step) {
  if (place != place_ || step != step_) {
    return false;
  }
  step_ = 0;
  return true;
}

bool TestFault::hits_run(std::int64_t step, std::size_t run) const {
  return place_ == FaultPlace::kProduct && step == step_ &&
         runs_.find(std::to_string(run)) != std::string::npos;
}

}  // namespace strata::train
