"""Functions that differentiate, on CPU tensors in a reference world: against autograd, and as torch sees the operator. Needs torch."""

import copy
import math
import os
import pickle
import subprocess
import sys
import tempfile
import unittest
import weakref

import mk
from mk._runner import Runner

try:
    import torch
    import torch._dynamo.testing
    import torch.distributed as dist
    import torch.multiprocessing as mp

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False

MLP = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter"
GATED = """fn gated(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[F, K] @ shard(0), c: bf16[K]) {
    gather(x) -> gemm(w1) -> swiglu -> gemm(w2) -> reduce_scatter -> bias(c) -> add(x)
}"""


def random(*shape, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g) * scale).bfloat16()


class _Empty:
    """A tensor of any shape."""

    def view(self, shape):
        return self

    def flatten(self, *_):
        return self

    def dim(self):
        return 2


def close(case, a, b, limit=1.5e-2):
    a, b = a.double(), b.double()
    error = ((a - b).norm() / b.norm()).item()
    case.assertLess(error, limit)


EXPERTS = """fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
         w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}"""


def experts(case, rank, ranks, world):
    """A layer of experts beside each expert by itself, on what a rank has; the last one may have fewer of both."""
    tokens, number = 8 * ranks - 3, 4 * ranks - (ranks > 1)
    x, w1, w2 = random(tokens, 16), random(number, 16, 2, 24, seed=1, scale=0.25), random(number, 24, 16, seed=2, scale=0.2)
    g = torch.Generator().manual_seed(3)
    wide_w1, wide_w2 = w1.float().requires_grad_(), w2.float().requires_grad_()
    gate, ids = torch.rand(tokens, number, generator=g).topk(3)
    # Slots of no expert, and a token of nothing else.
    ids[3, 1] = ids[4] = -1
    want, wide, wide_gate = torch.zeros(tokens, 16), x.float().requires_grad_(), gate.clone().requires_grad_()
    for e in range(number):
        token, slot = (ids == e).nonzero(as_tuple=True)
        h = torch.einsum("mk,kgf->mgf", wide[token], wide_w1[e])
        y = torch.nn.functional.silu(h[:, 0]) * h[:, 1] @ wide_w2[e]
        want = want.index_add(0, token, y * wide_gate[token, slot, None])
    d = random(tokens, 16, seed=7)
    want.backward(d.float())
    want = want.detach()
    f = mk.compile(EXPERTS, world, dims={"T": tokens, "E": number})
    mine = lambda t: t.chunk(ranks)[rank].contiguous()
    close(case, f(*map(mine, (x, ids, gate, w1, w2))), mine(want))
    case.assertIsNone(f.why)
    case.assertEqual(f.infer(*[mine(t).shape for t in (x, ids, gate, w1, w2)]), [(tuple(mine(x).shape), torch.bfloat16)])
    drops(case, rank, ranks, world)
    bad, good = ids.clone(), ids
    bad[2, 1] = bad[2, 0]
    for ids, words in ((bad, f"token 2 goes to expert {bad[2, 0].item()} twice"), (ids + 1, f"and there are {number}")):
        with case.assertRaisesRegex(mk.ArgumentError, words):
            f(*map(mine, (x, ids, gate, w1, w2)))
    own = mine(x).requires_grad_()
    f(own, *map(mine, (good, gate, w1, w2))).backward(mine(d))
    close(case, own.grad, mine(wide.grad), limit=2e-2)
    # Of weights and matrices, too; and by itself what is asked for.
    inputs = [mine(t).requires_grad_() for t in (x, gate, w1, w2)]
    dense = [mine(t.grad) for t in (wide, wide_gate, wide_w1, wide_w2)]
    y = f(inputs[0], mine(good), *inputs[1:])
    for got, by_autograd in zip(torch.autograd.grad(y, inputs, mine(d)), dense):
        case.assertEqual((got.shape, got.isfinite().all().item()), (by_autograd.shape, True))
        close(case, got, by_autograd, limit=2e-2)
    y = f(mine(x), mine(good), inputs[1], mine(w1), inputs[3])
    for got, by_autograd in zip(torch.autograd.grad(y, [inputs[1], inputs[3]], mine(d)), dense[1::2]):
        close(case, got, by_autograd, limit=2e-2)


def uneven(case, rank, ranks, world, hidden=16, ffn=24, fp8=None):
    """A layer of which ranks have unequally many tokens, one of them none, and experts, with biases, what experts of all tokens made, and all
    gradients."""
    import mk.nn

    counts = [0, 7, 130, 4][-ranks:] if ranks > 1 else [5]
    number, most, firsts = 3 * ranks - (ranks > 1), max(counts), [sum(counts[:r]) for r in range(ranks)]
    mine = lambda t: t[firsts[rank] : firsts[rank] + counts[rank]]
    layer = mk.nn.MoE(hidden, ffn, number, 2, world, bias=True, fp8=fp8)
    limit, of_gradients = (1.5e-2, 2e-2) if fp8 is None else (0.08, 0.1)
    gate_up, down = random(number, 2 * ffn, hidden, seed=1, scale=hidden**-0.5), random(number, hidden, ffn, seed=2, scale=ffn**-0.5)
    b, c = random(number, 2 * ffn, seed=8), random(number, hidden, seed=9)
    layer.load(*(t.chunk(ranks)[rank] for t in (gate_up, down, b, c)))
    x, s, d = (random(sum(counts), hidden, seed=n) for n in (3, 6, 4))
    weights, ids = torch.rand(sum(counts), number, generator=torch.Generator().manual_seed(5)).topk(2)
    dense = [t.float().requires_grad_() for t in (x, weights, s, gate_up, down, b, c)]
    rows, gate, shared, w, v, b, c = dense
    want = shared
    for e in range(number):
        g, u = (rows @ w[e].t() + b[e]).chunk(2, 1)
        want = want + ((torch.nn.functional.silu(g) * u) @ v[e].t() + c[e]) * (gate * (ids == e)).sum(1, keepdim=True)
    by_autograd = torch.autograd.grad(want, dense, d.float())
    inputs = [mine(t).clone().requires_grad_() for t in (x, weights, s)]
    y = layer(inputs[0], mine(ids), inputs[1], shared=inputs[2], tokens=most)
    got = torch.autograd.grad(y, [*inputs, layer.gate_up, layer.down, layer.gate_up_bias, layer.down_bias], mine(d))
    case.assertEqual(y.shape, (counts[rank], hidden))
    if counts[rank]:
        close(case, y.detach(), mine(want).detach(), limit)
        for a, b in zip(got[:3], by_autograd):
            close(case, a, mine(b), limit=of_gradients)
    part = lambda t: t.chunk(ranks)[rank]
    close(case, got[3], layer._turned(part(by_autograd[3])), limit=of_gradients)
    close(case, got[4], part(by_autograd[4]).transpose(1, 2), limit=of_gradients)
    close(case, got[5], part(by_autograd[5]).view(-1, 2, ffn), limit=of_gradients)
    close(case, got[6], part(by_autograd[6]), limit=of_gradients)
    if counts[rank] > 1:
        with case.assertRaisesRegex(mk.ArgumentError, f"tokens is 1, and this rank has {counts[rank]}"):
            layer(mine(x), mine(ids), mine(weights), tokens=1)
    if ranks == 4:
        with case.assertRaisesRegex(mk.ArgumentError, "experts is 6, and of 4 ranks with 2 each some have none"):
            mk.nn.MoE(16, 24, 6, 2, world)


def biased(case, rank, ranks, world):
    """Products of rows of experts, to each of which its expert's vector is added."""
    number = 2 * ranks
    x, w, b = random(12 * ranks, 16), random(number, 16, 24, seed=1), random(number, 24, seed=2)
    weights, ids = torch.rand(12 * ranks, number, generator=torch.Generator().manual_seed(3)).topk(2)
    f = mk.compile("""fn f(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), g: f32[T, K] @ shard(0), w: bf16[E, H, N] @ shard(0),
        b: bf16[E, N] @ shard(0)) { dispatch(x, ids) -> grouped_gemm(w) -> bias(b) -> silu -> combine(g) }""", world)
    want = sum(torch.nn.functional.silu(x.float() @ w[e].float() + b[e]) * (weights * (ids == e)).sum(1, keepdim=True) for e in range(number))
    mine = [t.chunk(ranks)[rank].contiguous() for t in (x, ids, weights, w, b)]
    close(case, f(*mine), want.chunk(ranks)[rank])


def drops(case, rank, ranks, world):
    """Each expert keeps the first 128 of its rows, by source and token; a token's sum leaves out what was dropped."""
    tokens, number = 200 * ranks - 3, 2 * ranks
    x, w = random(tokens, 16), random(number, 16, 8, seed=1, scale=0.25)
    g = torch.Generator().manual_seed(4)
    # Most tokens go to the first expert.
    scores = torch.rand(tokens, number, generator=g)
    scores[:, 0] += 0.5
    gate, ids = scores.topk(2)
    text = """fn f(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w: bf16[E, H, N] @ shard(0)) {
        dispatch(x, ids, capacity = R, drop) -> grouped_gemm(w) -> combine(gate)
    }"""
    f = mk.compile(text, world, dims={"T": tokens, "E": number, "R": 128 * number})
    want, dropped = torch.zeros(tokens, 8), 0
    for e in range(number):
        token, slot = (ids == e).nonzero(as_tuple=True)
        dropped += max(0, len(token) - 128)
        token, slot = token[:128], slot[:128]
        want.index_add_(0, token, x[token].float() @ w[e].float() * gate[token, slot, None])
    case.assertGreater(dropped, 0)
    mine = lambda t: t.chunk(ranks)[rank].contiguous()
    close(case, f(*map(mine, (x, ids, gate, w))), mine(want))
    with case.assertRaisesRegex(mk.ArgumentError, "raise the capacity"):
        strict = mk.compile(text.replace(", drop", ""), world, dims={"T": tokens, "E": number, "R": 128 * number})
        strict(*map(mine, (x, ids, gate, w)))


def capped(case, rank, ranks, world, device="cpu"):
    """A layer whose experts keep their first rows, beside one of all experts that leaves out the same slots: results, gradients, and how many of each
    rank's slots were dropped."""
    import mk.nn

    number, most, g = 2 * ranks, 200, torch.Generator().manual_seed(7)
    gate_up, down = random(number, 48, 16, seed=1, scale=0.25).to(device), random(number, 16, 24, seed=2, scale=0.2).to(device)
    for capacity, share, counts in ((128, 128, None), (0.64, 128, None), (0.7, 256, None), (1.3, 384, None), (0.7, 256, [200, 70, 0, 130]), (9.0, 1920, None)):
        own, counts = counts is not None, (counts or [most] * ranks)[:ranks]
        firsts = [sum(counts[:r]) for r in range(ranks + 1)]
        mine = lambda t: t[firsts[rank] : firsts[rank + 1]].clone()
        layer = mk.nn.MoE(16, 24, number, 2, world, capacity=capacity, device=device)
        layer.load(*(t.chunk(ranks)[rank] for t in (gate_up, down)))
        case.assertEqual((layer.dropped, list(layer.state_dict())), (None, ["gate_up", "down"]))
        x, s, d = (random(firsts[-1], 16, seed=n).to(device) for n in (3, 6, 4))
        # Most tokens go to the first expert, and some slots to none.
        scores = torch.rand(firsts[-1], number, generator=g).to(device)
        scores[:, 0] += 0.6
        weights, ids = scores.topk(2)
        ids[::9, 1] = -1
        # A factor is of 200 tokens of each rank and 2 slots, for 2 experts of each: 200 rows, times the factor, in whole blocks, and 200 tokens at most.
        keeps = min(share, -(-most * ranks // 128) * 128)
        before = torch.nn.functional.one_hot(ids.clamp(min=0), number).mul((ids >= 0)[..., None]).sum(1).cumsum(0).gather(1, ids.clamp(min=0))
        kept = (ids >= 0) & (before <= keeps)
        lost = mine(((ids >= 0) & ~kept).sum(1)).sum().item()
        # Too many for 128 rows; with room for all tokens, none. Between them, and of fewer tokens, either.
        case.assertTrue(own or 128 < keeps < 200 * ranks or bool(((ids >= 0) & ~kept).any()) == (keeps == 128))
        dense = [t.float().requires_grad_() for t in (x, weights, s, gate_up, down)]
        want = dense[2]
        for e in range(number):
            gate, up = (dense[0] @ dense[3][e].t()).chunk(2, 1)
            want = want + (torch.nn.functional.silu(gate) * up) @ dense[4][e].t() * (dense[1] * ((ids == e) & kept)).sum(1, keepdim=True)
        by_autograd = torch.autograd.grad(want, dense, d.float())
        inputs = [mine(t).requires_grad_() for t in (x, weights, s)]
        with torch.no_grad():
            first = layer(inputs[0], mine(ids), inputs[1], shared=inputs[2], tokens=most if own else None)
        y = layer(inputs[0], mine(ids), inputs[1], shared=inputs[2], tokens=most if own else None)
        case.assertEqual((layer.dropped.dtype, layer.dropped.tolist(), layer.dropped.requires_grad), (torch.int32, [lost], False))
        case.assertTrue(torch.equal(first, y))
        if ranks == 1 and not own:
            torch._dynamo.reset()
            layer.dropped = None
            again = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")(inputs[0], mine(ids), inputs[1], shared=inputs[2])
            case.assertEqual((torch.equal(again, y), layer.dropped.tolist()), (True, [lost]))
        got = torch.autograd.grad(y, [*inputs, layer.gate_up, layer.down], mine(d))
        if counts[rank]:
            close(case, y.detach(), mine(want).detach())
            for a, b in zip(got[:3], by_autograd):
                close(case, a, mine(b), limit=2e-2)
        case.assertEqual(got[1][~mine(kept)].abs().sum().item(), 0)
        close(case, got[3], layer._turned(by_autograd[3].chunk(ranks)[rank]), limit=2e-2)
        close(case, got[4], by_autograd[4].chunk(ranks)[rank].transpose(1, 2), limit=2e-2)


    for capacity, error in ((100, "give 128 rows"), (0.0, "must be above 0"), (math.nan, "must be above 0"), (0, "must be 1 or more")):
        with case.assertRaisesRegex(mk.ArgumentError, error):
            mk.nn.MoE(16, 24, number, 2, world, capacity=capacity)
    with case.assertRaisesRegex(mk.UnsupportedError, "leave out fp8, or capacity"):
        mk.nn.MoE(128, 128, number, 2, world, capacity=128, fp8="1x128")


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class OneRank(unittest.TestCase):
    def setUp(self):
        self.world = mk.World.reference()

    def mlp(self, rows=24, **options):
        f = mk.compile(MLP, self.world, **options)
        tensors = [random(rows, 16), random(16, 40, seed=1, scale=0.25), random(40, 16, seed=2, scale=0.16)]
        return f, [t.requires_grad_() for t in tensors]

    def dense(self, x, w1, w2):
        return torch.nn.functional.gelu(x.float() @ w1.float()) @ w2.float()

    def test_gradients(self):
        for save in ("all", "shard", "pre", "least"):
            f, tensors = self.mlp(save=save)
            y = f(*tensors)
            d = random(*y.shape, seed=3)
            got = torch.autograd.grad(y, tensors, d)
            want = torch.autograd.grad(self.dense(*tensors), tensors, d.float())
            close(self, y, self.dense(*tensors))
            for a, b in zip(got, want):
                self.assertEqual(a.dtype, torch.bfloat16)
                close(self, a, b)

    def test_what_a_choice_saves_is_said_ahead(self):
        shapes = [(24, 16), (16, 40), (40, 16)]
        said = mk.compile(MLP, self.world).saves(*shapes)
        self.assertEqual([s.save for s in said], ["all", "pre"])  # nothing is gathered on one rank
        for s in said:
            f, tensors = self.mlp(save=s.save)
            kept = {}

            def pack(t):
                kept[t.data_ptr()] = t.nbytes
                return t

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                y = f(*tensors)
            for t in tensors:
                kept.pop(t.data_ptr(), None)
            self.assertEqual(s.saved_bytes, sum(kept.values()), s.save)
            self.assertGreater(s.peak_bytes, s.saved_bytes + y.nbytes)
        self.assertGreater(said[0].saved_bytes, said[1].saved_bytes)
        self.assertGreater(said[0].predicted_ms, 0)
        with self.assertRaisesRegex(mk.ArgumentError, "w1"):
            mk.compile(MLP, self.world).saves((24, 16), (17, 40), (40, 16))

    def test_only_what_is_wanted_is_computed(self):
        f, (x, w1, w2) = self.mlp()
        y = f(x.detach(), w1, w2.detach())
        (g,) = torch.autograd.grad(y.float().sum(), [w1])
        close(self, g, torch.autograd.grad(self.dense(x.detach(), w1, w2).sum(), [w1])[0])
        self.assertNotIn("w2_backward", f.backward)

    def test_a_bias_a_residual_and_gates(self):
        f = mk.compile(GATED, self.world)
        x, w1 = random(24, 16).requires_grad_(), random(16, 2, 40, seed=1, scale=0.25).requires_grad_()
        w2, c = random(40, 16, seed=2, scale=0.16).requires_grad_(), random(16, seed=4).requires_grad_()
        h = lambda x, w1: torch.einsum("mk,kgf->mgf", x.float(), w1.float())
        dense = torch.nn.functional.silu(h(x, w1)[:, 0]) * h(x, w1)[:, 1] @ w2.float() + c.float() + x.float()
        y = f(x, w1, w2, c)
        d = random(*y.shape, seed=3)
        for a, b in zip(torch.autograd.grad(y, [x, w1, w2, c], d), torch.autograd.grad(dense, [x, w1, w2, c], d.float())):
            close(self, a, b)

    def test_experts(self):
        experts(self, 0, 1, self.world)
        uneven(self, 0, 1, self.world)
        uneven(self, 0, 1, self.world, 144, 128, "1x128")
        capped(self, 0, 1, self.world)
        text = "fn f(x: bf16[R, K], counts: i32[E], w: bf16[E, K, N]) { ragged(x, counts) -> grouped_gemm(w) }"
        x, w, counts = random(512, 16), random(3, 16, 8, seed=1, scale=0.25), torch.tensor([130, 0, 5], dtype=torch.int32)
        got = mk.compile(text, self.world)(x, counts, w)
        close(self, got[:130], x[:130].float() @ w[0].float())
        close(self, got[256:261], x[256:261].float() @ w[2].float())
        with self.assertRaisesRegex(mk.ArgumentError, "take 6 blocks, and the capacity is 4"):
            mk.compile(text, self.world)(x, counts + 127, w)

    def test_rows_of_experts_have_gradients(self):
        import mk.nn

        layer = mk.nn.GroupedMLP(16, 24, 3, self.world)
        gate_up, down = random(3, 48, 16, seed=1, scale=0.25), random(3, 16, 24, seed=2, scale=0.2)
        layer.load(gate_up, down)
        # Pads have no value, and one expert no rows.
        spans, counts = [(0, 130), (256, 0), (256, 5)], torch.tensor([130, 0, 5], dtype=torch.int32)
        x, d = torch.full((512, 16), float("nan")).bfloat16(), torch.full((512, 16), float("nan")).bfloat16()
        for first, n in spans:
            x[first : first + n], d[first : first + n] = random(n, 16, seed=3), random(n, 16, seed=4)
        x.requires_grad_()
        y = layer(x, counts)
        got = torch.autograd.grad(y, [x, layer.gate_up, layer.down], d)
        dense = [t.detach().float().requires_grad_() for t in (x, layer.gate_up, layer.down)]
        rows, w, v = dense
        want, given = [], []
        for e, (first, n) in enumerate(spans):
            gate, up = (rows[first : first + n] @ w[e].flatten(1)).chunk(2, 1)
            want.append(torch.nn.functional.silu(gate) * up @ v[e])
            given.append(d[first : first + n].float())
            if n:
                close(self, y[first : first + n], want[-1])
        for a, b in zip(got[1:], torch.autograd.grad(torch.cat(want), [w, v], torch.cat(given), retain_graph=True)):
            self.assertEqual(a[1].abs().max().item(), 0)
            close(self, a, b)
        b = torch.autograd.grad(torch.cat(want), rows, torch.cat(given))[0]
        for first, n in spans:
            if n:
                close(self, got[0][first : first + n], b[first : first + n])
        # As transformers and Megatron keep them.
        for state in ({"gate_up_proj": gate_up, "down_proj": down},
                      {f"linear_fc{i}.weight{e}": t[e] for i, t in ((1, gate_up), (2, down)) for e in range(3)}):
            other = mk.nn.GroupedMLP(16, 24, 3, self.world)
            other.load_state_dict(state)
            self.assertTrue(torch.equal(other.gate_up, layer.gate_up) and torch.equal(other.down, layer.down))

    def test_experts_have_biases(self):
        import mk.nn

        gate_up, down = random(4, 48, 16, seed=1, scale=0.25), random(4, 16, 24, seed=2, scale=0.2)
        b, c = random(4, 48, seed=3), random(4, 16, seed=4)
        counts, spans = torch.tensor([130, 0, 5, 1], dtype=torch.int32), [(0, 130), (256, 0), (256, 5), (384, 1)]
        weights, ids = random(9, 4, seed=5).float().softmax(-1).topk(2)
        rows, gate, whose = [], [], []
        for e in range(4):
            t, j = (ids == e).nonzero(as_tuple=True)
            rows, gate, whose = [*rows, t], [*gate, weights[t, j]], [*whose, *[e] * len(t)]
        for moe in (False, True):
            layer = mk.nn.MoE(16, 24, 4, 2, self.world, bias=True) if moe else mk.nn.GroupedMLP(16, 24, 4, self.world, bias=True)
            layer.load(gate_up, down, b, c)
            x, d = random(9 if moe else 512, 16, seed=6).requires_grad_(), random(9 if moe else 512, 16, seed=7)
            parameters = [layer.gate_up, layer.down, layer.gate_up_bias, layer.down_bias]
            call = (lambda l: l(x, ids, weights)) if moe else (lambda l: l(x, counts))
            got = torch.autograd.grad(call(layer), [x, *parameters], d)
            dense = [t.detach().float().requires_grad_() for t in (x, *parameters)]
            wide, w, v, bias, last = dense
            of = [(rows[e], gate[e]) if moe else (torch.arange(n) + first, torch.ones(n)) for e, (first, n) in enumerate(spans)]
            want = torch.zeros(*x.shape)
            for e, (t, g) in enumerate(of):
                h = torch.einsum("mk,kgf->mgf", wide[t], w[e]) + bias[e]
                y = (torch.nn.functional.silu(h[:, 0]) * h[:, 1]) @ v[e] + last[e]
                want = want.index_add(0, t, y * g[:, None])
            there = torch.cat([t for t, _ in of]).unique()
            close(self, call(layer)[there], want[there])
            for i, (a, by_autograd) in enumerate(zip(got, torch.autograd.grad(want, dense, d.float()))):
                a, by_autograd = (a[there], by_autograd[there]) if i == 0 else (a, by_autograd)
                self.assertEqual(a.shape, by_autograd.shape)
                close(self, a, by_autograd, limit=2e-2)
            # Some alone, and whole in a graph.
            for i in (3, 4):
                self.assertTrue(torch.equal(torch.autograd.grad(call(layer), [x, *parameters][i], d)[0], got[i]))
            whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
            for a, again in zip(got, torch.autograd.grad(call(whole), [x, *parameters], d)):
                self.assertTrue(torch.equal(a, again))
            for state in ({"gate_up_proj": gate_up, "down_proj": down, "gate_up_proj_bias": b, "down_proj_bias": c},
                          {f"linear_fc{i}.{kind}{e}": t[e] for (i, kind), t in
                           {(1, "weight"): gate_up, (2, "weight"): down, (1, "bias"): b, (2, "bias"): c}.items() for e in range(4)}):
                layer.load_state_dict(state)
                self.assertTrue(torch.equal(layer.gate_up_bias, b.view(4, 2, 24)) and torch.equal(layer.down_bias, c))
            with self.assertRaisesRegex(mk.ArgumentError, "the layer has biases"):
                layer.load(gate_up, down)
        with self.assertRaisesRegex(mk.ArgumentError, "the layer has no biases"):
            mk.nn.MoE(16, 24, 4, 2, self.world).load(gate_up, down, b, c)

    def test_layers_of_experts_train(self):
        from torch.utils.checkpoint import checkpoint
        import mk.nn

        layer = mk.nn.MoE(16, 24, 6, 2, self.world)
        gate_up, down = random(6, 48, 16, seed=1, scale=0.25), random(6, 16, 24, seed=2, scale=0.2)
        layer.load(gate_up, down)
        x, d = random(2, 9, 16, seed=3).requires_grad_(), random(2, 9, 16, seed=4)
        weights, ids = random(2, 9, 6, seed=5).float().softmax(-1).topk(2)
        weights.requires_grad_()
        inputs = [x, weights, layer.gate_up, layer.down]
        y = layer(x, ids, weights)
        got = torch.autograd.grad(y, inputs, d)
        rows, w, v, gate = (t.detach().float().requires_grad_() for t in (x, layer.gate_up, layer.down, weights))
        want = 0
        for e in range(6):
            hidden = torch.einsum("btk,kgf->btgf", rows, w[e])
            of_e = (gate * (ids == e)).sum(-1, keepdim=True)
            want = want + (torch.nn.functional.silu(hidden[..., 0, :]) * hidden[..., 1, :]) @ v[e] * of_e
        close(self, y, want)
        for a, b in zip(got, torch.autograd.grad(want, [rows, gate, w, v], d.float())):
            close(self, a, b, limit=2e-2)
        self.assertEqual(got[1].dtype, torch.float32)
        # The same bits again, and whole in a graph.
        for again in (lambda: checkpoint(layer, x, ids, weights, use_reentrant=False),
                      lambda: torch.compile(layer, fullgraph=True, backend="aot_eager")(x, ids.int(), weights)):
            for a, b in zip(torch.autograd.grad(again(), inputs, d), got):
                self.assertTrue(torch.equal(a, b))
        for state in ({"gate_up_proj": gate_up, "down_proj": down},
                      {f"linear_fc{i}.weight{e}": t[e] for i, t in ((1, gate_up), (2, down)) for e in range(6)}):
            other = mk.nn.MoE(16, 24, 6, 2, self.world)
            other.load_state_dict(state)
            self.assertTrue(torch.equal(other(x, ids, weights), y))
        none = layer(x[:0], ids[:0], weights[:0])
        self.assertEqual(none.shape, (0, 9, 16))
        for of_none, t in zip(torch.autograd.grad(none, inputs, d[:0]), inputs):
            self.assertEqual((of_none.shape, of_none.abs().max().item()), (t.shape, 0))
        any_number = mk.compile(
            "fn f<T: dyn <= 64>(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w: bf16[E, H, H] @ shard(0))"
            " { dispatch(x, ids) -> grouped_gemm(w) -> combine(gate) }", self.world)
        w = random(6, 16, 16, seed=8)
        for n in (0, 9):
            y = any_number(x[0, :n].detach(), ids[0, :n], weights[0, :n].detach(), w)
            self.assertEqual(y.shape, (n, 16))
        with self.assertRaisesRegex(mk.ArgumentError, "top_k is 7, of 6 experts"):
            mk.nn.MoE(16, 24, 6, 7, self.world)
        with self.assertRaisesRegex(mk.ArgumentError, "has 2 columns"):
            layer(x, ids[..., :1], weights)

    def test_dropped_rows_have_no_gradients(self):
        f = mk.compile(
            """fn f(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w: bf16[E, H, 2, F] @ shard(0),
                v: bf16[E, F, H] @ shard(0)) {
                dispatch(x, ids, capacity = 384, drop) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
            }""", self.world)
        n = 140
        tensors = [random(n, 16, seed=1), random(n, 2, seed=2).float(), random(3, 16, 2, 24, seed=3, scale=0.25), random(3, 24, 16, seed=4, scale=0.2)]
        d, ids = random(n, 16, seed=5), torch.stack([torch.zeros(n, dtype=torch.long), 1 + torch.arange(n) % 2], 1)
        kept = (ids != 0) | (torch.arange(n)[:, None] < 128)
        # Also where kernels of the backward dispatch nothing.
        for wanted in ([0, 1, 2, 3], [1], [2]):
            given = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
            y = f(given[0], ids, *given[1:])
            got = torch.autograd.grad(y, [given[i] for i in wanted], d)
            x, gate, w, v = dense = [t.float().clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
            want = 0
            for e in range(3):
                h = torch.einsum("tk,kgf->tgf", x, w[e])
                want = want + (torch.nn.functional.silu(h[:, 0]) * h[:, 1]) @ v[e] * (gate * ((ids == e) & kept)).sum(1, keepdim=True)
            close(self, y, want)
            for a, b in zip(got, torch.autograd.grad(want, [dense[i] for i in wanted], d.float())):
                close(self, a, b, limit=2e-2)
            if 1 in wanted:
                self.assertEqual(got[wanted.index(1)][~kept].abs().max().item(), 0)

    def test_opcheck(self):
        f, tensors = self.mlp()
        f(*tensors)
        for key, given in ((f._key, [t.detach() for t in tensors]), (f._train._key, tensors)):
            torch.library.opcheck(torch.ops.mk.call.default, (given, key), rtol=2e-2, atol=2e-2)

    def test_compile_with_dynamic_shapes(self):
        f, tensors = self.mlp()
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        step = torch.compile(lambda *t: f(*t).float().square().mean(), fullgraph=True, dynamic=True, backend=counter)
        for rows in (24, 40, 72):
            _, tensors = self.mlp(rows)
            got = torch.autograd.grad(step(*tensors), tensors)
            want = torch.autograd.grad(f(*tensors).float().square().mean(), tensors)
            for a, b in zip(got, want):
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-5)
        self.assertEqual(counter.frame_count, 1)

    def test_checkpointing(self):
        from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
        from functools import partial

        f, tensors = self.mlp()
        plain = torch.autograd.grad(f(*tensors).float().sum(), tensors)
        policy = lambda ctx, op, *args, **kwargs: (
            CheckpointPolicy.MUST_SAVE if op == torch.ops.mk.call.default else CheckpointPolicy.PREFER_RECOMPUTE
        )
        for context in ({}, {"context_fn": partial(create_selective_checkpoint_contexts, policy)}):
            y = checkpoint(lambda *t: f(*t).float().sum(), *tensors, use_reentrant=False, **context)
            for a, b in zip(torch.autograd.grad(y, tensors), plain):
                self.assertTrue(torch.equal(a, b))

    def test_flops_are_counted(self):
        from torch.utils.flop_counter import FlopCounterMode

        f, tensors = self.mlp()
        with FlopCounterMode(display=False) as counter:
            f(*tensors).float().sum().backward()
        self.assertEqual(counter.get_total_flops(), 3 * 2 * 2 * 24 * 16 * 40)

    def test_what_is_saved_is_freed_behind_the_kernel_that_reads_it_last(self):
        text = "fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) { " \
               "gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter }"
        backward = mk._mk._derive(text, None, gather_again=False, activate_again=False, into=[])["backward"]
        runner = Runner(backward, mk.World.offline(2), {})
        sizes = {"M": 8192, "K": 4096, "F": 14336}
        steps, alive, most = runner.steps(sizes), [], []
        self.assertGreater(len(steps), 3)

        def stands_in_for(step):
            def run(*inputs):
                # What is read later, and what this kernel reads.
                most.append(sum(ref() is not None for ref in alive))
                made = [_Empty() for _ in step["results"]]
                alive.extend(map(weakref.ref, made))
                return made

            return run

        for step in steps:
            step[2] = stands_in_for(step[0])
        given = [_Empty() for _ in runner.parameters]
        alive.extend(map(weakref.ref, given))
        results = runner._steps_of(torch, steps, sizes, given, {})
        self.assertEqual(given, [])
        # d_out, v, v5, v4, w, v3; then v5, w, v3 and the two results of the first kernel; without the operands of v's gradient, with it; …
        self.assertEqual(most, [6, 5, 4, 4])
        self.assertEqual(sum(ref() is not None for ref in alive), len(results))

    def test_kernels_of_a_step_add_to_f32_matrices_in_their_place(self):
        text = "fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) { " \
               "gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter }"
        derived = mk._mk._derive(text, None, gather_again=False, activate_again=False, into=[1, 2])
        runner, sizes, brought = Runner(derived["backward"], mk.World.offline(2), {}), {"M": 64, "K": 32, "F": 96}, []
        shape = lambda i: runner.local(runner.values[i], sizes)
        steps = runner.steps(sizes)

        def stands_in_for(step):
            def run(*_, out=None):
                # To a kernel, what is [.., 2, F] is a matrix.
                shapes = [[*shape(i)[:-2], math.prod(shape(i)[-2:])] if i in step["flat"] else list(shape(i)) for i in step["results"]]
                out = [torch.empty(s) for s in shapes] if out is None else out if isinstance(out, list) else [out]
                self.assertEqual([list(t.shape) for t in out], shapes)
                brought.extend(t.data_ptr() for t in out)
                return out

            return run

        for step in steps:
            step[2] = stands_in_for(step[0])
        self.assertTrue(any(step["flat"] for step, *_ in steps))
        results = [i for _, i in runner.program["results"]]
        mains = {i: torch.zeros(shape(i)) for i in results[1:]}
        runner._steps_of(torch, steps, sizes, [torch.empty(runner.local(v, sizes)) for v in runner.parameters], mains)
        self.assertLessEqual({t.data_ptr() for t in mains.values()}, set(brought))

    def test_a_retained_graph_keeps_what_is_saved(self):
        f = mk.compile(MLP, self.world)
        x, w1, w2 = (random(*s, seed=i).requires_grad_() for i, s in enumerate([(32, 64), (64, 256), (256, 64)]))
        y = f(x, w1, w2)
        first = torch.autograd.grad(y, [x, w1, w2], random(32, 64, seed=9), retain_graph=True)
        again = torch.autograd.grad(y, [x, w1, w2], random(32, 64, seed=9))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(first, again)))
        with self.assertRaisesRegex(RuntimeError, "second time"):
            torch.autograd.grad(y, [x, w1, w2], random(32, 64, seed=9))

    def test_autocast(self):
        f, tensors = self.mlp()
        wide = [t.detach().float().requires_grad_() for t in tensors]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = f(*wide)
        self.assertEqual(y.dtype, torch.bfloat16)
        self.assertEqual(torch.autograd.grad(y.float().sum(), wide)[1].dtype, torch.float32)
        with self.assertRaisesRegex(mk.ArgumentError, "`x` is f32"):
            f(*wide)

    def test_tangents_are_refused(self):
        f, tensors = self.mlp()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(tensors[0].detach(), tensors[0].detach())
            with self.assertRaisesRegex(mk.UnsupportedError, "`x` has a tangent"):
                f(dual, *tensors[1:])

    def test_second_derivatives_are_refused(self):
        f, tensors = self.mlp()
        (g,) = torch.autograd.grad(f(*tensors).float().sum(), tensors[:1], create_graph=True)
        with self.assertRaisesRegex(mk.UnsupportedError, "no backward"):
            torch.autograd.grad(g.float().sum(), tensors[1:2])

    def test_without_a_backward(self):
        f = mk.compile("gemm(a, b) -> gelu_grad(h)", self.world)
        a, b, h = random(8, 16), random(16, 8, seed=1), random(8, 8, seed=2)
        self.assertIsNone(f.backward)
        with self.assertRaisesRegex(mk.UnsupportedError, "a derivative itself"):
            f(a.requires_grad_(), b, h)
        f(a.detach(), b, h)

    def test_three_dimensions(self):
        f, (x, w1, w2) = self.mlp()
        y = f(x.view(2, 12, 16), w1, w2)
        self.assertEqual(y.shape, (2, 12, 16))
        self.assertTrue(torch.equal(y.view(24, 16), f(x, w1, w2)))
        self.assertEqual(f.infer((24, 16), (16, 40), (40, 16)), [((24, 16), torch.bfloat16)])

    def micro_batches(self, f, weights, step, in_flight=2):
        """Four batches into f32 matrices, some of them in flight at once; their errors against f64."""
        exact = [torch.zeros(w.shape, dtype=torch.float64) for w in weights]
        batches = [(random(24, 16, seed=10 + i), random(24, 16, seed=20 + i)) for i in range(4)]
        for i in range(0, 4, in_flight):
            for y, d in [(step(x), d) for x, d in batches[i : i + in_flight]]:
                y.backward(d)
        for x, d in batches:
            wide = [w.detach().double().requires_grad_() for w in weights]
            y = x.double() @ wide[0] if len(wide) == 1 else torch.nn.functional.gelu(x.double() @ wide[0]) @ wide[1]
            for sum, g in zip(exact, torch.autograd.grad(y, wide, d.double())):
                sum += g
        return [((w.main_grad.double() - sum).norm() / sum.norm()).item() for w, sum in zip(weights, exact)]

    def test_gradients_are_added_to_f32_matrices(self):
        w = torch.nn.Parameter(random(16, 16, seed=1, scale=0.25))
        w.main_grad = torch.zeros(16, 16)
        f = mk.compile("gather(x) -> gemm(w)", self.world, grads={"w": "main_grad"})
        self.assertIn("main_w", f.backward)
        self.assertIsNot(f, mk.compile("gather(x) -> gemm(w)", self.world))
        (error,) = self.micro_batches(f, [w], lambda x: f(x.requires_grad_(), w))
        self.assertLess(error, 1e-6)
        self.assertIsNone(w.grad)
        # In a compiled step, too, one after the other: it takes a matrix that changes meanwhile for a mistake.
        w.main_grad.zero_()
        torch._dynamo.reset()
        step = torch.compile(lambda x: f(x, w), fullgraph=True, dynamic=True, backend="aot_eager")
        (error,) = self.micro_batches(f, [w], lambda x: step(x.requires_grad_()), 1)
        self.assertLess(error, 1e-6)
        w1, w2 = torch.nn.Parameter(random(16, 40, seed=1, scale=0.25)), torch.nn.Parameter(random(40, 16, seed=2, scale=0.16))
        w1.main_grad, w2.main_grad = torch.zeros(16, 40), torch.zeros(40, 16)
        f = mk.compile(MLP, self.world, grads={"w1": "main_grad", "w2": "main_grad"})
        for error in self.micro_batches(f, [w1, w2], lambda x: f(x.requires_grad_(), w1, w2)):
            self.assertLess(error, 5e-3)
        x = random(24, 16).requires_grad_()
        checkpointed = torch.utils.checkpoint.checkpoint(f, x, w1, w2, use_reentrant=False)
        before, _ = w1.main_grad.clone(), checkpointed.float().sum().backward()
        self.assertGreater((w1.main_grad - before).norm(), 0)
        self.assertIsNotNone(x.grad)
        # A weight that wants none.
        before = w1.main_grad.clone()
        f(random(24, 16), w1.detach(), w2).float().sum().backward()
        self.assertTrue(torch.equal(w1.main_grad, before))

    def test_f32_matrices_that_do_not_fit(self):
        f = mk.compile("gather(x) -> gemm(w)", self.world, grads={"w": "main_grad"})
        x, w = random(24, 16), torch.nn.Parameter(random(16, 16, seed=1))
        with self.assertRaisesRegex(mk.ArgumentError, "`w` has no `main_grad`"):
            f(x, w)
        w.main_grad = torch.zeros(16, 16, dtype=torch.bfloat16)
        with self.assertRaisesRegex(mk.ArgumentError, "must be contiguous, float32"):
            f(x, w)
        with self.assertRaisesRegex(mk.ArgumentError, "grads has `v`"):
            mk.compile("gather(x) -> gemm(w)", self.world, grads={"v": "main_grad"})
        with self.assertRaisesRegex(mk.UnsupportedError, "the gradient of `c` is not"):
            mk.compile("gather(x) -> gemm(w) -> bias(c)", self.world, grads={"c": "main_grad"})

    def test_transposed_views_are_read_as_they_lie(self):
        f, (x, w1, w2) = self.mlp()
        linear = w1.detach().t().contiguous().requires_grad_()
        y = f(x, linear.t(), w2)
        self.assertTrue(torch.equal(y, f(x, w1, w2)))
        (g,) = torch.autograd.grad(y.float().square().mean(), [linear])
        (want,) = torch.autograd.grad(f(x, w1, w2).float().square().mean(), [w1])
        self.assertTrue(g.is_contiguous())
        close(self, g, want.t(), 1e-2)
        with self.assertRaisesRegex(mk.ArgumentError, "something other than `gemm` reads it"):
            f(x.detach().t().contiguous().t(), w1, w2)
        back = mk.compile("gemm(x, w.t)", self.world)
        self.assertTrue(torch.equal(back(x, w1.detach()[:, :16].contiguous().t()), mk.compile("gemm(x, w)", self.world)(x, w1.detach()[:, :16].contiguous())))

    def test_layers_of_a_gated_block_are_loaded(self):
        import mk.nn

        block = mk.nn.GatedMLP(16, 40, self.world)
        gate, up, down = random(40, 16), random(40, 16, seed=1), random(16, 40, seed=2)
        for names in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")):
            with torch.no_grad():
                block.gate_up.zero_()
            block.load_state_dict({f"{n}.weight": t for n, t in zip(names, (gate, up, down))})
            self.assertTrue(torch.equal(block.gate, gate) and torch.equal(block.up, up) and torch.equal(block.down, down.t()))
        block.load_fused(torch.cat([up, gate]), down)
        self.assertTrue(torch.equal(block.gate, up) and torch.equal(block.up, gate))
        block.load_state_dict(block.state_dict())

    def test_attention(self):
        attention(self, 0, 1, self.world)

    def test_recovery_of_a_reference_world_is_nothing(self):
        f, tensors = self.mlp()
        before = f(*tensors)
        mk.recover(self.world)
        self.assertTrue(torch.equal(f(*tensors), before))

    def test_handles_are_shared(self):
        f, tensors = self.mlp()
        self.assertIs(f, mk.compile(MLP, self.world))
        self.assertIsNot(f, mk.compile(MLP, self.world, save="shard"))
        self.assertIsNot(f, mk.compile(MLP, mk.World.reference()))
        self.assertIs(copy.deepcopy(f), f)
        self.assertIs(pickle.loads(pickle.dumps(f)), f)
        own = mk.compile(MLP, self.world, share=False)
        self.assertIsNot(own, f)
        self.assertTrue(torch.equal(own(*tensors), f(*tensors)))
        layers = [mk.compile(MLP, self.world) for _ in range(40)]
        self.assertEqual(len({id(layer) for layer in layers}), 1)

    def test_the_operator_is_defined_once_by_threads_that_compile(self):
        text = """
import sys, threading
import torch, mk
sys.setswitchinterval(1e-6)
world, barrier, wrong = mk.World.reference(), threading.Barrier(8), []
def one(i):
    barrier.wait()
    try:
        mk.compile("gemm(a, b)" + " -> relu" * i, world, share=False)
    except Exception as e:
        wrong.append(e)
threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong, wrong
"""
        subprocess.run([sys.executable, "-c", text], check=True)


def on_ranks(rank, ranks, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    try:
        pairs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
        gradients(rank, ranks, dist.group.WORLD)
        gradients(rank % 2, 2, pairs[rank // 2])
        experts(unittest.TestCase(), rank, ranks, mk.World.reference())
        uneven(unittest.TestCase(), rank, ranks, mk.World.reference())
        uneven(unittest.TestCase(), rank, ranks, mk.World.reference(), 144, 128, "1x128")
        capped(unittest.TestCase(), rank, ranks, mk.World.reference())
        biased(unittest.TestCase(), rank, ranks, mk.World.reference())
    finally:
        dist.destroy_process_group()


def gradients(rank, ranks, group):
    case = unittest.TestCase()
    world = mk.World.reference(group)
    part = lambda t, dim: t.chunk(ranks, dim)[rank].contiguous().requires_grad_()
    whole = [random(48, 16), random(16, 2, 48, seed=1, scale=0.25), random(48, 16, seed=2, scale=0.16), random(16, seed=4)]
    local = [part(whole[0], 0), part(whole[1], 2), part(whole[2], 0), whole[3].clone().requires_grad_()]
    dense = [t.float().requires_grad_() for t in whole]
    x, w1, w2, c = dense
    h = torch.einsum("mk,kgf->mgf", x, w1)
    want = torch.nn.functional.silu(h[:, 0]) * h[:, 1] @ w2 + c + x
    d = random(48, 16, seed=3)
    wants = torch.autograd.grad(want, dense, d.float())
    f = mk.compile(GATED, world)
    y = f(*local)
    close(case, y, want.chunk(ranks)[rank])
    gots = torch.autograd.grad(y, local, d.chunk(ranks)[rank].contiguous())
    for got, whole, dim in zip(gots, wants, (0, 2, 0, None)):
        close(case, got, whole if dim is None else whole.chunk(ranks, dim)[rank])
    layers(case, rank, ranks, world)
    attention(case, rank, ranks, world)
    # Shards that are not even, with the global shape.
    f = mk.compile("gather(x) -> gemm(w)", world, shapes={"x": (45, 16), "w": (16, 40)})
    x, w = random(45, 16), random(16, 40, seed=1)
    mine = [x.chunk(ranks)[rank].contiguous().requires_grad_(), part(w, 1)]
    y = f(*mine)
    close(case, y, (x.float() @ w.float()).chunk(ranks, 1)[rank])
    dx, dw = torch.autograd.grad(y, mine, torch.ones_like(y))
    close(case, dx, (torch.ones(45, 40) @ w.float().t()).chunk(ranks)[rank])
    close(case, dw, (x.float().t() @ torch.ones(45, 40)).chunk(ranks, 1)[rank])


def attention(case, rank, ranks, world):
    """A ring, masked and not, in shards and in zigzag, against torch's, with its gradients."""
    shapes = {"q": (2, 45, 4, 8), "k": (2, 45, 2, 8), "v": (2, 45, 2, 8)}
    for placement, mask in (("shard", ""), ("shard", ", causal"), ("zigzag", ", causal, scale = 0.3")):
        kv = f"bf16[B, S, G, D] @ {placement}(1)"
        q = kv.replace("G", "H")
        body = f"let o = ring(k, v) -> attention(q{mask}); (o, o -> lse)"
        f = mk.compile(f"fn f(q: {q}, k: {kv}, v: {kv}) {{ {body} }}", world, shapes=shapes)
        whole = [random(*shape, seed=seed) for seed, shape in enumerate(shapes.values())]
        of = [i for part in world.along(None).places(45, placement) for i in part]
        mine = [x[:, of].clone().requires_grad_() for x in whole]
        dense = [x.float().requires_grad_() for x in whole]
        heads = [x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in dense]
        scale = 0.3 if "scale" in mask else 8**-0.5
        want = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal="causal" in mask, scale=scale).transpose(1, 2)
        scores = heads[0] @ heads[1].transpose(2, 3) * scale
        if mask:
            scores = scores.masked_fill(torch.ones(45, 45).triu(1).bool(), float("-inf"))
        o, logs = f(*mine)
        close(case, o, want[:, of])
        close(case, logs, scores.logsumexp(-1)[:, :, of], 1e-5)
        d = random(2, 45, 4, 8, seed=3)
        got = torch.autograd.grad(o, mine, d[:, of].contiguous())
        for x, y in zip(got, torch.autograd.grad(want, dense, d.float())):
            close(case, x, y[:, of])
    # The same without a text.
    whole = [random(2, 48, heads, 8, seed=heads).transpose(1, 2) for heads in (4, 2, 2)]
    want = mk.attention(*whole, causal=True, window=20, enable_gqa=True)
    for placement in ("shard", "zigzag"):
        of = [i for part in world.along(None).places(48, placement) for i in part]
        mine = [x[:, :, of] for x in whole]
        o = mk.attention(*mine, causal=True, window=20, enable_gqa=True, world=world, placement=placement)
        close(case, o, want[:, :, of])


def layers(case, rank, ranks, world):
    """A column-parallel and a row-parallel layer in sequence, against torch.nn.Linear; tokens sharded and not."""
    import mk.nn

    up, down = torch.nn.Linear(16, 48), torch.nn.Linear(48, 16)
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in [*up.parameters(), *down.parameters()]:
            p.copy_((torch.randn(p.shape, generator=g) * 0.2).bfloat16())
    x, d = random(24, 16), random(24, 16, seed=3)
    wide = x.float().requires_grad_()
    want = down(torch.nn.functional.gelu(up(wide)))
    want.backward(d.float())
    for sequence in (True, False):
        first = mk.nn.ColumnParallelLinear(16, 48, world, sequence_parallel=sequence)
        last = mk.nn.RowParallelLinear(48, 16, world, sequence_parallel=sequence)
        again = mk.nn.ColumnParallelLinear(16, 48, world, sequence_parallel=sequence)
        case.assertIs(first.function, copy.deepcopy(again).function)
        with torch.no_grad():
            first.weight.copy_(up.weight.chunk(ranks)[rank])
            first.bias.copy_(up.bias.chunk(ranks)[rank])
            last.weight.copy_(down.weight.chunk(ranks, 1)[rank])
            last.bias.copy_(down.bias)
        mine = (lambda t: t.chunk(ranks)[rank].contiguous()) if sequence else (lambda t: t)
        own = mine(x).clone().requires_grad_()
        y = last(torch.nn.functional.gelu(first(own)))
        close(case, y, mine(want))
        y.backward(mine(d))
        close(case, own.grad, mine(wide.grad))
        close(case, first.weight.grad, up.weight.grad.chunk(ranks)[rank])
        close(case, first.bias.grad, up.bias.grad.chunk(ranks)[rank])
        close(case, last.weight.grad, down.weight.grad.chunk(ranks, 1)[rank])
        close(case, last.bias.grad, down.bias.grad)
    state = first.state_dict()
    case.assertEqual(sorted(state), ["bias", "weight"])


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class SeveralRanks(unittest.TestCase):
    def test_gradients(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_ranks, (4, os.path.join(folder, "store")), nprocs=4)


if __name__ == "__main__":
    unittest.main()
