"""A training step, forward and backward, a process and a GPU each.

    torchrun --nproc-per-node 2 benches/step --seed 3 --json step.json
    torchrun --nproc-per-node 2 benches/step --rows 8192,4096,14336 --layers --mode micro

``mk.nn.GatedMLP``, and a whole layer of a Llama, beside the same in torch: eager with NCCL, and compiled with async-TP (what ``torch.compile``
makes of functional collectives); a block also beside its GEMMs alone, each by cuBLASLt's fastest algorithm. Gradients of each are judged by
float32. Memory is what a step adds to parameters, gradients and inputs: the peak of torch's allocator, and what lies outside of it (symmetric
memory, NCCL's and mk's workspace). A run fails of wrong gradients, of kernels of others in mk's backward (of a layer: GEMMs, attention and
collectives), of workspace that `mk explain` did not say, and of a block's time that the cost model missed by 30 %.
"""

import argparse
import datetime
import gc
import json
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path

# Before torch and NCCL read them.
os.environ.update({"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"})
sys.path.append(str(Path(__file__).resolve().parent.parent / "torch_peers"))

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch._inductor.config  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402

import lt  # noqa: E402
import measure  # noqa: E402
import mk  # noqa: E402
import predicted  # noqa: E402
import said  # noqa: E402
from block import Gated  # noqa: E402
from layer import LAYERS, Layer  # noqa: E402

# Tokens of all ranks, hidden, ffn of all ranks.
ROWS = [(8192, 4096, 14336), (8192, 8192, 28672), (32768, 4096, 14336), (4096, 2048, 8192)]
TOKENS = 8192  # of a layer
MODES = ("plain", "checkpointed", "micro", "captured")
# Relative error of a gradient, in the Frobenius norm: bfloat16 operands and results. That of a whole layer has more of them.
LIMIT, LAYER_LIMIT = 1e-2, 2e-2
SETS = 3


def drawn(seed):
    """A block of a random shape."""
    draw = random.Random(seed)
    log = lambda low, high, unit: unit * round(math.exp(draw.uniform(math.log(low), math.log(high))) / unit)
    hidden = log(1024, 8192, 128)
    return log(2048, 32768, 256), hidden, 256 * round(hidden * draw.uniform(2.5, 4) / 256)


class Bench:
    def __init__(self, args):
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
        dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=300))
        symm_mem.enable_symm_mem_for_group(dist.group.WORLD.group_name)
        torch._inductor.config._micro_pipeline_tp = True
        self.args, self.world, self.flush, self.lt = args, mk.World.from_torch(), measure.Flush(), lt.Library()
        self.rows, self.wrong = [], 0

    def say(self, text):
        if dist.get_rank() == 0:
            print(text, flush=True)

    def random(self, *shape, seed, scale=1.0):
        generator = torch.Generator(device="cuda").manual_seed(1_000_000 * self.args.seed + 1000 * dist.get_rank() + seed)
        return (torch.randn(*shape, device="cuda", generator=generator) * scale).bfloat16()

    def row(self, made, limit):
        mode = self.args.mode
        truth = made.truth(mode)
        steps, runs, found = {}, {}, {}
        for name, make in made.contestants(self.world, mode):
            if name in self.args.without:
                continue
            outside, began = measure.outside(), time.perf_counter()
            step, inputs = make(), [x.clone().requires_grad_() for x in made.x]
            run = lambda i, step=step, inputs=inputs: step(inputs[i % SETS], made.dy[i % SETS])
            run(0)
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            # Functions of one text are one: what a second contestant needs may be there.
            held = max([measure.outside() - outside, *(f["memory_mib"][1] for other, f in found.items() if name.startswith(other))])
            run(0)
            peak = measure.memory(run)
            if mode == "captured":
                step.capture(inputs[0], made.dy[0])
            steps[name], runs[name] = (step, inputs), run
            found[name] = {"first_s": first, "memory_mib": [peak, held], "host_ms": measure.host(run)}
        alone, products = made.gemms(self.lt, measure.slowest, self.flush, mode)
        if alone:
            runs["GEMMs"] = lambda i: alone()
        for run in runs.values():
            run(0)
        for name, ms in zip(runs, measure.times(list(runs.values()), self.args.rounds)):
            found.setdefault(name, {})["ms"] = ms
        for name, (step, inputs) in steps.items():
            # Behind the timed steps, of which each has set 0 at its end.
            runs[name](0)
            found[name]["errors"] = measure.errors([inputs[0].grad, *step.gradients()], truth)
        right = all(max(f["errors"]) < limit for f in found.values() if "errors" in f)
        self.wrong += not right
        row = {"row": made.text, "mode": mode, "found": found, "products_ms": products, "right": right}
        if mode == "plain" and "mk" in steps:
            step, inputs = steps["mk"]
            parts = measure.kernels(step, inputs[0], made.dy[0])
            layer = isinstance(made, Layer)
            row["kernels"], (row["others"], row["strangers"]) = parts, said.strangers(parts[1], layer)
            plans = step.plans()
            row["workspace_mib"] = [said.workspace([plan.explain() for plan in plans]), found["mk"]["memory_mib"][1]]
            self.wrong += bool(row["strangers"]) or row["workspace_mib"][0] is None or not said.is_as_said(*row["workspace_mib"])
            if not layer:
                row |= {"mk_ms": statistics.median(found["mk"]["ms"]), "predicted_ms": predicted.of(plans)}
        self.rows.append(row)
        self.tell(row)

    def tell(self, row):
        """Times, memory and errors of all contestants in one row. ``table`` prints the ratios."""
        self.say(f"== {row['row']}, {row['mode']}")
        for name, f in row["found"].items():
            text = f"   {name:14} {statistics.median(f['ms']):8.3f} ms"
            if "errors" in f:
                peak, held = f["memory_mib"]
                text += f"  host {f['host_ms']:6.3f} ms  MiB {peak:6.0f} + {held:4.0f}  first {f['first_s']:5.1f} s  error {max(f['errors']):.1e}"
            self.say(text)
        label = lambda name: "" if name.startswith("mk_") else " " + name[:40]
        times = lambda part: ", ".join(f"{us:.0f}{label(name)}" for name, us in part)
        if "kernels" in row:
            self.say(f"   mk's kernels, us: forward {times(row['kernels'][0])} | backward {times(row['kernels'][1])}")
            mib, held = row["workspace_mib"]
            told = "nothing" if mib is None else f"{mib:.0f} MiB"
            known = row.get("predicted_ms")
            self.say(f"   mk explain: workspace {told} ({held:.0f} allocated), step {'-' if known is None else f'{known:.3f} ms'}")
            for name in row["strangers"]:
                self.say(f"   NOT OURS: {name}")
        if row["products_ms"]:
            self.say("   GEMMs, us: " + ", ".join(f"{name} {1e3 * ms:.0f}" for name, ms in row["products_ms"].items()))

    def table(self):
        self.say("\nrow | mk ms | async-TP / mk | eager / mk | mk / GEMMs | memory: mk / eager | host ms: mk, eager, async-TP | backward by others | right")
        for row in self.rows:
            found = row["found"]
            ms = {name: statistics.median(f["ms"]) for name, f in found.items()}
            for ours in [name for name in found if name.startswith("mk")]:
                over = lambda name: f"{ms[name] / ms[ours]:.3f}" if name in ms else "-"
                mib = {name: sum(f["memory_mib"]) for name, f in found.items() if "memory_mib" in f}
                share = f"{mib[ours] / mib['eager']:.2f}" if "eager" in mib else "-"
                alone = f"{ms[ours] / ms['GEMMs']:.3f}" if "GEMMs" in ms else "-"
                hosts = ", ".join(f"{found[n]['host_ms']:.2f}" for n in (ours, "eager", "async-TP") if n in found)
                label = row["row"] if ours == "mk" else f"{row['row']} ({ours})"
                others = len(row["others"]) if "others" in row and ours == "mk" else "-"
                self.say(f"{label} | {ms[ours]:.3f} | {over('async-TP')} | {over('eager')} | {alone} | {share} | {hosts} | {others} | {row['right']}")


def main():
    parser = argparse.ArgumentParser(prog="benches/step", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="*", help="TOKENS,HIDDEN,FFN of all ranks [those of docs/performance.md, and one that the seed draws]")
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=["llama-3-8b"])
    parser.add_argument("--without", nargs="*", default=[], help="contestants that are left out")
    parser.add_argument("--mode", choices=MODES, default="plain")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no row is begun")
    parser.add_argument("--json", help="write all of it to this file")
    args = parser.parse_args()
    began, bench = time.monotonic(), Bench(args)
    blocks = [tuple(map(int, row.split(","))) for row in args.rows] if args.rows is not None else [*ROWS, drawn(args.seed)]
    rows = [(lambda r=r: Gated(bench.random, *r, SETS), LIMIT, str(r)) for r in blocks]
    if args.mode in ("plain", "checkpointed"):
        rows += [(lambda n=n: Layer(bench.random, n, TOKENS, SETS), LAYER_LIMIT, n) for n in args.layers]
    for make, limit, name in rows:
        # The slowest rank's clock counts for all.
        if measure.slowest([time.monotonic() - began])[0] > args.limit:
            bench.say(f"== {name}: not begun within {args.limit:.0f} s")
            continue
        bench.row(make(), limit)
        # Functions of one row are closed before the next one's memory is measured.
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        if args.json and dist.get_rank() == 0:
            about = {"gpu": torch.cuda.get_device_name(), "ranks": dist.get_world_size(), "torch": torch.__version__, "seed": args.seed}
            Path(args.json).write_text(json.dumps({**about, "rounds": args.rounds, "rows": bench.rows}, indent=1))
    bench.table()
    dist.destroy_process_group()
    raise SystemExit(predicted.status(bench.rows, bench.wrong))


if __name__ == "__main__":
    main()
