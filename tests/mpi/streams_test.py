"""Output that cannot be written, data that disappear while they are in use, and a crash: a line and the right code."""

import ctypes.util
import os
import signal

import harness

HAS_UCX = ctypes.util.find_library("ucs") is not None
NETWORK = harness.config_text(["dense 32 relu", "dense 4"], batch={"global": 20}, numerics={"lanes": 2},
                              train={"steps": 10})


class Streams(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_up_classes(NETWORK, (10,), 4, train=2000, test=30)
        cls().train(cls.config, (1, 1), "run")

    def redirected(self, redirection, *arguments):
        """Runs the executable with a shell's redirection."""
        return harness.Job(["sh", "-c", f'exec "$@" {redirection}', "sh", harness.STRATA, *arguments],
                           self.directory).wait(60)

    def test_standard_output_is_full(self):
        for arguments in (["help"], ["help", "reference"], ["train", "--help"], ["--version"], ["doctor"],
                          ["data", "inspect", "classes/train.h5"], ["checkpoint", "inspect", "run"],
                          ["evaluate", "run"]):
            with self.subTest(arguments=arguments):
                self.assert_refused(self.redirected(">/dev/full", *arguments), harness.DATA,
                                    "standard output cannot be written: No space left on device")

    def test_standard_error_does_not_end_training(self):
        for number, redirection in enumerate(("2>/dev/full", "2>&-")):
            run = f"errors-{number}"
            finished = self.redirected(redirection, "train", self.config, f"--run.dir={run}")
            self.assertEqual(finished.code, harness.DONE, finished.text)
            self.assert_same_run("run", run)

    def start_training(self, run):
        job = self.start(2, "train", self.config, f"--run.dir={run}", "--train.steps=10000000")
        lines = self.directory / run / "metrics.jsonl"
        job.wait_until(lambda: lines.exists() and lines.read_text().count("\n") > 5, 60)
        return job

    def test_a_shard_is_truncated_in_training(self):
        self.import_classes("short", (10,), 4, 2000, 30)
        job = self.start(2, "train", self.config, "--run.dir=short-run", "--data.train=short/train.h5",
                         "--train.steps=10000000")
        lines = self.directory / "short-run" / "metrics.jsonl"
        job.wait_until(lambda: lines.exists() and lines.read_text().count("\n") > 5, 60)
        shards = [path for path in (self.directory / "short").rglob("*train*") if path.name != "train.h5"
                  and path.is_file()]
        for shard in shards:
            os.truncate(shard, 0)
        finished = job.wait(60)
        self.assertEqual(finished.code, harness.DATA, finished.text)
        self.assertTrue(any("became shorter or cannot be read" in line and "train" in line
                            for line in finished.reports()), finished.text)

    def test_a_crash_names_rank_and_phase(self):
        job = self.start_training("crash")
        os.kill(job.ranks()[1], signal.SIGSEGV)
        finished = job.wait(60)
        self.assertNotEqual(finished.code, harness.DONE, finished.text)
        self.assertTrue(any(line.startswith("strata: rank 1: crashed with SIGSEGV in phase training, step ")
                            for line in finished.reports()), finished.text)
        self.assertNotIn("UCX  WARN", finished.text)

    def test_a_crash_without_mpi_ends_with_strata_s_report(self):
        report = r"rank 0: crashed with SIGSEGV in phase training, step \d+; [^\n]*\n(.*\[0x[0-9a-f]+\]\n)+"
        of_ucx = "Caught signal 11"
        for run, variables in {"alone": {}, "ucx": {"LD_PRELOAD": harness.UCX},
                               "asked": {"LD_PRELOAD": harness.UCX, "UCX_HANDLE_ERRORS": "bt"}}.items():
            with self.subTest(run):
                job = harness.Job([harness.STRATA, "train", self.config, f"--run.dir={run}", "--train.steps=10000000"],
                                  self.directory, **variables)
                lines = self.directory / run / "metrics.jsonl"
                job.wait_until(lambda: lines.exists() and lines.read_text().count("\n") > 5, 60)
                os.kill(job.process.pid, signal.SIGSEGV)
                finished = job.wait(60)
                self.assertEqual(finished.code, -signal.SIGSEGV, finished.text)
                if run == "asked" and HAS_UCX:
                    self.assertIn(of_ucx, finished.text)
                else:
                    self.assertRegex(finished.text, report)
                    self.assertNotIn(of_ucx, finished.text)


if __name__ == "__main__":
    harness.main()
