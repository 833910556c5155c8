"""Language models and layers cut by feature: the same bits on every grid of three numbers."""

import math

import harness
import language
from language import LAYERS, LLAMA

MOST_RANKS = 8
EVERY_GRID = [(data, pipeline, tensor)
              for data in (1, 2, 4) for pipeline in range(1, LAYERS + 1) for tensor in (1, 2, 4)
              if data * pipeline * tensor <= MOST_RANKS]

# What must not change a bit, besides the grid.
SEQUENCE = ["--parallel.sequence=off", "--parallel.sequence=on"]
RECOMPUTE = ["--train.recompute=none", "--train.recompute=selective", "--train.recompute=full"]
SCHEDULE = [f"--parallel.schedule={kind}" for kind in ("1f1b", "gpipe", "zb-h1", "zb-h2")]
THREADS = ["--run.threads=1", "--run.threads=1", "--run.threads=2"]
BUCKET = ["--parallel.bucket=4", "--parallel.bucket=4", "--parallel.bucket=0.001",
          "--parallel.bucket=0.02", "--parallel.bucket=4"]
REPEAT = ["--train.repeat_every=0", "--train.repeat_every=2"]


def varied(grids):
    """Each grid with settings of the kinds above, which change at different paces."""
    return [(grid, [SEQUENCE[i % 2], RECOMPUTE[i % 3], SCHEDULE[i // 2 % 4], THREADS[i // 3 % 3],
                    BUCKET[i % 5], REPEAT[min(i, 1)]])
            for i, grid in enumerate(grids)]


class Transformers(language.LanguageTest):
    def test_every_grid(self):
        self.assertEqual(len(EVERY_GRID), 23)
        reference = self.same_on(varied(EVERY_GRID), name="every")
        trained = self.records(reference, "train")
        losses = [float(record["loss"]) for record in trained]
        norms = [float(record["grad_norm"]) for record in trained]
        self.assertEqual(len(losses), 3)
        self.assertAlmostEqual(losses[0], math.log(26), delta=0.1)
        self.assertLess(losses[-1], losses[0] - 0.1)
        self.assertLess(min(norms), 1.3)
        self.assertGreater(max(norms), 1.3, "clipping had nothing to do")
        self.assertEqual([record["step"] for record in self.records(reference, "evaluate")],
                         ["2", "3"])
        saved = harness.tensors(harness.checkpoints(self.directory / reference)[-1])
        self.assertEqual(saved["weights/embedding.tokens.weight"].shape, (26, 32))
        self.assertEqual(sorted({name.split("/")[0] for name in saved}),
                         ["optimizer", "text", "weights"])  # text: the tokenizer

    def test_every_recompute_with_and_without_sequence_parallel(self):
        grids = [(1, 1, 1), (1, 1, 4), (1, 2, 2), (1, 1, 4), (2, 1, 2), (1, 3, 2)]
        self.same_on([(grid, [sequence, recompute])
                      for grid, (sequence, recompute) in zip(
                          grids, ((s, r) for s in SEQUENCE for r in RECOMPUTE))],
                     "--numerics.dtype=bfloat16", "--train.steps=2", "--data.test=",
                     name="recompute")

    def test_bfloat16(self):
        grids = [(1, 1, 1), (1, 1, 2), (1, 2, 4), (2, 2, 2), (4, 1, 1), (1, 7, 1)]
        reference = self.same_on(varied(grids), "--numerics.dtype=bfloat16", "--train.steps=2",
                                 name="bfloat16")
        saved = harness.tensors(harness.checkpoints(self.directory / reference)[-1])
        self.assertEqual({tensor.dtype.name for name, tensor in saved.items()
                          if not name.startswith("text/")}, {"float32"})

    def test_nodes(self):
        """Gradients are added inside nodes first, here of 1, 2 and 4 replicas; weights are gathered likewise."""
        runs = [((1, 1, 1), 0), ((2, 1, 1), 1), ((4, 1, 1), 2), ((8, 1, 1), 2), ((8, 1, 1), 4), ((4, 1, 2), 4),
                ((4, 2, 1), 2)]
        runs = [(grid, [f"--parallel.node_ranks={ranks}", BUCKET[i % 5], REPEAT[i % 2]])
                for i, (grid, ranks) in enumerate(runs)]
        for dtype in ("float32", "bfloat16"):
            self.same_on(runs, f"--numerics.dtype={dtype}", "--numerics.lanes=8", "--train.steps=2",
                         name=f"nodes-{dtype}")
        for name, nodes in (("0", None), ("3", "2 replicas each"), ("4", "4 replicas each")):
            log = (self.directory / f"nodes-float32-{name}" / "log.txt").read_text()
            self.assertEqual("nodes: " in log, nodes is not None)
            self.assertIn(nodes or "grid: ", log)
        refused = self.alone("train", self.config, "--dry-run", "--parallel.data=4", "--parallel.node_ranks=3")
        self.assertEqual(refused.code, harness.USAGE, refused.text)
        self.assertIn("give 1 times a number that divides 4", refused.text)

    def test_a_schedule_file(self):
        # Made for 4 stages of unlike times, and ZB-H2 with its messages in the file.
        for arguments in (["make", "--memory=5", "--chunks=1", "--forward=1,2,1,1", "--output=made.csv"],
                          ["convert", "zb-h2", "--messages=on", "--output=messages.csv"]):
            written = self.alone("schedule", *arguments)
            self.assertEqual(written.code, harness.DONE, written.text)
        files = [f"--parallel.schedule=file:{name}.csv" for name in ("made", "messages")]
        runs = [((1, 4, 1), [RECOMPUTE[i % 3], schedule]) for i, schedule in enumerate([*files, *SCHEDULE])]
        self.same_on([((1, 1, 1), []), *runs], "--numerics.lanes=2", "--train.steps=2", name="file")
        # Another number of stages continues it under another schedule; evaluation needs no file.
        for name in ("made.csv", "messages.csv"):
            (self.directory / name).unlink()
        evaluated = self.alone("evaluate", "file-1")
        self.assertEqual(evaluated.code, harness.DONE, evaluated.text)
        for run, grid in (("file-0", (1, 1, 1)), ("file-1", (1, 2, 1))):
            self.train(self.config, grid, run, "--numerics.lanes=2", "--train.steps=3", "--run.resume=must")
        self.assert_same_run("file-0", "file-1")

    def test_chunks(self):
        """Several chunks a rank; the table of token vectors is tied to the head."""
        for arguments in (["make", "--memory=6", "--chunks=2", "--stages=3", "--output=v.csv"],
                          ["convert", "interleaved", "--chunks=3", "--stages=2", "--messages=on", "--output=loop.csv"]):
            written = self.alone("schedule", *arguments, "--microbatches=8")
            self.assertEqual(written.code, harness.DONE, written.text)
        interleaved = "--parallel.schedule=interleaved"
        runs = [((1, 1, 1), [interleaved]),
                ((1, 2, 1), [interleaved, REPEAT[1]]),
                ((1, 2, 1), [interleaved, "--parallel.chunks=3", BUCKET[2]]),
                ((1, 3, 1), [interleaved, RECOMPUTE[1]]),
                ((2, 2, 2), [interleaved, "--parallel.chunks=3", REPEAT[1], SEQUENCE[1]]),
                ((1, 2, 1), ["--parallel.schedule=zb-v", RECOMPUTE[2]]),
                ((1, 3, 1), ["--parallel.schedule=zb-v", BUCKET[3]]),
                ((2, 3, 1), ["--parallel.schedule=zb-v", REPEAT[1]]),
                ((2, 2, 2), ["--parallel.schedule=zb-v", SEQUENCE[1], BUCKET[2]]),
                ((1, 3, 1), ["--parallel.schedule=file:v.csv", THREADS[2]]),
                ((1, 2, 1), ["--parallel.schedule=file:loop.csv"]),
                ((1, 3, 1), ["--parallel.schedule=auto"]),
                ((2, 2, 1), ["--parallel.schedule=auto", "--parallel.chunks=2", "--parallel.activations=3"]),
                ((1, 3, 1), ["--parallel.schedule=auto", RECOMPUTE[2]]),
                ((1, 2, 1), ["--parallel.schedule=auto", "--parallel.backward=fused"]),
                ((1, 2, 1), ["--parallel.backward=fused"]),
                ((1, 1, 1), ["--parallel.backward=split"])]
        reference = self.same_on(runs, "--numerics.lanes=2", name="chunks")
        # 9 layers: two chunks on each of 4 stages.
        written = self.alone("schedule", "make", "--memory=5", "--chunks=2", "--forward=1,2,1,1", "--output=four.csv")
        self.assertEqual(written.code, harness.DONE, written.text)
        schedules = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "auto", "file:four.csv"]
        self.same_on([((1, 1, 1), [])] + [((1, 4, 1), [f"--parallel.schedule={schedule}", RECOMPUTE[i % 3]])
                                          for i, schedule in enumerate(schedules)],
                     "--numerics.lanes=2", "--model.blocks=3", "--train.steps=2", name="four")
        evaluated = self.alone("evaluate", "chunks-12")  # of auto, with a limit
        self.assertEqual(evaluated.code, harness.DONE, evaluated.text)
        saved = harness.tensors(harness.checkpoints(self.directory / reference)[-1])
        self.assertIn("weights/embedding.tokens.weight", saved)
        self.assertFalse([name for name in saved if "head" in name])
        # Other chunks continue the run.
        for run, grid, settings in (("chunks-0", (1, 1, 1), []), ("chunks-7", (1, 2, 1), [interleaved]),
                                    ("chunks-4", (1, 3, 1), ["--parallel.schedule=zb-v"])):
            self.train(self.config, grid, run, *settings, "--numerics.lanes=2", "--train.steps=5", "--run.resume=must")
        self.assert_same_run("chunks-0", "chunks-7")
        self.assert_same_run("chunks-0", "chunks-4")

    def test_float64(self):
        self.same_on(varied([(1, 1, 1), (1, 2, 2)]), "--numerics.dtype=float64",
                     "--train.steps=2", name="float64")

    def test_loss_pieces(self):
        """Logits in pieces of rows: the same bits for any shards, replicas and stages."""
        grids = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (1, 1, 4), (1, 3, 1)]
        for name, model in (("tied", []), ("untied", LLAMA)):
            for dtype in ("float32", "bfloat16"):
                reference = self.same_on(varied(grids) + [((1, 2, 1), ["--parallel.schedule=zb-v"])], *model,
                                         f"--numerics.dtype={dtype}", "--numerics.loss_pieces=4", "--train.steps=2",
                                         name=f"{name}-{dtype}-pieces")
                whole = f"{name}-{dtype}-whole"
                self.train(self.config, (1, 1, 1), whole, *model, f"--numerics.dtype={dtype}", "--train.steps=2")
                for kind in ("train", "evaluate"):
                    self.assertTrue(self.records(whole, kind))
                    for left, right in zip(self.records(reference, kind), self.records(whole, kind), strict=True):
                        self.assertAlmostEqual(float(left["loss"]), float(right["loss"]),
                                               delta=1e-4 if dtype == "float32" else 1e-2)
        fast = ["--numerics.mode=fast", "--numerics.lanes=0", "--numerics.shards=0", "--train.steps=1", "--model.dropout=0"]
        for pieces in (1, 32):
            self.train(self.config, (2, 1, 2), f"fast-{pieces}", *fast, f"--numerics.loss_pieces={pieces}")
        losses = [float(self.records(f"fast-{pieces}", "train")[0]["loss"]) for pieces in (1, 32)]
        self.assertAlmostEqual(*losses, delta=1e-5)

    def test_llama(self):
        for dtype, grids in [("float32", [(1, 1, 1), (1, 1, 4), (2, 2, 2)]),
                             ("bfloat16", [(1, 1, 1), (1, 2, 4), (2, 1, 2), (1, 7, 1)])]:
            reference = self.same_on(varied(grids), *LLAMA, f"--numerics.dtype={dtype}",
                                     "--model.rotary_scaling=llama3:8:1:4:16", "--train.steps=2", name=f"llama-{dtype}")
            saved = harness.tensors(harness.checkpoints(self.directory / reference)[-1])
            names = [name for name in saved if name.startswith("weights/")]
            self.assertFalse([name for name in names if name.endswith("bias")], names)
            self.assertEqual(saved["weights/head.weight"].shape, (26, 32))
            # 8 query heads, 4 keys and 4 values of 4 elements each.
            self.assertEqual(saved["weights/blocks.0.attention.qkv.weight"].shape, (64, 32))

    def test_layer_lines(self):
        # Layers between sublayers see the rows that their placement leaves them.
        lines = ["embedding 24 positions=16", "dropout 0.2", "attention 4 kv_heads=4 rotary=10000",
                 "gelu", "dropout 0.1", "mlp 40 swiglu norm=rms_norm bias=no", "layer_norm", "head"]
        config = self.write_config("lines.ini", language.config(lines))
        on = "--parallel.sequence=on"
        self.same_on([((1, 1, 1), []), ((1, 1, 2), [on]), ((1, 2, 4), [on, "--run.threads=2"]),
                      ((2, 1, 2), [on, "--train.recompute=full"]),
                      ((1, 8, 1), []), ((1, 4, 2), ["--parallel.schedule=gpipe", on])],
                     "--train.steps=2", name="lines", config=config)

    def test_other_shards_and_lanes(self):
        self.same_on([((1, 1, 1), []), ((1, 1, 2), ["--parallel.sequence=on"]), ((3, 1, 2), []),
                      ((1, 3, 2), ["--parallel.sequence=on"])],
                     "--numerics.shards=2", "--numerics.lanes=3", "--batch.global=12",
                     "--batch.micro=1", "--train.steps=2", "--model.vocabulary=41", name="shards")
        saved = harness.tensors(harness.checkpoints(self.directory / "shards-3")[-1])
        self.assertEqual(saved["weights/embedding.tokens.weight"].shape, (41, 32))

    def test_row_pieces(self):
        """Messages of pieces of rows overlap products; the pieces fix the numbers, and the grid does not."""
        for dtype, model in (("float32", []), ("bfloat16", LLAMA)):
            self.same_on(varied([(1, 1, 1), (1, 1, 2), (1, 2, 4), (2, 1, 2), (1, 1, 4), (2, 2, 2)]), *model,
                         f"--numerics.dtype={dtype}", "--numerics.row_pieces=2", "--train.steps=2",
                         name=f"pieces-{dtype}")
        self.same_on(varied([(1, 1, 1), (1, 1, 2), (1, 1, 4), (2, 1, 4)]), "--numerics.dtype=bfloat16",
                     "--numerics.shard_sums=bfloat16", "--numerics.row_pieces=2", "--train.steps=2", name="rounded")
        self.train(self.config, (1, 1, 1), "exact", "--numerics.dtype=bfloat16", "--numerics.row_pieces=2",
                   "--train.steps=2")
        for left, right in zip(self.records("rounded-0", "train"), self.records("exact", "train"), strict=True):
            self.assertNotEqual(left["grad_norm"], right["grad_norm"])
            self.assertAlmostEqual(float(left["loss"]), float(right["loss"]), delta=1e-2)
        refused = self.alone("train", self.config, "--dry-run", "--numerics.shard_sums=bfloat16")
        self.assertEqual(refused.code, harness.USAGE, refused.text)
        self.assertIn("numerics.dtype is float32", refused.text)
        refused = self.alone("train", self.config, "--dry-run", "--numerics.row_pieces=5")
        self.assertEqual(refused.code, harness.USAGE, refused.text)
        self.assertIn("not divisible by 5 pieces of numerics.shards = 4 shards", refused.text)

    def test_shards_fix_the_numbers(self):
        for shards in (1, 4):
            self.train(self.config, (1, 1, 1), f"fix-{shards}", f"--numerics.shards={shards}",
                       "--model.dropout=0")
        one, four = (self.records(f"fix-{shards}", "train") for shards in (1, 4))
        self.assertNotEqual([record["grad_norm"] for record in one],
                            [record["grad_norm"] for record in four])
        for left, right in zip(one, four):
            self.assertAlmostEqual(float(left["loss"]), float(right["loss"]), delta=1e-4)


DENSE = harness.config_text(
    ["flatten", "dense 32 relu parallel=column", "dropout 0.1", "dense 16 parallel=row",
     "layer_norm", "dense 24 parallel=column bias=no", "gelu", "dense 16 parallel=row", "dense 5"],
    batch={"global": 24, "micro": 6}, numerics={"lanes": 4, "shards": 4},
    optimizer={"kind": "adam", "learning_rate": 0.01, "clip_norm": 0.5},
    train={"steps": 4, "evaluate_every": 2})


class FeatureSplitLayers(language.LanguageTest):
    GRIDS = [(1, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (1, 1, 4)]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.import_classes("classes", (3, 4), 5, train=100, test=30)
        cls.dense = test.write_config("dense.ini", DENSE)

    def test_columns_and_rows(self):
        for dtype in ("float32", "bfloat16"):
            reference = self.same_on(
                [(grid, [SCHEDULE[i % 4], THREADS[i % 3]]) for i, grid in enumerate(self.GRIDS)],
                f"--numerics.dtype={dtype}", name=f"dense-{dtype}", config=self.dense)
            losses = [float(record["loss"]) for record in self.records(reference, "train")]
            self.assertLess(losses[-1], losses[0])

    def test_stages_that_end_between_column_and_row(self):
        split = "--parallel.split=0,2,7"
        self.same_on([((1, 1, 1), []), ((1, 3, 2), [split]),
                      ((1, 3, 2), [split, "--parallel.schedule=gpipe", "--run.threads=2"]),
                      ((1, 2, 4), ["--parallel.split=0,3"])],
                     name="between", config=self.dense)


if __name__ == "__main__":
    harness.main()
