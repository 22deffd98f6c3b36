"""A SwiGLU block, forward and backward, of eight bits beside bf16: `mk.nn.GatedMLP`, torch, and torchao (rows) where it is installed; then
layers of experts, `mk.nn.MoE`.

    torchrun --nproc-per-node 1 benches/eight_bits/step.py [--kernels]      # under 2 minutes; more processes: mk's alone

Inputs rotate, contestants take turns, ranks meet on the device behind a host that runs ahead; medians of rounds of three steps. Results and
gradients are compared with float32's, of experts and of several ranks with those of mk's in bf16. `MiB`: what a step needs at its peak in torch's
allocator.
"""

import argparse
import importlib.util
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mk
import mk.nn

_spec = importlib.util.spec_from_file_location("measure", os.path.join(os.path.dirname(__file__), "../step/measure.py"))
measure = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(measure)

# Tokens of all ranks, hidden, inner elements.
SHAPES = [(8192, 4096, 14336), (8192, 2048, 5632), (2048, 4096, 14336)]
# Tokens of all ranks, hidden, inner elements, experts, slots.
EXPERTS = [(8192, 2048, 768, 128, 8), (4096, 4096, 14336, 8, 2)]
LIMITS = {16: 2e-2, 8: 1.2e-1}


class Dense(torch.nn.Module):
    def __init__(self, hidden, inner, **how):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(hidden, inner, bias=False, **how) for _ in range(2))
        self.down = torch.nn.Linear(inner, hidden, bias=False, **how)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def torchao(layer):
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        return None
    return convert_to_float8_training(layer, config=Float8LinearConfig.from_recipe_name("rowwise"))


def contestants(world, hidden, inner, weights):
    """Layers by name, with bits of what their GEMMs read."""
    how = {"device": "cuda", "dtype": torch.bfloat16}
    layers = {"mk": (mk.nn.GatedMLP(hidden, inner, world, **how), 16), "mk fp8": (mk.nn.GatedMLP(hidden, inner, world, fp8="1x128", **how), 8)}
    for layer, _ in layers.values():
        layer.load(*weights)
    if world.size == 1:
        dense = lambda: Dense(hidden, inner, **how)
        layers |= {"torch": (dense(), 16), "torch, compiled": (torch.compile(dense()), 16)}
        if (other := torchao(dense())) is not None:
            layers |= {"torchao": (other, 8), "torchao, compiled": (torch.compile(torchao(dense())), 8)}
        for name in list(layers)[2:]:
            for linear, weight in zip(layers[name][0].children() if "compiled" not in name else layers[name][0]._orig_mod.children(), weights):
                with torch.no_grad():
                    linear.weight.copy_(weight)
    return layers


def experts(world, hidden, inner, number, slots, random):
    how = {"device": "cuda", "dtype": torch.bfloat16}
    layers = {"mk": (mk.nn.MoE(hidden, inner, number, slots, world, **how), 16)}
    layers["mk fp8"] = (mk.nn.MoE(hidden, inner, number, slots, world, fp8="1x128", **how), 8)
    with torch.no_grad():
        for a, b in zip(*(list(layer.parameters()) for layer, _ in layers.values())):
            a.copy_(torch.randn(a.shape, device="cuda", generator=random) / (hidden if a.ndim == 4 else inner) ** 0.5)
            b.copy_(a)
    return layers


def gradients(layer, x):
    """Of tokens, gates, ups and the last weight, as torch has them."""
    if isinstance(layer, mk.nn.GatedMLP):
        return [x.grad, layer.gate_up.grad[:, 0].t(), layer.gate_up.grad[:, 1].t(), layer.down.grad.t()]
    if isinstance(layer, mk.nn.MoE):
        return [x.grad, *(p.grad for p in layer.parameters())]
    layer = getattr(layer, "_orig_mod", layer)
    return [x.grad, layer.gate.weight.grad, layer.up.weight.grad, layer.down.weight.grad]


def step_of(layer, inputs):
    def step(i):
        x, dy, *more = inputs[i % len(inputs)]
        for t in (x, *layer.parameters()):
            t.grad = None
        y = layer(x, *more)
        y.backward(dy)
        return y

    step.parameters, step.forward = list(layer.parameters()), lambda x: layer(x, *inputs[0][2:])
    return step


def truth(weights, x, dy):
    """Result and gradients in float32, of one process."""
    wide = Dense(x.shape[1], weights[0].shape[0], device="cuda")
    with torch.no_grad():
        for linear, weight in zip(wide.children(), weights):
            linear.weight.copy_(weight)
    x = x.detach().float().requires_grad_()
    y = wide(x)
    y.backward(dy.float())
    return [y.detach(), *gradients(wide, x)]


def main():
    parser = argparse.ArgumentParser(description="steps of layers of eight bits")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="SwiGLU blocks")
    parser.add_argument("--experts", type=int, default=len(EXPERTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels", action="store_true", help="list what ran in mk's step of eight bits")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    world = mk.World.from_torch()
    rank, wrong = world.ranks[0], 0
    said = lambda line: print(line, flush=True) if rank == 0 else None
    for tokens, hidden, inner, *routed in SHAPES[: args.shapes] + EXPERTS[: args.experts]:
        random = torch.Generator(device="cuda").manual_seed(64 * args.seed + rank)
        drawn = lambda *sizes: torch.randn(*sizes, device="cuda", generator=random)
        rows = lambda: drawn(tokens // world.size, hidden).bfloat16()
        inputs, want = [(rows().requires_grad_(), rows()) for _ in range(3)], None
        if routed:
            gates = [drawn(tokens // world.size, routed[0]).softmax(1).topk(routed[1]) for _ in inputs]
            inputs = [(*given, gate.indices, gate.values) for given, gate in zip(inputs, gates)]
            layers = experts(world, hidden, inner, *routed, random)
        else:
            own = inner // world.size
            weights = [(drawn(*sizes) / sizes[1] ** 0.5).bfloat16() for sizes in ((own, hidden), (own, hidden), (hidden, own))]
            layers = contestants(world, hidden, inner, weights)
            want = truth(weights, *inputs[0]) if world.size == 1 else None
        steps, verdicts = {}, []
        for name, (layer, bits) in layers.items():
            steps[name] = step_of(layer, inputs)
            found = [steps[name](0), *gradients(layer, inputs[0][0])]
            want = want or [t.detach().clone() for t in found]
            worst = max(measure.errors(found, want))
            right = worst < LIMITS[bits]
            wrong += not right
            verdicts.append(f"{name} {worst:.1e}{'' if right else ' WRONG'}")
        del found
        ms = dict(zip(steps, map(statistics.median, measure.times(list(steps.values()), args.rounds))))
        mib = {name: measure.memory(step) for name, step in steps.items()}
        shape = "x".join(map(str, (tokens, hidden, inner, *routed)))
        each = ", ".join(f"{name} {t:.2f} ms {mib[name]:.0f} MiB" for name, t in ms.items())
        said(f"{shape}: {each} | mk / mk fp8 {ms['mk'] / ms['mk fp8']:.2f} | worst error {', '.join(verdicts)}")
        if args.kernels:
            for part in measure.kernels(steps["mk fp8"], *inputs[0][:2]):
                said("\n".join(f"    {us:8.1f} us  {name[:110]}" for name, us in part))
        del layers, steps, want
    dist.destroy_process_group()
    print("WRONG" if wrong else "all right") if rank == 0 else None
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
