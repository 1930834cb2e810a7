#!/usr/bin/env python3
"""Holds the messages that docs/troubleshooting.md explains against the texts in the sources.

A message there is an example, `rank 2 ended (process 4711)`, and a format string in the sources, "{} ended (process {})".
Three words in a row have to be alike (all of a shorter message); numbers, names of files and what is in braces count as
one word each.
"""
import re
import sys
from pathlib import Path

# Words of the C library and of HDF5.
FOREIGN = {"No space left on device", "File too large", "Disk quota exceeded", "truncated file", "is truncated",
           "unable to lock file ... HDF5_USE_FILE_LOCKING=FALSE"}
RUN = 3


def words(text: str) -> list[str]:
    text = re.sub(r'\{[^}]*\}|\d[\d.,]*|"\.\.\."|\w+\.\w+', " # ", text)
    return re.findall(r"#|[A-Za-z_][A-Za-z_'-]*", text)


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i:i + length]) for i in range(len(found) - length + 1)}


def source_literals(root: Path):
    for folder in ("app", "src", "kernels"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".cpp", ".h", ".cu", ".cuh"}:
                continue
            code = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.M)
            code = re.sub(r'"\s*\n?\s*"', "", code)  # adjacent literals are one
            for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code):
                yield literal.replace('\\"', '"')


def documented(root: Path):
    text = (root / "docs/troubleshooting.md").read_text()
    for heading in re.findall(r"^\*\*(`.*?)\*\*", text, flags=re.M):
        for message in re.findall(r"`([^`]+)`", heading):
            yield re.sub(r"^WARNING \w+: ", "", message)


def main() -> int:
    root = Path(sys.argv[1])
    literals = list(source_literals(root))
    known = {length: set().union(*(runs(text, length) for text in literals)) for length in range(1, RUN + 1)}
    failed = 0
    count = 0
    for message in documented(root):
        if message in FOREIGN:
            continue
        count += 1
        length = min(RUN, len(words(message)))
        if not runs(message, length) & known[length]:
            print(f"docs/troubleshooting.md explains a message that no source has: {message}")
            failed = 1
    if count < 30:
        print(f"only {count} messages found: has the layout of docs/troubleshooting.md changed?")
        failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
