"""Packed sequences: `mk.attention(.., cu_seqlens=cu)` against f64, captured, and beside `varlen_attn` and compiled `flex_attention`; documents
of one length also beside mk's own attention of a batch of them."""

import inspect
import random
import sys

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

import mk

# Tokens, documents, H, G, D, causal, form of lengths.
ROWS = [
    (8192, 16, 16, 16, 128, True, "even"), (32768, 32, 16, 16, 128, True, "even"), (32768, 32, 16, 16, 128, True, "skewed"),
    (32768, 32, 32, 8, 128, True, "skewed"), (32768, 256, 16, 16, 128, True, "skewed"), (32768, 1, 16, 16, 128, True, "even"),
    (32768, 32, 16, 16, 64, True, "skewed"), (32768, 32, 16, 16, 128, False, "skewed"), (32768, 16, 16, 16, 128, True, "even"),
    (32768, 16, 16, 16, 128, True, "skewed"), (32768, 64, 16, 16, 128, True, "skewed"),
]


def begins(draw, tokens, documents, form):
    """Where documents begin, and the last one ends."""
    if form == "even":
        return [n * tokens // documents for n in range(documents + 1)]
    if form == "single":
        return list(range(tokens + 1))
    # Few long ones, as of texts; some are empty.
    lengths = [draw.paretovariate(1.1) * (draw.random() > 0.1) for _ in range(documents)]
    whole = sum(lengths) or 1.0
    last = tokens if form == "skewed" else tokens - draw.randrange(1 + tokens // 4)
    ends = [int(last * sum(lengths[: n + 1]) / whole) for n in range(documents)]
    ends[-1] = last
    return [0, *ends]


def dense(q, k, v, ends, causal, window, cap):
    """In f64, document by document."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    parts = []
    for a, b in zip(ends, ends[1:]):
        scores = torch.einsum("shd,thd->hst", q[a:b], k[a:b]) / q.shape[2] ** 0.5
        if cap:
            scores = cap * (scores / cap).tanh()
        at = torch.arange(b - a, device=q.device)
        behind = at[:, None] - at[None, :]
        hidden = (behind < 0) | (behind >= (window or b - a)) if causal else torch.zeros_like(behind, dtype=torch.bool)
        parts.append(torch.einsum("hst,thd->shd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v[a:b]))
    return torch.cat([*parts, torch.zeros_like(q[ends[-1] :])])


def inputs(bench, tokens, h, g, d, seed):
    return [x[0] for x in bench.inputs(1, tokens, h, g, d, seed)]


def drawn(bench, seed, count):
    """Random shapes and documents, forward and backward."""
    draw, right = random.Random(seed), bench.wrong
    for n in range(count):
        g, d = draw.choice([1, 2, 4]), draw.choice([64, 128])
        tokens, h = draw.choice([draw.randrange(1, 300), draw.randrange(300, 3000)]), g * draw.choice([1, 2])
        causal = draw.random() < 0.7
        window, cap = draw.choice([None, draw.randrange(1, tokens + 1)]) if causal else None, draw.choice([None, 20.0])
        form = draw.choice(["even", "skewed", "padded", "single"])
        ends = begins(draw, tokens, draw.randrange(1, 40), form)
        cu = torch.tensor(ends, dtype=torch.int32, device="cuda")
        q, k, v = inputs(bench, tokens, h, g, d, n)
        d_o = inputs(bench, tokens, h, h, d, n + 1)[0]
        # Tokens behind the last document are NaN: no query may see them.
        for x in (q, k, v, d_o):
            x[ends[-1] :] = float("nan")
        results = []
        for ours in (True, False):
            given = [x.clone().requires_grad_(True) for x in (q, k, v)]
            if ours:
                y = mk.attention(*given, causal=causal, window=window, softcap=cap, enable_gqa=True, cu_seqlens=cu)
            else:
                given = [x.nan_to_num().requires_grad_(True) for x in (q, k, v)]
                y = dense(*given, ends, causal, window, cap)
            results.append([y.detach(), *torch.autograd.grad(y, given, (d_o if ours else d_o.nan_to_num()).to(y.dtype))])
        for name, x, y in zip(("o", "dq", "dk", "dv"), *results):
            # Of documents of one token the gradients of queries and keys are 0: what terms cancel to is measured against the terms.
            least = 0.5 * d_o.nan_to_num().double().norm() if name in ("dq", "dk") else 1e-9
            error = (x.double() - y.double()).norm() / y.double().norm().clamp(min=least)
            if not error < 2e-2:
                bench.wrong += 1
                print(f"WRONG {name} {error:.1e}: T{tokens} H{h}:{g} D{d} causal {causal} window {window} cap {cap} {form} {ends[:20]}", flush=True)
    print(f"packed, seed {seed}: {count} random shapes, {bench.wrong - right} results wrong", flush=True)


def captured(bench, launches):
    """One captured call, launched with other documents each time."""
    draw, right, tokens = random.Random(3), bench.wrong, 4096
    q, k, v = inputs(bench, tokens, 8, 2, 128, 1)
    cu = torch.zeros(17, dtype=torch.int32, device="cuda")
    run = lambda: mk.attention(q, k, v, causal=True, enable_gqa=True, cu_seqlens=cu)
    documents = [begins(draw, tokens, 16, draw.choice(["even", "skewed", "padded"])) for _ in range(launches)]
    cu.copy_(torch.tensor(documents[0], dtype=torch.int32))
    with torch.no_grad():
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run()
        for ends in documents:
            cu.copy_(torch.tensor(ends, dtype=torch.int32))
            out.fill_(float("nan"))
            graph.replay()
            want = dense(q, k, v, ends, True, None, None)
            error = (out.double() - want).norm() / want.norm()
            bench.wrong += not error < 1e-2
    print(f"packed, captured: {launches} launches, {bench.wrong - right} results wrong", flush=True)


def refused(bench):
    """Numbers that no documents have end the launch with an error, and nothing is read elsewhere. The last thing that a process does."""
    q, k, v = inputs(bench, 1000, 4, 4, 64, 1)
    for ends in ([0, 600, 400, 1000],):
        cu = torch.tensor(ends, dtype=torch.int32, device="cuda")
        try:
            mk.attention(q, k, v, cu_seqlens=cu)
            torch.cuda.synchronize()
            mk.attention(q, k, v, cu_seqlens=cu)
            bench.wrong += 1
            print("WRONG: documents that descend are taken", flush=True)
        except mk.Error as error:
            said = "where documents begin" in str(error)
            bench.wrong += not said
            print(f"packed, refused: {str(error).splitlines()[0]} {'ok' if said else 'WRONG'}", flush=True)


def row(bench, tokens, documents, h, g, d, causal, form):
    torch._dynamo.reset()
    ends = begins(random.Random(tokens + documents), tokens, documents, form)
    cu = torch.tensor(ends, dtype=torch.int32, device="cuda")
    longest = max(b - a for a, b in zip(ends, ends[1:]))
    numbers = torch.bucketize(torch.arange(tokens, device="cuda"), cu, right=True)
    own = lambda b, h, i, j: numbers[i] == numbers[j]
    seen = (lambda b, h, i, j: own(b, h, i, j) & (i >= j)) if causal else own
    blocks = create_block_mask(seen, None, None, tokens, tokens, device="cuda")
    flex = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, enable_gqa=g != h))
    turned = lambda q, k, v: flex(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)
    side = (-1, 0) if causal else (-1, -1)
    # Until torch 2.12 heads are grouped without being told.
    grouped = {"enable_gqa": g != h} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    runs = {
        "mk": lambda q, k, v: mk.attention(q, k, v, causal=causal, enable_gqa=True, cu_seqlens=cu),
        "varlen": lambda q, k, v: varlen_attn(q, k, v, cu, cu, longest, longest, window_size=side, **grouped),
        "flex": turned,
    }
    sets = [inputs(bench, tokens, h, g, d, seed) + inputs(bench, tokens, h, h, d, 9 + seed)[:1] for seed in range(2)]
    if form == "even" and tokens % documents == 0:
        apart = lambda x: x.unflatten(0, (documents, -1)).transpose(1, 2)
        runs["batch"] = lambda q, k, v: mk.attention(*map(apart, (q, k, v)), causal=causal, enable_gqa=True).transpose(1, 2).flatten(0, 1)
    for given in sets:
        for x in given[:3]:
            x.requires_grad_(True)
    for name in ("varlen", "flex"):
        try:
            torch.autograd.grad(runs[name](*sets[0][:3]), sets[0][:3], sets[0][3])
        except Exception as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            del runs[name]
    pairs = h * d * sum((b - a) ** 2 for a, b in zip(ends, ends[1:])) * (0.5 if causal else 1)
    peer = [name for name in runs if name not in ("mk", "batch")][0]
    of = lambda name: runs[name](*sets[0][:3])
    judged = bench.judge([of("mk").detach()[None]], [of(peer).detach()[None]], 1e-2)
    named = f"packed {form} T{tokens} in {documents} {'causal' if causal else 'full'} H{h}:{g} D{d}"
    with torch.no_grad():
        plain = {name: (lambda i: None, lambda i, _, run=run: run(*sets[i % 2][:3])) for name, run in runs.items()}
        rates(bench, f"forward {named}", 4 * pairs, bench.time(plain), judged)
    back = {}
    for name, run in runs.items():
        before = lambda i, run=run: run(*sets[i % 2][:3])
        back[name] = (before, lambda i, y: torch.autograd.grad(y, sets[i % 2][:3], sets[i % 2][3]))
    of = lambda name: [x[None] for x in back[name][1](0, back[name][0](0))]
    rates(bench, f"backward {named}", 10 * pairs, bench.time(back), bench.judge(of("mk"), of(peer), 2e-2))


def rates(bench, named, flops, times, judged):
    batch = times.pop("batch", None)
    bench.row(named, flops, times, judged)
    if batch is not None:
        print(f"    a batch of them {batch:.3f} ms, {flops / batch / 1e9:.0f}: batch / packed {batch / times['mk']:.3f}", flush=True)


def main(bench, seed, shapes):
    drawn(bench, seed, shapes)
    captured(bench, 200)
    for shape in ROWS:
        row(bench, *shape)
    refused(bench)
