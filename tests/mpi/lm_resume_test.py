"""Language models stopped and continued on other grids, their checkpoints, and evaluation."""

import json
import re
import shutil

import h5py
import numpy as np

import harness
import language


class Resume(language.LanguageTest):
    def test_text_of_the_best_checkpoint(self):
        self.train(self.config, (1, 1, 1), "best", "--train.steps=4", "--train.evaluate_every=2", "--checkpoint.every=2",
                   "--checkpoint.keep=2", "--checkpoint.best=loss", "--optimizer.learning_rate=0.1")
        metrics = self.directory / "best/metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        for line in lines:
            if (line["kind"], line["step"]) == ("evaluate", 2):
                line["loss"] = 0.0
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def text(*which):
            generated = self.alone("generate", "best", "--prompt=amber ", "--tokens=50", *which, expect=harness.DONE)
            return re.sub(r"50 tokens, [\d,]+ tokens/s\n", "", generated.text)

        newest, best = text(), text("--checkpoint=best")
        self.assertNotEqual(newest, best)
        shutil.rmtree(self.directory / "best/checkpoints/step-00000004")
        self.assertEqual(text(), best)

    def test_loss_pieces_of_the_first_launch_are_kept(self):
        pieces = "--numerics.loss_pieces=2"
        self.train(self.config, (2, 1, 2), "pieces", pieces, "--numerics.shards=0", "--train.steps=2")
        for value in (1, 4):
            finished = self.train(self.config, (1, 2, 1), "pieces", f"--numerics.loss_pieces={value}",
                                  "--numerics.shards=0", "--run.resume=must", expect=harness.USAGE)
            self.assert_refused(finished, harness.USAGE, f"numerics.loss_pieces is {value}", "was made with 2")
        self.train(self.config, (1, 2, 1), "pieces", "--numerics.shards=0", "--train.steps=4", "--run.resume=must")
        text = (self.directory / "pieces" / "config.ini").read_text()
        self.assertIn("\nloss_pieces = 2  # derived\n", text)
        self.assertIn("\nshards = 2  # derived\n", text)
        evaluated = [self.launch(ranks, "evaluate", "pieces") for ranks in (1, 4)]
        self.assertEqual([run.code for run in evaluated], [harness.DONE] * 2, evaluated[0].text)
        self.assertEqual(evaluated[0].text, evaluated[1].text)
        self.alone("generate", "pieces", "--prompt=amber ", "--tokens=5", expect=harness.DONE)

    def test_other_data_by_consent(self):
        self.import_text("more", language.text(1600, seed=2))
        self.train(self.config, (1, 1, 1), "data", "--train.steps=2", "--data.test=")
        mixed = ["--data.train=text/train.h5:3, more/train.h5:1", "--data.test=", "--train.steps=4", "--run.resume=must"]
        finished = self.train(self.config, (2, 1, 1), "data", *mixed, expect=harness.USAGE)
        self.assert_refused(finished, harness.USAGE, "the mixture of data.train", "0.75, 0.25", "data.accept_change")
        finished = self.train(self.config, (2, 1, 1), "data", *mixed, "--data.accept_change=on")
        self.assertRegex(finished.text, r"from step 3 on the run has other training data: the mixture of data.train was \"\", "
                                        r"it is \"0.75, 0.25\"; the number of training samples was \d+, it is \d+; the checksum")
        self.assertRegex(finished.text, r"text/train.h5: and others, with 0.75, 0.25 of the samples; "
                                        r"an epoch reads them \d\.\d\d, \d\.\d\d times")
        # Of 16 samples of 64 tokens in two steps about a quarter is of the second set.
        lines = [json.loads(line) for line in (self.directory / "data/metrics.jsonl").read_text().splitlines()]
        read = [[line[f"tokens/{name}/train.h5"] for name in ("text", "more")]
                for line in lines if line["kind"] == "train" and line["step"] > 2]
        tokens = self.records("data", "train")[0]
        self.assertEqual([sum(line) for line in read], [read[0][0] + read[0][1]] * 2, tokens)
        self.assertTrue(0 < sum(line[1] for line in read) < sum(line[0] for line in read), read)
        self.assertIn("loss/more/train.h5", (self.directory / "data/metrics.jsonl").read_text())
        for line in lines:
            parts = [(line[f"loss/{name}/train.h5"], line[f"tokens/{name}/train.h5"]) for name in ("text", "more")
                     if f"loss/{name}/train.h5" in line and line["kind"] == "train"]
            if parts:
                self.assertAlmostEqual(line["loss"], sum(loss * tokens for loss, tokens in parts) /
                                       sum(tokens for _, tokens in parts), places=12)
        # Test losses of several sets are those of each, weighted by their targets.
        both = self.launch(2, "evaluate", "data", "--data.test=text/test.h5, more/test.h5", expect=harness.DONE).text
        alone = [self.alone("evaluate", "data", f"--data.test={name}/test.h5", expect=harness.DONE).text for name in ("text", "more")]
        losses = [re.search(r"loss ([\d.]+),.* over (\d+) samples", text).groups() for text in (both, *alone)]
        for name, (loss, _) in zip(("text", "more"), losses[1:]):
            self.assertRegex(both, rf"loss {loss}, perplexity [\d.]+ of {name}/test.h5\n")
        self.assertAlmostEqual(float(losses[0][0]), sum(float(loss) * int(samples) for loss, samples in losses[1:]) /
                               sum(int(samples) for _, samples in losses[1:]), places=12)
        finished = self.alone("train", self.config, "--run.dir=bad", "--data.train=text/train.h5, more/train.h5", "--data.test=",
                              "--data.mixture_by=epochs")
        self.assert_refused(finished, harness.USAGE, "data.mixture_by is set", "no weights")
        for settings, words in (
                ("--data.train=text/train.h5:1, none/train.h5:1", ["none/train.h5 does not exist"]),
                ("--data.train=text/train.h5, more/train.h5:1", ["others none"]),
                ("--data.train=text/train.h5:x, more/train.h5:1", ['the weight "x"'])):
            with self.subTest(settings=settings):
                finished = self.alone("train", self.config, "--run.dir=bad", settings, "--data.test=")
                self.assertIn(finished.code, (harness.USAGE, harness.DATA))
                self.assert_refused(finished, finished.code, *words)

    def test_losses_tell_the_order_of_a_mixture(self):
        """Of weights that hardly move, a loss says how many samples of a step are of the second set."""
        for name in "ab":
            self.import_text(name, 1600 * name, "--split=1.0", tokenizer="bytes")
        settings = ["--data.test=", "--batch.global=4", "--batch.micro=1", "--numerics.dtype=float64", "--train.evaluate_every=0",
                    "--model.dropout=0", "--optimizer.learning_rate=1e-30"]
        mixed = [*settings, "--data.train=a/train.h5:3, b/train.h5:1"]

        def losses(run):
            return np.array([float(row["loss"]) for row in self.records(run, "train")])

        of = {}
        for name in "ab":
            self.train(self.config, (1, 1, 1), f"only-{name}", *settings, f"--data.train={name}/train.h5", "--train.steps=1")
            of[name] = losses(f"only-{name}")[0]
        self.train(self.config, (1, 1, 1), "order", *mixed, "--train.steps=40")
        for grid, steps in (((4, 1, 1), 13), ((1, 2, 2), 29), ((2, 1, 1), 40)):
            self.train(self.config, grid, "order-on-grids", *mixed, f"--train.steps={steps}", "--run.resume=auto")
        np.testing.assert_array_equal(losses("order"), losses("order-on-grids"))
        counts = 4 * (losses("order") - of["a"]) / (of["b"] - of["a"])
        np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
        lines = [json.loads(line) for line in (self.directory / "order/metrics.jsonl").read_text().splitlines()]
        told = [line.get("tokens/b/train.h5", 0) / 16 for line in lines if line["kind"] == "train"]
        self.assertEqual(counts.round().tolist(), told)
        self.assertEqual(set(told) - {0, 1, 2, 3, 4}, set())
        self.assertTrue(20 < sum(told) < 60, told)  # 40 of 160

    def test_other_shards_are_refused(self):
        self.train(self.config, (1, 1, 2), "two", "--numerics.shards=2", "--train.steps=1")
        for grid, settings, words in [
                ((1, 1, 1), [], ["numerics.shards is 4", "was made with 2", "set it to 2", "give --numerics.shards=4 on"]),
                ((1, 1, 4), [], ["numerics.shards is 4", "was made with 2"]),
                ((1, 1, 4), ["--numerics.shards=0"], ["numerics.shards is 2, which parallel.tensor = 4", "not divide"])]:
            with self.subTest(grid=grid, settings=settings):
                finished = self.train(self.config, grid, "two", *settings, "--run.resume=must", expect=harness.USAGE)
                self.assert_refused(finished, harness.USAGE, *words)


class FastMode(language.LanguageTest):
    def test_the_config_says_what_the_launch_gives(self):
        self.train(self.config, (2, 1, 2), "fast", "--numerics.mode=fast", "--numerics.lanes=0", "--numerics.shards=0",
                   "--train.steps=1")
        text = (self.directory / "fast" / "config.ini").read_text()
        self.assertRegex(text, r"\nlanes = 0  # derived: 2\n(.+\n)*shards = 0  # derived: 2\n")


class Checkpoints(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls().train(cls.config, (2, 2, 2), "parts", "--numerics.dtype=bfloat16", "--train.steps=2")
        cls.checkpoint = harness.checkpoints(cls.directory / "parts")[-1]

    def test_commands(self):
        inspected = self.alone("checkpoint", "inspect", self.checkpoint, expect=harness.DONE)
        self.assertRegex(inspected.text, r'virtual_grid = {"lanes":4,"loss_pieces":1,"microbatch":2,"shards":4}')
        self.assertRegex(inspected.text, r"weights/embedding\.tokens\.weight +26 x 32 +float32")
        self.alone("checkpoint", "verify", self.checkpoint, expect=harness.DONE)

    def test_arrays_are_whole_for_h5py(self):
        self.train(self.config, (1, 1, 1), "single", "--numerics.dtype=bfloat16", "--train.steps=2")
        single = harness.checkpoints(self.directory / "single")[-1]
        with h5py.File(self.checkpoint / "master.h5") as parts, \
                h5py.File(single / "master.h5") as whole:
            for name, shape in [("embedding.tokens.weight", (26, 32)),
                                ("embedding.positions.weight", (16, 32)),
                                ("blocks.1.attention.qkv.weight", (96, 32)),
                                ("blocks.1.attention.output.weight", (32, 32)),
                                ("blocks.0.mlp.up.weight", (128, 32)),
                                ("blocks.0.mlp.down.weight", (32, 128)),
                                ("norm.weight", (32,))]:
                array = parts[f"weights/{name}"]
                self.assertEqual((array.shape, array.dtype), (shape, np.float32), name)
                self.assertEqual(array[()].tobytes(), whole[f"weights/{name}"][()].tobytes(), name)
                self.assertTrue(np.all(np.isfinite(array[()])), name)

    def test_a_checkpoint_is_all_that_is_needed(self):
        shutil.copytree(self.directory / "parts", self.directory / "moved")
        shutil.copytree(self.directory / "text", self.directory / "kept")
        prompt = ["--prompt=amber ", "--tokens=20"]

        def text_in(finished):  # of both outputs, in whatever order they came
            return re.sub(r"20 tokens, [\d,]+ tokens/s( on .*)?\n", "", finished.text)

        expected = self.alone("generate", "moved", *prompt, expect=harness.DONE)
        evaluated = self.alone("evaluate", "moved", "--data.test=kept/test.h5")
        (self.directory / "text").rename(self.directory / "away")
        try:
            with h5py.File(self.checkpoint / "master.h5") as master:
                self.assertEqual("".join(map(chr, master["text/characters"])), "".join(
                    sorted(set(language.text(3200)))))
            for run in ("moved", "moved/config.ini"):
                # The data set is not there. The run had 2 stages and 2 tensor ranks; 3 ranks are 3 stages.
                for ranks in (1, 2, 3, 4):
                    generated = self.launch(ranks, "generate", run, "--run.dir=moved", *prompt, expect=harness.DONE)
                    self.assertEqual(text_in(generated), text_in(expected))
            for ranks in (1, 2, 3, 4, 5):
                again = self.launch(ranks, "evaluate", "moved", "--data.test=kept/test.h5")
                self.assertEqual((again.code, again.text), (harness.DONE, evaluated.text))
        finally:
            (self.directory / "away").rename(self.directory / "text")
        with h5py.File(harness.checkpoints(self.directory / "moved")[-1] / "master.h5", "r+") as master:
            master["text/characters"][3] += 1
        for command in (["checkpoint", "verify", "moved"], ["generate", "moved", *prompt]):
            self.assert_refused(self.alone(*command), harness.CHECKPOINT, "master.h5 is damaged", "manifest")

    def test_evaluation_is_the_same_on_two_grids(self):
        lines = []
        for grid in [(1, 1, 1), (2, 2, 2)]:
            finished = self.launch(harness.ranks_of(grid), "evaluate", self.config,
                                   "--run.dir=parts", "--numerics.dtype=bfloat16",
                                   "--train.evaluate_batches=0",
                                   *harness.grid_settings(grid), expect=harness.DONE)
            lines += [line for line in finished.text.splitlines() if "perplexity" in line]
        self.assertEqual(len(lines), 2, lines)
        self.assertEqual(lines[0], lines[1])
        with h5py.File(self.directory / "text/test.h5") as data:
            samples = (int(data.attrs["tokens"]) - 1) // 16
        self.assertNotEqual(samples % 16, 0, "no round is cut short")
        self.assertIn(f"over {samples} samples", lines[0])
        loss, perplexity = re.search(r"loss (\d+\.\d+), perplexity (\d+\.\d+), ", lines[0]).groups()
        self.assertAlmostEqual(np.exp(float(loss)) / float(perplexity), 1.0, delta=1e-4)


if __name__ == "__main__":
    harness.main()
