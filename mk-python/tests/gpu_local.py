"""The module on the GPUs of one process: ``python3 mk-python/tests/gpu_local.py``. Needs torch and GPUs."""

import gc
import threading
import unittest

import test_torch_arguments
import torch

import mk

N = min(torch.cuda.device_count(), 4)
LINEAR = "gather(a) -> gemm(b)"


def one(tensors):
    """An argument for `N` ranks: a list, or its only tensor."""
    return tensors if N > 1 else tensors[0]


def many(result):
    return result if N > 1 else [result]


def shards(m, k, n, seed=0):
    """Random `a` by rows and `b` by columns, for each rank."""
    g = torch.Generator().manual_seed(seed)
    make = lambda rows, columns, r: torch.randn(rows, columns, generator=g).bfloat16().to(f"cuda:{r}")
    return [make(m, k, r) for r in range(N)], [make(k, n, r) for r in range(N)]


class Local(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        cls.world = mk.World.local(N)

    def right(self, a, b, y):
        whole = torch.cat([x.cpu() for x in a])
        for b_r, y_r in zip(b, many(y)):
            want = whole.to(b_r.device).float() @ b_r.float()
            error = ((y_r.float() - want).norm() / want.norm()).item()
            self.assertLess(error, 4e-3)  # a NaN is not less

    def test_calls_with_several_shapes(self):
        f = mk.compile(LINEAR, self.world)
        for seed, (m, k, n) in enumerate([(256, 512, 512), (128, 256, 256), (256, 512, 512)]):
            a, b = shards(m, k, n, seed)
            self.right(a, b, f(one(a), b=one(b)))
        out = one([torch.full((N * 256, 512), float("nan"), dtype=torch.bfloat16, device=f"cuda:{r}") for r in range(N)])
        a, b = shards(256, 512, 512, 9)
        self.assertIs(f(one(a), one(b), out=out), out)
        self.right(a, b, out)
        f.synchronize()
        f.close()
        with self.assertRaisesRegex(mk.Error, "closed"):
            f(one(a), one(b))

    def test_what_is_no_number_stays_so(self):
        for op in ("relu", "gelu", "silu"):
            f = mk.compile(f"{LINEAR} -> {op}", self.world)
            a, b = shards(256, 512, 512)
            a[0][3, 5] = float("nan")
            whole = torch.cat([x.cpu() for x in a])
            for b_r, y_r in zip(b, many(f(one(a), one(b)))):
                want = getattr(torch.nn.functional, op)(whole.to(b_r.device).float() @ b_r.float())
                self.assertTrue(torch.equal(y_r.isnan(), want.isnan()), op)
                self.assertEqual(y_r.isnan().sum().item(), 512)
            f.close()

    def test_arguments_are_checked(self):
        f = mk.compile(LINEAR, self.world)
        a, b = shards(256, 512, 512)
        bad = [x.cpu() for x in a]
        with self.assertRaisesRegex(mk.ArgumentError, "`a` is on cpu, and the rank's GPU is cuda:0"):
            f(one(bad), one(b))
        turned = [x.t().contiguous().t() for x in b]
        with self.assertRaisesRegex(mk.ArgumentError, "`b` is not contiguous"):
            f(one(a), one(turned))
        f(one(a), one(b))
        small = one([torch.empty(8, 8, dtype=torch.bfloat16, device=f"cuda:{r}") for r in range(N)])
        with self.assertRaisesRegex(mk.ArgumentError, "shape .8, 8. on rank 0"):
            f(one(a), one(b), out=small)
        square = mk.compile("gemm(a, b)", mk.World.local(1))
        x = torch.randn(256, 256, device="cuda:0").bfloat16()
        with self.assertRaisesRegex(mk.ArgumentError, "overlaps `b`"):
            square(x.clone(), x, out=x)
        f.synchronize()

    def test_arguments_fail_as_in_worlds_without_gpus(self):
        test_torch_arguments.DEVICE, world = "cuda:0", mk.World.local(1)
        self.addCleanup(setattr, test_torch_arguments, "DEVICE", "cpu")
        for name, text, call, words in test_torch_arguments.cases():
            with self.subTest(name), torch.enable_grad():
                error, found = test_torch_arguments.caught(lambda: call(mk.compile(text, world)))
                self.assertIs(error, mk.ArgumentError, found)
                self.assertIn(words, found)

    def test_streams_and_reuse_of_memory(self):
        # Inputs of one stream, used on another and freed at once: their memory must not be given away before.
        f = mk.compile(LINEAR, self.world)
        a, b = shards(2048, 2048, 2048)
        f(one(a), one(b))
        side = [torch.cuda.Stream(f"cuda:{r}") for r in range(N)]
        results = []
        for _ in range(20):
            copies = [x.clone() for x in a], [x.clone() for x in b]
            for r in range(N):
                side[r].wait_stream(torch.cuda.current_stream(r))
            with Streams(side):
                results.append(f(one(copies[0]), one(copies[1])))
            del copies
            trash = [torch.full_like(x, 7.0) for x in a + b]
            del trash
        f.synchronize()
        for y in results:
            self.right(a, b, y)

    def test_graphs(self):
        if N > 1:
            self.skipTest("torch captures one stream; gpu_ranks.py has it for several GPUs")
        f = mk.compile(LINEAR, self.world)
        a, b = shards(256, 512, 512)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(mk.Error, "cannot be captured"):
            with torch.cuda.graph(graph):
                f(one(a), one(b))
        f.bind(shapes={"a": (256, 512), "b": (512, 512)})
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = f(one(a), one(b))
        for seed in range(5):
            fresh, _ = shards(256, 512, 512, seed)
            a[0].copy_(fresh[0])
            graph.replay()
            torch.cuda.synchronize()
            self.right(a, b, y)
        # Dropped, but the graph is still there.
        del f
        gc.collect()
        graph.replay()
        torch.cuda.synchronize()
        self.right(a, b, y)

    def test_captures_are_left_alone(self):
        """Functions are made, called, closed and dropped while torch captures, which forbids most calls to all threads."""
        if N > 1:
            self.skipTest("torch captures one stream")
        a, b = shards(256, 512, 512)
        dropped, closed = (mk.compile(LINEAR, self.world, share=False) for _ in range(2))
        for f in dropped, closed:
            self.right(a, b, f(one(a), one(b)))
        results, x = [], torch.ones(1024, device="cuda:0")

        def meanwhile():
            f = mk.compile(LINEAR, self.world)
            results.append(f(one(a), one(b)))
            f.synchronize()
            f.close()

        graph, thread = torch.cuda.CUDAGraph(), threading.Thread(target=meanwhile)
        with torch.cuda.graph(graph):
            y = x * 2
            thread.start()
            thread.join()
            closed.close()
            del dropped, f
            gc.collect()
            y += x
        self.assertEqual(len(results), 1, "the other thread failed")
        self.right(a, b, results[0])
        x.fill_(5)
        graph.replay()
        self.assertEqual(y.sum().item(), 15 * 1024)

    def test_explanations(self):
        if N > 1:
            a, b = shards(256, 512, 512)
            with self.assertRaisesRegex(mk.UnsupportedError, f"this process has {N} ranks"):
                mk.compile(LINEAR, self.world).explain(a, b)
        f = mk.compile("gemm(a, b) -> gelu", mk.World.local(1))
        g = torch.Generator().manual_seed(1)
        a, b = (torch.randn(shape, generator=g).bfloat16().to("cuda:0") for shape in ((1024, 512), (512, 2048)))
        found = f.explain(a, b, rounds=5)
        self.assertEqual([name for name, _ in found.steps], ["mm", "gelu"])
        self.assertTrue(0.0 < found.mk_ms < 1e3 and 0.0 < found.torch_ms < 1e3, found)
        self.assertLess(found.difference, 8e-3)
        with self.assertRaisesRegex(mk.Error, "no times are given"):
            f.explain(a, b, rounds=1, tolerance=1e-9)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(mk.Error, "is being captured"):
            with torch.cuda.graph(graph):
                f.explain(a, b)

    def test_other_threads_run_meanwhile(self):
        ticks, stop = [0], threading.Event()

        def tick():
            while not stop.wait(0.001):
                ticks[0] += 1

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            # Not in the disk cache: the scale is new each time.
            scale = 1.0 + (id(ticks) % 1000) / 1e6
            f = mk.compile(f"gather(a) -> gemm(b) -> scale({scale})", self.world)
            before = ticks[0]
            f.bind(shapes={"a": (N * 256, 512), "b": (512, N * 512)})
            self.assertGreater(ticks[0] - before, 5, "the interpreter was held while binding")
        finally:
            stop.set()
            thread.join()


class Shared(unittest.TestCase):
    """Several ranks on one GPU, all of them in torch's current stream."""

    def test_ranks_share_a_gpu(self):
        torch.set_grad_enabled(False)
        g = torch.Generator(device="cuda:0").manual_seed(3)
        new = lambda *shape: torch.randn(*shape, generator=g, device="cuda:0").bfloat16()
        for ranks in (2, 4):
            world = mk.World.local(ranks, gpu=0)
            self.assertEqual((world.size, world.devices), (ranks, [0] * ranks))
            self.assertEqual(world.sm_budget, torch.cuda.get_device_properties(0).multi_processor_count // ranks)
            f = mk.compile(LINEAR, world, wait_limit_s=10.0, entry_limit_s=10.0)
            for _ in range(10):
                a, b = [new(128, 256) for _ in range(ranks)], [new(256, 512) for _ in range(ranks)]
                whole = torch.cat(a).float()
                for b_r, y_r in zip(b, f(a, b)):
                    want = whole @ b_r.float()
                    self.assertLess(((y_r.float() - want).norm() / want.norm()).item(), 4e-3)
            roles = f.plans[0].roles
            self.assertLessEqual(sum(roles.values()), world.sm_budget)
            f.synchronize()
            f.close()
        with self.assertRaisesRegex(mk.ArgumentError, "do not fit 33 SMs" if world.sm_budget == 33 else "do not fit"):
            mk.compile(LINEAR, world, settings={"compute_sms": 100})(a, b)


class Streams:
    """All of these are current."""

    def __init__(self, streams):
        self.contexts = [torch.cuda.stream(s) for s in streams]

    def __enter__(self):
        self.device = torch.cuda.current_device()
        for c in self.contexts:
            c.__enter__()
        torch.cuda.set_device(self.device)

    def __exit__(self, *error):
        for c in reversed(self.contexts):
            c.__exit__(*error)
        torch.cuda.set_device(self.device)


class Attention(unittest.TestCase):
    """Beside ``scaled_dot_product_attention`` in float32, on one rank and on four that share a GPU."""

    TEXT = """fn attend(q: {t}[B, S, H, D] @ {p}(1), k: {t}[B, S, G, D] @ {p}(1), v: {t}[B, S, G, D] @ {p}(1)) {{
        let o = ring(k, v) -> attention(q{mask}); (o, o -> lse) }}"""

    def parts(self, x, ranks, placement, dim=1):
        """What each rank holds of a whole tensor."""
        if placement == "shard":
            return list(x.chunk(ranks, dim))
        halves = x.chunk(2 * ranks, dim)
        return [torch.cat([halves[r], halves[2 * ranks - 1 - r]], dim) for r in range(ranks)]

    def attend(self, ranks, placement, dtype, causal, b, s, h, g, d):
        generator = torch.Generator(device="cuda").manual_seed(s + d)
        make = lambda heads: torch.randn(b, s, heads, d, device="cuda", generator=generator).to(dtype)
        q, k, v = make(h), make(g), make(g)
        t = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
        text = self.TEXT.format(t=t, p=placement, mask=", causal" if causal else "")
        shapes = {name: list(x.shape) for name, x in zip("qkv", (q, k, v))}
        f = mk.compile(text, mk.World.local(ranks, gpu=0), shapes=shapes)
        split = lambda x, dim=1: [x.contiguous() for x in self.parts(x, ranks, placement, dim)]
        given = [split(x) for x in (q, k, v)]
        o, lse = f(*(given if ranks > 1 else [x[0] for x in given]))
        wide = [x.float().transpose(1, 2).repeat_interleave(h // x.shape[2], 1) for x in (q, k, v)]
        want = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal).transpose(1, 2)
        scores = wide[0] @ wide[1].transpose(2, 3) / d**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(s, s, device="cuda").triu(1).bool(), float("-inf"))
        for got, part in zip(o if ranks > 1 else [o], split(want)):
            self.assertLess(((got.float() - part).norm() / part.norm()).item(), 4e-3)
        for got, part in zip(lse if ranks > 1 else [lse], split(scores.logsumexp(-1), 2)):
            self.assertLess((got - part).abs().max().item(), 1e-4)
        f.close()

    def test_results_are_those_of_torch(self):
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        for ranks, placement in ((1, "shard"), (4, "shard"), (4, "zigzag")):
            for dtype in (torch.bfloat16, torch.float16):
                self.attend(ranks, placement, dtype, True, 2, 512, 8, 2, 128)
            self.attend(ranks, placement, torch.bfloat16, False, 1, 1024, 4, 4, 64)
        self.attend(3, "shard", torch.bfloat16, True, 1, 257, 8, 1, 128)

    def differentiate(self, dtype, causal, b, s, h, g, d):
        generator = torch.Generator(device="cuda").manual_seed(s + d)
        make = lambda heads: torch.randn(b, s, heads, d, device="cuda", generator=generator).to(dtype)
        given = [make(heads).requires_grad_(True) for heads in (h, g, g)]
        do = make(h)
        t = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
        kv = f"{t}[B, S, G, D] @ replicate"
        mask = ", causal" if causal else ""
        text = f"fn attend(q: {t}[B, S, H, D] @ replicate, k: {kv}, v: {kv}) {{ attention(q, k, v{mask}) }}"
        f = mk.compile(text, mk.World.local(1, gpu=0))
        wide = [x.detach().float().requires_grad_(True) for x in given]
        heads = [x.transpose(1, 2).repeat_interleave(h // x.shape[2], 1) for x in wide]
        o = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2)
        want = torch.autograd.grad(o, wide, do.float())
        got = torch.autograd.grad(f(*given), given, do)
        again = torch.autograd.grad(f(*given), given, do)
        for x, same, y in zip(got, again, want):
            self.assertTrue(torch.equal(x, same))
            self.assertLess(((x.float() - y).norm() / y.norm()).item(), 1e-2)
        f.close()

    def test_gradients_are_those_of_torch(self):
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.enable_grad():
            self.differentiate(torch.bfloat16, True, 2, 1000, 8, 2, 128)
            self.differentiate(torch.float16, False, 1, 1024, 4, 4, 128)
            self.differentiate(torch.bfloat16, True, 1, 777, 8, 1, 64)

    def sinks(self, ranks, placement, b, s, h):
        """Their gradients, of statistics of any queries, ranks without some, and queries that see nothing, in f64."""
        generator = torch.Generator(device="cuda").manual_seed(s + ranks)
        stats = torch.randn(b, h, s, 4, device="cuda", generator=generator)
        stats[:, :, ::7, 0] = float("-inf")
        given = torch.randn(h, device="cuda", generator=generator)
        weights = (given.double()[None, :, None] - stats[..., 0].double()).exp().masked_fill(stats[..., 0].isinf(), 0)
        terms = weights * stats[..., 1].double()
        text = f"fn f(stats: f32[B, H, S, 4] @ {placement}(2), s: f32[H]) {{ attention_dsinks(stats, s) -> all_reduce }}"
        f = mk.compile(text, mk.World.local(ranks, gpu=0), shapes={"stats": list(stats.shape), "s": [h]})
        parts = [x.contiguous() for x in self.parts(stats, ranks, placement, 2)]
        run = lambda: f(parts, [given] * ranks) if ranks > 1 else [f(stats, given)]
        for x, same in zip(run(), run()):
            self.assertTrue(torch.equal(x, same))
            self.assertLess(((x[0] + terms.sum((0, 2))).abs() / terms.abs().sum((0, 2)).clamp(min=1e-30)).max().item(), 1e-5)
        f.close()

    def test_gradients_of_sinks_are_sums_in_f64(self):
        with torch.no_grad():
            for ranks, placement, b, s, h in ((1, "shard", 2, 8191, 8), (1, "shard", 1, 1, 64), (2, "zigzag", 3, 1000, 5), (4, "zigzag", 1, 4096, 64)):
                self.sinks(ranks, placement, b, s, h)


if __name__ == "__main__":
    unittest.main(verbosity=2)
