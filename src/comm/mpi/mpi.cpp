#include "strata/comm/mpi.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>

#include "strata/comm/lone_rank.hpp"
#include "strata/comm/mpi_library.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/narrow.hpp"

namespace strata::comm {
namespace {

void check(int status, const char* call) {
  if (status != MPI_SUCCESS) {
    std::vector<char> text(MPI_MAX_ERROR_STRING, '\0');
    int length = 0;
    MPI_Error_string(status, text.data(), &length);
    fail(ExitCode::kPeer, "{} failed: {}", call, text.data());
  }
}

/// Holds MPI for one thread at a time (MPI_THREAD_SERIALIZED): the thread that serves a window
/// calls it beside the main thread.
class Serial {
 public:
  Serial() : lock_(mutex()) {}

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex mutex;
    return mutex;
  }

  std::lock_guard<std::recursive_mutex> lock_;
};

/// Calls of MPI that block until other ranks have come. Meanwhile the core goes to other processes,
/// because ranks may outnumber the cores.
class BlockingCalls {
 public:
  BlockingCalls(Activity* activity, std::string what)
      : mark_(activity, WaitKind::kLibraryCall, std::move(what)) {
    set_mpi_idle(WhileIdle::kYield);
  }
  ~BlockingCalls() { set_mpi_idle(WhileIdle::kSpin); }
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;

 private:
  WaitMark mark_;
  Serial serial_;
};

void require_host(const ConstTensorView& payload) {
  require(payload.memory_space() == MemorySpace::kHost,
          "MPI sends host memory, this tensor is in {} memory", name_of(payload.memory_space()));
}

int bytes_of(const ConstTensorView& payload) {
  require_host(payload);
  return checked_int(payload.bytes(), "the size of a message in bytes");
}

MPI_Datatype mpi_type_of(const ConstTensorView& summand) {
  require_host(summand);
  return with_floating(summand.dtype(), []<typename T>(T) {
    return std::is_same_v<T, float> ? MPI_FLOAT : MPI_DOUBLE;
  });
}

/// Lets MPI advance the messages of this process.
void advance() {
  const Serial serial;
  int arrived = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &arrived, MPI_STATUS_IGNORE),
        "MPI_Iprobe");
}

/// Whether a request is complete, which then is MPI_REQUEST_NULL.
bool is_complete(MPI_Request& request) {
  const Serial serial;
  int done = 0;
  check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

class MpiOperation final : public Request::Operation {
 public:
  explicit MpiOperation(MPI_Request request) : request_(request) {}

  bool test() override { return is_complete(request_); }

 private:
  MPI_Request request_;
};

/// A reduce-scatter into a separate buffer. In place, MPI would write the sums to the start of the
/// tensor, over elements that must not change.
class MpiReduceScatter final : public Request::Operation {
 public:
  MpiReduceScatter(MPI_Comm communicator, const TensorView& tensor,
                   std::span<const grid::Range> slices, const TensorView& own)
      : own_(own), sums_(static_cast<std::size_t>(own.bytes())) {
    for (const grid::Range& slice : slices) {
      counts_.push_back(checked_int(slice.count(), "the elements of a slice"));
    }
    check(MPI_Ireduce_scatter(tensor.raw(), sums_.data(), counts_.data(), mpi_type_of(tensor),
                              MPI_SUM, communicator, &request_),
          "MPI_Ireduce_scatter");
  }

  bool test() override {
    const bool done = is_complete(request_);
    if (done) {
      std::copy(sums_.begin(), sums_.end(), own_.raw());
    }
    return done;
  }

 private:
  TensorView own_;
  std::vector<std::byte> sums_;
  // MPI reads them until the operation completes.
  std::vector<int> counts_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

/// One window of MPI's one-sided communication, in a passive epoch from its beginning to its end.
class MpiWindow final : public Window {
 public:
  MpiWindow(MPI_Comm communicator, std::int64_t words, Activity* activity)
      : Window({}), activity_(activity) {
    // MPICH puts the shares of a node's ranks next to each other. 4.0 with UCX 1.13 loses the
    // address of a share that does not begin at a multiple of 16 bytes. Source:
    // https://github.com/pmodels/mpich/pull/6140
    constexpr std::int64_t kPageWords = 512;
    const std::int64_t pages = (words + kPageWords - 1) / kPageWords;
    const auto bytes =
        static_cast<MPI_Aint>(pages * kPageWords * static_cast<std::int64_t>(sizeof(Word)));
    const Serial serial;
    void* memory = nullptr;
    check(MPI_Win_allocate(bytes, sizeof(Word), MPI_INFO_NULL, communicator, &memory, &window_),
          "MPI_Win_allocate");
    check(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
    const std::span own(static_cast<Word*>(memory), static_cast<std::size_t>(words));
    std::ranges::fill(own, Word{0});
    set_own(own);
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
    check(MPI_Barrier(communicator), "MPI_Barrier");
  }
  // Freeing a window is collective, and destructors do not communicate.
  ~MpiWindow() override = default;
  MpiWindow(const MpiWindow&) = delete;
  MpiWindow& operator=(const MpiWindow&) = delete;

  void get(std::int64_t rank, std::int64_t first, std::span<Word> into) override {
    transfer(MPI_Get, "MPI_Get", rank, first, into);
  }

  void put(std::int64_t rank, std::int64_t first, std::span<const Word> words) override {
    transfer(MPI_Put, "MPI_Put", rank, first, words);
  }

  Word fetch_add(std::int64_t rank, std::int64_t word, Word summand) override {
    const WaitMark mark = mark_for(rank);
    const Serial serial;
    Word before = 0;
    check(MPI_Fetch_and_op(&summand, &before, MPI_UINT64_T, static_cast<int>(rank), word, MPI_SUM,
                           window_),
          "MPI_Fetch_and_op");
    check(MPI_Win_flush(static_cast<int>(rank), window_), "MPI_Win_flush");
    return before;
  }

  void progress() override {
    const Serial serial;
    advance();
    check(MPI_Win_sync(window_), "MPI_Win_sync");
  }

  void close() override {
    const Serial serial;
    check(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
    check(MPI_Win_free(&window_), "MPI_Win_free");
  }

 private:
  /// The library may need the rank's help, and blocks until it comes.
  [[nodiscard]] WaitMark mark_for(std::int64_t rank) const {
    return {activity_, WaitKind::kLibraryCall, fmt::format("reach the memory of rank {}", rank)};
  }

  /// Copies words from or to a rank, in pieces that MPI counts in 32 bits.
  template <typename Call, typename T>
  void transfer(Call* call, const char* name, std::int64_t rank, std::int64_t first,
                std::span<T> words) {
    constexpr std::size_t kMost = std::size_t{1} << 27U;
    const WaitMark mark = mark_for(rank);
    const Serial serial;
    for (std::size_t at = 0; at < words.size(); at += kMost) {
      const std::span<T> piece = words.subspan(at, std::min(kMost, words.size() - at));
      const int count = static_cast<int>(piece.size());
      check(call(piece.data(), count, MPI_UINT64_T, static_cast<int>(rank),
                 first + static_cast<MPI_Aint>(at), count, MPI_UINT64_T, window_),
            name);
    }
    check(MPI_Win_flush(static_cast<int>(rank), window_), "MPI_Win_flush");
  }

  Activity* activity_;
  MPI_Win window_ = MPI_WIN_NULL;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm communicator, std::int64_t rank, std::int64_t size, std::string name,
                  Activity* activity)
      : Communicator(rank, size, std::move(name)), communicator_(communicator) {
    if (activity != nullptr) {
      set_activity(activity);
      group_ = activity->add_group(this->name());
    }
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  static std::unique_ptr<MpiCommunicator> of(MPI_Comm communicator, std::string name,
                                             Activity* activity) {
    int rank = 0;
    int size = 0;
    check(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
    return std::make_unique<MpiCommunicator>(communicator, rank, size, std::move(name), activity);
  }

  // Freeing a communicator is collective, and destructors do not communicate. MPI_Finalize frees
  // the handles of the few groups of a run.
  ~MpiCommunicator() override = default;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  void barrier() override {
    collective("barrier", "MPI_Ibarrier", 0,
               [&](MPI_Request* request) { return MPI_Ibarrier(communicator_, request); });
  }

  void broadcast(TensorView payload, std::int64_t root) override {
    collective("broadcast", "MPI_Ibcast", payload.bytes(), [&](MPI_Request* request) {
      return MPI_Ibcast(payload.raw(), bytes_of(payload), MPI_BYTE, static_cast<int>(root),
                        communicator_, request);
    });
  }

  void all_gather(ConstTensorView mine, TensorView all) override {
    require(all.bytes() == size() * mine.bytes(), "{} bytes gathered from {} ranks with {} each",
            all.bytes(), size(), mine.bytes());
    collective("all-gather", "MPI_Iallgather", all.bytes(), [&](MPI_Request* request) {
      return MPI_Iallgather(mine.raw(), bytes_of(mine), MPI_BYTE, all.raw(), bytes_of(mine),
                            MPI_BYTE, communicator_, request);
    });
  }

  void all_reduce(TensorView sum) override {
    collective("all-reduce", "MPI_Iallreduce", sum.bytes(), [&](MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, sum.raw(),
                            checked_int(sum.count(), "the elements of a sum"), mpi_type_of(sum),
                            MPI_SUM, communicator_, request);
    });
  }

  std::unique_ptr<Window> make_window(std::int64_t words) override {
    const BlockingCalls calls(activity(), "make a window with all ranks");
    return std::make_unique<MpiWindow>(communicator_, words, activity());
  }

  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override {
    int key = 0;
    while (members[static_cast<std::size_t>(key)] != rank()) {
      ++key;
    }
    MPI_Comm split = MPI_COMM_NULL;
    record("split", ++collectives_, -1, 0);
    const BlockingCalls calls(activity(), fmt::format("split the {} into {}s", this->name(), name));
    check(MPI_Comm_split(communicator_, static_cast<int>(members.front()), key, &split),
          "MPI_Comm_split");
    auto group = of(split, std::move(name), activity());
    group->set_timeout(timeout());
    return group;
  }

 protected:
  std::unique_ptr<Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                 Tag tag) override {
    record("send", ++messages_, peer, payload.bytes());
    return begin(MPI_Isend, "MPI_Isend", payload, peer, tag);
  }

  std::unique_ptr<Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                    Tag tag) override {
    record("receive", ++messages_, peer, payload.bytes());
    return begin(MPI_Irecv, "MPI_Irecv", payload, peer, tag);
  }

  std::unique_ptr<Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    const grid::Range& own = slices[static_cast<std::size_t>(rank())];
    record("reduce-scatter", ++collectives_, -1, tensor.bytes());
    const Serial serial;
    return std::make_unique<MpiReduceScatter>(communicator_, tensor, slices,
                                              tensor.flat_slice(own.begin, own.count()));
  }

 private:
  template <typename Function, typename View>
  std::unique_ptr<Request::Operation> begin(Function* function, const char* name,
                                            const View& payload, std::int64_t peer, Tag tag) {
    const Serial serial;
    MPI_Request request = MPI_REQUEST_NULL;
    check(function(payload.raw(), bytes_of(payload), MPI_BYTE, static_cast<int>(peer),
                   static_cast<int>(tag), communicator_, &request),
          name);
    return std::make_unique<MpiOperation>(request);
  }
  /// Starts a collective with `start`, which is MPI's `call`, and waits for it.
  template <typename Start>
  void collective(const char* what, const char* call, std::int64_t bytes, const Start& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    record(what, ++collectives_, -1, bytes);
    {
      const Serial serial;
      check(start(&request), call);
    }
    Request(std::make_unique<MpiOperation>(request), describe_collective(what), timeout(),
            activity())
        .wait();
  }
  void record(const char* kind, std::int64_t number, std::int64_t peer, std::int64_t bytes) {
    if (activity() != nullptr) {
      activity()->record(group_, kind, number, peer, bytes);
    }
  }

  MPI_Comm communicator_;
  int group_ = 0;
  std::int64_t collectives_ = 0;
  std::int64_t messages_ = 0;
};

class MpiProgress final : public ProgressEngine {
 public:
  void progress() override { advance(); }
};

bool is_started() {
  int started = 0;
  MPI_Initialized(&started);
  return started != 0;
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv, Activity* activity) {
  const std::int64_t launched = launch_in_environment().ranks;
  if (launched == 1) {
    world_ = std::make_unique<LoneRank>("world");
    world_->set_activity(activity);
    engine_ = std::make_unique<ProgressEngine>();
    hosts_ = {host_name()};
    return;
  }
  prepare_mpi_library();
  {
    const BlockingCalls calls(activity, "start MPI with all ranks");
    int provided = 0;
    check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) {
      fail(ExitCode::kPeer, "the MPI library does not support threads (MPI_THREAD_SERIALIZED)");
    }
    world_ = MpiCommunicator::of(MPI_COMM_WORLD, "world", activity);
  }
  if (launched > 1 && world_->size() == 1) {
    fail(ExitCode::kUsage,
         "{} processes were launched, and to {}, which strata uses, each is alone: the launcher is "
         "another MPI library's; take this one's mpirun, or under Slurm srun --mpi=TYPE",
         launched, mpi_library_text());
  }
  engine_ = std::make_unique<MpiProgress>();
  hosts_ = world_->all_gather_texts(host_name());
  const std::string& own = hosts_[static_cast<std::size_t>(world_->rank())];
  ranks_on_node_ = std::ranges::count(hosts_, own);
  rank_on_node_ = std::count(hosts_.begin(), hosts_.begin() + world_->rank(), own);
}

void MpiSession::separate() {
  const std::int64_t own = world_->rank();
  world_ = world_->subgroup(std::span(&own, 1), "world");
  hosts_ = {hosts_[static_cast<std::size_t>(own)]};
}

double MpiSession::finalize() {
  if (!is_started()) {
    return 0.0;
  }
  const BlockingCalls calls(world_->activity(), "finalize MPI with all ranks");
  check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  const double begin = now_seconds();
  world_->enter(Phase::kEnd);  // on all ranks
  check(MPI_Finalize(), "MPI_Finalize");
  return now_seconds() - begin;
}

void MpiSession::abort(int exit_code) {
  if (is_started()) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

}  // namespace strata::comm
