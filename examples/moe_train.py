"""Trains a small Llama of experts, tokens on all ranks and experts shared among them: mk.nn.MoE beside torch's operations.

    python examples/moe_train.py --device cpu                                  # one process, the reference world
    torchrun --nproc-per-node 2 examples/moe_train.py --device cpu             # two processes over gloo
    torchrun --nproc-per-node 2 examples/moe_train.py                          # a GPU each; one GPU is fine, too

Each rank has sequences of its own, and all of attention and router, whose gradients are summed; experts have those of all ranks' tokens. At every
step, from the same float32 weights, every gradient is compared with float32's, and so is that of the same model by bfloat16 torch. The expert ids of
the float32 run are imposed on all; their weights are each model's own. The verdict, its statistics and the control are tp_llama.py's.

With --shared a dense block of all tokens is added to what experts make; with --uneven ranks have unequally many sequences; with --fp8 experts are of
eight bits, forward and backward, and losses alone are judged.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mk
import mk.nn
from tp_llama import Norm, attention, compared, judge, same


class Experts(torch.nn.Module):
    """All experts, by torch, one by one; weights as transformers has them."""

    control = False

    def __init__(self, c, **how):
        super().__init__()
        make = lambda *shape: torch.nn.Parameter(torch.randn(*shape, **how) * shape[-1] ** -0.5)
        self.gate_up, self.down = make(c.experts, 2 * c.ffn, c.hidden), make(c.experts, c.hidden, c.ffn)

    def forward(self, x, ids, weights, shared=None):
        x, shape = x.flatten(0, 1), x.shape
        ids, weights = ids.flatten(0, 1), weights.flatten(0, 1)
        out = torch.zeros(x.shape, device=x.device)
        for e, (w, v) in enumerate(zip(self.gate_up, self.down)):
            token, slot = (ids == e).nonzero(as_tuple=True)
            gate, up = (x[token] @ w.t()).chunk(2, 1)
            # The control's is in float32, rounded once: a little more accurate.
            gated = (F.silu(gate.float()) * up.float()).to(x.dtype) if self.control else F.silu(gate) * up
            out = out.index_add(0, token, (gated @ v.t()).float() * weights[token, slot, None])
        y = out.to(x.dtype).view(shape)
        return y if shared is None else y + shared


class Control(Experts):
    control = True


class Layer(torch.nn.Module):
    def __init__(self, c, experts, **how):
        super().__init__()
        self.size, self.slots, self.experts = c.size, c.slots, experts
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False, **how)
        self.q, self.k, self.v = (linear(c.hidden, n * c.size) for n in (c.heads, c.kv_heads, c.kv_heads))
        self.out, self.router = linear(c.heads * c.size, c.hidden), linear(c.hidden, c.experts)
        self.wide, self.narrow = (linear(c.hidden, 2 * c.ffn), linear(c.ffn, c.hidden)) if c.shared else (None, None)
        # What the layer of experts is given beside tokens.
        self.more = {}
        self.before, self.between = Norm(c.hidden, **how), Norm(c.hidden, **how)

    def forward(self, x, ids):
        h = self.before(x)
        x = x + self.out(torch.stack([attention(self.q(s), self.k(s), self.v(s), self.size) for s in h]))
        h = self.between(x)
        scores = F.linear(h.float(), self.router.weight.float()).softmax(-1)
        if ids is None:
            ids = scores.topk(self.slots).indices
        weights = scores.gather(-1, ids)
        more = dict(self.more)
        if self.wide is not None:
            gate, up = self.wide(h).chunk(2, -1)
            more["shared"] = self.narrow(F.silu(gate) * up)
        return x + self.experts(h, ids, weights / weights.sum(-1, keepdim=True), **more), ids


class Model(torch.nn.Module):
    def __init__(self, c, experts, **how):
        super().__init__()
        self.embedding = torch.nn.Embedding(c.vocabulary, c.hidden, **how)
        self.layers = torch.nn.ModuleList(Layer(c, experts(), **how) for _ in range(c.layers))
        self.norm = Norm(c.hidden, **how)

    def forward(self, tokens, routes=None, checkpointed=False):
        """Logits, and the expert ids of each layer, which may be imposed."""
        x, found = self.embedding(tokens), []
        for i, layer in enumerate(self.layers):
            ids = None if routes is None else routes[i]
            x, ids = torch.utils.checkpoint.checkpoint(layer, x, ids, use_reentrant=False) if checkpointed else layer(x, ids)
            found.append(ids)
        return (self.norm(x) @ self.embedding.weight.t()).float(), found


@torch.no_grad()
def distribute(dense, ours, part):
    """The dense weights, of experts this rank's."""
    for name, weight in dense.named_parameters():
        if ".experts." not in name:
            ours.get_parameter(name).copy_(weight)
    for d, p in zip(dense.layers, ours.layers):
        p.experts.load(part(d.experts.gate_up), part(d.experts.down))


def gradients(model, part, sums=None):
    """By name, float32; of experts this rank's. ``sums`` adds up those of ranks that have their own tokens."""
    found = {}
    for i, layer in enumerate(model.layers):
        for name in ("q", "k", "v", "out", "router", *(("wide", "narrow") if layer.wide is not None else ())):
            g = getattr(layer, name).weight.grad.float()
            found[f"{i}.{name}"] = g if sums is None else sums(g)
        w, v = layer.experts.gate_up.grad.float(), layer.experts.down.grad.float()
        if sums is None:
            w, v = part(w), part(v)
        else:
            w, v = w.permute(0, 2, 3, 1).flatten(1, 2), v.transpose(1, 2)
        found |= {f"{i}.gate_up": w, f"{i}.down": v}
    return found


def main():
    parser = argparse.ArgumentParser(description="a small Llama of experts learns: mk.nn.MoE beside torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in (("tokens", 0), ("sequences", 0), ("hidden", 0), ("ffn", 0), ("layers", 0), ("heads", 8), ("kv-heads", 4), ("experts", 8),
                          ("slots", 2), ("vocabulary", 512), ("steps", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shared", action="store_true", help="a dense block of all tokens beside the experts")
    parser.add_argument("--uneven", action="store_true", help="the first rank has more sequences than the others")
    parser.add_argument("--mode", choices=("eager", "compiled", "checkpointed"), default="eager")
    parser.add_argument("--fp8", nargs="?", const="1x128", help="eight bits in the layers of experts; losses alone are judged, within 1.5 %%")
    c = parser.parse_args()
    small = c.device == "cpu"
    c.tokens, c.sequences, c.hidden, c.ffn, c.layers, c.steps = (given or (a if small else b) for given, a, b in (
        (c.tokens, 64, 512), (c.sequences, 4, 8), (c.hidden, 64, 1024), (c.ffn, 128 if c.fp8 else 96, 768), (c.layers, 3, 6), (c.steps, 10, 200)))
    c.size = c.hidden // c.heads
    several = "RANK" in os.environ
    if c.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if several:
        dist.init_process_group("gloo" if small else "cpu:gloo,cuda:nccl")
    world = mk.World.reference() if small else mk.World.from_torch() if several else mk.World.local(1)
    rank, ranks = world.ranks[0], world.size
    if c.sequences % ranks or c.experts % ranks:
        sys.exit(f"--sequences and --experts must be multiples of the {ranks} ranks")
    say = print if rank == 0 else lambda *_: None
    say(f"{world}: {c.layers} layers, hidden {c.hidden}, {c.experts} experts of {c.ffn}, {c.slots} each, {c.sequences} x {c.tokens} tokens, {c.mode}")

    torch.manual_seed(0)
    how = {"device": c.device, "dtype": torch.float32}
    half = {**how, "dtype": torch.bfloat16}
    master = Model(c, lambda: Experts(c, **how), **how)
    with torch.no_grad():
        master.embedding.weight.mul_(0.02)
    torchs, control = (Model(c, lambda: kind(c, **half), **half) for kind in (Experts, Control))
    ours = Model(c, lambda: mk.nn.MoE(c.hidden, c.ffn, c.experts, c.slots, world, fp8=c.fp8, **half), **half)
    if c.mode == "compiled":
        for layer in ours.layers:
            layer.experts.compile(fullgraph=c.fp8 is None, backend="inductor" if not small else "aot_eager")
    part = lambda t: t.chunk(ranks)[rank]
    # Of sequences the first rank has what the others leave, which is half of theirs.
    each = c.sequences // ranks
    counts = [c.sequences - (ranks - 1) * max(1, each // 2), *[max(1, each // 2)] * (ranks - 1)] if c.uneven else [each] * ranks
    mine = lambda t: t.split(counts)[rank]
    if c.uneven:
        for layer in ours.layers:
            layer.more = {"tokens": counts[0] * c.tokens}

    def sums(g):
        if several:
            dist.all_reduce(g)
        return g

    optimizer, losses, errors = torch.optim.AdamW(master.parameters(), lr=0.02 * c.hidden**-0.5), [], []
    data = torch.randint(c.vocabulary, (c.sequences, c.tokens + 1), generator=torch.Generator().manual_seed(1)).to(c.device)
    entropy = lambda logits, targets, **kw: F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **kw)
    for step in range(c.steps):
        text = data.roll(step, 1)
        tokens, targets = text[:, :-1], text[:, 1:]
        with torch.no_grad():
            for model in (torchs, control):
                for a, b in zip(model.parameters(), master.parameters()):
                    a.copy_(b)
        distribute(torchs, ours, part)
        for model in (master, torchs, control, ours):
            model.zero_grad()
        logits, routes = master(tokens)
        reference = entropy(logits, targets)
        reference.backward()
        theirs = entropy(torchs(tokens, routes)[0], targets)
        theirs.backward()
        entropy(control(tokens, routes)[0], targets).backward()
        logits, _ = ours(mine(tokens), [mine(ids).contiguous() for ids in routes], c.mode == "checkpointed")
        loss = entropy(logits, mine(targets), reduction="sum") / targets.numel()
        loss.backward()
        found = [gradients(ours, part, sums), *(gradients(m, part) for m in (torchs, control, master))]
        total, measured = compared(found, loss, several)
        errors.append(measured)
        a, b, _ = measured.max(1).values.tolist()
        losses.append((total, theirs.item(), reference.item()))
        if step % max(1, c.steps // 10) == 0 or step == c.steps - 1:
            say(f"step {step:3}: loss {total:.4f} (torch {theirs.item():.4f}), worst gradient error {a:.2e} (torch {b:.2e})")
        optimizer.step()
        if several:
            same(master)
    good = judge(errors, losses, list(found[-1]), say, c.fp8)
    if several:
        dist.destroy_process_group()
    sys.exit(not good)


if __name__ == "__main__":
    main()
