"""Islands that average their weights now and then (parallel.sync = local)."""

import json
import os
import signal

import h5py

import harness

NETWORK = harness.config_text(
    ["flatten", "dense 40 relu", "layer_norm", "dropout 0.1", "dense 24", "gelu", "dense 5"],
    batch={"global": 48, "micro": 3},
    parallel={"sync": "local", "islands": 4},
    local={"steps": 6},
    optimizer={"kind": "adam", "learning_rate": 0.01, "clip_norm": 0.5},
    schedule={"kind": "cosine", "warmup_steps": 3, "decay_steps": 24},
    train={"steps": 24, "evaluate_every": 12}, checkpoint={"every": 12})


class Local(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (3, 4), 5, train=200, test=50)

    def test_islands_in_other_processes(self):
        """Rounded differences, in time with the steps; grids.* compares all kinds on all grids."""
        self.same_on([((1, 1), []), ((4, 1), []), ((2, 2), [])], "--local.fragments=3", "--local.delay=1",
                     "--local.exchange=int6", name="islands")

    def test_a_stop_waits_for_the_end_of_the_round(self):
        job = self.start(2, "train", self.config, "--run.dir=stopped", "--parallel.data=2",
                         "--train.steps=60000", "--checkpoint.every=0", "--train.evaluate_every=0")
        job.wait_until(lambda: "step 6/" in job.text(), 60)
        os.kill(job.ranks()[1], signal.SIGTERM)
        self.assertEqual(job.wait(60).code, harness.STOPPED_EARLY)
        [saved] = harness.checkpoints(self.directory / "stopped")
        self.assertEqual(int(saved.name.split("-")[1]) % 6, 0)

    def test_an_island_that_diverges_ends_the_job(self):
        for grid in [(1, 1), (2, 2)]:
            finished = self.launch(harness.ranks_of(grid), "train", self.config,
                                   f"--run.dir=diverged-{grid[0]}-{grid[1]}",
                                   *harness.grid_settings(grid), "--optimizer.kind=sgd",
                                   "--optimizer.learning_rate=1e38", "--optimizer.clip_norm=0",
                                   "--local.delay=1")
            self.assertEqual(finished.code, harness.DIVERGED, finished.text)
            # Each island that diverges may say so before the first one has ended the job.
            self.assertIn(len(finished.reports()), range(1, grid[0] + 1), finished.text)
            self.assertIn("the run diverged", finished.reports()[0])

    def test_another_mode_needs_consent(self):
        settings = ["--train.steps=12", "--checkpoint.every=6"]
        self.train(self.config, (2, 1), "mode", *settings)
        more = ["--train.steps=24", "--run.resume=must", "--parallel.data=2"]
        to_step = ["--parallel.sync=step", "--parallel.islands=0", "--local.steps=50"]
        refused = self.launch(2, "train", self.config, "--run.dir=mode", *more, *to_step)
        self.assert_refused(refused, harness.USAGE, "parallel.sync = local with 4 islands", "step",
                            "outer momentum", "checkpoint.drop_state")
        refused = self.launch(2, "train", self.config, "--run.dir=mode", *more,
                              "--parallel.islands=2")
        self.assert_refused(refused, harness.USAGE, "parallel.islands is 2", "4")
        self.train(self.config, (2, 1), "mode", "--train.steps=18", "--run.resume=must", *to_step,
                   "--checkpoint.drop_state=on")
        self.train(self.config, (2, 1), "mode", *more, "--checkpoint.drop_state=on",
                   "--parallel.islands=2")


class Jobs(harness.StrataTest):
    """Islands that are jobs of their own."""

    SETTINGS = ["--parallel.islands=3", "--numerics.lanes=6", "--batch.micro=2",
                "--train.evaluate_batches=1"]
    GRIDS = [(1, 1), (2, 1), (1, 2)]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (3, 4), 5, train=200, test=50)

    def island(self, number, directory, *settings):
        grid = self.GRIDS[number]
        return self.start(harness.ranks_of(grid), "train", self.config, *self.SETTINGS,
                          f"--run.dir={directory}-{number}", f"--parallel.island={number}",
                          f"--parallel.island_of={directory}", *harness.grid_settings(grid), *settings)

    def outer(self, run):
        saved = harness.tensors(harness.checkpoints(self.directory / run)[-1])
        return {name: tensor for name, tensor in saved.items()
                if name.startswith(("weights/", "outer/"))}

    def assert_same_outer(self, left, right):
        self.assertEqual(harness.differing_tensors(self.outer(left), self.outer(right)), [])

    def rounds(self, directory):
        newest = sorted((self.directory / directory / "rounds").iterdir())[-1]
        with h5py.File(newest / "master.h5") as master:
            return json.loads(master.attrs["metadata"])["rounds"]

    def test_jobs_give_the_bits_of_one_job(self):
        jobs = [self.island(number, "meet") for number in range(3)]
        for job in jobs:
            finished = job.wait(120)
            self.assertEqual(finished.code, harness.DONE, finished.text)
        self.train(self.config, (1, 1), "one", *self.SETTINGS)
        for number in range(3):
            self.assert_same_outer("one", f"meet-{number}")
        self.assertEqual(self.records("one", "evaluate"), self.records("meet-1", "evaluate"))
        self.assert_refused(self.island(0, "meet", "--run.dir=new").wait(60), harness.USAGE,
                            "rounds with island 0", "resume")
        self.assert_refused(self.island(0, "meet", "--local.steps=12", "--run.dir=other").wait(60), harness.USAGE,
                            "local.steps is 6", "12")

    def test_a_killed_island_comes_back(self):
        settings = ["--train.steps=240", "--train.evaluate_every=0", "--local.deadline=6"]
        jobs = [self.island(number, "loss", *settings) for number in range(3)]
        jobs[2].wait_until(lambda: (self.directory / "loss/rounds/step-00000012").exists(), 60)
        jobs[2].signal_all(signal.SIGKILL)
        jobs[2].wait(60)
        without = lambda: [0, 1] in [round["islands"] for round in self.rounds("loss")]
        jobs[0].wait_until(without, 60)
        jobs[2] = self.island(2, "loss", "--run.resume=auto", *settings)
        texts = []
        for job in jobs:
            finished = job.wait(300)
            self.assertEqual(finished.code, harness.DONE, finished.text)
            texts.append(finished.text)
        self.assertRegex(texts[0], r"warning: the average after step \d+ has 2 of 3 islands: 0, 1; the others were "
                                         "later than local.deadline = 6 s, do not run, or")
        self.assertRegex(texts[0], r"all islands are in the average after step \d+ again")
        rounds = [round["islands"] for round in self.rounds("loss")]
        self.assertEqual(len(rounds), 40)
        self.assertEqual(rounds[-1], [0, 1, 2], "the island did not come back")
        self.train(self.config, (1, 1), "replay", *self.SETTINGS, *settings[:2],
                   "--local.record=loss")
        for number in range(3):
            self.assert_same_outer("replay", f"loss-{number}")

    def test_an_island_says_what_differs_and_that_it_is_alone(self):
        settings = ["--train.steps=6", "--train.evaluate_every=0", "--local.deadline=0"]
        first = self.island(0, "said", *settings).wait(60)
        self.assertEqual(first.code, harness.DONE, first.text)
        self.assertIn("this island is alone: the average after step 6 has 1 of 3 islands: 0;", first.text)
        second = self.island(1, "said", *settings, "--optimizer.learning_rate=0.02", "--schedule.warmup_steps=4").wait(60)
        self.assertEqual(second.code, harness.DONE, second.text)
        self.assertIn("said/islands.json, which may differ, and those here: optimizer.learning_rate: 0.01 -> 0.02; "
                      "schedule.warmup_steps: 3 -> 4", second.text)

    def test_a_round_that_cannot_be_committed(self):
        (self.directory / "taken/rounds").mkdir(parents=True)
        (self.directory / "taken/rounds/step-00000006").write_text("in the way")
        self.assert_refused(self.island(0, "taken", "--local.deadline=0").wait(60),
                            harness.CHECKPOINT, "round of step 6", "cannot be moved to taken/rounds")

    def test_a_stop_while_others_are_waited_for(self):
        (self.directory / "alone/island-0/island.lock").mkdir(parents=True)  # cannot be read
        job = self.island(1, "alone")
        job.wait_until(lambda: (self.directory / "alone/island-1/step-00000006").exists(), 60)
        os.kill(job.ranks()[1], signal.SIGTERM)
        self.assertEqual(job.wait(60).code, harness.STOPPED_EARLY)


if __name__ == "__main__":
    harness.main()
