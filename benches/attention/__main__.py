"""Attention as `mk.compile` lowers it, beside `scaled_dot_product_attention` of torch (cuDNN, FlashAttention-2), on one GPU:

    python3 benches/attention                 # forward, backward, and rings of ranks that share the GPU
    python3 benches/attention --part ring
    python3 -m torch.distributed.run --nproc-per-node 2 benches/attention     # rings over GPUs: ranks.py says beside whom
    python3 benches/attention --part window --seed 7     # windows and caps: random shapes against f64, and beside flex_attention
    python3 benches/attention --part lengths             # keys of another length than queries, likewise
    python3 benches/attention --part call                # mk.attention: sinks, logarithms, torch.compile
    python3 benches/attention --part packed              # documents: packed.py says beside whom
    python3 benches/attention --part heads --part decode # heads of 192 and 256, few queries: heads.py

A row is a shape, TFLOP/s of each, the fastest peer's time ÷ mk's, and whether results are right; a wrong one fails the run. Inputs are random and
rotate, 256 MiB are overwritten between launches, contestants take turns, the median counts. FLOPs of a backward are those of five products.
"""

import argparse
import os
import pathlib
import random
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

import mk

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "torch_peers"))

import predicted  # noqa: E402

# B, S, H, G, D, causal.
FORWARD = [
    (4, 4096, 16, 16, 128, False), (4, 4096, 16, 16, 128, True), (1, 16384, 16, 16, 128, False), (1, 16384, 16, 16, 128, True),
    (1, 32768, 16, 16, 128, True), (2, 8192, 64, 8, 128, False), (2, 8192, 64, 8, 128, True), (4, 4096, 16, 16, 64, False),
    (4, 4096, 16, 16, 64, True),
]
BACKWARD = [
    (4, 4096, 16, 16, 128, False), (4, 4096, 16, 16, 128, True), (1, 16384, 16, 16, 128, False), (2, 8192, 64, 8, 128, True),
    (4, 4096, 16, 16, 64, False),
]
# Of all ranks together, and the placement.
RING = [
    (1, 12288, 16, 16, 128, False, "shard"), (1, 12288, 16, 16, 128, True, "zigzag"), (1, 24576, 16, 4, 128, False, "shard"),
]
# B, queries, keys, H, G, D: the last of both have one place.
LENGTHS = [
    (1, 2048, 32768, 16, 16, 128), (1, 4096, 65536, 32, 8, 128), (4, 512, 16384, 16, 16, 64), (1, 128, 131072, 32, 8, 128), (8, 16, 32768, 32, 8, 128),
]
# B, S, H, G, D, keys of a window, cap of scores.
WINDOWS = [
    (1, 32768, 16, 16, 128, 1024, None), (1, 16384, 16, 16, 128, 1000, None), (1, 32768, 16, 16, 128, 4096, None), (4, 8192, 16, 16, 128, 1024, 50.0), (4, 8192, 32, 8, 64, 128, None),
    (4, 4096, 16, 16, 128, None, 50.0),
]
PARTS = ["forward", "backward", "ring", "window", "lengths", "call", "packed", "heads", "decode"]
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash-2": SDPBackend.FLASH_ATTENTION}


def alone(causal, logarithms, window=None, cap=None):
    mask = ", causal" if causal else ""
    mask += f", window = {window}" if window else ""
    mask += f", softcap = {cap}" if cap else ""
    kv = "bf16[B, T, G, D] @ replicate"
    result = "(o, o -> lse)" if logarithms else "o"
    return f"fn attend(q: bf16[B, S, H, D] @ replicate, k: {kv}, v: {kv}) {{ let o = attention(q, k, v{mask}); {result} }}"


def shared(placement, causal, ring):
    mask = ", causal" if causal else ""
    kv = f"bf16[B, S, G, D] @ {placement + '(1)' if ring else 'replicate'}"
    attention = f"ring(k, v) -> attention(q{mask})" if ring else f"attention(q, k, v{mask})"
    return f"fn attend(q: bf16[B, S, H, D] @ {placement}(1), k: {kv}, v: {kv}) {{ {attention} }}"


class Bench:
    def __init__(self, seconds):
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        # As long as a launch takes, so that short ones are timed more often.
        self.seconds = seconds
        self.rows, self.wrong = [], 0

    def inputs(self, b, s, h, g, d, seed, keys=None):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        sizes = (s, h), (keys or s, g), (keys or s, g)
        return [torch.randn(b, rows, n, d, device="cuda", generator=generator).bfloat16() for rows, n in sizes]

    def time(self, contestants):
        """Milliseconds of each; a contestant is what comes before the timed part, and the timed part."""
        events = {name: [] for name in contestants}
        rounds, first = 5, torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        for i in range(2 + 40):
            if i == 2:
                first.record()
            if i == 3:
                last.record()
                last.synchronize()
                rounds = min(40, max(5, int(1e3 * self.seconds / first.elapsed_time(last))))
            if i == 2 + rounds:
                break
            for name, (before, run) in contestants.items():
                given = before(i)
                self.flush.fill_(i & 1)
                pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                pair[0].record()
                run(i, given)
                pair[1].record()
                if i >= 2:
                    events[name].append(pair)
        torch.cuda.synchronize()
        middle = lambda pairs: sorted(a.elapsed_time(b) for a, b in pairs)[len(pairs) // 2]
        return {name: middle(pairs) for name, pairs in events.items()}

    def judge(self, got, want, limit):
        """Relative error of the whole, and of the worst 128 rows of a head."""
        worst = tile = 0.0
        for x, y in zip(got, want):
            x, y = x.float(), y.float()
            worst = max(worst, ((x - y).norm() / y.norm()).item())
            n = min(128, x.shape[1])
            rows = lambda z: z[:, : z.shape[1] // n * n].unflatten(1, (-1, n)).pow(2).sum((2, 4))
            error, norm = rows(x - y), rows(y)
            # A tile that is near 0 by chance is measured against a tenth of the mean.
            tile = max(tile, (error / torch.maximum(norm, norm.mean() / 10)).sqrt().max().item())
        right = worst < limit and tile < 2 * limit
        self.wrong += not right
        return f"error {worst:.1e}, tile {tile:.1e} {'ok' if right else 'WRONG'}"

    def row(self, label, flops, times, judged, ours="mk", plans=()):
        self.rows.append({"shape": label, "mk_ms": times[ours], "predicted_ms": predicted.of(plans)})
        rates = " ".join(f"{name} {flops / t / 1e9:.0f}" for name, t in times.items())
        best = min(t for name, t in times.items() if name != ours)
        print(f"{label} | {times[ours]:.3f} ms | {rates} | peer / mk {best / times[ours]:.3f} | {judged}", flush=True)


def torch_attention(backend, causal, grouped):
    def run(q, k, v):
        with sdpa_kernel(backend):
            return sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=grouped).transpose(1, 2)
    return run


def peers(sets, causal, grouped):
    """Those of torch's that take these inputs."""
    found = {}
    for name, backend in PEERS.items():
        run = torch_attention(backend, causal, grouped)
        try:
            run(*sets[0][:3])
        except RuntimeError as refused:
            print(f"{name}: {str(refused).splitlines()[0]}", file=sys.stderr)
            continue
        found[name] = run
    return found


def label(part, b, s, h, g, d, causal):
    return f"{part} {'causal' if causal else 'full'} B{b} S{s} H{h}:{g} D{d}"


def forward(bench, world, b, s, h, g, d, causal):
    sets = [bench.inputs(b, s, h, g, d, seed) for seed in range(3)]
    f = mk.compile(alone(causal, True), world)
    out = torch.empty_like(sets[0][0]), torch.empty(b, h, s, device="cuda")
    others = peers(sets, causal, g != h)
    nothing = lambda i: None
    contestants = {"mk": (nothing, lambda i, _: f(*sets[i % 3], out=out))}
    for name, run in others.items():
        contestants[name] = (nothing, lambda i, _, run=run: run(*sets[i % 3]))
    out[0].fill_(float("nan"))
    f(*sets[0], out=out)
    # Both are rounded.
    judged = bench.judge([out[0]], [others["cudnn"](*sets[0])], 5e-3)
    flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
    bench.row(label("forward", b, s, h, g, d, causal), flops, bench.time(contestants), judged, plans=f.plans[-1:])
    f.close()


def backward(bench, world, b, s, h, g, d, causal):
    sets = [bench.inputs(b, s, h, g, d, seed) + bench.inputs(b, s, h, h, d, 9 + seed)[:1] for seed in range(2)]
    for given in sets:
        for x in given[:3]:
            x.requires_grad_(True)
    f = mk.compile(alone(causal, False), world)
    others = peers(sets, causal, g != h)
    contestants = {}
    for name, run in {"mk": f, **others}.items():
        before = lambda i, run=run: run(*sets[i % 2][:3])
        contestants[name] = (before, lambda i, y: torch.autograd.grad(y, sets[i % 2][:3], sets[i % 2][3]))
    of = lambda name: contestants[name][1](0, contestants[name][0](0))
    got, again = of("mk"), of("mk")
    judged = bench.judge(got, of("cudnn"), 1e-2)
    if not all(torch.equal(x, y) for x, y in zip(got, again)):
        bench.wrong += 1
        judged += ", RUNS DIFFER"
    flops = 10 * b * h * s * s * d * (0.5 if causal else 1)
    bench.row(label("backward", b, s, h, g, d, causal), flops, bench.time(contestants), judged)
    f.close()


def dense(q, k, v, window, cap, sinks=None):
    """Causal, in f64, of few tokens; rows that see nothing are 0. With sinks, logarithms of the sums, too."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bshd,bthd->bhst", q, k) / q.shape[3] ** 0.5
    if cap:
        scores = cap * (scores / cap).tanh()
    behind = torch.arange(-q.shape[1], 0, device="cuda")[:, None] - torch.arange(-k.shape[1], 0, device="cuda")[None, :]
    hidden = (behind < 0) | (behind >= (window or k.shape[1]))
    weights = (scores - scores.detach().amax(-1, keepdim=True)).masked_fill(hidden, float("-inf")).exp()
    sums = weights.sum(-1, keepdim=True)
    if sinks is not None:
        top = scores.detach().amax(-1, keepdim=True)
        sums = sums + (sinks.double()[None, :, None, None] - top).exp()
        return torch.einsum("bhst,bthd->bshd", weights / sums, v), (top + sums.log()).squeeze(-1)
    return torch.einsum("bhst,bthd->bshd", weights / sums.clamp(min=1e-300), v)


def drawn(bench, world, seed, count, lengths=False):
    """Random shapes, forward and backward, against f64."""
    draw, right = random.Random(seed), bench.wrong
    for n in range(count):
        g = draw.choice([1, 2, 4])
        b, s, h, d = draw.choice([1, 2]), draw.choice([draw.randrange(1, 200), draw.randrange(200, 1500)]), g * draw.choice([1, 2]), draw.choice([64, 128])
        window = draw.choice([None, 1, 64, 128, 1024, draw.randrange(1, s + 1)])
        cap = draw.choice([None, 1.0, 30.0]) if window else 30.0
        keys = draw.choice([s + draw.randrange(1, 1000), draw.randrange(1, 1500)]) if lengths else s
        if lengths and draw.random() < 0.5:
            window = cap = None
        q, k, v, out = [*bench.inputs(b, s, h, g, d, n, keys), bench.inputs(b, s, h, h, d, n + 1)[0]]
        f = mk.compile(alone(True, False, window, cap), world)
        results = []
        for run in (lambda *x: f(*x), lambda *x: dense(*x, window, cap)):
            given = [x.clone().requires_grad_(True) for x in (q, k, v)]
            y = run(*given)
            results.append([y.detach(), *torch.autograd.grad(y, given, out.to(y.dtype))])
        for name, x, y in zip(("o", "dq", "dk", "dv"), *results):
            error = (x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-9)
            # A gradient of queries that see one key is 0.
            if not error < 2e-2 and not y.abs().max() < 1e-6:
                bench.wrong += 1
                print(f"WRONG {name} {error:.1e}: B{b} S{s}:{keys} H{h}:{g} D{d} window {window} cap {cap}", flush=True)
        f.close()
    print(f"seed {seed}: {count} random shapes, {bench.wrong - right} results wrong", flush=True)


def windows(bench, world, b, s, h, g, d, window, cap):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    # Each row's mask is a function of its own: from the ninth on torch would run them uncompiled.
    torch._dynamo.reset()
    sets = [bench.inputs(b, s, h, g, d, seed) + bench.inputs(b, s, h, h, d, 9 + seed)[:1] for seed in range(2)]
    for given in sets:
        for x in given[:3]:
            x.requires_grad_(True)
    f = mk.compile(alone(True, False, window, cap), world)
    seen = lambda b, h, i, j: (i >= j) & (i - j < (window or s))
    blocks = create_block_mask(seen, None, None, s, s, device="cuda")
    score = (lambda x, b, h, i, j: cap * torch.tanh(x / cap)) if cap else None
    flex = torch.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=g != h))
    runs = {"mk": f, "flex": lambda q, k, v: flex(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)}
    keys = min(window or s, s)
    pairs = b * h * d * (s * keys - keys * keys / 2)
    got = {name: run(*sets[0][:3]).detach() for name, run in runs.items()}
    judged = bench.judge([got["mk"]], [got["flex"]], 1e-2)
    named = f"window {window} cap {cap} " + label("", b, s, h, g, d, True)
    with torch.no_grad():
        nothing = lambda i: None
        plain = {name: (nothing, lambda i, _, run=run: run(*sets[i % 2][:3])) for name, run in runs.items()}
        bench.row(f"forward {named}", 4 * pairs, bench.time(plain), judged)
    back = {}
    for name, run in runs.items():
        before = lambda i, run=run: run(*sets[i % 2][:3])
        back[name] = (before, lambda i, y: torch.autograd.grad(y, sets[i % 2][:3], sets[i % 2][3]))
    of = lambda name: back[name][1](0, back[name][0](0))
    judged = bench.judge(of("mk"), of("flex"), 2e-2)
    bench.row(f"backward {named}", 10 * pairs, bench.time(back), judged)
    f.close()


def lengths(bench, world, b, s, t, h, g, d):
    """Chunks of queries at the end of more keys, beside flex_attention and the masks of torch that are aligned there."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    sets = [bench.inputs(b, s, h, g, d, seed, t) + bench.inputs(b, s, h, h, d, 9 + seed)[:1] for seed in range(2)]
    for given in sets:
        for x in given[:3]:
            x.requires_grad_(True)
    f = mk.compile(alone(True, False), world)
    blocks = create_block_mask(lambda b, h, i, j: i + t - s >= j, None, None, s, t, device="cuda")
    flex = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, enable_gqa=g != h))
    lower = lambda q, k, v: sdpa(q, k, v, attn_mask=causal_lower_right(s, t), enable_gqa=g != h)
    turned = lambda run: lambda q, k, v: run(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    runs = {"mk": f, "flex": turned(flex), "sdpa": turned(lower)}
    for name in ("flex", "sdpa"):
        try:
            runs[name](*sets[0][:3])
        except Exception as refused:
            print(f"{name}: {str(refused).splitlines()[0]}", file=sys.stderr)
            del runs[name]
    pairs = b * h * d * (s * t - s * s / 2)
    peer = next(name for name in runs if name != "mk")
    got = {name: runs[name](*sets[0][:3]).detach() for name in ("mk", peer)}
    judged = bench.judge([got["mk"]], [got[peer]], 1e-2)
    named = f"{s} of {t} " + label("", b, s, h, g, d, True)
    with torch.no_grad():
        nothing = lambda i: None
        plain = {name: (nothing, lambda i, _, run=run: run(*sets[i % 2][:3])) for name, run in runs.items()}
        bench.row(f"forward {named}", 4 * pairs, bench.time(plain), judged)
    back = {}
    for name, run in runs.items():
        before = lambda i, run=run: run(*sets[i % 2][:3])
        back[name] = (before, lambda i, y: torch.autograd.grad(y, sets[i % 2][:3], sets[i % 2][3]))
    of = lambda name: back[name][1](0, back[name][0](0))
    judged = bench.judge(of("mk"), of(peer), 2e-2)
    bench.row(f"backward {named}", 10 * pairs, bench.time(back), judged)
    f.close()


def calls(bench, seed, count):
    """`mk.attention` of random shapes with sinks, eager and compiled: results, logarithms and all gradients against f64."""
    draw, right = random.Random(seed), bench.wrong
    compiled = torch.compile(mk.attention, dynamic=False)
    for n in range(count):
        g, d, s = draw.choice([1, 2, 4]), draw.choice([64, 128]), draw.randrange(1, 1200)
        h, t = g * draw.choice([1, 2]), draw.choice([s, s + draw.randrange(1, 900)])
        window, cap = draw.choice([None, draw.randrange(1, s + 1)]), draw.choice([None, 20.0])
        q, k, v = bench.inputs(2, s, h, g, d, n, t)
        d_o = bench.inputs(2, s, h, h, d, n + 1)[0]
        sinks, d_logs = torch.randn(h, device="cuda"), torch.randn(2, h, s, device="cuda")
        run = compiled if n % 4 == 3 else mk.attention
        if n % 4 == 3:
            torch._dynamo.reset()
        results = []
        for ours in (True, False):
            given = [x.clone().requires_grad_(True) for x in (q, k, v, sinks)]
            if ours:
                turned = [x.transpose(1, 2) for x in given[:3]]
                o, logs = run(*turned, causal=True, window=window, softcap=cap, sinks=given[3], enable_gqa=True, return_lse=True)
                o = o.transpose(1, 2)
            else:
                o, logs = dense(*given[:3], window, cap, given[3])
            gradients = torch.autograd.grad([o, logs], given, [d_o.to(o.dtype), d_logs.to(logs.dtype)])
            results.append([o.detach(), logs.detach(), *gradients])
        for name, x, y in zip(("o", "lse", "dq", "dk", "dv", "dsinks"), *results):
            error = (x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-9)
            if name == "dsinks":
                # Terms of this sum may cancel: its error is compared with the sum of their sizes.
                o, logs = results[1][:2]
                sizes = (d_o.double() * o.double()).abs().sum(3).transpose(1, 2) + d_logs.double().abs()
                error = ((x.double() - y.double()).abs() / ((sinks.double()[:, None] - logs.double()).exp() * sizes).sum((0, 2))).max()
            if not error < (4e-3 if name == "dsinks" else 2e-2):
                bench.wrong += 1
                print(f"WRONG {name} {error:.1e}: S{s}:{t} H{h}:{g} D{d} window {window} cap {cap}", flush=True)
    print(f"seed {seed}: {count} calls of mk.attention, {bench.wrong - right} results wrong", flush=True)


def ring(bench, world, b, s, h, g, d, causal, placement):
    """Keys that arrive meanwhile, beside keys that every rank has."""
    n = world.size
    def parts(x):
        if placement == "shard":
            return [y.contiguous() for y in x.chunk(n, 1)]
        halves = x.chunk(2 * n, 1)
        return [torch.cat([halves[r], halves[2 * n - 1 - r]], 1) for r in range(n)]
    arriving, gathered = (mk.compile(shared(placement, causal, ring), world) for ring in (True, False))
    sets = []
    for seed in range(2):
        q, k, v = bench.inputs(b, s, h, g, d, seed)
        copies = [[x.clone() for _ in range(n)] for x in (k, v)]
        sets.append(([parts(q), parts(k), parts(v)], [parts(q), *copies]))
    outs = [[torch.full_like(x, float("nan")) for x in sets[0][0][0]] for _ in range(2)]
    nothing = lambda i: None
    contestants = {
        "ring": (nothing, lambda i, _: arriving(*sets[i % 2][0], out=outs[0])),
        "gathered": (nothing, lambda i, _: gathered(*sets[i % 2][1], out=outs[1])),
    }
    arriving(*sets[0][0], out=outs[0])
    gathered(*sets[0][1], out=outs[1])
    judged = bench.judge(outs[0], outs[1], 5e-3)
    flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
    times = bench.time(contestants)
    name = label(f"{n} ranks, {placement},", b, s, h, g, d, causal)
    bench.row(name, flops, times, f"ring / gathered {times['ring'] / times['gathered']:.3f}, {judged}", "ring")
    arriving.close()
    gathered.close()


def main():
    parser = argparse.ArgumentParser(prog="attention", description="attention beside torch's, on one GPU")
    parser.add_argument("--part", action="append", choices=PARTS, help="[all]")
    parser.add_argument("--seed", type=int, default=7, help="of random shapes [7]")
    parser.add_argument("--shapes", type=int, default=24, help="random ones [24]")
    parser.add_argument("--ranks", type=int, default=4, help="that share the GPU, of rings [4]")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timed launches for each row [0.3]")
    parser.add_argument("--rounds", type=int, default=15, help="timed launches of each contestant, of rings over GPUs [15]")
    parser.add_argument("--json", help="where their figures go")
    args = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        import ranks

        sys.exit(ranks.main(args))
    torch.set_grad_enabled(False)
    bench, parts = Bench(args.seconds), args.part or PARTS
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    world = mk.World.local(1, gpu=0)
    if "forward" in parts:
        for row in FORWARD:
            forward(bench, world, *row)
    if "backward" in parts:
        with torch.enable_grad():
            for row in BACKWARD:
                backward(bench, world, *row)
    if "ring" in parts:
        several = mk.World.local(args.ranks, gpu=0)
        for row in RING:
            ring(bench, several, *row)
    if "window" in parts:
        with torch.enable_grad():
            drawn(bench, world, args.seed, args.shapes)
            for row in WINDOWS:
                windows(bench, world, *row)
    if "lengths" in parts:
        with torch.enable_grad():
            drawn(bench, world, args.seed, args.shapes, lengths=True)
            for row in LENGTHS:
                lengths(bench, world, *row)
    if "call" in parts:
        with torch.enable_grad():
            calls(bench, args.seed, args.shapes)
    if "packed" in parts:
        import packed

        with torch.enable_grad():
            packed.main(bench, args.seed, args.shapes)
    for part in ("heads", "decode"):
        if part in parts:
            import heads

            heads.main(bench, part, dense, args.seed, args.shapes)
    sys.exit(predicted.status(bench.rows, bench.wrong))


if __name__ == "__main__":
    main()
