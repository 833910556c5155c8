#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace strata {

/// A name of ours, and the value that goes with it; empty: the value that was given.
struct MeantName {
  std::string name;
  std::string value;
};

/// The candidate that a text means: another spelling of it (case, '-' and '_'), the part behind its
/// '.' where no other candidate has the same, or its name in other programs, as "batch_size" or
/// "training.batch-size" for "batch.global". Nothing where it means none.
[[nodiscard]] std::optional<MeantName> meant_by(std::string_view text,
                                                std::span<const std::string> candidates);

/// Whether a value turns a switch off, as "False" or "0" does.
[[nodiscard]] bool means_off(std::string_view value);

/// The candidate that a value means, as "bf16" means "bfloat16"; the text itself where it means
/// none.
[[nodiscard]] std::string value_meant_by(std::string_view text,
                                         std::span<const std::string> candidates);

}  // namespace strata
