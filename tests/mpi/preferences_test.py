"""Pairs of answers: imported, preferred by direct preference optimization, resumed on another grid, and refused."""

import json
import math
import re
import signal
import subprocess
import sys

import chat_test
import harness
from chat_test import COLOURS, SCRIPTS, dialogue
from harness import DATA, DONE, USAGE

import strata_reader


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Preferences(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.directory / "model").mkdir()
        (cls.directory / "model/tokenizer.json").write_text(json.dumps(chat_test.tokenizer_json()))
        names, colours = list(COLOURS), list(COLOURS.values())
        cls.pairs = [{"prompt": f"{names[i % 8]}?", "chosen": colours[i % 8], "rejected": colours[(i + 1 + i // 8 % 7) % 8]}
                     for i in range(560)]

    def lines(self, name, pairs):
        (self.directory / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    def pairs_of(self, name, pairs, *more, template="chatml", expect=DONE):
        self.lines(name, pairs)
        return self.alone("data", "import", "--format=preferences", "--tokenizer=model/tokenizer.json", f"--template={template}",
                          f"--files={name}.jsonl", f"--output={name}", "--overwrite", *more, expect=expect)

    def documents(self, name):
        """The text of each document, with what counts in brackets."""
        data = strata_reader.Dataset(self.directory / name)
        self.assertTrue(data.pairs)
        return [self.alone("data", "inspect", f"{name}/train.h5", f"--document={i}", expect=DONE).text
                for i in range(len(data.document_ends))]

    def test_forms(self):
        whole = ["<|im_start|>user\ndune?<|im_end|>\n<|im_start|>assistant\n⟦sand<|im_end|>⟧\n\n",
                 "<|im_start|>user\ndune?<|im_end|>\n<|im_start|>assistant\n⟦pink<|im_end|>⟧\n\n"]
        asked = user("dune?")
        turn = {"from": "human", "value": "dune?"}
        for number, pair in enumerate((
                {"prompt": "dune?", "chosen": "sand", "rejected": "pink"},
                {"prompt": [asked], "chosen": [assistant("sand")], "rejected": "pink"},
                {"prompt": "dune?", "chosen": [asked, assistant("sand")], "rejected": [asked, assistant("pink")]},
                {"chosen": [asked, assistant("sand")], "rejected": [asked, assistant("pink")], "prompt": None},
                {"prompt": [turn], "chosen": [{"from": "gpt", "value": "sand"}], "rejected": "pink"})):
            with self.subTest(number=number):
                self.pairs_of("forms", [pair], "--split=1.0")
                self.assertEqual(self.documents("forms"), whole)
        # Of several turns, those that differ count.
        first = [user("Hi"), assistant("Yes"), asked]
        self.pairs_of("turns", [{"prompt": first, "chosen": "sand", "rejected": [assistant("pink"), user("No"), assistant("lime")]}],
                      "--split=1.0")
        chosen, rejected = self.documents("turns")
        self.assertEqual((chosen.count("⟦"), rejected.count("⟦")), (1, 2))
        self.assertIn("⟦sand", chosen)
        self.assertIn("⟦lime", rejected)

    def test_which_pairs(self):
        said = self.pairs_of("some", [*self.pairs[:40], *self.pairs[:5], {**self.pairs[0], "chosen": "x" * 200}],
                             "--deduplicate", "--held-out=0.25", "--max-tokens=128", "--too-long=leave-out").text
        self.assertIn("left out: 5 of 46 documents", said)
        self.assertIn("left out: 1 of 46 documents", said)
        train, test = (strata_reader.Dataset(self.directory / "some" / f"{split}.h5") for split in ("train", "test"))
        self.assertEqual(len(train.document_ends) + len(test.document_ends), 80)
        self.assertEqual(len(train.document_ends) % 2, 0)
        self.assertIn(f"held out: {len(test.document_ends) // 2} of 40", said)
        # A cut between splits, or behind them, is one between pairs. Files of the test split are apart.
        self.pairs_of("all", self.pairs[:9], "--split=1.0")
        ends = list(strata_reader.Dataset(self.directory / "all").document_ends)
        for split, both in (("--split=0.9", False), ("--split=0.41", False), ("--split=0.5,0.3", True), ("--split=60%,40%", True)):
            self.pairs_of("some", self.pairs[:9], split)
            train = strata_reader.Dataset(self.directory / "some/train.h5").document_ends
            self.assertEqual((len(train) % 2, list(train)), (0, ends[:len(train)]), split)
            if both:
                test = strata_reader.Dataset(self.directory / "some/test.h5").document_ends
                behind = ends[len(train):len(train) + len(test)]
                self.assertEqual((len(test) % 2, list(test)), (0, [end - train[-1] for end in behind]), split)
        self.lines("test", self.pairs[9:12])
        self.pairs_of("some", self.pairs[:9], "--test-files=test.jsonl")
        self.assertEqual([len(strata_reader.Dataset(self.directory / f"some/{split}.h5").document_ends)
                          for split in ("train", "test")], [18, 6])
        # The number of threads changes nothing.
        for threads in (1, 2, 5):
            self.pairs_of(f"threads{threads}", self.pairs, f"--threads={threads}", "--deduplicate")
        files = [[path.read_bytes() for path in sorted((self.directory / f"threads{threads}").glob("*-*.h5"))] for threads in (1, 2, 5)]
        self.assertEqual(len(files[0]), 2)
        self.assertTrue(files[0] == files[1] == files[2])

    def test_a_models_own_template(self):
        (self.directory / "model/tokenizer_config.json").write_text(json.dumps({"chat_template": chat_test.CHATML}))
        self.lines("own", self.pairs[:8])
        made = subprocess.run([sys.executable, SCRIPTS / "strata_chat.py", self.directory / "model",
                               self.directory / "own.jsonl"], capture_output=True, text=True, check=False)
        if "jinja2 is missing" in made.stderr:
            self.skipTest("python3-jinja2 is not installed")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        self.pairs_of("rendered", map(json.loads, made.stdout.splitlines()), "--split=1.0", template="rendered")
        self.pairs_of("own", self.pairs[:8], "--split=1.0")
        both = [strata_reader.Dataset(self.directory / name) for name in ("rendered", "own")]
        self.assertEqual(*(list(data.tokens[:]) for data in both))

    def test_bad_pairs(self):
        good = self.pairs[0]
        for bad, words in (
                ({"prompt": "a", "chosen": "b"}, ['no "rejected"', '"prompt"']),
                ({"chosen": "b", "rejected": "c"}, ['"chosen"', 'without a "prompt"']),
                ({"prompt": 7, "chosen": "b", "rejected": "c"}, ['without a "prompt"']),
                ({"prompt": "a", "chosen": "b", "rejected": "b"}, ["are equal, so that neither is preferred"]),
                ({"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("b"), user("c"), assistant("d")]},
                 ["chosen answer", "begins with all of it"]),
                ({"chosen": [user("a"), assistant("b")], "rejected": [user("c"), assistant("d")]}, ["prompts", 'differ', '"a"']),
                ({"prompt": "a", "chosen": "b", "rejected": "c", "tools": []}, ["tools", "strata_chat.py"]),
                ({"system": "s", "prompt": "a", "chosen": "b", "rejected": "c"}, ['"system" beside the messages']),
                ({"prompt": "a", "chosen": 3, "rejected": "b"}, ['"chosen"', "neither a text nor a list"]),
                ({"prompt": "a", "chosen": "b", "rejected": " "}, ['"rejected"', "message 2", "is empty"]),
                ({"prompt": "a", "chosen": [], "rejected": "b"}, ['"chosen"', "no list of at least one"]),
                ({"prompt": "a", "chosen": [{"role": "wizard", "content": "b"}], "rejected": "c"}, ['"wizard"', "chatml knows"]),
                (dialogue("Hi", "Yes"), ['no "chosen"'])):
            with self.subTest(bad=bad):
                self.assert_refused(self.pairs_of("bad", [good, bad], expect=None), DATA, "bad.jsonl:2", *words)
        one = [{"text": "a", "label": True}]
        for pair, words in (({"chosen": one, "rejected": [{"text": "bb", "label": True}]}, ['"a"', "no token behind a first one"]),
                            ({"chosen": "a", "rejected": one}, ['"chosen" is no list']),
                            ({"chosen": one}, ['no "rejected"'])):
            self.assert_refused(self.pairs_of("bad", [pair], template="rendered", expect=None), DATA, "bad.jsonl:1", *words)
        # The first bad line in order is named, by whatever thread.
        for threads in (1, 3):
            bad = [good] * 70 + [{"chosen": 1}] + [good] * 9 + ["x"] * 50
            self.assert_refused(self.pairs_of("bad", bad, f"--threads={threads}", expect=None), DATA, "bad.jsonl:71")
        self.assert_refused(self.pairs_of("bad", [good], "--max-tokens=9", expect=None), USAGE, "--too-long=leave-out")
        self.assert_refused(self.pairs_of("bad", [good], "--max-tokens=9", "--too-long=refuse", expect=None), DATA, "bad.jsonl:1",
                            "--max-tokens=9", "--too-long=leave-out")
        self.assert_refused(self.pairs_of("bad", [good], "--max-tokens=9", "--too-long=leave-out", expect=None), DATA,
                            "no document is left")

    def test_a_model_learns_what_is_preferred(self):
        self.pairs_of("colours", self.pairs)
        self.alone("data", "import", "--format=text", "--tokenizer=model/tokenizer.json", "--files=colours.jsonl", "--output=text",
                   expect=DONE)
        config = self.write_config("dpo.ini", harness.config_text(
            model={"preset": "llama", "blocks": 2, "width": 64, "heads": 4, "context": 96},
            data="colours", batch={"global": 16, "micro": 4}, numerics={"lanes": 4, "shards": 2},
            optimizer={"kind": "adamw", "learning_rate": 0.003}, schedule={"kind": "cosine", "decay_steps": 120},
            train={"objective": "dpo", "dpo_beta": 0.2, "steps": 120, "evaluate_every": 30, "metrics_every": 1}))
        begun = self.train(config, (1, 2, 1), "dpo", "--train.steps=30")
        for split in ("train", "test"):
            self.assertRegex(begun.text, f"colours/{split}.h5: the reference is what the initial weights say of its [0-9]+ pairs")
            self.assertRegex(begun.text, f"colours/{split}.h5: reference of all [0-9]+ pairs in ")
        self.assertNotIn("starts anew", begun.text)
        resumed = self.train(config, (2, 1, 1), "dpo", "--run.resume=must")
        self.assertNotIn("the reference is", resumed.text)
        lines = [json.loads(line) for line in (self.directory / "dpo/metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        # With the initial weights, margins are 0 to the last bit.
        self.assertEqual((steps[0]["loss"], steps[0]["margin_mean"], steps[0]["accuracy_mean"]), (math.log(2), 0, 0))
        last = [line for line in lines if line["kind"] == "evaluate"][-1]
        self.assertNotIn("perplexity", last)
        self.assertGreater(last["accuracy"], 0.95)
        self.assertGreater(last["margin"], 0.5)
        self.assertLess(last["loss"], 0.4)
        said = self.launch(2, "evaluate", "dpo", expect=DONE).text
        self.assertIn(f'loss {last["loss"]}, accuracy {100 * last["accuracy"]:.4f} %, margin {last["margin"]}', said)
        # What it prefers has the larger log-likelihood, also by itself.
        self.lines("questions", [{"context": f"<|im_start|>user\n{pair['prompt']}<|im_end|>\n<|im_start|>assistant\n", "answer": 0,
                                  "choices": [pair["chosen"] + "<|im_end|>", pair["rejected"] + "<|im_end|>"]}
                                 for pair in self.pairs[:56]])
        found = self.launch(2, "evaluate", "dpo", "--choices=questions.jsonl", expect=DONE).text
        self.assertGreater(float(re.search(r"accuracy (\S+) %, .* over 56 questions", found)[1]), 80, found)
        self.assert_refused(self.alone("evaluate", "dpo", "--documents=a.csv"), USAGE, "train.objective is dpo")

        for settings, code, words in (
                (["--train.objective=targets"], USAGE, ["colours/train.h5", "train.objective = dpo"]),
                (["--data.train=text/train.h5"], USAGE, ["text/train.h5 holds no pairs", "--format=preferences"]),
                (["--model.context=40"], DATA, ["takes", "model.context = 40", "--max-tokens=40"]),
                (["--data.packing=best-fit"], USAGE, ["data.packing is best-fit"]),
                (["--data.sampling=windows"], USAGE, ["data.sampling is windows"]),
                (["--train.label_smoothing=0.1"], USAGE, ["train.label_smoothing", "train.objective"]),
                (["--numerics.loss_pieces=2"], USAGE, ["numerics.loss_pieces is 2"]),
                (["--data.accept_change=on"], USAGE, ["data.accept_change is on"]),
                (["--parallel.sync=async"], USAGE, ["parallel.sync is async"])):
            with self.subTest(settings=settings):
                self.assert_refused(self.train(config, (1, 1, 1), "refused", *settings, expect=None), code, *words)
        for reset, mask, words in ((" reset_positions=on", "", "mask=document"), ("", " mask=document", "reset_positions=on")):
            lines = self.write_config("lines.ini", harness.config_text(
                [f"embedding 16 positions=96{reset}", f"attention 2{mask}", "head"], model={"context": 96}, data="colours",
                train={"objective": "dpo", "steps": 1}))
            self.assert_refused(self.train(lines, (1, 1, 1), "refused", expect=None), USAGE, words)

        # Of other pairs the reference is not known, and sets of other kinds do not mix.
        self.pairs_of("other", self.pairs[7:90])
        self.assert_refused(self.alone("evaluate", "dpo", "--data.test=other/test.h5"), DATA, "other/test.h5", "at the start of a run")
        self.assert_refused(self.train(config, (1, 1, 1), "refused", "--data.train=colours/train.h5, text/train.h5", expect=None), DATA,
                            "text/train.h5", "one kind")

        # Nothing goes on without the reference, or with another one.
        longer = ["--run.resume=must", "--train.steps=121"]
        files = sorted((self.directory / "dpo").glob("references-*.json"))
        self.assertEqual(len(files), 2)
        texts = [file.read_bytes() for file in files]
        for damage, words in ((lambda file, text: file.unlink(), "is missing"), (lambda file, text: file.write_bytes(text[:-9]), "is damaged"),
                              (lambda file, text: file.write_bytes(text[:-4] + bytes([text[-4] ^ 1]) + text[-3:]), "is damaged")):
            for file, text in zip(files, texts):
                damage(file, text)
            self.assert_refused(self.train(config, (1, 1, 1), "dpo", *longer, expect=None), DATA, files[0].name[:11], words)
            self.assert_refused(self.alone("evaluate", "dpo"), DATA, files[0].name[:11], words)
            for file, text in zip(files, texts):
                file.write_bytes(text)
        self.train(config, (1, 1, 1), "dpo", *longer)

    def test_two_sets_and_models_without_attention(self):
        self.pairs_of("few", self.pairs[:100])
        self.pairs_of("more", self.pairs[100:150])
        config = self.write_config("mixed.ini", harness.config_text(
            ["embedding 16", "mlp 32 gelu", "head"], model={"context": 96}, batch={"global": 8, "micro": 2},
            data={"train": "few/train.h5:1, more/train.h5:2"}, numerics={"lanes": 2},
            train={"objective": "dpo", "steps": 6, "metrics_every": 1}))
        tests = "--data.test=few/test.h5, more/test.h5, few/train.h5"
        for run, grid, more in (("one", (1, 1, 1), ["--run.tensorboard=on", "--run.tensorboard_text=4", "--train.evaluate_every=3"]),
                                ("two", (2, 1, 1), ["--train.evaluate_every=3"])):
            self.train(config, grid, run, tests, *more)
        # Without test data there is one file of references.
        self.train(config, (1, 2, 1), "three", "--train.steps=3", "--run.receipts=on")
        self.train(config, (1, 1, 1), "three", "--run.resume=must", "--run.receipts=on")
        self.assertEqual([len(list((self.directory / run).glob("references-*"))) for run in ("one", "two", "three")], [2, 2, 1])
        # A replay needs no room for the references: no file may be as large as they are.
        self.assertGreater(next((self.directory / "three").glob("references-*")).stat().st_size, 2048)
        job = harness.Job(["bash", "-c", f"ulimit -f 2; exec {harness.STRATA} replay three --steps=4-5"], self.directory)
        self.assertIn("steps 4 to 5 are equal", self.finish(job, 60, DONE).text)
        # A run that is killed before its first checkpoint begins with the reference again.
        job = self.start(1, "train", str(config), "--run.dir=killed", "--run.resume=auto", "--train.steps=1000000")
        job.wait_until(lambda: (self.directory / "killed/config.ini").exists(), 60)
        job.signal_all(signal.SIGKILL)
        job.wait(30)
        self.assertIn("killed holds a run that ended before its first checkpoint: it starts anew, and so does its reference",
                      self.train(config, (1, 1, 1), "killed", "--run.resume=auto").text)
        for kind, runs in (("train", ("one", "two", "three", "killed")), ("evaluate", ("one", "two"))):
            losses = [[record["loss"] for record in self.records(run, kind)] for run in runs]
            self.assertEqual(losses, [losses[0]] * len(runs))
        last = [json.loads(line) for line in (self.directory / "one/metrics.jsonl").read_text().splitlines()
                if '"evaluate"' in line][-1]
        self.assertEqual([key for key in last if key.startswith("loss/")],
                         ["loss/few/test.h5", "loss/more/test.h5", "loss/few/train.h5"])
        self.assertIn(f'loss {last["loss/more/test.h5"]} of more/test.h5',
                      self.alone("evaluate", "one", tests, expect=DONE).text)


if __name__ == "__main__":
    harness.main()
