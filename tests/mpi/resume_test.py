"""A run that is stopped and continued, on another grid, ends with the bits of one that never was."""

import os
import signal

import harness

NETWORK = harness.config_text(
    ["dense 32 relu", "layer_norm", "dropout 0.3", "dense 16", "gelu", "dense 4"],
    batch={"global": 24, "micro": 3}, numerics={"lanes": 4},
    optimizer={"kind": "adam", "learning_rate": 0.005, "clip_norm": 1},
    schedule={"kind": "linear", "decay_steps": 3000}, train={"steps": 12, "evaluate_every": 6})


LONG = ["--train.steps=3000", "--train.evaluate_every=500"]


class Resume(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=30)
        cls().train(cls.config, (1, 1), "short")
        cls().train(cls.config, (2, 1), "long", *LONG)

    def test_a_grid_that_is_chosen_anew(self):
        chosen = ["--parallel.data=auto", "--parallel.pipeline=auto", "--parallel.tensor=auto"]
        self.train(self.config, (2, 2), "auto", "--train.steps=3")
        # Each start keeps the stages of the last one if it can.
        for ranks, grid, steps in ((2, "1 data x 2 pipeline", 5), (1, "1 data x 1 pipeline", 7),
                                   (3, "1 data x 3 pipeline", 9), (4, "4 data x 1 pipeline", 12)):
            finished = self.launch(ranks, "train", self.config, "--run.dir=auto", "--run.resume=must",
                                   f"--train.steps={steps}", *chosen, expect=harness.DONE)
            self.assertIn(f"grid: {grid}", finished.text)
        trained, whole = ([row for row in harness.metrics(self.directory / run) if ("kind", "train") in row]
                          for run in ("auto", "short"))
        self.assertEqual(trained, whole)
        refused = self.launch(4, "train", self.config, "--run.dir=auto", "--run.resume=must", "--parallel.pipeline=3",
                              "--train.steps=20")
        self.assertEqual(refused.code, harness.USAGE)
        self.assertIn("launch 3 or 6 ranks", refused.text)

    def test_what_is_left_open_stays_as_the_checkpoint_has_it(self):
        """Defaults of the optimizer change from version to version, and with the length of the run."""
        bare = self.write_config("bare.ini", harness.config_text(
            ["dense 16 relu", "dense 4"], batch={"global": 24}, numerics={"lanes": 2},
            optimizer={"weight_decay": 0.1}, train={"steps": 40, "evaluate_every": 20}))
        earlier = ["--optimizer.kind=sgd", "--optimizer.learning_rate=0.07", "--schedule.warmup_steps=9",
                   "--optimizer.decay=all"]
        for name, settings in (("earlier", earlier), ("now", ["--schedule.warmup_steps=2"])):
            with self.subTest(settings=settings):
                self.train(bare, (1, 1), f"{name}-whole", *(settings if settings == earlier else []))
                self.train(bare, (1, 1), name, "--train.steps=20", *settings)
                finished = self.train(bare, (2, 1), name, "--run.resume=must")
                self.assertNotIn("optimizer.", finished.text)
                self.assert_same_run(f"{name}-whole", name)

    def test_stopped_by_signals(self):
        for run, first, then, signal_one in [
                ("term", (2, 2), (1, 2), lambda job, ranks: os.kill(ranks[2], signal.SIGTERM)),
                ("int", (1, 3), (4, 1), lambda job, ranks: os.kill(ranks[-1], signal.SIGINT)),
                ("usr1", (4, 1), (2, 2), lambda job, ranks: os.kill(job.process.pid, signal.SIGUSR1))]:
            with self.subTest(run=run):
                count = harness.ranks_of(first)
                with harness.rig(DELAY="0:0.002"):  # long enough to be caught while it trains
                    job = self.start(count, "train", self.config, f"--run.dir={run}", *harness.grid_settings(first), *LONG)
                job.wait_until(lambda: len(job.ranks()) == count, 60)
                ranks = job.ranks()
                lines = self.directory / run / "metrics.jsonl"
                job.wait_until(lambda: lines.exists() and lines.read_text().count("\n") > 3, 60)
                signal_one(job, ranks)
                stopped = job.wait(60)
                self.assertEqual(stopped.code, harness.STOPPED_EARLY, stopped.text)
                self.assertIn("stopped on request after step", stopped.text)
                self.assertIn("--run.resume=auto", stopped.text)
                finished = self.train(self.config, then, run, "--run.resume=must", *LONG)
                self.assertIn("continuing after step", finished.text)
                self.assert_same_run("long", run)

    def test_resolved_config_continues_the_run(self):
        self.train(self.config, (2, 1), "resolved", "--train.steps=6")
        resolved = self.directory / "resolved" / "config.ini"
        self.launch(2, "train", resolved, "--run.resume=auto", "--train.steps=12", expect=harness.DONE)
        self.assert_same_run("short", "resolved")

    def test_resolved_config_marks_defaults_and_derived_settings(self):
        self.launch(2, "train", self.config, "--run.dir=read", "--train.steps=6",
                    "--checkpoint.keep=3")
        path = self.directory / "read" / "config.ini"
        first = path.read_text()
        for line in ["steps = 6", "data = 0  # derived: 2", "pipeline = 1  # default",
                     "keep = 3", "dtype = float32  # default", "loss = cross_entropy  # derived",
                     "device = auto  # derived: cpu"]:
            self.assertIn(f"\n{line}\n", first)
        # On another number of ranks, and what was derived is still marked.
        self.launch(1, "train", path, "--run.resume=auto", "--train.steps=12", expect=harness.DONE)
        self.assert_same_run("short", "read")
        changed = {"data = 0  # derived: 2": "data = 0  # derived: 1", "steps = 6": "steps = 12"}
        expected = [changed.get(line, line) for line in first.splitlines()]
        ignored = ("epochs = ", "resume = ", "threads = ")
        self.assertEqual([line for line in path.read_text().splitlines() if not line.startswith(ignored)],
                         [line for line in expected if not line.startswith(ignored)])

    def test_decay_ends_at_the_last_step(self):
        self.train(self.config, (1, 1), "decay", "--schedule.decay_steps=0")
        self.assertIn("\ndecay_steps = 12  # derived\n", (self.directory / "decay" / "config.ini").read_text())
        without = self.write_config("without.ini", NETWORK.replace("decay_steps = 3000\n", ""))
        self.train(without, (1, 1), "without")
        self.assert_same_run("decay", "without")

    def test_a_finished_run_is_left_alone(self):
        self.train(self.config, (1, 1), "finished")
        again = self.train(self.config, (2, 1), "finished", "--run.resume=auto")
        self.assertIn("nothing to train: step 12 of 12 is done already", again.text)
        self.assert_same_run("short", "finished")

    def test_nothing_to_continue_is_refused(self):
        refused = self.train(self.config, (2, 1), "nothing", "--run.resume=must",
                             expect=harness.CHECKPOINT)
        self.assert_refused(refused, harness.CHECKPOINT, "there is no checkpoint in nothing",
                            "run.resume")

    def test_auto_without_a_checkpoint_starts_at_step_zero(self):
        self.train(self.config, (1, 2), "fresh", "--run.resume=auto")
        self.assert_same_run("short", "fresh")


if __name__ == "__main__":
    harness.main()
