"""Bytes that four ranks on one GPU read for few gathered rows, beside the bytes of their operands: B is read once by each.

    ncu --replay-mode app-range --metrics dram__bytes_read.sum python3 mk-python/tests/gpu_bytes.py

Kernels of ranks wait for each other, so that the profiler must not run them one by one: it measures the range of one launch.
"""

import torch

import mk

RANKS, ROWS, K, COLUMNS = 4, 128, 8128, 8064


def main():
    world = mk.World.local(RANKS, gpu=0)
    random = lambda *shape: torch.randn(*shape, device="cuda").bfloat16()
    a, b = [random(ROWS // RANKS, K) for _ in range(RANKS)], [random(K, COLUMNS) for _ in range(RANKS)]
    outs = [torch.empty(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16) for _ in range(RANKS)]
    over = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    f = mk.compile("gather(a) -> gemm(b)", world)
    for i in range(3):
        f(a, b, out=outs)
    torch.cuda.synchronize()
    over.fill_(1)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    f(a, b, out=outs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    f.check()
    whole = torch.cat(a).float()
    for mine, out in zip(b, outs):
        error = (out.float() - whole @ mine.float()).norm() / out.float().norm()
        assert error < 5e-3, error
    print(f"operands B of {RANKS} ranks: {RANKS * 2 * K * COLUMNS / 1e6:.0f} MB; dram__bytes_read.sum is at most 1.1 times as much", flush=True)
    print(f.plans[-1].settings)
    f.close()


if __name__ == "__main__":
    main()
