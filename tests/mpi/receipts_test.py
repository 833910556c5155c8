"""Receipts: a run's steps computed again on other grids, and what a forger or a fault changes."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import unittest.mock

import numpy as np

import harness
import language
from harness import CHECKPOINT, DATA, DIVERGED, DONE, STOPPED_EARLY, USAGE

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


def read_tensors(path):
    """The tensors of a file of safetensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "F64": np.float64}
    return {name: np.frombuffer(data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]],
                                types[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}


class Receipts(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=100, test=30)
        cls().train(cls.config, (2, 2, 2), "run")

    def lines(self, run="run"):
        return (self.directory / run / "receipts.jsonl").read_text().splitlines()

    def forged(self, name, text, run="run"):
        """A copy of a run with other receipts."""
        shutil.rmtree(self.directory / name, ignore_errors=True)
        shutil.copytree(self.directory / run, self.directory / name)
        (self.directory / name / "receipts.jsonl").write_text(text)
        return name

    def with_gap(self, run="run"):
        """Lines of a run whose disk was full from step 6 on, until it went on after step 8: those before and after."""
        lines = self.lines(run)
        save = next(line for line in lines if line.startswith('{"save":8,'))
        again = lines[0].replace('"start":0', '"start":8').replace(
            json.loads(lines[0])["tensors"], json.loads(save)["tensors"])
        step = {number: next(i for i, line in enumerate(lines) if line.startswith(f'{{"step":{number},')) for number in (6, 9)}
        return ([line for line in lines[:step[6]] if "save" not in line],
                [again, save, *(line for line in lines[step[9]:] if '"save":8' not in line)])

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
        before, after = self.with_gap()
        self.forged("gap", chained(before + after))
        self.forged("ended", chained(before))
        self.assert_refused(self.alone("verify", "ended"), CHECKPOINT, "no line about", "continue the run with --run.resume=auto")
        train("ended", "--run.resume=auto")
        train("sparse", "--run.receipts=5", "--checkpoint.every=3")
        for name, settings, stretches, wanted in [
                ("extended", [], [[1, 4], [5, 8], [9, 12]], {"other_settings": []}),
                ("faster", [], [[9, 12]], {"other_settings": [[1, 8]]}),
                ("faster", ["--optimizer.learning_rate=0.005"], [[1, 4], [5, 8]], {"other_settings": [[9, 12]]}),
                ("faster", ["--stretches=0"], [], {"other_settings": [[1, 8]]}),
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

    def test_tensors_of_a_step(self):
        for number, (ranks, *grid) in enumerate([(1,), (2, "--parallel.tensor=2"), (2, "--parallel.pipeline=2"),
                                                 (4, "--parallel.data=2", "--parallel.tensor=2")]):
            found = self.launch(ranks, "replay", "run", "--steps=9-10", "--dump-step=9", "--dump=weights,gradients,state,activations",
                                f"--output=dump-{number}", *grid, expect=DONE)
            self.assertIn(f"tensors of step 9: dump-{number}/step-00000009.safetensors", found.text)
            self.assertEqual([path.name for path in (self.directory / f"dump-{number}").iterdir()], ["step-00000009.safetensors"])
        files = [(self.directory / f"dump-{number}/step-00000009.safetensors").read_bytes() for number in range(4)]
        self.assertEqual(files[1:], files[:1] * 3)
        found = read_tensors(self.directory / "dump-0/step-00000009.safetensors")
        names = harness.tensors(self.directory / "run/checkpoints/step-00000008")
        for name, stored in names.items():
            np.testing.assert_array_equal(found.pop(name), stored, name)
        gradients = {name for name in found if name.startswith("gradients/")}
        self.assertEqual(gradients, {f"gradients/{name[8:]}" for name in names if name.startswith("weights/")})
        out = {name[12:]: found[name] for name in found if name.startswith("activations/")}
        self.assertEqual({name: value.shape for name, value in out.items()},
                         {"dense1": (16, 16), "dense2": (16, 12), "dropout1": (16, 12), "dense3": (16, 8), "dense4": (16, 4)})
        weights = read_tensors(self.directory / "dump-0/step-00000009.safetensors")
        for layer, source, relu in (("dense2", "dense1", True), ("dense3", "dropout1", True), ("dense4", "dense3", False)):
            product = out[source] @ weights[f"weights/{layer}.weight"].T + weights[f"weights/{layer}.bias"]
            np.testing.assert_allclose(out[layer], np.maximum(product, 0) if relu else product, rtol=1e-5, atol=1e-6)
        # Of the mean loss: each bias has the sum over samples of what the layer's output has.
        self.assertLess(abs(found["gradients/dense4.bias"].sum()), 1e-6)  # softmax minus one-hot
        self.alone("replay", "run", "--steps=3", "--dump=gradients:*.bias,activations:dense[12]", expect=DONE)
        self.assertEqual(list(read_tensors(self.directory / "dump/step-00000003.safetensors")),
                         ["activations/dense1", "activations/dense2", *(f"gradients/dense{i}.bias" for i in (1, 2, 3, 4))])

    def without_room(self, *arguments, path, **more):
        """Runs strata alone, where writes to files of this name find a full disk."""
        fault = ",".join(["call=write", "error=ENOSPC", f"path={path}", *(f"{key}={value}" for key, value in more.items())])
        with unittest.mock.patch.dict(os.environ, LD_PRELOAD=os.environ["STRATA_FAULT_SHIM"], STRATA_FAULT=fault):
            return self.alone(*arguments)

    @contextlib.contextmanager
    def slow_at(self, call):
        """One call takes 6 seconds; yields what tells whether it has come."""
        log = self.directory / "slow.log"
        log.unlink(missing_ok=True)
        with unittest.mock.patch.dict(os.environ, LD_PRELOAD=os.environ["STRATA_FAULT_SHIM"], STRATA_FAULT_LOG=str(log),
                                      STRATA_FAULT=f"{call},error=slow,seconds=6"):
            yield log.exists

    def test_a_replay_without_room(self):
        other = [line.replace('"loss":"3', '"loss":"2') if line.startswith('{"step":6,') else line for line in self.lines()]
        self.forged("forged", chained(other))
        # The start's line, that of step 6, and the last, with the digest of the state.
        for line, arguments in [(1, ["replay", "run", "--steps=5-8"]), (3, ["replay", "run", "--steps=5-8"]),
                                (6, ["replay", "run", "--steps=5-8"]), (3, ["verify", "run"]),
                                (2, ["replay", "--bisect", "run", "forged"]), (2, ["replay", "--bisect", "forged", "run"])]:
            with self.subTest(arguments, line=line):
                found = self.without_room(*arguments, path="/strata-replay-", n=line, last="")
                self.assert_refused(found, USAGE, "receipts.jsonl of the replay cannot be written in", "set TMPDIR to a directory")

    def test_a_stop_request_to_one_rank(self):
        with self.slow_at("call=write,n=2,path=/strata-replay-") as met:
            job = self.start(2, "replay", "run", "--steps=1-12", "--parallel.data=2")
            job.wait_until(met, 60)
            os.kill(job.ranks()[1], signal.SIGUSR1)
            found = job.wait(60)
        self.assert_refused(found, STOPPED_EARLY, "stopped on request after step")

    def test_the_step_in_which_a_run_diverged(self):
        with harness.rig(FAULT="gradient:6:0"):
            self.train(self.config, (1, 1), "diverged", expect=DIVERGED)
        steep = ["--optimizer.kind=sgd", "--optimizer.learning_rate=1e30", "--train.steps=9"]
        self.train(self.config, (2, 1), "steep", *steep, expect=DIVERGED)
        last = json.loads([line for line in self.lines("steep") if line.startswith('{"step":')][-1])["step"]
        for ranks in (1, 2):
            found = self.launch(ranks, "replay", "steep", f"--steps={last + 1}", "--dump=gradients,activations", f"--output=steep-{ranks}")
            self.assertIn(f"tensors of step {last + 1}: steep-{ranks}/step-", found.text)
            self.assert_refused(found, DIVERGED, f"the run diverged: at step {last + 1} the loss is")
        files = [next((self.directory / f"steep-{ranks}").iterdir()) for ranks in (1, 2)]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())
        self.assertFalse(all(np.isfinite(tensor).all() for tensor in read_tensors(files[0]).values()))
        found = self.without_room("replay", "steep", f"--steps={last + 1}", "--dump=weights", "--output=full", path="/tensors", n=1)
        self.assert_refused(found, USAGE, "/tensors", "free some space, or choose another --output")
        # Other islands may not have come to the step.
        self.train(self.config, (1, 1), "steep-islands", "--parallel.sync=local", "--parallel.islands=2", "--local.steps=1", *steep,
                   expect=DIVERGED)
        last = json.loads(self.lines("steep-islands")[-1])["step"]
        found = self.alone("replay", "steep-islands", f"--steps={last + 1}", "--dump=gradients", "--output=full")
        self.assert_refused(found, USAGE, f"up to step {last}")
        # Receipts from a later start on, after which there is no step.
        self.train(self.config, (1, 1), "late-steep", "--run.receipts=off", "--train.steps=4")
        with harness.rig(FAULT="gradient:5:0"):
            self.train(self.config, (1, 1), "late-steep", "--run.resume=auto", expect=DIVERGED)
        self.alone("replay", "late-steep", "--steps=5", "--dump=gradients", "--output=late-dump", expect=CHECKPOINT)
        self.assertTrue((self.directory / "late-dump/step-00000005.safetensors").exists())
        with harness.rig(FAULT="gradient:1:0"):
            self.train(self.config, (1, 1), "at-once", expect=DIVERGED)
        self.alone("replay", "at-once", "--steps=1", "--dump=gradients", "--output=at-once-dump")
        self.assertTrue((self.directory / "at-once-dump/step-00000001.safetensors").exists())
        self.assert_refused(self.alone("replay", "at-once", "--steps=1"), CHECKPOINT, "no step yet")
        # A fault that does not come again.
        found = self.alone("replay", "diverged", "--steps=5-6", "--dump=gradients", "--output=diverged-dump")
        self.assert_refused(found, CHECKPOINT, "step 6: the run has no receipt")
        self.assertNotIn("fault of this machine", found.text)
        self.assertTrue(np.isfinite(read_tensors(self.directory / "diverged-dump/step-00000006.safetensors")["gradients/dense1.bias"]).all())
        for run, steps, words in [("diverged", "5-6", ["up to step 5"]), ("diverged", "7", ["up to step 5"]),
                                  ("run", "13", ["--steps ends at 13, and run with step 12"])]:
            found = self.alone("replay", run, f"--steps={steps}", *([] if "-" in steps else ["--dump=weights", "--output=none"]))
            self.assert_refused(found, USAGE, *words)
            self.assertFalse((self.directory / "none").exists())

    def test_a_checkpoint_that_goes_while_it_is_verified(self):
        shutil.copytree(self.directory / "run", self.directory / "pruned")
        with self.slow_at("call=open,n=1,path=step-00000008/part-") as met:
            job = harness.Job([harness.STRATA, "verify", "pruned", "--stretches=9"], self.directory)
            job.wait_until(met, 60)
            (self.directory / "pruned/checkpoints/step-00000008").rename(self.directory / "gone")
            found = job.wait(60)
        self.assertEqual(found.code, DONE, found.text)
        certificate = json.loads(found.text)
        self.assertEqual(certificate["checkpoints_equal"], [12, 4])
        self.assertEqual(sorted(stretch["first"] for stretch in certificate["recomputed_equal"]), [1, 5])

    def test_a_run_directory_among_the_settings_keeps_its_receipts(self):
        lines = self.lines()
        self.forged("forged", chained([line.replace('"loss":"3', '"loss":"2') if '"step":6,' in line else line for line in lines]))
        for command in (["replay", "run", "--steps=6-7"], ["replay", "run", "--steps=1-2"], ["verify", "run"]):
            self.alone(*command, "--run.dir=run", expect=DONE)
            self.assertEqual(self.lines(), lines)
        self.assert_refused(self.alone("replay", "--bisect", "run", "forged", "--run.dir=run"), CHECKPOINT, "forged went wrong in step 6")
        self.assertEqual(self.lines(), lines)

    def test_a_dump_without_room(self):
        for file in ("/part-", "/master.h5", "/tensors"):
            with self.subTest(file):
                found = self.without_room("replay", "run", "--steps=1-2", "--dump=weights", "--output=full", path=file, n=1)
                self.assert_refused(found, USAGE, file, "No space left on device; free some space, or choose another --output")
                self.assertNotIn("checkpoint", found.text)
            self.assertFalse((self.directory / "full").exists())

    def test_a_replay_ends_with_the_messages_of_its_last_update(self):
        # Weights of more bytes than MPI sends at once, and an end that needs no digest.
        wide = NETWORK.replace("dense 16 parallel=column relu", "dense 1024 relu\nlayer = dense 1024 relu\nlayer = dense 16 parallel=column relu")
        self.write_config("wide.ini", wide)
        self.train("wide.ini", (1, 1, 1), "wide", "--run.receipts=500", "--train.steps=4")
        found = self.launch(2, "replay", "wide", "--steps=1-2", "--parallel.data=2", expect=DONE)
        self.assertIn("steps 1 to 2 are equal", found.text)

    def test_a_configuration_of_openssl_changes_nothing(self):
        settings = self.directory / "openssl.cnf"
        settings.write_text("openssl_conf = init\n[init]\nalg_section = algorithms\n[algorithms]\ndefault_properties = fips=yes\n")
        with unittest.mock.patch.dict(os.environ, OPENSSL_CONF=str(settings)):
            self.train(self.config, (1, 1, 1), "fips")
        self.assertEqual(chained(self.lines("fips")).splitlines(), self.lines("fips"))

    def test_where_two_runs_parted(self):
        for name, fault, settings in [("later", "flip-weights:7:0", []), ("summed", "flip-gradient:7:2", []),
                                      ("seldom", "flip-weights:7:0", ["--run.receipts=5"])]:
            with harness.rig(FAULT=fault):
                self.train(self.config, (2, 2), name, "--train.check=off", *settings)
        self.train(self.config, (1, 2), "fifth", "--run.receipts=5")
        before = sorted(self.directory.rglob("*"))
        for runs in (("run", "later"), ("later", "run")):
            found = self.alone("replay", "--bisect", *runs)
            self.assert_refused(found, CHECKPOINT, "later went wrong in the update of step 6, or in memory after it; run is what")
            self.assertIn(f"{runs[0]} and {runs[1]} are equal up to step 6; step 7: weights differ in weights/", found.text)
            self.assertIn("computed again from the checkpoint of step 4 of", found.text)
            self.assertIn("  run: equal", found.text)
            self.assertIn("  later: step 7: weights differ in weights/", found.text)
        found = self.launch(2, "replay", "--bisect", "run", "summed")
        self.assert_refused(found, CHECKPOINT, "summed went wrong in step 7; run is what")
        self.assertIn("step 7: gradients differ in gradients/", found.text)
        self.assert_refused(self.alone("replay", "--bisect", "later", "summed"), CHECKPOINT, "both differ from what this machine computes")
        # The loss or the checkpoint of step 8 differs; digests before are of step 5.
        found = self.alone("replay", "--bisect", "seldom", "fifth")
        self.assert_refused(found, CHECKPOINT, "seldom went wrong in one of the steps 5 to", "with run.receipts = 1 it would name one")
        # Without the checkpoint of step 4, or all, earlier ones are used.
        shutil.rmtree(self.directory / "later/checkpoints/step-00000004")
        self.assert_refused(self.alone("replay", "--bisect", "later", "run"), CHECKPOINT, "went wrong in the update of step 6")
        shutil.copytree(self.directory / "run", self.directory / "copy")
        shutil.rmtree(self.directory / "copy/checkpoints")
        shutil.rmtree(self.directory / "later/checkpoints")
        found = self.alone("replay", "--bisect", "later", "copy")
        self.assert_refused(found, CHECKPOINT, "went wrong in the update of step 6")
        self.assertIn("computed again from the initial weights up to step 7:", found.text)
        self.assertIn("are equal up to step 12\n", self.alone("replay", "--bisect", "run", "fifth", expect=DONE).text)
        self.assertEqual([path for path in sorted(self.directory.rglob("*")) if "copy" not in str(path)],
                         [path for path in before if "later/checkpoints" not in str(path)])

    def test_runs_without_some_receipts(self):
        with harness.rig(FAULT="flip-weights:7:0"):
            self.train(self.config, (2, 2), "flipped", "--train.check=off")
        for run in ("run", "flipped"):
            self.forged(f"{run}-gap", chained(sum(self.with_gap(run), [])), run)
        found = self.alone("replay", "--bisect", "run", "run-gap", expect=DONE)
        self.assertIn("run and run-gap are equal up to step 12, but for 3 steps of which one has no receipt", found.text)
        found = self.alone("replay", "--bisect", "run", "flipped-gap")
        self.assert_refused(found, CHECKPOINT, "flipped-gap went wrong in one of the steps 5 to 8: it has no digests between")
        self.assertIn("are equal up to step 7, but for 2 steps of which one has no receipt; step 8: the digests of the checkpoint differ",
                      found.text)
        self.assertIn("  run: equal", found.text)
        # What the receipts lack is no difference.
        found = self.alone("replay", "--bisect", "run-gap", "flipped")
        self.assert_refused(found, CHECKPOINT, "flipped went wrong in the update of step 6, or in memory after it; run-gap is what")
        self.assertIn("  run-gap: step 6: the run has no receipt", found.text)
        self.forged("later-half", chained(self.with_gap()[1]))
        self.forged("first-half", chained(self.with_gap()[0]))
        self.assert_refused(self.alone("replay", "--bisect", "first-half", "later-half"), USAGE, "have no step in common",
                            "end with step 5", "begin after step 8")

    def test_runs_that_cannot_be_compared(self):
        for name, setting, words in [("rate", "--optimizer.learning_rate=0.01", ["optimizer.learning_rate: 0.005 -> 0.01"]),
                                     ("seed", "--run.seed=5", ["run.seed: 1 -> 5"]),
                                     ("lanes", "--numerics.lanes=2", ["lanes: 4 -> 2"]),
                                     ("layers", None, ["model.layer: dense 16 parallel=column relu, "])]:
            if setting is None:  # the same parameters
                setting = "--train.log_every=1"
                self.config.write_text(NETWORK.replace("dense 8 relu", "dense 8"))
            self.train(self.config, (1, 1), name, "--train.steps=4", setting)
            self.assert_refused(self.alone("replay", "--bisect", "run", name), USAGE, "step 1 of run and", *words)
        self.config.write_text(NETWORK)
        # The same settings from other weights.
        self.train(self.config, (1, 1), "begun", "--train.steps=4", "--checkpoint.init=rate")
        self.assert_refused(self.alone("replay", "--bisect", "run", "begun"), CHECKPOINT, "begin with other weights", "checkpoint.init")
        shutil.rmtree(self.directory / "rate")

    def test_refused_options(self):
        self.train(self.config, (1, 1), "frozen", "--train.steps=2", "--optimizer.frozen=dense1.*")
        (self.directory / "taken").mkdir()
        (self.directory / "taken/step-00000002.safetensors").touch()
        before = sorted(self.directory.rglob("*"))
        steps = ["run", "--steps=1-2"]
        for arguments, words in [
                ([*steps, "--dump=momentum"], ['--dump has "momentum"', "activations, gradients, state, weights"]),
                ([*steps, "--dump=weights,weights:a"], ["--dump has weights twice"]),
                ([*steps, "--dump=weights:"], ['no pattern after "weights:"']),
                ([*steps, "--dump=,"], ["--dump is empty"]),
                ([*steps, "--dump=gradients:dens1.*"], ["--dump=gradients", '"dens1.*"', "the nearest is"]),
                (["frozen", *steps[1:], "--dump=gradients:dense1.*"], ["--dump=gradients", "no trained parameter", '"dense1.*"']),
                ([*steps, "--dump=activations:flatten"], ["--dump=activations: no layer", '"flatten"', "the nearest is"]),
                ([*steps, "--dump=weights", "--output=network.ini"], ["network.ini"]),
                ([*steps, "--dump=weights", "--dump-step=3"], ["--dump-step", "from 1 to 2"]),
                ([*steps, "--dump=weights", "--output=taken"], ["taken/step-00000002.safetensors exists"]),
                ([*steps, "--dump=weights", "--output=network.ini/a"], ["cannot make network.ini/a"]),
                ([*steps, "--output=other"], ["--output says nothing without --dump"]),
                (["run", "run", "--steps=1-2"], ["takes one run, not 2"]),
                (["run", "--bisect"], ["compares two runs, not 1"]),
                (["run", "run", "run", "--bisect"], ["compares two runs, not 3"]),
                (["run", "run", "--bisect", "--steps=1-2"], ["leave --steps out"])]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.alone("replay", *arguments), USAGE, *words)
        self.assertEqual(sorted(self.directory.rglob("*")), before)  # no directory is left
        self.assert_refused(self.alone("verify", "run", "run"), USAGE, "takes one run, not 2")
        self.assert_refused(self.alone("replay", "run", "nowhere", "--bisect"), CHECKPOINT, "there is no nowhere/receipts.jsonl")

    def test_refusals(self):
        self.assert_refused(self.alone("verify", "run", "--output=run/receipts.jsonl"), USAGE, "is a file of the run")
        for steps in ("0-3", "4-2", "x", "-3", "3-", "1-13"):
            self.assert_refused(self.alone("replay", "run", f"--steps={steps}"), USAGE, "--steps")
        self.assert_refused(self.alone("replay", "nowhere", "--steps=1-2"), CHECKPOINT, "there is no nowhere/receipts.jsonl")
        for setting in ("--optimizer.learning_rate=1", "--numerics.lanes=2", "--numerics.shards=1"):
            for command in (["replay", "run", "--steps=6-7"], ["replay", "run", "--steps=1-2"], ["verify", "run"]):
                self.assert_refused(self.alone(*command, setting), CHECKPOINT, "of another run than its config.ini")
        self.assert_refused(self.alone("replay", "run", "--steps=1-2", "--data.train=none.h5"), DATA,
                            "none.h5 does not exist; if the data set is elsewhere, give its place as --data.train=FILE")


class LanguageReceipts(language.LanguageTest):
    def test_tensors_of_a_transformer(self):
        # Rows that lie piece by piece on the tensor ranks, and a vocabulary that the shards do not divide.
        self.train(self.config, (1, 1), "lm", "--run.receipts=1", "--numerics.row_pieces=2")
        files = []
        for grid in ([], ["--parallel.tensor=2", "--parallel.sequence=on"], ["--parallel.pipeline=2", "--numerics.dtype=float32"]):
            self.launch(2 if grid else 1, "replay", "lm", "--steps=2-3", "--dump=activations,gradients", f"--output=dump-{len(files)}",
                        *grid, expect=DONE)
            files.append((self.directory / f"dump-{len(files)}/step-00000003.safetensors").read_bytes())
        self.assertEqual(files[1:], files[:1] * 2)
        found = read_tensors(self.directory / "dump-0/step-00000003.safetensors")
        self.assertEqual(found["activations/head"].shape, (16, 16, 26))
        self.assertEqual({value.shape for name, value in found.items() if name.startswith("activations/") and name != "activations/head"},
                         {(16, 16, 32)})


if __name__ == "__main__":
    harness.main()
