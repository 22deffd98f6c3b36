"""Experts whose ranks bring their own numbers of tokens, beside the same tokens filled up, and with a capacity: ``torchrun --nproc-per-node N
mk-python/tests/gpu_own_rows.py``, with ``MK_SHARE_GPU=1`` on one GPU. Needs torch.

A rank that fails ends the run with a traceback and a status other than 0.
"""

import os
import unittest

import torch
import torch.distributed as dist

import mk
import mk.nn
from test_torch import capped

HIDDEN, FFN, EXPERTS, TOP_K, MOST = 256, 192, 16, 4, 300


def filled(t, value=0):
    return torch.nn.functional.pad(t.detach(), (0, 0, 0, MOST - len(t)), value=value)


def step(layer, inputs, ids, d, tokens=None):
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = layer(inputs[0], ids, inputs[1], shared=inputs[2], tokens=tokens)
    return [y.detach(), *torch.autograd.grad(y, [*inputs, layer.gate_up, layer.down], d)]


def main():
    share = os.environ.get("MK_SHARE_GPU") == "1"
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0 if share else int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    world = mk.World.from_torch()
    layer = mk.nn.MoE(HIDDEN, FFN, EXPERTS, TOP_K, world, device="cuda")
    counts = [[MOST] * ranks, [0, 7, 130, 4] * ranks, [1] + [0] * ranks, [MOST, 0] * ranks, [(37 * r + 11) % MOST for r in range(ranks)]]
    rows = []
    for turn, of_ranks in enumerate(counts):
        n, g = of_ranks[rank], torch.Generator(device="cuda").manual_seed(100 * turn + rank)
        drawn = lambda *shape: torch.randn(*shape, generator=g, device="cuda")
        x, s, d = (drawn(n, HIDDEN).bfloat16() for _ in range(3))
        weights, ids = torch.rand(n, EXPERTS, generator=g, device="cuda").topk(TOP_K)
        own = step(layer, (x, weights, s), ids, d, tokens=MOST)
        whole = step(layer, (filled(x), filled(weights), filled(s)), filled(ids, -1), filled(d))
        torch.cuda.synchronize()
        for name, a, b in zip(("y", "x", "weights", "shared", "gate_up", "down"), own, whole):
            b = b[:n] if name not in ("gate_up", "down") else b
            assert a.shape == b.shape and torch.equal(a, b), f"rank {rank}, turn {turn}: {name} differs by {(a.float() - b.float()).abs().max()}"
        rows.append(n)
    # A graph has the number of rows that it was captured with, and other tokens in each replay.
    drops = mk.nn.MoE(HIDDEN, FFN, EXPERTS, TOP_K, world, capacity=0.5, device="cuda")
    for layer, n in ((layer, rows[1]), (drops, MOST)):
        x, s = (torch.randn(n, HIDDEN, device="cuda").bfloat16() for _ in range(2))
        weights, ids = torch.rand(n, EXPERTS, device="cuda").topk(TOP_K)
        with torch.no_grad():
            call = lambda: (layer(x, ids, weights, shared=s, tokens=MOST), layer.dropped)
            call()
            torch.cuda.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = call()
            for _ in range(20):
                x.normal_()
                ids.copy_(torch.rand(n, EXPERTS, device="cuda").topk(TOP_K).indices)
                graph.replay()
                torch.cuda.synchronize()
                kept = [t.clone() for t in made if t is not None]
                dist.barrier()
                same = [torch.equal(a, b) for a, b in zip(kept, call())]
                assert all(same), f"rank {rank}: a replay differs: {same}"
                torch.cuda.synchronize()
                dist.barrier()
    every = [None] * ranks
    dist.all_gather_object(every, layer.dropped.item())
    assert sum(every) > 0 or ranks == 1, every
    capped(unittest.TestCase(), rank, ranks, world, "cuda")
    said = [None] * ranks
    dist.all_gather_object(said, rows)
    if rank == 0:
        for turn, of_ranks in enumerate(zip(*said)):
            print(f"tokens {list(of_ranks)}: results and gradients as of {MOST} each")
        print(f"dropped on each rank: {every}")
        print("PASS: own rows, capacities, 20 replays of each")


main()
