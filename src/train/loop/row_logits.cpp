#include "loop/row_logits.hpp"

#include <algorithm>
#include <span>

#include "strata/comm/values.hpp"
#include "strata/device/host_copy.hpp"

namespace strata::train {

std::vector<double> row_logits(const ConstTensorView& outputs, const grid::Range& rows,
                               const nn::LogitBlocks& blocks, comm::Communicator& tensor_group,
                               device::Stream& stream) {
  const std::int64_t ranks = blocks.own.count() < blocks.shards ? tensor_group.size() : 1;
  const auto ids_of = [&](std::int64_t rank) {
    const grid::Range shards = grid::even_part(blocks.shards, ranks, rank);
    return grid::Range{blocks.ids(shards.begin).begin, blocks.ids(shards.end - 1).end};
  };
  std::int64_t widest = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    widest = std::max(widest, ids_of(rank).count());
  }
  std::vector<double> own(static_cast<std::size_t>(rows.count() * widest));
  with_stored(outputs.dtype(), [&]<typename T>(T) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      auto into = own.begin() + (row - rows.begin) * widest;
      for (std::int64_t s = blocks.own.begin; s < blocks.own.end; ++s) {
        const device::HostView part(
            blocks.block(outputs, s).flat_slice(row * blocks.columns(s), blocks.ids(s).count()),
            stream);
        into = std::ranges::transform(part.view().host<T>(), into, [](const T& logit) {
                 return static_cast<double>(static_cast<Compute<T>>(logit));
               }).out;
      }
    }
  });
  if (ranks == 1) {
    return own;
  }
  const std::vector<double> all = comm::gathered_rows(tensor_group, std::span<const double>(own));
  std::vector<double> logits;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto first = all.begin() + (rank * rows.count() + row) * widest;
      logits.insert(logits.end(), first, first + ids_of(rank).count());
    }
  }
  return logits;
}

}  // namespace strata::train
