"""Islands that average their weights now and then (parallel.sync = local)."""

import json
import os
import shutil
import signal

import h5py
import numpy as np

import harness
import language

NETWORK = harness.config_text(
    ["flatten", "dense 40 relu", "layer_norm", "dropout 0.1", "dense 24", "gelu", "dense 5"],
    batch={"global": 48, "micro": 3},
    parallel={"sync": "local", "islands": 4},
    local={"steps": 6},
    optimizer={"kind": "adam", "learning_rate": 0.01, "clip_norm": 0.5},
    schedule={"kind": "cosine", "warmup_steps": 3, "decay_steps": 24},
    train={"steps": 24, "evaluate_every": 12}, checkpoint={"every": 12})

GRIDS = [(1, 1), (2, 1), (4, 1), (1, 3), (2, 2), (4, 2)]

# What is averaged, when, and how it is sent.
KINDS = {
    "diloco": [],
    "plain": ["--local.outer_momentum=0", "--local.outer_rate=1"],
    "rounded": ["--local.exchange=int4"],
    "streaming": ["--local.fragments=3", "--local.delay=1", "--local.exchange=int6",
                  "--numerics.lanes=8"],
    "float64": ["--numerics.dtype=float64", "--local.fragments=2", "--local.exchange=bfloat16"],
    "bfloat16": ["--numerics.dtype=bfloat16", "--local.delay=2", "--local.mix=0.25"],
}


class Local(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (3, 4), 5, train=200, test=50)

    def test_grids(self):
        for kind, settings in KINDS.items():
            with self.subTest(kind):
                grids = GRIDS + ([(8, 1)] if kind == "streaming" else [])
                self.same_on([(grid, []) for grid in grids], *settings, name=kind)

    def test_batch_norm(self):
        """Running statistics are averaged plainly, also those of lanes together."""
        self.import_classes("images", (2, 6, 6), 5, train=100, test=20)
        for sync in ("off", "on"):
            config = self.write_config("images.ini", harness.config_text(
                ["conv 8 3 relu", "batch_norm", "flatten", "dense 5"], data="images",
                batch={"global": 24, "micro": 3}, numerics={"lanes": 4},
                model={"sync_batch_norm": sync},
                parallel={"sync": "local", "islands": 2}, local={"steps": 2, "mix": 0.5},
                train={"steps": 6, "evaluate_every": 2}))
            self.same_on([(grid, []) for grid in [(1, 1), (2, 1), (4, 1), (2, 2)]],
                         name=f"batch-norm-{sync}", config=config)

    def losses(self, run):
        return np.array([float(row["loss"]) for row in self.records(run, "train")])

    def test_rounds_of_one_step_are_synchronous_training(self):
        for dtype, bound in [("float32", 1e-6), ("float64", 1e-13)]:
            settings = [f"--numerics.dtype={dtype}", "--optimizer.kind=sgd", "--train.steps=50",
                        "--optimizer.clip_norm=0", "--schedule.decay_steps=50",
                        "--train.evaluate_every=0", "--checkpoint.every=0", "--numerics.lanes=4"]
            self.train(self.config, (2, 1), f"step-{dtype}", *settings, "--parallel.sync=step",
                       "--parallel.islands=0", "--local.steps=50")
            self.train(self.config, (2, 1), f"local-{dtype}", *settings, "--local.steps=1",
                       "--local.outer_rate=1", "--local.outer_momentum=0")
            np.testing.assert_allclose(self.losses(f"local-{dtype}"), self.losses(f"step-{dtype}"),
                                       rtol=0, atol=bound)
            ends = [harness.tensors(harness.checkpoints(self.directory / f"{kind}-{dtype}")[-1])
                    for kind in ("step", "local")]
            for name, weights in ends[0].items():
                np.testing.assert_allclose(ends[1][name], weights, rtol=0, atol=bound, err_msg=name)

    def test_resumed_on_other_grids(self):
        for kind in ("diloco", "streaming", "bfloat16"):
            keep = [*KINDS[kind], "--checkpoint.keep=9"]
            whole = f"whole-{kind}"
            self.train(self.config, (2, 2), whole, *keep)
            self.assertGreater(self.losses(whole)[0], self.losses(whole)[-1])
            for number, grid in enumerate([(1, 1), (4, 1), (2, 3)]):
                run = f"resumed-{kind}-{number}"
                shutil.copytree(self.directory / whole, self.directory / run)
                shutil.rmtree(self.directory / run / "checkpoints" / "step-00000024")
                self.train(self.config, grid, run, *keep, "--run.resume=must")
                self.assert_same_run(whole, run)

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

    def test_bad_input(self):
        for grid, settings, words in [
                ((3, 1), [], ["parallel.islands is 4", "3 replicas"]),
                ((1, 1), ["--local.steps=48"], ["local.steps is 48", "24 steps"]),
                ((1, 1), ["--train.steps=20"], ["train.steps is 20", "18 or 24"]),
                ((1, 1), ["--checkpoint.every=4"], ["checkpoint.every is 4", "give 6"]),
                ((1, 1), ["--local.delay=6"], ["local.delay is 6", "local.steps = 6"]),
                ((1, 1), ["--local.fragments=7"], ["local.fragments"]),
                ((1, 1), ["--numerics.lanes=6"], ["numerics.lanes is 6", "parallel.islands = 4"]),
                ((2, 1), ["--numerics.mode=fast"], ["numerics.mode is fast"]),
                ((1, 1), ["--local.mix=1"], ["local.mix"]),
                ((1, 1), ["--parallel.sync=step"], ["parallel.islands is set", "no effect"])]:
            with self.subTest(settings):
                self.assert_refused(
                    self.launch(harness.ranks_of(grid), "train", self.config, "--run.dir=bad",
                                *harness.grid_settings(grid), *settings), harness.USAGE, *words)


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
        settings = ["--train.steps=240", "--train.evaluate_every=0", "--local.deadline=2"]
        jobs = [self.island(number, "loss", *settings) for number in range(3)]
        jobs[2].wait_until(lambda: (self.directory / "loss/rounds/step-00000012").exists(), 60)
        jobs[2].signal_all(signal.SIGKILL)
        jobs[2].wait(60)
        without = lambda: [0, 1] in [round["islands"] for round in self.rounds("loss")]
        jobs[0].wait_until(without, 60)
        jobs[2] = self.island(2, "loss", "--run.resume=auto", *settings)
        for job in jobs:
            finished = job.wait(300)
            self.assertEqual(finished.code, harness.DONE, finished.text)
        rounds = [round["islands"] for round in self.rounds("loss")]
        self.assertEqual(len(rounds), 40)
        self.assertEqual(rounds[-1], [0, 1, 2], "the island did not come back")
        self.train(self.config, (1, 1), "replay", *self.SETTINGS, *settings[:2],
                   "--local.record=loss")
        for number in range(3):
            self.assert_same_outer("replay", f"loss-{number}")

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


class Transformers(language.LanguageTest):
    def test_grids(self):
        """A tied table, frozen matrices, adapters, shards and stages."""
        settings = ["--parallel.sync=local", "--parallel.islands=2", "--local.steps=2",
                    "--train.steps=4", "--checkpoint.every=2", "--local.exchange=int8"]
        for name, further in {
                "gpt": ["--local.fragments=2"],
                "bfloat16": ["--numerics.dtype=bfloat16", "--local.mix=0.5"],
                "frozen": ["--optimizer.frozen=*.attention.*,embedding.*"],
                "lora": ["--lora.rank=2", "--numerics.dtype=bfloat16"]}.items():
            with self.subTest(name):
                self.same_on([(grid, []) for grid in [(1, 1, 1), (2, 2, 1), (4, 1, 2), (1, 3, 2)]],
                             *settings, *further, name=name)


if __name__ == "__main__":
    harness.main()
