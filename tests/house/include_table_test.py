#!/usr/bin/env python3
"""Holds the table of who may include whom (docs/architecture.md) against #include lines and CMake links.

The table is the fenced block after the line "<!-- include table -->"; each line reads
    room, room -> room, room
Also: only comm/ knows MPI and NCCL, only config/ reads YAML, kernels/ know no library but CUDA.
"""
import re
import sys
from pathlib import Path

MODELS = {"text", "transformer", "vae", "audio", "upsampler"}


def read_table(root: Path) -> dict[str, set[str]]:
    text = (root / "docs/architecture.md").read_text()
    block = re.search(r"<!-- include table -->\s*```\n(.*?)```", text, re.S)
    assert block, "docs/architecture.md has no include table"
    rows: dict[str, set[str]] = {}

    def names(part: str) -> set[str]:
        words = {w.strip() for w in part.split(",") if w.strip() and w.strip() != "nothing"}
        return (words - {"models"}) | (MODELS if "models" in words else set())

    for line in block.group(1).splitlines():
        if "->" not in line:
            continue
        left, right = line.split("->")
        for room in names(left):
            rows.setdefault(room, set()).update(names(right))
    return rows


def room_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "src" else parts[0]


def check_includes(root: Path, table: dict[str, set[str]]) -> list[str]:
    faults = []
    sources = [p for folder in ("src", "app", "kernels") for p in (root / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    assert len(sources) > 20, "the sources were not found"
    rooms = {p.name for p in (root / "src").iterdir() if p.is_dir()} | {"kernels", "app"}
    for path in sources:
        room = room_of(path, root)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if not found:
                continue
            target = found.group(1)
            other = target.split("/")[0]
            where = f"{path.relative_to(root)}:{number}"
            if "/" in target and other in rooms and other != room and other not in table.get(room, set()):
                faults.append(f"{where}: {room} must not include {other}")
            if re.match(r"(mpi|nccl)\.h", target) and room != "comm":
                faults.append(f"{where}: only comm/ may know MPI and NCCL")
            if target.startswith("yaml-cpp") and room != "config":
                faults.append(f"{where}: only config/ reads YAML")
            if room in {"kernels"} and re.match(r"(ATen|torch|c10|fmt|nlohmann)", target):
                faults.append(f"{where}: kernels/ know no library but CUDA")
            if room in {"base", "config"} and re.match(r"(ATen|torch|c10)", target):
                faults.append(f"{where}: {room}/ builds without Torch")
            if target == "torch/torch.h":
                faults.append(f"{where}: torch/torch.h takes 15 s a file; include <ATen/ATen.h>")
    return faults


def check_links(root: Path, table: dict[str, set[str]]) -> list[str]:
    faults = []
    for lists in (root / "src").glob("*/CMakeLists.txt"):
        room = lists.parent.name
        call = re.search(r"flotilla_room\((.*?)\n?\)", lists.read_text(), re.S)
        if not call:
            faults.append(f"{lists.relative_to(root)}: no flotilla_room()")
            continue
        links = re.search(r"(?<![A-Z_])LINKS\s+((?:[a-z_:A-Z]+\s*)+)", call.group(1))
        for name in (links.group(1).split() if links else []):
            if name in {"SOURCES", "TORCH", "PRIVATE_LINKS", "LINKS"}:
                break
            if re.fullmatch(r"[a-z_]+", name) and name != "fmt" and name not in table.get(room, set()):
                faults.append(f"{lists.relative_to(root)}: {room} links {name}, which the table does not allow")
    return faults


def main() -> int:
    root = Path(sys.argv[1])
    table = read_table(root)
    faults = check_includes(root, table) + check_links(root, table)
    print("\n".join(faults) or f"{len(table)} rooms keep to the table")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
