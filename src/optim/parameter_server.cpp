#include "strata/optim/parameter_server.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "strata/core/clock.hpp"
#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"

namespace strata::optim {
namespace {

using Word = comm::Window::Word;

constexpr auto kWordBytes = static_cast<std::int64_t>(sizeof(Word));
/// Elements that are sent together or, where all are zeros, not at all.
constexpr std::int64_t kPackedBlock = 32;
constexpr std::int64_t kMaskBits = 64;

/// The words before the gradient in an inbox. The first, written last, is the number of pushes so
/// far; the second the number of words after it.
enum Header : std::int64_t { kPushes, kWords, kVersion, kRate, kScale, kHeaderWords };

std::int64_t words_for(std::int64_t bytes) {
  return (bytes + kWordBytes - 1) / kWordBytes;
}

std::int64_t mask_words(std::int64_t elements) {
  return (elements / kPackedBlock + kMaskBits - 1) / kMaskBits;
}

/// A short wait for another rank.
void pause() {
  constexpr auto kPause = std::chrono::microseconds(100);
  std::this_thread::sleep_for(kPause);
}

/// Packs a gradient without its blocks of zeros: a mask, then the other blocks. Returns: the words.
std::int64_t pack_blocks(std::span<const Word> gradient, std::int64_t block_words,
                         std::span<Word> into) {
  const auto blocks = std::ssize(gradient) / block_words;
  const std::int64_t masks = (blocks + kMaskBits - 1) / kMaskBits;
  std::fill_n(into.begin(), masks, Word{0});
  std::int64_t at = masks;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::span block = gradient.subspan(static_cast<std::size_t>(b * block_words),
                                             static_cast<std::size_t>(block_words));
    if (std::ranges::any_of(block, [](Word word) { return word != 0; })) {
      into[static_cast<std::size_t>(b / kMaskBits)] |= Word{1}
                                                       << static_cast<unsigned>(b % kMaskBits);
      std::ranges::copy(block, into.begin() + at);
      at += block_words;
    }
  }
  return at;
}

void unpack_blocks(std::span<const Word> packed, std::int64_t block_words,
                   std::span<Word> gradient) {
  const auto blocks = std::ssize(gradient) / block_words;
  std::int64_t at = (blocks + kMaskBits - 1) / kMaskBits;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto to = gradient.begin() + b * block_words;
    if ((packed[static_cast<std::size_t>(b / kMaskBits)] >> static_cast<unsigned>(b % kMaskBits) &
         1U) != 0) {
      std::copy_n(packed.begin() + at, block_words, to);
      at += block_words;
    } else {
      std::fill_n(to, block_words, Word{0});
    }
  }
}

}  // namespace

ParameterServer::Places ParameterServer::places_of(std::int64_t pieces, std::int64_t elements,
                                                   std::int64_t ranks, DType dtype) {
  Places places;
  places.taken = places.sequences + pieces;
  places.weights = places.taken + ranks;
  places.inboxes = places.weights + words_for(elements * size_bytes(dtype));
  places.inbox_words =
      kHeaderWords + mask_words(elements) + words_for(elements * size_bytes(dtype));
  places.words = places.inboxes + ranks * places.inbox_words;
  return places;
}

std::vector<nn::MemoryItem> ParameterServer::memory(const OptimizerOptions& optimizer,
                                                    const nn::ParameterLayout& layout,
                                                    const BucketPlan& buckets, std::int64_t servers,
                                                    std::int64_t ranks, std::int64_t rank,
                                                    DType dtype) {
  const std::int64_t most = Ownership{layout, buckets, 0}.elements();  // no server has more
  const std::int64_t element = size_bytes(dtype);
  std::vector<nn::MemoryItem> items{
      {"fetched weights and pushed gradient",
       most * element + (kHeaderWords + mask_words(most)) * kWordBytes + most * element}};
  if (rank < servers) {
    const Ownership own{layout, buckets, rank};
    const std::int64_t elements = own.elements();
    const Places places = places_of(std::ssize(own.pieces()), elements, ranks, dtype);
    items.push_back({"window of weights and inboxes", places.words * kWordBytes});
    items.push_back({"master weights and gradient of the server",
                     2 * elements * element + places.inbox_words * kWordBytes});
    items.push_back(OwnedTensors::memory(own, UpdateRule::states(optimizer), dtype).front());
  }
  return items;
}

ParameterServer::ParameterServer(comm::Communicator& group, const OptimizerOptions& optimizer,
                                 const AsyncOptions& options, const nn::ParameterLayout& layout,
                                 const BucketPlan& buckets, std::int64_t servers, DType dtype)
    : group_(group), options_(options), dtype_(dtype), context_(1) {
  std::int64_t most = 0;
  for (std::int64_t s = 0; s < servers; ++s) {
    const Ownership ownership{layout, buckets, s};
    Server server{.pieces = ownership.pieces(), .elements = ownership.elements()};
    server.places = places_of(std::ssize(server.pieces), server.elements, group.size(), dtype);
    most = std::max(most, server.elements);
    servers_.push_back(std::move(server));
  }
  fetched_memory_ = device::Buffer(device::Device::cpu(), most * size_bytes(dtype));
  outbox_.resize(static_cast<std::size_t>(kHeaderWords + mask_words(most) +
                                          words_for(most * size_bytes(dtype))));
  std::int64_t words = 1;
  if (group.rank() < servers) {
    const Server& own = servers_[static_cast<std::size_t>(group.rank())];
    words = own.places.words;
    owned_.emplace(device::Device::cpu(), Ownership{layout, buckets, group.rank()},
                   UpdateRule::states(optimizer), dtype);
    rule_.emplace(context_, optimizer, layout, *owned_);
    gradient_memory_ = device::Buffer(device::Device::cpu(), own.elements * size_bytes(dtype));
    inbox_.resize(static_cast<std::size_t>(own.places.inbox_words));
  }
  window_ = group.make_window(words);
}

ParameterServer::~ParameterServer() {
  ends_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::span<Word> ParameterServer::words_of(const TensorView& tensor) const {
  return {reinterpret_cast<Word*>(tensor.raw()),
          static_cast<std::size_t>(tensor.bytes() / kWordBytes)};
}

void ParameterServer::show(const OwnedPiece& piece, std::size_t index) {
  const Server& own = servers_[static_cast<std::size_t>(group_.rank())];
  const std::int64_t sequence = own.places.sequences + static_cast<std::int64_t>(index);
  // Slices begin at whole blocks, so whole words belong to one.
  const std::int64_t first = piece.owned_offset * size_bytes(dtype_) / kWordBytes;
  const std::int64_t count = words_for(piece.range.count() * size_bytes(dtype_));
  const auto* const words = reinterpret_cast<const Word*>(master(piece).raw());
  const Word before = window_->load_own(sequence);
  window_->store_own(sequence, before + 1);
  window_->write_own(own.places.weights + first, {words, static_cast<std::size_t>(count)});
  window_->store_own(sequence, before + 2);
}

void ParameterServer::start(std::int64_t updates) {
  if (owned_) {
    window_->store_own(servers_[static_cast<std::size_t>(group_.rank())].places.version,
                       static_cast<Word>(updates));
  }
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    show(pieces()[i], i);
  }
  group_.barrier();
  thread_ = std::thread([this] { serve(); });
}

void ParameterServer::serve() {
  try {
    while (!ends_) {
      window_->progress();
      bool applied = false;
      for (std::int64_t rank = 0; owned_ && rank < group_.size(); ++rank) {
        applied = apply(rank) || applied;
      }
      if (!applied) {
        pause();
      }
    }
  } catch (const std::exception&) {
    failure_ = std::current_exception();
    failed_ = true;
  }
}

void ParameterServer::require_serving() const {
  if (failed_) {
    std::rethrow_exception(failure_);
  }
}

void ParameterServer::await_taken(std::int64_t server) {
  const Server& to = servers_[static_cast<std::size_t>(server)];
  const comm::WaitMark mark(group_.activity(), comm::WaitKind::kMessage,
                            fmt::format("the parameter server on rank {}", server));
  const double begin = now_seconds();
  while (window_->load(server, to.places.taken + group_.rank()) != to.pushes) {
    require_serving();
    if (now_seconds() - begin > group_.timeout().seconds) {
      fail(ExitCode::kPeer,
           "rank {} waited {:.0f} s for the parameter server on rank {}; see what that rank "
           "reports, "
           "or set a longer run.timeout",
           group_.rank(), group_.timeout().seconds, server);
    }
    pause();
  }
}

bool ParameterServer::apply(std::int64_t rank) {
  const Server& own = servers_[static_cast<std::size_t>(group_.rank())];
  const std::int64_t inbox = own.places.inboxes + rank * own.places.inbox_words;
  const Word pushes = window_->load_own(inbox + kPushes);
  if (pushes == window_->load_own(own.places.taken + rank)) {
    return false;
  }
  const std::span packed(inbox_.data(),
                         static_cast<std::size_t>(window_->load_own(inbox + kWords)));
  window_->read_own(inbox + kVersion, packed);
  const Word version = window_->load_own(own.places.version);
  const auto staleness = static_cast<std::int64_t>(version - packed[0]);
  double rate = std::bit_cast<double>(packed[kRate - kVersion]);
  const auto scale = std::bit_cast<double>(packed[kScale - kVersion]);
  const bool stale = options_.staleness > 0 && staleness > options_.staleness;
  const bool drops = stale && options_.stale == Stale::kDrop;
  if (stale) {
    rate *= static_cast<double>(options_.staleness) / static_cast<double>(staleness);
  } else if (options_.rate == StaleRate::kDivided) {
    rate /= static_cast<double>(std::max<std::int64_t>(1, staleness));
  }
  if (!drops) {
    const TensorView gradient = gradient_memory_.view(0, Shape{own.elements}, dtype_);
    unpack_blocks(packed.subspan(kHeaderWords - kVersion),
                  kPackedBlock * size_bytes(dtype_) / kWordBytes, words_of(gradient));
    for (const UpdateRule::Run& run : rule_->runs()) {
      rule_->update(run, gradient.flat_slice(run.elements.owned_offset, run.elements.range.count()),
                    rate, scale, static_cast<std::int64_t>(version) + 1);
    }
    for (std::size_t i = 0; i < pieces().size(); ++i) {
      show(pieces()[i], i);
    }
    window_->store_own(own.places.version, version + 1);
  }
  {
    const std::lock_guard lock(counts_mutex_);
    counts_.applied += drops ? 0 : 1;
    counts_.dropped += drops ? 1 : 0;
    counts_.scaled += stale && !drops ? 1 : 0;
    if (!stale) {
      counts_.most_applied = std::max(counts_.most_applied, staleness);
    }
    ++counts_.staleness[static_cast<std::size_t>(std::min(staleness, kMostTold))];
  }
  window_->store_own(own.places.taken + rank, pushes);
  return true;
}

ParameterServer::Counts ParameterServer::counts() const {
  const std::lock_guard lock(counts_mutex_);
  return counts_;
}

void ParameterServer::fetch_slice(std::int64_t server, std::size_t index) {
  const Server& from = servers_[static_cast<std::size_t>(server)];
  const OwnedPiece& piece = from.pieces[index];
  const std::int64_t sequence = from.places.sequences + static_cast<std::int64_t>(index);
  const std::int64_t first = piece.owned_offset * size_bytes(dtype_) / kWordBytes;
  const std::int64_t count = words_for(piece.range.count() * size_bytes(dtype_));
  const std::span words(reinterpret_cast<Word*>(fetched_memory_.raw()) + first,
                        static_cast<std::size_t>(count));
  while (true) {
    const Word before = window_->load(server, sequence);
    if (before % 2 == 0) {
      window_->get(server, from.places.weights + first, words);
      if (window_->load(server, sequence) == before) {
        return;
      }
    }
    ++rereads_;
    require_serving();
    std::this_thread::yield();
  }
}

void ParameterServer::fetch(const TakeWeights& take) {
  require_serving();
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    Server& server = servers_[s];
    const auto rank = static_cast<std::int64_t>(s);
    const Places& places = server.places;
    // The version first: what is read after it may be newer, never older.
    server.fetched_version = window_->load(rank, places.version);
    const std::size_t pieces = server.pieces.size();
    std::vector<Word> before(pieces);
    std::vector<Word> after(pieces);
    window_->get(rank, places.sequences, before);
    window_->get(rank, places.weights,
                 {reinterpret_cast<Word*>(fetched_memory_.raw()),
                  static_cast<std::size_t>(places.inboxes - places.weights)});
    window_->get(rank, places.sequences, after);
    for (std::size_t i = 0; i < pieces; ++i) {
      if (before[i] != after[i] || before[i] % 2 != 0) {
        fetch_slice(rank, i);
      }
      const OwnedPiece& piece = server.pieces[i];
      take(piece, fetched_memory_.view(piece.owned_offset * size_bytes(dtype_),
                                       Shape{piece.range.count()}, dtype_));
    }
  }
}

void ParameterServer::push(const ReadGradient& read, double learning_rate, double gradient_scale) {
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    Server& server = servers_[s];
    const auto rank = static_cast<std::int64_t>(s);
    const TensorView gradient = fetched_memory_.view(0, Shape{server.elements}, dtype_);
    std::fill_n(gradient.raw(), gradient.bytes(), std::byte{0});
    for (const OwnedPiece& piece : server.pieces) {
      read(piece, gradient.flat_slice(piece.owned_offset, piece.range.count()));
    }
    const std::span packed(outbox_);
    const std::int64_t words =
        kHeaderWords - kVersion +
        pack_blocks(words_of(gradient), kPackedBlock * size_bytes(dtype_) / kWordBytes,
                    packed.subspan(kHeaderWords));
    packed[kWords] = static_cast<Word>(words);
    packed[kVersion] = server.fetched_version;
    packed[kRate] = std::bit_cast<Word>(learning_rate);
    packed[kScale] = std::bit_cast<Word>(gradient_scale);
    const std::int64_t inbox = server.places.inboxes + group_.rank() * server.places.inbox_words;
    await_taken(rank);
    window_->put(rank, inbox + kWords, packed.subspan(kWords, static_cast<std::size_t>(words + 1)));
    window_->store(rank, inbox + kPushes, ++server.pushes);
    pushed_bytes_ += (words + kVersion) * kWordBytes;
  }
}

void ParameterServer::finish_pushes() {
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    await_taken(static_cast<std::int64_t>(s));
  }
}

void ParameterServer::stop() {
  group_.barrier();
  ends_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
  window_->close();
}

}  // namespace strata::optim
