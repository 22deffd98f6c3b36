"""A layer of experts over ranks in one kernel, beside torch on all tokens and all experts:

    python3 examples/moe_layer.py                                      # 4 ranks that share one GPU
    torchrun --nproc-per-node 4 examples/moe_layer.py                  # a GPU for each rank
    torchrun --nproc-per-node 4 examples/moe_layer.py --device cpu     # CPU tensors and gloo, for trying it out

A router gives each token its experts and their weights. Tokens go to the ranks of their experts, through two products with a gated activation
between, and come back as weighted sums. The routing is another one in each call. A wrong result ends the program with status 1.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist

import mk

LAYER = """
fn moe(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
       w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}
"""
# Relative Frobenius error that bfloat16 explains.
RESULT = 6e-3


def routings(tokens, experts, slots, generator):
    """Experts and weights of each token: of a router's scores, of scores that favour some, and the same experts for all."""
    scores = torch.randn(tokens, experts, generator=generator)
    favoured = scores + 2.0 * (torch.arange(experts) < max(slots, experts // 8))
    for name, scores in (("uniform", scores), ("skewed", favoured), ("one", favoured[:1].expand(tokens, -1))):
        weights, ids = scores.softmax(1).topk(slots)
        yield name, ids.contiguous(), (weights / weights.sum(1, keepdim=True)).contiguous()


def dense(x, ids, gate, w1, w2):
    """The layer in float32, expert by expert."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for e in range(w1.shape[0]):
        token, slot = (ids == e).nonzero(as_tuple=True)
        rows = x[token].float()
        hidden = torch.einsum("th,hgi->tgi", rows, w1[e].float())
        hidden = torch.nn.functional.silu(hidden[:, 0]) * hidden[:, 1]
        out.index_add_(0, token, (hidden @ w2[e].float()) * gate[token, slot, None])
    return out


def main():
    parser = argparse.ArgumentParser(description="a layer of experts, judged beside torch's")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", type=int, default=256, help="of each rank [256]")
    parser.add_argument("--hidden", type=int, default=512, help="elements of a token [512]")
    parser.add_argument("--inner", type=int, default=256, help="elements between the products [256]")
    parser.add_argument("--experts", type=int, default=16, help="of all ranks, of which the last may have fewer [16]")
    parser.add_argument("--slots", type=int, default=2, help="experts of each token [2]")
    parser.add_argument("--ranks", type=int, default=4, help="that share a GPU, without torchrun [4]")
    parser.add_argument("--seed", type=int, default=0)
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
    ranks = world.size
    # As `shard(0)` cuts matrices: the last rank may have fewer experts, but each has one.
    if (ranks - 1) * -(-args.experts // ranks) >= args.experts:
        sys.exit(f"--experts: {args.experts} experts leave one of {ranks} ranks without any")

    generator = torch.Generator().manual_seed(args.seed)
    make = lambda *shape, scale=1.0: (torch.randn(*shape, generator=generator) * scale).bfloat16().to(device)
    tokens = args.tokens * ranks
    x = make(tokens, args.hidden)
    w1 = make(args.experts, args.hidden, 2, args.inner, scale=args.hidden**-0.5)
    w2 = make(args.experts, args.inner, args.hidden, scale=args.inner**-0.5)
    parts = lambda t: [part.contiguous() for part in t.chunk(ranks)]
    error = lambda got, want: ((got.float() - want).norm() / want.norm()).item()

    # Ranks may have different numbers of experts, so that no rank can tell how many there are.
    layer = mk.compile(LAYER, world, shapes={"w1": tuple(w1.shape)})
    wrong = False
    for name, ids, gate in routings(tokens, args.experts, args.slots, generator):
        whole = [x, ids.to(device), gate.to(device), w1, w2]
        want = parts(dense(*whole))
        with torch.no_grad():
            if len(world.ranks) > 1:
                # Ranks of one process: a list for each tensor.
                got = layer(*[parts(t) for t in whole])
                found = max(error(a, b) for a, b in zip(got, want))
            else:
                mine = world.ranks[0]
                found = error(layer(*[parts(t)[mine] for t in whole]), want[mine])
        wrong |= not found < RESULT
        verdict = "right" if found < RESULT else "WRONG"
        print(f"rank {world.ranks[0]} of {ranks}, {tokens} tokens on {device}, {name}: relative error {found:.1e}: {verdict}")
    if not alone:
        dist.destroy_process_group()
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
