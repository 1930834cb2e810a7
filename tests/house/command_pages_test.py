#!/usr/bin/env python3
"""Holds docs/commands against the program: a page for each command in `flotilla --help`, linked from the index, and in the tables of a
page exactly the options that `flotilla COMMAND --help` lists (for bench: those of all benchmarks, section by section).

  command_pages_test.py SOURCE_DIR PROGRAM
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT, PROGRAM = Path(sys.argv[1]), sys.argv[2]
PAGES = ROOT / "docs/commands"
COMMON = {"--help", "--quiet", "--verbose"}


def help_of(*words: str) -> str:
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True).stdout


def names_in(text: str) -> list[str]:
    """The commands or benchmarks that a help text lists."""
    return re.findall(r"^  ([a-z]+) +\S", text, re.M)


def options_of(*words: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w \[ )?(--[a-z][a-z-]*)", help_of(*words), re.M))


def options_in(text: str) -> set[str]:
    """The options in the first column of the tables of a page."""
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `--")]
    return {option for cell in cells for option in re.findall(r"--[a-z][a-z-]*", cell)}


def compare(where: str, listed: set[str], text: str) -> list[str]:
    listed, told = listed - COMMON, options_in(text)
    return [f"{where}: {option} is not on the page" for option in sorted(listed - told)] + \
           [f"{where}: {option} is on the page, the program does not know it" for option in sorted(told - listed)]


def check(command: str) -> list[str]:
    page = PAGES / f"{command}.md"
    if not page.exists():
        return [f"docs/commands/{command}.md is missing"]
    text = page.read_text()
    faults = [] if text.startswith(f"# flotilla {command}\n") else [f"{page.name}: the first line is not \"# flotilla {command}\""]
    if f"]({command}.md)" not in (PAGES / "README.md").read_text():
        faults.append(f"docs/commands/README.md has no link to {command}.md")
    if command != "bench":
        return faults + compare(page.name, options_of(command), text)
    sections = dict(re.findall(r"^## ([a-z]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    benchmarks = names_in(help_of("bench"))
    faults += [f"{page.name}: section {name} is of no benchmark" for name in sections if name not in benchmarks]
    for name in benchmarks:
        faults += compare(f"{page.name}, {name}", options_of("bench", name), sections.get(name, ""))
    return faults


def main() -> None:
    commands = names_in(help_of())
    assert "run" in commands and options_of("run") >= {"--set", "--help"}, "the help texts were not understood"
    faults = [fault for command in commands for fault in check(command)]
    for page in PAGES.glob("*.md"):
        if page.stem not in commands and page.stem != "README":
            faults.append(f"docs/commands/{page.name} is of no command")
    common = options_in((PAGES / "README.md").read_text())
    if common != COMMON:
        faults.append(f"docs/commands/README.md tells {common} of the options of all commands, not {COMMON}")
    print("\n".join(faults) or f"{len(commands)} pages")
    sys.exit(1 if faults else 0)


main()
