"""Worlds of several hosts from Python: every rank's result beside torch's, and what is refused.

On two machines of N GPUs each, with libfabric and one token on both (docs/deploy.md):
    MK_TOKEN_FILE=~/.mk-token torchrun --nnodes 2 --nproc-per-node N --rdzv-backend c10d --rdzv-endpoint A:29500 mk-python/tests/gpu_hosts.py
On one GPU, as if it were two hosts:
    MK_NODES=2 MK_SHARE_GPU=1 torchrun --nproc-per-node 2 mk-python/tests/gpu_hosts.py
"""

import os
import sys

import torch
import torch.distributed as dist

import mk


def error(got, wanted):
    got, wanted = got.float(), wanted.float()
    return ((got - wanted).norm() / wanted.norm()).item()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    world = mk.World.from_torch()
    torch.manual_seed(7)
    m, k, n = 128 * size + 40 * size, 64 * size, 192
    # All ranks make all of it, and take their parts.
    a = (torch.randn(m, k) / 8).to(torch.bfloat16).cuda()
    b = (torch.randn(k, n) / 8).to(torch.bfloat16).cuda()
    whole = a.float() @ b.float()
    rows, depth = slice(rank * m // size, (rank + 1) * m // size), slice(rank * k // size, (rank + 1) * k // size)
    cases = {
        "gather(a) -> gemm(b)": (a[rows].contiguous(), b, whole),
        "gemm(a, b) -> reduce_scatter": (a[:, depth].contiguous(), b[depth].contiguous(), whole[rows]),
        "gemm(a, b) -> all_reduce": (a[:, depth].contiguous(), b[depth].contiguous(), whole),
    }
    worst = 0.0
    for text, (x, w, wanted) in cases.items():
        f = mk.compile(text, world)
        for launch in range(20):
            got = f(x, w)
            torch.cuda.synchronize()
            worst = max(worst, error(got, wanted))
        print(f"rank {rank}: {text}: {worst:.2e}", flush=True)
        assert worst < 5e-3, text
    del f, world
    dist.barrier()
    if rank == 0:
        print(f"PASS: {size} ranks, worst error {worst:.2e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
