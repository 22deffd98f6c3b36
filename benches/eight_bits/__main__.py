"""GEMMs of eight bits beside `torch._scaled_mm` on one GPU, in the same formats and with the same factors, of rows and of blocks:

    python3 benches/eight_bits                        # fixed shapes, then random ones; under 3 minutes
    python3 benches/eight_bits --random 40 --seed 5 --json eight.json --settings block=256x128x64

Each result is compared with an f32 product of the dequantised operands, tile by tile of 128 x 128; a wrong one fails the run. Inputs rotate,
every contestant is captured in a graph, 256 MiB are overwritten between launches, contestants take turns, the median counts. Torch adds as mk
does (`use_fast_accum=False`); `torch_fast` adds all of K in the tensor cores, and is no peer.
"""

import argparse
import json
import random
import sys
import time

import torch

import mk

SETS = 3
SOURCE = "fn product(x: {a}[M, K] scaled(1, K), w: {b}[N, K] scaled(1, K)) {{ gemm(x, w.t) }}"
BLOCKS = "fn product(x: {a}[M, K] scaled(1, 128), w: {b}[N, K] scaled(128, 128)) {{ gemm(x, w.t) }}"
PLAIN = "fn product(x: {a}[M, K], w: {b}[N, K]) {{ gemm(x, w.t) }}"
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
# Rows, depth, columns.
SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 4096), (8192, 4096, 14336), (1024, 8192, 8192), (512, 7168, 2048)]
# Of rounding to bf16, and of 14 bits of each 128 steps.
LIMIT = 5e-3


def operand(rows, depth, dtype, seed):
    """Random values as eight bits, and a factor for each row."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(rows, depth, device="cuda", generator=generator)
    x *= torch.rand(rows, 1, device="cuda", generator=generator) * 4 + 0.1
    most = torch.finfo(DTYPES[dtype]).max
    scale = x.abs().amax(1) / most
    return (x / scale[:, None]).to(DTYPES[dtype]), scale


def in_blocks(x, rows, dtype):
    """The same, with a factor for each `rows` x 128: as eight bits, the factors, and what they stand for."""
    m, k = x.shape
    padded = torch.nn.functional.pad(x, (0, -k % 128, 0, -m % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, -1, 128)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-12) / torch.finfo(DTYPES[dtype]).max
    values = (blocks / scale[:, None, :, None]).to(DTYPES[dtype])
    back = (values.float() * scale[:, None, :, None]).view(padded.shape)[:m, :k]
    return values.view(padded.shape)[:m, :k].contiguous(), scale, back


def block_operands(m, k, n, dtypes, seed):
    """Operands with blocks of 1 x 128 and 128 x 128, their factors as mk takes them, and the product of what they stand for."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    # Blocks differ in size, so that a wrong factor shows.
    x = torch.randn(m, k, device="cuda", generator=generator) * torch.rand(m, 1, device="cuda", generator=generator).add(0.1)
    w = torch.randn(n, k, device="cuda", generator=generator)
    x *= torch.rand(-(-k // 128), device="cuda", generator=generator).mul(4).add(0.1).repeat_interleave(128)[:k]
    w *= torch.rand(-(-n // 128), device="cuda", generator=generator).mul(4).add(0.1).repeat_interleave(128)[:n, None]
    (x, sx, dx), (w, sw, dw) = in_blocks(x, 1, dtypes[0]), in_blocks(w, 128, dtypes[1])
    return x, sx.t().contiguous(), w, sw.contiguous(), dx @ dw.t()


def tile_errors(got, want):
    """Relative error of the whole, and of the worst tile."""
    square = lambda x: torch.nn.functional.pad(x.pow(2), (0, -x.shape[1] % 128, 0, -x.shape[0] % 128))
    tiles = lambda x: square(x).view(-(-x.shape[0] // 128), 128, -1, 128).sum((1, 3))
    error, norm = tiles(got.float() - want), tiles(want)
    return (error.sum() / norm.sum()).sqrt().item(), (error / norm).sqrt().max().item()


def captured(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return lambda run=run: graph.replay()


def times_of(contestants, rounds, flush):
    pairs = {name: [] for name in contestants}
    for i in range(2 + rounds):
        names = list(contestants)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            flush.fill_(i & 1)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            contestants[name][i % SETS]()
            end.record()
            if i >= 2:
                pairs[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: sorted(1e3 * a.elapsed_time(b) for a, b in p)[len(p) // 2] for name, p in pairs.items()}


def shape_row(world, shape, dtypes, args, flush, how="rows"):
    m, k, n = shape
    scaled = how == "rows"
    text = {"rows": SOURCE, "blocks": BLOCKS, "plain": PLAIN}[how].format(a=dtypes[0], b=dtypes[1])
    functions = {"mk": mk.compile(text, world), **{s: mk.compile(text, world, settings=s) for s in args.settings}}
    contestants = {name: [] for name in functions}
    worst = (0.0, 0.0)
    one = torch.ones((), device="cuda")
    for i in range(SETS):
        want = None
        if how == "blocks":
            x, sx, w, sw, want = block_operands(m, k, n, dtypes, args.seed * 97 + i)
        else:
            (x, sx), (w, sw) = operand(m, k, dtypes[0], args.seed * 97 + i), operand(n, k, dtypes[1], args.seed * 97 + 50 + i)
        given = [x, w] if how == "plain" else [x, sx, w, sw]
        out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        for name, f in functions.items():
            contestants[name].append(captured(lambda f=f, given=given, out=out: f(*given, out=out)))
            if i == 0:
                out.fill_(float("nan"))
                contestants[name][-1]()
                if want is None:
                    want = (x.float() * sx[:, None] if scaled else x.float()) @ (w.float() * sw[:, None] if scaled else w.float()).t()
                worst = max(worst, tile_errors(out, want), key=lambda e: float("inf") if e[1] != e[1] else e[1])
        # Of blocks, torch takes the factors of 128 of K of all rows side by side, and rows of weights' in fours.
        padded = torch.nn.functional.pad(sw, (0, -sw.shape[1] % 4)) if how == "blocks" else None
        factors = {"rows": lambda: [sx[:, None], sw[None, :]], "blocks": lambda: [sx.t(), padded.t()], "plain": lambda: [one, one]}[how]()
        for name, fast in (("torch", False), ("torch_fast", True)):
            if contestants.get(name, []) is None:
                continue
            run = lambda x=x, w=w, factors=factors, fast=fast: torch._scaled_mm(
                x, w.t(), scale_a=factors[0], scale_b=factors[1], out_dtype=torch.bfloat16, use_fast_accum=fast
            )
            try:
                contestants.setdefault(name, []).append(captured(run))
            except RuntimeError as refused:
                if i == 0:
                    print(f"{name}: {str(refused).splitlines()[0]}", file=sys.stderr)
                contestants[name] = None
                torch.cuda.synchronize()
    times = times_of({name: runs for name, runs in contestants.items() if runs}, args.rounds, flush)
    ratio = times["torch"] / times["mk"] if "torch" in times else None
    right = worst[0] < LIMIT and worst[1] < 2 * LIMIT
    rates = " ".join(f"{name} {t:.1f}" for name, t in times.items())
    print(
        f"{'x'.join(map(str, shape))} {'*'.join(dtypes)} {how} | us {rates} | {2 * m * k * n / times['mk'] / 1e6:.0f} TFLOP/s"
        + (f" | torch / mk {ratio:.3f}" if ratio else "")
        + f" | error {worst[0]:.1e}, worst tile {worst[1]:.1e} {'ok' if right else 'WRONG'}",
        flush=True,
    )
    for f in functions.values():
        f.close()
    return {"shape": shape, "dtypes": dtypes, "factors": how, "us": times, "torch_over_mk": ratio, "error": worst, "right": right}


def main():
    parser = argparse.ArgumentParser(description="GEMMs of eight bits of mk and of torch on one GPU")
    parser.add_argument("--rounds", type=int, default=15, help="timed launches of each contestant [15]")
    parser.add_argument("--random", type=int, default=12, help="random shapes behind the fixed ones [12]")
    parser.add_argument("--factors", nargs="+", choices=["rows", "blocks"], default=["rows", "blocks"], help="of rows, or of 1 x 128 by 128 x 128")
    parser.add_argument("--seconds", type=float, default=150, help="no further shape after so long [150]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", action="append", default=[], help="more settings of mk to time, once for each")
    parser.add_argument("--json", help="where to write all figures")
    args = parser.parse_args()
    began, draw = time.monotonic(), random.Random(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    sizes = lambda: tuple(16 * max(1, round(2 ** draw.uniform(2, 9.3))) for _ in range(3))
    both = ("e4m3", "e4m3")
    cases = [((512, 1024, 768), both, "plain")]
    cases += [(SHAPES[0], ("e5m2", "e4m3"), "rows"), (SHAPES[0], ("e4m3", "e5m2"), "rows")] if "rows" in args.factors else []
    cases += [(shape, both, how) for how in args.factors for shape in SHAPES]
    # What torch refuses, mk multiplies.
    cases += [((500, 400, 264), both, "blocks")] if "blocks" in args.factors else []
    cases += [(sizes(), both, how) for _ in range(args.random) for how in args.factors]
    rows, world = [], mk.World.local(1)
    with torch.no_grad():
        for shape, dtypes, how in cases:
            if time.monotonic() - began > args.seconds:
                print(f"stopped behind {len(rows)} of {len(cases)} shapes")
                break
            rows.append(shape_row(world, shape, dtypes, args, flush, how))
    if args.json:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "mk": mk.__version__, "seed": args.seed}
        with open(args.json, "w") as file:
            json.dump({**about, "rows": rows}, file, indent=1)
    for how in args.factors:
        ratios = [row["torch_over_mk"] for row in rows if row["torch_over_mk"] and row["factors"] == how]
        if ratios:
            mean = torch.tensor(ratios).log().mean().exp().item()
            print(f"factors of {how}: {len(ratios)} shapes, torch / mk {mean:.3f} in the geometric mean, {min(ratios):.3f} at worst")
    wrong = sum(not row["right"] for row in rows)
    if wrong:
        sys.exit(f"{wrong} results are wrong")


if __name__ == "__main__":
    main()
