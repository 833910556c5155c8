#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"

namespace strata::nn {

/// The index of a slot: an enumerator that names one entry of a list, the first enumerator the
/// first entry.
template <typename Slot>
requires std::is_enum_v<Slot>
[[nodiscard]] constexpr std::size_t index_of(Slot slot) {
  return static_cast<std::size_t>(slot);
}

/// One entry of a list and the slot that names it.
template <typename Slot, typename Entry>
struct SlotEntry {
  Slot slot;
  Entry entry;
};

/// The entries as a list, each at the index of its slot.
/// Throws: std::logic_error where the entries are not in the order of their enum.
template <typename Slot, typename Entry>
[[nodiscard]] std::vector<Entry> slot_list(std::initializer_list<SlotEntry<Slot, Entry>> entries) {
  std::vector<Entry> list;
  for (const SlotEntry<Slot, Entry>& next : entries) {
    require(index_of(next.slot) == list.size(), "entry {} of a list is for slot {}", list.size(),
            index_of(next.slot));
    list.push_back(next.entry);
  }
  return list;
}

/// Tensors that a slot_list() specifies, reached by slot.
class TensorSlots {
 public:
  TensorSlots() = default;
  explicit TensorSlots(std::span<const TensorView> tensors) : tensors_(tensors) {}

  /// Throws: std::logic_error where the list ends before the slot.
  template <typename Slot>
  [[nodiscard]] const TensorView& at(Slot slot) const {
    require(index_of(slot) < tensors_.size(), "slot {} of a list of {} tensors", index_of(slot),
            tensors_.size());
    return tensors_[index_of(slot)];
  }
  /// The tensors from a slot to the end of the list, for a last slot that stands for any number.
  template <typename Slot>
  [[nodiscard]] std::span<const TensorView> from(Slot slot) const {
    require(index_of(slot) <= tensors_.size(), "slots from {} of a list of {} tensors",
            index_of(slot), tensors_.size());
    return tensors_.subspan(index_of(slot));
  }

 private:
  std::span<const TensorView> tensors_;
};

}  // namespace strata::nn
