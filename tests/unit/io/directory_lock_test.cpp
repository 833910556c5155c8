#include "strata/io/directory_lock.hpp"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "strata/io/text_file.hpp"

#include "data_files.hpp"
#include "error_of.hpp"
#include "files/lock_owner.hpp"

namespace strata::io::directory_lock_test {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr const char* kName = "run.lock";

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

/// Short times, so that tests end soon.
LockOptions quick() {
  return {.heartbeat_seconds = 0.05, .stale_seconds = 0.4};
}

TEST(TextFile, TheFirstOfSeveralWritersWins) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "islands.json";
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::atomic<int> winners = 0;
    std::string text;
    std::vector<std::thread> writers;
    for (int writer = 0; writer < 4; ++writer) {
      writers.emplace_back([&, mine = std::string(10000, static_cast<char>('a' + writer))] {
        if (create_text(path, mine)) {
          ++winners;
          text = mine;
        }
        replace_text(directory / "others", mine);  // no writer deletes another's unfinished file
      });
    }
    for (std::thread& writer : writers) {
      writer.join();
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(read_file(path), text);
    EXPECT_THAT(names_in(directory.path()), UnorderedElementsAre("islands.json", "others"));
    fs::remove(path);
  }
}

TEST(TextFile, OnlyFilesOfEndedProcessesAreDeleted) {
  const TemporaryDirectory directory;
  const auto unfinished = [&] { return ".a." + owner_name() + ".new"; };
  const std::string own = unfinished();
  std::string elsewhere = unfinished();
  elsewhere[3] = elsewhere[3] == '0' ? '1' : '0';  // another node's
  write_file(directory / own, "");
  write_file(directory / elsewhere, "");
  const pid_t child = ::fork();
  if (child == 0) {
    write_file(directory / unfinished(), "");
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(names_in(directory.path()).size(), 3U);
  replace_text(directory / "a", "text");
  EXPECT_THAT(names_in(directory.path()), UnorderedElementsAre(own, elsewhere, "a"));
}

class DirectoryLockTest : public testing::Test {
 protected:
  DirectoryLock take(const LockOptions& options = quick()) {
    return {directory_.path(), options, log_};
  }
  std::string refusal(const LockOptions& options = quick()) {
    return test::error_of([&] { const DirectoryLock lock = take(options); }, ExitCode::kUsage);
  }
  /// Leaves the lock of another owner than this process.
  LockOwner leave(const std::function<void(LockOwner&)>& change) {
    LockOwner owner = this_process();
    change(owner);
    write_file(path_, text_of(owner));
    return owner;
  }

  TemporaryDirectory directory_;
  fs::path path_ = directory_ / kName;
  Log log_{Log::Output::kSilent};
};

/// Runs `body` in a child process.
pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  return child;
}

int status_of_child(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

pid_t ended_process() {
  const pid_t child = in_child([] {});
  status_of_child(child);
  return child;
}

TEST_F(DirectoryLockTest, HoldsAndReleases) {
  {
    const DirectoryLock lock = take();
    EXPECT_THAT(names_in(directory_.path()), ElementsAre(kName));
    lock.require_held();
    const LockOwner owner = lock_owner_of(read_file(path_));
    EXPECT_EQ(owner.pid, ::getpid());
    const std::string text = refusal();
    EXPECT_THAT(text, HasSubstr(fmt::format("host {}, process {}, since {}", owner.host, owner.pid,
                                            owner.started)));
    EXPECT_THAT(text, HasSubstr("choose another run.dir"));
  }
  EXPECT_TRUE(names_in(directory_.path()).empty());
  const DirectoryLock again = take();
}

TEST_F(DirectoryLockTest, TheHeartbeatAdvancesInPlace) {
  const DirectoryLock lock = take();
  const LockOwner first = lock_owner_of(read_file(path_));
  for (int i = 0; i < 1000 && lock_owner_of(read_file(path_)).heartbeat < 2; ++i) {
    ::usleep(10000);
  }
  LockOwner later = lock_owner_of(read_file(path_));
  EXPECT_GE(later.heartbeat, 2);
  later.heartbeat = first.heartbeat;
  EXPECT_EQ(text_of(later), text_of(first));
}

struct Judged {
  const char* name;
  std::function<void(LockOwner& owner, LockOwner& self)> change;
  OwnerState state;
  const char* reason;
};

void in_slurm(LockOwner& owner, LockOwner& self) {
  owner.host = "another-node";
  owner.scheduler = self.scheduler = "slurm";
  owner.cluster = self.cluster = "main";
  owner.job = "17";
  self.job = "18";
}

/// The lock's owner is this job of the same cluster.
auto of_job(const std::string& job) {
  return [job](LockOwner& owner, LockOwner& self) {
    in_slurm(owner, self);
    owner.job = job;
  };
}

/// squeue answers "gone" for job 17, "wait" for 19, RUNNING for 20, fails for 21.
const std::vector<Judged> kJudged{
    {"this process", [](auto&, auto&) {}, OwnerState::kAlive, "is running"},
    {"a process that ended", [](auto& owner, auto&) { owner.pid = ended_process(); },
     OwnerState::kGone, "has ended"},
    {"the same id, another process", [](auto& owner, auto&) { owner.process_start += 1; },
     OwnerState::kGone, "is another one now"},
    {"a container's process id",
     [](auto& owner, auto&) { owner.pid = ended_process(), owner.pid_namespace = "pid:[1]"; },
     OwnerState::kUnknown, ""},
    {"before the node's reboot", [](auto& owner, auto&) { owner.boot = "earlier"; },
     OwnerState::kGone, "has rebooted"},
    {"two nodes called localhost",
     [](auto& owner, auto& self) {
       owner.host = self.host = "localhost";
       owner.boot = "other";
     },
     OwnerState::kUnknown, ""},
    {"another node", [](auto& owner, auto&) { owner.host = "another-node"; }, OwnerState::kUnknown,
     ""},
    {"a requeued job",
     [](auto& owner, auto& self) {
       in_slurm(owner, self);
       owner.job = self.job;
       self.restarts = 1;
     },
     OwnerState::kGone, "Slurm has requeued job 18"},
    {"a step of the same job", of_job("18"), OwnerState::kUnknown, ""},
    {"a job that ended", in_slurm, OwnerState::kGone, "job 17 is UNKNOWN TO SLURM"},
    {"the same number in another cluster",
     [](auto& owner, auto& self) {
       in_slurm(owner, self);
       owner.cluster = "other";
     },
     OwnerState::kUnknown, ""},
    {"a job that waits again", of_job("19"), OwnerState::kGone, "job 19 is PENDING"},
    {"a job that runs", of_job("20"), OwnerState::kUnknown, ""},
    {"squeue fails", of_job("21"), OwnerState::kUnknown, ""},
    {"a job id that is a command", of_job("17; echo"), OwnerState::kUnknown, ""},
    {"no lock's text", [](auto& owner, auto&) { owner = {}; }, OwnerState::kUnknown, ""},
};

TEST(LockOwnerTest, IsJudged) {
  const TemporaryDirectory scratch;
  write_file(
      scratch / "squeue",
      "#!/bin/sh\ncase $3 in\n"
      "17) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1 ;;\n"
      "19) echo PENDING ;;\n20) echo RUNNING ;;\n*) echo 'timed out' >&2; exit 1 ;;\nesac\n");
  fs::permissions(scratch / "squeue", fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (scratch.path().string() + ":" + path).c_str(), 1);
  for (const Judged& one : kJudged) {
    LockOwner owner = this_process();
    LockOwner self = owner;
    one.change(owner, self);
    const OwnerVerdict verdict = judge(owner, self);
    EXPECT_EQ(verdict.state, one.state) << one.name << ": " << verdict.reason;
    EXPECT_THAT(verdict.reason, HasSubstr(one.reason)) << one.name;
  }
  ::setenv("PATH", path.c_str(), 1);
}

TEST(LockOwnerTest, NamesTheJobAndNoControlCharacters) {
  LockOwner owner = this_process();
  owner.host = "n1\x1b[2J";
  owner.scheduler = "slurm";
  owner.job = "17";
  const LockOwner read = lock_owner_of(text_of(owner));
  EXPECT_THAT(description_of(read), HasSubstr(R"(slurm job 17, host n1\x1b[2J, process )"));
}

TEST_F(DirectoryLockTest, OfADeadProcessIsTakenOverAtOnce) {
  status_of_child(in_child([&] {
    const DirectoryLock lock = take();
    ::_exit(0);  // without the destructor, as after SIGKILL
  }));
  ASSERT_TRUE(fs::exists(path_));
  const DirectoryLock lock = take({.stale_seconds = 1e6});
  EXPECT_EQ(lock_owner_of(read_file(path_)).pid, ::getpid());
  EXPECT_THAT(names_in(directory_.path()), ElementsAre(kName));
}

TEST_F(DirectoryLockTest, WithoutAHeartbeatIsTakenOverInTime) {
  for (const std::string& text :
       {text_of(leave([](LockOwner& owner) { owner.host = "another-node"; })), std::string(),
        std::string("not a lock")}) {
    write_file(path_, text);
    const DirectoryLock lock = take();
    lock.require_held();
  }
}

TEST_F(DirectoryLockTest, WithAHeartbeatIsRefused) {
  LockOwner owner = leave([](LockOwner& one) { one.host = "another-node"; });
  std::atomic<bool> over = false;
  std::thread beats([&] {
    while (!over) {
      ++owner.heartbeat;
      write_file(path_, text_of(owner));
      ::usleep(50000);
    }
  });
  const std::string text = refusal({.stale_seconds = 600.0});
  over = true;
  beats.join();
  EXPECT_THAT(text, HasSubstr("host another-node"));
  EXPECT_THAT(text, HasSubstr("its heartbeat advances"));
}

TEST_F(DirectoryLockTest, AClaimOfADeadContenderIsTakenOverToo) {
  const LockOwner owner = leave([](LockOwner& one) { one.pid = ended_process(); });
  LockOwner contender = this_process();
  contender.pid = ended_process();
  write_file(directory_ / fmt::format(".{}.after-{}", kName, owner.nonce), text_of(contender));
  const DirectoryLock lock = take();
  EXPECT_THAT(names_in(directory_.path()), ElementsAre(kName));
}

TEST_F(DirectoryLockTest, DeletesWhatDeadContendersLeft) {
  LockOwner dead = this_process();
  dead.pid = ended_process();
  for (const char* name : {".run.lock.after-12", ".run.lock.node.7.34"}) {
    write_file(directory_ / name, text_of(dead));
  }
  write_file(directory_ / ".run.lock.after-56", text_of(this_process()));
  const DirectoryLock lock = take();
  EXPECT_THAT(names_in(directory_.path()), UnorderedElementsAre(kName, ".run.lock.after-56"));
}

TEST_F(DirectoryLockTest, TellsThatItWasTakenOverOrDeleted) {
  const LockOwner other = this_process();
  const DirectoryLock lock = take();
  write_file(path_, text_of(other));
  EXPECT_THAT(test::error_of([&] { lock.require_held(); }, ExitCode::kUsage),
              HasSubstr("was taken over by host"));
  fs::remove(path_);
  EXPECT_THAT(test::error_of([&] { lock.require_held(); }, ExitCode::kUsage),
              HasSubstr("was deleted"));
}

TEST_F(DirectoryLockTest, LeavesTheLockOfItsSuccessor) {
  {
    const DirectoryLock lock = take();
    write_file(path_, text_of(this_process()));
  }
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(DirectoryLockTest, RefusesWhatIsNoFile) {
  const fs::path elsewhere = directory_ / "elsewhere";
  write_file(elsewhere, "a user's file");
  fs::create_symlink(elsewhere, path_);
  EXPECT_THAT(refusal(), HasSubstr("cannot read"));
  EXPECT_EQ(read_file(elsewhere), "a user's file");
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("not a regular file"));
  EXPECT_THAT(names_in(directory_.path()), UnorderedElementsAre(kName, "elsewhere"));
}

/// Takes the lock again and again and often dies with it. Exits with 1 where it meets another
/// holder.
void contend(const fs::path& directory, std::uint64_t seed, Log& log) {
  const int inside = ::open((directory / "inside").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  for (std::uint64_t round = 0; round < 40; ++round) {
    try {
      const DirectoryLock lock(directory, quick(), log);
      // The kernel frees this one when its process dies.
      if (::flock(inside, LOCK_EX | LOCK_NB) != 0) {
        ::_exit(1);
      }
      ::usleep(200);
      lock.require_held();
      ::flock(inside, LOCK_UN);
      if ((seed + round) % 3 == 0) {
        ::kill(::getpid(), SIGKILL);
      }
    } catch (const Error&) {
      ::usleep(100);
    }
  }
}

TEST_F(DirectoryLockTest, OneOfManyContendersHoldsIt) {
  int dead = 0;
  for (std::uint64_t round = 0; round < 8; ++round) {
    std::vector<pid_t> children;
    for (std::uint64_t i = 0; i < 6; ++i) {
      children.push_back(in_child([&] { contend(directory_.path(), round * 7 + i, log_); }));
    }
    for (const pid_t child : children) {
      const int status = status_of_child(child);
      dead += WIFSIGNALED(status) ? 1 : 0;
      EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "two held it";
    }
  }
  EXPECT_GT(dead, 5);
  const DirectoryLock lock = take();
}

}  // namespace
}  // namespace strata::io::directory_lock_test
