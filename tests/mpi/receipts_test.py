"""Receipts: a run's steps computed again on other grids, and what a forger or a fault changes."""

import hashlib
import json
import shutil

import harness
from harness import CHECKPOINT, DATA, DONE, USAGE

NETWORK = harness.config_text(
    ["dense 16 parallel=column relu", "dense 12 parallel=row relu", "dropout 0.2", "dense 8 relu", "dense 4"],
    batch={"global": 16}, numerics={"lanes": 4, "shards": 2}, optimizer={"kind": "adam", "learning_rate": 0.005},
    train={"steps": 12, "repeat_every": 0}, checkpoint={"every": 4, "keep": 9}, run={"receipts": 1})


def chained(lines):
    """Lines of receipts, each with the hash of itself and the line before, as docs/receipts.md says."""
    before, text = "strata receipts 1", ""
    for line in lines:
        body = line.rsplit(',"sha256":', 1)[0]
        before = hashlib.sha256((before + body).encode()).hexdigest()
        text += f'{body},"sha256":"{before}"}}\n'
    return text


class Receipts(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=30)
        cls().train(cls.config, (2, 2, 2), "run")

    def lines(self, run="run"):
        return (self.directory / run / "receipts.jsonl").read_text().splitlines()

    def forged(self, name, text):
        """A copy of the run with other receipts."""
        shutil.rmtree(self.directory / name, ignore_errors=True)
        shutil.copytree(self.directory / "run", self.directory / name)
        (self.directory / name / "receipts.jsonl").write_text(text)
        return name

    def test_other_grids_compute_the_same(self):
        self.assertEqual(chained(self.lines()).splitlines(), self.lines())
        self.assertTrue(all(len(line) < 400 for line in self.lines()[1:]))
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                found = self.launch(ranks, "replay", "run", "--steps=6-12", expect=DONE)
                self.assertIn("run: steps 5 to 12 are equal", found.text)
        self.alone("replay", "run", "--steps=2-4", "--ranks=3", expect=DONE)  # from the initial weights
        before = sorted(self.directory.rglob("*"))
        found = self.alone("verify", "run", "--stretches=3", "--length=3", "--output=certificate.json", expect=DONE)
        certificate = json.loads((self.directory / "certificate.json").read_text())
        self.assertEqual(json.loads(found.text), certificate)
        self.assertEqual(certificate["checkpoints_equal"], [12, 8, 4])
        self.assertEqual(sorted(stretch["first"] for stretch in certificate["recomputed_equal"]), [1, 5, 9])
        self.assertEqual([certificate[key] for key in ("steps_recomputed", "steps_not_recomputed", "digests_compared")], [9, 3, 9])
        self.assertEqual(certificate["receipts_sha256"], json.loads(self.lines()[-1])["sha256"])
        self.assertEqual(sorted(self.directory.rglob("*")), sorted([*before, self.directory / "certificate.json"]))

    def test_a_flipped_bit_is_found_where_it_was(self):
        # Rank 2 of 4 holds the second stage.
        for place, step, rank, difference in [("weights", 3, 0, "weights differ in weights/"),
                                              ("state", 7, 2, "state differ in optimizer/"),
                                              ("gradient", 5, 2, "gradients differ in gradients/")]:
            with self.subTest(place), harness.rig(FAULT=f"flip-{place}:{step}:{rank}"):
                self.train(self.config, (2, 2), place, "--train.check=off")
            found = self.alone("replay", place, "--steps=1-9")
            self.assert_refused(found, CHECKPOINT, f"step {step}: {difference}")

    def test_a_resumed_run_has_one_chain(self):
        self.train(self.config, (2, 1), "resumed", "--train.steps=12", "--checkpoint.every=4")
        lines = self.lines("resumed")
        for name in ("step-00000012", "step-00000008"):
            shutil.rmtree(self.directory / "resumed/checkpoints" / name)
        # As a crash may leave it.
        (self.directory / "resumed/receipts.jsonl").write_text("\n".join(lines)[:-50])
        self.train(self.config, (1, 2), "resumed", "--run.resume=auto")
        steps = [line for line in map(json.loads, self.lines("resumed")) if "step" in line]
        expected = [line for line in map(json.loads, self.lines()) if "step" in line]
        for line in steps + expected:
            del line["sha256"]
        self.assertEqual(steps, expected)
        self.alone("verify", "resumed", expect=DONE)

    def test_a_consented_change_of_the_virtual_grid(self):
        self.train(self.config, (1, 1), "consent", "--checkpoint.every=4", "--train.steps=12")
        shutil.rmtree(self.directory / "consent/checkpoints/step-00000012")
        self.train(self.config, (2, 1), "consent", "--run.resume=auto", "--numerics.lanes=2")
        starts = [line for line in map(json.loads, self.lines("consent")) if "start" in line]
        self.assertEqual([(line["start"], line["lanes"]) for line in starts], [(0, 4), (8, 2)])
        for steps in ("2-3", "9-12"):
            self.alone("replay", "consent", f"--steps={steps}", expect=DONE)
        shutil.rmtree(self.directory / "consent/checkpoints/step-00000008")
        self.assert_refused(self.alone("replay", "consent", "--steps=9-12"), CHECKPOINT, "cannot be computed from",
                            "step-00000004", "after step 8 with other settings or lanes")

    def test_runs_that_went_on(self):
        def train(name, *settings):
            self.alone("train", self.config, f"--run.dir={name}", *settings, expect=DONE)

        first = ["--train.steps=8"]
        for name, before, after in [("extended", first, []), ("faster", first, ["--optimizer.learning_rate=0.01"]),
                                    ("late", [*first, "--run.receipts=off"], []), ("off", first, ["--run.receipts=off"])]:
            train(name, *before)
            train(name, "--run.resume=auto", *after)
        lines = self.lines()
        save = next(line for line in lines if line.startswith('{"save":8,'))
        # A full disk from step 6 on, until the run went on after step 8.
        again = lines[0].replace('"start":0', '"start":8').replace(
            json.loads(lines[0])["tensors"], json.loads(save)["tensors"])
        step = {number: next(i for i, line in enumerate(lines) if line.startswith(f'{{"step":{number},')) for number in (6, 9)}
        rest = [line for line in lines[step[9]:] if '"save":8' not in line]
        self.forged("gap", chained([*(line for line in lines[:step[6]] if "save" not in line), again, save, *rest]))
        # The same up to the end.
        self.forged("ended", chained([line for line in lines[:step[6]] if "save" not in line]))
        self.assert_refused(self.alone("verify", "ended"), CHECKPOINT, "no line about", "continue the run with --run.resume=auto")
        train("ended", "--run.resume=auto")
        train("sparse", "--run.receipts=5", "--checkpoint.every=3")
        for name, settings, stretches, wanted in [
                ("extended", [], [[1, 4], [5, 8], [9, 12]], {"other_settings": []}),
                ("faster", [], [[9, 12]], {"other_settings": [[1, 8]]}),
                ("faster", ["--optimizer.learning_rate=0.005"], [[1, 4], [5, 8]], {"other_settings": [[9, 12]]}),
                ("late", [], [[9, 12]], {"checkpoints_without_receipts": [4], "checkpoints_equal": [12, 8],
                                         "steps_without_receipts": 8}),
                ("gap", [], [[1, 4], [5, 5], [9, 12]], {"checkpoints_without_receipts": [4], "checkpoints_equal": [12, 8],
                                                        "steps_without_receipts": 3}),
                ("ended", [], [[1, 4], [5, 5]], {"checkpoints_without_receipts": [8, 4], "checkpoints_equal": [12], "steps": 12,
                                                 "steps_without_receipts": 7}),
                # Of the stretches of 2 steps the ones that reach the digests of steps 5 and 10.
                ("sparse", ["--stretches=2", "--length=2"], [[4, 5], [10, 11]], {"digests_compared": 2})]:
            with self.subTest(name, settings=settings):
                certificate = json.loads(self.alone("verify", name, "--stretches=9", *settings, expect=DONE).text)
                found = sorted([stretch["first"], stretch["last"]] for stretch in certificate["recomputed_equal"])
                self.assertEqual(found, stretches)
                self.assertEqual({key: certificate[key] for key in wanted}, wanted)
        self.alone("replay", "gap", "--steps=9-12", expect=DONE)
        self.alone("replay", "off", "--steps=2-8", expect=DONE)
        for name, steps, words in [("gap", "5-9", ["step 6: the run has no receipt"]),
                                   ("late", "2-4", ["from the initial weights", "only after step 8"]),
                                   ("faster", "7-9", ["after step 8 with other settings", "choose steps up to 8"])]:
            self.assert_refused(self.alone("replay", name, f"--steps={steps}"), CHECKPOINT, *words)

    def test_islands(self):
        self.train(self.config, (2, 2), "islands", "--parallel.sync=local", "--parallel.islands=2", "--local.steps=2",
                   "--checkpoint.every=4")
        self.alone("replay", "islands", "--steps=5-8", expect=DONE)

    def test_forgeries(self):
        lines = self.lines()
        step = next(i for i, line in enumerate(lines) if line.startswith('{"step":6,'))
        other = [line.replace('"loss":"3', '"loss":"2') if i == step else line for i, line in enumerate(lines)]
        self.train(self.config, (1, 1), "other", "--run.seed=5")
        text = "\n".join(lines) + "\n"
        tensors = json.loads(lines[0])["tensors"]
        for name, forged, words in [
                ("changed", text.replace(lines[step], other[step]), [f"line {step + 1} does not follow"]),
                ("removed", text.replace(lines[step] + "\n", ""), [f"line {step + 1} does not follow"]),
                ("swapped", text.replace(lines[step] + "\n" + lines[step + 1], lines[step + 1] + "\n" + lines[step]),
                 [f"line {step + 1} does not follow"]),
                ("chained anew", chained(other), ["step 6: loss differ"]),
                ("removed and chained anew", chained(lines[:step] + lines[step + 1:]), ["of step 7, where step 6 was expected"]),
                ("end removed", "\n".join(lines[:-3]) + "\n", ["no line about", "step-00000012"]),
                ("torn", text[:-9], ["is torn, as by a crash", "--run.resume=auto"]),
                ("torn within", text[:-9] + "\n", ["is no receipt"]),
                ("begun elsewhere", chained([lines[0].replace(tensors, tensors[::-1]), *lines[1:]]),
                 ["the state before step 1 differs: checkpoint.init"]),
                ("another machine's", chained([lines[0].replace('"strata":"', '"strata":"9.'), *other[1:]]),
                 ["step 6: loss differ", 'strata: the run had "9.', "need not have the same bits"]),
                *((f"lacks {key}", chained([line.replace(was, now, 1) for line in lines]), [f"lacks {key}"])
                  for key, was, now in [("lanes", '"lanes":4,', ""), ("shards", '"shards":2', '"shards":"2"'),
                                        ("run", '"run":"', '"ran":"'),
                                        ("environment", '"environment":{', '"environment":"", "other":{'),
                                        ("tensors", '"tensors":"', '"tensors":"0'), ("weights", '"weights":"', '"weights":"x'),
                                        ("loss", '"loss":"', '"loss":0,"x":"'), ("files", '"files":', '"file":')]),
                ("empty", "", ["has no lines"]),
                ("no start", chained(lines[1:]), ["line 1 starts after step -1"]),
                ("no JSON", "{\n" + text, ["line 1 is no receipt"]),
                ("another run's", "\n".join(self.lines("other")) + "\n", ["is not the checkpoint that the run wrote"])]:
            with self.subTest(name):
                self.assert_refused(self.alone("verify", self.forged("forged", forged), "--stretches=9"), CHECKPOINT, *words)
        shutil.rmtree(self.directory / "forged/checkpoints")
        self.assert_refused(self.alone("replay", "forged", "--steps=1-2"), CHECKPOINT, "of another run than its config.ini")
        checkpoints = self.directory / self.forged("forged", text) / "checkpoints"
        shutil.rmtree(checkpoints)
        self.train(self.config, (1, 1), "slower", "--optimizer.beta1=0.8")
        shutil.copytree(self.directory / "slower/checkpoints/step-00000008", checkpoints / "step-00000008")
        self.assert_refused(self.alone("verify", "forged"), CHECKPOINT, "step-00000008 is not the checkpoint that the run wrote")
        # A resume takes it for good without receipts: its settings are the run's.
        self.assert_refused(self.launch(1, "train", self.config, "--run.dir=forged", "--run.resume=auto"), CHECKPOINT,
                            "the checkpoint of step 8 is not the one that the run wrote")

    def test_refusals(self):
        for steps in ("0-3", "4-2", "x", "-3", "3-", "1-13"):
            self.assert_refused(self.alone("replay", "run", f"--steps={steps}"), USAGE, "--steps")
        self.assert_refused(self.alone("replay", "nowhere", "--steps=1-2"), CHECKPOINT, "there is no nowhere/receipts.jsonl")
        self.assert_refused(self.alone("replay", "run", "--steps=1-2", "--optimizer.learning_rate=1"), CHECKPOINT,
                            "of another run than its config.ini")
        self.assert_refused(self.alone("replay", "run", "--steps=1-2", "--data.train=none.h5"), DATA,
                            "none.h5 does not exist; if the data set is elsewhere, give its place as --data.train=FILE")


if __name__ == "__main__":
    harness.main()
