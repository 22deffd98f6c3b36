"""Attention over a sequence that ranks share, with its backward, beside torch's on the whole sequence:

    python3 examples/ring_attention.py                                      # 4 ranks that share one GPU
    torchrun --nproc-per-node 4 examples/ring_attention.py                  # a GPU for each rank
    torchrun --nproc-per-node 4 examples/ring_attention.py --device cpu     # CPU tensors and gloo, for trying it out

Each rank has two parts of the sequence, such that a causal mask gives every rank as much to do (`zigzag`). Keys and values of all ranks arrive
while a rank attends to those that it has. A wrong result ends the program with status 1.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

import mk

ATTENTION = """
fn attend(q: bf16[B, S, H, D] @ zigzag(1), k: bf16[B, S, G, D] @ zigzag(1), v: bf16[B, S, G, D] @ zigzag(1)) {
    ring(k, v) -> attention(q, causal)
}
"""
# Relative Frobenius errors that bfloat16 explains.
RESULT, GRADIENT = 4e-3, 1e-2


def parts(x, ranks):
    """What each rank holds of a whole tensor: of twice as many parts, one from the front and one from the back."""
    halves = x.chunk(2 * ranks, 1)
    return [torch.cat([halves[r], halves[2 * ranks - 1 - r]], 1) for r in range(ranks)]


def error(got, want):
    return ((got.float() - want.float()).norm() / want.float().norm()).item()


def main():
    parser = argparse.ArgumentParser(description="ring attention, judged beside torch's")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048, help="of the whole sequence, a multiple of twice the ranks [2048]")
    parser.add_argument("--heads", type=int, default=8, help="of queries [8]")
    parser.add_argument("--groups", type=int, default=2, help="heads of keys and values [2]")
    parser.add_argument("--depth", type=int, default=64, choices=[64, 128], help="elements of a head [64]")
    parser.add_argument("--ranks", type=int, default=4, help="that share a GPU, without torchrun [4]")
    args = parser.parse_args()
    alone = "LOCAL_RANK" not in os.environ
    device = torch.device(args.device)
    if not alone:
        if args.device == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.device == "cpu":
        world = mk.World.reference()
    else:
        world = mk.World.local(args.ranks, gpu=0) if alone else mk.World.from_torch()
    if args.tokens % (2 * world.size):
        sys.exit(f"--tokens must be a multiple of {2 * world.size}, twice the ranks")

    generator = torch.Generator().manual_seed(0)
    make = lambda heads: torch.randn(args.batch, args.tokens, heads, args.depth, generator=generator).bfloat16().to(device)
    whole, d = [make(args.heads), make(args.groups), make(args.groups)], make(args.heads)
    dense = [x.float().requires_grad_() for x in whole]
    heads = [x.transpose(1, 2).repeat_interleave(args.heads // x.shape[2], 1) for x in dense]
    want = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
    wants = torch.autograd.grad(want, dense, d.float())

    attend = mk.compile(ATTENTION, world)
    worst = {}
    if len(world.ranks) > 1:
        # Ranks of one process: a list for each tensor. Such calls are not differentiated.
        o = attend(*[parts(x, world.size) for x in whole])
        worst["o"] = max(error(a, b) for a, b in zip(o, parts(want, world.size)))
    else:
        mine = lambda x: parts(x, world.size)[world.ranks[0]].contiguous()
        given = [mine(x).requires_grad_() for x in whole]
        o = attend(*given)
        worst["o"] = error(o, mine(want))
        for name, got, all_of_it in zip(("dq", "dk", "dv"), torch.autograd.grad(o, given, mine(d)), wants):
            worst[name] = error(got, mine(all_of_it))
    said = ", ".join(f"{name} {e:.1e}" for name, e in worst.items())
    right = all(e < (RESULT if name == "o" else GRADIENT) for name, e in worst.items())
    print(f"rank {world.ranks[0]} of {world.size}, {args.tokens} tokens on {device}: relative errors {said}: {'right' if right else 'WRONG'}")
    if not alone:
        dist.destroy_process_group()
    if not right:
        sys.exit(1)


if __name__ == "__main__":
    main()
