"""Losses of documents, and multiple-choice questions, against NumPy and against each other, on grids, and refused."""

import csv
import json
import re

import numpy as np

import harness
import language
from harness import DATA, DONE, USAGE

QUESTIONS = [
    {"context": "amber brook", "choices": [" cedar", " dun", " e"], "answer": 0},
    {"context": "brook ", "choices": ["cedar", "thorn"], "answer": 1},
    {"context": "heath", "choices": [" islet", " jetty kno", " s", " marsh"], "answer": 3},
    {"context": "vale", "choices": [" wharf", " exile"], "answer": 0},
    {"context": "y", "choices": ["arrow", "et"], "answer": 0}]
# The first is longer than a context, one has no target.
DOCUMENTS = [" ".join(language.WORDS) + " ", "amber brook", "a", "amber brook cedar", "heath", "heath jetty kno"]


class Choices(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.lines("docs.jsonl", [{"text": text} for text in DOCUMENTS])
        test.import_data("--format=text", "--tokenizer=chars", "--text-field=text", "--files=docs.jsonl", "--output=docs",
                         "--split=1.0")
        test.lines("q.jsonl", QUESTIONS)
        test.train(cls.config, (1, 1, 1), "run")

    def lines(self, name, objects):
        (self.directory / name).write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in objects))

    def answers(self, run, *settings, ranks=1):
        """What is printed, and the lines of --output."""
        text = self.launch(ranks, "evaluate", run, "--choices=q.jsonl", "--output=answers.jsonl", *settings, expect=DONE).text
        return text, [json.loads(line) for line in (self.directory / "answers.jsonl").read_text().splitlines()]

    def documents(self, run, *settings, ranks=1, data="docs/train.h5"):
        """The lines of results, and the table of --documents."""
        text = self.launch(ranks, "evaluate", run, f"--data.test={data}", "--documents=table.csv", *settings, expect=DONE).text
        with open(self.directory / "table.csv", encoding="utf-8") as file:
            # Lines of the log may come between.
            return [line for line in text.splitlines() if line.startswith((f"{run}/", "loss "))], list(csv.DictReader(file))

    def test_against_numpy(self):
        """Of a model whose logits depend on one token, all log-likelihoods are sums over pairs of tokens."""
        config = self.write_config("pairs.ini", language.config(["embedding 16 name=a", "head"]))
        self.train(config, (1, 1, 1), "pairs", "--train.steps=40", "--numerics.dtype=float64")
        weights = harness.tensors(harness.checkpoints(self.directory / "pairs")[-1])
        table = weights["weights/a.tokens.weight"]  # the head's too
        logits = table @ table.T
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        # Characters have ids in their order.
        ids = {character: i for i, character in enumerate(sorted(set(DOCUMENTS[0])))}

        def log_likelihood(text, begin=1):
            return sum(logs[ids[text[i - 1]], ids[text[i]]] for i in range(begin, len(text)))

        said, table = self.documents("pairs")
        self.assertEqual([(row["set"], row["document"], row["tokens"]) for row in table],
                         [("docs/train.h5", str(i), str(len(text) - 1)) for i, text in enumerate(DOCUMENTS)])
        losses = [-log_likelihood(document) for document in DOCUMENTS]
        np.testing.assert_allclose([float(row["loss"]) for row in table], losses, rtol=1e-12)
        self.assertEqual(table[2]["perplexity"], "")
        for row, loss in zip(table, losses):
            if loss:
                self.assertAlmostEqual(float(row["perplexity"]), np.exp(loss / float(row["tokens"])), places=9)
        self.assertAlmostEqual(float(re.search(r"loss (\S+),", said[0])[1]), sum(losses) / sum(len(one) - 1 for one in DOCUMENTS), places=12)

        text, answers = self.answers("pairs")
        right = [0, 0]
        for number, (question, answer) in enumerate(zip(QUESTIONS, answers)):
            context = question["context"].rstrip()
            sums = [log_likelihood(question["context"] + choice, len(context)) for choice in question["choices"]]
            sizes = [len(choice.strip()) for choice in question["choices"]]
            np.testing.assert_allclose(answer["sums"], sums, rtol=1e-12)
            chosen, by_bytes = int(np.argmax(sums)), int(np.argmax(np.divide(sums, sizes)))
            self.assertEqual({**answer, "sums": None},
                             {"line": number + 1, "sums": None, "bytes": sizes, "answer": question["answer"], "chosen": chosen,
                              "right": chosen == question["answer"], "chosen_by_bytes": by_bytes,
                              "right_by_bytes": by_bytes == question["answer"]})
            right[0] += answer["right"]
            right[1] += answer["right_by_bytes"]
        self.assertIn(f"accuracy {20 * right[0]:.4f} %, by log-likelihood per byte {20 * right[1]:.4f} %, over 5 questions of q.jsonl", text)
        self.assertNotEqual(right[0], right[1], "both choose the same")

    def test_grids(self):
        """The same bits on every grid and with any number of questions at once, and with attention the same numbers by
        documents and by choices."""
        losses = {}
        for run, settings in (("run", []), ("pieces", ["--numerics.loss_pieces=4"])):
            if settings:
                self.train(self.config, (1, 1, 1), run, *settings)
            expected = [self.answers(run), self.documents(run)]
            for batch, ranks, *grid in ((1, 2, 2, 1, 1), (2, 2, 1, 2, 1), (3, 2, 1, 1, 2), (9, 4, 2, 1, 2), (1, 3, 1, 3, 1)):
                with self.subTest(run=run, grid=grid, batch=batch):
                    found = [self.answers(run, f"--batch={batch}", *harness.grid_settings(grid), ranks=ranks),
                             self.documents(run, *harness.grid_settings(grid), ranks=ranks)]
                    self.assertEqual(found, expected)
            (_, answers), (said, table) = expected
            losses[run] = [float(row["loss"]) for row in table]
            for longer, shorter, sum_of in ((3, 1, answers[0]["sums"][0]), (5, 4, answers[2]["sums"][1])):
                self.assertAlmostEqual(losses[run][longer] - losses[run][shorter], -sum_of, places=4)
            self.assertAlmostEqual(float(re.search(r"loss (\S+),", said[0])[1]),
                                   sum(losses[run]) / sum(int(row["tokens"]) for row in table), places=6)
        np.testing.assert_allclose(losses["pieces"], losses["run"], rtol=1e-4)

    def test_several_sets(self):
        self.lines("more.jsonl", [{"text": text} for text in DOCUMENTS[::-1]])
        self.import_data("--format=text", "--tokenizer=chars", "--text-field=text", "--files=more.jsonl", "--output=more",
                         "--split=1.0")
        _, one = self.documents("run")
        said, both = self.documents("run", data="docs/train.h5, more/train.h5", ranks=2)
        self.assertEqual(both[:6], one)
        self.assertEqual([(row["set"], row["document"], row["loss"]) for row in both[6:]],
                         [("more/train.h5", str(i), row["loss"]) for i, row in enumerate(one[::-1])])
        for line, name in zip(said[1:], ("docs", "more"), strict=True):
            self.assertRegex(line, rf"^loss \S+, perplexity [\d.]+ of {name}/train.h5$")

    def test_long_contexts(self):
        """What is cut at the left does not count."""
        self.lines("long.jsonl", [{**QUESTIONS[0], "context": "exile yarrow amber brook"}])
        self.assert_refused(self.alone("evaluate", "run", "--choices=long.jsonl"), DATA, "long.jsonl:1", "have 30 tokens",
                            "the model takes 17", "--cut=left")
        self.lines("cut.jsonl", [{**QUESTIONS[0], "choices": QUESTIONS[0]["choices"][:1] * 2}])
        found = []
        for name, more in (("long", ["--cut=left"]), ("cut", [])):
            self.alone("evaluate", "run", f"--choices={name}.jsonl", "--output=out.jsonl", *more, expect=DONE)
            found.append(json.loads((self.directory / "out.jsonl").read_text())["sums"][0])
        self.assertEqual(found[0], found[1])

    def test_refusals(self):
        self.lines("bad.jsonl", [QUESTIONS[0], {**QUESTIONS[1], "answer": 2}])
        questions = "--choices=q.jsonl"
        for arguments, code, words in (
                (["--choices="], USAGE, ["--choices=FILE.jsonl"]),
                (["--documents="], USAGE, ["--documents=FILE.csv"]),
                ([questions, "--documents=a.csv"], USAGE, ["--documents", "--choices"]),
                ([questions, "--classes"], USAGE, ["--classes", "--choices"]),
                (["--output=a.jsonl"], USAGE, ["--output is of --choices"]),
                ([questions, "--output=q.jsonl"], USAGE, ["--output=q.jsonl is the file of --choices"]),
                ([questions, "--output=docs/train.h5"], USAGE, ["docs/train.h5 is an HDF5 file"]),
                (["--documents=docs/train.h5"], USAGE, ["docs/train.h5 is an HDF5 file"]),
                (["--cut=left"], USAGE, ["--cut is of --choices"]),
                (["--batch=2"], USAGE, ["--batch is of --choices"]),
                ([questions, "--batch=0"], USAGE, ['--batch is "0"', "from 1 to"]),
                ([questions, "--cut=right"], USAGE, ["right", "left"]),
                ([questions, "--output=absent/a.jsonl"], USAGE, ["cannot write absent/a.jsonl"]),
                (["--documents=absent/a.csv"], USAGE, ["cannot write absent/a.csv"]),
                (["--choices=none.jsonl"], DATA, ["none.jsonl"]),
                (["--choices=bad.jsonl"], DATA, ["bad.jsonl:2", '"answer" is 2']),
                (["--documents=a.csv"], DATA, ["text/test.h5 does not say where its documents end"])):
            for ranks in (1, 2):
                with self.subTest(arguments=arguments, ranks=ranks):
                    self.assert_refused(self.launch(ranks, "evaluate", "run", *arguments), code, *words)
        self.assertFalse((self.directory / "a.csv").exists())

        self.import_classes("classes", (10,), 4, train=40, test=20)
        config = self.write_config("classes.ini", harness.config_text(["dense 4"], batch={"global": 8}, train={"steps": 1}))
        self.train(config, (1, 1), "classes-run")
        for option in (questions, "--documents=a.csv"):
            self.assert_refused(self.alone("evaluate", "classes-run", option), USAGE, "is not a language model", option.split("=")[0])
        np.random.default_rng(1).integers(0, 26, 400).astype(np.uint16).tofile(self.directory / "ids.bin")
        self.import_data("--format=tokens-nanogpt", "--files=ids.bin", "--output=ids", "--vocabulary=26")
        self.train(self.config, (1, 1, 1), "ids-run", "--data.train=ids/train.h5", "--data.test=", "--train.steps=1",
                   "--train.evaluate_every=0")
        self.assert_refused(self.alone("evaluate", "ids-run", questions), DATA, "does not say how its tokens become text")


if __name__ == "__main__":
    harness.main()
