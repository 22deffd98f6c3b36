"""mk and its peers in one run, one process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 4 benches/torch_peers --json peers.json

docs/performance.md says how it measures. NVLink multicast is switched off for everybody.
"""

import os

# Before torch and NCCL read them.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # async-TP warns at every call
os.environ.update({"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"})

import argparse  # noqa: E402
import datetime  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import report  # noqa: E402
import rows as table  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="torch_peers", description="mk and its peers, interleaved, one process per GPU")
    parser.add_argument("--ops", help=f"operations, with commas: {', '.join(table.SHAPES)} [all]")
    parser.add_argument("--rows", help="rows whose name has this regular expression, as in 'gather-gemm 4096x' [all]")
    parser.add_argument("--rounds", type=int, default=20, help="launches that count, of everybody, per row [20]")
    parser.add_argument("--quick", action="store_true", help="a few small rows and 5 rounds: a look, which does not count")
    parser.add_argument("--row", metavar="NAME", help="run one row again with the settings that are stored with it")
    parser.add_argument("--stored", type=pathlib.Path, help="the result that --row reads [docs/peers, by number of ranks]")
    parser.add_argument("--config", type=pathlib.Path, help='JSON with settings of mk by row: {"ROW": {"block": "128x128x64"}}')
    parser.add_argument("--json", type=pathlib.Path, help="where the result goes")
    report.outputs(parser)
    parser.add_argument("--random", type=int, metavar="COUNT", help="so many shapes of each operation, by --seed, instead of the table's")
    parser.add_argument("--seed", type=int, default=1, help="of the inputs, and of the shapes of --random [1]")
    parser.add_argument("--tune-list", type=int, metavar="RANKS", help="only print mk's kernels, for `mk tune --list`")
    args = parser.parse_args()
    if args.tune_list is not None and args.tune_list < 1:
        parser.error("--tune-list takes a number of ranks")
    if args.random is not None and (args.random < 1 or args.rows or args.row or args.quick):
        parser.error("--random takes a number of shapes, and neither --rows, --row nor --quick")
    world = args.tune_list or int(os.environ.get("WORLD_SIZE", "4"))
    try:
        args.stored_row = again(parser, args, world) if args.row else None
        pattern = f"^{re.escape(args.row)}$" if args.row else args.rows
        ops = args.ops.split(",") if args.ops else None
        if args.random:
            args.selected = table.draw(args.seed, args.random, ops)
        else:
            args.selected = table.select(ops, pattern, args.quick, world)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.quick:
        args.rounds = min(args.rounds, 5)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.stored and not args.row:
        parser.error("--stored is for --row")
    args.settings = json.loads(args.config.read_text()) if args.config else {}
    return args


def again(parser, args, world):
    """The stored row that ``--row`` names. ValueError (a FormatError) where it cannot be run again."""
    if args.rows or args.ops or args.quick or args.config or args.tune_list:
        parser.error("--row takes its settings from --stored: leave out --rows, --ops, --quick, --config and --tune-list")
    peers = pathlib.Path(__file__).parents[2] / "docs/peers"
    folder = {1: peers / "one", 2: peers / "two", 4: peers}.get(world)
    if not args.stored and not folder:
        parser.error(f"no result of {world} ranks is kept: name one with --stored")
    result = report.load(args.stored or folder / "peers.json")
    if result["ranks"] != world:
        raise ValueError(f"the stored result is of {result['ranks']} ranks, and this run has {world}")
    return report.stored(result, args.row)


def main():
    begin = time.perf_counter()
    args = arguments()
    if args.tune_list:
        print("\n".join(table.tune_lines(args.selected, args.tune_list)))
        return
    if "LOCAL_RANK" not in os.environ:
        sys.exit("error: run me with one process per GPU: python3 -m torch.distributed.run --nproc-per-node N benches/torch_peers")
    try:
        from run import Bench  # torch from here on
    except ImportError as error:
        sys.exit(f"error: {error}\n  help: this needs torch with CUDA and Triton, and the module mk (cargo xtask wheel)")

    bench = Bench(args)
    bench.say(f"{len(args.selected)} rows; started in {time.perf_counter() - begin:.1f} s")
    try:
        result = bench.run()
    finally:
        bench.close()
    if bench.rank != 0:
        return
    result |= {
        "date": datetime.date.today().isoformat(),
        "command": command(args),
        "revision": revision(),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    report.publish(result, args)
    if args.stored_row:
        print("\n".join(report.again(args.stored_row, result)), flush=True)
    wrong = report.wrong(result)
    print("\n".join(wrong) if wrong else f"every result of mk is right; {result['seconds']} s", flush=True)
    missed = report.missed(result)
    print("\n".join(missed) if missed else "every prediction is within 30 %", flush=True)
    sys.exit(1 if wrong or missed else 0)


def command(args):
    """The options of the command line that decide the figures; paths of outputs do not."""
    parts = ["benches/torch_peers", *(["--quick"] if args.quick else []), f"--rounds {args.rounds}", f"--seed {args.seed}"]
    given = {"--random": args.random, "--ops": args.ops, "--rows": args.rows, "--row": args.row, "--config": args.config and args.config.name}
    return " ".join(parts + [f"{name} {value!r}" for name, value in given.items() if value])


def revision():
    """The commit that is measured, with a + where files differ from it; nothing outside of a repository."""
    git = ["git", "-C", str(pathlib.Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


if __name__ == "__main__":
    main()
