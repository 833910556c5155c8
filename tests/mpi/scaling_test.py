"""bench/scaling.py: sweeps that end, fail, are killed and go on; comparing them; wrong use. And bench/schedule_vs_simulator.py."""

import json
import os
import pathlib
import sys
import xml.etree.ElementTree

import harness

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "scaling.py"
NETWORK = harness.config_text(["dense 8 relu", "dense 8 relu", "dense 4"], batch={"global": 32, "micro": 4},
                              numerics={"lanes": 2}, train={"epochs": 3, "evaluate_every": 2})


class Scaling(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=400, test=30)

    def start_script(self, *arguments, **variables):
        return harness.Job([sys.executable, SCRIPT, *arguments], self.directory, **variables)

    def script(self, *arguments, expect=0, **variables):
        finished = self.start_script(*arguments, **variables).wait(120)
        self.assertEqual(finished.code, expect, finished.text)
        return finished.text

    def sweep(self, output, *arguments, **further):
        return self.script("sweep", harness.STRATA, self.config, f"--output={output}", "--steps=5", "--skip=2",
                           *arguments, **further)

    def results(self, output):
        return json.loads((self.directory / output).read_text())

    def write_results(self, output, results):
        (self.directory / output).write_text(json.dumps(results))

    def test_sweep_resume_compare(self):
        grids = ["--grids", "1x1x1", "2x1x1", "1x2x1", "--schedules", "1f1b", "gpipe", "--repeats=2"]
        text = self.sweep("first.json", *grids[:1], "3x1x1", *grids[1:], expect=1)
        refusal = "numerics.lanes is 2, which parallel.data = 3 does not divide"
        self.assertEqual(text.count(refusal), 2, text)  # as it happens, and in the table; not at every repeat
        results = self.results("first.json")
        cases = {("1x1x1", ""), ("2x1x1", ""), ("1x2x1", "1f1b"), ("1x2x1", "gpipe")}
        self.assertEqual(sorted((run["grid"], run["schedule"], run["repeat"]) for run in results["runs"]),
                         sorted((*case, repeat) for case in cases for repeat in (0, 1)))
        [failure] = results["failures"]
        self.assertEqual((failure["grid"], failure["error"][:12]), ("3x1x1", "exit code 2:"))
        self.assertIn(refusal, failure["error"])
        for run in results["runs"]:
            medians = run["medians"]
            self.assertAlmostEqual(medians["samples_per_second"] * medians["step_seconds"], 32, delta=1e-6)
        root = xml.etree.ElementTree.parse(self.directory / "first.svg").getroot()
        lines = root.findall("{*}polyline")
        self.assertEqual([len(line.get("points").split()) for line in lines], [2, 2, 2])  # all from one rank

        # Nothing is run twice, and a further repeat is run alone.
        self.assertNotIn("ms a step", self.sweep("first.json", *grids))
        self.assertEqual(self.results("first.json")["runs"], results["runs"])
        self.assertEqual(self.sweep("first.json", *grids[:2], "--repeats=3").count("ms a step"), 1)
        self.assertEqual(self.results("first.json")["runs"][:-1], results["runs"])
        self.assertIn("sweep of another settings; give", self.sweep("first.json", "--batch.micro=8", expect=2))

        for run in results["runs"]:
            run["medians"]["step_seconds"] = 0.010 if run["repeat"] else 0.012
        self.write_results("before.json", results)
        for run in results["runs"]:
            run["medians"]["step_seconds"] *= {"1x1x1": 2.0, "2x1x1": 1.1, "1x2x1": 0.5}[run["grid"]]
        results["runs"] = [run for run in results["runs"] if run["schedule"] != "gpipe"]
        self.write_results("after.json", results)
        rows = [" ".join(line.split()) for line in self.script("compare", "before.json", "after.json").splitlines()]
        self.assertEqual(rows[1:], ["1x1x1 - 11.00 22.00 2.000 0.182 slower", "2x1x1 - 11.00 12.10 1.100 0.182",
                                    "1x2x1 1f1b 11.00 5.50 0.500 0.182 faster", "1x2x1 gpipe in before.json only"])

    def test_killed_sweep_goes_on(self):
        arguments = ["--grids", "1x1x1", "2x1x1", "--repeats=4"]
        job = self.start_script("sweep", harness.STRATA, self.config, "--output=killed.json", "--steps=5", "--skip=2",
                                *arguments)
        job.wait_until((self.directory / "killed.json").exists, 60)
        job.process.terminate()
        self.assertEqual(job.process.wait(60), 143)
        self.assertEqual(job.ranks(), [])
        job.wait(1)
        self.assertEqual(list(self.directory.glob(".scaling-*")), [])
        before = self.results("killed.json")["runs"]
        self.assertIn(len(before), range(1, 8))
        text = self.sweep("killed.json", *arguments)
        self.assertEqual(text.count("ms a step"), 8 - len(before))
        self.assertEqual(self.results("killed.json")["runs"][:len(before)], before)

    def test_weak_scaling_grows_the_batch(self):
        self.sweep("weak.json", "--mode=weak", "--grids", "1x1x1", "4x1x1", "--repeats=1")
        self.assertEqual([round(run["medians"]["samples_per_second"] * run["medians"]["step_seconds"])
                          for run in self.results("weak.json")["runs"]], [32, 128])

    def test_srun_in_an_allocation(self):
        srun = self.directory / "bin" / "srun"
        srun.parent.mkdir()
        srun.write_text('#!/bin/bash\necho "$@ $SLURM_PMIX_FENCE" >>srun.log\nwhile [[ $1 = -* ]]; do '
                        '[[ $1 != --ntasks=* ]] || ranks=${1#*=}; shift; done\nexec mpirun -n $ranks "$@"\n')
        srun.chmod(0o755)
        # Of Slurm's variables the script reads; Open MPI's mpirun would take a job id for an allocation of its own.
        self.sweep("slurm.json", "--launch=srun", "--grids", "1x1x1", "1x2x1", "--repeats=1",
                   PATH=f"{srun.parent}:{os.environ['PATH']}", SLURM_NTASKS_PER_NODE="2", SLURM_CPUS_PER_TASK="1")
        lines = (self.directory / "srun.log").read_text().splitlines()
        for ranks, line in zip((1, 2), lines, strict=True):
            self.assertTrue(line.startswith(f"--mpi=pmix --kill-on-bad-exit=1 --ntasks={ranks} --nodes=1 {harness.STRATA}"), line)
            self.assertTrue(line.endswith(" ring"), line)

    def test_wrong_use(self):
        self.write_results("other.json", {"runs": [{"grid": "1x1x1"}]})
        (self.directory / "torn.json").write_text('{"runs": [')
        whole = ["sweep", harness.STRATA, self.config, "--output=x.json"]
        for arguments, words in (
                ([*whole, "--grids", "2y1"], '"2y1" is not a grid; give DATAxPIPELINExTENSOR'),
                ([*whole, "--grids", "2x0x1"], '"2x0x1" is not a grid'),
                (["sweep", "missing", self.config, "--output=x.json"], "there is no executable"),
                (["sweep", self.config, self.config, "--output=x.json"], "is not executable"),
                (["sweep", harness.STRATA, "missing.ini", "--output=x.json"], "there is no config missing.ini"),
                ([*whole[:3], "--output=missing/x.json"], "there is no directory"),
                ([*whole, "--steps=5"], "--steps=5 leaves nothing after --skip=5"),
                ([*whole, "--repeats=0"], '"0" is not a whole number from 1'),
                ([*whole, "--batch"], 'unknown argument "--batch"'),
                ([*whole[:3], "--output=torn.json"], "holds no results of sweep (JSONDecodeError"),
                (["compare", "torn.json", "torn.json"], "holds no results of sweep (JSONDecodeError"),
                (["compare", "other.json", "other.json"], "holds no results of sweep (KeyError"),
                (["compare", "missing.json", "torn.json"], "cannot read missing.json: No such file"),
                (["plot", "torn.json"], "holds no results of sweep")):
            with self.subTest(arguments=arguments):
                text = self.script(*arguments, expect=2)
                self.assertIn(words, text)
                self.assertNotIn("Traceback", text)
        text = self.sweep("x.json", "--grids", "1x1x1", "--launch=no-such-launcher {ranks}", expect=1)
        self.assertIn("cannot start no-such-launcher: No such file", text)

    def test_schedule_against_the_simulator(self):
        finished = harness.Job([sys.executable, SCRIPT.with_name("schedule_vs_simulator.py"), harness.STRATA, "--rounds=1",
                                "--steps=1", "--width=16", "--blocks=2", "--microbatches=3", "--schedules", "zb-h1",
                                "--output=simulator.json"], self.directory).wait(120)
        self.assertEqual(finished.code, 0, finished.text)
        [run] = self.results("simulator.json")["runs"]["zb-h1"]
        # 3 microbatches on the stage that takes longest; of two steps the median is the mean.
        busy = [sum(time for key, time in run.items() if key.endswith(f"stage {stage}")) for stage in (0, 1)]
        self.assertGreater(run["simulated"], 0.999 * 3 * max(busy))

    def test_replay_drops_waits(self):
        sys.path.insert(0, str(SCRIPT.parent))
        import schedule_vs_simulator
        forward, gradient, weight = schedule_vs_simulator.COMPUTE
        step = [[(0, 2, forward, 0), (2.5, 4.5, forward, 1), (9, 12, gradient, 0), (12, 13, weight, 0),
                 (16, 19, gradient, 1), (19, 20, weight, 1)],
                [(3, 5, forward, 0), (5, 8, gradient, 0), (8, 9, weight, 0), (9, 11, forward, 1), (11, 15, gradient, 1),
                 (15, 16, weight, 1)]]
        self.assertEqual(schedule_vs_simulator.span(step), 20)
        # Stage 1 begins at 2, not 3, and its gradient of microbatch 1 ends at 14; stage 0 then takes 3 and 1.
        self.assertEqual(schedule_vs_simulator.replay(step), 18)


if __name__ == "__main__":
    harness.main()
