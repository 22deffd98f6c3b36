"""Products of random shapes, which nobody can have tuned to, beside torch and cublasLt on one GPU:

    python3 benches/random_shapes --seed 7 --json random.json

Prints the geometric mean of torch's time ÷ mk's, the 5th percentile, the worst, and the mean where rows are few. The JSON has the settings
of each row; `--row MxKxN` with them runs one again.
"""

import argparse
import datetime
import json
import pathlib
import sys
import time

import plot
import shapes as table
import summary


def arguments():
    parser = argparse.ArgumentParser(prog="random_shapes", description="products of random shapes beside torch, on one GPU")
    parser.add_argument("--seed", type=int, default=1, help="of shapes and inputs [1]")
    parser.add_argument("--count", type=int, default=100, help="shapes [100]")
    parser.add_argument("--rows", type=int, nargs=2, default=table.ROWS, metavar=("FROM", "TO"), help="bounds of M [1 16384]")
    parser.add_argument("--odd", action="store_true", help="K and N of any number, not multiples of 8")
    parser.add_argument("--op", default="product", choices=table.OPS, help="the product, or what follows it [product]")
    parser.add_argument("--rounds", type=int, default=20, help="launches that count, of everybody, per shape [20]")
    parser.add_argument("--lt", action="store_true", help="the fastest proposal of cublasLt, too")
    parser.add_argument("--row", action="append", type=table.parse, metavar="MxKxN", help="this shape instead of random ones")
    parser.add_argument("--settings", type=pathlib.Path, help='JSON with more settings to time: {"MxKxN": ["block=128x128x64", …]}')
    parser.add_argument("--stored", type=pathlib.Path, help="a result: its shapes, with the settings that are stored there as `mk 1`")
    parser.add_argument("--seconds", type=float, help="begin no shape, and compile no more kernels, later than that after the start")
    parser.add_argument("--progress", action="store_true", help="a line for each shape, on stderr")
    parser.add_argument("--json", type=pathlib.Path, help="where the result goes, also the one so far")
    parser.add_argument("--svg", type=pathlib.Path, help="where a picture of it goes")
    args = parser.parse_args()
    if args.rounds < 1 or args.count < 1 or args.rows[0] < 1 or args.rows[0] > args.rows[1]:
        parser.error("--rounds and --count are at least 1, and --rows two numbers in order")
    args.settings = json.loads(args.settings.read_text()) if args.settings else {}
    return args


def selected(args):
    """The shapes of this run."""
    if args.stored:
        stored = json.loads(args.stored.read_text())
        rows = [row for row in stored["rows"] if not args.row or table.parse(row["shape"]) in args.row]
        for row in rows:
            ours = next((r for r in row["results"] if r["name"] == "mk"), None)
            if ours:
                words = ours["settings"]["settings"].items()
                args.settings[row["shape"]] = [" ".join(f"{name}={value}" for name, value in words)]
        return [table.parse(row["shape"]) for row in rows]
    return args.row or table.draw(args.seed, args.count, tuple(args.rows), args.odd)


def store(path, text):
    """All of it, or what was there before."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text)
    beside.replace(path)


def main():
    args = arguments()
    begin = time.perf_counter()
    shapes = selected(args)
    try:
        from bench import Bench  # torch from here on
    except ImportError as error:
        sys.exit(f"error: {error}\n  help: this needs torch with CUDA, and the module mk (cargo xtask wheel)")
    elapsed = lambda: time.perf_counter() - begin  # noqa: E731
    late = lambda: args.seconds is not None and elapsed() > args.seconds  # noqa: E731
    result = None
    for result in Bench(args, table.OPS[args.op]).run(shapes, late):
        result |= {
            "format": 1,
            "date": datetime.date.today().isoformat(),
            "seed": args.seed,
            "op": args.op,
            "rounds": args.rounds,
            "seconds": round(elapsed(), 1),
        }
        if args.json:
            store(args.json, json.dumps(result, indent=1) + "\n")
    if result is None or not result["rows"]:
        sys.exit(f"error: no shape has run within {args.seconds} s\n  help: starting and compiling take some seconds: allow more")
    picture = plot.svg(result)
    if args.svg and picture:
        args.svg.write_text(picture)
    print(summary.text(result), flush=True)
    wrong = summary.wrong(result)
    print("\n".join(wrong) if wrong else f"every result of mk is right; {result['seconds']} s", flush=True)
    missed = summary.missed(result)
    print("\n".join(missed) if missed else "every prediction is within 30 %", flush=True)
    sys.exit(1 if wrong or missed else 0)


if __name__ == "__main__":
    main()
