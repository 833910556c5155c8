// The product's ordered reduction and all-gather against MPI_Allreduce of the same floats, in turn:
//   mpirun -n 2 bench_comm_reduction [MiB of floats] [repetitions]
// Rank 0 prints one JSON object; seconds are medians of the slowest rank's time.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <mpi.h>

#include "strata/comm/mpi.hpp"
#include "strata/comm/ordered_reduction.hpp"
#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/grid/grid.hpp"

namespace {

using namespace strata;

/// What slices are multiples of, as in optim::BucketPlan.
constexpr std::int64_t kBlock = 1024;
/// Buckets in flight at once, as in optim::GradientReducer.
constexpr std::int64_t kInFlight = 4;

struct Case {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Bench {
 public:
  Bench(comm::Communicator& world, std::int64_t elements)
      : world_(world),
        reduction_(world, grid::Assignment::blocked(grid::SumTree(world.size()), world.size())),
        gradients_(device::Device::cpu(), elements * 4),
        sums_(device::Device::cpu(), elements * 4),
        received_(device::Device::cpu(), elements * 8),
        elements_(elements) {}

  void all_reduce() {
    MPI_Allreduce(gradients_.raw(), sums_.raw(), static_cast<int>(elements_), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }

  void all_reduce_in_place() {
    MPI_Allreduce(MPI_IN_PLACE, gradients_.raw(), static_cast<int>(elements_), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }

  /// As a training step does it: buckets are reduced with a few in flight, and when all are done
  /// every bucket's slices are gathered.
  void ordered(std::int64_t bucket_elements) {
    std::vector<comm::OrderedReduction::Pending> pending;
    std::size_t finished = 0;
    const std::int64_t slot = reduction_.receive_elements(bucket_elements / world_.size() + kBlock);
    for (std::int64_t begin = 0; begin < elements_; begin += bucket_elements) {
      if (static_cast<std::int64_t>(pending.size() - finished) == kInFlight) {
        finish(pending[finished++]);
      }
      const TensorView bucket = bucket_at(begin, bucket_elements);
      const std::int64_t offset = static_cast<std::int64_t>(pending.size()) % kInFlight * slot;
      pending.push_back(reduction_.start(
          std::span(&bucket, 1), slices_of(bucket),
          received_.view(0, Shape{elements_ * 2}, DType::kFloat32).flat_slice(offset, slot)));
    }
    for (; finished < pending.size(); ++finished) {
      finish(pending[finished]);
    }
    std::vector<comm::Request> gathers;
    for (std::int64_t begin = 0; begin < elements_; begin += bucket_elements) {
      const TensorView bucket = bucket_at(begin, bucket_elements);
      gathers.push_back(comm::begin_all_gather_slices(world_, bucket, slices_of(bucket)));
    }
    for (comm::Request& gather : gathers) {
      gather.wait();
    }
  }

  /// Gives every rank's element i the value i % 8 + rank; the sums are exact in any order.
  void fill() {
    const std::span<float> values = gradients().host<float>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 8) + static_cast<float>(world_.rank());
    }
  }

  void require_sums(const std::string& name) {
    const auto ranks = static_cast<float>(world_.size());
    const std::span<const float> values =
        (name == "MPI_Allreduce" ? sums() : gradients()).host<float>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = static_cast<float>(i % 8) * ranks + ranks * (ranks - 1.0F) / 2.0F;
      require(values[i] == expected, "{} left {} in element {} where the sum is {}", name,
              values[i], i, expected);
    }
  }

 private:
  [[nodiscard]] TensorView gradients() const {
    return gradients_.view(0, Shape{elements_}, DType::kFloat32);
  }
  [[nodiscard]] TensorView sums() const { return sums_.view(0, Shape{elements_}, DType::kFloat32); }
  [[nodiscard]] TensorView bucket_at(std::int64_t begin, std::int64_t bucket_elements) const {
    return gradients().flat_slice(begin, std::min(bucket_elements, elements_ - begin));
  }
  void finish(comm::OrderedReduction::Pending& pending) {
    comm::OrderedReduction::wait(pending);
    reduction_.fold(context_, pending);
  }

  [[nodiscard]] std::vector<grid::Range> slices_of(const TensorView& bucket) const {
    std::vector<grid::Range> slices;
    for (std::int64_t r = 0; r < world_.size(); ++r) {
      const grid::Range part = grid::even_part(bucket.count() / kBlock, world_.size(), r);
      slices.push_back({part.begin * kBlock, part.end * kBlock});
    }
    return slices;
  }

  comm::Communicator& world_;
  comm::OrderedReduction reduction_;
  ops::Context context_{1};
  device::Buffer gradients_;
  device::Buffer sums_;
  device::Buffer received_;
  std::int64_t elements_;
};

double seconds_of(const std::function<void()>& run) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  run();
  double seconds = MPI_Wtime() - begin;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

void compare(comm::Communicator& world, std::int64_t mib, int repetitions) {
  constexpr std::int64_t kElementsPerMib = 1024 * 1024 / 4;
  Bench bench(world, mib * kElementsPerMib);
  std::vector<Case> cases;
  cases.push_back({"MPI_Allreduce", [&] { bench.all_reduce(); }, {}});
  cases.push_back({"MPI_Allreduce in place", [&] { bench.all_reduce_in_place(); }, {}});
  for (std::int64_t bucket = 1; bucket < mib; bucket *= 2) {
    cases.push_back({fmt::format("ordered, buckets of {} MiB", bucket),
                     [&bench, bucket] { bench.ordered(bucket * kElementsPerMib); },
                     {}});
  }
  cases.push_back({"ordered, whole", [&] { bench.ordered(mib * kElementsPerMib); }, {}});
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    for (Case& one : cases) {
      bench.fill();
      const double seconds = seconds_of(one.run);
      if (repetition < 0) {
        bench.require_sums(one.name);
      } else {
        one.seconds.push_back(seconds);
      }
    }
  }
  if (world.rank() != 0) {
    return;
  }
  const double reference = std::min(median(cases[0].seconds), median(cases[1].seconds));
  fmt::print("{{\"ranks\": {}, \"mib\": {}, \"repetitions\": {}, \"cases\": [\n", world.size(), mib,
             repetitions);
  for (const Case& one : cases) {
    fmt::print(
        "  {{\"name\": \"{}\", \"seconds\": {:.6f}, \"least_seconds\": {:.6f}, "
        "\"ratio\": {:.3f}}}{}\n",
        one.name, median(one.seconds), *std::min_element(one.seconds.begin(), one.seconds.end()),
        median(one.seconds) / reference, &one == &cases.back() ? "" : ",");
  }
  fmt::print("]}}\n");
}

}  // namespace

int main(int argc, char** argv) {
  comm::MpiSession session(&argc, &argv);
  compare(session.world(), argc > 1 ? std::atoll(argv[1]) : 64, argc > 2 ? std::atoi(argv[2]) : 15);
  session.finalize();
}
