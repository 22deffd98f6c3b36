"""From a result to its whole report, a file and plots. Needs neither torch nor a GPU:

    python3 benches/torch_peers/report.py docs/peers/peers.json --plots docs/peers

`tables.py` writes the short tables of docs/performance.md.
"""

import argparse
import json
import math
import pathlib
import sys

import plot
import predicted
import rows as table

class FormatError(ValueError):
    """A file that is not a result of this program, or a document without the marks of its tables."""


def derive(row):
    """What follows from the times of a row: a dict, with None for what is not there."""
    by = {r["name"]: r for r in row["results"]}
    ours = next((r["ms"] for r in row["results"] if r["kind"] == "ours"), None)
    # A peer that computes something else is not one.
    peers = {r["name"]: r["ms"] for r in row["results"] if r["kind"] == "peer" and r.get("good", True)}
    best = min(peers, key=peers.get) if peers else None
    compute = by.get("compute alone", {}).get("ms")
    idle = {r["name"]: r["idle_ms"] for r in row["results"] if r["kind"] in ("ours", "peer") and "idle_ms" in r}
    idle_peer = min((idle[name] for name in peers if name in idle), default=None)
    idle_ours = next((idle[r["name"]] for r in row["results"] if r["kind"] == "ours" and r["name"] in idle), None)
    bound = max(compute, row["link_ms"]) if compute is not None else None
    return {
        "ours": ours,
        "peers": peers,
        "best_peer": best,
        "speedup": peers[best] / ours if ours and best else None,
        "idle_speedup": idle_peer / idle_ours if idle_peer and idle_ours else None,
        "compute": compute,
        "bound": bound,
        "bound_by": None if bound is None else "compute" if compute >= row["link_ms"] else "link",
        "of_bound": bound / ours if ours and bound else None,
    }


def mean(numbers):
    """The geometric mean of those that are there, or None."""
    there = [n for n in numbers if n is not None]
    return math.exp(sum(map(math.log, there)) / len(there)) if there else None


def wrong(result):
    """What makes a run fail: rows without mk, and results of mk that are not right."""
    out = []
    for row in result["rows"]:
        ours = [r for r in row["results"] if r["kind"].startswith("ours")]
        out += [f"WRONG: {row['key']}: {r['name']} has errors {r['error']:.1e}, {r['tile_error']:.1e}" for r in ours if not r["good"]]
        if not any(r["kind"] == "ours" for r in ours):
            reason = next((m["reason"] for m in row["missing"] if m["name"] == "mk"), "no reason is known")
            out.append(f"MISSING: {row['key']}: mk: {reason}")
    return out


def missed(result):
    """The rows whose time the cost model predicted wrongly."""
    every = [(row, r) for row in result["rows"] for r in row["results"]]
    return predicted.missed((f"{row['key']}: {r['name']}", r["ms"], r.get("predicted_ms")) for row, r in every)


def markdown(result):
    """The whole report: how it was run, one table per operation, means, and what is missing."""
    lines = [heading(result), ""]
    if result["quick"]:
        lines += ["**A quick look: too few launches and rows to count.**", ""]
    derived = {row["key"]: derive(row) for row in result["rows"]}
    for op in table.TITLES:
        mine = [row for row in result["rows"] if row["op"] == op]
        if mine:
            lines += operation(op, mine, derived) + [""]
    lines.append(means(f"All {len(derived)} rows, geometric means", derived.values()))
    lines += settings(result) + missing(result)
    return "\n".join(lines) + "\n"


def heading(result):
    machine, versions, skew = result["machine"], result["versions"], result["skew"]
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    revision = f", revision {result['revision']}" if result.get("revision") else ""
    how = (
        f"{result['date']}, {result['ranks']}× {machine['gpu']}, driver {machine['driver'] or 'unknown'}, {software}{revision}; "
        f"`{result['command']}`, {result['seconds']} s. Median of {result['rounds']} launches, ms."
    )
    if not result["link"]:
        return how
    return (
        f"{how} Ranks begin within "
        f"{skew['median_us']:.2f} µs (median of {len(skew['all_us'])}; 9 of 10 within {most(skew):.2f}; clocks are compared to "
        f"± {skew['clock_doubt_us']:.2f}). Link: "
        f"{result['link']['bytes_per_s'] / 1e9:.0f} GB/s a rank while all send ({result['link']['way']})."
    )


def most(skew):
    """What nine of ten barriers stay below, in us."""
    return skew["all_us"][(9 * len(skew["all_us"]) - 1) // 10]


def operation(op, rows, derived):
    """A table: ours, every peer, parts, bound."""
    names = []
    for kind in ("peer", "ours, separate kernels", "alone"):
        for row in rows:
            names += [r["name"] for r in row["results"] if r["kind"] == kind and r["name"] not in names]
    head = [table.COLUMNS.get(op, table.PER_RANK), "mk", *names, "best peer ÷ mk", "the same, idle queue", "bound", "bound ÷ mk"]
    lines, loops = [], any("loop_us" in r for row in rows for r in row["results"])
    for row in rows:
        by, d = {r["name"]: r for r in row["results"]}, derived[row["key"]]
        bound = "–" if d["bound"] is None else f"{digits(d['bound'])} {d['bound_by']}"
        hosts = [micros(by, d, "host_us"), *([micros(by, d, "loop_us")] if loops else [])]
        times = [time(by.get("mk"), bold=True), *(time(by.get(name)) for name in names)]
        ratios = [ratio(d["speedup"]), ratio(d["idle_speedup"]), bound, ratio(d["of_bound"])]
        lines.append(cells([f"{row['m']} × {row['k']} × {row['n']}", *times, *ratios, *hosts]))
    head += ["host µs: mk, best peer", *(["the same, in a loop"] if loops else [])]
    top = [f"{table.TITLES[op]}:", "", cells(head), cells(["---"] * len(head))]
    return [*top, *lines, "", means("Geometric means", [derived[row["key"]] for row in rows])]


def micros(by, d, name):
    """Of mk and of the best peer."""
    return ", ".join(f"{by[n][name]:.0f}" if name in by.get(n, {}) else "–" for n in ("mk", d["best_peer"]))


def middles(derived):
    """Geometric means of best peer ÷ mk, of the same into an idle queue, and of bound ÷ mk, as text."""
    return [ratio(mean([d[name] for d in derived])) for name in ("speedup", "idle_speedup", "of_bound")]


def means(what, derived):
    """A sentence with the means of the three ratios."""
    speedup, idle, bound = middles(derived)
    return f"{what}: best peer ÷ mk {speedup} ({idle} into an idle queue), bound ÷ mk {bound}."


def settings(result):
    """Settings of mk's kernels, by row; `--row` runs one again with them."""
    lines, unknown = [], []
    for row in result["rows"]:
        for one in row["results"]:
            if not one["kind"].startswith("ours"):
                continue
            name = row["key"] if one["kind"] == "ours" else f"{row['key']}, {one['name']}"
            if one.get("settings") is None:
                unknown.append(name)
            else:
                lines.append(f"- {name}: " + "; ".join(f"`{words(kernel)}`" for kernel in one["settings"]))
    if unknown:
        lines.append(f"- not recorded: {', '.join(unknown) if lines else 'all rows'}")
    return ["", "Settings of mk:", "", *lines] if lines else []


def words(kernel):
    """``block=128x256x64 intra_comm=16`` for one kernel."""
    return " ".join(f"{name}={text}" for name, text in kernel.items()) or "nothing to set"


def stored(result, key):
    """A row of a result, to be run again. FormatError where it is not there, or has no settings."""
    row = next((row for row in result["rows"] if row["key"] == key), None)
    if row is None:
        raise FormatError(f"no row {key!r}; there are {', '.join(row['key'] for row in result['rows'])}")
    if any(r["kind"].startswith("ours") and r.get("settings") is None for r in row["results"]):
        raise FormatError(f"{key}: settings are not recorded; --rows {key!r} measures it with those that functions find")
    return row


def again(before, result):
    """How the times of a row that ran again compare, a line for each contestant of mk."""
    old = {r["name"]: r["ms"] for r in before["results"]}
    mine = [r for row in result["rows"] for r in row["results"] if r["kind"].startswith("ours") and r["name"] in old]
    return [f"{before['key']}: {r['name']} {digits(r['ms'])} ms, stored {digits(old[r['name']])} ms" for r in mine]


def missing(result):
    """Who is not there and why, and results that are further off than bfloat16 explains."""
    reasons = {}
    for row in result["rows"]:
        for one in row["missing"]:
            reasons.setdefault((one["name"], one["reason"]), []).append(row["key"])
    lines = [f"- {name}: {reason} ({', '.join(keys)})" for (name, reason), keys in reasons.items()]
    for row in result["rows"]:
        for r in row["results"]:
            if not r.get("good", True):
                lines.append(f"- {row['key']}: the result of {r['name']} is off by {r['error']:.1e}, its worst tile by {r['tile_error']:.1e}")
    return ["", "Missing or off:", "", *lines] if lines else []


def cells(values):
    return "| " + " | ".join(values) + " |"


def digits(ms):
    """Four significant digits at most, as the other tables have them: .1422, 2.916, 24.13."""
    text = f"{ms:.4f}" if ms < 1 else f"{ms:.3f}" if ms < 10 else f"{ms:.2f}"
    return text.removeprefix("0")


def time(found, bold=False):
    if found is None:
        return "–"
    text = digits(found["ms"]) + ("" if found.get("good", True) else " (wrong)")
    return f"**{text}**" if bold else text


def ratio(number):
    return "–" if number is None else f"{number:.2f}"


def publish(result, args):
    """Prints the report, and writes what is asked for: ``json`` and ``plots`` of the arguments."""
    result = rounded(result)  # first, so that the file gives the same text again
    print(markdown(result), flush=True)
    if getattr(args, "json", None):
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plots:
        args.plots.mkdir(parents=True, exist_ok=True)
        for op in table.TITLES:
            picture = plot.svg(result, op, derive)
            if picture:
                (args.plots / f"{op}.svg").write_text(picture)


def rounded(value):
    """The same with six significant digits in every float."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def outputs(parser):
    """Arguments for where a report goes."""
    parser.add_argument("--plots", type=pathlib.Path, help="a folder for one SVG per operation")


def load(path):
    """A result from its file. FormatError if it is another kind of file."""
    try:
        result = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(result, dict) or result.get("format") != 1 or "rows" not in result:
        raise FormatError(f"{path} is not a result of torch_peers, format 1")
    return result


def main():
    parser = argparse.ArgumentParser(description="the table and plots of a result")
    parser.add_argument("result", type=pathlib.Path)
    outputs(parser)
    args = parser.parse_args()
    try:
        publish(load(args.result), args)
    except (FormatError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
