"""`gather -> gemm` of eight bits beside that of bf16, and beside NCCL with `torch._scaled_mm`, and layers of experts beside bf16's, one process per GPU:

    torchrun --nproc-per-node 2 benches/eight_bits/gather.py      # under 3 minutes

Inputs rotate, an all-reduce aligns the ranks before each launch, 256 MiB are overwritten between launches, contestants take turns; of each launch the
slowest rank counts, of launches the median. Each result is compared with an f32 product of what all ranks' operands stand for, tile by tile.
"""

import argparse
import importlib.util
import os
import sys

import torch
import torch.distributed as dist

import mk
from mk import _float8

_spec = importlib.util.spec_from_file_location("eight_bits", os.path.join(os.path.dirname(__file__), "__main__.py"))
alone = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(alone)
LIMIT, SETS, block_operands, operand, tile_errors = alone.LIMIT, alone.SETS, alone.block_operands, alone.operand, alone.tile_errors

SHAPES = [(8192, 8192, 8192), (8192, 4096, 4096), (16384, 8192, 8192), (4096, 4096, 4096)]
TEXT = "fn f(x: {t}[M, K]{a} @ shard(0), w: {t}[N, K]{b} @ shard(0)) {{ gather(x) -> gemm(w.t) }}"
KINDS = {"bf16": ("bf16", "", ""), "rows": ("e4m3", " scaled(1, K)", " scaled(1, K)"), "blocks": ("e4m3", " scaled(1, 128)", " scaled(128, 128)")}


# Tokens of a rank, hidden and inner elements, experts, slots.
LAYERS = [(8192, 2048, 768, 128, 8), (4096, 4096, 14336, 8, 2)]
LAYER = """fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, S] @ shard(0), g: f32[T, S] @ shard(0), w: {w} @ shard(0), v: {v} @ shard(0)) {{
    {rows} -> grouped_gemm({w_of}) -> swiglu{stage} -> grouped_gemm({v_of}) -> combine(g)
}}"""
BF16 = LAYER.format(w="bf16[E, H, 2, F]", v="bf16[E, F, H]", rows="dispatch(x, ids)", w_of="w", stage="", v_of="v")
EIGHT = LAYER.format(
    w="e4m3[E, 2, F, H] scaled(128, 128)", v="e4m3[E, H, F] scaled(128, 128)", rows="x -> quantize(e4m3, 1, 128) -> dispatch(ids)", w_of="w.t",
    stage=" -> quantize(e4m3, 1, 128)", v_of="v.t")
# Of eight bits, beside the layer of bf16.
LAYER_LIMIT = 8e-2


def layer(world, shape, settings):
    """A launch of each for each set of inputs, and how far results are from those of bf16; of eight bits also with each of `settings`."""
    tokens, hidden, inner, experts, slots = shape
    generator = torch.Generator(device="cuda").manual_seed(world.ranks[0])
    drawn = lambda *sizes: torch.randn(*sizes, device="cuda", generator=generator)
    own = experts // world.size
    w, v = (drawn(own, hidden, 2, inner) / hidden**0.5).bfloat16(), (drawn(own, inner, hidden) / inner**0.5).bfloat16()
    eight = _float8.halves(*_float8.matrices(w, v)[1])
    kernels = {"bf16": (mk.compile(BF16, world), (w, v)), "eight": (mk.compile(EIGHT, world), eight)}
    for text in settings:
        kernels[f"eight {text}"] = (mk.compile(EIGHT, world, fuse="always", settings=text), eight)
    runs, outs = {name: [] for name in kernels}, {}
    for i in range(SETS):
        gate, ids = drawn(tokens, experts).softmax(1).topk(slots)
        x = drawn(tokens, hidden).bfloat16()
        for name, (f, given) in kernels.items():
            out = torch.full_like(x, float("nan"))
            runs[name].append(lambda f=f, given=given, x=x, ids=ids, gate=gate, out=out: f(x, ids, gate, *given, out=out))
            outs.setdefault(name, out)
    for launches in runs.values():
        launches[0]()
    torch.cuda.synchronize()
    wide = outs.pop("bf16").float()
    return runs, max(((out.float() - wide).norm() / wide.norm()).item() for out in outs.values())


def slowest(runs, rounds, flush, one):
    """Median microseconds of each, of the slowest rank's."""
    times = {name: [] for name in runs}
    for i in range(3 + rounds):
        for name in list(runs)[i % len(runs) :] + list(runs)[: i % len(runs)]:
            flush.fill_(i & 1)
            dist.all_reduce(one)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            runs[name][i % SETS]()
            end.record()
            torch.cuda.synchronize()
            if i >= 3:
                times[name].append(1e3 * begin.elapsed_time(end))
    table = torch.tensor([times[name] for name in runs], device="cuda")
    dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(runs, table.median(1).values.tolist()))


def inputs(kind, shape, rank, ranks, seed):
    """This rank's operands, and the rows of all that they are multiplied with, in float32."""
    m, k, n = shape
    if kind == "blocks":
        x, sx, w, sw, _ = block_operands(m // ranks, k, n // ranks, ("e4m3", "e4m3"), seed * 64 + rank)
        wide = lambda s: s.repeat_interleave(128, 1)[:, :k]
        return [x, sx, w, sw], x.float() * wide(sx.t()), w.float() * wide(sw).repeat_interleave(128, 0)
    (x, sx), (w, sw) = (operand(r, k, "e4m3", seed * 64 + at + rank) for r, at in ((m // ranks, 0), (n // ranks, 32)))
    own, weights = x.float() * sx[:, None], w.float() * sw[:, None]
    if kind == "bf16":
        own, weights = own.bfloat16(), weights.bfloat16()
        return [own, weights], own.float(), weights.float()
    return [x, sx, w, sw], own, weights


def nccl(given, ranks):
    """Values and factors by NCCL, then torch's GEMM."""
    x, sx, w, sw = given
    everyone = lambda t: (torch.empty((ranks * t.shape[0], *t.shape[1:]), dtype=t.dtype, device=t.device), t)
    (all_x, own), (all_s, own_s) = everyone(x.view(torch.uint8)), everyone(sx)

    def run():
        dist.all_gather_into_tensor(all_x, own)
        dist.all_gather_into_tensor(all_s, own_s)
        return torch._scaled_mm(all_x.view(x.dtype), w.t(), scale_a=all_s[:, None], scale_b=sw[None, :], out_dtype=torch.bfloat16, use_fast_accum=False)

    return run


def main():
    parser = argparse.ArgumentParser(description="gather -> gemm of eight bits on several GPUs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="gathers")
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="layers of experts")
    parser.add_argument("--settings", action="append", default=[], help="of layers of eight bits, once more: combine=sums")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("cpu:gloo,cuda:nccl")
    world = mk.World.from_torch()
    rank, ranks = world.ranks[0], world.size
    flush, one = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), torch.zeros(1, device="cuda")
    wrong = 0
    said = lambda line: print(line, flush=True) if rank == 0 else None
    for shape in SHAPES[: args.shapes]:
        runs, verdicts = {}, []
        for kind, (t, a, b) in KINDS.items():
            f = mk.compile(TEXT.format(t=t, a=a, b=b), world)
            runs[kind] = []
            for i in range(SETS):
                given, own, weights = inputs(kind, shape, rank, ranks, i)
                out = torch.full((shape[0], shape[2] // ranks), float("nan"), dtype=torch.bfloat16, device="cuda")
                runs[kind].append(lambda f=f, given=given, out=out: f(*given, out=out))
                if kind == "rows":
                    runs.setdefault("nccl", []).append(nccl(given, ranks))
                if i:
                    continue
                runs[kind][0]()
                rows = torch.empty((shape[0], shape[1]), device="cuda")
                dist.all_gather_into_tensor(rows, own.contiguous())
                error, tile = tile_errors(out, rows @ weights.t())
                right = error < LIMIT and tile < 2 * LIMIT
                wrong += not right
                verdicts.append(f"{kind} {tile:.1e}{'' if right else ' WRONG'}")
        us = slowest(runs, args.rounds, flush, one)
        m, k, n = shape
        sent = {"bf16": 2 * m * k, "rows": m * k + 4 * m, "blocks": m * k + 4 * m * -(-k // 128)}
        said(
            f"{m}x{k}x{n}: us " + " ".join(f"{name} {t:.0f}" for name, t in us.items())
            + f" | bf16 / fp8 {us['bf16'] / us['rows']:.2f} (rows) {us['bf16'] / us['blocks']:.2f} (blocks) | nccl / rows {us['nccl'] / us['rows']:.2f}"
            + " | bytes of bf16 " + " ".join(f"{name} {b / sent['bf16']:.3f}" for name, b in sent.items() if name != "bf16")
            + " | worst tile " + ", ".join(verdicts)
        )
    for shape in LAYERS[: args.layers]:
        runs, error = layer(world, shape, args.settings)
        right = error < LAYER_LIMIT
        wrong += not right
        us = slowest(runs, args.rounds, flush, one)
        tokens, hidden, inner, experts, slots = shape
        said(
            f"layer T{tokens} a rank H{hidden} I{inner} E{experts} k{slots}: us " + " ".join(f"{name} {t:.0f}" for name, t in us.items())
            + f" | bf16 / eight {us['bf16'] / us['eight']:.2f} | error beside bf16 {error:.1e}{'' if right else ' WRONG'}"
        )
    count = torch.tensor([wrong], device="cuda")
    dist.all_reduce(count)
    if rank == 0:
        print("WRONG" if count.item() else "all right")
    dist.destroy_process_group()
    sys.exit(bool(count.item()))


if __name__ == "__main__":
    main()
