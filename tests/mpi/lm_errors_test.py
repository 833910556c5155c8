"""Language models and tensor grids that cannot be: each with its exit code and one report."""

import json
import os
import signal
import subprocess

import h5py

import harness
import language
from errors_test import flip_byte
from harness import CHECKPOINT, DATA, DIVERGED, DONE, USAGE

CLASSES = ["--data.train=classes/train.h5", "--data.test=classes/test.h5"]
BYTES = ["--data.train=bytes/train.h5", "--data.test=bytes/test.h5"]


class Errors(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.import_classes("classes", (10,), 4, train=40, test=20)
        test.import_text("bytes", language.text(1000), tokenizer="bytes")
        test.import_text("other", language.text(1500, seed=2))
        # As many characters, others.
        test.import_text("swapped", language.text(500).replace("y", "7"))
        cls.runs = 0

    def refused(self, code, *words, settings=(), grid=(1, 1, 1), run=None):
        """Trains and expects a refusal."""
        type(self).runs += 1
        arguments = ["train", self.config, f"--run.dir={run or f'run-{self.runs}'}",
                     *harness.grid_settings(grid), *settings]
        ranks = harness.ranks_of(grid)
        finished = self.alone(*arguments) if ranks == 1 else self.launch(ranks, *arguments)
        with self.subTest(settings=settings, grid=grid):
            self.assert_refused(finished, code, *words)

    def test_data(self):
        self.refused(DATA, "text/test.h5 holds", "a context of 5,000 needs 5,001", "more text",
                     settings=["--model.context=5000"])
        self.refused(DATA, "text/train.h5 holds", "a context of 50,000 needs 50,001",
                     settings=["--model.context=50000"], grid=(1, 1, 2))
        self.refused(DATA, "classes/test.h5", "4 classes",
                     settings=CLASSES[1:])

    def test_splits_of_different_tokenizers(self):
        self.refused(DATA, "text/test.h5 and bytes/train.h5", "different tokenizers",
                     "import both splits together", settings=BYTES[:1], grid=(1, 1, 2))
        self.refused(DATA, "bytes/test.h5", "256 token ids", "26 token ids",
                     settings=BYTES[1:])
        self.refused(DATA, "swapped/test.h5 and text/train.h5", "different tokenizers",
                     settings=["--data.test=swapped/test.h5"])

    def test_checkpoints(self):
        self.train(self.config, (1, 1, 2), "done", "--train.steps=1")
        again = ["--run.resume=must"]
        self.refused(CHECKPOINT, "checkpoint of another model",
                     "embedding.tokens.weight (26 x 32 float32)",
                     "embedding.tokens.weight (256 x 32 float32)", settings=[*again, *BYTES],
                     run="done", grid=(1, 1, 2))
        for setting, words in [
                ("numerics.dtype=bfloat16", ["numerics.dtype", "float32", "bfloat16"]),
                ("data.sampling=windows", ["data.sampling", "blocks", "windows"]),
                ("data.train=other/train.h5", ["done"])]:
            self.refused(USAGE, "holds another run", *words, run="done", settings=[*again, f"--{setting}", "--data.test="])
        self.refused(CHECKPOINT, "another model", "positions",
                     settings=[*again, "--model.context=8"], run="done")
        self.train(self.config, (1, 1, 1), "rotary", *language.LLAMA, "--train.steps=1")
        self.refused(USAGE, "holds another run", "model.context is 16, here it is 8", run="rotary",
                     settings=[*again, *language.LLAMA, "--model.context=8"])
        # Tensors of the same shapes, which other heads would read as something else.
        self.refused(CHECKPOINT, 'its layer 1 is "attention 4', '"attention 8',
                     settings=[*again, "--model.heads=8"], run="done")
        for code, words, settings in [
                (CHECKPOINT, ["another model", "attention 8"], ["--model.heads=8"]),
                (DATA, ["swapped/test.h5 and done/checkpoints/step-00000001/master.h5", "different tokenizers"],
                 ["--data.test=swapped/test.h5"])]:
            refused = self.alone("evaluate", self.config, "--run.dir=done", *settings)
            self.assert_refused(refused, code, *words)

    def generate(self, *arguments, run="spoken"):
        """Generates without mpirun; its exit code, standard output and standard error apart."""
        command = [harness.STRATA, "generate", self.config, f"--run.dir={run}", *arguments]
        done = subprocess.run(command, cwd=self.directory, timeout=60 * harness.LENIENCE,
                              env={**os.environ, **harness.LAUNCH_ENVIRONMENT}, check=False,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def generate_refused(self, code, *words, arguments, run="spoken"):
        with self.subTest(arguments=arguments):
            ended, spoken, said = self.generate(*arguments, run=run)
            self.assertEqual(ended, code, said)
            self.assertEqual(spoken, "")
            # Nothing but the report: no banner of the message library.
            self.assertEqual(len(said.splitlines()), 1, said)
            for word in ["strata: ", *words]:
                self.assertIn(word, said)

    def test_generation(self):
        self.train(self.config, (1, 1, 1), "spoken", "--checkpoint.every=2")
        for arguments, words in [
                (["--prompt="], ["--prompt is empty", "leave --prompt out"]),
                (["--prompt"], ["--prompt has no value", "--prompt=VALUE"]),
                (["--prompt", "--tokens=3"], ["--prompt has no value"]),
                (["--prompt=oak", "--seed"], ["--seed has no value"]),
                (["--prompt=" + 17 * "a"], ["the prompt has 17 tokens", "1 to 16", "shorten it"]),
                ([], ["no line feed to begin with", "--prompt=TEXT"]),
                (["--prompt=oak", "--tokens=99999999999999"], ["--tokens is", "from 1 to 1000000000"]),
                (["--prompt=oak", "--seed=-1"], ['--seed is "-1"', "from 0 to"]),
                (["--prompt=oak", "--batch.global=0"], ["batch.global"]),
                (["--prompt=OAK"], ["--prompt", "the character", "is not among the 26"]),
                (["--prompt=oak", "--min-p=1.5"], ['--min-p is "1.5"', "from 0 to 1"]),
                (["--prompt=oak", "--repetition-penalty=0"], ["--repetition-penalty is", "from 0.01 to 100"]),
                (["--prompt=oak", "--stop="], ["--stop is", "not empty"]),
                (["--prompt=oak", "--stop=[]"], ["--stop is", "not empty"]),
                (["--prompt=oak", '--stop=["a", 1]'], ["--stop is", "a list of such texts in JSON"]),
                (["--prompt=oak", "--prompts=p.jsonl"], ["--prompts and --prompt exclude each other"]),
                (["--prompt=oak", "--chat"], ["--chat and --prompt exclude each other"]),
                (["--prompts=p.jsonl", "--chat"], ["--chat and --prompts exclude each other"]),
                (["--samples=2", "--chat"], ["--chat and --samples exclude each other"]),
                (["--prompt=oak", "--output=x"], ["--output does nothing without --prompts"]),
                (["--prompt=oak", "--system=x"], ["--system does nothing without --chat"]),
                (["--prompt=oak", "--template=chatml"], ["--template does nothing without --chat"]),
                (["--chat"], ["--chat needs --template=NAME", "does not say which template"]),
                (["--chat", "--template=chat"], ["--template=chat is not known; known are chatml"]),
                ([b"--prompt=oak\xff"], ["--prompt", "not valid UTF-8 at its byte 3"])]:
            self.generate_refused(USAGE, *words, arguments=arguments)
        self.generate_refused(CHECKPOINT, "there is no checkpoint", arguments=["--prompt=oak"],
                              run="none")
        prompt = "--prompt=" + language.WORDS[0]
        # The test split is not read, and a tiny temperature is as none.
        for further in (["--data.test=missing/test.h5"], ["--temperature=1e-320"],
                        ["--temperature=0"]):
            code, spoken, said = self.generate(prompt, "--tokens=5", *further)
            self.assertEqual(code, DONE, said)
            self.assertEqual(len(spoken), len(language.WORDS[0]) + 5 + 1, spoken)
            self.assertNotIn("warning", said)
        # A text ends before the first stop text, which may lie across tokens.
        _, whole, _ = self.generate(prompt, "--tokens=12", "--temperature=0")
        made = whole[len(language.WORDS[0]):-1]
        for stops, ends in ((["--stop=" + made[3:6]], made.find(made[3:6])), (["--stop=" + json.dumps(["#", made[2]])], made.find(made[2])),
                            (["--stop=#", "--stop=" + made[5:7]], made.find(made[5:7])), (["--stop=" + made + "#"], 12)):
            _, spoken, _ = self.generate(prompt, "--tokens=12", "--temperature=0", *stops)
            self.assertEqual(spoken, language.WORDS[0] + made[:ends] + "\n")
        _, spoken, _ = self.generate(prompt, "--tokens=12", "--temperature=0", "--repetition-penalty=100")
        self.assertGreater(len(set(spoken)), len(set(whole)), [spoken, whole])
        # The config file may follow the options.
        self.alone("generate", "--run.dir=spoken", prompt, "--tokens=5", self.config, expect=DONE)
        self.alone("generate", "--tokens", "5", self.config, "--run.dir=spoken", prompt, expect=DONE)
        done = self.alone("generate", self.config, "--tokens=5", "run.ini", prompt)
        self.assert_refused(done, USAGE, "needs one config file")

    def test_generation_on_ranks(self):
        """What fails on one rank ends all of them, with one message."""
        self.train(self.config, (1, 1, 1), "ranks")
        self.train(self.config, (1, 1, 1), "huge", "--optimizer.learning_rate=1e25", "--optimizer.clip_norm=0",
                   "--train.steps=1", "--data.test=")
        for name, text in (("empty", ""), ("long", '{"prompt": "oak"}\n{"prompt": "%s"}' % ("a" * 17)), ("good", '{"prompt": "oak"}\n' * 9)):
            (self.directory / f"{name}.jsonl").write_text(text)
        grids = ["--parallel.pipeline=2", "--parallel.tensor=2"], ["--parallel.pipeline=1", "--parallel.tensor=1"]
        for number, (code, words, arguments) in enumerate((
                (USAGE, ["the prompt has 17 tokens", "shorten it"], ["--prompt=" + 17 * "a"]),
                (USAGE, ["long.jsonl:2: the prompt has 17 tokens"], ["--prompts=long.jsonl"]),
                (DATA, ["empty.jsonl is empty"], ["--prompts=empty.jsonl"]),
                (DATA, ["none.jsonl does not exist"], ["--prompts=none.jsonl"]),
                (USAGE, ["--output=good.jsonl is the file of --prompts"], ["--prompts=good.jsonl", "--output=good.jsonl"]),
                (DATA, ["cannot write to the file of --output: No space left"], ["--prompts=good.jsonl", "--output=/dev/full"]),
                (DIVERGED, ["logit of token", "must be finite"], ["--prompts=good.jsonl", "--run.dir=huge"]))):
            with self.subTest(arguments=arguments):
                given = [self.config, "--run.dir=ranks", *grids[number % 2], *arguments]
                refused = self.launch(4, "generate", *given)
                self.assert_refused(refused, code, *words)
                if any(".jsonl" in word for word in words):
                    self.assertNotIn("rank 0: ", refused.text)
        for number, grid in ((signal.SIGTERM, grids[0]), (signal.SIGINT, grids[1]), (signal.SIGKILL, grids[0])):
            with self.subTest(number=number):
                job = self.start(4, "generate", "ranks", *grid, "--prompt=oak", "--samples=1000000", "--tokens=10")
                job.wait_until(lambda job=job: len(job.text()) > 100, 60)
                ranks = job.ranks()
                # As a user stops the launcher; a rank is killed.
                os.kill(ranks[1] if number == signal.SIGKILL else job.process.pid, number)
                self.assertNotEqual(job.wait(30).code, DONE)
                self.assertEqual([pid for pid in ranks if harness.is_running(pid)], [])
        self.assertEqual(self.launch(3, "generate", "ranks", "--prompt=oak", "--tokens=3", expect=DONE).text.count("tokens/s"), 1)

    def test_generation_where_nothing_can_be_written(self):
        self.train(self.config, (1, 1, 1), "unheard")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([harness.STRATA, "generate", self.config, "--run.dir=unheard",
                                   "--prompt=oak"], cwd=self.directory, timeout=60 * harness.LENIENCE, stdout=full,
                                  stderr=subprocess.PIPE, text=True, check=False,
                                  env={**os.environ, **harness.LAUNCH_ENVIRONMENT})
        self.assertEqual(done.returncode, DATA, done.stderr)
        self.assertIn("cannot write to the standard output: No space left", done.stderr)

    def test_generation_with_a_damaged_newest_checkpoint(self):
        self.train(self.config, (1, 1, 1), "damaged", "--checkpoint.every=2")
        newest = harness.checkpoints(self.directory / "damaged")[-1]
        with h5py.File(newest / "part-00000.h5") as file:
            offset = file["slice-00000"].id.get_offset() + 8
        flip_byte(newest / "part-00000.h5", offset)
        code, spoken, said = self.generate("--prompt=" + language.WORDS[0], "--tokens=5",
                                           run="damaged")
        self.assertEqual(code, DONE, said)
        self.assertEqual(len(spoken), len(language.WORDS[0]) + 5 + 1, spoken)
        self.assertIn("warning: passing over a bad checkpoint", said)
        self.assertIn(newest.name, said)


if __name__ == "__main__":
    harness.main()
