"""`Function.explain` without a GPU: torch's side of the comparison in numbers, what is measured by a clock of its own, and the text."""

import contextlib
import math
import random
import types
import unittest
from unittest import mock

import fake_torch
import mini_torch

torch = fake_torch.install()

import mk  # noqa: E402
from mk import _explain, _measure, _peer  # noqa: E402

GATHER = "pub fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) { gather(a) -> gemm(b) }"
SCATTER = "pub fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) -> bf16[M, N] @ shard(0) { gemm(a, b) -> reduce_scatter }"
REDUCE = "pub fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) -> bf16[M, N] { gemm(a, b) -> all_reduce }"
MLP = """pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), c: bf16[F] @ shard(0), v: bf16[F, N] @ shard(0))
    -> bf16[M, N] @ shard(0) { gather(x) -> gemm(w) -> bias(c) -> gelu -> gemm(v) -> reduce_scatter }"""
GATED = """pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, N] @ shard(0)) -> bf16[M, N] {
    gather(x) -> gemm(w) -> swiglu -> gemm(v) -> all_reduce }"""
BACKWARD = """pub fn f(dy: bf16[M, N] @ shard(0), w: bf16[K, N] @ shard(0)) -> bf16[M, K] @ shard(1) { gather(dy) -> gemm(w.t) }"""
EPILOGUE = """pub fn f(a: bf16[M, K], b: bf16[K, N] @ shard(1), y: bf16[M, N] @ shard(1), z: bf16[M, N] @ shard(1)) -> f32[M, N] @ shard(1) {
    gemm(a, b) -> silu -> mul(y) -> scale(0.5) -> add(z) -> relu -> cast(f32) }"""
PIPELINES = {
    "gather": (GATHER, ["all_gather_into_tensor", "mm"]),
    "scatter": (SCATTER, ["mm", "reduce_scatter_tensor"]),
    "reduce": (REDUCE, ["mm", "all_reduce"]),
    "mlp": (MLP, ["all_gather_into_tensor", "mm", "bias", "gelu", "mm", "reduce_scatter_tensor"]),
    "gated": (GATED, ["all_gather_into_tensor", "mm", "swiglu", "mm", "all_reduce"]),
    "backward": (BACKWARD, ["all_gather_into_tensor", "mm"]),
    "epilogue": (EPILOGUE, ["mm", "silu", "mul", "scale", "add", "relu", "cast"]),
}
EVEN = {"M": 12, "K": 24, "F": 12, "N": 36}
UNEVEN = {"M": 13, "K": 10, "F": 7, "N": 11}


def program(text, ranks, sizes):
    sizes = {name: n for name, n in sizes.items() if f"{name}," in text or f"{name}]" in text}
    return mk.compile(text, mk.World.offline(ranks), fuse="always").bind(dims=sizes).program


def globals_of(data, seed=0):
    """A random global tensor for each parameter."""
    draw, values = random.Random(seed), [v for v in data["values"] if v["op"] == "parameter"]
    return [mini_torch.Tensor([draw.gauss(0, 1) for _ in range(math.prod(v["shape"]))], v["shape"], "bfloat16") for v in values]


def part(whole, placement, rank, ranks):
    kind, dim = placement
    if kind == "replicate":
        return whole.clone()
    each = -(-whole.shape[dim] // ranks)
    start = min(rank * each, whole.shape[dim])
    return whole.narrow(dim, start, max(0, min(each, whole.shape[dim] - start))).contiguous().clone()


def parts(data, wholes, rank, ranks):
    return [part(whole, value["placement"], rank, ranks) for whole, value in zip(wholes, data["values"])]


def results(text, ranks, sizes):
    """What each rank computes with the others, and the names of the last peer's operations and its notes."""
    data = program(text, ranks, sizes)
    wholes = globals_of(data)
    peers = {}

    def work(rank, dist):
        peers[rank] = peer = _peer.Peer(mini_torch, dist, data, parts(data, wholes, rank, ranks), rank, ranks)
        for buffer in peer.buffers:
            buffer.fill_(math.nan)
        return peer.run()

    return data, wholes, mini_torch.Ranks(ranks).run(work), peers[ranks - 1]


def product(a, b):
    (m, k), n = a.shape, b.shape[1]
    x, y = a.values(), b.values()
    return [[sum(x[i * k + p] * y[p * n + j] for p in range(k)) for j in range(n)] for i in range(m)]


class Peers(unittest.TestCase):
    def close(self, found, want):
        self.assertEqual(len(found), len(want))
        for x, y in zip(found, want):
            self.assertAlmostEqual(x, y, delta=1e-9 * max(1.0, abs(y)))

    def test_ranks_together_compute_what_one_does(self):
        for name, (text, steps) in PIPELINES.items():
            for ranks, sizes in ((2, EVEN), (3, EVEN), (3, UNEVEN), (4, UNEVEN)):
                with self.subTest(name, ranks=ranks, sizes=sizes):
                    data, wholes, by_rank, peer = results(text, ranks, sizes)
                    self.assertEqual(peer.names, steps)
                    alone = _peer.Peer(mini_torch, None, program(text, 1, sizes), wholes, 0, 1)
                    whole = alone.run()[0]
                    (result,) = [data["values"][i] for _, i in data["results"]]
                    for rank, (mine,) in enumerate(by_rank):
                        want = part(whole, result["placement"], rank, ranks)
                        self.assertEqual((mine.shape, mine.dtype), (want.shape, want.dtype))
                        self.close(mine.values(), want.values())
                        self.assertEqual(peer.empty_results()[0].dtype, want.dtype)
                    uneven = any(sizes["M"] % ranks and step in ("all_gather_into_tensor", "reduce_scatter_tensor") for step in steps)
                    self.assertEqual(any("padded" in note for note in peer.notes), uneven)

    def test_products_and_elementwise_operations_by_hand(self):
        _, (x, w, c, v), by_rank, _ = results(MLP, 2, UNEVEN)
        hidden = [[h + b for h, b in zip(row, c.values())] for row in product(x, w)]
        hidden = [h * 0.5 * (1 + math.erf(h / math.sqrt(2))) for row in hidden for h in row]
        want = product(mini_torch.Tensor(hidden, (x.shape[0], w.shape[1]), "bfloat16"), v)
        self.close(sum((mine.values() for mine, in by_rank), []), sum(want, []))

        _, (a, b, y, z), by_rank, _ = results(EPILOGUE, 2, EVEN)
        for j, ((mine,), rank) in ((0, (by_rank[0], 0)), (0, (by_rank[1], 1))):
            at = rank * mine.shape[1] + j
            h = product(a, b)[3][at]
            y_z = [t.values()[3 * t.shape[1] + at] for t in (y, z)]
            want = max(0.5 * (h / (1 + math.exp(-h)) * y_z[0]) + y_z[1], 0.0)
            self.assertAlmostEqual(mine.values()[3 * mine.shape[1] + j], want)

    def test_gate_is_index_0_and_up_is_1(self):
        _, (x, w, v), by_rank, _ = results(GATED, 3, UNEVEN)
        k, f = w.shape[0], w.shape[2]
        halves = [mini_torch.Tensor([w.values()[(p * 2 + g) * f + j] for p in range(k) for j in range(f)], (k, f), "bfloat16") for g in (0, 1)]
        gate, up = (sum(product(x, half), []) for half in halves)
        hidden = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
        want = product(mini_torch.Tensor(hidden, (x.shape[0], f), "bfloat16"), v)
        for (mine,) in by_rank:
            self.close(mine.values(), sum(want, []))

    def test_inputs_stay_as_they_are(self):
        values = [
            {"op": "parameter", "name": "a", "inputs": [], "dtype": "bf16", "shape": (4, 6), "placement": ("partial", None)},
            {"op": "all_reduce", "inputs": [0], "dtype": "bf16", "shape": (4, 6), "placement": ("replicate", None)},
        ]
        data = {"values": values, "results": [("out", 1)]}

        def work(rank, dist):
            a = mini_torch.Tensor([1.0 + rank] * 24, (4, 6), "bfloat16")
            peer = _peer.Peer(mini_torch, dist, data, [a], rank, 2)
            twice = [peer.run()[0].values() for _ in range(2)]
            return a.values(), twice, peer.notes

        for rank, (a, twice, notes) in enumerate(mini_torch.Ranks(2).run(work)):
            self.assertEqual((a, twice), ([1.0 + rank] * 24, [[3.0] * 24] * 2))
            self.assertIn("copy", notes[0])

    def test_a_contribution_that_is_a_result_stays_one(self):
        ty = {"dtype": "bf16", "shape": (4, 6)}
        values = [
            {"op": "parameter", "name": "a", "inputs": [], "placement": ("partial", None)} | ty,
            {"op": "scale", "factor": 2.0, "inputs": [0], "placement": ("partial", None)} | ty,
            {"op": "all_reduce", "inputs": [1], "placement": ("replicate", None)} | ty,
        ]

        def work(rank, dist, results):
            a = mini_torch.Tensor([1.0 + rank] * 24, (4, 6), "bfloat16")
            peer = _peer.Peer(mini_torch, dist, {"values": values, "results": results}, [a], rank, 2)
            return [y.values()[0] for y in peer.run()], peer.notes

        both = mini_torch.Ranks(2).run(lambda rank, dist: work(rank, dist, [("s", 1), ("t", 2)]))
        self.assertEqual([found for found, _ in both], [[2.0, 6.0], [4.0, 6.0]])
        self.assertTrue(all("copy" in notes[0] for _, notes in both))
        # Where nobody reads it, nothing is copied.
        alone = mini_torch.Ranks(2).run(lambda rank, dist: work(rank, dist, [("t", 2)]))
        self.assertEqual(alone, [([6.0], []), ([6.0], [])])

    def test_what_torch_cannot_do(self):
        def peer(**value):
            ty = {"dtype": "bf16", "shape": (4, 6), "placement": ("replicate", None)}
            values = [{"op": "parameter", "name": "a", "inputs": []} | ty, {"inputs": [0]} | ty | value]
            tensors = [mini_torch.empty((4, 6), "bfloat16")]
            return _peer.Peer(mini_torch, mini_torch.Ranks(2).view(0), {"values": values, "results": [("out", 1)]}, tensors, 0, 2)

        with self.assertRaisesRegex(mk.UnsupportedError, "no torch operation to compare `ring` with"):
            peer(op="ring")
        with self.assertRaisesRegex(mk.UnsupportedError, "`gather` of dimension 1"):
            peer(op="gather", dim=1)


class Programs(unittest.TestCase):
    def test_operations_are_data(self):
        data = program(MLP, 4, EVEN)
        ops = [v["op"] for v in data["values"]]
        self.assertEqual(ops[:4], ["parameter"] * 4)
        self.assertEqual(ops[4:], ["gather", "gemm", "bias", "gelu", "gemm", "reduce_scatter"])
        self.assertEqual([v["inputs"] for v in data["values"][4:]], [[0], [4, 1], [5, 2], [6], [7, 3], [8]])
        self.assertEqual([v["name"] for v in data["values"][:4]], ["x", "w", "c", "v"])
        gather, gemm, last = data["values"][4], data["values"][5], data["values"][9]
        self.assertEqual((gather["dim"], gather["placement"], gather["shape"]), (0, ("replicate", None), (12, 24)))
        self.assertEqual((gemm["a_transposed"], gemm["b_transposed"], gemm["placement"]), (False, False, ("shard", 1)))
        self.assertEqual((last["dim"], last["placement"], last["dtype"]), (0, ("shard", 0), "bf16"))
        self.assertEqual(data["values"][8]["placement"], ("partial", None))
        self.assertEqual(data["results"], [("out", 9)])
        data = program(EPILOGUE, 2, EVEN)
        self.assertEqual([v["factor"] for v in data["values"] if v["op"] == "scale"], [0.5])
        self.assertEqual(data["values"][-1]["dtype"], "f32")
        self.assertTrue(program(BACKWARD, 2, EVEN)["values"][-1]["b_transposed"])


class Judges(unittest.TestCase):
    def judge(self, reference, found):
        return _measure.Judge(mini_torch, [reference])([found]).tolist()

    def test_one_bad_tile_is_seen(self):
        reference = mini_torch.empty((256, 384)).fill_(2.0)
        self.assertEqual(self.judge(reference, reference.clone()), [0.0, 0.0])
        bad = reference.clone()
        bad.narrow(0, 128, 128).narrow(1, 256, 128).fill_(0.0)
        whole, tile = self.judge(reference, bad)
        self.assertAlmostEqual(whole, math.sqrt(1 / 6))
        self.assertAlmostEqual(tile, 1.0)

    def test_ragged_empty_and_unwritten_results(self):
        reference = mini_torch.empty((130, 5)).fill_(1.0)
        bad = reference.clone()
        bad.narrow(0, 129, 1).fill_(3.0)
        whole, tile = self.judge(reference, bad)
        self.assertAlmostEqual(whole, math.sqrt(4 / 130))
        self.assertAlmostEqual(tile, math.sqrt(4 / 2))
        self.assertEqual(self.judge(mini_torch.empty((0, 5)), mini_torch.empty((0, 5))), [0.0, 0.0])
        bad.narrow(0, 0, 1).fill_(math.nan)
        self.assertEqual(self.judge(reference, bad), [math.inf, math.inf])
        with self.assertRaisesRegex(mk.Error, "shape"):
            self.judge(reference, mini_torch.empty((5, 130)))

    def test_a_tile_of_next_to_nothing_counts_for_what_it_is(self):
        reference = mini_torch.empty((256, 128)).fill_(1.0)
        reference.narrow(0, 128, 128).fill_(0.0)
        noise = reference.clone()
        noise.narrow(0, 128, 128).fill_(1e-6)
        self.assertLess(self.judge(reference, noise)[1], 1e-4)


class Gpu:
    """torch with a clock that only contestants advance, in ms."""

    def __init__(self):
        self.now, self.late = 0.0, False
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = gpu.now

            def query(self):
                return gpu.late

            def elapsed_time(self, end):
                return end.at - self.at

        cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: None, device=lambda device: contextlib.nullcontext())
        cuda.nccl = types.SimpleNamespace(version=lambda: (2, 28, 1))
        names = {name: getattr(mini_torch, name) for name in dir(mini_torch) if not name.startswith("_")}
        self.torch = types.SimpleNamespace(**names, cuda=cuda, no_grad=contextlib.nullcontext)

    def contestant(self, name, costs, poison=(), late=lambda call: False, steps=0):
        """Call after call takes the next of ``costs``, a step after the other."""
        calls = []

        def run(mark):
            calls.append(None)
            self.late = late(len(calls))
            for step in range(max(1, steps)):
                self.now += costs[len(calls) % len(costs)] * (1 + step)
                mark()
            return [mini_torch.zeros((2, 2))]

        return _measure.Contestant(name, run, list(poison), steps)


@mock.patch.object(_measure, "FLUSH_BYTES", 64)
class Meters(unittest.TestCase):
    def measure(self, gpu, contestants, rounds, dist=None, check=lambda: None):
        judge = _measure.Judge(mini_torch, [mini_torch.zeros((2, 2))])
        return _measure.Meter(gpu.torch, dist, "cuda:0", check).measure(contestants, judge, rounds)

    def test_medians_and_steps(self):
        gpu, checks = Gpu(), []
        tensor = mini_torch.zeros((2, 2))
        one = gpu.contestant("one", [1.0, 5.0, 2.0], [tensor])
        steps = gpu.contestant("steps", [1.0], steps=3)
        first, second = self.measure(gpu, [one, steps], 6, check=lambda: checks.append(None))
        self.assertEqual((first.middle, len(first.ms), first.dropped), (2.0, 6, 0))
        self.assertEqual((second.middle, second.steps), (6.0, [1.0, 2.0, 3.0]))
        self.assertEqual((first.difference, first.tile_difference), (0.0, 0.0))
        self.assertTrue(all(map(math.isnan, tensor.values())), "results are poisoned")
        self.assertEqual(len(checks), 3 + 6)

    def test_the_slowest_rank_counts(self):
        def work(rank, dist):
            gpu = Gpu()
            (times,) = self.measure(gpu, [gpu.contestant("one", [1.0 + rank] if rank else [4.0, 1.0])], 4, dist)
            return times.middle, sorted(times.ms)

        for middle, ms in mini_torch.Ranks(3).run(work):
            self.assertEqual((middle, ms), (3.5, [3.0, 3.0, 4.0, 4.0]))

    def test_late_launches_are_made_up_for_on_all_ranks(self):
        def work(rank, dist):
            gpu = Gpu()
            # Three calls warm up; of the next, rank 1's host is late for two.
            one = gpu.contestant("one", [2.0], late=lambda call: rank == 1 and call in (4, 6))
            (times,) = self.measure(gpu, [one], 5, dist)
            return times, one.delay_us

        (a, b) = mini_torch.Ranks(2).run(work)
        for times, _ in (a, b):
            self.assertEqual((times.ms, times.dropped), ([2.0] * 8, 2))
        self.assertGreaterEqual(b[1], 4 * 200.0)

    def test_a_host_that_is_always_late_is_an_error(self):
        gpu = Gpu()
        with self.assertRaisesRegex(mk.Error, "one: the host was late for each of 6 launches"):
            self.measure(gpu, [gpu.contestant("one", [1.0], late=lambda call: True)], 2)


@mock.patch.object(_measure, "FLUSH_BYTES", 64)
class Compared(unittest.TestCase):
    """All of it, with a function that computes what it should, or something else."""

    def explain(self, ranks, wrong=False, text=SCATTER, sizes=UNEVEN, rounds=3):
        plan = mk.compile(text, mk.World.offline(ranks), fuse="always").bind(
            dims={name: n for name, n in sizes.items() if f"{name}," in text or f"{name}]" in text}
        )
        data = plan.program
        wholes = globals_of(data)

        def work(rank, dist):
            gpu = Gpu()
            if ranks > 1:
                dist.is_available = dist.is_initialized = lambda: True
                dist.get_rank, dist.get_world_size = lambda: rank, lambda: ranks
                dist.get_backend_config = lambda: "cpu:gloo,cuda:nccl"
                gpu.torch.distributed = dist
            tensors = parts(data, wholes, rank, ranks)
            peer = _peer.Peer(gpu.torch, dist, data, tensors, rank, ranks)

            def function(*given, out):
                assert given == tuple(tensors)
                out.copy_(peer.run()[0])
                if wrong and rank == ranks - 1:
                    out.narrow(0, 0, 1).fill_(100.0)
                gpu.now += 0.5

            function.check = lambda: None
            mm = gpu.torch.mm

            def slow(*args, **more):
                gpu.now += 1.0
                return mm(*args, **more)

            # The clock counts what is compared with, not the operations that stand for mk.
            gpu.torch.mm = slow
            return _explain.compare_with(gpu.torch, function, plan, "plan\n", tensors, rank, rounds, 1e-2)

        return mini_torch.Ranks(ranks).run(work)

    def test_times_and_results(self):
        for ranks in (1, 3):
            for explained in self.explain(ranks):
                self.assertEqual((explained.mk_ms, explained.torch_ms, explained.rounds), (0.5, 1.0, 3))
                self.assertEqual((explained.difference, explained.dropped, explained.speedup), (0.0, 0, 2.0))
                text = str(explained)
                self.assertTrue(text.startswith("plan\nmeasured   3 launches"), text)
                self.assertIn("The host was ahead of the GPU in all of them\n", text)
                self.assertIn("500.0 us  one kernel; the host takes", text)
                # One rank has nothing but the product.
                self.assertIn("1000.0 us  mm" if ranks > 1 else "torch    1000.0 us  cuBLAS", text)
                libraries = "cuBLAS" if ranks == 1 else "cuBLAS and NCCL 2.28.1"
                self.assertTrue(text.endswith(f"verdict    mk is 2.00 times as fast as {libraries}\n"), text)
                self.assertEqual("uneven ones are padded" in text, ranks == 3)

    def test_a_disagreement_is_an_error_on_every_rank(self):
        with self.assertRaisesRegex(mk.Error, "mk: results differ from torch's by .* no times are given"):
            self.explain(1, wrong=True)
        with self.assertRaisesRegex(mk.Error, "mk: results differ"):
            self.explain(2, wrong=True)

    def test_the_whole_and_each_tile_have_a_bound(self):
        plan, peer = types.SimpleNamespace(kernels=["f"]), types.SimpleNamespace(names=["mm"], notes=[])
        contestants = [types.SimpleNamespace(name=name) for name in ("mk", "torch", "torch, step by step")]

        def conclude(difference, tile, of=0):
            times = [_measure.Times([1.0], 0, 1.0, [1.0], 0.0, 0.0) for _ in contestants]
            times[of].difference, times[of].tile_difference = difference, tile
            return _explain.conclude(plan, "", peer, "cuBLAS", contestants, times, 1e-2)

        self.assertEqual(conclude(0.9e-2, 3.9e-2).tile_difference, 3.9e-2)
        for difference, tile, of, words in (
            (1.1e-2, 0.0, 0, "^mk: results differ from torch's by 1.10e-02"),
            (0.0, 4.1e-2, 0, "^mk: .* 4.10e-02 over a tile"),
            (math.inf, math.inf, 1, "^torch: results differ from torch's of its first launch by inf"),
            (math.nan, 0.0, 2, "^torch, step by step: "),
        ):
            with self.assertRaisesRegex(mk.Error, words):
                conclude(difference, tile, of)

    def test_slower_is_said_to_be_slower(self):
        figures = {"rounds": 2, "dropped": 1, "mk_host_us": 1.0, "torch_host_us": 1.0, "difference": 0.0, "tile_difference": 0.0}
        text = str(mk.Explanation(plan="", mk_ms=2.0, torch_ms=1.0, steps=[("mm", 1.0)], kernels=["a", "b"], **figures))
        self.assertIn("verdict    mk is slower: torch's operations (cuBLAS) are 2.00 times as fast", text)
        self.assertIn("2 kernels", text)
        self.assertIn("1 more were dropped", text)


class Refusals(unittest.TestCase):
    def group(self, **more):
        dist = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: 1,
            get_world_size=lambda: 4,
            get_backend_config=lambda: "cuda:nccl",
        )
        dist.__dict__.update(more)
        return types.SimpleNamespace(distributed=dist)

    def test_the_process_group_must_be_that_of_the_world(self):
        self.assertIsNotNone(_explain.distributed(self.group(), 1, 4))
        for more, words in (
            ({"is_initialized": lambda: False}, "not initialised"),
            ({"get_rank": lambda: 0}, "rank 1 of 4 of mk's world, and rank 0 of 4"),
            ({"get_backend_config": lambda: "cpu:gloo,cuda:gloo"}, "no NCCL for CUDA tensors, but cpu:gloo,cuda:gloo"),
        ):
            with self.assertRaisesRegex(mk.RendezvousError, words):
                _explain.distributed(self.group(**more), 1, 4)

    def test_an_error_of_one_rank_is_an_error_of_all(self):
        def work(rank, dist):
            mine = MemoryError("no room") if rank == 1 else None
            try:
                _explain.agree(mini_torch, dist, 3, "cuda:0", mine, (20, 1e-2))
            except Exception as error:
                return error

        errors = mini_torch.Ranks(3).run(work)
        self.assertEqual([type(e) for e in errors], [mk.Error, MemoryError, mk.Error])
        self.assertIn("rank 1 cannot take part in the comparison", str(errors[0]))

        def differ(rank, dist):
            _explain.agree(mini_torch, dist, 2, "cuda:0", None, (20 + rank, 1e-2))

        with self.assertRaisesRegex(mk.ArgumentError, "pass the same on all ranks"):
            mini_torch.Ranks(2).run(differ)

    def test_arguments(self):
        f = mk.compile(GATHER, mk.World.offline(2))
        a, b = (fake_torch.Tensor(shape, torch.bfloat16) for shape in ((64, 64), (64, 32)))
        for more, words in (({"rounds": 0}, "rounds is 0"), ({"tolerance": 0.0}, "tolerance is 0"), ({"tolerance": math.nan}, "NaN")):
            with self.assertRaisesRegex(mk.ArgumentError, words):
                f.explain(a, b, **more)
        with self.assertRaisesRegex(mk.ArgumentError, "`b` is not given"):
            f.explain(a)
        with self.assertRaisesRegex(mk.ArgumentError, "more arguments than tensors"):
            f.explain(a, b, a)
        with self.assertRaisesRegex(mk.ArgumentError, "there is no tensor `round`"):
            f.explain(a, b, round=3)
        with self.assertRaisesRegex(mk.DeviceError, "offline"):
            f.explain(a, b=b)


class Plans(unittest.TestCase):
    def test_what_the_command_prints(self):
        plan = mk.plan("gather(a) -> gemm(b)", ranks=4, shapes={"a": (512, 256), "b": (256, 1024)}, settings={"intra_comm_sms": 20})
        text = plan.explain()
        for words in ("machine    4 ranks of NVIDIA H200", "intra_comm_sms=20", "as the options say", "bound by", "roles", "other settings"):
            self.assertIn(words, text)
        self.assertIn("apart      gather", text)
        self.assertTrue(text.endswith("made       one kernel: as the options say\n"), text)

    def test_several_kernels_and_what_has_no_kernel_as_a_whole(self):
        f = mk.compile(MLP, mk.World.offline(2), fuse="never")
        text = f.bind(dims={"M": 64, "K": 64, "F": 64, "N": 64}).explain()
        made = text[text.index("made       apart: as the options say\n") :].splitlines()
        self.assertEqual([line.split(":")[0].strip() for line in made[1:]], ["gather", "gemm -> bias -> gelu", "gemm", "reduce_scatter"])
        self.assertIn("block=128x256x64", made[2])
        self.assertIn("\n           as one kernel: ", text)
        last = "pub fn last(x: bf16[M, K] @ shard(0), w: bf16[K, F]) -> bf16[M, F] { gemm(x, w) -> gelu -> gather }"
        text = mk.compile(last, mk.World.offline(2)).bind(dims={"M": 64, "K": 64, "F": 64}).explain()
        self.assertIn("prediction none: ", text)
        self.assertIn("made       apart: it has no kernel as a whole\n", text)


if __name__ == "__main__":
    unittest.main()
