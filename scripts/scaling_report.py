#!/usr/bin/env python3
"""Tables of what scripts/bench_scaling.sh measured: scaling_report.py DETAILS OUT.json.

DETAILS holds the commands' JSON files, named after their part and number of ranks.
"""
import json
import pathlib
import re
import sys


def read(folder, pattern):
    """(groups of the pattern, content) of every file whose name it matches."""
    found = []
    for path in sorted(folder.glob("*.json")):
        match = re.fullmatch(pattern, path.stem)
        if match and path.stat().st_size:
            found.append((match.groups(), json.loads(path.read_text())))
    return found


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(title, columns, rows):
    if not rows:
        return
    cells = [columns] + [["-" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell)
                          for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"# {title}")
    for number, row in enumerate(cells):
        print(("# " if number == 0 else "  ") + "  ".join(cell.rjust(w) for cell, w in zip(row, widths)))


def comm_rows(folder):
    rows = []
    for (_, ranks), content in read(folder, r"comm_(clips|sizes)_(\d+)"):
        for r in content["records"]:
            rows.append([int(ranks), r["operation"], r["size_bytes"], r["tokens"], r["p50_us"],
                         r["algbw_gbps"], r["busbw_gbps"], r["vs_all_to_all"], r["wrong"]])
    for (ranks,), content in read(folder, r"reference_exchange_(\d+)"):
        for r in content["records"]:
            rows.append([int(ranks), "reference " + r["operation"], r["size_bytes"], r["tokens"], r["p50_us"],
                         r["algbw_gbps"], None, None, "right" if r["right"] else "WRONG"])
    return sorted(rows, key=lambda row: (row[0], row[2], row[1]))


def step_rows(folder):
    measured = {}
    for (precision, ranks), content in read(folder, r"step_(.+)_(\d+)"):
        for r in content["records"]:
            measured[precision, r["tokens"], int(ranks)] = r
    rows = []
    for (precision, tokens, ranks), r in sorted(measured.items()):
        one = measured.get((precision, tokens, 1))
        speedup = one["p50_ms"] / r["p50_ms"] if one else None
        rows.append([precision, tokens, ranks, r["p50_ms"], speedup, 100 * speedup / ranks if speedup else None,
                     r["exchange_ms"], r["exchange_wait_ms"], 100 * r["exchange_ms"] / r["p50_ms"],
                     r["peak_device_bytes"] / 2**30])
    return rows


def phase_rows(folder):
    """A row a phase, with the slowest rank's seconds at each number of ranks."""
    jobs = {}
    for (job, ranks, run), content in read(folder, r"end_to_end_(.+)_(\d+)_(cold|warm)"):
        if run == "warm":
            jobs.setdefault(job, {})[int(ranks)] = {**content["phases"], "total_s": content.get("total_s")}
    rows, counts = [], sorted({ranks for by_ranks in jobs.values() for ranks in by_ranks})
    for job, by_ranks in sorted(jobs.items()):
        names = list(dict.fromkeys(name for phases in by_ranks.values() for name in phases))
        for name in names:
            seconds = [by_ranks.get(ranks, {}).get(name) for ranks in counts]
            if any(value is not None for value in seconds):
                rows.append([job, name.removesuffix("_s")] +
                            [None if value is None else float(value) for value in seconds])
    return counts, rows


def memory_rows(folder):
    rows = []
    for (job, ranks), forecast in read(folder, r"forecast_(.+)_(\d+)"):
        for _, measured in read(folder, rf"end_to_end_{job}_{ranks}_warm()"):
            for side in ("host", "device"):
                values = [source.get(f"peak_{side}_bytes") for source in (forecast["memory"], measured)]
                rows.append([job, int(ranks), side] + [value / 2**20 if value else None for value in values])
    return rows


def main():
    folder, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name in ("machine.txt", "topology_gpus.txt", "topology_links.txt"):
        if (folder / name).exists():
            print((folder / name).read_text().rstrip())
    table("exchanges and collectives", ["ranks", "operation", "bytes", "tokens", "p50 (us)", "algbw", "busbw",
                                        "vs plain", "#wrong"], comm_rows(folder))
    table("one denoise forward; efficiency against one rank of this session",
          ["precision", "tokens", "ranks", "p50 (ms)", "x", "eff (%)", "exchange (ms)", "waiting (ms)",
           "share (%)", "peak (GiB)"], step_rows(folder))
    counts, rows = phase_rows(folder)
    table("jobs end to end, warm, slowest rank, s", ["job", "phase"] + [f"N={n}" for n in counts], rows)
    table("most memory of a rank, MiB", ["job", "ranks", "of", "--dry-run", "measured"], memory_rows(folder))
    faults = read_lines(folder / "faults.jsonl")
    table("a rank killed", ["where", "code", "seconds in all", "left in /dev/shm", "left processes"],
          [[f["name"], f["code"], f["seconds"], len(f["left_in_shm"]), len(f["left_processes"])] for f in faults])
    attempts = read_lines(folder / "attempts.jsonl")
    for name in ("load", "lora", "selftest"):
        for path in sorted(folder.glob(f"{name}_*.txt")):
            print(f"# {path.stem}\n{path.read_text(errors='replace').rstrip()}")
    table("not done", ["command", "code", "seconds"],
          [[a["name"], a["code"], a["seconds"]] for a in attempts if a["code"] != 0])
    skipped = (folder / "skipped.txt").read_text().splitlines()
    for line in skipped:
        print(f"# {line}")
    files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))
             if path.stat().st_size}
    target.write_text(json.dumps({"attempts": attempts, "faults": faults, "skipped": skipped, **files}, indent=1) + "\n")


if __name__ == "__main__":
    main()
