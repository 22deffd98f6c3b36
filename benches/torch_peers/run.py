"""The run: everything that is set up once, and then row by row."""

import datetime
import os
import subprocess
import time

import contestant
import link
import lt
import mk
import ours
import peers
import report
import torch
import torch.distributed as dist
from align import Alignment
from check import Judge, good
from inputs import SETS, Inputs
from timing import Timer

# Above this a row's memory is given back before the next one.
KEEP_BYTES = 50 << 30


class Bench:
    """Collective to make and to use."""

    def __init__(self, args):
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=120))
        self.args, self.rank, self.size = args, dist.get_rank(), dist.get_world_size()
        self.world = mk.World.from_torch()
        self.group = peers.Group()
        self.alignment = Alignment(self.group.name)
        self.timer = Timer(self.alignment)
        self.lib = lt.Library()

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def run(self):
        """Everything but when and how it was called, as it goes into the file."""
        args, begin = self.args, time.perf_counter()
        n = ours.compile_ahead(args.selected, self.rank, self.size, self.given)
        dist.barrier()
        self.say(f"{n} kernels compiled in {time.perf_counter() - begin:.1f} s")
        skew = self.alignment.skew()
        rate, way = link.measure(self.group, self.alignment)
        self.say(f"ranks begin within {skew['median_us']:.2f} us (9 of 10 within {report.most(skew):.2f}, clocks ± {skew['clock_doubt_us']:.2f})")
        if rate:
            self.say(f"link: {rate / 1e9:.0f} GB/s, {way}, all ranks at once")
        done = []
        for row in args.selected:
            begin = time.perf_counter()
            done.append(self.row(row, rate))
            self.say(f"{row.key}: {summary(done[-1])} ({time.perf_counter() - begin:.1f} s)")
        return {
            "format": 1,
            "ranks": self.size,
            "rounds": args.rounds,
            "quick": args.quick,
            "machine": {"gpu": torch.cuda.get_device_name(), "driver": driver()},
            "versions": {
                "mk": mk.__version__,
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "cublasLt": self.lib.version,
            },
            "link": {"bytes_per_s": rate, "way": way} if rate else None,
            "skew": skew,
            "rows": done,
        }

    def row(self, row, rate):
        out = {"op": row.op, "m": row.m, "k": row.k, "n": row.n, "key": row.key, "flop": row.flop(self.size)}
        out |= {"link_bytes": row.link_bytes(self.size), "link_ms": 1e3 * row.link_bytes(self.size) / rate if rate else 0.0}
        inputs = Inputs(row, self.rank, self.size, self.args.seed)
        judges = [Judge(inputs.reference(i)) for i in range(SETS)]
        shape = judges[0]._reference.shape

        def result():
            return torch.empty(shape, dtype=torch.bfloat16, device="cuda")

        gemms, out["products"] = self.products(row, inputs)
        functions = []

        def mine(make, *more):
            def made():
                one, kernels = make(row, inputs, self.world, result, *more)
                functions.extend(kernels)
                return one

            return made

        candidates = [(ours.FUSED, mine(ours.fused, self.given(row, ours.FUSED)))]
        if row.separate(self.size):
            candidates.append((ours.SEPARATE, mine(ours.separate, self.given(row, ours.SEPARATE))))
        candidates += peers.contestants(row, inputs, self.group, gemms, result)
        present, out["missing"] = [], []
        for name, make in candidates:
            one, reason = self.attempt(make, judges[0])
            if reason is None:
                present.append(one)
            else:
                out["missing"].append({"name": name, "reason": reason})
        out["results"] = []
        for one, times in zip(present, self.timer.measure(present, judges, self.args.rounds)):
            if not times.ms:
                out["missing"].append({"name": one.name, "reason": "TooLate: the host was late for every launch"})
                continue
            figures = {"name": one.name, "kind": one.kind, "note": one.note} | times.json()
            if one.settings is not None:
                figures["settings"] = one.settings
            if one.predicted_ms is not None:
                figures["predicted_ms"] = one.predicted_ms
            if times.errors:
                figures["good"] = good(*times.errors)
            out["results"].append(figures)
        dist.barrier()
        for function in functions:
            function.close()
        del inputs, judges, gemms, candidates, present
        if torch.cuda.memory_reserved() > KEEP_BYTES:
            torch.cuda.empty_cache()
        return out

    def given(self, row, name):
        """Settings of each kernel of a contestant of ours."""
        return ours.given(row, name, self.size, self.args.settings, self.args.stored_row)

    def attempt(self, make, judge):
        """A contestant that was made and has run once on every rank, or why not."""
        one, reason = None, None
        try:
            one = make()
            y = one.run(0)
            if y is not None:
                judge.errors(y)
            torch.cuda.synchronize()
            if one.after:
                one.after()
        except Exception as error:  # whatever a peer raises is why it is missing
            reason = f"{type(error).__name__}: {first_line(error)}"
        reasons = [None] * self.size
        dist.all_gather_object(reasons, reason)
        found = [f"{r} (rank {rank})" if None in reasons else r for rank, r in enumerate(reasons) if r]
        return one, found[0] if found else None

    def products(self, row, inputs):
        """The best way to compute each product of a row, and what was tried. Collective."""
        ways, tried = [], []
        for at, shape in enumerate(row.products(self.size)):
            m, k, n = shape
            if at == 0:
                left = inputs.whole or [s[0] for s in inputs.sets]
                pairs = [(a, s[1].flatten(1)) for a, s in zip(left, inputs.sets)]
            else:
                hidden = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
                pairs = [(hidden, s[2]) for s in inputs.sets]
            target = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
            best, times = lt.best(self.lib, shape, pairs, target, self.slowest, self.timer.flush)
            ways.append(best)
            tried.append({"shape": shape, "best": best.name, "ms": times})
        return ways, tried

    def slowest(self, numbers):
        """The greatest of each number over the ranks. Collective."""
        tensor = torch.tensor(numbers, dtype=torch.float64, device="cuda")
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def close(self):
        dist.destroy_process_group()


def summary(row):
    """``mk .142, NCCL, cuBLAS .155; async-TP is missing`` for one row, in ms."""
    there = ", ".join(f"{r['name']} {r['ms']:.4f}" for r in row["results"] if r["kind"] != contestant.ALONE)
    return "; ".join([there] + [f"{m['name']} is missing: {m['reason']}" for m in row["missing"]])


def first_line(error):
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def driver():
    """The driver's version, or None where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
