// Generation: tokens fed one by one or in pieces, with the keys and values of those before in
// caches, give the logits of one pass over the whole sequence.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "language_bench.hpp"

namespace strata::nn::test::decode_test {
namespace {

constexpr std::int64_t kContext = 9;
constexpr std::int64_t kVocabulary = 11;

/// The caches of all layers, for a whole context.
template <typename T>
class Caches {
 public:
  Caches(const Model& model, const PassShape& pass) {
    for (std::int64_t i = 0; i < model.layer_count(); ++i) {
      Stage::LayerCache cache;
      for (const TensorSpec& spec : model.layer(i).cache(pass, kContext)) {
        cache.keys.push_back(take(spec));
        cache.values.push_back(take(spec));
      }
      layers_.push_back(std::move(cache));
    }
  }

  [[nodiscard]] const std::vector<Stage::LayerCache>& layers() const { return layers_; }

 private:
  TensorView take(const TensorSpec& spec) {
    memory_.emplace_back(device::Device::cpu(), spec.shape.count() * size_bytes(spec.dtype));
    return memory_.back().view(0, spec.shape, spec.dtype);
  }

  std::vector<device::Buffer> memory_;
  std::vector<Stage::LayerCache> layers_;
};

/// Logits as rows x vocabulary, from the shards' blocks.
template <typename T>
std::vector<double> whole_logits(const ConstTensorView& split, std::int64_t rows,
                                 std::int64_t shards) {
  std::vector<double> whole(static_cast<std::size_t>(rows * kVocabulary));
  for (std::int64_t s = 0; s < shards; ++s) {
    const ConstTensorView block = shard_block(split, rows, kVocabulary, shards, {0, shards}, s);
    const std::int64_t columns = block.shape()[1];
    const std::int64_t first = grid::even_part(kVocabulary, shards, s).begin;
    const std::span<const T> values = block.template host<T>();
    for (std::int64_t i = 0; i < block.count(); ++i) {
      whole[static_cast<std::size_t>(i / columns * kVocabulary + first + i % columns)] =
          static_cast<double>(static_cast<Compute<T>>(values[static_cast<std::size_t>(i)]));
    }
  }
  return whole;
}

struct DecodeCase {
  std::string name;
  std::vector<std::string> layers;
  std::vector<std::int64_t> shards{1, 2};
};

void PrintTo(const DecodeCase& c, std::ostream* out) {
  *out << c.name;
}

template <typename T>
void expect_pieces_give_the_whole(const DecodeCase& c, std::int64_t shards, double tolerance) {
  const Model model = language_model(c.layers, kContext, kVocabulary, shards);
  StageBench<T> bench(model, spec_of<T>({0, model.layer_count()}, 1));
  const std::vector<std::int64_t> ids = token_ids(kContext, kVocabulary, 5);
  const ConstTensorView sequence{std::span(ids), Shape{1, kContext}};
  bench.stage().forward(Alone(0, sequence, 0), Mode::kEvaluation);
  const std::vector<double> expected = whole_logits<T>(
      bench.stage().outputs_of(Alone(0, sequence, 0).microbatch).front(), kContext, shards);
  const double largest =
      std::abs(*std::max_element(expected.begin(), expected.end(),
                                 [](double a, double b) { return std::abs(a) < std::abs(b); }));
  ASSERT_GT(largest, 0.0);
  const std::vector<std::vector<std::int64_t>> ways{
      std::vector<std::int64_t>(kContext, 1), {kContext}, {4, 1, 1, 3}, {1, 8}};
  for (const std::vector<std::int64_t>& pieces : ways) {
    const Caches<T> caches(model, bench.spec().pass);
    std::int64_t past = 0;
    for (const std::int64_t tokens : pieces) {
      const ConstTensorView piece = sequence.flat_slice(past, tokens).reshaped(Shape{1, tokens});
      const std::array<Stage::CachedSequence, 1> at{{{past, caches.layers()}}};
      const ConstTensorView output = bench.stage().decode(piece, tokens, at).front();
      ASSERT_EQ(output.count(), tokens * kVocabulary);
      const std::vector<double> found = whole_logits<T>(output, tokens, shards);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[static_cast<std::size_t>(past * kVocabulary) + i],
                    tolerance * largest)
            << "token " << past + static_cast<std::int64_t>(i) / kVocabulary << " in a piece of "
            << tokens << ", " << shards << " shards";
      }
      past += tokens;
    }
  }
}

/// The logits of `rows` rows that are decoded together, one token of each of as many sequences, of
/// which sequence i has i * 2 % 5 tokens before.
template <typename T>
std::vector<double> logits_of_sequences(StageBench<T>& bench, const Model& model,
                                        std::int64_t shards,
                                        std::span<const std::int64_t> numbers) {
  std::vector<Caches<T>> caches;
  caches.reserve(numbers.size());
  std::vector<Stage::CachedSequence> sequences;
  std::vector<std::int64_t> next;
  for (const std::int64_t number : numbers) {
    caches.emplace_back(model, bench.spec().pass);
    const std::int64_t past = number * 2 % 5;
    const std::vector<std::int64_t> ids = token_ids(past + 1, kVocabulary, 20 + number);
    if (past > 0) {
      const std::array<Stage::CachedSequence, 1> alone{{{0, caches.back().layers()}}};
      static_cast<void>(bench.stage().decode(
          {std::span(ids).first(static_cast<std::size_t>(past)), Shape{1, past}}, past, alone));
    }
    sequences.push_back({past, caches.back().layers()});
    next.push_back(ids.back());
  }
  const auto rows = std::ssize(numbers);
  const ConstTensorView output =
      bench.stage()
          .decode({std::span<const std::int64_t>(next), Shape{1, rows}}, 1, sequences)
          .front();
  return whole_logits<T>(output, rows, shards);
}

template <typename T>
void expect_same_bits_together(const DecodeCase& c, std::int64_t shards) {
  const Model model = language_model(c.layers, kContext, kVocabulary, shards);
  StageBench<T> bench(model, spec_of<T>({0, model.layer_count()}, 1));
  std::vector<std::int64_t> all(kContext);
  std::iota(all.begin(), all.end(), 0);
  std::vector<double> alone;
  for (const std::int64_t& number : all) {
    const std::vector<double> logits = logits_of_sequences(bench, model, shards, {&number, 1});
    alone.insert(alone.end(), logits.begin(), logits.end());
  }
  for (const std::size_t count : {2U, 5U, 8U, 9U}) {
    const std::vector<double> found =
        logits_of_sequences(bench, model, shards, std::span(all).last(count));
    EXPECT_TRUE(std::equal(found.begin(), found.end(), alone.end() - std::ssize(found)))
        << count << " sequences, " << shards << " shards";
  }
}

class Decode : public testing::TestWithParam<DecodeCase> {};

TEST_P(Decode, GivesASequenceTheSameBitsAloneAndWithOthers) {
  for (const std::int64_t shards : GetParam().shards) {
    expect_same_bits_together<float>(GetParam(), shards);
    expect_same_bits_together<double>(GetParam(), shards);
    expect_same_bits_together<BFloat16>(GetParam(), shards);
  }
}

TEST_P(Decode, InPiecesGivesTheLogitsOfTheWhole) {
  for (const std::int64_t shards : GetParam().shards) {
    expect_pieces_give_the_whole<float>(GetParam(), shards, 1e-5);
    expect_pieces_give_the_whole<double>(GetParam(), shards, 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Decode,
    testing::Values(
        DecodeCase{"learned_positions",
                   {"embedding 8 positions=12 dropout=0.5", "attention 4 dropout=0.5", "mlp 12",
                    "attention 2 bias=off", "mlp 12 relu", "layer_norm", "head"}},
        DecodeCase{"adapters",
                   {"embedding 8", "attention 4 rotary=100 lora=2 lora_alpha=1",
                    "mlp 12 lora=3 lora_products=down", "head"}},
        DecodeCase{"norm_of_all_heads",
                   {"embedding 8", "attention 4 rotary=100 norm=none qk_norm=width", "head"}},
        DecodeCase{"rotary",
                   {"embedding 8", "attention 4 rotary=10000 norm=rms_norm",
                    "mlp 12 swiglu norm=rms_norm", "rms_norm", "head tied=off"}},
        DecodeCase{"parallel_residuals",
                   {"embedding 8", "attention 4 rotary=100 head_size=4 rotary_share=0.5",
                    "mlp 12 gelu_erf parallel_residual=on", "attention 4",
                    "mlp 12 parallel_residual=on", "layer_norm", "head tied=off"}},
        DecodeCase{"windows_caps_and_norms",
                   {"embedding 8 scale=3",
                    "attention 4 head_size=4 kv_heads=2 rotary=100 norm=rms_norm "
                    "post_norm=rms_norm unit_offset=on qk_norm=head scale=0.4 softcap=2 window=3",
                    "mlp 12 geglu norm=none post_norm=rms_norm", "rms_norm unit_offset=on",
                    "head softcap=4"}},
        DecodeCase{"shared_kv_heads",
                   {"embedding 8", "attention 4 kv_heads=2 rotary=100 lora=2",
                    "attention 8 kv_heads=1 head_size=4 qk_norm=width", "head"},
                   {1, 2, 4}},
        DecodeCase{
            "grouped_rotary",
            {"embedding 8", "attention 6 kv_heads=2 head_size=4 rotary=100 norm=rms_norm bias=off",
             "mlp 12 swiglu norm=rms_norm bias=off",
             "attention 6 kv_heads=2 head_size=4 rotary=100 norm=none residual=off", "rms_norm",
             "head tied=off"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace strata::nn::test::decode_test
