#include "environment/child_process.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/train/stop_signal.hpp"

namespace strata::app {

int run_child(const std::vector<std::string>& words, const ChildFiles& files,
              const std::function<void()>& poll) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words) {
    pointers.push_back(const_cast<char*>(word.c_str()));
  }
  pointers.push_back(nullptr);
  std::fflush(stdout);
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::signal(SIGCHLD, SIG_DFL);  // ignored, as a parent may leave it, no exit code is kept
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    std::signal(SIGUSR1, SIG_IGN);  // until the program has a handler
    ::dup2(files.input < 0 ? input : files.input, STDIN_FILENO);
    ::dup2(files.output, STDOUT_FILENO);
    ::dup2(files.errors, STDERR_FILENO);
    ::execvp(pointers.front(), pointers.data());
    ::dprintf(STDERR_FILENO, "strata: cannot run %s: %s\n", pointers.front(), std::strerror(errno));
    ::_exit(127);
  }
  ::close(input);
  if (child < 0) {
    fail(ExitCode::kPeer,
         "cannot start a process: {}; raise the limits on processes and memory (ulimit -u, "
         "ulimit -v)",
         std::strerror(errno));
  }
  constexpr auto kPoll = std::chrono::milliseconds(20);
  constexpr int kPollsBetweenSignals = 50;
  int status = 0;
  for (int polls = 0; ::waitpid(child, &status, WNOHANG) == 0;) {
    if (train::stop_request() == train::StopRequest::kStop && polls++ % kPollsBetweenSignals == 0) {
      ::kill(child, SIGUSR1);
    }
    poll();
    std::this_thread::sleep_for(kPoll);
  }
  poll();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace strata::app
