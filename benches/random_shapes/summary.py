"""From a result to the figures that count. Needs neither torch nor a GPU."""

import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "torch_peers"))

import predicted  # noqa: E402

FEW_ROWS = 128  # as in decoding
PEER = "torch"


def ratio(row):
    """Time of torch's ÷ ours, or None where one of the two is missing or wrong."""
    by = {r["name"]: r for r in row["results"]}
    ours, peer = by.get("mk"), by.get(PEER)
    if not ours or not peer or not ours["good"]:
        return None
    return peer["ms"] / ours["ms"]


def mean(numbers):
    """The geometric mean, or None of nothing."""
    numbers = list(numbers)
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else None


def quantile(numbers, share):
    """The number that a share of them lies below; of ranks in between, in proportion."""
    ordered = sorted(numbers)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def figures(rows):
    """Ratios of a result: mean, 5th percentile, worst, and means by number of rows."""
    all_rows = [(row, ratio(row)) for row in rows]
    there = [(row, r) for row, r in all_rows if r is not None]
    ratios = [r for _, r in there]
    if not ratios:
        return {"rows": len(all_rows), "compared": 0}
    some = lambda inside: mean(r for row, r in there if inside(row["m"]))  # noqa: E731
    worst = min(there, key=lambda one: one[1])
    return {
        "rows": len(all_rows),
        "compared": len(ratios),
        "mean": mean(ratios),
        "p5": quantile(ratios, 0.05),
        "worst": worst[1],
        "worst_shape": worst[0]["shape"],
        "few": some(lambda m: m <= FEW_ROWS),
        "middle": some(lambda m: FEW_ROWS < m <= 1024),
        "many": some(lambda m: m > 1024),
    }


def wrong(result):
    """What makes a run fail: rows without mk, and results of mk that are not right."""
    out = []
    for row in result["rows"]:
        ours = [r for r in row["results"] if r["name"].startswith("mk")]
        out += [f"WRONG: {row['shape']}: {r['name']} has errors {r['error']:.1e}, {r['tile_error']:.1e}" for r in ours if not r["good"]]
        out += [f"MISSING: {row['shape']}: {m['name']}: {m['reason']}" for m in row["missing"] if m["name"].startswith("mk")]
    return out


def missed(result):
    """The rows whose time the cost model predicted wrongly, with the settings that it chose."""
    ours = [(row, r) for row in result["rows"] for r in row["results"] if r["name"] == "mk"]
    return predicted.missed((row["shape"], r["ms"], r.get("predicted_ms")) for row, r in ours)


def text(result):
    """A few lines."""
    f = figures(result["rows"])
    head = f"{result['machine']['gpu']}, {result['op']}, seed {result['seed']}: {f['compared']} of {f['rows']} shapes compared"
    if not f["compared"]:
        return head
    say = lambda x: "–" if x is None else f"{x:.3f}"  # noqa: E731
    return (
        f"{head}\ntorch ÷ mk: mean {say(f['mean'])}, 5th percentile {say(f['p5'])}, worst {say(f['worst'])} ({f['worst_shape']})\n"
        f"means: M <= 128 {say(f['few'])}, to 1024 {say(f['middle'])}, above {say(f['many'])}"
    )
