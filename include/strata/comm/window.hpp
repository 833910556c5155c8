#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace strata::comm {

/// Words of memory that each rank of a group exposes to all others, who read and write them without
/// its help. Each word is read and written whole, in the order of the calls: who reads a word sees
/// all that its writer wrote before it.
///
/// A put may write a word several times before it returns: glibc copies 8 bytes by two stores. So a
/// word has one writer, or is changed by fetch_add() alone: of two writers, one that clears what
/// the other has put might see it come back.
class Window {
 public:
  using Word = std::uint64_t;

  virtual ~Window() = default;
  /// Ends the window: no rank reaches another's words any more. Not called where the run fails.
  /// Communication: collective over the group.
  virtual void close() = 0;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  /// Copies words of a rank; returns once they are here.
  virtual void get(std::int64_t rank, std::int64_t first, std::span<Word> into) = 0;
  /// Returns once the words are in the rank's memory.
  virtual void put(std::int64_t rank, std::int64_t first, std::span<const Word> words) = 0;
  /// Adds to a word in one piece. Returns: the word before.
  virtual Word fetch_add(std::int64_t rank, std::int64_t word, Word summand) = 0;
  /// Lets calls of other ranks that need this process complete; called often by some thread of it.
  virtual void progress() {}

  /// A word of a rank.
  [[nodiscard]] Word load(std::int64_t rank, std::int64_t word) {
    Word value = 0;
    get(rank, word, std::span(&value, 1));
    return value;
  }
  void store(std::int64_t rank, std::int64_t word, Word value) {
    put(rank, word, std::span(&value, 1));
  }

  /// The same for this rank's own words, without messages.
  [[nodiscard]] Word load_own(std::int64_t word) const {
    return std::atomic_ref(own_[static_cast<std::size_t>(word)]).load(std::memory_order_acquire);
  }
  void store_own(std::int64_t word, Word value) {
    std::atomic_ref(own_[static_cast<std::size_t>(word)]).store(value, std::memory_order_release);
  }
  void read_own(std::int64_t first, std::span<Word> into) const {
    copy_words(&own_[static_cast<std::size_t>(first)], into);
  }
  void write_own(std::int64_t first, std::span<const Word> words) {
    for (const Word word : words) {
      store_own(first++, word);
    }
  }

 protected:
  explicit Window(std::span<Word> own) : own_(own) {}
  void set_own(std::span<Word> own) { own_ = own; }

  static void copy_words(Word* from, std::span<Word> into) {
    for (Word& word : into) {
      word = std::atomic_ref(*from++).load(std::memory_order_acquire);
    }
  }

 private:
  std::span<Word> own_;
};

}  // namespace strata::comm
