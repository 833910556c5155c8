"""The same configs with run.device=cuda: the same bits on every grid of ranks that share GPUs, numbers near the CPU's,
and checkpoints that go from one to the other. Skipped where the executable finds no GPU."""

import json
import os
import re
import sys
import unittest.mock

import numpy as np

import harness
import language

CUDA = "--run.device=cuda"
GRIDS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]
# Largest difference of losses between devices over these few steps, relative.
NEAR = {"float32": 2e-4, "float64": 1e-9, "bfloat16": 3e-2}


def classes(*layers):
    """A config of these layers on the data set `classes`."""
    return harness.config_text(
        layers, batch={"global": 16, "micro": 2}, numerics={"lanes": 4, "shards": 2},
        optimizer={"kind": "adam", "learning_rate": 0.001, "clip_norm": 5},
        train={"steps": 3, "evaluate_every": 2}, run={"device": "cuda"})


IMAGES = ["conv 8 3 relu padding=same parallel=column", "conv 8 3 padding=same parallel=row",
          "batch_norm relu", "max_pool 2", "residual", "conv 8 3 padding=same", "group_norm 4",
          "end relu", "dropout 0.2", "global_avg_pool", "dense 16 relu parallel=column",
          "dense 10 parallel=row"]


def refusal():
    """What a run says that finds no GPU here; nothing where it finds one."""
    case = harness.StrataTest()
    case.setUpClass()
    try:
        case.import_classes("classes", (4,), 10, 32, 16)
        config = case.write_config("probe.ini", classes("dense 10"))
        finished = case.alone("train", config, "--train.steps=1", "--run.dir=probe")
        return finished.text if "this process can use 0" in finished.text else None
    finally:
        case.doClassCleanups()


class Near(harness.StrataTest):
    def graphs_of(self, run):
        """The pieces of a step that a run's end says were CUDA graphs."""
        log = (self.directory / run / "log.txt").read_text()
        found = re.search(r"CUDA graphs: up to (\d+) per rank", log)
        self.assertIsNotNone(found, log)
        return int(found.group(1))

    def assert_graphs(self, config, settings, name):
        """Pieces are kept as graphs, and no more of them after more steps."""
        kept = []
        for steps in (5, 7):
            run = f"{name}-{steps}-steps"
            self.train(config, (1, 1, 1), run, *settings, "--run.cuda_graphs=on", f"--train.steps={steps}")
            kept.append(self.graphs_of(run))
        self.assertGreater(kept[0], 0)
        self.assertEqual(kept[0], kept[1])

    def assert_near(self, left, right, dtype="float32"):
        """Losses of two runs differ by no more than rounding."""
        for kind in ("train", "evaluate"):
            rows = [self.records(run, kind) for run in (left, right)]
            self.assertEqual(len(rows[0]), len(rows[1]))
            self.assertGreater(len(rows[0]), 0)
            for a, b in zip(*rows):
                a, b = float(a["loss"]), float(b["loss"])
                self.assertLessEqual(abs(a - b), NEAR[dtype] * max(abs(a), 1e-3), f"{left} {right}")


class Images(Near):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(classes(), (3, 8, 8), 10, train=64, test=24)
        cls.network = [f"--model.layer={line}" for line in IMAGES]

    def test_the_same_bits_on_every_grid(self):
        reference = self.same_on([(grid, []) for grid in GRIDS], *self.network, name="images")
        self.train(self.config, (1, 1, 1), "images-cpu", *self.network, "--run.device=cpu")
        self.assert_near(reference, "images-cpu")

    def test_statistics_of_all_lanes(self):
        sync = [*self.network, "--model.sync_batch_norm=on"]
        repeat = ["--train.repeat_every=2"]
        self.same_on([((1, 1, 1), []), ((2, 1, 1), repeat), ((2, 2, 1), repeat)], *sync, name="sync")

    def test_islands(self):
        """Weights of islands lie in host memory while another one trains."""
        local = [*self.network, "--parallel.sync=local", "--parallel.islands=2", "--local.steps=2",
                 "--train.steps=4", "--local.fragments=2", "--local.delay=0", "--local.exchange=int8"]
        reference = self.same_on([(grid, []) for grid in GRIDS[:2] + [(4, 2, 1)]], *local, name="islands")
        self.train(self.config, (2, 1, 1), "islands-cpu", *local, "--run.device=cpu")
        self.assert_near(reference, "islands-cpu")
        self.same_on([(grid, []) for grid in GRIDS[:2]], *local, "--numerics.dtype=bfloat16",
                     name="islands-bfloat16")

    def test_graphs(self):
        graphs = ["--run.cuda_graphs=on", "--train.repeat_every=4"]
        self.same_on([((1, 1, 1), [])] + [(grid, graphs) for grid in GRIDS if grid[2] == 1],
                     *self.network, "--train.steps=5", name="graphs")
        self.assert_graphs(self.config, self.network, "kept")
        refused = self.launch(2, "train", self.config, "--run.dir=split", *self.network, *graphs,
                              "--parallel.tensor=2")
        self.assert_refused(refused, harness.USAGE, "run.cuda_graphs", "parallel.tensor is 2")

    def test_optimizers(self):
        for number, settings in enumerate([["--optimizer.kind=sgd", "--optimizer.momentum=0.9"],
                                           ["--optimizer.kind=adagrad"]]):
            self.same_on([((1, 1, 1), []), ((2, 1, 2), [])], *self.network, *settings,
                         name=f"optimizer-{number}")

    def test_classes_are_counted_as_on_the_cpu(self):
        self.train(self.config, (1, 1, 1), "counted", *self.network)
        tables = []
        for device in ("cpu", "cuda"):
            finished = self.alone("evaluate", self.config, "--run.dir=counted", *self.network,
                                  f"--run.device={device}", "--classes", expect=harness.DONE)
            tables.append(finished.text.split("\n", 1)[1])
        self.assertEqual(tables[0], tables[1])

    def test_no_gpu(self):
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="", STRATA_STANDIN_GPUS="0"):
            for ranks in (1, 2):
                finished = self.launch(ranks, "train", self.config, "--run.dir=none",
                                       *self.network)
                self.assert_refused(finished, harness.PEER, "run.device is cuda",
                                    "set run.device to cpu")
        self.assertFalse((self.directory / "none").exists())

    def test_too_little_memory(self):
        # Real GPUs are too large for this: only the stand-in's size can be set.
        if "STRATA_STANDIN" not in os.environ:
            self.skipTest("the GPU is a real one")
        large = ["--batch.global=8192", "--batch.micro=4096", "--numerics.lanes=1"]
        with unittest.mock.patch.dict(os.environ, STRATA_STANDIN_MEMORY=str(64 << 20)):
            finished = self.launch(1, "train", self.config, "--run.dir=large", *self.network, *large)
            self.assert_refused(finished, harness.PEER, "stage 0 needs", "are free",
                                "batch.micro = ", "would fit")
            self.assertFalse((self.directory / "large").exists())
            micro, rest = finished.text.split("batch.micro = ")[1].split(maxsplit=1)
            self.assertTrue(rest.startswith("would fit"), finished.text)
            self.launch(1, "train", self.config, "--run.dir=fits", *self.network, large[0], large[2],
                        f"--batch.micro={micro}", "--train.steps=1", expect=harness.DONE)

    def test_the_backward_pass_becomes_fused_where_split_does_not_fit(self):
        if "STRATA_STANDIN" not in os.environ:
            self.skipTest("the GPU is a real one")
        layers = ["conv 8 3 relu padding=same"] * 10 + ["global_avg_pool", "dense 10"]
        settings = [*(f"--model.layer={line}" for line in layers), "--parallel.pipeline=2", "--run.transport=mpi", "--batch.global=512",
                    "--batch.micro=256", "--numerics.lanes=1", "--numerics.shards=1", "--train.steps=1"]

        def run(name, memory, *more):
            environment = {"STRATA_STANDIN_MEMORY": str(memory), "STRATA_STANDIN_GPUS": "2"}
            with unittest.mock.patch.dict(os.environ, environment):
                return self.launch(2, "train", self.config, f"--run.dir={name}", *settings, *more)

        needs = {}
        for order in ("split", "fused"):
            finished = run("none", 36 << 20, f"--parallel.backward={order}")
            self.assert_refused(finished, harness.PEER, "of its GPU's memory")
            needs[order] = float(re.search(r"needs ([\d.]+) MiB", finished.text).group(1))
        self.assertLess(needs["fused"] + 1, needs["split"])
        between = int((needs["fused"] + needs["split"]) / 2 * (1 << 20))
        for name, memory in (("enough", 1 << 30), ("fused", between)):
            finished = run(name, memory)
            self.assertEqual(finished.code, harness.DONE, finished.text)
            self.assertEqual("shared gradient buffers" in finished.text, name == "fused", finished.text)
        self.assert_same_run("enough", "fused")

    def test_a_run_that_diverges(self):
        finished = self.alone("train", self.config, "--run.dir=diverged", *self.network,
                              "--optimizer.kind=sgd", "--optimizer.learning_rate=1e30")
        self.assert_refused(finished, harness.DIVERGED, "diverged")


class Language(Near, language.LanguageTest):
    def test_kernels_of_the_library(self):
        if "STRATA_STANDIN" not in os.environ:
            self.skipTest("the GPU is a real one")
        short = "STRATA_STANDIN_CUDNN_OUT_OF_MEMORY"
        other = "STRATA_STANDIN_CUDNN_UNSUPPORTED"
        for name, environment, refused in (
                ("same", {}, []),
                ("short", {short: "1"}, ["rank 1", "attention's forward pass over", "making a plan of cuDNN's failed"]),
                ("other", {other: "1"}, ["rank 0 runs attention's", "by cuDNN's kernel 2, rank 1 by own kernels", "doctor"])):
            with unittest.mock.patch.dict(os.environ, environment):
                finished = self.launch(2, "train", self.config, f"--run.dir={name}", CUDA, "--parallel.data=2",
                                       "--numerics.dtype=bfloat16", "--train.steps=1")
            if refused:
                self.assert_refused(finished, harness.PEER, *refused)
                self.assertEqual(list((self.directory / name).glob("step-*")), [])
            else:
                self.assertEqual(finished.code, harness.DONE, finished.text)
                self.assertIn("kernels: products by cuBLASLt; passes by cuDNN: 1; attention's backward pass over", finished.text)

    def test_doctor_tries_the_libraries(self):
        for variable, found in (("", ""), ("STRATA_STANDIN_CUDNN_OUT_OF_MEMORY", "making a plan of cuDNN's failed"),
                                ("STRATA_STANDIN_CUDNN_UNSUPPORTED", "by own kernels, as cuDNN does not support it")):
            with unittest.mock.patch.dict(os.environ, {variable: "1"} if variable else {}):
                finished = self.launch(2, "doctor")
            if found:
                self.assertEqual(finished.code, harness.PEER, finished.text)
                self.assertRegex(finished.text, "- rank 1 on .*attention.*" + found)
            self.assertNotRegex(finished.text, "- rank 0 on .*attention")
            self.assertEqual("attention" in finished.text, bool(found), finished.text)

    def test_the_same_bits_on_every_grid(self):
        for dtype in ("float32", "bfloat16"):
            runs = [(grid, []) for grid in GRIDS]
            runs[1][1].append("--train.recompute=full")
            runs[3][1].append("--parallel.sequence=on")
            runs[4][1].append("--parallel.schedule=gpipe")
            runs += [((1, 2, 1), [f"--parallel.schedule={schedule}"]) for schedule in ("interleaved", "zb-v")]
            runs.append(((4, 1, 1), ["--parallel.node_ranks=2"]))
            reference = self.same_on(runs, CUDA, f"--numerics.dtype={dtype}", name=f"gpt-{dtype}")
            self.train(self.config, (1, 1, 1), f"gpt-{dtype}-cpu", f"--numerics.dtype={dtype}",
                       "--run.device=cpu")
            self.assert_near(reference, f"gpt-{dtype}-cpu", dtype)

    def test_gradients_of_norms_and_biases(self):
        # Made inside the backward pass of the input, or later.
        backward = [((1, 1, 1), ["--parallel.backward=fused"]), ((1, 1, 1), ["--parallel.backward=split"]),
                    ((2, 2, 1), ["--parallel.schedule=zb-h1"])]
        for name, model in (("gpt", ["--model.width=64"]), ("llama", language.LLAMA)):
            self.same_on(backward, CUDA, *model, "--numerics.shards=1", "--numerics.dtype=bfloat16",
                         "--train.steps=2", "--data.test=", name=f"{name}-backward")

    def test_documents(self):
        text = language.text(3200)
        (self.directory / "documents.jsonl").write_text(
            "".join(json.dumps({"text": text[at:at + 1 + at % 29]}) + "\n" for at in range(0, len(text) - 29, 17)))
        self.import_data("--format=text", "--tokenizer=chars", "--text-field=text", "--files=documents.jsonl",
                         "--output=documents")
        documents = ["--data.train=documents/train.h5", "--data.test=documents/test.h5", "--data.packing=best-fit",
                     "--model.attention_mask=document", "--model.reset_positions=on", "--batch.micro=4"]
        graphs = ["--run.cuda_graphs=on", "--train.steps=5"]
        for dtype, runs in (("float32", [((1, 1, 1), []), ((2, 2, 2), ["--train.recompute=full"])]),
                            ("bfloat16", [((1, 1, 1), graphs[1:]), ((1, 1, 1), graphs), ((2, 1, 1), graphs), ((1, 2, 1), graphs)])):
            typed = [*documents, f"--numerics.dtype={dtype}"]
            reference = self.same_on(runs, CUDA, *typed, name=f"documents-{dtype}")
            self.train(self.config, (1, 1, 1), f"documents-{dtype}-cpu", *typed, *runs[0][1], "--run.device=cpu")
            self.assert_near(reference, f"documents-{dtype}-cpu", dtype)

    def test_pairs(self):
        answers = [{"chosen": [{"text": f"{i}?", "label": False}, {"text": "yes" + "!" * (i % 4), "label": True}],
                    "rejected": [{"text": f"{i}?", "label": False}, {"text": "no", "label": True}]} for i in range(64)]
        (self.directory / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in answers))
        self.import_data("--format=preferences", "--tokenizer=bytes", "--template=rendered", "--files=pairs.jsonl",
                         "--output=pairs")
        settings = ["--data.train=pairs/train.h5", "--data.test=pairs/test.h5", "--train.objective=dpo", "--batch.micro=4"]
        reference = self.same_on([((1, 1, 1), []), ((2, 2, 2), [])], CUDA, *settings, name="pairs")
        self.train(self.config, (1, 1, 1), "pairs-cpu", *settings, "--run.device=cpu")
        self.assert_near(reference, "pairs-cpu")
        self.same_on([((1, 1, 1), []), ((2, 1, 1), ["--run.cuda_graphs=on"])], CUDA, *settings, "--numerics.dtype=bfloat16",
                     name="pairs-bfloat16")

    def test_graphs(self):
        dropout = [CUDA, "--model.dropout=0.2", "--numerics.dtype=bfloat16", "--batch.micro=4"]
        graphs = ["--run.cuda_graphs=on", "--train.repeat_every=4"]
        self.same_on([((1, 1, 1), []), ((1, 1, 1), graphs), ((2, 1, 1), graphs),
                      ((1, 2, 1), [*graphs, "--parallel.schedule=gpipe"]),
                      ((2, 2, 1), [*graphs, "--train.recompute=full"])],
                     *dropout, "--train.steps=5", name="graphs")
        self.assert_graphs(self.config, dropout, "kept")

    def test_loss_pieces(self):
        pieces = ["--numerics.dtype=bfloat16", "--numerics.loss_pieces=4", "--batch.micro=4", "--train.label_smoothing=0.1",
                  "--train.z_loss=0.001"]
        graphs = ["--run.cuda_graphs=on", "--train.repeat_every=4"]
        runs = [((1, 1, 1), []), ((1, 1, 1), graphs), ((2, 2, 1), graphs), ((1, 1, 2), ["--parallel.sequence=on"]),
                ((2, 2, 2), ["--train.recompute=full"])]
        reference = self.same_on(runs, CUDA, *pieces, "--train.steps=5", name="pieces")
        self.train(self.config, (1, 1, 1), "pieces-cpu", *pieces, "--train.steps=5", "--run.device=cpu")
        self.assert_near(reference, "pieces-cpu", "bfloat16")
        self.assert_graphs(self.config, [CUDA, *pieces], "pieces")

    def test_selective_recompute(self):
        # Not the bits of the others in bfloat16, but the same on every grid.
        self.same_on([((1, 1, 1), []), ((2, 2, 2), ["--parallel.sequence=on"])], CUDA,
                     "--numerics.dtype=bfloat16", "--train.recompute=selective", name="selective")

    def test_row_pieces(self):
        self.same_on([((1, 1, 1), []), ((1, 1, 2), []), ((2, 2, 2), ["--parallel.sequence=off"])], CUDA,
                     "--numerics.dtype=bfloat16", "--numerics.row_pieces=2", "--numerics.shard_sums=bfloat16",
                     "--train.steps=2", name="rows")

    def test_adapters(self):
        settings = ["--lora.rank=4", "--lora.alpha=6", "--train.steps=2"]
        for dtype in ("float32", "bfloat16"):
            reference = self.same_on([((1, 1, 1), []), ((2, 2, 2), [])], CUDA, *settings, f"--numerics.dtype={dtype}",
                                     name=f"adapters-{dtype}")
        self.train(self.config, (1, 1, 1), "adapters-cpu", *settings, "--numerics.dtype=bfloat16", "--run.device=cpu")
        self.assert_near(reference, "adapters-cpu", "bfloat16")

    def test_llama(self):
        reference = self.same_on([((1, 1, 1), []), ((2, 2, 2), [])], CUDA, *language.LLAMA,
                                 name="llama")
        self.train(self.config, (1, 1, 1), "llama-cpu", *language.LLAMA, "--run.device=cpu")
        self.assert_near(reference, "llama-cpu")

    def test_sums_of_the_library(self):
        fast = [CUDA, "--numerics.mode=fast", "--numerics.lanes=0", "--numerics.shards=0"]
        self.train(self.config, (1, 1, 1), "fast-alone", *fast)
        self.train(self.config, (2, 1, 2), "fast", *fast)
        self.assert_near("fast-alone", "fast")

    def test_float64_is_the_cpus_to_rounding(self):
        for device in ("cpu", "cuda"):
            self.train(self.config, (1, 1, 1), f"double-{device}", "--numerics.dtype=float64",
                       f"--run.device={device}")
        self.assert_near("double-cpu", "double-cuda", "float64")

    def test_resume_on_another_grid(self):
        for dtype in ("float32", "bfloat16"):
            settings = [CUDA, f"--numerics.dtype={dtype}"]
            whole, cut = f"whole-{dtype}", f"cut-{dtype}"
            self.train(self.config, (1, 1, 1), whole, *settings, "--train.steps=4")
            self.train(self.config, (1, 2, 2), cut, *settings, "--train.steps=2")
            self.train(self.config, (2, 1, 1), cut, *settings, "--train.steps=4", "--run.resume=must")
            self.assert_same_run(whole, cut)

    def test_resume_on_another_device(self):
        self.train(self.config, (1, 1, 1), "cpu", "--run.device=cpu", "--train.steps=4")
        for first, then in (("cpu", "cuda"), ("cuda", "cpu")):
            run = f"{first}-then-{then}"
            self.train(self.config, (1, 1, 2), run, f"--run.device={first}", "--train.steps=2")
            self.train(self.config, (1, 2, 1), run, f"--run.device={then}", "--train.steps=4",
                       "--run.resume=must")
            self.assert_near("cpu", run)

    def test_generation_and_evaluation(self):
        self.train(self.config, (1, 1, 1), "text-run", CUDA)
        texts, lines = [], []
        for device in ("cpu", "cuda"):
            generated = self.alone("generate", self.config, "--run.dir=text-run", "--prompt=amber ",
                              "--tokens=8", "--temperature=0", f"--run.device={device}", expect=harness.DONE)
            texts.append([line for line in generated.text.splitlines() if "tokens/s" not in line])
            evaluated = self.alone("evaluate", self.config, "--run.dir=text-run", f"--run.device={device}",
                                   expect=harness.DONE)
            lines.append(float(evaluated.text.split("loss ")[1].split(",")[0]))
        self.assertEqual(texts[0], texts[1])
        # Sampled, with the bits of one rank.
        sampled = ["generate", self.config, "--run.dir=text-run", "--prompt=amber ", "--tokens=30", CUDA]
        expected, *others = (re.sub(r"30 tokens, [\d,]+ tokens/s( on .*)?\n", "", finished.text) for finished in (
            self.alone(*sampled, expect=harness.DONE),
            *(self.launch(harness.ranks_of(grid), *sampled, *harness.grid_settings(grid)[1:], expect=harness.DONE)
              for grid in ((1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2)))))
        self.assertEqual(others, 4 * [expected])
        self.assertTrue(np.isclose(lines[0], lines[1], rtol=NEAR["float32"]))


if __name__ == "__main__":
    del harness.LAUNCH_ENVIRONMENT["CUDA_VISIBLE_DEVICES"]
    refused = refusal()
    if refused:
        print(f"skipped: {refused}")
        sys.exit(77)
    harness.main()
