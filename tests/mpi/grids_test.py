"""The same numbers, bit for bit, on every grid."""

import numpy as np

import harness

NETWORK = harness.config_text(
    ["flatten", "dense 120 relu", "layer_norm", "dropout 0.2", "dense 20", "gelu", "dropout 0.1",
     "dense 16 bias=no", "tanh", "dense 5"],
    batch={"global": 48, "micro": 3}, numerics={"lanes": 4},
    optimizer={"kind": "adam", "learning_rate": 0.01, "clip_norm": 0.5},
    schedule={"kind": "cosine", "warmup_steps": 3, "decay_steps": 12},
    train={"steps": 12, "evaluate_every": 6})

GRIDS = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 2), (4, 2), (2, 3)]


class Grids(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (3, 4), 5, train=200, test=50)

    def test_every_grid_under_every_schedule(self):
        runs = []
        for number, grid in enumerate(GRIDS):
            threads = 1 + number % 2
            runs.append((grid, ["--parallel.schedule=gpipe", f"--run.threads={threads}"]))
            runs.append((grid, ["--parallel.schedule=1f1b", f"--run.threads={3 - threads}"]))
        reference = self.same_on(runs, name="all")
        rows = harness.metrics(self.directory / reference)
        losses = [float(dict(row)["loss"]) for row in rows if dict(row)["kind"] == "train"]
        norms = [float(dict(row)["grad_norm"]) for row in rows if dict(row)["kind"] == "train"]
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(max(norms), 0.5, "clipping had nothing to do")
        self.assertEqual([dict(row)["step"] for row in rows if dict(row)["kind"] == "evaluate"],
                         ["6", "12"])
        saved = harness.tensors(harness.checkpoints(self.directory / reference)[-1])
        self.assertEqual(len(saved), 3 * 9, sorted(saved))

    def test_many_small_buckets(self):
        tiny = ["--parallel.bucket=0.0001"]
        self.same_on([((1, 1), []), ((1, 1), tiny), ((4, 1), tiny), ((2, 2), tiny),
                      ((2, 3), tiny)], name="buckets")

    def test_float64(self):
        self.same_on([((1, 1), []), ((4, 1), []), ((1, 3), ["--run.threads=2"]), ((2, 2), [])],
                     "--numerics.dtype=float64", name="float64")

    def test_lanes_that_are_no_power_of_two(self):
        self.same_on([((1, 1), []), ((2, 1), []), ((3, 1), []), ((6, 1), []), ((3, 2), [])],
                     "--numerics.lanes=6", "--batch.micro=4", name="lanes")

    def test_every_optimizer(self):
        for number, optimizer in enumerate([
                ["--optimizer.kind=sgd"],
                ["--optimizer.kind=sgd", "--optimizer.momentum=0.9", "--optimizer.nesterov=on",
                 "--optimizer.weight_decay=0.01"],
                ["--optimizer.kind=adamw", "--optimizer.weight_decay=0.1",
                 "--optimizer.decay=matrices"],
                ["--optimizer.kind=adagrad"]]):
            self.same_on([((1, 1), []), ((2, 2), [])], "--train.steps=6", *optimizer,
                         name=f"optimizer{number}")

    def test_first_stage_that_only_flattens(self):
        self.same_on([((1, 1), []), ((1, 2), ["--parallel.split=0,1"]),
                      ((2, 2), ["--parallel.split=flatten1,dense1"])], name="flatten")

    def test_middle_stage_that_only_flattens(self):
        # Messages of 20 KiB: what this stage sends is the memory that it received.
        self.import_classes("images", (40, 30), 5, train=77, test=33)
        layers = ["dense 32", "gelu", "flatten", "dense 5"]
        split = "--parallel.split=0,2,3"
        self.same_on([((1, 1), []), ((1, 3), [split, "--parallel.schedule=gpipe"]),
                      ((1, 3), [split, "--parallel.schedule=1f1b"]),
                      ((2, 3), [split, "--parallel.schedule=zb-h1"]),
                      ((1, 3), [split, "--parallel.schedule=zb-h2"])],
                     "--data.train=images/train.h5", "--data.test=images/test.h5",
                     "--batch.global=128", "--batch.micro=4", "--train.steps=8",
                     *(f"--model.layer={layer}" for layer in layers), name="middle")

    def test_stages_that_end_in_a_view_and_recompute(self):
        self.import_classes("squares", (16, 16), 5, train=77, test=33)
        layers = ["dense 64 relu", "dense 64", "flatten", "dense 32 relu", "dense 5"]
        split = ["--parallel.split=0,3", "--train.recompute=selective"]
        self.same_on([((1, 1), []), ((1, 2), [*split, "--parallel.schedule=gpipe"]),
                      ((1, 2), [*split, "--parallel.schedule=1f1b"]), ((2, 2), split)],
                     "--data.train=squares/train.h5", "--data.test=squares/test.h5",
                     "--batch.global=64", "--batch.micro=4", "--train.steps=6",
                     *(f"--model.layer={layer}" for layer in layers), name="views")

    def test_a_skip_that_passes_through_a_chunk(self):
        # The second chunk of rank 1 does not read what the block's end adds. Messages of 9.6 KB; an evaluation whose
        # stages run ahead of each other would deadlock on the file's chunks, with memory for one microbatch.
        layers = ["flatten", "dense 600 relu", "residual", "dense 600", "dense 600", "dense 600", "end", "dense 5"]
        lines = [",".join(cell for m in range(16) for cell in [f"{stage}F{m}" for stage in stages]
                          + [f"{stage}B{m}" for stage in reversed(stages)]) for stages in [(0, 3), (1, 2, 4)]]
        (self.directory / "turns.csv").write_text("\n".join(lines) + "\n")
        runs = [((1, 2), ["--parallel.split=0,2,3,5", f"--parallel.schedule={kind}"]) for kind in ("zb-v", "interleaved")]
        runs.append(((1, 2), ["--parallel.split=0,2,3,4,5", "--parallel.schedule=file:turns.csv"]))
        self.same_on([((1, 1), []), *runs], "--batch.global=64", "--batch.micro=4", "--numerics.lanes=2",
                     "--train.steps=3", "--train.evaluate_every=1", *(f"--model.layer={layer}" for layer in layers),
                     name="skip")

    def test_uneven_split(self):
        self.same_on([((1, 1), []), ((2, 3), ["--parallel.split=0,8,9"])], name="uneven")


class Regression(harness.StrataTest):
    def test_mean_squared_error(self):
        random = np.random.default_rng(3)
        inputs = random.normal(size=(120, 6))
        values = inputs @ random.normal(size=6) + 0.5
        lines = ["a,b,c,d,e,f,value"]
        lines += [",".join(f"{x:.6f}" for x in (*row, value))
                  for row, value in zip(inputs, values)]
        (self.directory / "values.csv").write_text("\n".join(lines) + "\n")
        self.import_data("--format=csv", "--files=values.csv", "--label=value", "--split=100,20",
                         "--output=values")
        config = self.write_config("regression.ini", """
[model]
layer = dense 12
layer = sigmoid
layer = dense 1
[data]
train = values/train.h5
test = values/test.h5
normalise = standard
[batch]
global = 20
micro = 5
[numerics]
lanes = 2
[optimizer]
kind = sgd
learning_rate = 0.1
momentum = 0.5
[train]
epochs = 3
evaluate_every = 5
[run]
threads = 1
""")
        for grid in [(1, 1), (2, 1), (2, 2), (1, 3)]:
            self.train(config, grid, f"run-{grid[0]}-{grid[1]}")
            self.assert_same_run("run-1-1", f"run-{grid[0]}-{grid[1]}")
        losses = [float(dict(row)["loss"]) for row in harness.metrics(self.directory / "run-1-1")
                  if dict(row)["kind"] == "evaluate"]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    harness.main()
