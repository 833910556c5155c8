"""What strata doctor says of a launch: of one rank, of ranks that crowd a core, of unlike executables."""

import os
import re
import shutil
import sys

import harness


class Doctor(harness.StrataTest):
    def on_one_core(self, *command):
        """Runs a command that may use one core only, as a job of Slurm that asked for one."""
        core = min(os.sched_getaffinity(0))
        return harness.Job(["taskset", "-c", str(core), *command], self.directory, SLURM_CPUS_ON_NODE="1").wait(60)

    def test_one_rank_on_its_core(self):
        finished = self.on_one_core(harness.STRATA, "doctor")
        self.assertIn(os.uname().nodename, finished.text)
        self.assertIn("0 of 1", finished.text)
        self.assertIn("executable: ", finished.text)
        if "GPUs: as above" not in finished.text:
            self.assertIn("no problems found", finished.text)
            self.assertEqual(finished.code, harness.DONE, finished.text)

    def test_ranks_that_crowd_a_core(self):
        finished = self.on_one_core(harness.MPIRUN, "-n", "3", harness.STRATA, "doctor")
        self.assertEqual(finished.code, harness.PEER, finished.text)
        self.assertIn("ranks 0, 1 and 2 have 3 threads on 1 core of", finished.text)
        self.assertIn("--cpus-per-task", finished.text)
        self.assertIn("2 of 3", finished.text)

    def test_ranks_with_another_executable(self):
        other = self.directory / "other-strata"
        shutil.copy(harness.STRATA, other)
        with open(other, "ab") as file:
            file.write(b"\0")
        finished = self.start_each([harness.STRATA, "doctor"], [other, "doctor"]).wait(60)
        self.assertEqual(finished.code, harness.PEER, finished.text)
        self.assertIn("has executable", finished.text)
        self.assertIn("start all ranks with the same executable", finished.text)

    def test_the_file_system_of_a_run(self):
        finished = self.launch(2, "doctor", "--run.dir=runs/new")
        self.assertRegex(finished.text, "runs/new: shared by all ranks, writable; rename and fsync work; .* MiB/s")
        self.assertRegex(finished.text, "clocks: at most 0.* s apart")
        results = re.findall(r"sniff test, rank (\d): products .* ms; bits of the products (\w{16})\n", finished.text)
        self.assertEqual([rank for rank, bits in results], ["0", "1"])
        self.assertEqual(results[0][1], results[1][1])
        self.assertEqual(list((self.directory / "runs/new").iterdir()), [])
        for name in "ab":
            (self.directory / name).mkdir()
        doctor = {name: (["env", "-C", self.directory / name, harness.STRATA, "doctor"],
                         [harness.STRATA, "doctor", f"--run.dir={name}"]) for name in "ab"}
        for a, b in zip(doctor["a"], doctor["b"]):
            apart = self.start_each(a, b).wait(60)
            self.assertEqual(apart.code, harness.PEER, apart.text)
            self.assertRegex(apart.text, "rank 1 on .*: .* is not the directory that rank 0 sees: choose a run.dir on")
        finished = self.alone("doctor", "--run.dir=/proc/new")
        self.assertEqual(finished.code, harness.PEER, finished.text)
        self.assertIn("rank 0 cannot write in /proc/new (open: ", finished.text)

    def test_what_is_loaded_and_how_long_messages_take(self):
        machine = "[machine]\nname = {}\ndevice = cpu\nnode_devices = 2\nmemory_gb = 8\n[peak]\nfloat32_tflops = 0.1\n" \
                  "[product]\nefficiency = 0.5\n[memory]\nbandwidth_gbs = 10\nefficiency = 0.5\n" \
                  "[link.node]\nlatency_us = {}\nbandwidth_gbs = {}\n"
        for name, latency, rate, far in [("slow", 100000, 0.001, False), ("fast", 0.001, 10000, True)]:
            (self.directory / f"{name}.ini").write_text(machine.format(name, latency, rate))
            for option in ("--machine", "--run.machine"):
                finished = self.launch(2, "doctor", f"{option}={name}.ini")
                self.assertRegex(finished.text, r"\nloaded: (.*; )?MPI /\S*libmpi\S*")
                self.assertRegex(finished.text, r"messages in a node, 2 ranks .*: 8 B .* us, 64.00 KiB .* GB/s\), 4.00 MiB")
                self.assertEqual("times as long as there" in finished.text, far, finished.text)
                self.assertEqual("messages of 4.00 MiB in a node" in finished.text, far)
        of_gpus = self.launch(2, "doctor", "--machine=h100").text
        self.assertIn("messages are not compared: the machine h100 is of cuda, the ranks compute on cpu", of_gpus)
        self.assert_refused(self.launch(2, "doctor", "--machine=h1000"), harness.USAGE, "no machine of that name")

    def test_commands_of_one_rank_do_not_start_mpi(self):
        # What a step of Slurm sets, without MPI's part: Open MPI 4 does not start there, others are alone. A shell has the terminal
        # of its step.
        step = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NODELIST": "n1",
                "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1",
                "SLURM_TASK_PID": "1"}
        for tasks, starts, terminal in [("1", True, False), ("4", True, True), ("4", False, False)]:
            command = [harness.STRATA, "doctor"]
            if terminal:
                command = [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)", *command]
            finished = harness.Job(command, self.directory, **step, SLURM_STEP_NUM_TASKS=tasks).wait(60)
            self.assertEqual("0 of 1" in finished.text, starts, finished.text)
            if not starts:
                self.assertNotEqual(finished.code, harness.DONE)

    def test_wrong_use(self):
        self.assert_refused(self.launch(2, "doctor", "--verbose"), harness.USAGE, "--verbose")


if __name__ == "__main__":
    harness.main()
