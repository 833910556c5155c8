#include "strata/train/generation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strata/config/config_file.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/train/checkpointing.hpp"

#include "harness.hpp"
#include "in_process.hpp"

/// Generation by ranks that are threads of this process: a checkpoint gives the same logits, texts
/// and log-likelihoods on every grid and with any number of texts at once, bit for bit.
namespace strata::grids {
namespace {

using Tokens = std::vector<std::int64_t>;

/// What a rank of a replica gets: on the last stage the logits of a text, and on all ranks texts
/// and the log-likelihoods of scored_texts().
struct Generated {
  std::vector<double> logits;
  std::vector<Tokens> texts;
  std::vector<double> scores;
  /// On the last stage: the same by the logits of each whole text in one pass.
  std::vector<double> whole;
};

constexpr std::int64_t kBeyondContext = 30;  // a text restarts its positions, perhaps twice
const Tokens kPrompt{3, 1, 4, 1, 5, 9, 2, 6, 5};

const std::array kSamplings{
    train::SamplingOptions{.temperature = 0.0}, train::SamplingOptions{.seed = 7},
    train::SamplingOptions{
        .temperature = 0.8, .top_k = 20, .top_p = 0.95, .min_p = 0.01, .seed = 3, .text = 2},
    train::SamplingOptions{.repetition_penalty = 1.5, .seed = 5}};

/// More contexts than any generator has slots. Some texts are of one token, others fill the model's
/// context of 16, with texts of other lengths behind the same context, or the same context again.
std::vector<train::ScoredTexts> scored_texts() {
  const auto tokens = [](std::int64_t seed, std::int64_t count) {
    Tokens made;
    for (std::int64_t i = 0; i < count; ++i) {
      made.push_back((seed * 7 + i * i * 3 + i) % 26);
    }
    return made;
  };
  std::vector<train::ScoredTexts> all;
  for (const auto& [context, lengths] :
       std::vector<std::pair<std::int64_t, Tokens>>{{9, {1, 4, 2}},
                                                    {1, {16, 1}},
                                                    {16, {1, 1}},
                                                    {3, {2}},
                                                    {5, {3, 12, 3, 1}},
                                                    {8, {9}},
                                                    {2, {5, 1}},
                                                    {2, {3}},
                                                    {12, {5, 2}},
                                                    {7, {1}},
                                                    {4, {6, 6}},
                                                    {1, {2, 2, 9}}}) {
    train::ScoredTexts& texts = all.emplace_back();
    texts.context = tokens(context, context);
    for (const std::int64_t length : lengths) {
      texts.texts.push_back(tokens(std::ssize(all) + std::ssize(texts.texts), length));
    }
  }
  return all;
}

/// The log-likelihoods of scored_texts(), each by the logits of a pass over all of its tokens.
std::vector<double> scores_of_whole_texts(train::Generator& generator) {
  std::vector<double> scores;
  for (const train::ScoredTexts& texts : scored_texts()) {
    for (const Tokens& text : texts.texts) {
      Tokens tokens = texts.context;
      tokens.insert(tokens.end(), text.begin(), text.end());
      const std::size_t inputs = tokens.size() - 1;
      const std::vector<double> logits = generator.logits(std::span(tokens).first(inputs));
      if (logits.empty()) {
        continue;  // not the last stage
      }
      const std::size_t width = logits.size() / inputs;
      double& score = scores.emplace_back(0.0);
      for (std::size_t i = texts.context.size(); i < tokens.size(); ++i) {
        const auto row = std::span(logits).subspan((i - 1) * width, width);
        double sum = 0.0;
        for (const double logit : row) {
          sum += std::exp(logit);
        }
        score += row[static_cast<std::size_t>(tokens[i])] - std::log(sum);
      }
    }
  }
  return scores;
}

Generated generated_by(train::Generator& generator) {
  Generated found{.logits = generator.logits(kPrompt),
                  .scores = generator.log_likelihoods(scored_texts()),
                  .whole = scores_of_whole_texts(generator)};
  const auto text = [&](std::span<const std::int64_t> prompt, std::int64_t count,
                        const train::SamplingOptions& options, train::PastTokens past) {
    const std::size_t i = found.texts.size();
    found.texts.emplace_back();
    return train::Continuation{.prompt = {prompt.begin(), prompt.end()},
                               .count = count,
                               .options = options,
                               .take =
                                   [&found, i](std::int64_t token) {
                                     found.texts[i].push_back(token);
                                     return token != 25;
                                   },
                               .past = past};
  };
  // Of both ways to begin: with the keys and values of the text before, and without.
  for (const auto past : {train::PastTokens::kDropped, train::PastTokens::kKept}) {
    for (const train::SamplingOptions& options : kSamplings) {
      generator.generate(text(kPrompt, kBeyondContext, options, past));
    }
  }
  // As many at once as the generator takes: prompts of other lengths, texts that end elsewhere.
  std::int64_t number = 0;
  generator.generate([&]() -> std::optional<train::Continuation> {
    if (number == 12) {
      return std::nullopt;
    }
    const std::int64_t i = number++;
    return text(std::span(kPrompt).first(static_cast<std::size_t>(1 + 4 * i % 9)),
                kBeyondContext - i * i % 7, kSamplings[static_cast<std::size_t>(i % 4)],
                train::PastTokens::kDropped);
  });
  return found;
}

/// Of the newest checkpoint of a run, on a grid of pipeline x tensor ranks; by rank.
std::vector<Generated> generate_on(const std::string& run, const grid::Grid& grid,
                                   std::int64_t texts_at_once) {
  std::vector<Generated> found(static_cast<std::size_t>(grid.ranks()));
  comm::run_in_process_ranks(grid.ranks(), [&](comm::Communicator& world) {
    comm::ProgressEngine engine;
    Log log(Log::Output::kSilent);
    config::RunConfig config = config::read_config(run + "/config.ini", {}).config;
    const io::Checkpoint checkpoint =
        *train::newest_good_checkpoint(world, train::checkpoint_root(config), log);
    io::DatasetInfo data = *train::data_of(checkpoint);
    data.input_shape = data.target_shape = {plan::context_of(config)};
    plan::VirtualGrid stored = train::virtual_grid_of(checkpoint);
    stored.consent = true;
    config.parallel.pipeline = grid.pipeline;
    config.parallel.tensor = grid.tensor;
    config.train.evaluate_batches = 0;
    config = plan::evaluation_config(config, world.size(), data, stored);
    config.parallel.sequence = Switch::kOff;
    config.train.recompute = nn::Recompute::kNone;
    plan::Plan plan = plan::prepare(config, world.size(), data, stored);
    ASSERT_EQ(plan.grid.text(), grid.text());
    comm::Groups groups = comm::make_groups(world, engine, plan.grid,
                                            comm::pipeline_routes(plan::chunk_stages(plan)));
    ops::Context context(world.rank() % 2 == 0 ? 1 : 2);
    train::Generator generator(context, plan, groups, checkpoint, texts_at_once);
    found[static_cast<std::size_t>(world.rank())] = generated_by(generator);
    world.barrier();
  });
  return found;
}

struct GenerationCase {
  std::string name = {};
  Settings settings = {};
  std::string trained_on = "1x1x1";
  std::vector<std::string> grids = list_of("1x2x1;1x1x2;1x2x2");
  Settings base = {};
};

void PrintTo(const GenerationCase& one, std::ostream* out) {
  *out << one.name;
}

class GenerationOnGrids : public testing::TestWithParam<GenerationCase> {};

TEST_P(GenerationOnGrids, GivesTheBitsOfOneRank) {
  const GenerationCase& given = GetParam();
  Settings settings = given.settings;
  const std::string run = "generates-" + given.name;
  if (!given.base.empty()) {
    static_cast<void>(train(given.base, "2x1x2", run + "-base"));
    settings += "& checkpoint.init=" + run + "-base";
  }
  static_cast<void>(train(settings, given.trained_on, run));
  const Generated expected = generate_on(run, {1, 1, 1}, 1).front();
  ASSERT_FALSE(expected.logits.empty());
  EXPECT_EQ(expected.texts[0], expected.texts[4]) << "greedy, with and without what was kept";
  EXPECT_NE(expected.texts[0], expected.texts[1]) << "greedy and sampled";
  EXPECT_TRUE(std::ranges::any_of(
      expected.texts, [](const Tokens& text) { return std::ssize(text) == kBeyondContext; }));
  const double tolerance = given.settings.find("bfloat16") == Settings::npos ? 1e-5 : 0.02;
  ASSERT_EQ(expected.scores.size(), expected.whole.size());
  for (std::size_t i = 0; i < expected.scores.size(); ++i) {
    EXPECT_NEAR(expected.scores[i], expected.whole[i], tolerance) << "text " << i;
  }
  for (const std::int64_t texts_at_once : {2, 5, 8}) {
    const Generated found = generate_on(run, {1, 1, 1}, texts_at_once).front();
    EXPECT_EQ(found.texts, expected.texts) << texts_at_once << " at once";
    EXPECT_EQ(found.scores, expected.scores) << texts_at_once << " at once";
  }
  std::int64_t texts_at_once = 1;
  for (const std::string& text : given.grids) {
    SCOPED_TRACE(fmt::format("{}, {} at once", text, texts_at_once));
    const std::vector<std::string> sizes = split_words(text, "x");
    const grid::Grid grid{std::stoll(sizes[0]), std::stoll(sizes[1]), std::stoll(sizes[2])};
    const std::vector<Generated> found = generate_on(run, grid, texts_at_once);
    texts_at_once = texts_at_once % 8 + 4;  // 1, 5, 9, 5
    for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
      const Generated& own = found[static_cast<std::size_t>(rank)];
      const bool is_last = grid.coordinates_of(rank).pipeline == grid.pipeline - 1;
      EXPECT_EQ(own.logits, is_last ? expected.logits : std::vector<double>()) << rank;
      EXPECT_EQ(own.texts, expected.texts) << rank;
      EXPECT_EQ(own.scores, expected.scores) << rank;
    }
  }
}

std::vector<GenerationCase> generation_cases() {
  const Settings two = kGpt + "& train.steps=2";
  const Settings llama = two + kLlama;
  const Settings bfloat16 = "& numerics.dtype=bfloat16";
  // Lines of Gemma's words, and of GPT-NeoX's: a block's second half reads what its first half
  // read.
  const Settings lines = two + R"(& model.preset=none & model.blocks=0 & model.width=0
& model.heads=0 & model.dropout=0 & model.layer=embedding 32 scale=2
& model.layer=attention 8 kv_heads=4 head_size=8 rotary=100 norm=rms_norm post_norm=rms_norm unit_offset=on qk_norm=width scale=0.4 softcap=2 window=5 bias=off
& model.layer=mlp 64 geglu norm=none post_norm=rms_norm unit_offset=on
& model.layer=attention 4 rotary=100 rotary_share=0.5
& model.layer=mlp 64 gelu_erf parallel_residual=on
& model.layer=rms_norm unit_offset=on & model.layer=head softcap=4)";
  return {
      {.name = "Gpt", .settings = two, .grids = list_of("1x3x1;1x1x4;1x2x2;2x2x1")},
      {.name = "GptBfloat16", .settings = two + bfloat16, .trained_on = "2x2x1"},
      {.name = "RoundedSums",
       .settings =
           two + bfloat16 +
           "& numerics.shard_sums=bfloat16 & numerics.row_pieces=2 & numerics.loss_pieces=2"},
      {.name = "Llama", .settings = llama, .trained_on = "1x2x2", .grids = list_of("1x4x1;2x1x2")},
      {.name = "LlamaBfloat16", .settings = llama + bfloat16},
      {.name = "Documents", .settings = llama + kDocuments},
      {.name = "Lines", .settings = lines, .grids = list_of("1x7x1;1x1x4;1x2x2")},
      {.name = "LinesBfloat16", .settings = lines + bfloat16},
      {.name = "Lora",
       .settings = llama + "& lora.rank=4 & lora.alpha=6",
       .trained_on = "2x2x1",
       .base = llama}};
}

INSTANTIATE_TEST_SUITE_P(Case, GenerationOnGrids, testing::ValuesIn(generation_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace strata::grids
