#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "harness.hpp"

// Models, settings and grids that nobody chose. The output has a line for each model and each of
// its runs, before it begins. A model is repeated by its number:
//   STRATA_FUZZ_SEED=17 STRATA_FUZZ_MODELS=1 grids --gtest_filter='*RandomModels*/local'
namespace strata::grids {
namespace {

enum class Mode : std::uint8_t { kStep, kLocal, kLora, kAsync };

/// A model with settings, and runs of it that must give the same bits as one rank.
class RandomCase {
 public:
  RandomCase(Mode mode, std::uint64_t seed)
      : mode_(mode), random_(4 * seed + static_cast<std::uint64_t>(mode)) {
    shards_ = std::stoll(one_of(mode == Mode::kAsync ? "1 2" : "1 1 2 2 3 4"));
    micro_ = one_in(4) ? 1 : number(2, 3);
    draw_model();
    draw_lanes();
    draw_optimisation();
    draw_parts_of_the_model();
    for (std::int64_t i = number(2, 3); i > 0; --i) {
      runs_.push_back(mode == Mode::kAsync ? drawn_workers() : drawn_run());
    }
  }

  [[nodiscard]] const Settings& settings() const { return settings_; }
  /// As Case::runs.
  [[nodiscard]] const std::vector<std::string>& runs() const { return runs_; }

 private:
  std::int64_t number(std::int64_t least, std::int64_t most) {
    const auto count = static_cast<std::uint64_t>(most - least + 1);
    return least + static_cast<std::int64_t>(random_() % count);
  }
  bool one_in(std::int64_t count) { return number(1, count) == 1; }
  std::string one_of(std::string_view text, std::string_view separators = " ") {
    const std::vector<std::string> words = split_words(text, separators);
    return words[static_cast<std::size_t>(number(1, std::ssize(words)) - 1)];
  }
  /// The words, or nothing.
  std::string maybe(const std::string& words) { return one_in(2) ? " " + words : ""; }
  /// A width that the shards divide.
  std::int64_t width() { return shards_ * number(2, 5); }

  void set(const std::string& setting) { settings_ += " & " + setting; }
  void add(const std::string& line) {
    set("model.layer=" + line);
    const std::string kind = line.substr(0, line.find(' '));
    if (kind == "residual" || kind == "shortcut") {
      return;
    }
    ++layers_;
    for (const char* trained : {"dense", "conv", "batch_norm", "group_norm", "layer_norm",
                                "rms_norm", "mlp", "attention", "embedding"}) {
      if (kind == trained) {
        trained_.push_back(fmt::format("*{}1.*", kind));
      }
    }
  }
  void add_elementwise() { add(one_of("relu;gelu;gelu_erf;tanh;sigmoid;dropout 0.2", ";")); }

  std::string sublayer_options() {
    std::ostringstream options;
    options << " norm=" << one_of("layer_norm rms_norm none") << maybe("bias=off")
            << maybe("dropout=0.1") << (one_in(4) ? " residual=off" : "");
    return options.str();
  }
  void add_mlp() {
    std::ostringstream line;
    line << "mlp " << width() << " " << one_of("gelu gelu_erf relu swiglu geglu")
         << sublayer_options();
    add(line.str());
  }
  void add_attention() {
    // Below one: shards share a head.
    const std::int64_t kv_heads = one_in(4) ? 1 : shards_ * number(1, 2);
    std::ostringstream line;
    line << "attention " << std::max(kv_heads, shards_) * number(1, 2) << " kv_heads=" << kv_heads
         << " head_size=" << 2 * number(1, 2) << maybe("rotary=1000") << sublayer_options();
    add(line.str());
  }

  /// Layers on vectors of `inputs`. Returns: the width of what they give.
  std::int64_t add_dense(std::int64_t inputs) {
    const std::int64_t outputs = width();
    switch (number(0, 6)) {
      case 0:
        add(fmt::format("dense {}{}", outputs, maybe("relu")));
        return outputs;
      case 1:
        add_elementwise();
        return inputs;
      case 2:
        add(one_of("layer_norm rms_norm batch_norm softmax"));
        return inputs;
      case 3:
        add_mlp();
        return inputs;
      case 4:
        add("residual");
        add_elementwise();
        add(fmt::format("dense {}", inputs));
        if (one_in(2)) {
          add("shortcut");
          add(fmt::format("dense {} bias=off", inputs));
        }
        add("end" + maybe("relu"));
        return inputs;
      default:
        add(fmt::format("dense {} parallel=column", outputs));
        add_elementwise();
        add(fmt::format("dense {} parallel=row", outputs));
        return outputs;
    }
  }
  void draw_network() {
    const bool values = one_in(3);
    settings_ = fmt::format("data.train={0}/train.h5 & data.test={0}/test.h5",
                            values ? "values" : "classes");
    std::int64_t outputs = values ? 6 : 4;
    if (!values) {
      set("data.normalise=" + one_of("none standard"));
      outputs = 3 * (one_in(3) ? add_dense(outputs) : outputs);
      add("flatten");
    }
    if (mode_ == Mode::kLora) {
      add_mlp();
    }
    for (std::int64_t i = number(0, 4); i > 0; --i) {
      outputs = add_dense(outputs);
    }
    add(fmt::format("dense {}", values ? 1 : 5));
  }

  struct Image {
    std::int64_t channels = 2;
    std::int64_t side = 6;
  };
  Image add_convolution(Image image) {
    const std::int64_t channels = width();
    std::ostringstream line;
    const bool even = image.channels % 2 == 0 && channels % 2 == 0;
    switch (number(0, 7)) {
      case 0:
        line << "conv " << channels << " "
             << one_of("3 padding=same;1x3 padding=same;2 dilation=2 padding=1;1", ";")
             << maybe("relu") << (even ? maybe("groups=2") : "");
        add(line.str());
        return {channels, image.side};
      case 1:
        add(fmt::format("conv {} 3 stride=2 padding=1{}", channels, maybe("bias=off")));
        return {channels, (image.side - 1) / 2 + 1};
      case 2:
        add(one_of("max_pool 3 stride=1 padding=1;avg_pool 3 stride=1 padding=1", ";"));
        return image;
      case 3:
        add(one_of(fmt::format("batch_norm;batch_norm relu;group_norm {}", image.channels), ";"));
        return image;
      case 4:
        add_elementwise();
        return image;
      case 5:
        add(one_of(fmt::format("zero_pad 1;zero_channels {}", image.channels + 1), ";"));
        return settings_.ends_with("zero_pad 1") ? Image{image.channels, image.side + 2}
                                                 : Image{image.channels + 1, image.side};
      case 6:
        add("residual");
        add(fmt::format("conv {} 3 padding=same", channels));
        add("batch_norm" + maybe("relu"));
        add("shortcut");
        add(fmt::format("conv {} 1 bias=off", channels));
        add("end" + maybe("relu"));
        return {channels, image.side};
      default:
        add(fmt::format("conv {} 3 padding=same parallel=column", channels));
        add(one_of(fmt::format("relu;dropout 0.1;batch_norm;group_norm {};zero_pad 1;"
                               "max_pool 3 stride=1 padding=1",
                               shards_),
                   ";"));
        image.side += settings_.ends_with("zero_pad 1") ? 2 : 0;
        add(fmt::format("conv {} 1 parallel=row", channels));
        return {channels, image.side};
    }
  }
  void draw_images() {
    settings_ = "data.train=small-images/train.h5 & data.test=small-images/test.h5";
    set("data.flip=" + one_of("on off"));
    set("data.crop_padding=" + one_of("0 2"));
    Image image;
    for (std::int64_t i = number(1, 4); i > 0; --i) {
      image = add_convolution(image);
    }
    if (one_in(3)) {
      add(fmt::format("conv {} 3 padding=same parallel=column", width()));
      add("flatten");
      add("dense 5 parallel=row");
      return;
    }
    add(one_of("flatten global_avg_pool"));
    if (one_in(3)) {
      add(fmt::format("dense {} relu", width()));
    }
    add("dense 5");
  }

  void draw_tokens() {
    settings_ = "data.train=text/train.h5 & data.test=text/test.h5 & model.context=8";
    set("data.sampling=" + one_of("blocks windows"));
    set("train.evaluate_batches=1");
    std::ostringstream embedding;
    embedding << "embedding " << 4 * number(1, 3) << maybe("positions=8") << maybe("dropout=0.1");
    add(embedding.str());
    if (mode_ == Mode::kLora) {
      one_in(2) ? add_attention() : add_mlp();
    }
    for (std::int64_t i = number(0, 3); i > 0; --i) {
      switch (number(0, 3)) {
        case 0:
          add_attention();
          break;
        case 1:
          add_mlp();
          break;
        case 2:
          add_elementwise();
          break;
        default:
          add(one_of("layer_norm rms_norm"));
      }
    }
    add("head" + maybe("tied=off"));
  }

  void draw_model() {
    const std::int64_t kind = number(0, 4);
    tokens_ = kind > 2 || (kind == 2 && mode_ == Mode::kLora);
    tokens_ ? draw_tokens() : kind == 2 ? draw_images() : draw_network();
  }

  /// Whether the rows of a microbatch of text are a multiple of `parts`.
  [[nodiscard]] bool rows_divide(std::int64_t parts) const { return 8 * micro_ % parts == 0; }

  void draw_parts_of_the_model() {
    set("numerics.dtype=" + one_of("float32 float32 bfloat16 float64"));
    const bool rounds = settings_.ends_with("bfloat16");
    if (tokens_ && shards_ > 1) {
      if (rounds && one_in(3)) {
        set("numerics.shard_sums=bfloat16");
      }
      if (rows_divide(2 * shards_) && one_in(3)) {
        set("numerics.row_pieces=2");
      }
    }
    if (tokens_ && one_in(4)) {
      set("numerics.loss_pieces=2");
    }
    if (settings_.find("batch_norm") != std::string::npos && mode_ != Mode::kAsync && one_in(3)) {
      set("model.sync_batch_norm=on");
    }
    if (mode_ == Mode::kLora) {
      set("lora.rank=" + one_of("1 2"));
      if (one_in(3)) {
        set(settings_.find("attention") == std::string::npos ? "lora.products=up,down"
                                                             : "lora.products=qkv");
      }
      if (one_in(4)) {
        set("optimizer.frozen=*.lora_a");
      }
      if (tokens_ && one_in(3)) {
        set("lora.train=embedding*");
      }
    } else if (trained_.size() > 2 && one_in(4)) {
      set("optimizer.frozen=" + trained_[static_cast<std::size_t>(number(0, 2))]);
    }
  }

  void draw_lanes() {
    const bool local = mode_ == Mode::kLocal || (mode_ == Mode::kLora && one_in(3));
    half_ = mode_ == Mode::kAsync ? 3 : number(1, 2);
    lanes_ = mode_ == Mode::kAsync ? 1 : number(1, 7);
    if (local) {
      islands_ = number(1, 4);
      lanes_ = islands_ * number(1, 3);
      const std::int64_t round = number(1, 3);
      half_ *= round;
      const std::int64_t fragments = number(1, std::min(round, layers_));
      set(
          fmt::format("parallel.sync=local & parallel.islands={} & local.steps={} & "
                      "local.fragments={} & local.delay={}",
                      islands_, round, fragments, number(0, round / fragments - 1)));
      set("local.mix=" + one_of("0 0.3"));
      set("local.exchange=" + one_of("full full bfloat16 int8 int4"));
      set("local.outer_momentum=" + one_of("0.9 0"));
    }
    batch_ = micro_ * number(1, 3);
    set(fmt::format("numerics.lanes={} & numerics.shards={} & batch.micro={} & batch.global={}",
                    lanes_, shards_, micro_, lanes_ * batch_));
    set(fmt::format("train.steps={} & run.timeout=60 & run.threads=1", 2 * half_));
    if (one_in(4)) {
      set("data.test=");
    } else {
      set(fmt::format("train.evaluate_every={}", half_));
      set("checkpoint.best=" + one_of("off off loss"));
    }
    set(fmt::format("checkpoint.every={}", one_in(3) ? half_ : 0));
  }

  void draw_optimisation() {
    set("optimizer.kind=" +
        one_of("sgd & optimizer.learning_rate=0.05;"
               "sgd & optimizer.learning_rate=0.02 & optimizer.momentum=0.9;"
               "adam & optimizer.learning_rate=0.01;"
               "adamw & optimizer.learning_rate=0.01 & optimizer.weight_decay=0.1;"
               "adagrad & optimizer.learning_rate=0.01",
               ";"));
    set("optimizer.clip_norm=" + one_of("0 0.5"));
    if (one_in(4) && settings_.find("values") == std::string::npos) {
      set("train.label_smoothing=0.1 & train.z_loss=0.001");
    }
    if (mode_ != Mode::kAsync && one_in(2)) {
      set(fmt::format("schedule.kind={} & schedule.decay_steps={}", one_of("cosine linear"),
                      2 * half_));
    }
  }

  /// Grid, schedule, and what else must not change a bit.
  std::string drawn_part() {
    constexpr std::int64_t kMostStages = 8;
    const std::int64_t most = std::min(layers_, kMostStages);
    const std::int64_t pipeline = one_in(3) ? most : number(1, most);
    std::vector<std::string> grids;
    for (std::int64_t data = 1; data <= lanes_; ++data) {
      for (std::int64_t tensor = 1; tensor <= shards_; ++tensor) {
        constexpr std::int64_t kMostRanks = 12;
        const bool fits = lanes_ % data == 0 && shards_ % tensor == 0 &&
                          (islands_ % data == 0 || data % islands_ == 0) &&
                          data * pipeline * tensor <= kMostRanks;
        if (fits) {
          grids.push_back(fmt::format("{}x{}x{}", data, pipeline, tensor));
        }
      }
    }
    std::string part = grids[static_cast<std::size_t>(number(1, std::ssize(grids)) - 1)];
    std::string schedule = one_of("gpipe 1f1b zb-h1 zb-h2 interleaved zb-v auto");
    std::int64_t parts = pipeline;
    if (schedule == "interleaved" || schedule == "zb-v") {
      if (2 * pipeline > layers_) {
        schedule = "1f1b";
      } else {
        parts *= schedule == "interleaved" && 3 * pipeline <= layers_ ? number(2, 3) : 2;
      }
    }
    part += " parallel.schedule=" + schedule;
    if (schedule == "interleaved") {
      part += fmt::format(" parallel.chunks={}", parts / pipeline);
    }
    if (pipeline > 1 && schedule != "auto" && one_in(2)) {
      part += " parallel.split=" + drawn_split(parts);
    }
    const std::string recompute = one_of("none none selective full");
    part += " train.recompute=" + recompute;
    if (!schedule.starts_with("zb") && schedule != "auto" && one_in(4)) {
      part += " parallel.backward=fused";
    }
    if (tokens_ && rows_divide(shards_)) {
      part += " parallel.sequence=" + one_of("auto on off");
    }
    part += " parallel.bucket=" + one_of("0 0.0001");
    part += " run.threads=" + one_of("1 1 2");
    if (settings_.find("parallel.sync") == std::string::npos && one_in(3)) {
      part += " train.check_every=1 train.repeat_every=" + one_of("1 2");
    }
    if (one_in(4)) {
      part += " checkpoint.background=off run.timeline=1-1";
    }
    if (one_in(4)) {
      part += fmt::format(" run.tensorboard=on run.tensorboard_histograms={}", half_);
    }
    return part;
  }
  std::string drawn_split(std::int64_t parts) {
    std::vector<std::int64_t> cuts;
    for (std::int64_t layer = 1; layer < layers_; ++layer) {
      cuts.push_back(layer);
    }
    while (std::ssize(cuts) >= parts) {
      cuts.erase(cuts.begin() + number(0, std::ssize(cuts) - 1));
    }
    return fmt::format("0,{}", fmt::join(cuts, ","));
  }

  /// A run that may have two parts.
  std::string drawn_run() {
    const std::string part = drawn_part();
    return one_in(3) ? fmt::format("{} train.steps={} | {}", part, half_, drawn_part()) : part;
  }

  /// One asynchronous worker, with servers or without: each of its updates is a step.
  std::string drawn_workers() {
    std::string part = " parallel.sync=async run.threads=" + one_of("1 2");
    part += " " + one_of("async.rate=divided async.staleness=1 async.ahead=1");
    const std::int64_t servers = number(0, 2);
    if (servers == 0) {
      part.insert(0, "1x1x1");
      return one_in(3) ? fmt::format("{} train.steps={} | {}", part, half_, part) : part;
    }
    const std::int64_t lanes = servers + 1;
    return fmt::format(
        "{}x1x1{} async.servers={} numerics.lanes={} batch.global={} train.steps={} "
        "train.evaluate_every=0 checkpoint.best=off",
        lanes, part, servers, lanes, lanes * batch_, 2 * half_ / lanes);
  }

  Mode mode_;
  std::mt19937_64 random_;
  Settings settings_;
  std::vector<std::string> runs_;
  std::int64_t layers_ = 0;
  std::vector<std::string> trained_;  ///< patterns of names
  bool tokens_ = false;
  std::int64_t shards_ = 1;
  std::int64_t micro_ = 1;
  std::int64_t batch_ = 1;  ///< samples of a lane
  std::int64_t lanes_ = 1;
  std::int64_t islands_ = 1;
  std::int64_t half_ = 1;  ///< of the steps
};

/// The environment's number, or `otherwise`.
std::int64_t number_of(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

/// What a run gives; nothing where the config's rules refuse it.
std::optional<Result> train_or_refuse(const Settings& settings, const std::string& run) {
  try {
    return train(settings, run);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) {
      throw;
    }
    std::cout << "    refused: " << error.what() << std::endl;
    return std::nullopt;
  }
}

class RandomModels : public testing::TestWithParam<Mode> {
 protected:
  struct Counts {
    int models = 0;
    int runs = 0;
    int refused = 0;
    int unchanged = 0;  ///< models whose losses stay as they are
  };

  void compare(const RandomCase& one) {
    ++counts_.models;
    const std::optional<Result> reference = train_or_refuse(one.settings(), "1x1x1");
    if (!reference) {
      ++counts_.refused;
      return;
    }
    const std::vector<double> losses = reference->losses();
    counts_.unchanged += std::ranges::adjacent_find(losses, std::not_equal_to<>()) == losses.end();
    for (const std::string& run : one.runs()) {
      SCOPED_TRACE(run);
      std::cout << "    " << run << std::endl;
      ++counts_.runs;
      std::optional<Result> found = train_or_refuse(one.settings(), run);
      if (!found) {
        ++counts_.refused;
        continue;
      }
      Result expected = *reference;
      if (run.find("async.servers") != std::string::npos) {
        // A step of theirs is several of the reference.
        expected.records = found->records;
      }
      expect_same(*found, expected);
    }
  }

  Counts counts_;
};

// STRATA_FUZZ_MODELS: how many models of each mode; STRATA_FUZZ_SEED: the number of the first.
TEST_P(RandomModels, GiveTheBitsOfOneRankOnRandomGrids) {
  const std::int64_t first = number_of("STRATA_FUZZ_SEED", 0);
  const std::int64_t end = first + number_of("STRATA_FUZZ_MODELS", 16);
  for (std::int64_t model = first; model < end; ++model) {
    const RandomCase one(GetParam(), static_cast<std::uint64_t>(model));
    SCOPED_TRACE(fmt::format("model {}", model));
    std::cout << fmt::format("model {}: {}", model, one.settings()) << std::endl;
    try {
      compare(one);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  std::cout << fmt::format("{} models on {} grids; {} refused, {} with equal losses",
                           counts_.models, counts_.runs, counts_.refused, counts_.unchanged)
            << std::endl;
  EXPECT_LE(counts_.refused, 1 + (counts_.models + counts_.runs) / 20);
  EXPECT_LE(counts_.unchanged, 1 + counts_.models / 4);
}

std::string name_of_mode(const testing::TestParamInfo<Mode>& test) {
  constexpr std::array kNames{"step", "local", "lora", "async"};
  return kNames.at(static_cast<std::size_t>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Case, RandomModels,
                         testing::Values(Mode::kStep, Mode::kLocal, Mode::kLora, Mode::kAsync),
                         name_of_mode);

}  // namespace
}  // namespace strata::grids
