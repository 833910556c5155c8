"""strata job: its scripts against the files of jobs/ and tests/job/, its refusals, and what a script does after each exit
code. With --write the files are written anew."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import DONE, STRATA, USAGE, StrataTest, catches, config_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("jobs/*.sbatch"), *ROOT.glob("tests/job/gpt2.*")])
CONFIG = config_text(["dense 8", "dense 2"], data={"train": "none.h5"}, parallel={"pipeline": 2}, numerics={"lanes": 4},
                     train={"steps": 10})

# What is given, and what the refusal names.
REFUSED = [
    (["--time=60", "--nodes=3", "--ranks-per-node=2"], "3 nodes x 2 ranks are 6.*4 or 8 fit .--nodes=2 or --nodes=4"),
    (["--time=60", "--nodes=2", "--ranks-per-node=2", "--parallel.data=4"], r"4 data x 2 pipeline.*8 fit .--nodes=4\)"),
    (["--time=60", "--nodes=1-4", "--ranks-per-node=1"], "a replica takes 2 ranks.*--nodes=2-4"),
    (["--time=60", "--nodes=0"], "--nodes is \"0\""),
    (["--time=soon"], "--time is \"soon\".*HH:MM:SS"),
    (["--time=2", "--signal=120"], "--signal is \"120\", it must be a whole number from 1 to 119"),
    (["--nodes=2"], "needs a time limit"),
    (["--time=60", "--partion=gpu"], "no option --partion; the nearest is --partition"),
    (["--time=60", "--scheduler=pbs", "--launcher=srun"], "--launcher=srun needs Slurm"),
    (["--time=60", "--scheduler=lsf"], "one of slurm, pbs, flux, shell"),
    (["--time=60", "--scheduler=flux", "--nodes=1-2"], "only --scheduler=slurm"),
    (["--time=60", "--mem=1x"], "--mem is \"1x\""),
    (["--time=60", "--submit", "--output=refused.sh"], "refused the script: sbatch: error: invalid partition"),
    (["--time=60", "--spares=-1"], "--spares is \"-1\""),
    (["--time=60", "--scheduler=pbs", "--spares=1"], "--spares needs --scheduler=slurm, or --hostfile .*because pbs ends"),
    (["--time=60", "--scheduler=flux", "--hostfile=hosts", "--spares=1"], "--spares needs .*because flux ends"),
    (["--scheduler=shell", "--spares=1"], "--spares needs .*because mpirun on one host ends"),
    (["--hostfile=hosts", "--submit"], "--submit needs a scheduler"),
    (["--time=60", "--output=net.ini"], "--output=net.ini is what the command reads; choose another file"),
    (["--time=60", "--job-name=../x"], "--job-name is \"../x\"; give a name without /"),
    (["--time=60", "--scheduler=pbs", "--job-name=a b"], "a name without / and blanks"),
    (["--time=60", "--scheduler=pbs", "--account=a'b\"c"], "PBS cannot read a'b\"c in a job script"),
]

# Texts that shells and schedulers would read as more than a word, and those that would end its line.
HOSTILE = ["$(touch pwned) `touch pwned`", "a; touch pwned #", "'; touch pwned; '", '"; touch pwned; "', "-x\\", "* ~ $HOME {} é"]
CONTROLS = ["a\ntouch pwned #", "a\r", "a\tb", "\x1b[2J", "\x7f"]
TEXTS = ["partition", "account", "qos", "constraint", "modules", "container", "fence", "program"]
# Options, and the mark of a directive.
SCHEDULERS = [(["--time=60", "--nodes=1-2", "--ranks-per-node=2"], "#SBATCH"), (["--time=60", "--launcher=mpirun", "--spares=0"], "#SBATCH"),
              (["--time=60", "--scheduler=pbs"], "#PBS"), (["--time=60", "--scheduler=flux"], "# flux:"),
              (["--hostfile=hosts"], "#none")]


def written(script):
    """The script that its own head asks for."""
    command = re.search(r"Made by\n# +strata (.*)", script.read_text())[1]
    site = ROOT / "tests/job/site.ini" if script.parent.name == "job" else "/dev/null"
    with tempfile.TemporaryDirectory() as directory:
        new = pathlib.Path(directory, script.relative_to(ROOT))
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / "jobs", f"{directory}/jobs", ignore=shutil.ignore_patterns("*.sbatch"), dirs_exist_ok=True)
        result = subprocess.run([STRATA, *shlex.split(command)], cwd=directory, env={**os.environ, "STRATA_SITE": str(site)},
                                capture_output=True, text=True, check=False)
        return new.read_text() if new.exists() else result.stderr


def words_in(line, escape):
    """The words of a directive, in which quotes hide blanks."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", escape
    return list(lexer)


class JobTest(StrataTest):
    def setUp(self):
        shutil.rmtree(self.directory / "bin", ignore_errors=True)  # stubs of other tests
        self.write_config("net.ini", CONFIG)
        self.stub("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
        self.stub("sleep", "exec /bin/sleep 0.02")

    def stub(self, name, text):
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def job(self, *arguments, site="/dev/null", command=("job", "net.ini")):
        environment = {**os.environ, "STRATA_SITE": str(site), "PATH": f"{self.directory}/bin:{os.environ['PATH']}"}
        return subprocess.run([STRATA, *command, *arguments], cwd=self.directory, env=environment,
                              capture_output=True, text=True, check=False)

    def test_scripts_are_what_the_program_writes(self):
        self.assertGreaterEqual(len(SCRIPTS), 5)
        for script in SCRIPTS:
            with self.subTest(script.name):
                self.assertEqual(written(script), script.read_text())
                subprocess.run(["bash", "-n", script], check=True)

    def test_refusals(self):
        for arguments, message in REFUSED:
            with self.subTest(arguments):
                result = self.job(*arguments)
                self.assertEqual(result.returncode, USAGE, result.stderr)
                self.assertRegex(result.stderr, message)

    def test_memory_comes_from_the_plan_and_must_fit(self):
        self.write_config("net.ini", config_text([], data={"train": "none.h5"}, model={"preset": "gpt2-124m"},
                                                 batch={"global": 8, "micro": 1}, train={"steps": 10}))
        result = self.job("--time=60", "--ranks-per-node=2")
        self.assertRegex(result.stderr, "memory per node: 2 ranks x")
        asked = int(re.search(r"--mem=(\d+)G", result.stdout)[1])
        refused = self.job("--time=60", "--ranks-per-node=2", "--mem=2G")
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn(f"give --mem={asked}G", refused.stderr)
        gpu = self.job("--time=60", "--run.device=cuda", "--gpu-memory=1G")
        self.assertEqual(gpu.returncode, USAGE)
        self.assertRegex(gpu.stderr, "stage 0 needs .* of its GPU's memory")

    def test_site_file(self):
        site = self.directory / "site.ini"
        site.write_text("[job]\npartition = batch\nlauncher = mpirun\n")
        text = self.job("--time=60", "--nodes=2", "--partition=gpu", site=site).stdout
        self.assertIn("--partition=gpu", text)
        self.assertIn("\nmpirun ", text)
        site.write_text("\ufeff[job]\r\npartition = marked\r\n", encoding="utf-8")
        self.assertIn("--partition=marked\n", self.job("--time=60", site=site).stdout)
        site.write_text("[job]\npartiton = batch\n")
        self.assertRegex(self.job("--time=60", site=site).stderr, "no option \"job.partiton\".*nearest is \"partition\"")

    def test_what_a_script_does_after_each_exit_code(self):
        # The codes of the starts, with "+" a start that writes a checkpoint; how many are made, and the last words. Each
        # checkpoint is of an earlier step, as where a run goes back behind damaged ones.
        cases = [("75+ 75+ 5+ 0", 4, ""), ("5 5 5 5", 3, "3 consecutive starts"), ("5 75 5+ 205 137 0", 6, ""),
                 ("2", 1, "exit code 2, which a restart would repeat"), ("6+ 0", 1, "exit code 6"),
                 ("127", 1, "exit code 127"), ("75 75+ 1 143 5", 5, "3 consecutive starts")]
        text = self.job("--hostfile=hosts", "--nodes=2", "--ranks-per-node=2").stdout
        (self.directory / "job.sh").write_text(text)
        self.stub("mpirun", """read -r first rest <codes; echo "$rest" >codes; echo start >>starts.log
if [[ $first = *+ ]]; then mkdir -p runs/net/checkpoints/step-$(printf %08d $((900 - $(wc -l <starts.log)))); fi
exit ${first%+}""")
        for codes, starts, words in cases:
            with self.subTest(codes):
                subprocess.run("rm -rf runs starts.log", shell=True, cwd=self.directory, check=True)
                (self.directory / "codes").write_text(codes + "\n")
                result = subprocess.run(["bash", "job.sh"], cwd=self.directory, capture_output=True, text=True, check=False,
                                        env={**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"})
                self.assertEqual(len((self.directory / "starts.log").read_text().split()), starts, result.stdout)
                last = codes.split()[starts - 1]
                self.assertEqual(result.returncode, int(last.rstrip("+")), result.stdout)
                self.assertIn(words, result.stdout)

    def test_starts_are_counted_in_the_directory_of_the_run(self):
        (self.directory / "job.sh").write_text(self.job("--hostfile=hosts").stdout)
        self.stub("mpirun", "exit 0")
        for number, words in enumerate((["--run.dir=runs/a"], ["--run.dir", "runs/b"], ["--run.dir=runs/c", "--run.dir", "runs/d e"])):
            shutil.rmtree(self.directory / "runs", ignore_errors=True)
            subprocess.run(["bash", "job.sh", *words, "--run.seed=2"], cwd=self.directory, capture_output=True, check=True,
                           env={**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"})
            self.assertEqual(os.listdir(self.directory / "runs"), [("a", "b", "d e")[number]])

    def test_a_terminal_that_closes_is_a_stop_request(self):
        (self.directory / "job.sh").write_text(self.job("--hostfile=hosts", "--nodes=2", "--ranks-per-node=2").stdout)
        self.stub("mpirun", """trap 'echo USR1 >>got; exit 75' USR1; trap 'echo HUP >>got; exit 1' HUP INT; touch ready
while sleep 0.1; do :; done""")
        # To all processes of the terminal; also where mpirun ends before the script's kill returns.
        late = {"BASH_FUNC_kill%%": '() { builtin kill "$@"; local code=$?; /bin/sleep 1; return $code; }'}
        for number, kill in [(signal.SIGHUP, {}), (signal.SIGINT, {}), (signal.SIGHUP, late)]:
            script = subprocess.Popen(["bash", "job.sh"], cwd=self.directory, start_new_session=True, stdout=subprocess.DEVNULL,
                                      env={**os.environ, **kill, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"})
            while not ((self.directory / "ready").exists() and catches(script.pid, number)):
                self.assertIsNone(script.poll())
                time.sleep(0.05)
            os.killpg(script.pid, number)
            self.assertEqual(script.wait(60), 75)
            (self.directory / "ready").unlink()
        self.assertEqual(set((self.directory / "got").read_text().split()), {"USR1"})

    def test_a_signal_as_mpirun_ends_hides_no_exit_code(self):
        (self.directory / "job.sh").write_text(self.job("--hostfile=hosts", "--nodes=2", "--ranks-per-node=2").stdout)
        self.stub("mpirun", "trap '' USR1; /bin/sleep 0.2; kill -USR1 $PPID; exit 3")
        for options in [], ["--posix"]:
            for _ in range(5):
                result = subprocess.run(["bash", *options, "job.sh"], cwd=self.directory, capture_output=True, text=True, check=False,
                                        env={**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"})
                self.assertEqual(result.returncode, 3, result.stdout + result.stderr)

    def test_a_lost_host_is_replaced_and_then_left_out(self):
        # Each launch loses the first of its hosts; a probe of a lost host fails.
        (self.directory / "hosts").write_text("# comment\na slots=2\nb\nb\nc slots=2\n")
        (self.directory / "job.sh").write_text(
            self.job("--hostfile=hosts", "--nodes=2", "--spares=1", "--ranks-per-node=2").stdout)
        self.stub("mpirun", """if [ "${*: -1}" = true ]; then ! grep -qx "$2" lost 2>/dev/null; exit; fi
echo "$2 $4" >>starts.log; touch runs/net/run.lock; [ "$4" != 2 ] || { rm runs/net/run.lock; exit 0; }
first=${2%%:*}; echo "$first" >>lost; [ "$first" = a ] && exit 205; exit 0""")
        for lost, starts, code, words in [
                ("", ["a:2,b:2, 4", "b:2,c:2, 4", "c:2, 2"], DONE, "1 of 3 nodes answer: c"),
                ("a\nb\nc\n", [], 5, "no room for a replica of 2 ranks")]:
            with self.subTest(words):
                subprocess.run("rm -rf runs starts.log; touch starts.log", shell=True, cwd=self.directory, check=True)
                (self.directory / "lost").write_text(lost)
                result = subprocess.run(["bash", "job.sh"], cwd=self.directory, capture_output=True, text=True, check=False,
                                        env={**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"})
                self.assertEqual((self.directory / "starts.log").read_text().splitlines(), starts, result.stdout)
                self.assertEqual(result.returncode, code, result.stdout)
                self.assertIn(words, result.stdout)

    def test_a_job_without_a_node_that_answers_is_requeued_some_times_only(self):
        # In the first start sinfo does not answer; later no probe succeeds. scontrol fails, or the script would sleep.
        (self.directory / "job.sh").write_text(
            self.job("--time=60", "--nodes=2", "--spares=1", "--ranks-per-node=2", "--launcher=mpirun").stdout)
        self.stub("squeue", "")
        self.stub("sinfo", "echo \"$4\" >>asked; [ ! -e answers ] || printf 'a idle\\nb idle\\n'")
        self.stub("srun", "exit 1")
        self.stub("sleep", "kill -USR1 $PPID")
        self.stub("scontrol", "touch answers; echo requeued; exit 1")
        environment = {**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
                       "SLURM_JOB_NODELIST": "a,b", "SLURMD_NODENAME": "a"}
        for nodes, last in [(0, "requeued"), (2, "requeued"),
                            (2, "stopped: exit code 5, and 3 consecutive starts ended without a new checkpoint; .*")]:
            result = subprocess.run(["bash", "job.sh"], cwd=self.directory, env=environment, capture_output=True, text=True,
                                    check=False)
            self.assertEqual(result.returncode, 5, result.stdout + result.stderr)
            self.assertRegex(result.stdout, f"\n0 of {nodes} nodes answer: \nthe nodes .* have no room .*\n{last}\n$")
        self.assertEqual((self.directory / "asked").read_text().split(), ["a,b"] * 5)

    def words_of(self, result):
        """Runs a script whose commands only say with which words they are called. Returns these."""
        self.assertEqual(result.returncode, DONE, result.stderr)
        for name in ("srun", "mpirun", "flux", "qsub", "scontrol", "squeue"):
            self.stub(name, f"printf '%s\\0' {name} \"$@\" \"$SLURM_PMIX_FENCE\" >>called")
        self.stub("sinfo", "echo a idle")
        (self.directory / "called").write_text("")
        (self.directory / "pwned").unlink(missing_ok=True)
        (self.directory / "functions").write_text("module() { printf '%s\\0' module \"$@\" >>called; }\n")
        (self.directory / "hostile.sh").write_text(result.stdout)
        ran = subprocess.run(["bash", "hostile.sh"], cwd=self.directory, capture_output=True, text=True, check=False, env={
            **os.environ, **{f"SLURM_{name}": "1[$(touch pwned)]" for name in (
                "JOB_ID", "RESTART_COUNT", "JOB_NODELIST", "JOB_NUM_NODES", "CPUS_PER_TASK", "ARRAY_TASK_ID")},
            "PBS_JOBID": "$(touch pwned)", "BASH_ENV": "functions", "PBS_O_WORKDIR": str(self.directory),
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}"})
        self.assertFalse((self.directory / "pwned").exists(), result.stdout)
        self.assertEqual(ran.returncode, DONE, ran.stdout + ran.stderr + result.stdout)
        return (self.directory / "called").read_text().split("\0")

    def test_texts_stay_words(self):
        # The options of a job or of its site, the names of config and run, and a setting.
        (self.directory / "hosts").write_text("a\n")
        for text in HOSTILE:
            plain = text.replace("#", "").strip()  # for files and settings
            self.write_config(f"{text}.ini", CONFIG)
            site = self.directory / "site.ini"
            site.write_text("[job]\n" + "".join(f"{name} = {plain}\n" for name in TEXTS))
            for options, mark in SCHEDULERS:
                with self.subTest(text=text, options=options):
                    self.words_of(self.job(*options, site=site))
                    pbs = mark == "#PBS"
                    given = [f"--{name}={text}" for name in [*TEXTS, *([] if pbs else ["job-name"])]]
                    result = self.job(*options, *given, f"--run.dir={plain}", f"--data.train={plain}.h5",
                                      command=("job", f"{text}.ini"))
                    words = self.words_of(result)
                    self.assertLessEqual({text, f"{text}.ini", f"--run.dir={plain}", *text.split()}, set(words))
                    self.assertTrue((self.directory / plain / "starts").exists())
                    lines = [line[len(mark):] for line in result.stdout.splitlines() if line.startswith(mark)]
                    expected = {"#SBATCH": f"--partition={text}", "#PBS": text, "# flux:": f"--queue={text}"}.get(mark)
                    found = [words_in(line, "" if pbs else "\\") for line in lines]
                    self.assertEqual([len(line) for line in found], [1 + pbs] * len(lines), lines)
                    self.assertTrue(not expected or any(expected in line for line in found), lines)
        # What a run's directory holds is no program either.
        (self.directory / "runs/net").mkdir(parents=True, exist_ok=True)
        (self.directory / "runs/net/starts").write_text("a[$(touch pwned)] none\n")
        self.words_of(self.job("--hostfile=hosts"))

    def test_every_option_is_a_word_or_refused(self):
        names = re.findall(r"(?m)^  --([a-z-]+)=", subprocess.run([STRATA, "job", "--help"], capture_output=True, text=True,
                                                                  check=True).stdout)
        self.assertGreaterEqual(len(names), 23)
        for name in set(names) - set(TEXTS) - {"output"}:
            result = self.job("--time=60", f"--{name}=$(touch pwned)")
            self.assertIn(result.returncode, (DONE, USAGE))
            if result.returncode == DONE:
                self.words_of(result)
        site = self.directory / "site.ini"
        site.write_text("[job]\naccount = a\x7fb\n")
        for control in CONTROLS:
            (self.directory / f"{control}.ini").write_text(CONFIG)
        sweep = ("sweep", "net.ini", "--data.test=t.h5", "--output=s.sh")
        for number, control in enumerate(CONTROLS):
            cases = [{"given": f"--{name}={control}"} for name in (names if number == 0 else ["partition"])]
            cases += [{"given": "--qos=x", "command": ("job", f"{control}.ini")}, {"given": "--qos=x", "site": site},
                      {"given": f"--run.dir={control}"}, {"given": f"--dir={control}", "command": (*sweep, "--set", "run.seed=1")},
                      {"given": f"--dir=x{number}", "command": (*sweep, "--set", f"optimizer.frozen=a,{control}")}]
            for case in cases:
                with self.subTest(case):
                    result = self.job("--time=60", case.pop("given"), **case)
                    self.assertEqual((result.returncode, result.stdout), (USAGE, ""), result.stderr)
                    self.assertRegex(result.stderr, "control character|line break|give one of")

    def test_a_chain_is_submitted_in_order(self):
        # Behind a warning, and with the name of a cluster.
        self.stub("sbatch", """echo "$*" >>submitted; echo "sbatch: warning; x" >&2; echo "$(wc -l <submitted);other\"""")
        result = self.job("--time=60", "--chain=3", "--submit", "--output=chain.sh")
        self.assertEqual((result.returncode, result.stdout), (DONE, "1\n2\n3\n"))
        lines = (self.directory / "submitted").read_text().splitlines()
        self.assertEqual(lines[0], "--parsable chain.sh")
        self.assertIn("--kill-on-invalid-dep=yes --dependency=afternotok:2", lines[2])


if __name__ == "__main__":
    if "--write" in sys.argv:
        for path in SCRIPTS:
            path.write_text(written(path))
    else:
        unittest.main()
