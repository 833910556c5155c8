#!/usr/bin/env python3
"""Every operation tells its context's observer of its work, so that a forecast leaves none out.

    observed_test.py SOURCE_DIRECTORY"""
import pathlib
import re
import sys

# No work of their own: what runs them, a number that is set, and a call of column_sums.
NOT_WORK = {"parallel_for", "set_sample_origin", "column_sum"}


def main(root):
    headers = "".join(path.read_text() for path in sorted((root / "include/strata/ops").glob("*.hpp")))
    names = set(re.findall(r"^void (\w+)\(Context& context", headers, re.MULTILINE)) - NOT_WORK
    assert len(names) > 60, names
    bodies = {}
    for path in sorted((root / "src/ops").rglob("*.cpp")):
        for name, body in re.findall(r"^void (\w+)\(Context& context[^{;]*\) \{\n(.*?)^\}", path.read_text(),
                                     re.MULTILINE | re.DOTALL):
            bodies.setdefault(name, body)
    silent = sorted(name for name in names if "const Observed observed(" not in bodies[name])
    for name in silent:
        print(f"{name}: no Observed (src/ops/observed.hpp), so that forecasts leave its work out")
    print(f"{len(names)} operations, {len(silent)} silent")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
