#include "import/token_layout.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/error.hpp"

#include "import/chat_encoder.hpp"

namespace strata::io {

void TokenLayout::write(const std::filesystem::path& path) const {
  const std::array<std::int64_t, 4> head{counts.train, counts.test, std::ssize(runs),
                                         std::ssize(characters)};
  PosixFile file(path);
  std::int64_t at = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    file.write_at(at, bytes);
    at += std::ssize(bytes);
  };
  add(std::as_bytes(std::span(head)));
  add(std::as_bytes(std::span(runs)));
  add(std::as_bytes(std::span(characters)));
  file.finish();
}

TokenLayout TokenLayout::read(const std::filesystem::path& path) {
  std::array<std::int64_t, 4> head{};
  const InputFile file(path, ExitCode::kData);
  std::int64_t at = 0;
  const auto take = [&](std::span<std::byte> bytes) {
    file.read_at(at, bytes);
    at += std::ssize(bytes);
  };
  take(std::as_writable_bytes(std::span(head)));
  TokenLayout layout;
  layout.counts = {.train = head[0], .test = head[1]};
  layout.runs.resize(static_cast<std::size_t>(head[2]));
  layout.characters.resize(static_cast<std::size_t>(head[3]));
  take(std::as_writable_bytes(std::span(layout.runs)));
  take(std::as_writable_bytes(std::span(layout.characters)));
  return layout;
}

void LayoutMaker::add(std::uint64_t key, PieceIndex index) {
  filter_.add(index.counts);
  std::vector<std::uint32_t> all;
  std::ranges::set_union(layout_.characters, index.characters, std::back_inserter(all));
  layout_.characters = std::move(all);
  std::vector<bool> left_out;
  for (const std::uint64_t hash : index.hashes) {
    left_out.push_back(!filter_.takes_of_piece(hash));
  }
  Documents& documents = index.documents;
  const std::int64_t tokens = documents.ends.empty() ? 0 : documents.ends.back();
  std::vector<grid::Range> runs{{0, tokens}};
  if (std::ranges::find(left_out, true) != left_out.end()) {
    documents.pairs = documents_.pairs;
    SplitDocuments split = split_documents(documents, left_out);
    runs.clear();
    for (std::int64_t left = split.train_tokens; left > 0; left -= runs.back().count()) {
      const grid::Range& run = split.runs[runs.size()];  // it may go on with what is left out
      runs.push_back({run.begin, std::min(run.end, run.begin + left)});
    }
    documents = split.train_tokens > 0 ? split.documents.part(0, split.train_tokens) : Documents();
  }
  for (const std::int64_t end : documents.ends) {
    documents_.ends.push_back(tokens_ + end);
  }
  for (std::size_t run = 0; run < documents.counted.size(); run += 2) {
    strata::io::add_run(documents_.counted, tokens_ + documents.counted[run],
                        tokens_ + documents.counted[run + 1]);
  }
  for (const grid::Range& run : runs) {
    add_run(key, run);
  }
}

void LayoutMaker::add_run(std::uint64_t key, const grid::Range& tokens) {
  if (tokens.count() > 0) {
    layout_.runs.push_back({key, tokens});
    tokens_ += tokens.count();
  }
}

void LayoutMaker::end_split() {
  if (separator_ && tokens_ > split_begin_) {
    --documents_.ends.back();
    --tokens_;
    --layout_.runs.back().tokens.end;
  }
  split_begin_ = tokens_;
}

TokenLayout LayoutMaker::layout() {
  if (filter_.rules().held_out == 0.0) {
    return std::move(layout_);
  }
  SplitDocuments split = split_documents(documents_, filter_.held_out());
  layout_.counts = {.train = split.train_tokens, .test = tokens_ - split.train_tokens};
  const std::vector<TokenRun> runs = std::exchange(layout_.runs, {});
  std::int64_t begin = 0;  // of runs[run]
  std::size_t run = 0;
  for (const grid::Range& wanted : split.runs) {
    if (wanted.begin < begin) {
      run = 0;  // the documents that are held out follow the others
      begin = 0;
    }
    for (std::int64_t at = wanted.begin; at < wanted.end;) {
      for (; begin + runs[run].tokens.count() <= at; ++run) {
        begin += runs[run].tokens.count();
      }
      const std::int64_t first = runs[run].tokens.begin + at - begin;
      const std::int64_t count = std::min(runs[run].tokens.end - first, wanted.end - at);
      layout_.runs.push_back({runs[run].key, {first, first + count}});
      at += count;
    }
  }
  documents_ = std::move(split.documents);
  return std::move(layout_);
}

LayoutReader::LayoutReader(const TokenLayout& layout, std::filesystem::path directory, DType dtype)
    : layout_(layout), directory_(std::move(directory)), dtype_(dtype) {
  std::int64_t end = 0;
  for (const TokenRun& run : layout_.runs) {
    ends_.push_back(end += run.tokens.count());
  }
}

void LayoutReader::read(std::int64_t first, std::int64_t most, std::vector<std::uint32_t>& ids) {
  const auto end = std::ranges::upper_bound(ends_, first);
  require(end != ends_.end(), "token {} of {}", first, ends_.empty() ? 0 : ends_.back());
  const TokenRun& run = layout_.runs[static_cast<std::size_t>(end - ends_.begin())];
  if (!piece_ || open_ != run.key) {
    piece_.emplace(directory_, run.key, dtype_);
    open_ = run.key;
  }
  const std::int64_t at = run.tokens.end - (*end - first);
  piece_->read({at, std::min(run.tokens.end, at + most)}, ids);
}

}  // namespace strata::io
