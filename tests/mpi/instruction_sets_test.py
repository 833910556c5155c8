"""numerics.isa: ranks of unlike CPUs, classes that the CPU lacks, and runs that go on under another class."""

import os

import harness
import language


class InstructionSets(language.LanguageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lines = cls().alone("--version").text.splitlines()
        cls.native = next(line for line in lines if line.startswith("instruction set: ")).split()[-1]

    def under(self, caps, run, *settings):
        """Trains one rank a cap, which oneDNN takes from its environment."""
        return self.start_each(*(["env", f"ONEDNN_MAX_CPU_ISA={cap}", harness.STRATA, "train", self.config,
                                  f"--run.dir={run}", *settings] for cap in caps)).wait(60)

    def test_start_shows_the_class(self):
        finished = self.train(self.config, (2, 1, 1), "shown")
        self.assertIn(f", 1 thread each, {self.native}\n", finished.text)
        inspected = self.alone("checkpoint", "inspect", harness.checkpoints(self.directory / "shown")[-1])
        self.assertIn(self.native, inspected.text)

    def test_unlike_ranks_share_the_lowest_class(self):
        if self.native == "avx2":
            self.skipTest("the CPU has one class only")
        mixed = self.under(["ALL", "AVX2"], "mixed", "--parallel.data=2")
        self.assertEqual(mixed.code, harness.DONE, mixed.text)
        self.assertIn(f"avx2 (rank 1 on {os.uname().nodename} has no more)", mixed.text)
        self.train(self.config, (1, 2, 1), "lowest", "--numerics.isa=avx2")
        self.assert_same_run("mixed", "lowest")

    def test_a_class_that_a_rank_lacks(self):
        refused = self.under(["ALL", "AVX2"], "lacks", "--numerics.isa=avx512")
        self.assert_refused(refused, harness.USAGE, "numerics.isa is avx512", "has avx2",
                            "ONEDNN_MAX_CPU_ISA", os.uname().nodename)
        self.assertFalse((self.directory / "lacks").exists())

    def test_bfloat16_under_every_class(self):
        widened = self.under(["AVX2"], "widened", "--numerics.dtype=bfloat16")
        self.assertEqual(widened.code, harness.DONE, widened.text)
        self.assertIn("products of bfloat16 are computed in float32", widened.text)
        exact = self.under(["AVX2"], "exact")
        losses = [[float(row["loss"]) for row in self.records(run, "train")] for run in ("widened", "exact")]
        self.assertNotEqual(*losses)
        for narrow, wide in zip(*losses):
            self.assertAlmostEqual(narrow, wide, delta=0.02 * wide)

    def test_resume_under_another_class(self):
        if self.native == "avx2":
            self.skipTest("the CPU has one class only")
        go_on = ["--run.resume=auto", "--train.steps=4"]
        self.train(self.config, (1, 1, 1), "changed", "--train.steps=2")
        same = self.train(self.config, (1, 1, 1), "changed", "--numerics.isa=avx512", "--run.resume=auto")
        self.assertNotIn("warning", same.text)
        other = self.train(self.config, (1, 1, 1), "changed", "--numerics.isa=avx2", *go_on)
        self.assertEqual(other.text.count("warning"), 1, other.text)
        self.assertIn("was made with numerics.isa = avx512 and the run goes on with numerics.isa = avx2", other.text)


if __name__ == "__main__":
    harness.main()
