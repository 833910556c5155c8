"""--ranks=N: the program starts its own ranks, without variables in the environment; stops, deaths and refusals of such a launch."""

import os
import pathlib
import re
import signal
import unittest.mock

import harness
from harness import DATA, DONE, STOPPED_EARLY, STRATA, USAGE

NETWORK = harness.config_text(
    ["dense 16 relu", "dense 4"], batch={"global": 8}, numerics={"lanes": 2}, optimizer={"kind": "sgd"},
    parallel={"pipeline": 2}, train={"steps": 20, "evaluate_every": 10})
LONG = "--train.steps=1000000"
OPEN_MPI = harness.has_open_mpi()
OF_OTHER_TESTS = dict(harness.LAUNCH_ENVIRONMENT)
# What mpirun says beside the ranks.
OF_MPIRUN = ("mpirun", "prterun", "PRTE", "MPI_ABORT", "Primary job", "orte_", "help message")


class Launch(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A user sets none of the variables with which other tests launch.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
        cls.enterClassContext(unittest.mock.patch.dict(os.environ, environment, clear=True))
        cls.enterClassContext(unittest.mock.patch.dict(
            harness.LAUNCH_ENVIRONMENT, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, clear=True))
        cls.set_up_classes(NETWORK, (10,), 4, train=24, test=60)

    def assert_quiet(self, finished):
        for words in OF_MPIRUN:
            self.assertNotIn(words, finished.text)

    def begun(self, run):
        path = self.directory / run / "metrics.jsonl"
        return lambda: path.exists() and '"step":50,' in path.read_text()

    def long_run(self, run):
        job = harness.Job([STRATA, "train", self.config, "--ranks=4", f"--run.dir={run}", LONG], self.directory)
        job.wait_until(self.begun(run), 60)
        return job

    def test_every_command_that_runs_on_ranks(self):
        """More ranks than cores, as root too."""
        for ranks in (2, 8, 4):
            run = f"on-{ranks}"
            self.assert_quiet(self.alone("train", self.config, "--ranks", ranks, f"--run.dir={run}",
                                         "--numerics.lanes=4", expect=DONE))
            self.assert_same_run("on-2", run)
        one = self.alone("evaluate", "on-2", expect=DONE).text
        self.assertEqual(self.alone("evaluate", "on-2", "--ranks=2", expect=DONE).text, one)
        self.assertIn(" 1 of 2 ", self.alone("doctor", "--ranks=2").text)
        self.assertIn("2 data x 2 pipeline", self.alone("train", self.config, "--ranks=4", "--dry-run", expect=DONE).text)
        (self.directory / "hosts").write_text("# this one\nlocalhost slots=2\n")
        self.assert_quiet(self.alone("train", self.config, "--ranks=2", "--hostfile=hosts", "--run.dir=hosted",
                                     "--numerics.lanes=4", expect=DONE))
        self.assert_same_run("on-2", "hosted")

    def test_a_failure_is_one_line_and_its_code(self):
        for settings, code, words in [(["--parallel.pipeline=3"], USAGE, ["launch 3 or 6 ranks (--ranks=N)"]),
                                      (["--data.train=nothing.h5"], DATA, ["nothing.h5"]),
                                      (["--no"], USAGE, ["there is no option --no"])]:
            finished = self.alone("train", self.config, "--ranks=4", "--run.dir=fails", *settings)
            self.assert_refused(finished, code, *words)
            self.assertEqual(len(finished.text.splitlines()), 1, finished.text)

    def test_a_temporary_directory_is_needed(self):
        finished = harness.Job([STRATA, "train", self.config, "--ranks=2", "--run.dir=nowhere"], self.directory,
                               TMPDIR="/proc/nowhere").wait(60)
        self.assert_refused(finished, USAGE, "TMPDIR", "/proc/nowhere on ", "No such file or directory")

    def test_data_on_some_nodes_only(self):
        """The ranks that lack it are named before training."""
        for place in ("has", "lacks"):
            (self.directory / place).mkdir()
        (self.directory / "has/classes").symlink_to(self.directory / "classes")
        run = [STRATA, "train", self.config, f"--run.dir={self.directory}/parted"]
        with unittest.mock.patch.dict(harness.LAUNCH_ENVIRONMENT, OF_OTHER_TESTS):
            finished = self.start_each(*(["env", "-C", self.directory / ("lacks" if rank else "has"), *run] for rank in range(4))).wait(60)
        host = os.uname().nodename
        self.assert_refused(finished, DATA, f"ranks 1, 2 and 3 on {host}: classes/train.h5 does not exist; the other ranks could open it")

    def test_stop_requests_reach_the_ranks(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            run = f"stopped-{number.name}"
            job = self.long_run(run)
            os.kill(job.process.pid, number)
            stopped = job.wait(60)
            self.assertEqual(stopped.code, STOPPED_EARLY, stopped.text)
            self.assert_quiet(stopped)
            self.assertEqual(len(harness.checkpoints(self.directory / run)), 1)
        # Before the ranks have started, and while they do.
        for seconds in (0.05, 0.2):
            job = harness.Job([STRATA, "train", self.config, "--ranks=2", f"--run.dir=early-{seconds}", LONG], self.directory)
            try:
                job.process.wait(seconds)
            except harness.subprocess.TimeoutExpired:
                pass
            os.kill(job.process.pid, signal.SIGTERM)
            stopped = job.wait(60)
            self.assertIn(stopped.code, (STOPPED_EARLY, -signal.SIGTERM), stopped.text)

    def test_ranks_end_with_what_started_them(self):
        job = self.long_run("killed")
        ranks = [pid for pid in job.ranks() if pid != job.process.pid]
        self.assertEqual(len(ranks), 4)
        os.kill(job.process.pid, signal.SIGKILL)
        job.wait_until_gone(ranks, 10)
        job.wait(60)
        job = self.long_run("lost")
        ranks = [pid for pid in job.ranks() if pid != job.process.pid]
        os.kill(ranks[1], signal.SIGKILL)
        lost = job.wait(60)
        # Hydra joins the codes of all ranks bit by bit, and may name one that it ended itself.
        self.assertIn(lost.code, [128 + signal.SIGKILL] + ([] if OPEN_MPI else [128 + signal.SIGSEGV, 128 + 15]), lost.text)
        self.assertRegex(lost.text, r"process rank \d with PID .* exited on\s+signal 9" if OPEN_MPI else r"PID \d+ RUNNING AT")

    def test_refusals(self):
        (self.directory / "empty").write_text("# none\n\n")
        (self.directory / "windows").write_bytes(b"localhost slots=2\r\n")
        no_path = {"PATH": str(self.directory)}
        other = self.directory / "other"
        other.mkdir()
        others = "HYDRA build details:" if OPEN_MPI else "mpirun (Open MPI) 4.1.4"
        by_other = {f"{'PMI' if OPEN_MPI else 'OMPI_COMM_WORLD'}_{name}": str(value) for name, value in (("RANK", 0), ("SIZE", 2))}
        (other / "mpirun").write_text(f"#!/bin/sh\necho '{others}'\n")
        (other / "mpirun").chmod(0o755)
        train = ["train", self.config, "--run.dir=refused"]
        for arguments, environment, words in [
                ([*train, "--ranks=0"], {}, ['--ranks is "0"', "from 1"]),
                ([*train, "--ranks=two"], {}, ["a whole number"]),
                ([*train, "--ranks"], {}, ["--ranks has no value"]),
                ([*train, "--hostfile=empty"], {}, ["--hostfile needs --ranks=N"]),
                ([*train, "--ranks=2", "--hostfile=nothing"], {}, ["nothing", "does not exist"]),
                ([*train, "--ranks=2", "--hostfile=empty"], {}, ["empty names no host"]),
                ([*train, "--ranks=2", "--hostfile=."], {}, ["directory"]),
                ([*train, "--ranks=2", "--hostfile=windows"], {}, ["windows has line ends of Windows"]),
                ([*train, "--ranks=2"], no_path, ["no mpirun in PATH", "mpirun -n 2 strata"]),
                ([*train, "--ranks=2"], {"PATH": str(other)}, [f'mpirun is "{others}"', harness.mpi_library()]),
                (train, by_other, ["2 processes were launched", harness.mpi_library(), "each is alone"]),
                ([*train, "--ranks=2"], {**no_path, "SLURM_JOB_ID": "7"}, ["needs srun"]),
                ([*train, "--ranks=2", "--hostfile=empty"], {"SLURM_JOB_ID": "7"}, ["empty names no host"]),
                (["plan", self.config, "--machine=h100", "--hostfile=hosts"], {}, ["is of --calibrate"]),
                (["data", "inspect", "x", "--ranks=2"], {}, ["no option --ranks"])]:
            with self.subTest(arguments, environment=environment):
                self.assert_refused(harness.Job([STRATA, *arguments], self.directory, **environment).wait(60), USAGE, *words)
        self.assertFalse((self.directory / "refused").exists())
        with unittest.mock.patch.dict(harness.LAUNCH_ENVIRONMENT, {
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}):
            for ranks in (1, 2):
                self.assert_refused(self.launch(ranks, *train, "--ranks=2"), USAGE, "mpirun or srun started")

    def test_what_is_left_of_mpiruns_messages(self):
        """Of a stand-in that says all that it can say."""
        rule = "-" * 74
        library = re.search(r"MPI: Open MPI v(\S+)", self.alone("--version").text)
        if library is None:
            self.skipTest("the messages are of Open MPI's mpirun")
        version = library[1]
        tool, signals, parameter, abort, end = {
            "4": ("mpirun", "mpirun", "orte_base_help_aggregate", "with errorcode 5.",
                  "Primary job  terminated normally, but 1 process returned\na non-zero exit code."),
            "5": ("prterun", "PRTE", "base_help_aggregate", "  Proc: [[1,1],1]\n  Errorcode: 5",
                  "prterun has exited due to process rank 1 with PID 7 on node vm exiting\nimproperly.")}[version[0]]
        tools = self.directory / "talks"
        tools.mkdir()
        (tools / "messages").write_text(f"""of a rank
{rule}
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
{abort}
{rule}
[vm:1] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[vm:1] Set MCA parameter "{parameter}" to 0 to see all help / error messages
{signals}: Forwarding signal 10 to job
{rule}
{end}
{rule}
{rule}
There are not enough slots available in the system

  slots: 2
{rule}
{rule}
{tool} detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[1,1],0]
{rule}
a table
{rule}
of another rank, without an end of line""")
        (tools / "mpirun").write_text('#!/bin/sh\n[ "$1" != --version ] || exec echo "mpirun (Open MPI) '
                                      f'{version}"\ncat {tools}/messages >&2; exit 5\n')
        (tools / "mpirun").chmod(0o755)
        finished = harness.Job([STRATA, "train", self.config, "--ranks=2"], self.directory,
                               PATH=f"{tools}:{os.environ['PATH']}").wait(60)
        self.assertEqual(finished.code, 5)
        self.assertEqual(finished.text, f"of a rank\n{rule}\nThere are not enough slots available in the system\n\n  slots: 2\n"
                                        f"{rule}\na table\n{rule}\nof another rank, without an end of line")

    def test_inside_a_slurm_job(self):
        """srun starts the ranks; here a stand-in that starts one."""
        tools = pathlib.Path(self.directory, "bin")
        tools.mkdir()
        (tools / "srun").write_text('#!/bin/bash\n[ "$1" != --version ] || exit 0\n'
                                    'echo "$SLURM_PMIX_FENCE $SRUN_CPUS_PER_TASK $*" >srun.txt\n'
                                    'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
        (tools / "srun").chmod(0o755)
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "3",
                       "SLURM_JOB_END_TIME": "4102444800"}
        job = harness.Job([STRATA, "train", self.config, "--ranks=2", "--run.dir=slurm", "--parallel.pipeline=1"],
                          self.directory, **environment)
        self.assertEqual(job.wait(60).code, DONE)
        self.assertIn(f"ring 3 --mpi={'pmix' if OPEN_MPI else 'pmi2'} --kill-on-bad-exit=1 --ntasks=2 /", (self.directory / "srun.txt").read_text())
        (self.directory / "hosts").write_text("localhost\n")
        refused = harness.Job([STRATA, "train", self.config, "--ranks=2", "--hostfile=hosts"], self.directory, **environment)
        self.assert_refused(refused.wait(60), USAGE, "this is Slurm job 7", "leave --hostfile out")


if __name__ == "__main__":
    harness.main()
