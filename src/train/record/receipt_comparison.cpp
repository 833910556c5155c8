#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "strata/train/receipts.hpp"

namespace strata::train {
namespace {

bool is_digest_field(std::string_view field) {
  return field == "weights" || field == "state" || field == "gradients";
}

}  // namespace

std::string differing_field(const nlohmann::json& left, const nlohmann::json& right) {
  for (const char* const field :
       {"samples", "weights", "state", "loss", "gradients", "norm", "skipped"}) {
    // One of the two may have fewer digests.
    if (is_digest_field(field) && (!left.contains(field) || !right.contains(field))) {
      continue;
    }
    if (left.value(field, nlohmann::json()) != right.value(field, nlohmann::json())) {
      return field;
    }
  }
  return "";
}

std::string differing_tensor(const std::string& field, const nlohmann::json& left,
                             const nlohmann::json& right, const std::vector<std::string>& tensors) {
  if (!is_digest_field(field)) {
    return "";
  }
  const Digest one = digest_in(left.at(field));
  const Digest other = digest_in(right.at(field));
  const auto tensor = std::ranges::find_if(
      tensors, [&](const std::string& name) { return differ_in(name, one, other); });
  return tensor != tensors.end() ? " in " + *tensor : ", and not in one tensor alone";
}

Comparison compare_receipts(const Receipts& run, const Receipts& replay, std::int64_t first,
                            std::int64_t last, const std::vector<std::string>& tensors) {
  const std::int64_t begun = replay.starts().front();
  Comparison found;
  const auto differs = [&](std::int64_t step, const std::string& field, std::string difference) {
    found.step = step;
    found.field = field;
    found.difference = std::move(difference);
    return found;
  };
  nlohmann::json before = run.start(begun);
  before = before.is_null() ? run.save(begun) : before;
  if (!before.is_null() && before.at("tensors") != replay.start(begun).at("tensors")) {
    return differs(
        begun + 1, "tensors",
        fmt::format(
            "the state before step {} differs: checkpoint.init or the checkpoint is not the "
            "one that the run began with",
            begun + 1));
  }
  found.equal = begun + 1;
  std::int64_t missing = 0;  // the first step without a receipt
  for (std::int64_t step = first; step <= last; ++step) {
    const nlohmann::json was = run.step(step);
    const nlohmann::json is = replay.step(step);
    if (was.is_null() || is.is_null()) {
      missing = missing == 0 ? step : missing;
      continue;
    }
    const bool has_digests = was.contains("weights") && is.contains("weights");
    found.digests += has_digests ? 1 : 0;
    const std::string field = differing_field(was, is);
    if (has_digests && field != "samples" && field != "weights" && field != "state") {
      found.equal = step;
    }
    if (!field.empty()) {
      return differs(step, field,
                     fmt::format("step {}: {} differ{}: the run has {}, the replay {}", step, field,
                                 differing_tensor(field, was, is, tensors),
                                 was.value(field, nlohmann::json()).dump(),
                                 is.value(field, nlohmann::json()).dump()));
    }
  }
  nlohmann::json was = run.save(last);
  was = was.is_null() ? run.start(last) : was;
  const nlohmann::json is = replay.save(last);
  if (!was.is_null() && !is.is_null()) {
    ++found.digests;
    if (was.at("tensors") != is.at("tensors")) {
      return differs(
          last, "tensors",
          fmt::format("the checkpoint of step {} differs: its tensors have the digest {}, those of "
                      "the replay {}",
                      last, was.at("tensors").dump(), is.at("tensors").dump()));
    }
  }
  return missing == 0 ? found
                      : differs(missing, kNoReceipt,
                                fmt::format("step {}: the {} has no receipt", missing,
                                            run.has_step(missing) ? "replay" : "run"));
}

}  // namespace strata::train
