"""`gather -> gemm` of eight bits beside that of bf16, and beside NCCL with `torch._scaled_mm`, one process per GPU:

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

_spec = importlib.util.spec_from_file_location("eight_bits", os.path.join(os.path.dirname(__file__), "__main__.py"))
alone = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(alone)
LIMIT, SETS, block_operands, operand, tile_errors = alone.LIMIT, alone.SETS, alone.block_operands, alone.operand, alone.tile_errors

SHAPES = [(8192, 8192, 8192), (8192, 4096, 4096), (16384, 8192, 8192), (4096, 4096, 4096)]
TEXT = "fn f(x: {t}[M, K]{a} @ shard(0), w: {t}[N, K]{b} @ shard(0)) {{ gather(x) -> gemm(w.t) }}"
KINDS = {"bf16": ("bf16", "", ""), "rows": ("e4m3", " scaled(1, K)", " scaled(1, K)"), "blocks": ("e4m3", " scaled(1, 128)", " scaled(128, 128)")}


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
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("cpu:gloo,cuda:nccl")
    world = mk.World.from_torch()
    rank, ranks = world.ranks[0], world.size
    flush, one = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), torch.zeros(1, device="cuda")
    wrong, lines = 0, []
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
        times = {name: [] for name in runs}
        for i in range(3 + args.rounds):
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
        us = dict(zip(runs, table.median(1).values.tolist()))
        m, k, n = shape
        sent = {"bf16": 2 * m * k, "rows": m * k + 4 * m, "blocks": m * k + 4 * m * -(-k // 128)}
        lines.append(
            f"{m}x{k}x{n}: us " + " ".join(f"{name} {t:.0f}" for name, t in us.items())
            + f" | bf16 / fp8 {us['bf16'] / us['rows']:.2f} (rows) {us['bf16'] / us['blocks']:.2f} (blocks) | nccl / rows {us['nccl'] / us['rows']:.2f}"
            + " | bytes of bf16 " + " ".join(f"{name} {b / sent['bf16']:.3f}" for name, b in sent.items() if name != "bf16")
            + " | worst tile " + ", ".join(verdicts)
        )
    count = torch.tensor([wrong], device="cuda")
    dist.all_reduce(count)
    if rank == 0:
        print("\n".join(lines))
        print("WRONG" if count.item() else "all right")
    dist.destroy_process_group()
    sys.exit(bool(count.item()))


if __name__ == "__main__":
    main()
