"""Heads of 192 and 256, and of 192 with values of 128: against f64, and beside torch's attention where it takes them.

And decoding: few queries behind many keys. A row has GB/s of keys and values instead of TFLOP/s.
"""

import random
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

import mk

# B, S, H, G, elements of a head and of its values, causal.
HEADS = [
    (1, 16384, 16, 16, 256, 256, True), (4, 4096, 16, 4, 256, 256, False), (1, 16384, 16, 16, 192, 192, True),
    (1, 16384, 16, 16, 192, 128, True), (4, 4096, 16, 16, 192, 128, False),
]
# B, queries, keys, H, G, D.
DECODE = [
    (1, 1, 8192, 32, 8, 128), (1, 1, 131072, 32, 8, 128), (8, 1, 32768, 32, 8, 128), (16, 1, 8192, 32, 8, 128), (1, 4, 32768, 32, 8, 128),
    (1, 16, 131072, 32, 8, 128), (1, 1, 32768, 16, 16, 64), (4, 1, 32768, 16, 2, 256), (2, 2, 16384, 28, 4, 128), (1, 8, 65536, 32, 8, 128),
    (1, 16, 8192, 64, 8, 64),
]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash-2": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


def inputs(b, s, t, h, g, d, e, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    sizes = (s, h, d), (t, g, d), (t, g, e), (s, h, e)
    return [torch.randn(b, n, heads, wide, device="cuda", generator=generator).bfloat16() for n, heads, wide in sizes]


def ours(q, k, v, causal=True, **words):
    return mk.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal, enable_gqa=True, **words).transpose(1, 2)


def taken(runs, given):
    """Those of a peer that take these inputs, gradients, too, where they are asked for."""
    found = {}
    for name, run in runs.items():
        try:
            y = run(*given[:3])
            if given[0].requires_grad:
                torch.autograd.grad(y, given[:3], given[3])
        except Exception as refused:
            print(f"{name}: {str(refused).splitlines()[0]}", file=sys.stderr)
            continue
        found[name] = run
    return found


def peers(b, s, t, h, g, causal):
    def of(backend):
        def run(q, k, v):
            mask = causal_lower_right(s, t) if causal and s != t and s > 1 else None
            with sdpa_kernel(backend):
                turned = [x.transpose(1, 2) for x in (q, k, v)]
                return sdpa(*turned, attn_mask=mask, is_causal=causal and s == t and s > 1, enable_gqa=g != h).transpose(1, 2)
        return run
    torch._dynamo.reset()
    blocks = create_block_mask(lambda b, h, i, j: i + t - s >= j, None, None, s, t, device="cuda") if causal else None
    flex = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, enable_gqa=g != h))
    turned = lambda q, k, v: flex(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    return {**{name: of(backend) for name, backend in BACKENDS.items()}, "flex": turned}


def drawn(bench, dense, seed, count):
    """Random shapes: forward and backward of wide heads, and few queries of any."""
    draw, right = random.Random(seed), bench.wrong
    for n in range(count):
        few = n % 2 == 1
        d, e = draw.choice([(192, 192), (192, 128), (256, 256)] + [(64, 64), (128, 128)] * few)
        g, s = draw.choice([1, 2, 4]), draw.randrange(1, 17) if few else draw.randrange(1, 900)
        h, t = g * draw.choice([1, 2, 4]), draw.randrange(s, 40000) if few else draw.choice([s, s + draw.randrange(1, 500)])
        window, cap = draw.choice([None, draw.randrange(1, t + 1)]), draw.choice([None, 20.0])
        sinks = torch.randn(h, device="cuda") if few and draw.random() < 0.5 else None
        q, k, v, d_o = inputs(draw.choice([1, 2]), s, t, h, g, d, e, n)
        results = []
        for run in (lambda *x: ours(*x, window=window, softcap=cap, sinks=sinks), lambda *x: dense(*x, window, cap, sinks)):
            given = [x.clone().requires_grad_(not few) for x in (q, k, v)]
            y = run(*given)
            y = y[0] if isinstance(y, tuple) else y
            results.append([y.detach(), *(torch.autograd.grad(y, given, d_o.to(y.dtype)) if not few else ())])
        for name, x, y in zip(("o", "dq", "dk", "dv"), *results):
            error = (x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-9)
            if not error < 2e-2 and not y.abs().max() < 1e-6:
                bench.wrong += 1
                print(f"WRONG {name} {error:.1e}: S{s}:{t} H{h}:{g} D{d}:{e} window {window} cap {cap} sinks {sinks is not None}", flush=True)
    print(f"wide heads and few queries, seed {seed}: {count} random shapes, {bench.wrong - right} results wrong", flush=True)


def heads(bench, b, s, h, g, d, e, causal):
    sets = [inputs(b, s, s, h, g, d, e, seed) for seed in range(2)]
    for given in sets:
        for x in given[:3]:
            x.requires_grad_(True)
    runs = {"mk": lambda *x: ours(*x, causal=causal), **taken(peers(b, s, s, h, g, causal), sets[0])}
    if len(runs) == 1:
        return print(f"no peer takes heads of {d} with values of {e}", flush=True)
    peer = list(runs)[1]
    of = lambda name: runs[name](*sets[0][:3]).detach()
    judged = bench.judge([of("mk")], [of(peer)], 1e-2)
    named = f"{'causal' if causal else 'full'} B{b} S{s} H{h}:{g} D{d}:{e}"
    pairs = b * h * s * s * (0.5 if causal else 1)
    with torch.no_grad():
        plain = {name: (lambda i: None, lambda i, _, run=run: run(*sets[i % 2][:3])) for name, run in runs.items()}
        bench.row(f"forward {named}", 2 * pairs * (d + e), bench.time(plain), judged)
    back = {}
    for name, run in runs.items():
        before = lambda i, run=run: run(*sets[i % 2][:3])
        back[name] = (before, lambda i, y: torch.autograd.grad(y, sets[i % 2][:3], sets[i % 2][3]))
    of = lambda name: back[name][1](0, back[name][0](0))
    bench.row(f"backward {named}", 2 * pairs * (3 * d + 2 * e), bench.time(back), bench.judge(of("mk"), of(peer), 2e-2))


def decode(bench, b, s, t, h, g, d):
    sets = [inputs(b, s, t, h, g, d, d, seed) for seed in range(2)]
    runs = {"mk": ours, **taken(peers(b, s, t, h, g, True), sets[0])}
    judged = "no peer"
    if len(runs) > 1:
        judged = bench.judge([runs["mk"](*sets[0][:3])], [runs[list(runs)[1]](*sets[0][:3])], 1e-2)
    # Launches without the host: each is captured.
    graphs = {}
    for name, run in runs.items():
        run(*sets[0][:3])
        torch.cuda.synchronize()
        captured = [torch.cuda.CUDAGraph() for _ in sets]
        for graph, given in zip(captured, sets):
            with torch.cuda.graph(graph):
                run(*given[:3])
        graphs[name] = captured
    contestants = {name: (lambda i: None, lambda i, _, of=of: of[i % 2].replay()) for name, of in graphs.items()}
    # As if it were TFLOP/s: bytes of keys and values, in thousands.
    bench.row(f"decode, GB/s, B{b} S{s}:{t} H{h}:{g} D{d}", 4000 * b * t * g * d, bench.time(contestants), judged)


def main(bench, part, dense, seed, shapes):
    if part == "heads":
        with torch.enable_grad():
            drawn(bench, dense, seed, shapes)
            for shape in HEADS:
                heads(bench, *shape)
    else:
        for shape in DECODE:
            decode(bench, *shape)
