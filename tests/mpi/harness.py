"""Runs the built executable as a user does and reads back what it leaves behind.

The executable is named by the environment variable STRATA_BIN. Every run has a time limit, at which
all processes of its session are killed.
"""

import contextlib
import functools
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import h5py
import numpy as np

# A shell lets what it starts in the background ignore it, and what that starts too.
signal.signal(signal.SIGINT, signal.default_int_handler)

STRATA = os.environ.get("STRATA_BIN", "")
MPIRUN = os.environ.get("STRATA_MPIRUN", "mpirun")
RIG = os.path.join(os.path.dirname(STRATA), "strata_rig")
UCX = "libucs.so.0"  # preloaded, it is there before main() as with Open MPI 5; where it is missing, the loader says so and goes on


@contextlib.contextmanager
def rig(**variables):
    """Runs start the program with disturbances, as in rig(DELAY="2:0.1"); tests/support/rig.cpp has them."""
    with unittest.mock.patch.dict(os.environ, {f"STRATA_RIG_{name}": value for name, value in variables.items()}), \
            unittest.mock.patch.dict(globals(), STRATA=RIG):
        yield

LAUNCH_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_pml": "ob1",
    # The same for Open MPI 5, whose launcher is PRRTE.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    # Tests are of CPU ranks also where there is a GPU; those of GPUs take this out.
    "CUDA_VISIBLE_DEVICES": "",
}


@functools.cache
def mpi_library():
    """The MPI library of the executable with its version, as in "Open MPI v4.1.4"."""
    text = subprocess.run([STRATA, "--version"], capture_output=True, text=True, check=True).stdout
    return text.split("MPI: ")[1].splitlines()[0]


def has_open_mpi():
    """Otherwise the executable has MPICH, whose launcher is Hydra."""
    return mpi_library().startswith("Open MPI")


DONE, USAGE, DATA, CHECKPOINT, PEER, DIVERGED, STOPPED_EARLY = 0, 2, 3, 4, 5, 6, 75


def session_members(session):
    """The process ids of a session and of what its members started, with the names of their programs. Hydra starts each
    rank in a session of its own."""
    members, parents = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = pathlib.Path("/proc", entry, "stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2:].split()
        if fields[0] != "Z":
            parents[int(entry)] = int(fields[1]), int(fields[3]), text[text.index("(") + 1:text.rindex(")")]
    added = True
    while added:
        added = {pid: name for pid, (parent, own, name) in parents.items()
                 if pid not in members and (own == session or parent in members)}
        members |= added
    return members


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    for line in pathlib.Path("/proc", str(pid), "status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def state_of(pid):
    """The letter of ps for a process; "X" where there is none."""
    try:
        text = pathlib.Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return "X"
    return text[text.rindex(")") + 2]


def is_stopped(pid):
    """Whether a process is stopped by SIGSTOP."""
    return state_of(pid) == "T"


def is_running(pid):
    return state_of(pid) not in "XZ"


class Finished:
    def __init__(self, code, text, seconds):
        self.code = code
        self.text = text
        self.seconds = seconds

    def reports(self):
        """The lines with which the executable ends on an error."""
        return [line for line in self.text.splitlines() if line.startswith("strata: ") and "The command is complete, " not in line]


# How much longer than on an idle machine a job may take: virtual machines stand still for minutes at times. What must
# happen within a time is measured apart.
LENIENCE = 6


class Pulse:
    """Sees whether the machine itself, or its disk, stood still while it is entered, or had many more processes that
    wanted a core than a test has ranks."""

    STANDSTILL = 1.0  # seconds
    CROWD = 3.0  # runnable threads a core, in the mean

    def __init__(self, directory):
        self.file = directory / "pulse"

    def __enter__(self):
        self.longest = 0.0
        self.runnable = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.thread.join()

    def watch(self):
        last = time.monotonic()
        while not self.over.wait(0.1):
            self.file.write_text("as a heartbeat")
            self.runnable.append(int(pathlib.Path("/proc/loadavg").read_text().split()[3].split("/")[0]))
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now

    @property
    def crowd(self):
        return sum(self.runnable) / max(1, len(self.runnable)) / os.cpu_count()

    @property
    def hindered(self):
        return self.longest > self.STANDSTILL or self.crowd > self.CROWD


def patience(attempt):
    """How much longer than at first an attempt of on_a_running_machine may take."""
    return 1 + 2 * attempt


def on_a_running_machine(test):
    """A test of times: tried again, at most twice, where it failed while the machine stood still or was crowded."""

    @functools.wraps(test)
    def tried(self, *arguments):
        for attempt in range(3):
            with Pulse(self.directory) as pulse:
                try:
                    return test(self, *arguments, attempt)
                except AssertionError:
                    failure = sys.exc_info()[1]
            if attempt == 2 or not pulse.hindered:
                raise failure
            print(f"once more: the machine stood still for {pulse.longest:.1f} s, with {pulse.crowd:.1f} runnable threads a core",
                  file=sys.stderr)

    return tried


class Job:
    """A running command in a session of its own, its output in a file."""

    def __init__(self, command, directory, **variables):
        self.output = tempfile.TemporaryFile(dir=directory)
        self.started = time.monotonic()
        # Two mpiruns of Open MPI 4 that start at once fail where both make the directory of their sessions.
        self.sessions = tempfile.TemporaryDirectory(prefix="strata-mpi-", ignore_cleanup_errors=True)
        environment = {**os.environ, **LAUNCH_ENVIRONMENT, "TMPDIR": str(directory),
                       "OMPI_MCA_orte_tmpdir_base": self.sessions.name, **variables}
        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=directory, env=environment,
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
            start_new_session=True)

    def text(self):
        self.output.flush()
        # The launcher of Open MPI 5 writes the zero byte behind some of its messages.
        return os.pread(self.output.fileno(), 1 << 26, 0).decode(errors="replace").replace("\0", "")

    def ranks(self):
        """The process ids of the ranks, the lowest rank first."""
        return sorted(pid for pid, name in session_members(self.process.pid).items()
                      if name in map(os.path.basename, (STRATA, RIG)))

    def members(self):
        """The process ids of the job's session, without zombies."""
        return list(session_members(self.process.pid))

    def signal_all(self, number):
        for pid in self.members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def running(self):
        return self.process.poll() is None

    def wait(self, limit):
        """Waits for the end; past the limit in seconds, times LENIENCE, all is killed and the test fails."""
        limit *= LENIENCE
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"still running after {limit} s:\n{self.text()}") from None
        seconds = time.monotonic() - self.started
        # On a busy machine Open MPI's launcher answers too late, and takes a rank that has ended for a crash; and Open MPI
        # itself may crash where it ends.
        if complete := re.search("strata: rank .*The command is complete, (also|with exit code 0).*", self.text()):
            print(complete[0], file=sys.stderr, flush=True)
            code = DONE if code == 1 and re.search(r"exiting\s+improperly", self.text()) else code
        end = time.monotonic() + 30 * LENIENCE
        while self.members() and time.monotonic() < end:  # ranks outlive a killed mpirun for a moment
            self.signal_all(signal.SIGKILL)
            time.sleep(0.005)
        finished = Finished(code, self.text(), seconds)
        self.output.close()
        self.sessions.cleanup()
        return finished

    def wait_until(self, condition, limit):
        """Polls a condition; past the limit in seconds, times LENIENCE, or when the job ends first, the test
        fails."""
        end = time.monotonic() + LENIENCE * limit
        while True:
            may_come = self.running() and time.monotonic() < end  # asked first: the job may do it and end meanwhile
            if condition():
                return
            if not may_come:
                self.signal_all(signal.SIGKILL)
                raise AssertionError(f"what was waited for did not come:\n{self.text()}")
            time.sleep(0.005)

    def wait_until_gone(self, processes, limit):
        """Waits for the end of these processes of the job."""
        end = time.monotonic() + LENIENCE * limit
        while any(is_running(pid) for pid in processes):
            if time.monotonic() > end:
                self.signal_all(signal.SIGKILL)
                raise AssertionError(f"still there: {self.members()}\n{self.text()}")
            time.sleep(0.005)


def metrics(run_directory):
    """The lines of steps and evaluations in metrics.jsonl, without the times, numbers as the text that stands there."""
    kept = ("kind", "step", "loss", "grad_norm", "learning_rate", "accuracy")
    rows = []
    for line in pathlib.Path(run_directory, "metrics.jsonl").read_text().splitlines():
        record = json.loads(line, parse_float=str, parse_int=str)
        if record["kind"] in ("train", "evaluate"):
            rows.append(tuple((key, record[key]) for key in kept if key in record))
    return rows


def checkpoints(run_directory):
    """The committed checkpoints' directories, oldest first."""
    return sorted(pathlib.Path(run_directory, "checkpoints").glob("step-*"))


def tensors(checkpoint):
    """All tensors of a checkpoint by name."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and name != "parts":
            found[name] = item[()]

    with h5py.File(checkpoint / "master.h5") as master:
        master.visititems(visit)
    return found


def differing_tensors(left, right):
    """The names of tensors that are not the same bits."""
    names = sorted(set(left) | set(right))
    return [name for name in names
            if name not in left or name not in right or left[name].dtype != right[name].dtype
            or left[name].shape != right[name].shape
            or left[name].tobytes() != right[name].tobytes()]


def config_text(layers=(), *, data="classes", **sections):
    """A config of these layers and sections, on the data set `data`, one thread a rank and no checkpoints by time."""
    model = [("layer", line) for line in layers] + [*sections.pop("model", {}).items()]
    if isinstance(data, str):
        data = {"train": f"{data}/train.h5", "test": f"{data}/test.h5"}
    sections["run"] = {"threads": 1, **sections.get("run", {})}
    sections["checkpoint"] = {"minutes": 0, **sections.get("checkpoint", {})}
    lines = ["[model]", *(f"{key} = {value}" for key, value in model)]
    for section, settings in {"data": data, **sections}.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


def ranks_of(grid):
    return math.prod(grid)


def grid_settings(grid):
    """The settings that ask for a grid (data, pipeline) or (data, pipeline, tensor)."""
    return [f"--parallel.{axis}={ranks}" for axis, ranks in zip(("data", "pipeline", "tensor"), grid)]


class StrataTest(unittest.TestCase):
    """A test with a scratch directory and ways to run the executable in it."""

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="strata-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)

    def start(self, ranks, *arguments):
        return Job([MPIRUN, "-n", str(ranks), STRATA, *arguments], self.directory)

    def finish(self, job, limit, expect):
        """Waits for the end, and checks the exit code if one is expected."""
        finished = job.wait(limit)
        if expect is not None:
            self.assertEqual(finished.code, expect, finished.text)
        return finished

    def start_each(self, *commands):
        """Starts rank r with the words commands[r]. Not by mpirun's ":", with which that of Open MPI 5.0.7 crashes."""
        cases = "".join(f"{rank}) exec {shlex.join(map(str, words))} ;; " for rank, words in enumerate(commands))
        script = f"case ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} in {cases}esac"
        return Job([MPIRUN, "-n", str(len(commands)), "bash", "-c", script], self.directory)

    def launch(self, ranks, *arguments, limit=120, expect=None):
        return self.finish(self.start(ranks, *arguments), limit, expect)

    def alone(self, *arguments, limit=60, expect=None):
        """Runs the executable without mpirun."""
        return self.finish(Job([STRATA, *arguments], self.directory), limit, expect)

    def write_config(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return path

    def train(self, config, grid, run, *settings, limit=120, expect=DONE):
        """Trains on a grid (data, pipeline) or (data, pipeline, tensor) in the run directory `run`
        and checks the exit code."""
        return self.launch(ranks_of(grid), "train", config, f"--run.dir={run}", *grid_settings(grid), *settings,
                           limit=limit, expect=expect)

    def import_data(self, *arguments):
        return self.alone("data", "import", *arguments, expect=DONE)

    def import_arrays(self, name, inputs, targets, split, *arguments):
        """Imports NumPy arrays as the data set `name`."""
        np.save(self.directory / f"{name}-inputs.npy", inputs)
        np.save(self.directory / f"{name}-targets.npy", targets)
        self.import_data("--format=npy", f"--inputs={name}-inputs.npy",
                         f"--targets={name}-targets.npy", f"--split={split}", f"--output={name}",
                         "--order=file", *arguments)

    def import_classes(self, name, shape, classes, train, test, seed=1):
        """Imports clusters around one random centre a class, with noise, as the data set `name`."""
        random = np.random.default_rng(seed)
        labels = random.integers(0, classes, train + test)
        labels[:classes] = np.arange(classes)
        centres = random.normal(size=(classes, *shape))
        inputs = centres[labels] + random.normal(size=(train + test, *shape))
        self.import_arrays(name, inputs.astype(np.float32), labels, f"{train},{test}",
                           f"--classes={classes}")

    @classmethod
    def set_up_classes(cls, config, *shape_and_classes, **samples):
        """Imports clusters as the data set `classes` and writes the config, `cls.config`."""
        test = cls()
        test.import_classes("classes", *shape_and_classes, **samples)
        cls.config = test.write_config("network.ini", config)

    def assert_same_run(self, left, right, tensors_of_left=None):
        """Metrics and the newest checkpoint of two runs hold the same numbers, bit for bit."""
        left, right = self.directory / left, self.directory / right
        self.assertEqual(metrics(left), metrics(right), f"{left} and {right}")
        if tensors_of_left is None:
            tensors_of_left = tensors(checkpoints(left)[-1])
        self.assertEqual(checkpoints(left)[-1].name, checkpoints(right)[-1].name)
        different = differing_tensors(tensors_of_left, tensors(checkpoints(right)[-1]))
        self.assertEqual(different, [], f"{left} and {right}")

    def same_on(self, runs, *settings, name, config=None):
        """Trains each of `runs`, (grid, further settings), and compares with the first."""
        reference = None
        for number, (grid, further) in enumerate(runs):
            run = f"{name}-{number}"
            with self.subTest(grid=grid, settings=further):
                self.train(config or self.config, grid, run, *settings, *further)
                if reference is None:
                    reference = run
                else:
                    self.assert_same_run(reference, run)
        return reference

    def records(self, run, kind):
        """The metrics of one kind as dictionaries of texts."""
        return [dict(row) for row in metrics(self.directory / run)
                if ("kind", kind) in row]

    def assert_lost_peer(self, finished):
        """A rank ended the job because of another one. Hydra, which then kills that one, may end with its signal or with 1."""
        codes = (PEER,) if has_open_mpi() else (PEER, signal.SIGKILL, 1)
        self.assertIn(finished.code, codes, finished.text)

    def assert_refused(self, finished, code, *words):
        """Ended with this code after one report, which holds all the words."""
        self.assertEqual(finished.code, code, finished.text)
        self.assertEqual(len(finished.reports()), 1, finished.text)
        for word in words:
            self.assertIn(word, finished.reports()[0])


def names_of(suite):
    """The names of tests as the command line takes them."""
    if isinstance(suite, unittest.TestCase):
        return [suite.id().removeprefix("__main__.")]
    return [name for part in suite for name in names_of(part)]


def main():
    """Runs the tests that the command line names, all, or after --but all others."""
    if not STRATA:
        print("STRATA_BIN names no executable", file=sys.stderr)
        sys.exit(2)
    names = sys.argv[1:]
    if names[:1] == ["--but"]:
        known = names_of(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))
        if unknown := set(names[1:]) - set(known):
            sys.exit(f"there is no test {', '.join(unknown)}")
        names = [name for name in known if name not in names[1:]]
    unittest.main(argv=[sys.argv[0], *names], verbosity=2)
