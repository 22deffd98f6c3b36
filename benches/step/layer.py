"""A whole layer of a Llama, tensor-parallel with sequence parallelism: norms, grouped queries, rotary positions, a gated block."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mk
import mk.nn

from block import Step, collectives

# Hidden, ffn, heads of queries, of keys and values.
LAYERS = {"llama-3-8b": (4096, 14336, 32, 8), "llama-3-70b": (8192, 28672, 64, 8)}
SIZE = 128
HEADS = "fn heads(x: bf16[M, K] @ shard(0), w: bf16[N, K] @ shard(0)) { gather(x) -> gemm(w.t) }"
ATTENTION = """
fn attend(q: bf16[B, S, H, D] @ shard(2), k: bf16[B, S, G, D] @ shard(2), v: bf16[B, S, G, D] @ shard(2)) { attention(q, k, v, causal) }
"""


def norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class Layer:
    """Tensors of this rank, as torch.nn.Linear has them, and who computes on them."""

    NAMES = ("before", "q", "k", "v", "out", "between", "gate", "up", "down")

    def __init__(self, random, name, tokens, sets):
        hidden, ffn, heads, groups = LAYERS[name]
        self.ranks, self.text = dist.get_world_size(), f"{name}, {tokens} tokens"
        r = self.ranks
        self.x = [random(tokens // r, hidden, seed=10 + s) for s in range(sets)]
        self.dy = [random(tokens // r, hidden, seed=20 + s) for s in range(sets)]
        shapes = {"q": (heads * SIZE // r, hidden), "k": (groups * SIZE // r, hidden), "v": (groups * SIZE // r, hidden),
                  "out": (hidden, heads * SIZE // r), "gate": (ffn // r, hidden), "up": (ffn // r, hidden), "down": (hidden, ffn // r)}
        scale = {"out": (heads * SIZE) ** -0.5, "down": ffn**-0.5}
        self.weights = {n: random(*s, seed=30 + i, scale=scale.get(n, hidden**-0.5)) for i, (n, s) in enumerate(shapes.items())}
        for n in ("before", "between"):
            # Whole on every rank, and the same.
            self.weights[n] = torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
        angles = torch.arange(tokens, device="cuda")[:, None] * 500000.0 ** (-torch.arange(0, SIZE, 2, device="cuda") / SIZE)
        self.cos, self.sin = angles.cos()[:, None], angles.sin()[:, None]
        self.cuts = [self.weights[n].shape[0] for n in "qkv"]
        self.load()

    def load(self):
        """Runs what torch computes for all: code that it loads, and stacks that it grows, are nobody's workspace."""
        tokens = self.ranks * self.x[0].shape[0]
        x, w = self.x[0].clone().requires_grad_(), self.weights["before"].clone().requires_grad_()
        y = norm(x, w)
        (x + y).backward(y.detach())
        heads = self.x[0].new_ones(tokens, sum(self.cuts)).requires_grad_()
        q, k, v = self.split(*heads.split(self.cuts, 1))
        torch.autograd.grad([q, k, v], heads, [q.detach(), k.detach(), v.detach()])

    def contestants(self, world, mode):
        yield "mk", lambda: self.ours("mk", world, mode, False)
        yield "eager", lambda: self.torch("eager", mode, False)
        yield "async-TP", lambda: self.torch("async-TP", mode, True)
        yield "mk, compiled", lambda: self.ours("mk, compiled", world, mode, True)

    def parameters(self, names):
        return {n: torch.nn.Parameter(self.weights[n].clone()) for n in names}

    def heads(self, dtype=torch.bfloat16):
        """One weight of queries, keys and values, as Megatron has it: one GEMM."""
        return torch.nn.Parameter(torch.cat([self.weights[n] for n in "qkv"]).to(dtype))

    def split(self, *tensors):
        """Heads of queries and keys, turned, and of values: ``[1, tokens, heads, size]``."""
        q, k, v = (t.unflatten(1, (-1, SIZE)) for t in tensors)
        return rotate(q, self.cos, self.sin)[None], rotate(k, self.cos, self.sin)[None], v[None]

    def ours(self, name, world, mode, compiled):
        heads, attend = mk.compile(HEADS, world), mk.compile(ATTENTION, world)
        mlp = mk.nn.GatedMLP(self.weights["gate"].shape[1], self.weights["gate"].shape[0] * self.ranks, world, device="cuda")
        out = mk.nn.RowParallelLinear(self.weights["out"].shape[1] * self.ranks, self.weights["out"].shape[0], world, bias=False, device="cuda")
        mlp.load(*(self.weights[n] for n in ("gate", "up", "down")))
        with torch.no_grad():
            out.weight.copy_(self.weights["out"])
        w = self.parameters(("before", "between"))
        w["heads"] = self.heads()

        def forward(x):
            q, k, v = self.split(*heads(norm(x, w["before"]), w["heads"]).split(self.cuts, 1))
            x = x + out(attend(q, k, v.contiguous()).flatten(2)[0])
            return x + mlp(norm(x, w["between"]))

        def gradients():
            both = mlp.gate_up.grad
            mine = {n: p.grad for n, p in w.items()} | dict(zip("qkv", w["heads"].grad.split(self.cuts)))
            mine |= {"out": out.weight.grad, "gate": both[:, 0].t(), "up": both[:, 1].t(), "down": mlp.down.grad.t()}
            return [mine[n] for n in self.NAMES]

        step = torch.compile(forward, dynamic=False) if compiled else forward
        functions = [heads, attend, out.function, mlp.function]
        return Step(name, step, [*w.values(), out.weight, mlp.gate_up, mlp.down], gradients, mode, functions=functions)

    def torch(self, name, mode, compiled, dtype=torch.bfloat16):
        w = {n: torch.nn.Parameter(t.to(dtype, copy=True)) for n, t in self.weights.items() if n not in ("q", "k", "v", "gate", "up")}
        w["heads"] = self.heads(dtype)
        w["both"] = torch.nn.Parameter(torch.cat([self.weights[n] for n in ("gate", "up")]).to(dtype))
        gather, scatter = collectives(compiled)

        def forward(x):
            q, k, v = self.split(*F.linear(gather(norm(x, w["before"])), w["heads"]).split(self.cuts, 1))
            o = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True)
            x = x + scatter(F.linear(o.transpose(1, 2).flatten(2)[0], w["out"]))
            g, u = F.linear(gather(norm(x, w["between"])), w["both"]).chunk(2, 1)
            return x + scatter(F.linear(F.silu(g) * u, w["down"]))

        def gradients():
            mine = {n: p.grad for n, p in w.items()}
            mine |= dict(zip("qkv", w["heads"].grad.split(self.cuts))) | dict(zip(("gate", "up"), w["both"].grad.chunk(2)))
            return [mine[n] for n in self.NAMES]

        return Step(name, torch.compile(forward, dynamic=False) if compiled else forward, list(w.values()), gradients, mode)

    def truth(self, mode):
        """Gradients by the first set, in float32; attention by torch's kernel without the whole table of scores."""
        step = self.torch("float32", "plain", False, torch.float32)
        x = self.x[0].float().requires_grad_()
        step(x, self.dy[0].float())
        return [x.grad, *step.gradients()]

    def gemms(self, library, slowest, flush, mode):
        return None, {}
