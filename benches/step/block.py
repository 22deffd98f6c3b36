"""A gated block by mk, by torch, and as its GEMMs alone: contestants of a training step."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import lt
import mk.nn

# Micro-batches of a step that adds them up in float32.
MICRO = 4


def all_gather(x):
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def reduce_scatter(x):
    part = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(part, x.contiguous())
    return part


class Gather(torch.autograd.Function):
    """What eager code of tensor parallelism has: NCCL's collectives, each the other's backward."""

    @staticmethod
    def forward(ctx, x):
        return all_gather(x)

    @staticmethod
    def backward(ctx, d):
        return reduce_scatter(d)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return reduce_scatter(x)

    @staticmethod
    def backward(ctx, d):
        return all_gather(d)


def collectives(compiled):
    """``gather`` and ``scatter``. Functional ones are what the compiler fuses; eager they cost the host more than NCCL's own calls."""
    if not compiled:
        return Gather.apply, Scatter.apply
    group = dist.group.WORLD
    return (lambda x: funcol.all_gather_tensor_autograd(x, 0, group)), (lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group))


class Step:
    """A contestant: parameters, and a function of this rank's tokens, forward and backward."""

    def __init__(self, name, forward, parameters, gradients, mode="plain", adds=False, functions=()):
        self.name, self.forward, self.parameters, self.mode, self.functions = name, forward, parameters, mode, functions
        # Converts the gradients of the packed parameters to the layout of torch.nn.Linear.
        self.gradients = gradients
        # Whether the backward adds to main gradients by itself.
        self._adds, self.graph = adds, None
        if mode == "checkpointed":
            self.forward = lambda x: checkpoint(forward, x, use_reentrant=False)
        if mode == "micro":
            for p in parameters:
                p.main_grad = torch.zeros(p.shape, device=p.device)

    def plans(self):
        """Plans of mk's kernels that ran last, of forward and backward."""
        return [plan for function in self.functions for native in function._all() for plan in native.plans[-1:]]

    def gradient(self, p):
        return p.main_grad if self.mode == "micro" else p.grad

    def __call__(self, x, dy):
        if self.graph is not None:
            return self.graph.replay()
        if self.mode == "micro":
            return self._micro(x, dy)
        for tensor in [x, *self.parameters]:
            tensor.grad = None
        self.forward(x).backward(dy)

    def _micro(self, x, dy):
        for p in self.parameters:
            p.main_grad.zero_()
        for _ in range(MICRO):
            x.grad = None
            self.forward(x).backward(dy)
            for p in [] if self._adds else self.parameters:
                p.main_grad.add_(p.grad)
                p.grad = None

    def capture(self, x, dy):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self(x, dy)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self(x, dy)
        self.graph = graph


class Gated:
    """Tokens of all ranks, hidden and ffn of all ranks: tensors of this rank and who computes on them."""

    def __init__(self, random, tokens, hidden, ffn, sets):
        self.ranks = dist.get_world_size()
        self.x = [random(tokens // self.ranks, hidden, seed=10 + s) for s in range(sets)]
        self.dy = [random(tokens // self.ranks, hidden, seed=20 + s) for s in range(sets)]
        self.gate, self.up = (random(ffn // self.ranks, hidden, seed=s, scale=hidden**-0.5) for s in (3, 4))
        self.down = random(hidden, ffn // self.ranks, seed=5, scale=ffn**-0.5)
        self.text = f"{tokens}x{hidden}x{ffn}"

    def contestants(self, world, mode):
        yield "mk", lambda: self.ours(world, mode)
        yield "eager", lambda: self.torch("eager", False, mode)
        yield "async-TP", lambda: self.torch("async-TP", True, mode)

    def ours(self, world, mode):
        mains = {"grads": {"w": "main_grad", "v": "main_grad"}} if mode == "micro" else {}
        layer = mk.nn.GatedMLP(self.gate.shape[1], self.gate.shape[0] * self.ranks, world, device="cuda", **mains)
        layer.load(self.gate, self.up, self.down)
        step = Step("mk", layer, [layer.gate_up, layer.down], None, mode, True, [layer.function])

        def gradients():
            both, down = step.gradient(layer.gate_up), step.gradient(layer.down)
            return both[:, 0].t(), both[:, 1].t(), down.t()

        step.gradients = gradients
        return step

    def torch(self, name, compiled, mode):
        both, down = torch.nn.Parameter(torch.cat([self.gate, self.up])), torch.nn.Parameter(self.down.clone())
        gather, scatter = collectives(compiled)

        def forward(x):
            g, u = F.linear(gather(x), both).chunk(2, 1)
            return scatter(F.linear(F.silu(g) * u, down))

        step = Step(name, torch.compile(forward, dynamic=False) if compiled else forward, [both, down], None, mode)
        step.gradients = lambda: (*step.gradient(both).chunk(2), step.gradient(down))
        return step

    def truth(self, mode):
        """Gradients of x, gate, up, down by the first set, in float32."""
        whole, d = all_gather(self.x[0]).float(), all_gather(self.dy[0]).float()
        gate, up, down = self.gate.float(), self.up.float(), self.down.float()
        g, u = whole @ gate.t(), whole @ up.t()
        s = torch.sigmoid(g)
        d_down = d.t() @ (g * s * u)
        dh = d @ down
        d_up = dh * g * s
        d_gate = dh * u * s * (1 + g * (1 - s))
        del dh, g, u, s
        d_x = torch.empty_like(self.x[0], dtype=torch.float32)
        dist.reduce_scatter_tensor(d_x, d_gate @ gate + d_up @ up)
        n = MICRO if mode == "micro" else 1
        return d_x, n * (d_gate.t() @ whole), n * (d_up.t() @ whole), n * d_down

    def gemms(self, library, slowest, flush, mode):
        """The products of a step, gates and ups as one, each by cuBLASLt's fastest algorithm. Nothing moves, and nothing else is computed:
        a function, and the milliseconds of each product by itself, with caches flushed."""
        if mode in ("micro", "checkpointed"):
            return None, {}
        rows = self.x[0].shape[0] * self.ranks
        make = lambda *shape: torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_()
        whole, d_whole = self.x[0].repeat(self.ranks, 1), self.dy[0].repeat(self.ranks, 1)
        w, down = torch.cat([self.gate, self.up]), self.down
        h, d_both = make(rows, down.shape[1]), make(rows, w.shape[0])
        list_of = {
            "up": (whole, w, False, True), "down": (h, down, False, True), "dh": (d_whole, down, False, False),
            "dW down": (d_whole, h, True, False), "dx": (d_both, w, False, False), "dW up": (d_both, whole, True, False)}
        ways, times = [], {}
        for name, (a, b, a_t, b_t) in list_of.items():
            m, k = reversed(a.shape) if a_t else a.shape
            out = make(m, b.shape[0] if b_t else b.shape[1])
            way, each = lt.best(library, (m, k, out.shape[1]), [(a, b)], out, slowest, flush, 3, (a_t, b_t))
            ways.append((way, a, b, out))
            times[name] = each[way.name]
        return (lambda: [way(a, b, out) for way, a, b, out in ways]), times
