"""Imports that meet: two into one output, one in several ranks, and one after another that was killed at a random moment.

STRATA_TEST_KILLS sets the number of kills, STRATA_TEST_SEED the seed of the random moments.
"""

import os
import random
import signal
import time
import unittest

import harness
from harness import DONE, USAGE


class Import(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, seed in (("a", 1), ("b", 2)):
            (cls.directory / f"{name}.txt").write_bytes(random.Random(seed).randbytes(6 << 20))

    def start_import(self, name, output, *arguments):
        return harness.Job([harness.STRATA, "data", "import", "--format=text", "--tokenizer=bytes",
                            f"--files={name}.txt", "--shard-mib=1", f"--output={output}", *arguments],
                           self.directory)

    def assert_whole(self, output):
        """Every master there is fits its shards."""
        masters = sorted(path for path in (self.directory / output).glob("*.h5") if "-" not in path.name)
        for master in masters:
            self.alone("data", "inspect", "--verify", master, expect=DONE)
        return [master.name for master in masters]

    def unfinished(self, output):
        return [path.name for path in (self.directory / output).iterdir()
                if path.name.endswith(".partial") or "lock" in path.name]

    def test_two_at_once(self):
        for attempt in range(6):
            output = f"both-{attempt}"
            further = ["--overwrite"] if attempt % 2 else []
            jobs = [self.start_import(name, output, *further) for name in "ab"]
            finished = [job.wait(60) for job in jobs]
            codes = sorted(one.code for one in finished)
            # With --overwrite, the second may begin just after the first has ended.
            self.assertIn(codes, [[DONE, USAGE]] + ([[DONE, DONE]] if further else []),
                          [one.text for one in finished])
            for one in finished:
                if one.code == USAGE:
                    self.assertRegex(one.text, "is in use by host|already exists")
            self.assertEqual(self.assert_whole(output), ["test.h5", "train.h5"])
            self.assertEqual(self.unfinished(output), [])

    def test_the_second_is_named_the_first(self):
        first = self.start_import("a", "held")
        first.wait_until((self.directory / "held/import.lock").exists, 20)
        first.signal_all(signal.SIGSTOP)
        second = self.start_import("b", "held").wait(30)
        self.assert_refused(second, USAGE, "held is in use by host", "choose another --output")
        first.signal_all(signal.SIGCONT)
        self.assertEqual(first.wait(60).code, DONE)
        self.assertEqual(self.assert_whole("held"), ["test.h5", "train.h5"])

    def test_one_process_only(self):
        arguments = ["data", "import", "--format=text", "--tokenizer=bytes", "--files=a.txt"]
        refused = self.launch(2, *arguments, "--output=ranks")
        self.assertEqual(refused.code, USAGE, refused.text)
        self.assertIn("this is rank 1 of a parallel launch", refused.text)
        self.assertIn("start strata data import without mpirun", refused.text)
        self.import_data(*arguments[2:], "--overwrite", "--output=ranks")
        self.assertEqual(self.unfinished("ranks"), [])
        # A rank that mpirun starts alone is welcome.
        self.assertEqual(self.launch(1, *arguments, "--output=rank").code, DONE)

    def test_killed_at_random_moments(self):
        choice = random.Random(int(os.environ.get("STRATA_TEST_SEED", "1")))
        started = time.monotonic()
        self.start_import("a", "timed").wait(60)
        seconds = time.monotonic() - started
        killed = 0
        for _ in range(int(os.environ.get("STRATA_TEST_KILLS", "15"))):
            job = self.start_import("a", "killed", "--overwrite")
            time.sleep(choice.uniform(0.0, seconds))
            killed += job.running()
            job.signal_all(signal.SIGKILL)
            job.wait(30)
            if (self.directory / "killed").exists():
                self.assert_whole("killed")
        self.assertGreater(killed, 0)
        self.assertEqual(self.start_import("a", "killed", "--overwrite").wait(60).code, DONE)
        self.assertEqual(self.assert_whole("killed"), ["test.h5", "train.h5"])
        self.assertEqual(sorted(path.name for path in (self.directory / "killed").iterdir()),
                         sorted(path.name for path in (self.directory / "timed").iterdir()))

    def test_only_its_own_files_are_removed(self):
        output = self.directory / "kept"
        output.mkdir()
        for name in ("notes.partial", "train.txt.partial", "train-1.h5.bak", "train.h5.0123456789abcdef.partial",
                     "test-00007.h5.partial", "tokens.0123456789abcdef.partial"):
            (output / name).write_text("left")
        (output / "train-00000.h5.partial").symlink_to(self.directory / "precious")
        self.assertEqual(self.start_import("a", "kept").wait(60).code, DONE)
        self.assertEqual(sorted(path.name for path in output.iterdir() if path.suffix not in (".h5", ".manifest")),
                         ["notes.partial", "train-1.h5.bak", "train.txt.partial"])
        self.assertFalse((self.directory / "precious").exists())


if __name__ == "__main__":
    unittest.main()
