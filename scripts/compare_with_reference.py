#!/usr/bin/env python3
"""Ratios of what scripts/bench_vs_reference.sh measured: compare_with_reference.py OUT MACHINE SKIPPED.

Prints tables and writes OUT/vs_reference.json with every sample.
"""
import json
import pathlib
import statistics
import sys


def read_steps(out):
    """(precision, clip) -> milliseconds of the reference (all samples) and ours (a median a round)."""
    steps = {}
    for path in sorted(out.glob("reference_*.jsonl")):
        precision = path.stem.removeprefix("reference_")
        for line in path.read_text().splitlines():
            for clip, times in json.loads(line).items():
                row = steps.setdefault((precision, clip), {"reference": [], "ours": []})
                row["reference"].append(statistics.median(times))
    for path in sorted(out.glob("ours_*_[0-9].json")):
        precision = path.stem.removeprefix("ours_").rsplit("_", 1)[0]
        for record in json.loads(path.read_text())["records"]:
            clip = f"{record['width']}x{record['height']}x{record['frames']}"
            row = steps.setdefault((precision, clip), {"reference": [], "ours": []})
            row["ours"].append(record["p50_ms"])
            row["tokens"], row["floor_ms"] = record["tokens"], record["floor_ms"]
    return steps


def read_exchange(out):
    """Operation -> GB/s of the reference and ours, one a round."""
    rows = {}
    for side in ("reference", "ours"):
        for path in sorted(out.glob(f"exchange_{side}_[0-9].json")):
            for record in json.loads(path.read_text())["records"]:
                if not record.get("right", record.get("wrong", 1) == 0):
                    continue
                row = rows.setdefault(record["operation"], {"reference": [], "ours": []})
                row[side].append(record["algbw_gbps"])
    return rows


def middle(values):
    return statistics.median(values) if values else None


def text(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def main():
    out, machine, skipped = (pathlib.Path(arg) for arg in sys.argv[1:4])
    result = {"machine": machine.read_text().splitlines(),
              "skipped": skipped.read_text().splitlines(), "steps": [], "exchange": []}
    print("# " + "  ".join(result["machine"]))
    print("# one denoise forward, random weights; ms, median over the rounds of each round's median")
    print(f"# {'precision':<14} {'clip':<14} {'tokens':>7} {'rounds':>6} {'reference':>10} {'ours':>10} "
          f"{'ratio':>6} {'floor':>9}")
    for (precision, clip), row in sorted(read_steps(out).items()):
        theirs, ours = middle(row["reference"]), middle(row["ours"])
        ratio = theirs / ours if theirs and ours else None
        result["steps"].append({"precision": precision, "clip": clip, **row, "ratio": ratio})
        print(f"  {precision:<14} {clip:<14} {row.get('tokens', '-'):>7} "
              f"{min(len(row['reference']), len(row['ours'])):>6} {text(theirs, 2):>10} "
              f"{text(ours, 2):>10} {text(ratio, 2):>6} {text(row.get('floor_ms'), 2):>9}")
    exchange = read_exchange(out)
    if exchange:
        print("# head exchange, 2 ranks on one GPU under MPS, 24576 tokens; GB/s of a rank's tensors")
        print(f"# {'operation':<18} {'reference':>10} {'ours':>10} {'ratio':>6}")
    for name, row in exchange.items():
        theirs, ours = middle(row["reference"]), middle(row["ours"])
        ratio = ours / theirs if theirs and ours else None
        result["exchange"].append({"operation": name, **row, "ratio": ratio})
        print(f"  {name:<18} {text(theirs, 1):>10} {text(ours, 1):>10} {text(ratio, 2):>6}")
    print("# ratio: how many times as fast as the reference")
    for reason in result["skipped"]:
        print(f"# SKIPPED {reason}")
    (out / "vs_reference.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
