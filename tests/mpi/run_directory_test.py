"""The directory of a run: two runs at the same time, runs that died, directories that are not shared, histories that
are kept."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import harness
from harness import CHECKPOINT, DATA, DONE, STOPPED_EARLY, USAGE

NETWORK = harness.config_text(
    ["dense 16 relu", "dropout 0.1", "dense 4"], batch={"global": 16}, numerics={"lanes": 2},
    optimizer={"kind": "adam"}, train={"steps": 6, "evaluate_every": 2}, checkpoint={"every": 2})

LONG = ["--train.steps=300", "--train.evaluate_every=0", "--checkpoint.every=50"]
SLOW = {"DELAY": "0:0.01"}  # long enough to meet another, on any machine


class RunDirectory(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=80, test=20)

    def start_training(self, run, *settings, ranks=2):
        return self.start(ranks, "train", self.config, f"--run.dir={run}", *settings)

    def lines_of(self, run):
        path = self.directory / run / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def hidden_in(self, run):
        return sorted(path.name for path in (self.directory / run).rglob(".*"))


class ThinMetrics(RunDirectory):
    def lines(self, run):
        return [line for line in map(json.loads, (self.directory / run / "metrics.jsonl").read_text().splitlines())
                if line["kind"] == "train"]

    def test_lines_of_several_steps(self):
        settings = ["--train.evaluate_every=0", "--checkpoint.every=6", "--schedule.warmup_steps=0"]
        self.train(self.config, (1, 1), "every", *settings, "--train.steps=11")
        every = self.lines("every")
        self.assertEqual([line["step"] for line in every], list(range(1, 12)))
        self.train(self.config, (1, 1), "thin", *settings, "--train.steps=11", "--train.metrics_every=4")
        # One that ends after a step without a line of its own, and goes on from the save before.
        self.train(self.config, (1, 1), "resumed", *settings, "--train.steps=6", "--train.metrics_every=4")
        again = self.train(self.config, (2, 1), "resumed", *settings, "--train.steps=11", "--train.metrics_every=4",
                           "--run.resume=must")
        self.assertNotIn("has no lines of the training steps", again.text)
        for run in ("thin", "resumed"):
            begin = 0
            for line, (step, steps) in zip(self.lines(run), [(4, 4), (6, 2), (8, 2), (11, 3)], strict=True):
                self.assertEqual((line["step"], line.get("steps", 1)), (step, steps))
                for key in ("loss", "grad_norm"):
                    self.assertEqual(line[key], sum(one[key] for one in every[begin:step]) / steps)
                self.assertEqual(line["learning_rate"], every[step - 1]["learning_rate"])
                parts = ("compute", "communication", "bubble", "data", "other")
                self.assertAlmostEqual(sum(line[f"{part}_seconds"] for part in parts), line["step_seconds"], delta=1e-9)
                begin = step

    def test_long_runs_have_few_lines(self):
        self.train(self.config, (1, 1), "long", "--train.steps=5007", "--train.evaluate_every=0", "--checkpoint.every=0")
        lines = self.lines("long")
        self.assertEqual([line["step"] for line in lines], [*range(1, 5001), 5002, 5004, 5006, 5007])
        self.assertEqual(sum(line.get("steps", 1) for line in lines), 5007)


class TwoRuns(RunDirectory):
    def test_at_the_same_time(self):
        self.train(self.config, (2, 1), "alone", *LONG)
        met = 0
        for attempt in range(3):
            run = f"both-{attempt}"
            with harness.rig(**SLOW):
                jobs = [self.start_training(run, "--run.resume=auto", *LONG) for _ in range(2)]
            ended = sorted((job.wait(60) for job in jobs), key=lambda one: one.code)
            self.assertEqual(ended[0].code, DONE, ended[0].text)
            if ended[1].code == DONE:  # it began when the other one had ended, on a busy machine
                self.assertTrue(any("is done already" in one.text for one in ended), ended[1].text)
            else:
                met += 1
                self.assert_refused(ended[1], USAGE, f"{run} is in use by host ", ", process ", ", since ",
                                    "choose another run.dir")
            self.assert_same_run("alone", run)
            self.assertEqual(self.hidden_in(run), [])
            self.assertFalse((self.directory / run / "run.lock").exists())
        self.assertGreater(met, 0)

    def test_a_killed_owner_is_succeeded_at_once(self):
        self.train(self.config, (2, 1), "undisturbed", *LONG)
        with harness.rig(**SLOW):
            job = self.start_training("killed", *LONG)
        job.wait_until(lambda: harness.checkpoints(self.directory / "killed"), 60)
        job.signal_all(signal.SIGKILL)
        job.wait(30)
        self.assertTrue((self.directory / "killed" / "run.lock").exists())
        finished = self.train(self.config, (2, 1), "killed", "--run.resume=auto", *LONG)
        self.assertIn("the lock of killed is taken over from host ", finished.text)
        self.assertNotIn("watching its heartbeat", finished.text)
        self.assert_same_run("undisturbed", "killed")

    def test_a_run_that_lost_its_lock_writes_no_checkpoint(self):
        job = self.start_training("lost", *LONG, "--train.steps=100000", "--checkpoint.every=100")
        job.wait_until(lambda: self.lines_of("lost") > 3, 60)
        lock = self.directory / "lost" / "run.lock"
        for rank in job.ranks():
            os.kill(rank, signal.SIGSTOP)
        job.wait_until(lambda: all(map(harness.is_stopped, job.ranks())), 60)
        before = harness.checkpoints(self.directory / "lost")
        other = lock.read_text().replace("nonce = ", "nonce = 0")
        (self.directory / "other").write_text(other)
        os.rename(self.directory / "other", lock)
        foreign = [self.directory / "lost" / "checkpoints" / f".step-{step:08d}.00112233445566aa.partial"
                   for step in range(100, 10000, 100)]
        for directory in foreign:
            directory.mkdir(parents=True)
        for rank in job.ranks():
            os.kill(rank, signal.SIGCONT)
        self.assert_refused(job.wait(60), USAGE, "was taken over by host ", "the other process goes on")
        self.assertEqual(harness.checkpoints(self.directory / "lost"), before)
        self.assertEqual([directory.name for directory in foreign if not directory.exists()], [])
        self.assertEqual(lock.read_text(), other)

    def test_a_stop_request_ends_the_wait_for_an_unknown_owner(self):
        lock = self.directory / "waits" / "run.lock"
        lock.parent.mkdir()
        text = "heartbeat = 000000000001\nnonce = 12\nhost = another-node\npid = 7\nboot = 1\n"
        lock.write_text(text)
        job = self.start_training("waits", *LONG)
        job.wait_until(lambda: "waits is locked by host another-node, process 7" in job.text(), 30)
        asked = time.monotonic()
        os.kill(job.ranks()[0], signal.SIGUSR1)
        finished = job.wait(60)
        self.assert_refused(finished, STOPPED_EARLY, "while setting up")
        self.assertLess(time.monotonic() - asked, 40.0)
        self.assertEqual(lock.read_text(), text)

    def test_refused_settings_leave_no_directory(self):
        for settings in [["--model.layer=dense 5"], ["--parallel.pipeline=7"]]:
            finished = self.launch(2, "train", self.config, "--run.dir=new/run", *settings)
            self.assertNotEqual(finished.code, DONE)
            self.assertFalse((self.directory / "new").exists(), finished.text)

    def test_a_config_of_the_users_own_stays(self):
        own = self.directory / "mine" / "config.ini"
        own.parent.mkdir()
        own.write_text((self.directory / self.config).read_text())
        text = own.read_text()
        for ranks in 1, 2:
            for settings in [], ["--run.resume=auto"]:
                finished = self.launch(ranks, "train", "mine/config.ini", "--run.dir=mine", *settings)
                self.assert_refused(finished, USAGE, "mine/config.ini is not of a run", "another name")
                self.assertEqual(own.read_text(), text)


class Unshared(RunDirectory):
    def test_a_directory_of_its_own_for_each_rank(self):
        for name in ("a", "b"):
            (self.directory / name).mkdir()
        data = [f"--data.{split}={self.directory}/classes/{split}.h5" for split in ("train", "test")]
        rank = [harness.STRATA, "train", self.config, "--run.dir=run", *data]
        job = self.start_each(*(["env", "-C", self.directory / name, *rank] for name in ("a", "b")))
        host = os.uname().nodename
        self.assert_refused(job.wait(60), USAGE, "run.dir run is not shared: rank 1 on " + host,
                            "all nodes mount")
        self.assertEqual(list((self.directory / "a").iterdir()), [])


class Space(RunDirectory):
    def test_none_for_a_checkpoint(self):
        """24 MB of weights and Adam state on 16 MiB, then on 40 MiB, of which a killed save left 30 MiB."""
        mount = self.directory / "small"
        mount.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", mount],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"a small file system cannot be mounted: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", mount], check=True)
        wide = ["--model.layer=dense 1400 relu", "--model.layer=dense 1400 relu", "--model.layer=dense 4",
                "--checkpoint.every=0", "--train.evaluate_every=0", "--train.steps=1"]
        finished = self.launch(2, "train", self.config, "--run.dir=small/run", *wide)
        self.assert_refused(finished, CHECKPOINT, "a checkpoint of this run takes 22.69 MiB and small/run has 16",
                            "free some space")
        self.assertNotIn("step 1/1", finished.text)
        self.assertFalse((mount / "run").exists())
        subprocess.run(["mount", "-o", "remount,size=40m", mount], check=True)
        killed = mount / "run/checkpoints/.step-00000001.0123.partial"
        killed.mkdir(parents=True)
        (killed / "part-00000.h5").write_bytes(bytes(30 << 20))
        finished = self.train(self.config, (1, 1), "small/run", *wide)
        self.assertIn("so the second save will fail", finished.text)


class Changes(RunDirectory):
    def test_settings_changed_between_resumes(self):
        self.train(self.config, (1, 1), "changed")
        finished = self.train(self.config, (1, 1), "changed", "--run.resume=auto", "--train.steps=8",
                              "--optimizer.learning_rate=0.05")
        lines = [line for line in finished.text.splitlines() if " -> " in line]
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], r"^optimizer.learning_rate: \S+ -> 0.05, from step 7 on$")
        self.assertEqual(lines[1], "train.steps: 6 -> 8, from step 7 on")


class Histories(RunDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls().train(cls.config, (1, 1), "good")

    def copy(self, name):
        shutil.copytree(self.directory / "good", self.directory / name)
        return self.directory / name

    def test_what_is_lost_is_not_started_over(self):
        def without_checkpoints(run):
            shutil.rmtree(run / "checkpoints")

        def empty_checkpoints(run):
            without_checkpoints(run)
            (run / "checkpoints").mkdir()

        def unreadable_metrics(run):
            (run / "metrics.jsonl").unlink()
            (run / "metrics.jsonl").mkdir()

        for damage, resume, code, words in [
                (without_checkpoints, "auto", CHECKPOINT, ["metrics up to step 6", "checkpoints are gone"]),
                (empty_checkpoints, "auto", CHECKPOINT, ["metrics up to step 6", "another run.dir"]),
                (without_checkpoints, "never", USAGE, ["holds a run already"]),
                (unreadable_metrics, "auto", DATA, ["metrics.jsonl is not a regular file"])]:
            with self.subTest(damage=damage.__name__, resume=resume):
                run = self.copy(f"{damage.__name__}-{resume}")
                damage(run)
                history = None if damage is unreadable_metrics else (run / "metrics.jsonl").read_text()
                finished = self.launch(2, "train", self.config, f"--run.dir={run.name}", f"--run.resume={resume}",
                                       "--train.steps=8")
                self.assert_refused(finished, code, *words)
                if history:
                    self.assertEqual((run / "metrics.jsonl").read_text(), history)

    def test_steps_whose_lines_are_lost_are_named(self):
        for name, lost, words in [("whole", range(0), None), ("middle", range(2, 5), "3 to 5"), ("one", range(3, 4), "4"),
                                  ("none", None, "1 to 6")]:
            run = self.copy(f"lines-{name}")
            lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
            (run / "metrics.jsonl").unlink()
            if lost is not None:
                (run / "metrics.jsonl").write_text("".join(line for line in lines if not any(
                    f'"kind":"train","step":{step + 1},' in line for step in lost)))
            best = ["--checkpoint.best=loss"] if name == "none" else []
            finished = self.train(self.config, (1, 1), run.name, "--run.resume=auto", "--train.steps=8", *best)
            self.assertEqual("may not count all evaluations" in finished.text, best != [], finished.text)
            warning = f"warning: {run.name}/metrics.jsonl has no lines of the training steps {words}, "
            self.assertEqual(warning in finished.text, words is not None, finished.text)
            self.assertEqual("has no lines" in finished.text, words is not None, finished.text)

    def test_a_run_that_ended_before_its_first_checkpoint(self):
        settings = ["--train.steps=100000000", "--train.evaluate_every=0", "--checkpoint.every=0"]
        seen = []
        for attempt in (1, 2):
            job = self.start_training("early", "--run.resume=auto", *settings, ranks=1)
            earlier = [self.directory / "early" / f"metrics.jsonl.{number}" for number in range(1, attempt)]
            job.wait_until(lambda: all(map(pathlib.Path.exists, earlier)) and self.lines_of("early") > 5, 60)
            job.signal_all(signal.SIGKILL)
            ended = job.wait(30)
            self.assertEqual("before its first checkpoint" in ended.text, attempt == 2, ended.text)
            seen.append((self.directory / "early" / "metrics.jsonl").read_text())
        finished = self.train(self.config, (1, 1), "early", "--run.resume=auto", "--train.steps=6")
        self.assertIn("before its first checkpoint; its metrics are in early/metrics.jsonl.2", finished.text)
        for number, text in enumerate(seen, 1):
            self.assertEqual((self.directory / "early" / f"metrics.jsonl.{number}").read_text(), text)
        self.assertEqual((self.directory / "early" / "metrics.jsonl").read_text().count('"event":"start"'), 3)
        self.assert_same_run("good", "early")
        self.assertFalse((self.directory / "early" / "unsaved").exists())

    def test_planted_links_are_not_followed(self):
        victim = self.directory / "victim"
        victim.write_text("a user's file")
        run = self.directory / "planted"
        run.mkdir()
        for name in ("config.ini.new", "metrics.jsonl.new", "config.ini", "unsaved"):
            (run / name).symlink_to(victim)
        self.train(self.config, (1, 1), "planted", "--run.resume=auto")
        self.assertEqual(victim.read_text(), "a user's file")
        self.assert_same_run("good", "planted")


if __name__ == "__main__":
    harness.main()
