"""A tensor-parallel MLP block, forward, as one kernel per GPU, against NCCL and cuBLAS:

    torchrun --nproc-per-node 4 examples/tp_mlp.py

Activations are sharded by rows on both sides (sequence parallelism), the first weight by columns, the second by rows.
Results are compared with an fp32 reference on rows of every 128-row block, tile by tile, before anything is timed; a
wrong one ends the program with status 1.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mk

MLP = """
pub fn mlp(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
    gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter
}
"""
# Relative Frobenius errors that bfloat16 explains; a tile of garbage has 1.
WHOLE, TILE = 1e-2, 3e-2
BLOCK, ROWS_OF_BLOCK = 128, 4
SETS, CALLS, SAMPLES = 3, 8, 15


def main():
    parser = argparse.ArgumentParser(description="tensor-parallel MLP: mk against NCCL and cuBLAS")
    parser.add_argument("--tokens", type=int, default=8192, help="rows of x over all ranks [8192]")
    parser.add_argument("--hidden", type=int, default=8192, help="columns of x [8192]")
    parser.add_argument("--ffn", type=int, default=28672, help="columns of the first weight over all ranks [28672]")
    args = parser.parse_args()

    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("nccl", device_id=gpu)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if args.tokens % ranks or args.ffn % ranks:
        sys.exit(f"--tokens and --ffn must be multiples of the {ranks} ranks")
    say = print if rank == 0 else lambda *_: None

    block = Block(args, rank, ranks)
    say(f"{torch.cuda.get_device_name()} x {ranks}, {args.tokens} tokens, hidden {args.hidden}, ffn {args.ffn}, bf16")

    begin = time.perf_counter()
    mlp = mk.compile(MLP, mk.World.from_torch())
    plan = mlp.bind(dims={"M": args.tokens, "K": args.hidden, "F": args.ffn})
    say(f"bound in {time.perf_counter() - begin:.2f} s: {plan.roles}, {plan.symmetric_bytes >> 20} MiB of workspace")
    say(plan.proof)

    out = torch.empty_like(block.x[0])
    fused = lambda i: mlp(block.x[i % SETS], block.w1, block.w2, out=out)
    peer = lambda i: block.nccl_and_cublas(i % SETS)

    right = True
    for i in range(SETS):
        out.fill_(float("nan"))
        fused(i)
        right &= block.judge(say, f"mk, launch {i + 1}", i, out)
    right &= block.judge(say, "NCCL + cuBLAS", 0, peer(0))

    # One launch, captured and replayed with other inputs in the same place.
    graph, static = torch.cuda.CUDAGraph(), block.x[0].clone()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.graph(graph):
        mlp(static, block.w1, block.w2, out=out)
    for i in range(SETS):
        static.copy_(block.x[i])
        out.fill_(float("nan"))
        graph.replay()
        right &= block.judge(say, f"mk, replay {i + 1}", i, out)
    torch.cuda.synchronize()
    mlp.check()
    if not right:
        say("FAIL: a result is wrong")
        dist.destroy_process_group()
        sys.exit(1)

    times = interleaved({"mk": fused, "mk, graph": lambda _: graph.replay(), "NCCL + cuBLAS": peer})
    flop = 4 * args.tokens * args.hidden * args.ffn / ranks
    for name, (gpu, host) in times.items():
        say(f"{name:14} {gpu:8.3f} ms  {flop / gpu / 1e9:6.0f} TFLOP/s a GPU, host {host:6.1f} us a call")
    say(f"NCCL + cuBLAS / mk = {times['NCCL + cuBLAS'][0] / times['mk'][0]:.2f}")
    say("PASS")
    mlp.synchronize()
    dist.barrier()
    del graph
    mlp.close()
    dist.destroy_process_group()


class Block:
    """Weights and inputs of one rank, the unfused block, and the reference."""

    def __init__(self, args, rank, ranks):
        self.rank, self.ranks, self.tokens = rank, ranks, args.tokens
        g = torch.Generator(device="cuda").manual_seed(rank)
        make = lambda m, n, scale: (torch.randn(m, n, generator=g, device="cuda") * scale).bfloat16()
        self.x = [make(args.tokens // ranks, args.hidden, 1.0) for _ in range(SETS)]
        self.w1 = make(args.hidden, args.ffn // ranks, args.hidden**-0.5)
        self.w2 = make(args.ffn // ranks, args.hidden, args.ffn**-0.5)
        self.gathered = torch.empty(args.tokens, args.hidden, dtype=torch.bfloat16, device="cuda")
        self.y = torch.empty_like(self.x[0])

    def nccl_and_cublas(self, i):
        dist.all_gather_into_tensor(self.gathered, self.x[i])
        part = F.gelu(self.gathered @ self.w1) @ self.w2
        dist.reduce_scatter_tensor(self.y, part)
        return self.y

    def judge(self, say, name, i, y):
        """Compares rows of every block of 128 with fp32, over the whole and over every block of 128 columns."""
        dist.all_gather_into_tensor(self.gathered, self.x[i])
        local = self.tokens // self.ranks
        first = torch.arange(0, local, BLOCK, device="cuda")
        step = torch.arange(ROWS_OF_BLOCK, device="cuda") * (BLOCK // ROWS_OF_BLOCK) + 17
        rows = (first[:, None] + step).flatten().clamp(max=local - 1)
        all_rows = torch.cat([rows + r * local for r in range(self.ranks)])
        h = F.gelu(self.gathered[all_rows].float() @ self.w1.float()).bfloat16()
        want = h.float() @ self.w2.float()
        dist.all_reduce(want)
        want = want.view(self.ranks, len(rows), -1)[self.rank]
        wrong = (y[rows].float() - want).square()
        whole = (wrong.sum() / want.square().sum()).sqrt()

        def tiles(t):
            t = F.pad(t, (0, -t.shape[1] % BLOCK))
            return t.view(len(first), ROWS_OF_BLOCK, -1, BLOCK).sum((1, 3))

        tile = (tiles(wrong) / tiles(want.square())).sqrt().max()
        errors = torch.stack([whole, tile]).nan_to_num(nan=float("inf"))
        dist.all_reduce(errors, dist.ReduceOp.MAX)
        whole, tile = errors.tolist()
        say(f"{name:14} error {whole:.2e}, worst tile {tile:.2e}")
        return whole < WHOLE and tile < TILE


def interleaved(calls):
    """Median over samples of the slowest rank's time, in ms, and of the host's time, in us, of one call.

    A sample is some calls one after the other. The GPU is kept busy before it, so that the host is ahead of it.
    """
    gpu, host = {name: [] for name in calls}, {name: [] for name in calls}
    for sample in range(SAMPLES + 2):
        for name, call in calls.items():
            torch.cuda.synchronize()
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(4_000_000)
            start.record()
            begin = time.perf_counter()
            for i in range(CALLS):
                call(i)
            enqueued = time.perf_counter() - begin
            end.record()
            torch.cuda.synchronize()
            slowest = torch.tensor([start.elapsed_time(end) / CALLS], device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if sample >= 2:  # the first ones warm up
                gpu[name].append(slowest.item())
                host[name].append(1e6 * enqueued / CALLS)
    return {name: (statistics.median(gpu[name]), statistics.median(host[name])) for name in calls}


if __name__ == "__main__":
    main()
