#include "import/split_text.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::io {
namespace {

[[noreturn]] void fail_form(std::string_view text) {
  fail(ExitCode::kUsage,
       "--split={} is not understood; give counts as in 8000,2000, or fractions as in 0.9,0.1 or "
       "90%,10%, for train and then test",
       text);
}

std::vector<std::int64_t> counts_of(const std::vector<std::string>& words, std::string_view text) {
  std::vector<std::int64_t> counts;
  for (const std::string& word : words) {
    std::int64_t& count = counts.emplace_back();
    if (!parse_int64(word, count) || count < 0) {
      fail_form(text);
    }
  }
  return counts;
}

std::vector<std::int64_t> counts_of_fractions(const std::vector<std::string>& words,
                                              std::string_view text, std::int64_t samples) {
  // Upper bound on the rounding error of decimal fractions such as 0.7 and 0.3.
  constexpr double kRounding = 1e-9;
  std::vector<std::int64_t> counts;
  double sum = 0;
  std::int64_t used = 0;
  for (const std::string& word : words) {
    double fraction = 0;
    const bool percent = word.ends_with('%');
    const std::string_view number =
        std::string_view(word).substr(0, word.size() - (percent ? 1 : 0));
    if (!parse_double(number, fraction)) {
      fail_form(text);
    }
    fraction /= percent ? 100 : 1;
    if (!(fraction >= 0 && fraction <= 1)) {
      fail_form(text);
    }
    sum += fraction;
    if (sum > 1 + kRounding) {
      fail(ExitCode::kUsage, "--split={} adds up to more than 1", text);
    }
    const bool takes_rest = &word == &words.back() && sum > 1 - kRounding;
    const double exact = fraction * static_cast<double>(samples);
    counts.push_back(takes_rest ? samples - used
                                : static_cast<std::int64_t>(std::floor(exact * (1 + kRounding))));
    used += counts.back();
  }
  return counts;
}

}  // namespace

SplitCounts parse_split(std::string_view text, std::int64_t samples, std::string_view unit) {
  const std::vector<std::string> words = split_words(text, ",");
  if (words.empty() || words.size() > 2) {
    fail_form(text);
  }
  const bool fractions = !gives_counts(text);
  const std::vector<std::int64_t> counts =
      fractions ? counts_of_fractions(words, text, samples) : counts_of(words, text);
  const SplitCounts split{counts[0], counts.size() > 1 ? counts[1] : 0};
  if (!fractions && counts.size() > 1 && split.train + split.test == 100 && samples > 100) {
    fail(ExitCode::kUsage,
         "--split={} takes 100 of {} {}; give {}%,{}% for all of them, or counts that add up, as "
         "in {},{}",
         text, count_text(samples), unit, split.train, split.test, samples * split.train / 100,
         samples - samples * split.train / 100);
  }
  if (split.train > samples || split.test > samples - split.train) {
    fail(ExitCode::kData, "--split={} asks for {} {}, the files hold {}", text,
         count_text(split.train) + " + " + count_text(split.test), unit, count_text(samples));
  }
  if (split.train == 0 || (fractions && counts.size() > 1 && split.test == 0)) {
    fail(ExitCode::kData, "--split={} of {} {} leaves the {} split empty", text,
         count_text(samples), unit, split.train == 0 ? "train" : "test");
  }
  return split;
}

}  // namespace strata::io
