"""Checkpoints that are damaged, of another run, or cannot be written; runs that diverge."""

import os
import re
import subprocess
import unittest.mock

import h5py

import errors_test
import harness
from errors_test import flip_byte
from harness import CHECKPOINT, DIVERGED, DONE, USAGE


class Checkpoints(errors_test.Errors):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.test.train(cls.config, (2, 1), "good")
        cls.test.train(cls.config, (1, 1), "longer", "--train.steps=8")

    def damage(self, checkpoint):
        """Flips a bit of a weight."""
        with h5py.File(checkpoint / "part-00000.h5") as file:
            offset = file["slice-00000"].id.get_offset() + 8
        flip_byte(checkpoint / "part-00000.h5", offset)

    def test_checkpoint_of_another_model(self):
        for layers, words in [
                (["dense 24 relu", "dropout 0.1", "dense 4"], ["weights/dense1.weight"]),
                (["dense 16 relu", "dense 4 name=head"], ["weights/head."]),
                (["dense 16 relu", "dense 4 bias=off"], ["dense2.bias", "config lacks"]),
                (["dense 16 relu", "dropout 0.5", "dense 4"],
                 ['layer 1 is "dropout 0.1" where the config has "dropout 0.5"'])]:
            self.refused(CHECKPOINT, "step-00000006 is a checkpoint of another model", *words,
                         ranks=2, run=self.copy_of("good"),
                         settings=["--run.resume=auto", "--train.steps=8",
                                   *(f"--model.layer={layer}" for layer in layers)])

    def test_directory_of_another_run(self):
        for setting, words in [("run.seed=2", ["run.seed is 1, here it is 2"]),
                               ("optimizer.kind=sgd", ['optimizer.kind is "adam"', 'here it is "sgd"']),
                               ("batch.global=32", ["batch.global is 16, here it is 32"]),
                               ("batch.micro=2", ["batch.micro is 2", "made with"])]:
            self.refused(USAGE, *words, ranks=2, run=self.copy_of("good"), settings=[
                "--run.resume=auto", "--parallel.pipeline=2", "--" + setting])

    def test_damaged_newest_checkpoint(self):
        run = self.copy_of("good")
        self.damage(harness.checkpoints(self.directory / run)[-1])
        verified = self.alone("checkpoint", "verify", run)
        self.assert_refused(verified, CHECKPOINT, "part-00000.h5")
        finished = self.train(self.config, (1, 2), run, "--train.steps=8", "--run.resume=auto")
        self.assertEqual(len(re.findall("passing over a bad checkpoint.*step-00000006",
                                        finished.text)), 1, finished.text)
        self.assertIn("continuing after step 4", finished.text)
        self.assert_same_run("longer", run)

    def test_resume_before_a_damaged_checkpoint(self):
        run = self.copy_of("good")
        self.damage(harness.checkpoints(self.directory / run)[-1])
        self.train(self.config, (1, 2), run, "--train.steps=5", "--run.resume=auto",
                   "--checkpoint.keep=1", "--checkpoint.every=0", "--data.test=")
        kept = [path.name for path in harness.checkpoints(self.directory / run)]
        self.assertEqual(kept, ["step-00000005", "step-00000006"])
        finished = self.train(self.config, (2, 1), run, "--train.steps=8", "--run.resume=auto")
        self.assertIn("continuing after step 5", finished.text)
        self.assert_same_run("longer", run)

    def test_missing_part(self):
        run = self.copy_of("good")
        (harness.checkpoints(self.directory / run)[-1] / "part-00001.h5").unlink()
        finished = self.train(self.config, (2, 1), run, "--train.steps=8", "--run.resume=must")
        self.assertIn("part-00001.h5", finished.text)
        self.assert_same_run("longer", run)

    def test_all_checkpoints_damaged(self):
        run = self.copy_of("good")
        for checkpoint in harness.checkpoints(self.directory / run):
            self.damage(checkpoint)
        self.refused(CHECKPOINT, "none of the checkpoints", "another run.dir", ranks=2, run=run,
                     settings=["--run.resume=auto"])
        self.assert_refused(self.alone("evaluate", self.config, f"--run.dir={run}"), CHECKPOINT,
                            "none of the checkpoints")

    def test_no_checkpoint_to_inspect(self):
        self.assert_refused(self.alone("evaluate", self.config, "--run.dir=nothing"), CHECKPOINT,
                            "there is no checkpoint in nothing", "train first")
        self.assert_refused(self.alone("checkpoint", "inspect", "nothing"), CHECKPOINT, "nothing")
        self.assert_refused(self.alone("checkpoint", "verify", "classes"), CHECKPOINT,
                            "no checkpoint")

    def test_diverged(self):
        run = self.copy_of("good")
        before = harness.tensors(harness.checkpoints(self.directory / run)[-1])
        self.refused(DIVERGED, "diverged", "step 8", "optimizer.learning_rate", ranks=2, run=run,
                     settings=["--run.resume=auto", "--train.steps=30", "--checkpoint.every=100",
                               "--optimizer.learning_rate=1e36"])
        newest = harness.checkpoints(self.directory / run)[-1]
        self.assertEqual(newest.name, "step-00000006")
        self.assertEqual(harness.differing_tensors(before, harness.tensors(newest)), [])
        self.train(self.config, (1, 1), run, "--train.steps=8", "--run.resume=auto")
        self.assert_same_run("longer", run)


class Synced(errors_test.Errors):
    def test_each_file_and_the_directory(self):
        """What the rename commits is on the disk."""
        counts = self.directory / "counts"
        shim = {"LD_PRELOAD": os.environ["STRATA_FAULT_SHIM"], "STRATA_FAULT": "n=0,path=.partial",
                "STRATA_FAULT_COUNT": str(counts)}
        with unittest.mock.patch.dict(os.environ, shim):
            self.alone("train", self.config, "--run.dir=synced", "--checkpoint.every=0", expect=DONE)
        files = len(list(harness.checkpoints(self.directory / "synced")[0].iterdir()))
        found = [int(number) for number in re.findall(r"fsync (\d+)", counts.read_text())]
        self.assertEqual(sum(found), files + 1, counts.read_text())


class FullDisk(errors_test.Errors):
    def mount(self, name, size):
        mount = self.directory / name
        mount.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", mount],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"a small file system cannot be mounted: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", mount], check=True)
        return mount

    def test_disk_full_while_saving(self):
        mount = self.mount("small", "4m")
        wide = ["--model.layer=dense 2000 relu", "--model.layer=dense 4", "--checkpoint.every=1",
                "--checkpoint.keep=50", "--train.steps=20"]
        run = mount / "run"
        finished = self.launch(2, "train", self.config, f"--run.dir={run}", *wide)
        self.assert_refused(finished, CHECKPOINT, "No space left", "bytes", "the last good checkpoint is kept")
        # A save in the middle of a run that fails is reported, and training goes on.
        self.assertIn("is not written, and training goes on", finished.text)
        self.assertIn("step 20/20", finished.text)
        kept = harness.checkpoints(run)
        self.assertGreater(len(kept), 2)
        self.alone("checkpoint", "verify", run, expect=DONE)
        subprocess.run(["mount", "-o", "remount,size=64m", mount], check=True)
        finished = self.train(self.config, (1, 2), run, "--run.resume=must", *wide)
        self.assertIn(f"continuing after step {len(kept)} ", finished.text)
        self.train(self.config, (1, 1), "ample", *wide)
        self.assert_same_run("ample", "small/run")

    def test_disk_full_while_the_best_is_saved(self):
        # An old and a new checkpoint do not fit together.
        choose = ["--model.layer=dense 2000 relu", "--model.layer=dense 4", "--train.steps=6", "--train.evaluate_every=2",
                  "--checkpoint.best=loss", "--checkpoint.keep=1", "--checkpoint.every=100"]
        self.train(self.config, (1, 1), "roomy", *choose)
        size = sum(path.stat().st_size for path in harness.checkpoints(self.directory / "roomy")[0].iterdir())
        mount = self.mount("tight", size * 7 // 4)
        run = mount / "run"
        finished = self.launch(2, "train", self.config, f"--run.dir={run}", *choose)
        self.assert_refused(finished, CHECKPOINT, "No space left", "the last good checkpoint is kept")
        self.assertIn("is not written, and training goes on", finished.text)
        self.assertIn("step 6/6", finished.text)
        self.assertEqual([path.name for path in harness.checkpoints(run)], ["step-00000002"])
        evaluated = self.alone("evaluate", run, "--checkpoint=best")
        self.assertIn("step-00000002", evaluated.text)
        subprocess.run(["mount", "-o", "remount,size=64m", mount], check=True)
        self.train(self.config, (1, 2), run, "--run.resume=must", *choose)
        self.assert_same_run("roomy", "tight/run")
        self.assertEqual(*([path.name for path in harness.checkpoints(self.directory / name)]
                           for name in ("roomy", "tight/run")))


if __name__ == "__main__":
    harness.main()
