/* A library to preload that makes one system call on a file fail, to see what a program makes of it.
 *
 *   LD_PRELOAD=libfault_shim.so STRATA_FAULT="call=open,n=3,error=EIO,path=part-" program
 *
 * call   open, read, write, fsync, rename, close, mmap or any: what is counted. open covers fopen and opendir, read and
 *        write their variants with offsets, fsync fdatasync and syncing of mappings, rename renameat
 * n      the call that fails, from 1; 0: none
 * last   with n: all calls from n on fail
 * error  the name of an errno (EIO, ENOSPC, EACCES, ESTALE, ENOMEM), short: a read or write of half of the bytes, kill:
 *        SIGKILL in place of the call, slow: it takes `seconds` (default 4), or hang: it does not return
 * path   only files whose absolute name holds this text count
 * rank   only this rank of MPI's world counts
 *
 * STRATA_FAULT_COUNT=FILE: each process appends a line "RANK CALL NUMBER ..." at its end: how often each call came.
 * STRATA_FAULT_LOG=FILE: the process that meets its fault appends a line "RANK CALL PATH".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { OPEN, READ, WRITE, FSYNC, RENAME, CLOSE, MMAP, CALLS };
static const char *const kNames[CALLS] = {"open", "read", "write", "fsync", "rename", "close", "mmap"};
enum { KILL = -1, SLOW = -2, HANG = -3 };
static const struct {
  const char *name;
  int value;
} kErrors[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EACCES", EACCES}, {"ESTALE", ESTALE}, {"ENOMEM", ENOMEM},
              {"kill", KILL}, {"slow", SLOW}, {"hang", HANG}};

enum outcome { PASS, FAIL, SHORT };

static struct {
  int is_read;
  int call; /* CALLS: any */
  long n;
  int onward;
  int error; /* 0: short; else an errno or one of those below */
  int counts;
  unsigned seconds;
  char path[256];
  const char *rank;
} plan;
static atomic_long seen;
static atomic_long totals[CALLS];

/* The C library's own function of a name. */
#define REAL(name) ((__typeof__(&name))real_function(#name))

static void *real_function(const char *name) {
  return dlsym(RTLD_NEXT, name);
}

static const char *rank_of_process(void) {
  const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (getenv(names[i]) != NULL) {
      return getenv(names[i]);
    }
  }
  return "0";
}

static void set_option(const char *key, const char *value) {
  if (strcmp(key, "call") == 0) {
    plan.call = CALLS;
    for (int call = 0; call < CALLS; ++call) {
      plan.call = strcmp(value, kNames[call]) == 0 ? call : plan.call;
    }
  } else if (strcmp(key, "n") == 0) {
    plan.n = strtol(value, NULL, 10);
  } else if (strcmp(key, "last") == 0) {
    plan.onward = 1;
  } else if (strcmp(key, "seconds") == 0) {
    plan.seconds = (unsigned)strtoul(value, NULL, 10);
  } else if (strcmp(key, "path") == 0) {
    snprintf(plan.path, sizeof plan.path, "%s", value);
  } else if (strcmp(key, "rank") == 0) {
    plan.counts = plan.counts && strcmp(value, plan.rank) == 0;
  } else if (strcmp(key, "error") == 0) {
    for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; ++i) {
      plan.error = strcmp(value, kErrors[i].name) == 0 ? kErrors[i].value : plan.error;
    }
  }
}

__attribute__((constructor)) static void read_plan(void) {
  const char *text = getenv("STRATA_FAULT");
  plan.rank = rank_of_process();
  plan.counts = text != NULL;
  plan.call = CALLS;
  plan.seconds = 4;
  plan.is_read = 1;
  if (text == NULL) {
    return;
  }
  char copy[512];
  snprintf(copy, sizeof copy, "%s", text);
  char *rest = NULL;
  for (char *word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
    char *const equals = strchr(word, '=');
    if (equals != NULL) {
      *equals = '\0';
    }
    set_option(word, equals != NULL ? equals + 1 : "");
  }
}

static void append_line(const char *variable, const char *line) {
  const char *const file = getenv(variable);
  if (file == NULL) {
    return;
  }
  const int fd = REAL(open)(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd >= 0) {
    if (REAL(write)(fd, line, strlen(line)) < 0) {
      abort();
    }
    REAL(close)(fd);
  }
}

__attribute__((destructor)) static void write_counts(void) {
  char line[512];
  int length = snprintf(line, sizeof line, "%s", plan.rank);
  for (int call = 0; call < CALLS; ++call) {
    length += snprintf(line + length, sizeof line - (size_t)length, " %s %ld", kNames[call], totals[call]);
  }
  snprintf(line + length, sizeof line - (size_t)length, "\n");
  append_line("STRATA_FAULT_COUNT", line);
}

/* Counts a call on a file and decides about it. */
static enum outcome meet(enum call call, const char *path) {
  if (!plan.is_read || !plan.counts || path == NULL || strstr(path, plan.path) == NULL) {
    return PASS;
  }
  ++totals[call];
  if (plan.call != CALLS && plan.call != (int)call) {
    return PASS;
  }
  const long number = ++seen;
  if (plan.n == 0 || number < plan.n || (number > plan.n && !plan.onward)) {
    return PASS;
  }
  char line[PATH_MAX + 64];
  snprintf(line, sizeof line, "%s %s %s\n", plan.rank, kNames[call], path);
  append_line("STRATA_FAULT_LOG", line);
  if (plan.error == KILL) {
    kill(getpid(), SIGKILL);
  }
  while (plan.error == HANG) {
    pause();
  }
  if (plan.error == SLOW) {
    sleep(plan.seconds);
    return PASS;
  }
  if (plan.error == 0) {
    return call == READ || call == WRITE ? SHORT : PASS;
  }
  errno = plan.error;
  return FAIL;
}

/* As meet, with a path relative to a directory. */
static enum outcome meet_path(enum call call, int directory, const char *path) {
  char whole[2 * PATH_MAX];
  if (path == NULL || path[0] == '/') {
    return meet(call, path);
  }
  char link[64];
  snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
  const ssize_t length = readlink(link, whole, PATH_MAX);
  if (length < 0) {
    return PASS;
  }
  snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
  return meet(call, whole);
}

static enum outcome meet_file(enum call call, int fd) {
  if (!plan.is_read || !plan.counts) {
    return PASS;
  }
  const int before = errno;
  char link[64];
  char path[PATH_MAX + 1];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, PATH_MAX);
  errno = before;
  if (length < 0) {
    return PASS;
  }
  path[length] = '\0';
  return meet(call, path);
}

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

#define DEFINE_OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list arguments; \
    va_start(arguments, flags); \
    const mode_t mode = mode_of(flags, arguments); \
    va_end(arguments); \
    return meet_path(OPEN, AT_FDCWD, path) == FAIL ? -1 : REAL(name)(path, flags, mode); \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name) \
  int name(int directory, const char *path, int flags, ...) { \
    va_list arguments; \
    va_start(arguments, flags); \
    const mode_t mode = mode_of(flags, arguments); \
    va_end(arguments); \
    return meet_path(OPEN, directory, path) == FAIL ? -1 : REAL(name)(directory, path, flags, mode); \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

#define DEFINE_FOPEN(name) \
  FILE *name(const char *path, const char *mode) { \
    return meet_path(OPEN, AT_FDCWD, path) == FAIL ? NULL : REAL(name)(path, mode); \
  }
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

DIR *opendir(const char *path) {
  return meet_path(OPEN, AT_FDCWD, path) == FAIL ? NULL : REAL(opendir)(path);
}

/* A read or write of half of the bytes, but of one at least. */
#define HALF(outcome, bytes) ((outcome) == SHORT && (bytes) > 1 ? (bytes) / 2 : (bytes))

#define DEFINE_TRANSFER(name, call, buffer_type) \
  ssize_t name(int fd, buffer_type buffer, size_t bytes) { \
    const enum outcome outcome = meet_file(call, fd); \
    return outcome == FAIL ? -1 : REAL(name)(fd, buffer, HALF(outcome, bytes)); \
  }
DEFINE_TRANSFER(read, READ, void *)
DEFINE_TRANSFER(write, WRITE, const void *)

#define DEFINE_TRANSFER_AT(name, call, buffer_type, offset_type) \
  ssize_t name(int fd, buffer_type buffer, size_t bytes, offset_type offset) { \
    const enum outcome outcome = meet_file(call, fd); \
    return outcome == FAIL ? -1 : REAL(name)(fd, buffer, HALF(outcome, bytes), offset); \
  }
DEFINE_TRANSFER_AT(pread, READ, void *, off_t)
DEFINE_TRANSFER_AT(pread64, READ, void *, off64_t)
DEFINE_TRANSFER_AT(pwrite, WRITE, const void *, off_t)
DEFINE_TRANSFER_AT(pwrite64, WRITE, const void *, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
  return meet_file(WRITE, fd) == FAIL ? -1 : REAL(writev)(fd, parts, count);
}

size_t fwrite(const void *buffer, size_t size, size_t count, FILE *file) {
  return meet_file(WRITE, fileno(file)) == FAIL ? 0 : REAL(fwrite)(buffer, size, count, file);
}

int fflush(FILE *file) {
  return file != NULL && meet_file(WRITE, fileno(file)) == FAIL ? EOF : REAL(fflush)(file);
}

int fsync(int fd) {
  return meet_file(FSYNC, fd) == FAIL ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd) {
  return meet_file(FSYNC, fd) == FAIL ? -1 : REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
  return meet_path(RENAME, AT_FDCWD, to) == FAIL ? -1 : REAL(rename)(from, to);
}

int close(int fd) {
  const enum outcome outcome = meet_file(CLOSE, fd);
  const int error = errno;
  const int status = REAL(close)(fd); /* also a close that fails gives the number free */
  if (outcome == FAIL) {
    errno = error;
    return -1;
  }
  return status;
}

#define DEFINE_MMAP(name, offset_type) \
  void *name(void *at, size_t bytes, int protection, int flags, int fd, offset_type offset) { \
    const enum outcome outcome = (flags & MAP_ANONYMOUS) != 0 ? PASS : meet_file(MMAP, fd); \
    return outcome == FAIL ? MAP_FAILED : REAL(name)(at, bytes, protection, flags, fd, offset); \
  }
DEFINE_MMAP(mmap, off_t)
DEFINE_MMAP(mmap64, off64_t)
