"""Shapes one by one: what runs, judged and timed in turn."""

import itertools
import math
import os
import pathlib
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

sys.path.append(str(pathlib.Path(__file__).parents[1] / "torch_peers"))

import ahead  # noqa: E402
import check  # noqa: E402
import lt  # noqa: E402

import mk  # noqa: E402

SETS = 3
FLUSH_BYTES = 256 << 20
FLUSH_US = 55  # what overwriting so much takes, at least
WARM = 3
CHUNK = 4096  # rows that a reference converts at a time
TOGETHER = 16  # shapes whose kernels are bound before they run


class Contestant:
    """``run(i)`` enqueues on the inputs of set ``i``, and writes ``out``."""

    def __init__(self, name, run, out, settings=None, predicted_ms=None):
        self.name, self.run, self.out, self.settings, self.predicted_ms = name, run, out, settings, predicted_ms
        self.ms, self.late, self.worst, self.flushes = [], 0, None, 4

    def judge(self, errors):
        self.worst = errors if self.worst is None else torch.maximum(self.worst, errors)

    def result(self):
        error, tile_error = self.worst.tolist()
        ordered = sorted(self.ms)
        return {
            "name": self.name,
            "ms": statistics.median(ordered),
            "least_ms": ordered[0],
            "late": self.late,
            "error": error,
            "tile_error": tile_error,
            "good": check.good(error, tile_error),
            "settings": self.settings,
            **({} if self.predicted_ms is None else {"predicted_ms": self.predicted_ms}),
        }


class Inputs:
    """``SETS`` random sets of a shape's parameters, and judges of results."""

    def __init__(self, op, shape, seed):
        random = torch.Generator(device="cuda").manual_seed(seed)

        def tensor(name, extents):
            scale = shape.k**-0.5 if name in ("b", "w") else 1.0
            return torch.randn(*extents, generator=random, device="cuda", dtype=torch.bfloat16).mul_(scale)

        shapes = op.shapes(shape)
        self.op, self.shape = op, shape
        self.sets = [{name: tensor(name, extents) for name, extents in shapes.items()} for _ in range(SETS)]
        self.judges = [check.Judge(self._reference(s)) for s in self.sets]

    def _reference(self, given):
        weight = given.get("b", given.get("w")).float().flatten(1)
        x = torch.cat([rows.float() @ weight for rows in given["a"].split(CHUNK)])
        return chain(self.op.name, x, {name: t.float() for name, t in given.items() if name in "vy"})


def chain(name, x, given):
    """What follows the product, as torch operations."""
    if name == "bias_gelu":
        return F.gelu(x + given["v"])
    if name == "add":
        return x + given["y"]
    if name == "mul":
        return x * given["y"]
    if name == "swiglu":
        gate, up = x.chunk(2, dim=1)
        return F.silu(gate) * up
    return x


class Bench:
    def __init__(self, args, op):
        self.args, self.op = args, op
        torch.cuda.init()
        # References are exact; peers multiply bfloat16, which this does not concern.
        torch.backends.cuda.matmul.allow_tf32 = False
        self.world = mk.World.local(1)
        self.lt = lt.Library() if args.lt else None
        self._over = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def run(self, shapes, late):
        """Results so far, again and again: all kernels are compiled, and then some shapes are bound and run, in turn. Begins no more when
        it is ``late()``."""
        gpu = torch.cuda.get_device_name()
        versions = {"mk": mk.__version__, "torch": torch.__version__, "cuda": torch.version.cuda}
        rows, begin = [], time.perf_counter()
        every = [(self.op.shapes(shape), settings) for shape in shapes for settings in self.ways(shape)]
        ahead.fill(self.op.pipeline, every, self.args.seconds)
        bound = time.perf_counter() - begin
        for some in (shapes[i : i + TOGETHER] for i in range(0, len(shapes), TOGETHER)):
            if late():
                return
            begin = time.perf_counter()
            made = self.bind([(shape, settings) for shape in some for settings in self.ways(shape)])
            bound += time.perf_counter() - begin
            for shape in some:
                if late():
                    break
                rows.append(self.row(shape, made))
                if self.args.progress:
                    print(line(rows[-1]), file=sys.stderr, flush=True)
            yield {"machine": {"gpu": gpu}, "versions": versions, "bind_seconds": bound, "rows": rows}

    def ways(self, shape):
        """Settings that a shape runs with; first those that are chosen for it."""
        return [None, *self.args.settings.get(str(shape), [])]

    def bind(self, work):
        """Kernels of ours by shape and settings, or why there is none."""

        def one(item):
            shape, settings = item
            begin = time.perf_counter()
            try:
                f = mk.compile(self.op.pipeline, self.world, fuse="always", settings=settings)
                plan = f.bind(shapes=self.op.shapes(shape))
                return f, plan, time.perf_counter() - begin
            except mk.Error as error:
                return str(error).splitlines()[0]

        with ThreadPoolExecutor(max(1, min(16, os.cpu_count() or 1))) as pool:
            return dict(zip(work, pool.map(one, work)))

    def row(self, shape, made):
        inputs = Inputs(self.op, shape, self.args.seed)
        missing, contestants = [], []

        def enter(name, make):
            out = torch.empty(shape.m, shape.n, device="cuda", dtype=torch.bfloat16)
            try:
                one = make(name, out)
                one.run(0)
                torch.cuda.synchronize()
                contestants.append(one)
            except (mk.Error, RuntimeError) as error:
                missing.append({"name": name, "reason": str(error).splitlines()[0]})

        enter("torch", lambda name, out: self.torch_way(name, inputs, out))
        functions = []
        for i, settings in enumerate(self.ways(shape)):
            found = made[shape, settings]
            if isinstance(found, str):
                missing.append({"name": f"mk {i}" if i else "mk", "reason": found})
                continue
            functions.append(found[0])
            enter(f"mk {i}" if i else "mk", lambda name, out, found=found: self.ours(name, inputs, out, found))
        if self.lt and self.op.name == "product":
            self.lt_way(inputs, enter)
        self.measure(contestants, inputs)
        for f in functions:
            f.check()
        results = [one.result() for one in contestants]
        return {"shape": str(shape), "m": shape.m, "k": shape.k, "n": shape.n, "results": results, "missing": missing}

    def ours(self, name, inputs, out, found):
        f, plan, seconds = found
        sets = [list(s.values()) for s in inputs.sets]
        # As in a captured step: host time is another benchmark's.
        settings = {"settings": plan.settings[0], "roles": plan.roles, "verdict": plan.verdict, "bind_seconds": seconds}
        return Contestant(name, lambda i: f(*sets[i], out=out), out, settings, plan.predicted_ms)

    def torch_way(self, name, inputs, out):
        """``torch.mm``, and operations of torch behind it."""
        op, sets = self.op.name, inputs.sets

        def run(i):
            s = sets[i]
            if op == "product":
                torch.mm(s["a"], s["b"], out=out)
            elif op == "bias_gelu":
                out.copy_(F.gelu(torch.addmm(s["v"], s["a"], s["b"])))
            elif op == "add":
                torch.addmm(s["y"], s["a"], s["b"], out=out)
            elif op == "mul":
                torch.mul(torch.mm(s["a"], s["b"]), s["y"], out=out)
            else:
                gate, up = torch.mm(s["a"], s["w"].flatten(1)).chunk(2, dim=1)
                torch.mul(F.silu(gate), up, out=out)

        return Contestant(name, run, out)

    def lt_way(self, inputs, enter):
        """The fastest proposal of cublasLt."""
        shape = inputs.shape
        pairs = [(s["a"], s["b"]) for s in inputs.sets]
        target = torch.empty(shape.m, shape.n, device="cuda", dtype=torch.bfloat16)
        try:
            best, _ = lt.best(self.lt, (shape.m, shape.k, shape.n), pairs, target, lambda times: times, self.flush, rounds=3)
        except lt.CublasError:
            return
        enter("cublasLt", lambda name, out: Contestant(name, lambda i: best(*pairs[i], out), out))

    def flush(self):
        self._over.fill_(1)

    def measure(self, contestants, inputs):
        counts = itertools.count()
        for at in range(WARM):
            self.round(contestants, inputs, next(counts), keep=False)
        for at in range(4 * self.args.rounds):
            pending = [one for one in contestants if len(one.ms) < self.args.rounds]
            if not pending:
                return
            self.round(pending, inputs, next(counts))
        short = ", ".join(one.name for one in contestants if not one.ms)
        if short:
            raise SystemExit(f"error: {inputs.shape}: the host was late for every launch of {short}")

    def round(self, contestants, inputs, at, keep=True):
        """A launch of each, in another order every time; each on caches that were overwritten, and enqueued before the GPU is there."""
        i, turn = at % SETS, at % len(contestants)
        launches = []
        for one in contestants[turn:] + contestants[:turn]:
            one.out.fill_(math.nan)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(one.flushes):
                self.flush()
            begin = time.perf_counter()
            start.record()
            one.run(i)
            end.record()
            late = start.query()
            host_us = 1e6 * (time.perf_counter() - begin)
            one.judge(inputs.judges[i].errors(one.out))
            launches.append((one, start, end, late, host_us))
        torch.cuda.synchronize()
        for one, start, end, late, host_us in launches:
            if late:
                one.late += 1
                one.flushes = min(2 * one.flushes, 64)
            elif keep:
                one.ms.append(start.elapsed_time(end))
            else:
                one.flushes = min(64, 2 + math.ceil(2 * host_us / FLUSH_US))


def line(row):
    """One row, in µs."""
    times = "  ".join(f"{r['name']} {1e3 * r['ms']:.1f}{'' if r['good'] else ' WRONG'}" for r in row["results"])
    return f"{row['shape']:>20}  {times}" + "".join(f"  {m['name']} is missing: {m['reason']}" for m in row["missing"])
