"""Grouped GEMMs of eight bits beside `torch._scaled_grouped_mm` on one GPU:

    python3 benches/eight_bits/grouped.py --seed 3        # under 2 minutes

Torch has factors of rows, mk of blocks of 1 x 128 by 128 x 128: as many bits of operands, more factors. Both add as they do by default, and
`torch_slow` without the tensor cores' own sums over all of K, where torch takes that. Each result is compared with an f32 product of what its
operands stand for, 128 rows at a time. Inputs and numbers of rows rotate, every contestant is captured, 256 MiB are overwritten between launches.
"""

import argparse
import importlib.util
import os
import random
import sys

import torch

import mk

_spec = importlib.util.spec_from_file_location("eight_bits", os.path.join(os.path.dirname(__file__), "__main__.py"))
alone = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(alone)

TEXT = "fn grouped(x: e4m3[R, K] scaled(1, 128), n: i32[E], w: e4m3[E, N, K] scaled(128, 128)) { ragged(x, n) -> grouped_gemm(w.t) }"
# Rows, depth, columns, experts, and how many times its share the first one has.
SHAPES = [(16384, 7168, 2048, 32, 1), (65536, 2048, 1536, 128, 1), (8192, 7168, 2048, 16, 8), (512, 7168, 2048, 64, 1), (16384, 2048, 1536, 32, 1)]
EIGHT = torch.float8_e4m3fn


def counts_of(rows, experts, skew, draw):
    weights = [1 + draw.random() for _ in range(experts)]
    weights[0] *= skew
    counts = [int(rows * w / sum(weights)) for w in weights]
    counts[0] += rows - sum(counts)
    return counts


def by_rows(x):
    """Values as e4m3, and one factor for each row of them."""
    factors = x.abs().amax(-1).clamp(min=1e-12) / torch.finfo(EIGHT).max
    return (x / factors[..., None]).to(EIGHT), factors


def worst(got, want, counts):
    """Relative error of the whole, and of the worst expert's rows."""
    error, norm = (got.float() - want).pow(2).sum(1), want.pow(2).sum(1)
    parts = [(e.sum() / n.sum()).sqrt().item() for e, n in zip(error.split(counts), norm.split(counts)) if len(n)]
    return (error.sum() / norm.sum()).sqrt().item(), max(parts)


def row(world, shape, args, flush):
    rows, depth, columns, experts, skew = shape
    draw, generator = random.Random(args.seed), torch.Generator(device="cuda").manual_seed(args.seed)
    plain = torch.randn(experts, columns, depth, device="cuda", generator=generator) / depth**0.5
    in_blocks = [alone.in_blocks(matrix, 128, "e4m3") for matrix in plain]
    w, sw = (torch.stack([parts[i] for parts in in_blocks]) for i in range(2))
    v, sv = by_rows(plain)
    grouped, errors = mk.compile(TEXT, world), {}
    contestants = {"mk": [], "torch": [], "torch_slow": []}
    sets = [counts_of(rows, experts, skew, draw) for _ in range(alone.SETS)]
    room = max(sum(-(-n // 128) * 128 for n in counts) for counts in sets)
    for counts in sets:
        starts = [0]
        for n in counts:
            starts.append(starts[-1] + -(-n // 128) * 128)
        place = torch.cat([torch.arange(at, at + n) for at, n in zip(starts, counts)]).cuda()
        dense = torch.randn(rows, depth, device="cuda", generator=generator) * torch.rand(rows, 1, device="cuda", generator=generator).add(0.1)
        numbers = torch.tensor(counts, dtype=torch.int32, device="cuda")
        padded = torch.zeros(room, depth, device="cuda")
        padded[place] = dense
        x, sx, back = alone.in_blocks(padded, 1, "e4m3")
        given = (x, sx.t().contiguous(), numbers, w, sw.contiguous())
        out = torch.full((room, columns), float("nan"), dtype=torch.bfloat16, device="cuda")
        contestants["mk"].append(alone.captured(lambda given=given, out=out: grouped(*given, out=out)))
        y, sy = by_rows(dense)
        ends = numbers.cumsum(0).int()
        for name, fast in (("torch", True), ("torch_slow", False)):
            if contestants[name] is None:
                continue
            run = lambda y=y, sy=sy, ends=ends, fast=fast: torch._scaled_grouped_mm(
                y, v.transpose(-2, -1), sy, sv, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=fast
            )
            try:
                contestants[name].append(alone.captured(run))
            except RuntimeError as refused:
                print(f"{name}: {str(refused).splitlines()[0]}", file=sys.stderr)
                contestants[name] = None
                torch.cuda.synchronize()
                continue
            if name not in errors:
                wanted = [a.float() * f[:, None] @ (b.float() * g[:, None]).t() for a, f, b, g in zip(y.split(counts), sy.split(counts), v, sv)]
                errors[name] = worst(run(), torch.cat(wanted), counts)
        if "mk" not in errors:
            contestants["mk"][0]()
            wanted = [a @ parts[2].t() for a, parts in zip(back[place].split(counts), in_blocks)]
            errors["mk"] = worst(out[place], torch.cat(wanted), counts)
    times = alone.times_of({name: runs for name, runs in contestants.items() if runs}, args.rounds, flush)
    right = errors["mk"][0] < alone.LIMIT and errors["mk"][1] < 2 * alone.LIMIT
    ratios = {name: t / times["mk"] for name, t in times.items() if name != "mk"}
    print(
        f"R{rows} K{depth} N{columns} E{experts} skew {skew} | us " + " ".join(f"{name} {t:.1f}" for name, t in times.items())
        + f" | {2 * rows * depth * columns / times['mk'] / 1e6:.0f} TFLOP/s | "
        + " ".join(f"{name} / mk {ratio:.3f}" for name, ratio in ratios.items())
        + " | error " + " ".join(f"{name} {e:.1e}, worst {w:.1e}" for name, (e, w) in errors.items()) + (" ok" if right else " WRONG"),
        flush=True,
    )
    grouped.close()
    return right


def main():
    parser = argparse.ArgumentParser(description="grouped GEMMs of eight bits of mk and of torch on one GPU")
    parser.add_argument("--rounds", type=int, default=15, help="timed launches of each contestant [15]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    flush, world = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), mk.World.local(1)
    with torch.no_grad():
        wrong = [shape for shape in SHAPES if not row(world, shape, args, flush)]
    if wrong:
        sys.exit(f"{len(wrong)} results are wrong")


if __name__ == "__main__":
    main()
