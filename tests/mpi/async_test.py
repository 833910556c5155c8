"""Workers that do not wait for each other (parallel.sync = async)."""

import json
import os
import pathlib
import re
import signal
import time

import h5py
import numpy as np

import harness

NETWORK = harness.config_text(
    ["flatten", "dense 40 relu", "layer_norm", "dropout 0.1", "dense 5"],
    batch={"global": 48, "micro": 3}, parallel={"sync": "async"}, numerics={"lanes": 4},
    optimizer={"kind": "adam", "learning_rate": 0.003, "clip_norm": 1},
    train={"steps": 60, "evaluate_every": 30}, checkpoint={"every": 20, "keep": 9})

UNITS = 4  # of a step: lanes
JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs"


class Async(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (3, 4), 5, train=200, test=50)

    def metadata(self, checkpoint):
        with h5py.File(checkpoint / "master.h5") as master:
            return json.loads(master.attrs["metadata"])

    def assert_each_unit_once(self, run, steps):
        """All steps have one line, and as many updates as units were applied at each checkpoint."""
        self.assertEqual([int(row["step"]) for row in self.records(run, "train")],
                         list(range(1, steps + 1)))
        for saved in harness.checkpoints(self.directory / run):
            metadata = self.metadata(saved)
            self.assertIs(metadata["reproducible"], False)
            units = metadata["units"]
            self.assertEqual(units["updates"], units["next"] - len(units["open"]), saved)
        self.assertEqual(units["next"], steps * UNITS)
        self.assertEqual(units["open"], [])

    def test_kinds(self):
        for ranks, settings in [
                (1, []), (4, []), (2, ["--numerics.dtype=bfloat16"]),
                (4, ["--numerics.dtype=float64", "--optimizer.kind=sgd", "--optimizer.momentum=0.9",
                     "--optimizer.learning_rate=0.02"]),
                (4, ["--async.servers=2", "--async.ahead=2", "--async.rate=divided"]),
                (2, ["--optimizer.kind=adagrad", "--optimizer.learning_rate=0.02",
                     "--optimizer.frozen=dense1.*"])]:
            with self.subTest(ranks=ranks, settings=settings):
                run = f"kind-{ranks}-{len(settings)}-{len(' '.join(settings))}"
                self.train(self.config, (ranks, 1), run, *settings)
                self.assert_each_unit_once(run, 60)
                [*_, last] = self.records(run, "evaluate")
                self.assertGreaterEqual(float(last["accuracy"]), 0.8)
                self.assertIn("accuracy", self.alone("evaluate", run, expect=harness.DONE).text)

    def test_one_worker_does_what_synchronous_training_does(self):
        settings = ["--numerics.lanes=1", "--batch.global=12", "--numerics.dtype=float64"]
        self.train(self.config, (1, 1), "one", *settings)
        self.train(self.config, (1, 1), "step", *settings, "--parallel.sync=step")
        of = [np.array([float(row["loss"]) for row in self.records(run, "train")])
              for run in ("one", "step")]
        np.testing.assert_array_equal(*of)
        tensors = [harness.tensors(harness.checkpoints(self.directory / run)[-1])
                   for run in ("one", "step")]
        self.assertEqual(harness.differing_tensors(*tensors), [])

    def test_stale_pushes(self):
        finished = self.train(self.config, (4, 1), "stale", "--async.staleness=1",
                              "--async.stale=drop", "--train.steps=100")
        found = re.search(r"(\d+) dropped; staleness up to (\d+) in full", finished.text)
        self.assertIsNotNone(found, finished.text)
        self.assertGreater(int(found[1]), 0)
        self.assertLessEqual(int(found[2]), 1)

    def test_a_stop_and_a_resume_on_other_ranks(self):
        long = ["--train.steps=400000", "--train.evaluate_every=0", "--checkpoint.every=0"]
        job = self.start(4, "train", self.config, "--run.dir=stopped", *long)
        job.wait_until(lambda: "  units " in job.text(), 60)
        os.kill(job.ranks()[2], signal.SIGTERM)
        self.assertEqual(job.wait(60).code, harness.STOPPED_EARLY)
        [saved] = harness.checkpoints(self.directory / "stopped")
        step = int(saved.name.split("-")[1])
        self.assertLess(step, 400000)
        self.train(self.config, (2, 1), "stopped", "--run.resume=must", f"--train.steps={step + 100}",
                   *long[1:])
        self.assert_each_unit_once("stopped", step + 100)

    def test_a_killed_worker_ends_the_job_which_resumes(self):
        settings = ["--train.steps=400000", "--train.evaluate_every=0", "--checkpoint.every=50"]
        job = self.start(4, "train", self.config, "--run.dir=killed", *settings)
        job.wait_until(lambda: harness.checkpoints(self.directory / "killed"), 60)
        killed = time.monotonic()
        os.kill(job.ranks()[3], signal.SIGKILL)
        self.assertNotEqual(job.wait(60).code, harness.DONE)
        self.assertLess(time.monotonic() - killed, 10 * harness.LENIENCE)
        last = int(harness.checkpoints(self.directory / "killed")[-1].name.split("-")[1])
        self.train(self.config, (4, 1), "killed", "--run.resume=must", f"--train.steps={last + 50}",
                   *settings[1:])
        self.assert_each_unit_once("killed", last + 50)

    def test_the_line_of_a_crash_names_the_step(self):
        for rank, place in {1: "server", 3: "worker"}.items():
            with self.subTest(place=place):
                job = self.start(4, "train", self.config, f"--run.dir=crash-{rank}", "--async.servers=2",
                                 "--train.steps=100000", "--train.evaluate_every=0", "--checkpoint.every=5")
                job.wait_until(lambda: harness.checkpoints(self.directory / f"crash-{rank}"), 60)
                os.kill(job.ranks()[rank], signal.SIGSEGV)
                finished = job.wait(60)
                found = re.search(rf"rank {rank}: crashed with SIGSEGV in phase \w+, step (\d+);", finished.text)
                self.assertIsNotNone(found, finished.text)
                self.assertGreaterEqual(int(found[1]), 5)

    @harness.on_a_running_machine
    def test_a_worker_that_stands_still_ends_the_job(self, attempt):
        job = self.start(3, "train", self.config, f"--run.dir=still-{attempt}", "--numerics.lanes=3", "--batch.micro=4",
                         "--train.steps=400000", "--train.evaluate_every=0", "--checkpoint.every=0",
                         f"--run.timeout={3 * harness.patience(attempt)}")
        job.wait_until(lambda: "  units " in job.text(), 60)
        os.kill(job.ranks()[1], signal.SIGSTOP)
        finished = job.wait(60)
        self.assert_lost_peer(finished)
        self.assertRegex(finished.text, "strata: rank [02]: ")

    def test_a_slow_worker(self):
        """Four workers, one of which sleeps: the others do its share."""
        images = sorted(pathlib.Path(os.environ.get("STRATA_DATA_DIR", "/none")).rglob(
            "t10k-*-ubyte*"))
        if len(images) != 2:
            self.skipTest("STRATA_DATA_DIR has no t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte")
        self.import_data("--format=idx", f"--images={images[0]}", f"--labels={images[1]}",
                         "--split=8000,2000", "--output=data/mnist", "--overwrite")
        with harness.rig(DELAY="2:0.02"):
            job = self.start(4, "train", JOBS / "mnist-mlp.ini", "--run.dir=mnist", "--run.threads=1", "--parallel.sync=async",
                             "--parallel.data=4", "--parallel.pipeline=1", "--numerics.lanes=4")
        finished = job.wait(300)
        self.assertEqual(finished.code, harness.DONE, finished.text)
        [*_, last] = self.records("mnist", "evaluate")
        print(f"test accuracy {last['accuracy']}", flush=True)
        self.assertGreaterEqual(float(last["accuracy"]), 0.95)

    def test_the_bound_ends_with_the_units(self):
        """A worker that finds no unit any more holds nobody back."""
        with harness.rig(DELAY="2:0.3"):
            job = self.start(4, "train", self.config, "--run.dir=ahead", "--parallel.data=4", "--parallel.pipeline=1",
                             "--async.ahead=1", "--train.steps=1", "--async.servers=1")
        finished = job.wait(30)
        self.assertEqual(finished.code, harness.DONE, finished.text)
        self.assert_each_unit_once("ahead", 1)

    def test_linear_regression(self):
        random = np.random.default_rng(3)
        inputs = random.normal(size=(256, 4)).astype(np.float32)
        self.import_arrays("line", inputs, (inputs @ [[1.0], [-2.0], [0.5], [3.0]] + 0.25).astype(
            np.float32), "192,64")
        config = self.write_config("line.ini", harness.config_text(
            ["dense 1"], data="line", batch={"global": 32, "micro": 8},
            optimizer={"kind": "sgd", "learning_rate": 0.02}, parallel={"sync": "async"},
            train={"steps": 300}))
        self.train(config, (4, 1), "line")
        [last] = self.records("line", "evaluate")
        self.assertLess(float(last["loss"]), 1e-4)

    def test_another_mode_and_divergence(self):
        self.train(self.config, (2, 1), "mode", "--train.steps=20")
        more = ["--run.dir=mode", "--run.resume=must", "--train.steps=40"]
        refused = self.launch(2, "train", self.config, *more, "--parallel.sync=step")
        self.assert_refused(refused, harness.USAGE, "parallel.sync = async", "step",
                            "checkpoint.drop_state")
        self.train(self.config, (2, 1), "mode", *more[1:], "--parallel.sync=step",
                   "--checkpoint.drop_state=on")
        diverged = self.launch(2, "train", self.config, "--run.dir=diverged",
                               "--optimizer.kind=sgd", "--optimizer.learning_rate=1e30")
        self.assertEqual(diverged.code, harness.DIVERGED, diverged.text)


if __name__ == "__main__":
    harness.main()
