"""SIGKILL at random moments, many while a checkpoint is written: the run always resumes from a good
checkpoint and ends with the bits of one that was never disturbed.

STRATA_TEST_KILLS sets the number of kills (10, with STRATA_TEST_LONG 50), STRATA_TEST_SEED the seed of the random moments.
"""

import os
import random
import signal
import time

import harness

NETWORK = harness.config_text(
    ["dense 600 relu", "dropout 0.2", "dense 500 relu", "dense 4"],
    batch={"global": 16, "micro": 4}, numerics={"lanes": 2}, optimizer={"kind": "adam"},
    train={"steps": 25, "evaluate_every": 10}, checkpoint={"every": 1, "keep": 2},
    run={"resume": "auto"})

GRIDS = [(1, 1), (2, 1), (1, 2), (2, 2)]


class Kill(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (40,), 4, train=100, test=20)
        cls().train(cls.config, (1, 1), "undisturbed", "--checkpoint.every=0")

    def marks(self, run):
        """What a save that is under way has in sight."""
        found = set()
        for path in (self.directory / run / "checkpoints").glob(".step-*"):
            try:
                found.add((path.name, path.stat().st_mtime_ns))
            except FileNotFoundError:
                pass
        return found

    def newest_step(self, run):
        found = harness.checkpoints(self.directory / run)
        return int(found[-1].name.removeprefix("step-")) if found else 0

    def wait_for_moment(self, job, run, stale, choice):
        """Waits for a random moment; False where the job ended before."""
        end = time.monotonic() + 60
        aim = choice.random()
        saves = choice.randrange(1, 8) if aim > 0.3 else 0
        in_sight = False
        if saves == 0:
            time.sleep(choice.uniform(0.0, 1.5))
            return job.running()
        while job.running() and time.monotonic() < end:
            before, in_sight = in_sight, bool(self.marks(run) - stale)
            saves -= in_sight and not before
            if saves <= 0:
                time.sleep(choice.uniform(0.0, 0.01))
                return job.running()
            time.sleep(0.0005)
        return False

    def kill_someone(self, job, choice):
        ranks = job.ranks()
        if ranks and choice.random() < 0.6:
            os.kill(choice.choice(ranks), signal.SIGKILL)
        else:
            job.signal_all(signal.SIGKILL)

    def test_killed_at_random_moments(self):
        wanted = int(os.environ.get("STRATA_TEST_KILLS", "50" if "STRATA_TEST_LONG" in os.environ else "10"))
        seed = os.environ.get("STRATA_TEST_SEED", "1")
        choice = random.Random(seed)
        kills = in_save = finished_runs = 0
        least = wanted // 5  # within a save
        run = "run-0"
        while True:
            data, pipeline = choice.choice(GRIDS)
            before = self.newest_step(run)
            stale = self.marks(run)
            last = kills >= wanted and (in_save >= least or kills >= 3 * wanted)
            job = self.start(data * pipeline, "train", self.config, f"--run.dir={run}",
                             f"--parallel.pipeline={pipeline}")
            killed = False
            if not last and self.wait_for_moment(job, run, stale, choice):
                self.kill_someone(job, choice)
                killed = True
            ended = job.wait(90)
            context = f"seed {seed}, kill {kills}:\n{ended.text}"
            self.assertNotIn("passing over a bad checkpoint", ended.text, context)
            if before > 0 and "cpu on" in ended.text and "step" in ended.text.split("cpu on")[1]:
                self.assertRegex(ended.text, f"continuing after step {before} |all 25 steps", context)
            if killed and ended.code != harness.DONE:
                kills += 1
                in_save += bool(self.marks(run) - stale)
                self.assertGreaterEqual(self.newest_step(run), before, context)
                continue
            self.assertEqual(ended.code, harness.DONE, context)
            self.assert_same_run("undisturbed", run)
            if "is done already" not in ended.text:  # saved, and so cleared away what kills left
                self.assertEqual(self.marks(run), set(), context)
            finished_runs += 1
            run = f"run-{finished_runs}"
            if last:
                break
        print(f"{kills} kills, {in_save} of them within a save; {finished_runs} runs finished with "
              f"the bits of the undisturbed one", flush=True)
        self.assertGreaterEqual(in_save, least)


if __name__ == "__main__":
    harness.main()
