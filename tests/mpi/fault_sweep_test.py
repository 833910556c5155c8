"""Each system call on a file fails once: a run ends with one message and the right exit code, or goes on, and the next
run ends with the bits of one that was never disturbed.

STRATA_TEST_LONG=1 makes every call fail in every way; otherwise each test takes a sample with the seed STRATA_TEST_SEED, for
STRATA_TEST_SECONDS.
STRATA_FAULT_SHIM names the library of tests/support/fault_shim.c.
"""

import os
import random
import shutil
import signal
import sys
import time

import harness
from harness import CHECKPOINT, DATA, DONE, PEER, USAGE

NETWORK = harness.config_text(
    ["dense 12 relu", "dense 3"], data={"train": "sweep/data/train.h5", "test": "sweep/data/test.h5"},
    batch={"global": 8, "micro": 4}, numerics={"lanes": 2}, optimizer={"kind": "adam"},
    train={"steps": 4, "evaluate_every": 2}, checkpoint={"every": 2, "keep": 2},
    run={"resume": "auto", "tensorboard": "on"})

ERRORS = {"open": ["EIO", "EACCES", "ENOSPC", "kill"], "read": ["EIO", "short", "kill"],
          "write": ["EIO", "ENOSPC", "short", "kill"], "fsync": ["EIO", "ENOSPC", "kill"],
          "rename": ["EIO", "ENOSPC", "kill"], "close": ["EIO", "ENOSPC", "kill"], "mmap": ["ENOMEM", "kill"]}

LONG = "STRATA_TEST_LONG" in os.environ
SAMPLE_SECONDS = float(os.environ.get("STRATA_TEST_SECONDS", "5"))


class FaultSweep(harness.StrataTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        (cls.directory / "sweep").mkdir()
        test.import_classes("sweep/data", (5,), 3, train=40, test=12)
        cls.config = test.write_config("network.ini", NETWORK)
        test.train(cls.config, (1, 1), "whole")
        test.train(cls.config, (1, 1), "half", "--train.steps=2")

    def clear(self):
        for name in ("run", "copy"):
            shutil.rmtree(self.directory / "sweep" / name, ignore_errors=True)

    def strata(self, ranks, *arguments, **variables):
        """Runs the executable with faults, on the ranks alone and not in mpirun."""
        command = [harness.STRATA, *arguments]
        preload = [f"LD_PRELOAD={os.environ['STRATA_FAULT_SHIM']}" if variables else "LD_PRELOAD="]
        command = ["env", *preload, *command]
        if ranks > 1:
            command = [harness.MPIRUN, "-n", str(ranks), *command]
        return harness.Job(command, self.directory, **variables).wait(40)

    def train_arguments(self):
        return "train", self.config, "--run.dir=sweep/run"

    def counts(self, ranks, arguments):
        """How often each rank makes each call."""
        self.prepare()
        path = self.directory / "counts"
        path.unlink(missing_ok=True)
        finished = self.strata(ranks, *arguments, STRATA_FAULT="n=0,path=/sweep/", STRATA_FAULT_COUNT=str(path))
        self.assertEqual(finished.code, DONE, finished.text)
        found = []
        for line in path.read_text().splitlines():
            rank, *words = line.split()
            found += [(int(rank), call, int(number)) for call, number in zip(words[::2], words[1::2])]
        self.assertEqual(len({rank for rank, *_ in found}), ranks)
        return found

    def cases(self, ranks, arguments):
        """(rank, call, n, error) of all faults, in random order."""
        found = [(rank, call, n, error) for rank, call, number in self.counts(ranks, arguments)
                 for n in range(1, number + 1) for error in ERRORS[call]]
        random.Random(os.environ.get("STRATA_TEST_SEED", "1")).shuffle(found)
        return found

    def sweep(self, name, ranks, prepare, arguments, check):
        """Runs with each fault, and calls check(finished) after each."""
        self.prepare = prepare
        cases = self.cases(ranks, arguments)
        end = time.monotonic() + SAMPLE_SECONDS
        codes, faults_met = {}, 0
        log = self.directory / "met"
        for number, (rank, call, n, error) in enumerate(cases):
            if not LONG and time.monotonic() > end:
                number -= 1
                break
            prepare()
            log.unlink(missing_ok=True)
            fault = f"call={call},n={n},error={error},rank={rank},path=/sweep/"
            with self.subTest(fault=fault):
                finished = self.strata(ranks, *arguments, STRATA_FAULT=fault, STRATA_FAULT_LOG=str(log))
                met = log.read_text() if log.exists() else "not met"
                faults_met += log.exists()
                context = f"{fault}: {met}\n{finished.text}"
                codes[finished.code] = codes.get(finished.code, 0) + 1
                if error == "kill":
                    self.assertIn(finished.code, (-signal.SIGKILL, 128 + signal.SIGKILL), context)
                else:
                    self.assertIn(finished.code, (DONE, USAGE, DATA, CHECKPOINT, PEER), context)
                    self.assertEqual(len(finished.reports()), int(finished.code != DONE), context)
                try:
                    check(finished)
                except AssertionError as failure:
                    print(f"wrong end: {context}\n{failure}", file=sys.stderr, flush=True)
                    raise AssertionError(f"{context}\n{failure}") from None
        self.assertGreater(faults_met, (number + 1) // 2)
        print(f"{name}: {number + 1} of {len(cases)} faults; exit codes {dict(sorted(codes.items()))}",
              file=sys.stderr, flush=True)

    def check_run(self, finished):
        """The next run ends with the bits of the undisturbed one."""
        if finished.code != DONE:
            again = self.strata(1, *self.train_arguments())
            self.assertEqual(again.code, DONE, again.text)
        if "metrics.jsonl cannot be written" not in finished.text:  # training goes on, with a warning
            self.assertEqual(*(harness.metrics(self.directory / run) for run in ("whole", "sweep/run")))
        left, right = (harness.checkpoints(self.directory / run)[-1] for run in ("whole", "sweep/run"))
        self.assertEqual(left.name, right.name)
        self.assertEqual(harness.differing_tensors(harness.tensors(left), harness.tensors(right)), [])

    def half_done(self):
        self.clear()
        shutil.copytree(self.directory / "half", self.directory / "sweep/run")

    def test_train(self):
        self.sweep("train", 1, self.clear, self.train_arguments(), self.check_run)

    def test_resume(self):
        self.sweep("resume", 1, self.half_done, self.train_arguments(), self.check_run)

    def test_found_by_the_sweep(self):
        """Faults that once were not noticed: a torn line, an evaluation twice, tensors lost in HDF5's sieve buffer."""
        for call, error, path, numbers in [("write", "short", "run/metrics.jsonl", (1,)),
                                           ("open", "ENOSPC", "run/metrics.jsonl", (3,)),
                                           ("write", "ENOSPC", "/part-", (14, 15, 16))]:
            for n in numbers:
                fault = f"call={call},n={n},error={error},path={path}"
                with self.subTest(fault=fault):
                    self.half_done()
                    met = self.directory / "met"
                    met.unlink(missing_ok=True)
                    finished = self.strata(1, *self.train_arguments(), STRATA_FAULT=fault, STRATA_FAULT_LOG=str(met))
                    self.assertTrue(met.exists(), f"{fault} was not met")
                    self.assertIn(finished.code, (DONE, USAGE, DATA, CHECKPOINT), finished.text)
                    if error == "short":  # no error
                        self.assertNotIn("cannot be written", finished.text)
                    self.check_run(finished)

    def test_resume_on_two_ranks(self):
        self.sweep("resume on 2 ranks", 2, self.half_done, self.train_arguments(), self.check_run)

    def test_unreadable_is_not_damaged(self):
        """The run stops, and the newest checkpoint stays: a run from an earlier one would replace it."""
        whole = shutil.copytree(self.directory / "whole", self.directory / "sweep/kept")
        arguments = ("train", self.config, "--run.dir=sweep/kept", "--train.steps=6")
        for ranks, fault in [(1, "call=open,error=EIO,path=000004/part-"), (1, "call=read,error=ESTALE,path=000004/part-"),
                             (1, "call=open,error=ENOMEM,path=000004/master.h5"),
                             (1, "call=open,error=EACCES,path=000004/master.manifest"),
                             (1, "call=open,error=EIO,path=kept/checkpoints"),
                             (2, "call=open,error=EIO,path=000004/part-,rank=0")]:
            with self.subTest(fault=fault, ranks=ranks):
                finished = self.strata(ranks, *arguments, STRATA_FAULT=f"n=1,last,{fault}")
                words = ["out of memory: cannot"] if "ENOMEM" in fault else ["cannot be read now"] if "000004" in fault else ["cannot"]
                self.assert_refused(finished, PEER, *words)
                self.assertEqual(len(harness.checkpoints(whole)), 2)
        self.assertIn("continuing after step 4", self.strata(1, *arguments).text)

    def test_a_file_system_that_fails_now_is_no_damage(self):
        """Exit code 5 says that the job may be submitted again; a stale handle of the lock is looked up again."""
        for fault, code in [("call=read,error=EIO,path=data/train", PEER), ("call=open,error=ESTALE,path=data/train", PEER),
                            ("call=open,error=EIO,path=network.ini", PEER), ("call=read,error=EIO,path=run/metrics.jsonl", PEER),
                            ("call=read,error=EIO,path=run.lock", PEER), ("call=open,error=EACCES,path=data/train", DATA),
                            ("call=open,error=EACCES,path=network.ini", USAGE), ("call=read,n=1,error=ESTALE,path=run.lock", DONE),
                            ("call=read,n=9,error=EIO,path=000002/part-,rank=0", PEER),  # verifies
                            ("call=read,n=9,error=EIO,path=000002/part-,rank=1", PEER)]:  # loads
            with self.subTest(fault=fault):
                self.half_done()
                met = self.directory / "met"
                met.unlink(missing_ok=True)
                fault = fault if "n=" in fault else f"n=1,last,{fault}"
                finished = self.strata(2, *self.train_arguments(), STRATA_FAULT=fault, STRATA_FAULT_LOG=str(met))
                self.assertTrue(met.exists(), f"{fault} was not met")
                self.assertEqual(finished.code, code, finished.text)
                if code != DONE:
                    self.assert_refused(finished, code, "once the file system answers" if code == PEER else "Permission denied")

    @harness.on_a_running_machine
    def test_a_slow_file_system_is_no_lost_peer(self, attempt):
        """One rank reads a checkpoint for longer than run.timeout, while the others wait."""
        whole = shutil.copytree(self.directory / "whole", self.directory / f"sweep/slow-{attempt}")
        timeout, slow = (seconds * harness.patience(attempt) for seconds in (3, 4))
        fault = f"call=open,n=1,last,error=slow,seconds={slow},rank=1,path=/part-"
        for arguments in [("train", self.config, "--train.steps=4", f"--run.dir={whole}"), ("evaluate", whole)]:
            finished = self.strata(2, *arguments, f"--run.timeout={timeout}", STRATA_FAULT=fault)
            self.assertEqual(finished.code, DONE, finished.text)

    def test_a_process_that_proc_hides_may_live(self):
        self.clear()
        job = harness.Job([harness.STRATA, *self.train_arguments(), "--train.steps=1000000"], self.directory)
        lock = self.directory / "sweep/run/run.lock"
        job.wait_until(lock.exists, 30)
        fault = f"call=open,n=1,last,error=EACCES,path=/proc/{job.ranks()[0]}/stat"
        finished = self.strata(1, *self.train_arguments(), STRATA_FAULT=fault)
        job.signal_all(signal.SIGKILL)
        job.wait(10)
        self.assert_refused(finished, USAGE, "its heartbeat advances")

    def test_verify(self):
        def whole():
            self.clear()
            shutil.copytree(self.directory / "whole", self.directory / "sweep/run")

        def check(finished):
            good = "all bytes as they were written" in finished.text
            self.assertEqual(good, finished.code == DONE, finished.text)

        self.sweep("verify", 1, whole, ("checkpoint", "verify", "sweep/run"), check)

    def test_import(self):
        arguments = ("data", "import", "--format=npy", "--inputs=sweep/data-inputs.npy",
                     "--targets=sweep/data-targets.npy", "--split=40,12", "--output=sweep/copy", "--overwrite")

        def check(finished):
            if finished.code != DONE:
                again = self.strata(1, *arguments)
                self.assertEqual(again.code, DONE, again.text)
            for name in ("train", "test"):
                verified = self.strata(1, "data", "inspect", f"sweep/copy/{name}.h5", "--verify")
                self.assertEqual(verified.code, DONE, verified.text)

        self.sweep("import", 1, self.clear, arguments, check)


if __name__ == "__main__":
    harness.main()
