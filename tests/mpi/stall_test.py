"""A rank that hangs or dies ends the job within seconds, with a message that names it."""

import math
import os
import signal
import time
import unittest.mock

import harness

TIMEOUT = 3

# Where rank 1 of 2 stops, further settings, and what the others say of their own wait and of its last heartbeat.
# Weights of replicas are compared over the world, at most every 100 steps.
PHASES = {
    "start": ({"STALL_AT": "MPI_Init_thread"}, [], "start MPI with all ranks", ""),
    "set-up": ({"STALL_AT": "MPI_Comm_split"}, [], "split the world into data groups", ""),
    "end": ({"STALL_AT": "MPI_Finalize"}, ["--train.steps=2"], "finalize MPI", ""),
    "training": ({}, [], "data group|world", "training, step "),
    "save": ({}, ["--checkpoint.every=1"], "world", "save, step "),
    "evaluation": ({}, ["--train.evaluate_every=1"], "data group|world", "evaluation, step "),
}

# Calls on files in which rank 0 hangs; the parts of a checkpoint are written and committed beside the main thread.
FILES = {
    "config": "call=open,path=/network.ini",
    "again": "call=open,path=/network.ini,n=2",
    "data": "call=open,path=/classes/train.h5",
    "lock": "call=open,path=/run.lock",
    "list": "call=open,path=/checkpoints",
    "log": "call=open,path=/log.txt",
    "settings": "call=open,path=/.config.ini",
    "metrics": "call=write,path=/metrics.jsonl",
    "sync": "call=fsync,path=/metrics.jsonl",
    "part": "call=write,path=/part-",
    "commit": "call=rename,path=/checkpoints/step-",
}

NETWORK = harness.config_text(
    ["dense 32 relu", "dense 32 relu", "dense 4"],
    batch={"global": 32}, numerics={"lanes": 2}, train={"steps": 10000000}, run={"timeout": TIMEOUT})


class Stall(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=30)

    def begin_attempt(self, attempt):
        self.timeout = TIMEOUT * harness.patience(attempt)
        self.soon = 5 * harness.patience(attempt)  # what a job may take to end

    def start_training(self, run, grid, *settings):
        data, pipeline = grid
        job = self.start(data * pipeline, "train", self.config, f"--run.dir={run}", f"--run.timeout={self.timeout}",
                         f"--parallel.pipeline={pipeline}", *settings)
        lines = self.directory / run / "metrics.jsonl"
        job.wait_until(lambda: lines.exists() and lines.read_text().count("\n") > 5, 60)
        return job

    def end_by_signal(self, run, grid, victim, number, limit):
        """Sends one rank of a training job a signal: the job ends within `limit` seconds, with an error."""
        job = self.start_training(run, grid)
        os.kill(job.ranks()[victim], number)
        sent = time.monotonic()
        finished = job.wait(40)
        self.assertNotEqual(finished.code, harness.DONE, finished.text)
        self.assertLess(time.monotonic() - sent, limit)
        self.assertRegex(finished.text, f"[Rr]ank {victim} [^;]*(has not (responded|written)|on\\s+signal 9)|EXIT CODE: 9")
        return finished

    @harness.on_a_running_machine
    def stall(self, run, grid, victim, waiting, attempt):
        self.begin_attempt(attempt)
        finished = self.end_by_signal(f"{run}-{attempt}", grid, victim, signal.SIGSTOP, self.timeout + self.soon)
        self.assert_lost_peer(finished)
        lines = [line for line in finished.reports() if "timed out after" in line]
        self.assertEqual(len(lines), 1, finished.text)  # one for the job
        for word in [f"after {self.timeout} s waiting to", "run.timeout sets", f"Rank {victim} "]:
            self.assertIn(word, lines[0])
        self.assertRegex(lines[0], waiting)
        reports = [self.directory / f"{run}-{attempt}/report-rank-{rank}.txt" for rank in range(math.prod(grid)) if rank != victim]
        if not harness.has_open_mpi():  # Hydra kills the others when the first ends
            reports = [path for path in reports if path.exists()]
            self.assertTrue(reports)
        for path in reports:
            report = path.read_text()
            self.assertIn("timed out after", report)
            if grid[1] > 1 and "the world" not in lines[0]:  # times of steps are gathered now and then
                self.assertRegex(report, r"pipeline group, rank \d there, \d+ bytes, during [a-z-]+ of microbatch \d")

    def test_a_replica_hangs(self):
        self.stall("replica", (2, 1), 1, PHASES["training"][2])

    def test_the_first_stage_hangs(self):
        self.stall("first", (1, 2), 0, "pipeline group|the world")

    def test_the_last_stage_hangs_on_a_full_grid(self):
        self.stall("last", (2, 2), 3, "group|world")

    @harness.on_a_running_machine
    def test_a_rank_is_killed(self, attempt):
        self.begin_attempt(attempt)
        for number, (grid, victim) in enumerate([((2, 1), 0), ((2, 2), 3)]):
            self.end_by_signal(f"killed-{number}-{attempt}", grid, victim, signal.SIGKILL, 2 * self.soon)

    @harness.on_a_running_machine
    def stall_in(self, phase, attempt):
        self.begin_attempt(attempt)
        environment, settings, waiting, last = PHASES[phase]
        run = f"{phase}-{attempt}"
        os.environ.update({"LD_PRELOAD": os.environ["STALL_LIBRARY"], "STALL_RANK": "1", **environment}
                          if environment else {})
        try:
            job = self.start(2, "train", self.config, f"--run.dir={run}", f"--run.timeout={self.timeout}", *settings)
        finally:
            for name in ("LD_PRELOAD", "STALL_RANK", "STALL_AT"):
                os.environ.pop(name, None)
        if environment:
            job.wait_until(lambda: any(harness.is_stopped(pid) for pid in job.ranks()), 60)
        else:
            heartbeats = self.directory / run / "heartbeats"
            job.wait_until(lambda: any(f" {last}" in path.read_text() for path in heartbeats.glob("*-rank-1")), 60)
            os.kill(job.ranks()[1], signal.SIGSTOP)
        sent = time.monotonic()
        finished = job.wait(40)
        self.assertLess(time.monotonic() - sent, self.timeout + self.soon)
        self.assert_lost_peer(finished)
        reports = [line for line in finished.reports() if "timed out" in line]
        self.assertEqual([line.count("Rank 1 ") for line in reports], [1], finished.text)
        self.assertRegex(reports[0], waiting)
        self.assertIn("has not ", reports[0])
        details = (self.directory / run / "report-rank-0.txt").read_text()
        self.assertIn("operations, oldest first:", details)
        self.assertIn("main", details)

    @harness.on_a_running_machine
    def file_system_hangs(self, run, path, attempt):
        """Rank 0 no longer opens files whose path contains `path`, not even those of a checkpoint; then rank 1 stops."""
        self.begin_attempt(attempt)
        switch = self.directory / f"switch-{run}-{attempt}"
        hang = {"LD_PRELOAD": os.environ["STALL_LIBRARY"], "HANG_RANK": "0", "HANG_PATH": path, "HANG_FROM": str(switch)}
        os.environ.update(hang)
        try:
            job = self.start_training(f"{run}-{attempt}", (2, 1), "--checkpoint.every=1")
        finally:
            for name in hang:
                os.environ.pop(name)
        switch.touch()
        time.sleep(1)  # several heartbeats and saves
        os.kill(job.ranks()[1], signal.SIGSTOP)
        sent = time.monotonic()
        finished = job.wait(40)
        self.assertLess(time.monotonic() - sent, self.timeout + self.soon + 2)  # for files
        self.assert_lost_peer(finished)
        self.assertRegex(finished.text, "rank 0: timed out after [0-9]+ s waiting to")

    def test_a_peer_hangs_while_files_do(self):
        for run, path in (("heartbeat", "heartbeats"), ("part", ".step-"), ("all", "all-"), ("peer", "-rank-1")):
            with self.subTest(path=path):
                self.file_system_hangs(run, path)

    def hang_in_each_file(self, run, files, peer, limit, words):
        """Rank 0 hangs in a call on each of `files`, and `peer` does something to its peer. All jobs run beside each other."""
        jobs = {}
        for name, fault in files.items():
            met = self.directory / f"{run}-{name}.met"
            jobs[name] = harness.Job(
                [harness.MPIRUN, "-n", "2", harness.STRATA, "train", self.config, f"--run.dir={run}-{name}",
                 f"--run.timeout={self.timeout}", "--checkpoint.every=1"],
                self.directory, LD_PRELOAD=os.environ["STRATA_FAULT_SHIM"], STRATA_FAULT_LOG=str(met),
                STRATA_FAULT=f"n=1,{fault},error=hang,rank=0")
            jobs[name].wait_until(met.exists, 60)
            peer(jobs[name].ranks()[1])
        begin = time.monotonic()
        try:
            for name, job in jobs.items():
                finished = job.wait(40)
                self.assertRegex(finished.text, f"rank {words}: timed out after [0-9]+ s waiting to", name)
                self.assert_lost_peer(finished)
            self.assertLess(time.monotonic() - begin, limit)
        finally:
            for job in jobs.values():
                job.signal_all(signal.SIGKILL)

    @unittest.skipUnless("STRATA_TEST_LONG" in os.environ, "takes minutes; STRATA_TEST_LONG is not set")
    @harness.on_a_running_machine
    def test_a_rank_hangs_in_a_file(self, attempt):
        self.begin_attempt(attempt)
        self.hang_in_each_file(f"file-{attempt}", FILES, lambda _: None, 10 * self.timeout + self.soon, "[01]")

    @harness.on_a_running_machine
    def test_a_rank_hangs_in_a_file_beside_a_stopped_peer(self, attempt):
        self.begin_attempt(attempt)
        # Hydra lets the job go on when a rank ends before it has started MPI, and the stopped peer cannot end by itself.
        files = {name: fault for name, fault in FILES.items() if name != "config" or harness.has_open_mpi()}
        self.hang_in_each_file(f"both-{attempt}", files, lambda pid: os.kill(pid, signal.SIGSTOP), self.timeout + self.soon + 2, "0")

    def test_a_run_ends_while_files_hang(self):
        """The watchdog of rank 0 no longer comes back from its heartbeat; the process ends 10 s after its work."""
        met = self.directory / "ending.met"
        hang = {"LD_PRELOAD": f"{os.environ['STALL_LIBRARY']}:{os.environ['STRATA_FAULT_SHIM']}", "STRATA_FAULT_LOG": str(met),
                "STRATA_FAULT": "call=open,n=1,path=/heartbeats,error=hang,rank=0", "STALL_RANK": "1", "STALL_AT": "MPI_Finalize"}
        with unittest.mock.patch.dict(os.environ, hang):
            job = self.start(2, "train", self.config, "--run.dir=ending", "--train.steps=2", "--run.timeout=12")
        job.wait_until(lambda: met.exists() and any(harness.is_stopped(pid) for pid in job.ranks()), 60)
        os.kill(job.ranks()[1], signal.SIGCONT)
        finished = self.finish(job, 20, harness.DONE)
        self.assertGreater(finished.seconds, 10)

    def test_a_crash_in_mpi_finalize_changes_no_exit_code(self):
        """The command is complete then. mpirun takes a rank that ends with 0 before it has finalized MPI for a failed one."""
        crash = {"LD_PRELOAD": os.environ["STALL_LIBRARY"], "STALL_RANK": "1", "STALL_AT": "MPI_Finalize", "STALL_SIGNAL": "11"}
        for settings, code in ([], harness.DONE), (["--data.train=none.h5"], harness.DATA):
            with self.subTest(code=code), unittest.mock.patch.dict(os.environ, crash):
                run = f"crash-{code}"
                finished = self.launch(2, "train", self.config, f"--run.dir={run}", "--train.steps=2", *settings)
                self.assertRegex(finished.text, r"(?m)^strata: rank 1: crashed with SIGSEGV in phase end\b.* \(MPI_Finalize\), .*\. "
                                                rf"The command is complete, with exit code {code}, .*\n(.*\[0x[0-9a-f]+\]\n)+")
                self.assertEqual(len(finished.reports()), int(code != harness.DONE), finished.text)
                if harness.has_open_mpi():  # Hydra may name a rank that it ended itself
                    self.assertEqual(finished.code, code, finished.text)

    def test_a_rank_hangs_in_each_phase(self):
        for phase in PHASES:
            with self.subTest(phase=phase):
                self.stall_in(phase)


if __name__ == "__main__":
    harness.main()
