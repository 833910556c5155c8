"""strata sweep: all combinations or a sample of them, stopped, killed and continued; failed runs; refusals; job arrays."""

import os
import pathlib
import re
import signal
import subprocess

import harness
from harness import DIVERGED, DONE, STOPPED_EARLY, STRATA, USAGE

NETWORK = harness.config_text(
    ["dense 16 relu", "dense 4"], batch={"global": 8}, numerics={"lanes": 2}, optimizer={"kind": "sgd"},
    train={"steps": 3000, "evaluate_every": 500}, checkpoint={"every": 250})
SET = ["--set", "optimizer.learning_rate=0.01,0.3", "optimizer.momentum=0,0.5"]
NAMES = [f"learning_rate={rate}_momentum={momentum}" for rate in ("0.01", "0.3") for momentum in ("0", "0.5")]
SHORT = ["--train.steps=20", "--train.evaluate_every=10"]


class Sweep(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=24, test=60)

    def sweep(self, *arguments, expect=DONE):
        finished = self.alone("sweep", self.config, *arguments)
        self.assertEqual(finished.code, expect, finished.text)
        return finished.text

    def ranked(self, text):
        """The names of the runs in the table, the best first, and their losses."""
        rows = [line.split() for line in text.splitlines() if re.match(r"\d+ ", line)]
        return [f"learning_rate={row[1]}_momentum={row[2]}" for row in rows], [row[3] for row in rows]

    def begun(self, run, word):
        path = self.directory / run / "metrics.jsonl"
        return lambda: path.exists() and word in path.read_text()

    def test_stopped_killed_and_continued(self):
        arguments = ["--dir=grid", *SET]
        with harness.rig(DELAY="0:0.001"):  # long enough to be caught while it trains
            job = harness.Job([harness.STRATA, "sweep", self.config, *arguments], self.directory)
        job.wait_until(self.begun(f"grid/{NAMES[1]}", '"step":500,'), 60)
        os.kill(job.process.pid, signal.SIGINT)
        stopped = job.wait(60)
        self.assertEqual(stopped.code, STOPPED_EARLY, stopped.text)
        self.assertIn(f"run 2 of 4, {NAMES[1]}: stopped on request", stopped.text)
        self.assertIn("finished", stopped.text)
        self.assertFalse((self.directory / "grid" / NAMES[2]).exists())
        with harness.rig(DELAY="0:0.001"):
            job = harness.Job([harness.STRATA, "sweep", self.config, *arguments, "--ranks=2"], self.directory)
        job.wait_until(self.begun(f"grid/{NAMES[2]}", '"step":500,'), 60)
        job.process.kill()  # its runs end too
        job.wait(60)
        text = self.sweep(*arguments)
        self.assertIn(f"run 1 of 4, {NAMES[0]}: finished already", text)
        names, losses = self.ranked(text)
        self.assertEqual(sorted(names), sorted(NAMES))
        expected = {}
        for name in NAMES:
            evaluations = self.records(f"grid/{name}", "evaluate")
            self.assertEqual(evaluations[-1]["step"], "3000")
            expected[name] = min(float(record["loss"]) for record in evaluations)
        self.assertEqual(names, sorted(NAMES, key=expected.get))
        self.assertEqual(losses, [f"{expected[name]:.4f}" for name in names])
        self.assertEqual(text.count("finished already"), 2)
        # The interrupted runs have the numbers of whole ones.
        for name, momentum, rate in [(NAMES[1], "0.5", "0.01"), (NAMES[2], "0", "0.3")]:
            self.train(self.config, (1, 1), f"whole-{name}", f"--optimizer.momentum={momentum}",
                       f"--optimizer.learning_rate={rate}")
            self.assert_same_run(f"whole-{name}", f"grid/{name}")
        self.assertEqual(self.ranked(self.alone("sweep", "grid", "--table").text), (names, losses))

    def test_a_second_sweep_of_a_directory_is_refused(self):
        arguments = ["--dir=twice", *SET, "--train.steps=1000000"]
        job = harness.Job([STRATA, "sweep", self.config, *arguments], self.directory)
        job.wait_until(self.begun(f"twice/{NAMES[0]}", '"step":500,'), 60)
        output = self.directory / "twice" / f"{NAMES[0]}.out"
        before = output.read_bytes()
        self.assert_refused(self.alone("sweep", self.config, *arguments), USAGE, "twice is in use by host ", "another --dir")
        os.kill(job.process.pid, signal.SIGHUP)  # as where a terminal closes
        self.assertEqual(job.wait(60).code, STOPPED_EARLY)
        self.assertTrue(output.read_bytes().startswith(before))
        self.assertFalse((self.directory / "twice/sweep.lock").exists())

    def test_a_failed_run_does_not_end_the_others(self):
        text = self.sweep("--dir=fails", "--set", "optimizer.learning_rate=1e9,0.01", "optimizer.momentum=0", *SHORT,
                          "--checkpoint.best=accuracy", expect=DIVERGED)
        self.assertRegex(text, "learning_rate=1e9_momentum=0: failed with exit code 6: the run diverged")
        self.assertIn("best test accuracy", text)
        # Of the output of both starts the reason is that of the second one.
        output = self.directory / "fails/learning_rate=1e9_momentum=0.out"
        first = output.read_text()
        again = self.sweep("--dir=fails", "--set", "optimizer.learning_rate=1e9,0.01", "optimizer.momentum=0", *SHORT,
                           "--checkpoint.best=accuracy", "--parallel.pipeline=3", "--ranks=2", expect=USAGE)
        self.assertRegex(again, "learning_rate=1e9_momentum=0: failed with exit code 2: .*launch 3 ranks")
        self.assertTrue(output.read_text().startswith(first))
        self.assertRegex(text, r"(?m)^1 +0.01 .* 20 of 20 .* finished$")
        self.assertRegex(text, r"(?m)^2 +1e9 .* - .* unfinished$")

    def test_a_wrong_config_ends_it(self):
        text = self.sweep("--dir=wrong", "--set", "batch.global=7,8", *SHORT, expect=USAGE)
        self.assertRegex(text, "run 1 of 2, global=7: failed with exit code 2: .*batch.global")
        self.assertIn("the sweep ends", text)
        self.assertNotIn("run 2 of 2", text)

    def test_each_run_has_the_ranks_of_its_grid(self):
        text = self.sweep("--dir=grids", "--set", "parallel.pipeline=1,2", "parallel.data=2,1", *SHORT)
        self.assertEqual(text.count(" finished\n"), 4, text)
        rank_counts = [re.search(r"grid: (\d) data x (\d) pipeline", (self.directory / "grids" / f"pipeline={stages}_data={data}"
                                                                       / "log.txt").read_text()).groups()
                       for stages in "12" for data in "21"]
        self.assertEqual(rank_counts, [("2", "1"), ("1", "1"), ("2", "2"), ("1", "2")])
        self.assert_same_run("grids/pipeline=1_data=1", "grids/pipeline=2_data=2")

    def test_a_report_of_a_sweep(self):
        """Its runs by value: numbers ascending, as the user did not write them."""
        self.sweep("--dir=rates", "--set", "optimizer.learning_rate=0.1,1e-3,0.02", *SHORT)
        self.alone("report", "rates", "--output=rates.html", expect=DONE)
        page = (self.directory / "rates.html").read_text()
        names = re.findall(r"<th>(learning_rate=[^<]*)</th>", page)[:3]
        self.assertEqual(names, ["learning_rate=1e-3", "learning_rate=0.02", "learning_rate=0.1"])
        sweep = self.directory / "rates/sweep.json"
        (self.directory / "unbegun").mkdir()
        (self.directory / "unbegun/sweep.json").write_text(sweep.read_text())
        self.assert_refused(self.alone("report", "unbegun", "--output=x.html"), USAGE, "no run of the sweep in unbegun has begun")

    def test_a_random_sample(self):
        arguments = ["--random=2", *SET, *SHORT]
        first = [self.ranked(self.sweep(f"--dir=random-{number}", f"--seed={seed}", *arguments))[0]
                 for number, seed in enumerate([1, 1, 2, 3])]
        self.assertEqual(first[0], first[1])
        self.assertEqual([len(set(names)) for names in first], [2] * 4)
        self.assertGreater(len({tuple(sorted(names)) for names in first}), 1)

    def test_lists_and_long_names(self):
        patterns = " ".join(["dense1*"] * 40)
        arguments = ["--dir=lists", "--set", f"optimizer.frozen=,{patterns}", *SHORT]
        text = self.sweep(*arguments)
        self.assertIn("run 1 of 2, frozen=: training", text)
        self.assertRegex(text, r"run 2 of 2, frozen=[dense1-]{193}~[0-9a-f]{16}: training")
        self.assertEqual(text.count(" finished\n"), 2, text)
        self.assertEqual(self.sweep(*arguments).count("finished already"), 2)

    def test_early_ends_count_as_finished(self):
        arguments = ["--dir=patient", "--set", "optimizer.learning_rate=0.3", "optimizer.momentum=0.5",
                     "--train.patience=1", "--train.evaluate_every=20"]
        self.assertRegex(self.sweep(*arguments), r"(?m)^1 .* of 3000 .* finished$")
        self.assertLess(int(self.records(f"patient/{NAMES[3]}", "train")[-1]["step"]), 3000)
        self.assertIn("finished already", self.sweep(*arguments))

    def test_refusals(self):
        self.sweep("--dir=taken", "--set", "optimizer.learning_rate=0.1", *SHORT)
        for arguments, words in [
                (["--set", "optimizer.learning_rat=1,2", "--dir=no"], ["the nearest is \"optimizer.learning_rate\""]),
                (["--set", "optimizer.learning_rate=", "--dir=no"], ["has no values"]),
                (["--set", "optimizer.learning_rate", "--dir=no"], ["has no values"]),
                (["--set", "optimizer.learning_rate=1,x", "--dir=no"], ["optimizer.learning_rate = \"x\" is not allowed"]),
                (["--set", "optimizer.learning_rate=1,", "--dir=no"], ["optimizer.learning_rate = \"\" is not allowed"]),
                (["--set", "optimizer.learning_rate=1,1", "--dir=no"], ["has a value twice"]),
                (["--set", "run.seed=1", "run.seed=2", "--dir=no"], ["run.seed is given twice"]),
                (["--set", "run.dir=a,b", "--dir=no"], ["the sweep chooses run.dir"]),
                (["--set", "run.seed=1,2"], ["needs --dir=DIR"]),
                (["--dir=no"], ["needs --set KEY=A,B"]),
                (["--set", "run.seed=1,2", "--dir=no", "--data.test="], ["data.test is empty"]),
                (["--set", "run.seed=1,2", "--dir=no", "--random=3"], ["2 combinations"]),
                (["--set", "run.seed=1,2", "--dir=no", "--nodes=3"], ["--nodes is an option of job arrays"]),
                (["--set", "run.seed=1,2", "--dir=no", "--rank=3"], ["write --ranks=3"]),
                (["--set", "run.seed=1,2", "--dir=no", "--submit", "--time=9", "--chain=2"], ["no --chain"]),
                (["--set", "run.seed=1,2", "--dir=taken"], ["taken holds another sweep, --set optimizer.learning_rate=0.1"]),
                (["--set", "optimizer.learning_rate=0.1", "--dir=taken"], ["train.evaluate_every is \"10\" there and \"500\" here"])]:
            with self.subTest(arguments):
                self.assert_refused(self.alone("sweep", self.config, *arguments), USAGE, *words)
        self.assert_refused(self.alone("sweep", "nothing", "--table"), USAGE, "there is no sweep.json")
        (self.directory / "taken/sweep.json").write_text("{")
        self.assert_refused(self.alone("sweep", "taken", "--table"), USAGE, "sweep.json is damaged")

    def test_a_job_array(self):
        tools = self.directory / "bin"
        tools.mkdir()
        for name, text in [("sbatch", "echo 7"), ("srun", 'echo "$@" >words; "${@:6}"')]:
            (tools / name).write_text(f"#!/bin/bash\n{text}\n")
            (tools / name).chmod(0o755)
        environment = {**os.environ, **harness.LAUNCH_ENVIRONMENT, "PATH": f"{tools}:{os.environ['PATH']}",
                       "STRATA_SITE": "/dev/null"}

        def ran(*command, **variables):
            return subprocess.run([str(word) for word in command], cwd=self.directory, env={**environment, **variables},
                                  capture_output=True, text=True, check=False)

        result = ran(STRATA, "sweep", self.config, *SET, *SHORT, "--dir=array", "--time=60", "--submit")
        self.assertEqual((result.returncode, result.stdout), (DONE, "7\n"), result.stderr)
        script = (self.directory / "array.slurm").read_text()
        self.assertIn("#SBATCH --array=0-3\n#SBATCH --output=strata-%A_%a.log\n", script)
        self.assertNotIn("--submit", script)
        for element, name in enumerate(NAMES):
            result = ran("bash", "array.slurm", SLURM_ARRAY_TASK_ID=str(element), SLURM_JOB_ID="8")
            self.assertEqual(result.returncode, DONE, result.stdout + result.stderr)
            self.assertIn(f"--run.dir=array/{name}", (self.directory / "words").read_text())
            self.assertTrue(pathlib.Path(self.directory, "array", name, "starts").exists())
        self.assertEqual(self.alone("sweep", "array", "--table").text.count("finished"), 4)


if __name__ == "__main__":
    harness.main()
