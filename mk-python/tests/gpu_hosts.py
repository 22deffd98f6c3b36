"""Worlds of several hosts from Python: results and gradients of every rank beside torch's.

On two machines of N GPUs each, with one token on both (docs/deploy.md):
    MK_TOKEN_FILE=~/.mk-token torchrun --nnodes 2 --nproc-per-node N --rdzv-backend c10d --rdzv-endpoint A:29500 mk-python/tests/gpu_hosts.py
On one GPU, as if it were two hosts:
    MK_NODES=2 MK_SHARE_GPU=1 torchrun --nproc-per-node 2 mk-python/tests/gpu_hosts.py
Without GPUs, by torch's operations, behind the options: --cpu
"""

import os
import sys

import torch
import torch.distributed as dist

import mk

LAUNCHES = 10
GATHER = "gather(a) -> gemm(b)"
MLP = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter"
RING = """fn attend(q: bf16[B, S, H, D] @ zigzag(1), k: bf16[B, S, G, D] @ zigzag(1), v: bf16[B, S, G, D] @ zigzag(1)) {
    ring(k, v) -> attention(q, causal)
}"""
LAYER = """fn moe(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}"""


def error(got, wanted):
    got, wanted = got.float(), wanted.float()
    return ((got - wanted).norm() / wanted.norm()).item()


def attention(q, k, v):
    q, k, v = (x.transpose(1, 2).repeat_interleave(q.shape[2] // x.shape[2], 1) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def layer(x, ids, gate, w1, w2):
    out = torch.zeros_like(x)
    for e in range(w1.shape[0]):
        token, slot = (ids == e).nonzero(as_tuple=True)
        hidden = torch.einsum("th,hgi->tgi", x[token], w1[e])
        hidden = torch.nn.functional.silu(hidden[:, 0]) * hidden[:, 1]
        out = out.index_add(0, token, (hidden @ w2[e]) * gate[token, slot, None])
    return out


def cases(rank, size, device):
    """Name, text, whole tensors, this rank's part of each (None: all of it), and what the whole of them gives."""
    random = lambda *shape, scale=0.125: (torch.randn(shape) * scale).to(torch.bfloat16).to(device)
    part = lambda dim: lambda x: x.chunk(size, dim)[rank]

    def zigzag(x):
        halves = x.chunk(2 * size, 1)
        return torch.cat([halves[rank], halves[2 * size - 1 - rank]], 1)

    m, k, n = 168 * size, 64 * size, 192
    a, b = random(m, k), random(k, n)
    yield GATHER, [a, b], [part(0), None], lambda a, b: a @ b, None
    yield "gemm(a, b) -> reduce_scatter", [a, b], [part(1), part(0)], lambda a, b: a @ b, part(0)
    yield "gemm(a, b) -> all_reduce", [a, b], [part(1), part(0)], lambda a, b: a @ b, None
    mlp = lambda x, w1, w2: torch.nn.functional.gelu(x @ w1) @ w2
    yield MLP, [a, random(k, 48 * size), random(48 * size, k)], [part(0), part(1), part(0)], mlp, part(0)
    tokens = 128 * size
    q, keys, values = random(1, tokens, 4, 64, scale=1), random(1, tokens, 2, 64, scale=1), random(1, tokens, 2, 64, scale=1)
    yield RING, [q, keys, values], [zigzag] * 3, attention, zigzag
    experts = 4 * size
    gate, ids = torch.randn(24 * size, experts).softmax(1).topk(2)
    tensors = [random(24 * size, 64), ids.to(device), gate.to(device), random(experts, 64, 2, 32), random(experts, 32, 64)]
    yield LAYER, tensors, [part(0)] * 5, layer, part(0)


def main():
    cpu = "--cpu" in sys.argv[1:]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if not cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    world = mk.World.reference() if cpu else mk.World.from_torch()
    torch.manual_seed(7)
    most = 0.0
    # All ranks make all of it, and take their parts.
    for text, tensors, parts, dense, result in cases(rank, size, "cpu" if cpu else "cuda"):
        name = text.split("{")[-1].strip(" \n}")
        wide = [x.float().requires_grad_() if x.is_floating_point() else x for x in tensors]
        whole = dense(*wide)
        d = torch.randn_like(whole).to(torch.bfloat16)
        differentiable = [i for i, x in enumerate(tensors) if x.is_floating_point()]
        wants = torch.autograd.grad(whole, [wide[i] for i in differentiable], d.float())
        mine = [x.contiguous() if cut is None else cut(x).contiguous() for x, cut in zip(tensors, parts)]
        mine = [x.requires_grad_() if x.is_floating_point() else x for x in mine]
        own = lambda x, cut: x if cut is None else cut(x)
        f = mk.compile(text, world)
        worst, slopes = 0.0, 0.0
        for _ in range(LAUNCHES):
            y = f(*mine)
            worst = max(worst, error(y, own(whole.detach(), result)))
            # Slopes of rows that are gathered are added, and each says its share; those of one sum are the same.
            given = d / size if text == GATHER else own(d, result).contiguous()
            got = torch.autograd.grad(y, [mine[i] for i in differentiable], given)
            for i, g, want in zip(differentiable, got, wants):
                # Of an operand that every rank has whole, a rank has the slopes of its own part.
                if parts[i] is not None:
                    slopes = max(slopes, error(g, own(want, parts[i])))
        print(f"rank {rank}: {name}: {worst:.1e}, gradients {slopes:.1e}", flush=True)
        assert worst < 6e-3 and slopes < 2e-2, text
        most = max(most, worst, slopes)
    del f, world
    dist.barrier()
    if rank == 0:
        print(f"PASS: {size} ranks, worst error {most:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
