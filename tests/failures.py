#!/usr/bin/env python3
"""Prints the failed tests of a JUnit report of ctest, each with the end of its output.

Usage: failures.py REPORT.xml [LINES]
"""

import sys
import xml.etree.ElementTree as ElementTree


def main() -> None:
    report = sys.argv[1]
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    for test in ElementTree.parse(report).getroot().iter("testcase"):
        if test.get("status") != "fail":
            continue
        output = test.find("system-out")
        text = "" if output is None or output.text is None else output.text
        print(f"-- {report}: {test.get('name')} after {test.get('time')} s")
        print("\n".join(text.splitlines()[-lines:]))


if __name__ == "__main__":
    main()
