"""``mk.attention`` on CPU tensors, against torch's and against dense masks in float64, with gradients, eager and compiled. Needs torch."""

import random
import tempfile
import unittest

import mk

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    HAS_TORCH = hasattr(torch, "library") and hasattr(torch, "compile")
except ImportError:
    HAS_TORCH = False


def dense(q, k, v, causal, window, softcap, scale, sinks=None):
    """Results and logarithms in float64; queries and keys end at one place."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    behind = torch.arange(-q.shape[2], 0)[:, None] - torch.arange(-k.shape[2], 0)[None, :]
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if causal:
        hidden = (behind < 0) | (behind >= (window or k.shape[2] + 1))
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)], 3)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], 2)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=-1e30)
    weights = (scores - top).exp()
    sums = weights.sum(-1, keepdim=True)
    return weights / sums.clamp(min=1e-300) @ v, (top + sums.log()).squeeze(-1)


def heads(b, h, s, d, seed, dtype=None):
    """``[B, H, S, D]`` as models have it: a view of rows that hold all heads."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, s, h, d, generator=generator).to(dtype or torch.bfloat16).transpose(1, 2)


def documents_of_a_ring(rank, path, size):
    """Parts of packed sequences, against the whole on one rank; of sinks ranks have parts of gradients, and with a text the sum."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    world, tokens = mk.World.reference(), 8 * size
    chunk = tokens // (2 * size)
    parts = {"shard": range(rank * 8, rank * 8 + 8)}
    parts["zigzag"] = [i for c in (rank, 2 * size - 1 - rank) for i in range(c * chunk, (c + 1) * chunk)]
    for placement, begins in [("zigzag", [0, 3, 3, tokens]), ("shard", [0, tokens - 5, tokens - 2])]:
        cu = torch.tensor(begins, dtype=torch.int32)
        whole = [heads(1, h, tokens, 64, seed)[0].transpose(0, 1).requires_grad_() for seed, h in enumerate((4, 2, 2))]
        how = {"causal": True, "enable_gqa": True, "cu_seqlens": cu, "return_lse": True}
        want = mk.attention(*whole, **how)
        rows = list(parts[placement])
        own = [x.detach()[rows].requires_grad_() for x in whole]
        found = mk.attention(*own, **how, world=world, placement=placement)
        d = heads(1, 4, tokens, 64, 9)[0].transpose(0, 1)
        wanted = torch.autograd.grad(want[0], whole, d)
        sinks = torch.linspace(-1, 1, 4).requires_grad_()
        del how["return_lse"]
        of_sinks, = torch.autograd.grad(mk.attention(*whole, **how, sinks=sinks), [sinks], d)
        part, = torch.autograd.grad(mk.attention(*own, **how, sinks=sinks, world=world, placement=placement), [sinks], d[rows])
        torch.distributed.all_reduce(part)
        held = lambda h: f"bf16[B, S, {h}, D] @ {placement}(1)"
        text = f"""fn f(q: {held("H")}, k: {held("G")}, v: {held("G")}, s: f32[H], cu: i32[N]) {{
            ring(k, v) -> attention(q, causal, sinks = s, cu_seqlens = cu) }}"""
        o = mk.compile(text, world)(*(x[None] for x in own), sinks, cu)
        summed, = torch.autograd.grad(o, [sinks], d[rows][None])
        for x in (part, summed):
            assert (x - of_sinks).norm() < 1e-2 * of_sinks.norm(), (placement, rank, x, of_sinks)
        for x, y in [(found[0], want[0][rows]), (found[1], want[1][:, rows]), *zip(torch.autograd.grad(found[0], own, d[rows]), (g[rows] for g in wanted))]:
            assert torch.allclose(x.float(), y.float(), atol=2e-2, rtol=2e-2), (placement, rank, x.shape, (x.float() - y.float()).abs().max())
    torch.distributed.destroy_process_group()


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Attention(unittest.TestCase):
    def close(self, x, y, limit=2e-2):
        x, y = x.double(), y.double()
        self.assertEqual(x.shape, y.shape)
        finite = y.isfinite()
        self.assertTrue(torch.equal(x.isfinite(), finite))
        x, y = x[finite], y[finite]
        self.assertLess(((x - y).norm() / y.norm().clamp(min=1e-3)).item(), limit)

    def agree(self, run, shapes, how, dtype, sinks=False):
        given = [heads(*shape, seed, dtype) for seed, shape in enumerate(shapes)]
        if sinks:
            given.append(torch.randn(shapes[0][1], generator=torch.Generator().manual_seed(3)))
        mine, theirs = ([x.detach().requires_grad_() for x in given] for _ in range(2))
        more = {"sinks": mine[3]} if sinks else {}
        o, logs = run(*mine[:3], **how, **more, enable_gqa=True, return_lse=True)
        want, want_logs = dense(*theirs[:3], *(how.get(name) for name in ("causal", "window", "softcap", "scale")), *theirs[3:])
        self.assertEqual((o.dtype, logs.dtype), (dtype, torch.float32))
        self.close(o, want)
        self.close(logs, want_logs, 1e-4)
        d = heads(*shapes[0][:3], shapes[2][3], 9, dtype)
        # Of rows that see something.
        d_logs = torch.randn(logs.shape, generator=torch.Generator().manual_seed(5)).where(logs.isfinite(), 0)
        wanted = torch.autograd.grad([want, want_logs.masked_fill(want_logs.isinf(), 0)], theirs, [d.double(), d_logs.double()], retain_graph=True)
        for x, y, given in zip(torch.autograd.grad([o, logs], mine, [d, d_logs]), wanted, mine):
            self.assertEqual(x.dtype, given.dtype)
            # Sums over queries, of results that are rounded, may cancel.
            self.close(x, y, 2e-2 if given.dim() == 4 else 6e-2)
        # Without logarithms, which is another way.
        plain = run(*mine[:3], **how, **more, enable_gqa=True)
        self.assertTrue(torch.equal(plain, o))
        wanted = torch.autograd.grad(want, theirs, d.double())
        for x, y in zip(torch.autograd.grad(plain, mine, d), wanted):
            self.close(x, y, 2e-2 if x.dim() == 4 else 6e-2)

    def test_any_lengths_heads_and_masks(self):
        draw = random.Random(54)
        for _ in range(16):
            g, s, (d, e) = draw.choice([1, 2, 3]), draw.randrange(1, 70), draw.choice([(64, 64), (128, 128), (192, 128), (256, 256)])
            t = draw.choice([s, draw.randrange(1, 90)])
            how = draw.choice([{}, {"causal": True}, {"causal": True, "window": draw.randrange(1, t + 2)}, {"softcap": 1.5}, {"scale": 0.3, "causal": True}])
            shapes = (2, g * draw.choice([1, 2]), s, d), (2, g, t, d), (2, g, t, e)
            with self.subTest(shapes=shapes, how=how):
                self.agree(mk.attention, shapes, how, draw.choice([torch.bfloat16, torch.float16]), sinks=draw.random() < 0.5)

    def test_torch_has_the_same(self):
        q, k, v = heads(2, 4, 45, 64, 0), heads(2, 2, 45, 64, 1), heads(2, 2, 45, 64, 2)
        for causal in (False, True):
            self.close(mk.attention(q, k, v, causal=causal, enable_gqa=True), sdpa(q, k, v, is_causal=causal, enable_gqa=True))
        # Memory in another order is copied.
        o = mk.attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True, enable_gqa=True)
        self.assertTrue(torch.equal(o, mk.attention(q, k, v, causal=True, enable_gqa=True)))

    def test_compiled(self):
        world = mk.World.reference()
        for how in ({"causal": True, "window": 7}, {"softcap": 2.0, "world": world}):
            with self.subTest(how=how):
                torch._dynamo.reset()
                compiled = torch.compile(mk.attention, fullgraph=True, backend="aot_eager")
                shapes = (2, 4, 20, 64), (2, 2, 33, 64), (2, 2, 33, 64)
                words = {name: x for name, x in how.items() if name != "world"}
                run = lambda *x, **more: compiled(*x, **more, **({"world": world} if "world" in how else {}))
                for sinks in (False, True):
                    self.agree(run, shapes, words, torch.bfloat16, sinks)
                q, k, v = (heads(*shape, 3) for shape in shapes)
                with torch.no_grad():
                    self.assertTrue(torch.equal(compiled(q, k, v, enable_gqa=True, **how), mk.attention(q, k, v, enable_gqa=True, **how)))

    def test_lengths_that_change(self):
        for s, lengths in ((None, (50, 17, 1)), (9, (50, 12, 4))):
            for t in lengths:
                shapes = (1, 2, s or t, 64), (1, 1, t, 64), (1, 1, t, 64)
                with self.subTest(shapes=shapes):
                    self.agree(lambda *x, **how: mk.attention(*x, **how, longest=50), shapes, {"causal": True}, torch.bfloat16, sinks=True)

    def test_under_autocast(self):
        q, k, v = (heads(1, 2, 30, 64, seed, torch.float32).requires_grad_() for seed in range(3))
        with torch.autocast("cpu", torch.bfloat16):
            o = mk.attention(q, k, v, causal=True)
        self.assertEqual(o.dtype, torch.bfloat16)
        dq, = torch.autograd.grad(o.sum(), [q])
        self.assertEqual(dq.dtype, torch.float32)
        with self.assertRaisesRegex(mk.UnsupportedError, "attention of torch.float32"):
            mk.attention(q, k, v)

    def packed(self, run, shapes, begins, how, dtype, sinks=False):
        """Against dense attention of each document by itself; what is behind the last sees nothing."""
        given = [heads(1, h, t, d, seed, dtype)[0].transpose(0, 1) for seed, (t, h, d) in enumerate(shapes)]
        if sinks:
            given.append(torch.randn(shapes[0][1], generator=torch.Generator().manual_seed(3)))
        mine, theirs = ([x.detach().requires_grad_() for x in given] for _ in range(2))
        cu, more = torch.tensor(begins, dtype=torch.int32), {"sinks": mine[3]} if sinks else {}
        o, logs = run(*mine[:3], **how, **more, enable_gqa=True, return_lse=True, cu_seqlens=cu)
        words = [how.get(name) for name in ("causal", "window", "softcap", "scale")]
        alone = [dense(*(x[a:b].transpose(0, 1)[None] for x in theirs[:3]), *words, *theirs[3:]) for a, b in zip(begins, begins[1:]) if a < b]
        t, h, _ = shapes[0]
        rest = t - begins[-1]
        want = torch.cat([x[0].transpose(0, 1) for x, _ in alone] + [torch.zeros(rest, h, shapes[0][2], dtype=torch.float64)])
        none = theirs[3].double()[:, None].expand(h, rest) if sinks else torch.full((h, rest), float("-inf"), dtype=torch.float64)
        want_logs = torch.cat([x[0] for _, x in alone] + [none], 1)
        self.assertEqual((o.dtype, logs.dtype), (dtype, torch.float32))
        self.close(o, want)
        self.close(logs, want_logs, 1e-4)
        d = heads(1, h, t, shapes[0][2], 9, dtype)[0].transpose(0, 1)
        wanted = torch.autograd.grad(want, theirs, d.double(), allow_unused=True)
        for x, y, given in zip(torch.autograd.grad(o, mine, d), wanted, mine):
            self.close(x, torch.zeros_like(x) if y is None else y, 2e-2 if given.dim() == 3 else 6e-2)
        plain = run(*mine[:3], **how, **more, enable_gqa=True, cu_seqlens=cu)
        self.assertTrue(torch.equal(plain, o))
        for x, y in zip(torch.autograd.grad(plain, mine, d), wanted):
            self.close(x, torch.zeros_like(x) if y is None else y, 2e-2 if x.dim() == 3 else 6e-2)

    def test_packed_sequences(self):
        draw = random.Random(55)
        for n in range(14):
            g, t, d = draw.choice([1, 2, 3]), draw.randrange(1, 70), draw.choice([64, 128])
            ends = [[t], list(range(1, t + 1)), [0, t, t], sorted(draw.randrange(t + 1) for _ in range(draw.randrange(1, 20)))][min(n % 6, 3)]
            how = draw.choice([{}, {"causal": True}, {"causal": True, "window": draw.randrange(1, t + 2)}, {"softcap": 1.5}, {"scale": 0.3, "causal": True}])
            shapes = (t, g * draw.choice([1, 2]), d), (t, g, d), (t, g, d)
            with self.subTest(shapes=shapes, ends=ends, how=how):
                self.packed(mk.attention, shapes, [0, *ends], how, draw.choice([torch.bfloat16, torch.float16]), sinks=draw.random() < 0.5)

    def test_packed_sequences_compiled(self):
        for sinks in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(mk.attention, fullgraph=True, backend="aot_eager")
            for begins in ([0, 3, 20], [0, 20, 20]):
                self.packed(compiled, ((20, 4, 64), (20, 2, 64), (20, 2, 64)), begins, {"causal": True}, torch.bfloat16, sinks)

    def test_packed_sequences_over_a_ring(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(documents_of_a_ring, (f"{folder}/meet", 3), nprocs=3)

    def test_balance(self):
        draw = random.Random(56)
        lengths = [draw.randrange(1, 900) for _ in range(120)]
        begins = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        order, ratio = mk.balance(torch.tensor(begins, dtype=torch.int32), 4)
        self.assertEqual(sorted(order), list(range(120)))
        self.assertLessEqual(ratio, 1.05)
        self.assertEqual(mk.balance(begins, 4), (order, ratio))
        # Pairs of a query and a key, by rank.
        chunk, work, at = -(-begins[-1] // 8), [0] * 4, 0
        for n in order:
            for i in range(lengths[n]):
                part = at // chunk
                work[min(part, 7 - part)] += i + 1
                at += 1
        self.assertAlmostEqual(max(work) * 4 / sum(work), ratio)
        with self.assertRaisesRegex(mk.ArgumentError, "entry 2 is 3"):
            mk.balance([0, 5, 3], 2)

    def test_packed_sequences_refused(self):
        q, cu = heads(1, 2, 8, 64, 0)[0].transpose(0, 1), torch.tensor([0, 3, 8], dtype=torch.int32)
        begins = lambda *x: torch.tensor(x, dtype=torch.int32)
        for args, how, says in [
            ((q[None], q, q), {"cu_seqlens": cu}, r"must be \[T, H, D\]"),
            ((q, q[:7], q[:7]), {"cu_seqlens": cu}, "the same tokens"),
            ((q, q, q), {"cu_seqlens": cu.float()}, r"must be \[documents \+ 1\]"),
            ((q, q, q), {"cu_seqlens": cu[None]}, r"must be \[documents \+ 1\]"),
            ((q, q, q), {"cu_seqlens": cu[:1]}, r"must be \[documents \+ 1\]"),
            ((q, q, q), {"cu_seqlens": begins(1, 8)}, "entry 0 of cu_seqlens is 1"),
            ((q, q, q), {"cu_seqlens": begins(0, 5, 4, 8)}, "entry 2 of cu_seqlens is 4, and may be 5 to 8"),
            ((q, q, q), {"cu_seqlens": begins(0, 9)}, "entry 1 of cu_seqlens is 9, and may be 0 to 8"),
            ((q, q, q), {"cu_seqlens": cu, "longest": 8}, "longest goes with one sequence"),
        ]:
            with self.subTest(says), self.assertRaisesRegex(mk.ArgumentError, says):
                mk.attention(*args, **how)

    def test_refused(self):
        q, k = heads(1, 4, 8, 64, 0), heads(1, 2, 8, 64, 1)
        for args, how, says in [
            ((q, k, k), {}, "4 heads of queries, and 2 of keys"),
            ((q, heads(1, 3, 8, 64, 1), heads(1, 3, 8, 64, 1)), {"enable_gqa": True}, "multiple of the heads"),
            ((q, q, q[0]), {}, r"must be \[B, H, S, D\]"),
            ((q, q, q.half()), {}, "float16 on cpu"),
            ((q, q, heads(1, 4, 9, 64, 0)), {}, "do not go with keys"),
            ((q, q, q), {"window": 4}, "pass causal=True"),
            ((q, q, q), {"window": 0, "causal": True}, "its own the last"),
            ((q, q, q), {"softcap": 0.0}, "None is no cap"),
            ((q, q, q), {"sinks": torch.zeros(2)}, r"must be \(4,\)"),
            ((q, q, q), {"longest": 7}, "the most keys"),
            ((q, q, q), {"placement": "both"}, "must be \"zigzag\""),
        ]:
            with self.subTest(says), self.assertRaisesRegex(mk.ArgumentError, says):
                mk.attention(*args, **how)


if __name__ == "__main__":
    unittest.main()
