"""The tables of docs/performance.md, from the results that are kept in docs/peers. Needs neither torch nor a GPU:

    python3 benches/torch_peers/tables.py
"""

import importlib.util
import json
import pathlib
import re

import report
import rows as table

ROOT = pathlib.Path(__file__).parents[2]
KEPT = ROOT / "docs/peers"
DOCUMENT = ROOT / "docs/performance.md"

# Runs beside each other: title, files.
RUNS = (
    ("four H200", ["peers.json"]),
    ("four H200, random shapes", ["four-h200/random-560411.json"]),
    ("two H200", ["two/peers.json"]),
    ("two H100, random shapes", [f"two-h100/random-{seed}.json" for seed in (20261127, 20261128, 20261129)]),
    ("two H200, random shapes", ["two-h200/random-681128.json"]),
    ("one H100", ["one/h100.json"]),
    ("one H200, tuned", ["one/peers.json"]),
)


def marks(name):
    return f"<!-- table {name}: begin -->", f"<!-- table {name}: end -->"


def replace_block(document, block, name):
    """The document with what stands between its marks replaced. report.FormatError without exactly one pair of them."""
    begin, end = marks(name)
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise report.FormatError(f"the document must have {begin} and {end} once, in this order")
    before, rest = document.split(begin)
    return f"{before}{begin}\n\n{block}\n{end}{rest.split(end)[1]}"


def lines(head, body):
    """A table in Markdown: a header, and rows of cells."""
    return "\n".join([report.cells(head), "|" + "---|" * len(head), *map(report.cells, body)]) + "\n"


def shape(text):
    """``8192x4096`` as it is printed."""
    return text.replace("x", "×")


def by_run(runs):
    """Means and least ratios of operations, a column for each title of ``runs`` and all of its results."""
    derived = [[(row["op"], report.derive(row)) for result in results for row in result["rows"]] for _, results in runs]
    every = [[d for _, d in run] for run in derived]
    body = []
    for op in table.TITLES:
        if any(at == op for run in derived for at, _ in run):
            body.append([table.TITLES[op], *(mean_and_least([d for at, d in run if at == op]) for run in derived)])
    body.append(["all", *map(mean_and_least, every)])
    body.append(["all, idle queue", *(report.middles(run)[1] for run in every)])
    body.append(["bound ÷ mk", *(report.middles(run)[2] for run in every)])
    body.append(["rows; a peer is faster in", *(f"{len(run)}; {sum(d['speedup'] < 1 for d in run)}" for run in every)])
    return lines(["", *(title for title, _ in runs)], body)


def mean_and_least(derived):
    """``1.21 (.98)``, or a dash where nothing was measured."""
    ratios = [d["speedup"] for d in derived]
    return f"{report.ratio(report.mean(ratios))} ({report.ratio(min(ratios))})" if ratios else "–"


def random_products(results):
    """Ratios of torch.mm's time to mk's for products of random shapes, a line for each GPU."""
    summary = beside("random_shapes/summary.py")
    say = lambda number: "–" if number is None else f"{number:.3f}".removeprefix("0")  # noqa: E731
    body, gpus = [], list(dict.fromkeys(gpu(result["machine"]["gpu"]) for result in results))
    for name in gpus:
        mine = [result for result in results if gpu(result["machine"]["gpu"]) == name]
        f = summary.figures([row for result in mine for row in result["rows"]])
        worst = f"{say(f['worst'])} ({shape(f['worst_shape'])})"
        seeds = ", ".join(str(result["seed"]) for result in mine)
        body.append([name, seeds, say(f["mean"]), say(f["p5"]), worst, say(f["few"]), say(f["middle"]), say(f["many"])])
    return lines(["GPU", "seeds", "mean", "5th percentile", "worst", "M ≤ 128", "to 1024", "above"], body)


def grouped(results):
    """Grouped products: the fastest peer's time ÷ mk's for even rows and for uneven ones, by GPU."""
    body = []
    for row in results[0]["rows"][::2]:
        name, out = row["shape"].removesuffix(" skew 1"), []
        for result in results:
            even, uneven = (next(r for r in result["rows"] if r["shape"] == f"{name} skew {n}") for n in (1, 8))
            out.append(f"{report.ratio(fastest(even))}, {report.ratio(fastest(uneven))}")
        m, k, n, experts = re.fullmatch(r"R(\d+) K(\d+) N(\d+) E(\d+)", name).groups()
        body.append([f"{m}×{k}×{n}, {experts}", *out])
    return lines(["rows×K×N, experts", *(f"{gpu(r['gpu'])}: even, uneven" for r in results)], body)


def layers(results):
    """A layer of experts on one GPU: one kernel, separate ones, and torch's."""
    body = []
    for row in results[0]["rows"]:
        out = []
        for result in results:
            us = next(r for r in result["rows"] if r["shape"] == row["shape"])["us"]
            out += [f"{us['mk']:.0f}", report.ratio(us["mk_apart"] / us["mk"]), report.ratio(us["torch"] / us["mk"])]
        body.append([row["shape"].split()[0].removeprefix("T"), *out])
    head = ["tokens", *(t for r in results for t in (f"{gpu(r['gpu'])}: mk, µs", "separate ÷ mk", "torch ÷ mk"))]
    return lines(head, body)


def over_ranks(layer, dispatch):
    """Layers and dispatches of two GPUs beside NCCL; of a layer also those of uneven routings."""
    body = []
    for row in layer["rows"][::2] + dispatch["rows"]:
        name = row["shape"].removesuffix(" skew 1")
        other = next((r for r in layer["rows"] if r["shape"] == f"{name} skew 8"), None)
        ratios = [report.ratio(r["peer_over_mk"]) for r in (row, other) if r]
        ms = report.digits(row["results"]["mk"]["ms"])
        title = "layer" if other else "dispatch -> grouped_gemm"
        tokens = name.split(",")[0].split()[0].removeprefix("T")
        tokens = str(layer["ranks"] * int(tokens)) if "a rank" in name else tokens
        rest = name.split("a rank, ")[-1].removeprefix(f"T{tokens} ")
        body.append([f"`{title}` {rest}", tokens, ms, ", ".join(ratios), report.ratio(row["bound_over_mk"])])
    return lines(["pipeline", "tokens, both ranks", "mk, ms", "best peer ÷ mk: even, uneven routing", "bound ÷ mk"], body)


def predictions(predicted, measured):
    """Milliseconds of each row: on four GPUs as measured and as predicted, on more as predicted. Fixed width, as text."""
    ms = {(row["key"], row["ranks"]): row["ms"] for row in predicted["rows"]}
    found = {row["key"]: report.derive(row)["ours"] for row in measured["rows"]}
    ranks = sorted({n for _, n in ms})
    assert ranks[0] == measured["ranks"]
    head = f"{'':<45}{'measured':>10}" + "".join(f"{f'{n} GPUs':>10}" for n in ranks)
    body = [f"{shape(key):<45}{report.digits(found[key]):>10}" + "".join(f"{report.digits(ms[key, n]):>10}" for n in ranks) for key in found]
    return "\n".join(["```text", head, *body, "```"]) + "\n"


def fastest(row):
    return min(us for name, us in row["us"].items() if name != "mk") / row["us"]["mk"]


def gpu(name):
    """``H100`` of ``NVIDIA H100 80GB HBM3``."""
    return name.split()[1]


def beside(path):
    """A module of another folder of benches."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / "benches" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept(path):
    return json.loads((KEPT / path).read_text())


def blocks():
    """The tables by name."""
    experts = lambda name: kept(f"experts/{name}.json")  # noqa: E731
    return {
        "runs": by_run([(title, [report.load(KEPT / path) for path in paths]) for title, paths in RUNS]),
        "random": random_products([kept(f"random/{path.name}") for path in sorted((KEPT / "random").glob("*.json"))]),
        "grouped": grouped([experts("h100-grouped"), experts("h200-grouped")]),
        "layers": layers([experts("h100-layer"), experts("h200-layer")]),
        "predicted": predictions(kept("predicted.json"), report.load(KEPT / "peers.json")),
        "ranks": over_ranks(experts("two-h100-layer"), experts("two-h100-dispatch")),
    }


def write(document, tables):
    """The document with these tables in their places."""
    for name, text in tables.items():
        document = replace_block(document, text, name)
    return document


def main():
    DOCUMENT.write_text(write(DOCUMENT.read_text(), blocks()))


if __name__ == "__main__":
    main()
