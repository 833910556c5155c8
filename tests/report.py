#!/usr/bin/env python3
"""Sums up JUnit reports of ctest; a case of a GoogleTest program counts as a test.

Usage: report.py count REPORT.xml        prints "PASSED FAILED SKIPPED"
       report.py slowest REPORT.xml...   the ten slowest tests
       report.py failures REPORT.xml...  the failed tests, each with the end of its output
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

CASE = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w./]+).*\((\d+) ms\)$", re.MULTILINE)


def tests_of(report):
    """(name, "run", "fail" or "notrun", seconds, output, cases) of each test."""
    for test in ElementTree.parse(report).getroot().iter("testcase"):
        output = test.findtext("system-out") or ""
        yield test.get("name"), test.get("status"), float(test.get("time")), output, CASE.findall(output)


def count(report):
    passed = failed = skipped = 0
    for _, status, _, _, cases in tests_of(report):
        results = [result for result, _, _ in cases] or [{"run": "OK", "fail": "FAILED"}.get(status, "SKIPPED")]
        if status == "fail" and "FAILED" not in results:
            results.append("FAILED")  # a crash, or the time limit
        passed += results.count("OK")
        failed += results.count("FAILED")
        skipped += results.count("SKIPPED")
    print(passed, failed, skipped)


def slowest(reports):
    found = []
    for report in reports:
        for name, _, seconds, _, cases in tests_of(report):
            found += [(int(ms) / 1000, f"{name} {case}") for _, case, ms in cases] or [(seconds, name)]
    for seconds, name in sorted(found, reverse=True)[:10]:
        print(f"{seconds:8.1f} s  {name}")


def failures(reports):
    for report in reports:
        for name, status, seconds, output, cases in tests_of(report):
            if status != "fail":
                continue
            names = [case for result, case, _ in cases if result == "FAILED"]
            print(f"-- {report}: {name} after {seconds} s: {' '.join(names)}")
            print("\n".join(output.splitlines()[-60:]))


if __name__ == "__main__":
    command, files = sys.argv[1], sys.argv[2:]
    count(files[0]) if command == "count" else {"slowest": slowest, "failures": failures}[command](files)
