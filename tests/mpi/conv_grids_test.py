"""Convolutional networks: the same bits on every grid, running statistics among them."""

import numpy as np

import harness

GRIDS = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2),
         (2, 2, 2)]

# What must not change a bit, besides the grid.
SCHEDULE = [f"--parallel.schedule={kind}" for kind in ("1f1b", "gpipe", "zb-h1", "zb-h2")]
READERS = ["--data.reader_threads=1", "--data.reader_threads=3"]
THREADS = ["--run.threads=1", "--run.threads=1", "--run.threads=2"]
BUCKET = ["--parallel.bucket=4", "--parallel.bucket=0.01"]
REPEAT = ["--train.repeat_every=0", "--train.repeat_every=2"]

SETTINGS = {
    "data": {"train": "images/train.h5", "test": "images/test.h5", "normalise": "standard",
             "flip": "on", "crop_padding": 2, "cutout": 3},
    "batch": {"global": 16, "micro": 2}, "numerics": {"lanes": 4, "shards": 2},
    "optimizer": {"kind": "adam", "learning_rate": 0.001, "clip_norm": 5},
    "train": {"steps": 3, "evaluate_every": 2}}

# The network of the preset cifar10-cnn, cut by channel and by feature, with dropout.
CUT = ["conv 32 3 relu padding=same parallel=column", "conv 32 3 relu padding=same parallel=row",
       "max_pool 2", "conv 64 3 relu padding=same parallel=column", "batch_norm",
       "conv 64 3 relu padding=same parallel=row", "max_pool 2", "dropout 0.2", "flatten",
       "dense 512 relu parallel=column", "dense 10 parallel=row"]

# Channels stay split through pools, norms and flatten.
STAYS_CUT = ["conv 8 5 stride=2 parallel=column", "group_norm 4", "batch_norm relu", "dropout 0.1",
             "avg_pool 3 stride=2 padding=1", "zero_pad 1", "flatten", "dense 12 parallel=row relu",
             "dense 10"]


def varied(grids):
    """Each grid with settings of the kinds above, which change at different paces."""
    return [(grid, [SCHEDULE[i % 4], READERS[i // 2 % 2], THREADS[i % 3], BUCKET[i // 3 % 2], REPEAT[min(i, 1)]])
            for i, grid in enumerate(grids)]


class Convolutions(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write_cifar(cls.directory / "batch.bin", 72)
        test = cls()
        test.import_data("--format=cifar10", "--files=batch.bin", "--split=64,8", "--output=images")

    @staticmethod
    def write_cifar(path, samples):
        """Images whose class shows in their colours, in CIFAR-10's records."""
        chance = np.random.default_rng(5)
        records = []
        for number in range(samples):
            label = number % 10
            planes = chance.integers(0, 128, (3, 32, 32)) + 12 * np.array(
                [label, 9 - label, label % 3 * 3]).reshape(3, 1, 1)
            records.append(bytes([label]) + planes.astype(np.uint8).tobytes())
        path.write_bytes(b"".join(records))

    def config_of(self, name, layers=(), preset=None):
        model = {"preset": preset} if preset else {}
        return self.write_config(f"{name}.ini", harness.config_text(layers, model=model, **SETTINGS))

    def test_cifar10_cnn(self):
        config = self.config_of("cnn", CUT)
        reference = self.same_on(varied(GRIDS), name="cnn", config=config)
        losses = [float(row["loss"]) for row in self.records(reference, "train")]
        self.assertEqual(len(losses), 3)
        saved = harness.tensors(harness.checkpoints(self.directory / reference)[-1])
        self.assertEqual(saved["weights/conv1.weight"].shape, (32, 3, 3, 3))
        self.assertEqual(saved["weights/batch_norm1.running_var"].shape, (64,))
        self.assertFalse((saved["weights/batch_norm1.running_mean"] == 0).all())
        self.assertFalse([name for name in saved
                          if name.startswith("optimizer/") and "running" in name])

    def test_resnet20(self):
        config = self.config_of("resnet", preset="resnet20")
        # The second split sends what is added, what a shortcut reads, and both bodies' outputs.
        inside = [((1, 2, 1), ["--parallel.split=conv1,residual4.conv2"]),
                  ((1, 4, 1), ["--parallel.split=conv1,residual1.batch_norm1,"
                               "residual4.shortcut.zero_channels1,residual4.end"]),
                  # The second stage's chunks hand on a gradient that none of their layers reads.
                  ((1, 2, 1), ["--parallel.schedule=zb-v", "--parallel.split=conv1,residual1.batch_norm1,"
                               "residual1.conv2,residual1.batch_norm2"])]
        self.same_on(varied(GRIDS) + inside, name="resnet", config=config)

    def test_channels_that_stay_split(self):
        config = self.config_of("stays", STAYS_CUT)
        for dtype in ("float32", "float64", "bfloat16"):
            self.same_on(varied([(1, 1, 1), (1, 1, 2), (2, 3, 1), (2, 2, 2)]),
                         f"--numerics.dtype={dtype}", name=f"stays-{dtype}", config=config)

    def test_batch_statistics_of_all_lanes(self):
        sync = "--model.sync_batch_norm=yes"
        config = self.config_of("joined", preset="resnet20")
        grids = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 3, 1), (2, 2, 1), (2, 2, 2)]
        reference = self.same_on(varied(grids), sync, name="joined", config=config)
        stays = self.config_of("joined-stays", STAYS_CUT)
        for dtype in ("float64", "bfloat16"):
            self.same_on(varied([(1, 1, 1), (4, 1, 1), (2, 3, 1), (2, 2, 2)]), sync,
                         f"--numerics.dtype={dtype}", name=f"joined-{dtype}", config=stays)
        self.train(config, (2, 1, 1), "apart")
        joined, apart = ([row["loss"] for row in self.records(run, "train")]
                         for run in (reference, "apart"))
        self.assertNotEqual(joined, apart)
        # What one microbatch of all samples gives, but for rounding.
        exact = ["--numerics.dtype=float64", "--optimizer.kind=sgd"]
        self.train(config, (1, 1, 1), "one-microbatch", *exact, "--numerics.lanes=1",
                   "--batch.micro=16")
        self.train(config, (2, 1, 1), "four-lanes", *exact, sync, "--batch.micro=4")
        for one, other in zip(self.records("one-microbatch", "train"),
                              self.records("four-lanes", "train")):
            self.assertAlmostEqual(float(one["loss"]), float(other["loss"]), places=9)
            self.assertAlmostEqual(float(one["grad_norm"]), float(other["grad_norm"]), places=7)
        whole, lanes = (harness.tensors(harness.checkpoints(self.directory / run)[-1])
                        for run in ("one-microbatch", "four-lanes"))
        for name, values in whole.items():
            if "running" in name:
                np.testing.assert_allclose(values, lanes[name], rtol=1e-7, atol=1e-9)

    def test_lanes_that_are_no_power_of_two(self):
        config = self.config_of("six", preset="resnet20")
        chunks = [((1, 3, 1), ["--parallel.schedule=interleaved"]), ((2, 2, 1), ["--parallel.schedule=zb-v", *REPEAT[1:]])]
        self.same_on([*varied([(1, 1, 1), (2, 1, 1), (3, 1, 1), (3, 2, 1)]), *chunks], "--model.sync_batch_norm=yes",
                     "--numerics.lanes=6", "--batch.global=24", "--train.steps=2", name="six",
                     config=config)

    def test_layers_with_and_without_the_statistics_of_all_lanes(self):
        def config(first, second):
            return self.config_of(f"{first}-{second}", [
                "conv 8 3 stride=2", "residual", "conv 8 3 padding=same",
                f"batch_norm sync={first} relu", "conv 8 3 padding=same",
                f"batch_norm sync={second}", "end relu", "max_pool 5", "flatten", "dense 10"])
        # Cut between the norms, where what the block's end adds crosses too.
        inside = "--parallel.split=conv1,residual1.conv2"
        reference = self.same_on([((1, 1, 1), []), ((4, 1, 1), []), ((1, 2, 1), [inside]),
                                  ((2, 2, 1), [inside, "--parallel.schedule=gpipe"])],
                                 name="yes-no", config=config("yes", "no"))
        losses = [self.records(reference, "train")[0]["loss"]]
        for first, second in [("yes", "yes"), ("no", "no"), ("no", "yes")]:
            run = f"{first}-{second}"
            self.train(config(first, second), (1, 1, 1), run, "--train.steps=1")
            losses.append(self.records(run, "train")[0]["loss"])
        self.assertEqual(len(set(losses)), 4, losses)

    def test_batch_statistics_of_all_lanes_in_fast_mode(self):
        config = self.config_of("fast", preset="resnet20")
        sync = ["--model.sync_batch_norm=yes", "--numerics.lanes=2", "--numerics.shards=1"]
        self.train(config, (2, 1, 1), "invariant", *sync)
        self.train(config, (2, 1, 1), "fast", *sync, "--numerics.mode=fast")
        invariant, fast = ([float(row["loss"]) for row in self.records(run, "train")]
                           for run in ("invariant", "fast"))
        # A sum over two ranks is the same in any order.
        np.testing.assert_allclose(fast, invariant, rtol=1e-6)

    def test_resume_on_another_grid(self):
        config = self.config_of("again", preset="resnet20")
        for sync in ("no", "yes"):
            def train(grid, run, *settings):
                self.train(config, grid, f"{run}-{sync}", f"--model.sync_batch_norm={sync}", *settings)
            train((1, 1, 1), "whole")
            train((2, 1, 2), "parts", "--train.steps=2")
            train((4, 1, 1) if sync == "yes" else (1, 3, 1), "parts", "--run.resume=auto")
            whole, parts = (
                harness.tensors(harness.checkpoints(self.directory / f"{run}-{sync}")[-1])
                for run in ("whole", "parts"))
            with self.subTest(sync=sync):
                self.assertEqual(harness.differing_tensors(whole, parts), [])

    def test_augmentation_changes_what_is_learned(self):
        config = self.config_of("plain", preset="cifar10-cnn")
        self.train(config, (1, 1, 1), "augmented")
        self.train(config, (1, 1, 1), "plain", "--data.flip=off", "--data.crop_padding=0",
                   "--data.cutout=0")
        losses = [[row["loss"] for row in self.records(run, "train")]
                  for run in ("augmented", "plain")]
        self.assertNotEqual(*losses)


if __name__ == "__main__":
    harness.main()
