"""Training on one GPU: ``python3 mk-python/tests/gpu_train.py``. Needs torch and a GPU. What it prints last are figures."""

import statistics
import sys
import time
import unittest

import torch

import mk
from mk import _mk
from mk._evaluate import evaluate

MLP = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter"
GATED = """fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
    gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter
}"""
HOLD = """extern "C" __global__ void hold(int cycles, int* done) {
  extern __shared__ char room[];
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
  if (threadIdx.x == 0) atomicAdd(done, 1);
}"""
FIGURES = []


def random(*shape, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g) * scale).bfloat16().cuda()


def error(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def milliseconds(works, rounds=15):
    """Medians, on flushed caches. In turns, so that all have the same clocks."""
    flush, times = torch.empty(64 << 20, dtype=torch.int32, device="cuda"), {name: [] for name in works}
    for _ in range(3):
        for work in works.values():
            work()
    for _ in range(rounds):
        for name, work in works.items():
            flush.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            work()
            b.record()
            torch.cuda.synchronize()
            times[name].append(a.elapsed_time(b))
    return {name: statistics.median(each) for name, each in times.items()}


def host_us(work, calls=100, rounds=20):
    for _ in range(20):
        work()
    best = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        best.append((time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(best)


class OneGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = mk.World.local(1)

    def test_four_micro_batches_are_added_to_f32_matrices(self):
        m, h, f = 2048, 1024, 2816
        w1, w2 = torch.nn.Parameter(random(h, f, seed=1, scale=h**-0.5)), torch.nn.Parameter(random(f, h, seed=2, scale=f**-0.5))
        linear = torch.nn.Parameter(random(h, f, seed=3, scale=h**-0.5))
        for w in (w1, w2, linear):
            w.main_grad = torch.zeros(w.shape, device="cuda")
        one = mk.compile("gather(x) -> gemm(w)", self.world, grads={"w": "main_grad"})
        two = mk.compile(MLP, self.world, grads={"w1": "main_grad", "w2": "main_grad"})
        batches = [(random(m, h, seed=10 + i), random(m, f, seed=20 + i), random(m, h, seed=30 + i)) for i in range(4)]
        exact = torch.zeros(h, f, dtype=torch.float64, device="cuda")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for pair in (batches[:2], batches[2:]):
                for y, d in [(one(x.requires_grad_(), linear), d) for x, d, _ in pair]:
                    y.backward(d)
            torch.cuda.synchronize()
        for x, d, _ in batches:
            exact += x.double().t() @ d.double()
        found = error(linear.main_grad, exact)
        self.assertLess(found, 1e-4)
        kernels = {e.key: e.count for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA}
        others = {k: n for k, n in kernels.items() if "add" in k.lower() or "Mem" in k and "set" not in k.lower()}
        FIGURES.append(f"main_grad, 4 micro-batches: {found:.1e} against f64; kernels {[(k[:40], n) for k, n in kernels.items()]}")
        self.assertFalse(others)
        self.assertIsNone(linear.grad)
        wants = [torch.zeros_like(w1.main_grad, dtype=torch.float64), torch.zeros_like(w2.main_grad, dtype=torch.float64)]
        for x, _, d in batches:
            two(x.requires_grad_(), w1, w2).backward(d)
            wide = [w.detach().double().requires_grad_() for w in (w1, w2)]
            dense = torch.nn.functional.gelu(x.detach().double() @ wide[0]) @ wide[1]
            for want, g in zip(wants, torch.autograd.grad(dense, wide, d.double())):
                want += g
        for w, want in zip((w1, w2), wants):
            self.assertLess(error(w.main_grad, want), 5e-3)

    def test_a_derived_backward_is_kernels_of_mk(self):
        m, h, f = 1024, 512, 768
        texts = {
            "gelu": (MLP, [(m, h), (h, f), (f, h)]),
            "gated": (GATED, [(m, h), (h, 2, f), (f, h)]),
            "bias": ("fn f(x: bf16[M, K], w: bf16[K, N], b: bf16[N]) { gemm(x, w) -> bias(b) -> relu }", [(m, h), (h, f), (f,)]),
            "norm": ("fn f(x: bf16[M, K], g: bf16[K], w: bf16[K, N]) { x -> rmsnorm(g) -> gemm(w) }", [(m, h), (h,), (h, f)]),
        }
        cases = [(f"{name}, {said.save}", text, shapes, said.save) for name, (text, shapes) in texts.items()
                 for said in mk.compile(text, self.world).saves(*shapes)]
        for name, text, shapes, save in cases:
            function = mk.compile(text, self.world, save=save)
            tensors = [random(*shape, seed=i, scale=0.05).requires_grad_() for i, shape in enumerate(shapes)]
            for _ in range(2):
                y = function(*tensors)
                d = torch.randn_like(y)
                torch.autograd.grad(y, tensors, d)
            y = function(*tensors)
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                torch.autograd.grad(y, tensors, d)
                torch.cuda.synchronize()
            ran = {e.key: e.count for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA}
            others = {k: n for k, n in ran.items() if not k.startswith("mk_")}
            FIGURES.append(f"backward of {name}: {ran}")
            self.assertTrue(any(k.startswith("mk_") for k in ran), name)
            self.assertFalse(others, name)

    def test_gradients_of_vectors_are_sums_over_rows(self):
        for m, save in ((1000, "pre"), (77, "least"), (4096, "all")):
            f = mk.compile("fn f(x: bf16[M, K], w: bf16[K, 2, N], b: bf16[K]) { x -> bias(b) -> gemm(w) -> swiglu }", self.world, save=save)
            x, w, b = (random(*s, seed=m + i, scale=0.05).requires_grad_() for i, s in enumerate([(m, 264), (264, 2, 520), (264,)]))
            y = f(x, w, b)
            d = torch.randn_like(y)
            found = torch.autograd.grad(y, (x, w, b), d)
            wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
            h = torch.einsum("mk,khn->mhn", wide[0] + wide[2], wide[1])
            wanted = torch.autograd.grad(torch.nn.functional.silu(h[:, 0]) * h[:, 1], wide, d.double())
            for name, g, want in zip("xwb", found, wanted):
                self.assertLess(error(g, want), 1e-2, f"{name} of {m} rows")

    def test_memory_is_as_predicted(self):
        m, h, f = 8192, 2048, 5632
        for text, shapes in ((MLP, [(m, h), (h, f), (f, h)]), (GATED, [(m, h), (h, 2, f), (f, h)])):
            for said in mk.compile(text, self.world).saves(*shapes):
                function = mk.compile(text, self.world, save=said.save)
                tensors = [random(*shape, seed=i, scale=0.02).requires_grad_() for i, shape in enumerate(shapes)]
                d = torch.randn(m, h, device="cuda").bfloat16()
                for _ in range(2):
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    y = function(*tensors)
                    gradients = torch.autograd.grad(y, tensors, d)
                    torch.cuda.synchronize()
                    found = torch.cuda.max_memory_allocated() - before
                    del y, gradients
                FIGURES.append(f"{said}: peak measured {found / 2**20:.1f} MiB, said {said.peak_bytes / 2**20:.1f}")
                self.assertLess(abs(found / said.peak_bytes - 1), 0.05, said)

    def test_a_matrix_that_is_added_to_takes_its_place(self):
        x, d, c = random(512, 256), random(512, 384, seed=1), torch.randn(256, 384, device="cuda")
        f = mk.compile("fn f(x: bf16[M, K], d: bf16[M, N], c: f32[K, N]) -> f32[K, N] { gemm(x.t, d) -> cast(f32) -> add(c) }", self.world)
        want = c.double() + x.double().t() @ d.double()
        self.assertLess(error(f(x, d, c), want), 1e-6)
        self.assertIs(f(x, d, c, out=c), c)
        self.assertLess(error(c, want), 1e-6)
        with self.assertRaisesRegex(mk.Error, "memory of its own"):
            g = mk.compile("gemm(a, b)", self.world)
            g(x[:256], x[256:], out=x[256:])

    def test_transposed_views(self):
        x, w = random(512, 256).requires_grad_(), random(384, 256, seed=1, scale=0.1).requires_grad_()
        f = mk.compile("gather(x) -> gemm(w)", self.world)
        y, d = f(x, w.t()), random(512, 384, seed=2)
        self.assertLess(error(y, x.double() @ w.double().t()), 4e-3)
        for g, want in zip(torch.autograd.grad(y, [x, w], d), (d.double() @ w.double(), d.double().t() @ x.double())):
            self.assertLess(error(g, want), 4e-3)

    def test_kernels_of_others_beside_a_thousand_steps(self):
        # 24 CTAs that leave no room on their SMs, as NCCL's channels do, while one rank trains and two ranks wait for each other.
        hold = torch.cuda._compile_kernel(HOLD, "hold")
        hold.set_shared_memory_config(200 << 10)
        x, w = random(512, 1024).requires_grad_(), random(1024, 1024, seed=1, scale=0.03).requires_grad_()
        f = mk.compile("gather(x) -> gemm(w)", self.world, reserve_sms="nccl")
        two = mk.compile("gather(x) -> gemm(w)", mk.World.local(2, gpu=0), reserve_sms="nccl")
        halves = list(x.detach().chunk(2)), [t.contiguous() for t in w.detach().chunk(2, 1)]
        d, side, done = random(512, 1024, seed=2), torch.cuda.Stream(), torch.zeros(1, dtype=torch.int32, device="cuda")
        want = torch.autograd.grad(f(x, w), [x, w], d)
        with torch.no_grad():
            both = two(*halves)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for step in range(1000):
            hold((24, 1, 1), (128, 1, 1), [300_000, done], 200 << 10, side)
            got = torch.autograd.grad(f(x, w), [x, w], d)
            with torch.no_grad():
                again = two(*halves)
            if step % 100 == 0:
                for a, b in zip([*got, *again], [*want, *both]):
                    self.assertTrue(torch.equal(a, b))
        torch.cuda.synchronize()
        f.synchronize()
        two.synchronize()
        self.assertEqual(done.item(), 24_000)
        FIGURES.append(f"1000 steps beside kernels that hold 24 SMs: {time.perf_counter() - begin:.2f} s, no stall")

    def test_host_time(self):
        w, x = random(64, 64, seed=1).requires_grad_(), random(64, 64).requires_grad_()
        f = mk.compile("gather(x) -> gemm(w)", self.world)
        with torch.no_grad():
            plain = host_us(lambda: f(x, w))
        recording = host_us(lambda: f(x, w))
        theirs = host_us(lambda: torch.nn.functional.linear(x, w))
        y = f(x, w)
        d = torch.ones_like(y)
        both = host_us(lambda: f(x, w).backward(d))
        their_both = host_us(lambda: torch.nn.functional.linear(x, w).backward(d))

        class Nothing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x.new_empty(64, 64)

            @staticmethod
            def backward(ctx, d):
                return d, d

        nothing = host_us(lambda: Nothing.apply(x, w))
        FIGURES.append(f"host us a call: without gradient {plain:.1f}, recording {recording:.1f}, with backward {both:.1f}; torch's linear "
                       f"{theirs:.1f}, {their_both:.1f}; an autograd function in Python that only allocates {nothing:.1f}")
        import cProfile
        import io
        import pstats

        profile, text = cProfile.Profile(), io.StringIO()
        profile.enable()
        for _ in range(2000):
            f(x, w)
        profile.disable()
        torch.cuda.synchronize()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(14)
        print(text.getvalue(), file=sys.stderr)


    def test_a_block_beside_torch(self):
        m, h, f = 8192, 4096, 14336
        x, w1, w2, y = random(m, h), random(h, f, seed=1, scale=h**-0.5), random(f, h, seed=2, scale=f**-0.5), random(m, f, seed=3)
        gelu = torch.nn.functional.gelu
        with torch.no_grad():
            block, one, two = (mk.compile(text, self.world) for text in (MLP, "gemm(x, w) -> gelu", "gemm(x, w)"))
            self.assertLess(error(block(x, w1, w2), gelu(x @ w1) @ w2), 1e-2)
            works = {"torch": lambda: gelu(x @ w1) @ w2, "mk": lambda: block(x, w1, w2), "torch x w1, gelu": lambda: gelu(x @ w1),
                     "mk x w1, gelu": lambda: one(x, w1), "torch y w2": lambda: y @ w2, "mk y w2": lambda: two(y, w2)}
            times = milliseconds(works)
        made = [(p.verdict, p.settings) for f in (block, one, two) for p in f.plans]
        FIGURES.append(f"block {m} x {h} x {f}, ms: {', '.join(f'{n} {t:.3f}' for n, t in times.items())}; {made}")

    def test_a_step_of_the_block(self):
        m, h, f = 8192, 4096, 14336
        x, w1, w2 = random(m, h).requires_grad_(), random(h, f, seed=1, scale=h**-0.5), random(f, h, seed=2, scale=f**-0.5)
        w1, w2, d = w1.requires_grad_(), w2.requires_grad_(), random(m, h, seed=3)
        block = mk.compile(MLP, self.world)
        times = milliseconds({
            "torch": lambda: torch.autograd.grad(torch.nn.functional.gelu(x @ w1) @ w2, [x, w1, w2], d),
            "mk": lambda: torch.autograd.grad(block(x, w1, w2), [x, w1, w2], d),
        }, 9)
        FIGURES.append(f"a step of it, forward and backward, ms: torch {times['torch']:.3f}, mk {times['mk']:.3f}")


class SharedGpu(unittest.TestCase):
    """Ranks that share the GPU, in one process."""

    def run_steps(self, world, text, held, sizes):
        """``held``: by value, a tensor for each rank."""
        ranks = world.size
        for step in _mk._cut(text, ranks, dims=sizes):
            inputs = [held[i] for i in step["inputs"]]
            if step["kernel"]:
                flat = lambda i, t: t.flatten(-2) if i in step["flat"] else t
                made = _mk.compile(step["text"], world)(*[[flat(i, t) for t in ts] for i, ts in zip(step["inputs"], inputs)])
                made = list(made) if isinstance(made, tuple) else [made]
            else:
                program = _mk._describe(step["text"])
                each = [evaluate(torch, program, [ts[r] for ts in inputs]) for r in range(ranks)]
                made = [[each[r][i] for r in range(ranks)] for i in range(len(step["results"]))]
            held.update(zip(step["results"], made))
        return [held[i] for _, i in _mk._describe(text)["results"]]

    def test_the_same_gradients_on_two_and_four_ranks(self):
        m, h, f = 512, 256, 512
        whole = [random(m, h), random(h, f, seed=1, scale=h**-0.5), random(f, h, seed=2, scale=f**-0.5)]
        d = random(m, h, seed=3)
        wide = [t.double().requires_grad_() for t in whole]
        dense = torch.nn.functional.gelu(wide[0] @ wide[1]) @ wide[2]
        wants = torch.autograd.grad(dense, wide, d.double())
        derived = _mk._derive(MLP, None)
        for ranks in (1, 2, 4):
            world = mk.World.local(devices=[0] * ranks) if ranks > 1 else mk.World.local(1)
            part = lambda t, dim: [p.contiguous() for p in t.chunk(ranks, dim)]
            local = [part(whole[0], 0), part(whole[1], 1), part(whole[2], 0)]
            symbols = self.symbols(derived["forward"], whole)
            run = self.run_steps if ranks > 1 else self.run_alone
            results = run(world, derived["forward"], dict(enumerate(local)), symbols)
            inputs = []
            for kind, i in derived["inputs"]:
                inputs.append(part(d, 0) if kind == "gradient" else local[i] if kind == "parameter" else results[i])
            described = [v for v in _mk._describe(derived["backward"])["values"] if v["op"] == "parameter"]
            sizes = {}
            for value, ts in zip(described, inputs):
                for at, (dim, n) in enumerate(zip(value["dims"], ts[0].shape)):
                    if isinstance(dim, str):
                        sizes[dim] = n * (ranks if value["placement"] == ("shard", at) else 1)
            gradients = run(world, derived["backward"], dict(enumerate(inputs)), sizes)
            errors = []
            for (parameter, kind, i), want, dim in zip(derived["gradients"], wants, (0, 1, 0)):
                self.assertEqual(kind, "result")
                errors.append(error(torch.cat(gradients[i], dim), want))
            FIGURES.append(f"{ranks} ranks on one GPU: errors of gradients {', '.join(f'{e:.2e}' for e in errors)}")
            self.assertLess(max(errors), 5e-3)

    def run_alone(self, world, text, held, sizes):
        single = {i: ts[0] for i, ts in held.items()}
        for step in _mk._cut(text, 1, dims=sizes):
            made = _mk.compile(step["text"], world)(*[single[i] for i in step["inputs"]])
            single.update(zip(step["results"], made if isinstance(made, tuple) else [made]))
        return [[single[i]] for _, i in _mk._describe(text)["results"]]

    def symbols(self, text, whole):
        sizes = {}
        for value, tensor in zip(_mk._describe(text)["values"], whole):
            sizes.update({d: n for d, n in zip(value["dims"], tensor.shape) if isinstance(d, str)})
        return sizes

    def test_recovery_after_a_fault(self):
        ranks = 2
        world = mk.World.local(ranks, gpu=0)
        # Those who add up wait for products of half a millisecond, much longer than the first look at the clock.
        shards = [random(4096, 4096, seed=r) for r in range(ranks)], [random(4096, 4096, seed=10 + r, scale=0.02) for r in range(ranks)]
        text = "gemm(a, b) -> reduce_scatter"
        with torch.no_grad():
            unfaulted = mk.compile(text, world, share=False)
            want = [t.clone() for t in unfaulted(*shards)]
            unfaulted.close()
            f = mk.compile(text, world, wait_limit_s=1e-6)
            with self.assertRaises(mk.FaultError):
                for _ in range(20):
                    f(*shards)
                    f.synchronize()
            with self.assertRaises(mk.FaultError):
                f(*shards)
            f._options["wait_limit_s"] = 30.0
            mk.recover(world)
            for _ in range(3):
                got = f(*shards)
                f.synchronize()
                for a, b in zip(got, want):
                    self.assertTrue(torch.equal(a, b))
        FIGURES.append("recovered after a fault: the next three steps equal to the bit")


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    print("\n".join(FIGURES))
    sys.exit(not result.wasSuccessful())
