#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_jit_stack_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace strata::io {

/// What follows a piece of text: more of it, an added token, or the end of the document.
enum class End { kNotYet, kBeforeToken, kReached };

/// What a step keeps of a text: everything, or only what matches, or only the rest.
enum class Kept { kAll, kMatches, kRest };

/// Cuts a text into the matches of an expression and what is between them, as Split of a
/// tokenizer.json does.
struct SplitStep {
  std::string expression;
  Kept kept = Kept::kAll;

  friend bool operator==(const SplitStep&, const SplitStep&) = default;
};

struct PublishedExpression {
  std::string_view name;
  std::string_view text;  ///< as tokenizer.json files spell it
};

/// Source: Radford et al., "Language models are unsupervised multitask learners", 2019, Grattafiori
/// et al., "The Llama 3 herd of models", 2024 (it is cl100k's too), and tiktoken's o200k, as
/// published with the models.
inline constexpr std::array<PublishedExpression, 3> kPublishedExpressions{
    {{"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
     {"llama3", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     {"o200k", R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
               R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
               R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
               R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
               R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}};
inline constexpr std::string_view kGpt2Expression = kPublishedExpressions[0].text;
inline constexpr std::string_view kLlama3Expression = kPublishedExpressions[1].text;

/// A regular expression as Oniguruma reads it, compiled by PCRE2: white space is Unicode's property
/// White_Space, a name of a script means that script alone, and ^ and $ match at lines. Const
/// members are thread-safe.
class Expression {
 public:
  /// Throws: Error(kData) where the expression is malformed, or where the two libraries differ.
  explicit Expression(const std::string& text);

  [[nodiscard]] const std::string& text() const { return text_; }
  /// Whether a match depends on the text before it.
  [[nodiscard]] bool looks_back() const { return looks_back_; }
  [[nodiscard]] bool is_compiled_for_machine() const { return is_compiled_for_machine_; }
  [[nodiscard]] const pcre2_real_code_8* code() const { return code_.get(); }

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };

  std::string text_;
  bool looks_back_ = false;
  bool is_compiled_for_machine_ = false;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

/// Finds the matches of an expression, for one thread.
class Search {
 public:
  /// Pre: `expression` outlives this.
  explicit Search(const Expression& expression);

  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    /// Else none begins before `begin`; one that begins there depends on text that is not there
    /// yet.
    bool is_known = false;
  };

  /// The leftmost match that begins at `from` or later. Pre: whole UTF-8 characters.
  /// Throws: Error(kData) where the expression takes too many steps.
  [[nodiscard]] Match find(std::string_view text, std::size_t from, End end);
  [[nodiscard]] bool looks_back() const { return expression_->looks_back(); }
  /// Forgets how often earlier texts were read again, which find() bounds.
  void begin_document() { credit_bytes_ = kCredit; }

 private:
  static constexpr std::int64_t kCredit = std::int64_t{256} << 20U;

  struct Free {
    void operator()(pcre2_real_jit_stack_8* stack) const;
    void operator()(pcre2_real_match_context_8* context) const;
    void operator()(pcre2_real_match_data_8* data) const;
  };

  /// Where a match may begin.
  enum class Begins { kAnywhere, kHere };
  /// Calls PCRE2, which writes to place_.
  [[nodiscard]] int match(std::string_view text, std::size_t from, std::uint32_t options,
                          Begins begins);

  const Expression* expression_;
  std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
  const std::size_t* place_ = nullptr;   ///< of the last match: begin and end
  std::int64_t credit_bytes_ = kCredit;  ///< that may still be read again
};

}  // namespace strata::io
