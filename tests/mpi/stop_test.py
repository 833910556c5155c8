"""A stop request ends set-up, training and evaluation soon, with exit code 75 and without a changed bit."""

import contextlib
import math
import os
import pathlib
import shutil
import signal
import time
import unittest.mock

import harness

# An evaluation of 2,000 rounds: with SLOW at least 6 s, on any machine.
NETWORK = harness.config_text(
    ["dense 16 relu", "dense 4"], batch={"global": 4}, numerics={"lanes": 2},
    train={"steps": 6, "evaluate_every": 3}, checkpoint={"every": 3}, run={"resume": "auto"})
FEW = ["--train.evaluate_batches=8"]
SLOW = {"TIMES": "3:0:0"}


def threads_taking(pid, number):
    """The threads of a process that a caught signal may go to."""
    for task in pathlib.Path("/proc", str(pid), "task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        blocked, caught = (int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigCgt:")))
        if (caught & ~blocked) >> (number - 1) & 1:  # of a thread that ends both are 0
            yield int(task.name)


class Stop(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=20000)

    def begin(self, run, ranks, *settings):
        return self.start(ranks, "train", self.config, f"--run.dir={run}", *settings)

    def saved(self, run, step):
        return lambda: [path.name for path in harness.checkpoints(self.directory / run)][-1:] == [
            f"step-{step:08d}"]

    def stopped(self, job, words, limit=60):
        finished = job.wait(limit)
        self.assertEqual(finished.code, harness.STOPPED_EARLY, finished.text)
        self.assertIn(words, finished.text)
        self.assertIn("--run.resume=auto", finished.text)

    def test_while_setting_up(self):
        job = self.begin("set-up", 2, *FEW)
        job.wait_until(lambda: len(job.ranks()) == 2 and harness.catches(job.ranks()[1], signal.SIGUSR1), 60)
        os.kill(job.ranks()[1], signal.SIGUSR1)
        self.stopped(job, "stopped on request while setting up")
        self.assertEqual(harness.checkpoints(self.directory / "set-up"), [])
        self.train(self.config, (2, 1), "set-up", *FEW)
        self.train(self.config, (1, 1), "never", *FEW)
        self.assert_same_run("never", "set-up")

    def test_while_evaluating(self):
        self.train(self.config, (1, 1), "whole")
        for number, (grid, step) in enumerate([((1, 2), 3), ((2, 1), 6)]):
            run = f"evaluating-{number}"
            with harness.rig(**SLOW):
                job = self.begin(run, 2, *harness.grid_settings(grid))
            job.wait_until(self.saved(run, step), 60)
            os.kill(job.ranks()[1], signal.SIGTERM)
            self.stopped(job, f"stopped on request in the evaluation after step {step} of 6")
            self.assertEqual([record["step"] for record in self.records(run, "evaluate")],
                             [str(done) for done in (3,) if done < step])
            self.train(self.config, (1, 1), run)
            self.assert_same_run("whole", run)

    def test_a_failed_save_is_tried_again_at_the_stop(self):
        shim = {"LD_PRELOAD": os.environ["STRATA_FAULT_SHIM"],
                "STRATA_FAULT": "call=write,n=1,error=ENOSPC,path=/part-,rank=1"}
        with unittest.mock.patch.dict(os.environ, shim), harness.rig(**SLOW):
            job = self.begin("retried", 2)
        job.wait_until(lambda: "the checkpoint of step 3 is not written" in job.text(), 60)
        self.assertEqual(self.steps_saved("retried"), [])
        os.kill(job.ranks()[1], signal.SIGTERM)
        self.stopped(job, "stopped on request in the evaluation after step 3 of 6")
        self.assertEqual(self.steps_saved("retried"), [3])
        self.assertEqual(self.alone("checkpoint", "verify", "retried").code, harness.DONE)

    def test_threads_of_saves_leave_stop_requests_to_the_main_thread(self):
        job = self.begin("threads", 1, "--train.steps=100000000", "--train.evaluate_every=0", "--checkpoint.every=5",
                         *FEW)
        job.wait_until(lambda: self.steps_saved("threads"), 60)
        rank, = job.ranks()
        first, seen = set(), set()
        while not first:  # the main thread blocks signals while it starts another
            first = set(threads_taking(rank, signal.SIGUSR1))
        newest = self.steps_saved("threads")[-1]

        def saved_again():
            for _ in range(50):
                seen.update(threads_taking(rank, signal.SIGUSR1))
            return self.steps_saved("threads")[-1] >= newest + 100

        job.wait_until(saved_again, 60)
        os.kill(rank, signal.SIGUSR1)
        self.stopped(job, "stopped on request after step")
        self.assertIn(rank, first)
        self.assertEqual(seen - first, set())

    def test_bad_test_data_do_not_hold_the_run_up(self):
        shutil.copytree(self.directory / "classes", self.directory / "damaged")
        shard = max((self.directory / "damaged").glob("test*.h5"), key=lambda path: path.stat().st_size)
        with open(shard, "r+b") as file:
            file.seek(shard.stat().st_size // 2)
            file.write(bytes(1000))
        run = "hindered"
        for step, last in [(3, 0), (6, 3), (6, 6)]:
            finished = self.train(self.config, (2, 1), run, "--data.test=damaged/test.h5",
                                  expect=harness.DATA)
            self.assertTrue(self.saved(run, step)(), finished.text)
            left_out = f"the evaluation after step {last} failed in an earlier run and is left out"
            self.assertEqual(last == 3, left_out in finished.text, finished.text)

    def test_signals_of_sites(self):
        endless = ["--train.steps=100000000", "--train.evaluate_every=0", "--checkpoint.every=0", *FEW]
        for number in (signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR2, signal.SIGALRM, signal.SIGPWR):
            with self.subTest(number):
                job = self.begin(number.name, 2, *endless)
                self.wait_for_steps(job, number.name)
                os.kill(job.ranks()[1], number)
                self.stopped(job, "stopped on request after step")
                self.assertEqual(len(self.steps_saved(number.name)), 1)
        # As under nohup, where UCX takes SIGHUP before main() too; SIGQUIT says where it ended the rank.
        job = harness.Job(["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", harness.STRATA, "train", self.config, "--run.dir=nohup",
                           *endless], self.directory, LD_PRELOAD=harness.UCX)
        self.wait_for_steps(job, "nohup")
        os.kill(job.process.pid, signal.SIGHUP)
        self.wait_for_steps(job, "nohup")
        os.kill(job.process.pid, signal.SIGQUIT)
        ended = job.wait(60)
        self.assertEqual(ended.code, -signal.SIGQUIT, ended.text)
        self.assertRegex(ended.text, r"(?m)^strata: rank 0: ended at once by SIGQUIT in phase training, step \d+; ")

    def wait_for_steps(self, job, run):
        """Waits for some more steps."""
        lines = self.directory / run / "metrics.jsonl"
        done = lines.read_text().count("\n") if lines.exists() else 0
        job.wait_until(lambda: lines.exists() and lines.read_text().count("\n") > done + 3, 60)

    def test_a_second_sigterm_ends_at_once_and_a_second_sigusr1_does_not(self):
        job = self.begin("twice", 2, "--train.steps=100000000", "--train.evaluate_every=0",
                         "--run.timeout=600", *FEW)
        self.wait_for_steps(job, "twice")
        stopped, waiting = job.ranks()
        os.kill(stopped, signal.SIGSTOP)
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
            os.kill(waiting, number)
            time.sleep(1.2)
            self.assertIn(waiting, job.ranks())
        # On busy cores the first one may be handled so late that the second comes within a second of it, and counts as the same.
        end = time.monotonic() + 60
        while waiting in job.ranks() and time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(waiting, signal.SIGTERM)
            time.sleep(1.2)
        self.assertNotIn(job.wait(10).code, (harness.DONE, harness.STOPPED_EARLY))

    def steps_saved(self, run):
        return [int(path.name.removeprefix("step-")) for path in harness.checkpoints(self.directory / run)]

    def test_ahead_of_the_time_limit(self):
        endless = ["--train.steps=100000000", "--train.evaluate_every=0", "--checkpoint.every=0", *FEW]
        # Room for some steps, however long a start takes on this machine.
        start = self.train(self.config, (2, 1), "start", *endless, "--train.steps=1").seconds
        finished = self.train(self.config, (2, 1), "limit", *endless, f"--run.time_limit={max(6, 4 + 4 * start) / 60}",
                              expect=harness.STOPPED_EARLY)
        self.assertRegex(finished.text, r"time limit: in \d")
        self.assertIn("stopped ahead of the time limit after step", finished.text)
        self.assertNotIn("the time limit leaves room for", finished.text)
        self.assertEqual(len(self.steps_saved("limit")), 1)
        # The same from Slurm, and too little for a step and a checkpoint, which is said.
        # The first step takes a large part of it, so that a slow start of the program does not matter.
        left = max(14, math.ceil(4 + 4 * start))
        for number, (seconds, slow) in enumerate([(left, f"{1000 * (left - 2)}:0:0"), (-5, "0:0:0")]):
            with unittest.mock.patch.dict(os.environ, SLURM_JOB_END_TIME=str(int(time.time() + seconds))), \
                    harness.rig(TIMES=slow):
                past = seconds < 0
                finished = self.train(self.config, (2, 1), f"short-{number}", *FEW,
                                      expect=harness.DONE if past else harness.STOPPED_EARLY)
                self.assertEqual("the time limit leaves room for 1 step only: a step takes" in finished.text,
                                 not past, finished.text)

    def test_saves_by_the_clock_and_keeps_some_for_ever(self):
        job = self.begin("clock", 2, "--train.steps=100000000", "--train.evaluate_every=0",
                         "--checkpoint.every=0", "--checkpoint.minutes=0.01", "--checkpoint.keep=9", *FEW)
        job.wait_until(lambda: len(self.steps_saved("clock")) > 1, 60)
        os.kill(job.ranks()[1], signal.SIGUSR1)
        self.stopped(job, "stopped on request after step")
        self.train(self.config, (2, 1), "kept", "--train.steps=20", "--checkpoint.keep=1",
                   "--checkpoint.keep_every=7", "--train.evaluate_every=0", *FEW)
        self.assertEqual(self.steps_saved("kept"), [7, 14, 20])


if __name__ == "__main__":
    harness.main()
