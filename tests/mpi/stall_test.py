"""A rank that hangs or dies ends the job within seconds, with a message."""

import os
import signal
import time

import harness

NETWORK = harness.config_text(
    ["dense 32 relu", "dense 32 relu", "dense 4"], data={"train": "classes/train.h5"},
    batch={"global": 32}, numerics={"lanes": 2}, train={"steps": 10000000}, run={"patience": 3})


class Stall(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=30)

    def start_training(self, run, grid):
        data, pipeline = grid
        job = self.start(data * pipeline, "train", self.config, f"--run.dir={run}",
                         f"--parallel.pipeline={pipeline}")
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
        return finished

    @harness.on_a_running_machine
    def stall(self, run, grid, victim, words, attempt):
        finished = self.end_by_signal(f"{run}-{attempt}", grid, victim, signal.SIGSTOP, 20)
        self.assertEqual(finished.code, harness.PEER, finished.text)
        reports = [line for line in finished.reports() if "timed out after 3 s waiting to" in line]
        self.assertTrue(reports, finished.text)
        self.assertTrue(any(all(word in line for word in words) for line in reports), finished.text)
        for line in reports:
            self.assertIn("run.timeout sets", line)

    def test_a_replica_hangs(self):
        self.stall("replica", (2, 1), 1, ["data group"])

    def test_the_first_stage_hangs(self):
        self.stall("first", (1, 2), 0, ["rank 0", "pipeline group"])

    def test_the_last_stage_hangs_on_a_full_grid(self):
        self.stall("last", (2, 2), 3, ["rank 1"])

    @harness.on_a_running_machine
    def test_a_rank_is_killed(self, attempt):
        for number, (grid, victim) in enumerate([((2, 1), 0), ((2, 2), 3)]):
            self.end_by_signal(f"killed-{number}-{attempt}", grid, victim, signal.SIGKILL, 15)


if __name__ == "__main__":
    harness.main()
