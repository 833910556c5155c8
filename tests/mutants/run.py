#!/usr/bin/env python3
"""Applies the faults of mutants.py, one after the other, and says which of them the tests find.

Of each it builds only what the tests need that could see it, and stops at the first test that fails. The build
directory must be built already; the sources come back at the end, also on Ctrl-C. What follows -- goes to ctest, so
that a tier or another suite is judged: tests/mutants/run.py -- -LE full
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

from mutants import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
# "12/34 Test #56: unit.grid.Tree ....***Failed  0.1 sec"; a skipped test is none that failed.
FAILED = re.compile(r"Test +#\d+: (\S+) \.*.*(\*\*\*(?!Skipped)|Subprocess|SEGFAULT|ILLEGAL|BUS)")
# No job of a test outlives its time limit by more.
END_SECONDS = 20


class Broken(Exception):
    """A mutant that cannot be judged."""


class Suite:
    def __init__(self, arguments):
        self.build = (arguments.build or ROOT / "build" / arguments.preset).resolve()
        self.wrap = shlex.split(arguments.wrap)
        self.jobs = str(arguments.jobs)
        self.ctest = arguments.ctest
        self.targets = set()  # built with a fault

    def command(self, words, log, limit=None):
        """Runs a command in a session of its own, its output in the log; its exit code, or None past the time limit."""
        with subprocess.Popen([*self.wrap, *words], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              cwd=ROOT, start_new_session=True) as process:
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                for number in (signal.SIGINT, signal.SIGKILL):
                    if process.poll() is None:
                        os.killpg(process.pid, number)
                        try:
                            process.wait(END_SECONDS)
                        except subprocess.TimeoutExpired:
                            pass

    def ctest_command(self, *words):
        return ["ctest", "--test-dir", str(self.build), *words, *self.ctest]

    def selected(self, pattern):
        """The ctest options that select the tests of a label, or else those whose names begin so, and their records."""
        for select in (["-L", f"^{re.escape(pattern)}$"], ["-R", f"^{re.escape(pattern)}([._]|$)"]):
            listed = subprocess.run(self.ctest_command(*select, "--show-only=json-v1"), cwd=ROOT, check=True,
                                    stdout=subprocess.PIPE)
            if tests := json.loads(listed.stdout)["tests"]:
                return select, tests
        return [], []

    def make(self, tests, log):
        """Builds the files of the build directory that tests name in their commands and variables."""
        listed = subprocess.run(["ninja", "-C", str(self.build), "-t", "targets", "all"], check=True, text=True,
                                stdout=subprocess.PIPE)
        known = {line.rsplit(": ", 1)[0] for line in listed.stdout.splitlines()}
        words = {word.split("=", 1)[-1] for test in tests
                 for word in [*test.get("command", []),
                              *(value for entry in test.get("properties", []) if entry["name"] == "ENVIRONMENT"
                                for value in entry["value"])]}
        targets = {os.path.relpath(word, self.build) for word in words if word.startswith(f"{self.build}/")} & known
        self.targets |= targets
        if targets and self.command(["ninja", "-C", str(self.build), f"-j{self.jobs}", *sorted(targets)], log) != 0:
            raise Broken(f"does not compile: {log.name}")

    def judge(self, patterns, limit, log):
        """The first test that fails; "" where none does, and what ran when the time limit was over."""
        left = limit
        judged = 0
        for pattern in patterns:
            select, tests = self.selected(pattern)
            if not tests:
                continue
            judged += len(tests)
            self.make(tests, log)
            log.flush()
            place = log.tell()
            begin = time.monotonic()
            code = self.command(self.ctest_command(*select, "--stop-on-failure", "--output-on-failure",
                                                   f"-j{self.jobs}"), log, left)
            left -= time.monotonic() - begin
            log.flush()
            output = pathlib.Path(log.name).read_bytes()[place:].decode(errors="replace")
            if code is None:  # what was interrupted says that it failed
                return "", f"time limit in {pattern}"
            failed = [match[1] for line in output.splitlines() if (match := FAILED.search(line))]
            if failed:
                return failed[0], ""
            if code != 0:
                raise Broken(f"ctest itself failed: {log.name}")
        if judged == 0:
            raise Broken(f"no test could see it in {self.build}; build it first")
        return "", ""


def run(mutant, suite, limit):
    """The outcome of one mutant as a row of the table."""
    path = ROOT / mutant.file
    text = path.read_text()
    dirty = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", mutant.file], cwd=ROOT, check=False).returncode
    if dirty or text.count(mutant.old) != 1:
        raise Broken(f"{mutant.file} {'has changes' if dirty else 'has not the text once that is replaced'}")
    logs = suite.build / "mutants"
    logs.mkdir(exist_ok=True)
    begin = time.monotonic()
    try:
        path.write_text(text.replace(mutant.old, mutant.new))
        with open(logs / f"{mutant.name}.log", "w", encoding="utf-8") as log:
            found, note = suite.judge(mutant.tests.split(), limit, log)
    finally:
        path.write_text(text)
    return (mutant.name, "found" if found else "not found", found or note, f"{time.monotonic() - begin:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants; without any, all of the preset")
    parser.add_argument("--list", action="store_true", help="names the mutants and what they break")
    parser.add_argument("--preset", default="release", help="the build's preset: release, or asan or tsan")
    parser.add_argument("--build", type=pathlib.Path, help="the build directory; default: build/PRESET")
    parser.add_argument("--tests", help="labels or beginnings of names of tests, instead of each mutant's own")
    parser.add_argument("--limit", type=float, default=900.0, help="the most seconds that tests of a mutant run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that build and test")
    parser.add_argument("--wrap", default="", help='what builds and tests run under, such as "setarch -R" for tsan')
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:at])
    arguments.ctest = words[at + 1:]
    unknown = set(arguments.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; --list names all")
    mutants = [mutant for mutant in MUTANTS
               if (mutant.name in arguments.names if arguments.names else mutant.preset == arguments.preset)]
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name:30} {mutant.file}: {mutant.breaks}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("TSAN_OPTIONS", f"halt_on_error=1 suppressions={ROOT}/tests/tsan.supp")
    os.environ["GTEST_FAIL_FAST"] = "1"
    suite = Suite(arguments)
    rows = []
    try:
        for mutant in mutants:
            if arguments.tests:
                mutant = dataclasses.replace(mutant, tests=arguments.tests)
            try:
                rows.append(run(mutant, suite, arguments.limit))
            except Broken as error:
                rows.append((mutant.name, "ERROR", str(error), ""))
            print("{:30} {:9}  {}  {}".format(*rows[-1]), flush=True)
    finally:
        if suite.targets:
            subprocess.run([*suite.wrap, "ninja", "-C", str(suite.build), f"-j{suite.jobs}", *sorted(suite.targets)],
                           stdout=subprocess.DEVNULL, check=False)
    broken = sum(row[1] == "ERROR" for row in rows)
    print(f"{sum(row[1] == 'found' for row in rows)} of {len(rows)} found, {broken} errors")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
