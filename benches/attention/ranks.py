"""Rings over ranks, a process and a GPU each: mk's one kernel beside NCCL's gather of keys and values with cuDNN's attention.

`cuDNN alone` attends to keys and values that are there already: a ring that hides its messages takes as long. With `causal`, ranks hold two parts
of the sequence each (`zigzag`), the peer attends part by part, and `alone` does so, too.
"""

import datetime
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "torch_peers"))

import link  # noqa: E402
import predicted  # noqa: E402
from align import Alignment  # noqa: E402
from check import Judge, good  # noqa: E402
from contestant import ALONE, OURS, PEER, Contestant  # noqa: E402
from peers import Group  # noqa: E402
from timing import Timer  # noqa: E402

import mk  # noqa: E402

# Tokens of a rank, batch, heads, groups, elements of a head, causal.
ROWS = [
    (768, 4, 16, 16, 128, False), (3072, 4, 16, 16, 128, False), (6144, 4, 16, 16, 128, False), (4096, 1, 32, 8, 128, True), (8192, 1, 32, 8, 128, True),
]
SETS = 3


def cudnn(q, k, v, causal=False):
    """Of ``[B, S, H, D]``. Causal queries are the last of the keys."""
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    mask = causal_lower_right(q.shape[1], k.shape[1]) if causal else None
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION] if causal else [SDPBackend.CUDNN_ATTENTION]
    with sdpa_kernel(backends, set_priority=True):
        return scaled_dot_product_attention(*turned, attn_mask=mask, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)


class Bench:
    """Collective to make and to use."""

    def __init__(self, args):
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
        dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=120))
        self.args, self.rank, self.size = args, dist.get_rank(), dist.get_world_size()
        self.world, group = mk.World.from_torch(), Group()
        alignment = Alignment(group.name)
        self.timer = Timer(alignment)
        self.rate, _ = link.measure(group, alignment)
        self.rows, self.wrong = [], 0

    def random(self, *shape, seed):
        generator = torch.Generator(device="cuda").manual_seed(1000 * self.args.seed + seed + 100_000 * (self.rank + 1))
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    def gathered(self, x, causal):
        """The whole sequence of keys or values, in order."""
        every = x.new_empty(self.size, *x.shape)
        dist.all_gather_into_tensor(every, x)
        if not causal:
            return every.transpose(0, 1).flatten(1, 2)
        halves = every.unflatten(2, (2, -1))
        parts = [halves[r, :, 0] for r in range(self.size)] + [halves[r, :, 1] for r in reversed(range(self.size))]
        return torch.cat(parts, 1)

    def attend(self, q, k, v, causal):
        if not causal:
            return cudnn(q, k, v)
        part, n = q.shape[1] // 2, self.size
        ends = [(self.rank + 1) * part, (2 * n - self.rank) * part]
        return torch.cat([cudnn(x, k[:, :end], v[:, :end], True) for x, end in zip(q.chunk(2, 1), ends)], 1)

    def ring(self, tokens, b, h, g, d, causal):
        placement, mask = ("zigzag", ", causal") if causal else ("shard", "")
        kv = f"bf16[B, S, G, D] @ {placement}(1)"
        f = mk.compile(f"fn attend(q: bf16[B, S, H, D] @ {placement}(1), k: {kv}, v: {kv}) {{ ring(k, v) -> attention(q{mask}) }}", self.world)
        sets, there, judges = [], [], []
        for i in range(SETS):
            q, k, v = (self.random(b, tokens, n, d, seed=3 * i + j) for j, n in enumerate((h, g, g)))
            sets.append((q, k, v))
            there.append([q, self.gathered(k, causal), self.gathered(v, causal)])
            judges.append(Judge(self.attend(*there[i], causal).flatten(0, 1).flatten(1).float()))
        out = torch.empty_like(sets[0][0])
        flat = lambda y: y.flatten(0, 1).flatten(1)

        def gather(i):
            q, k, v = sets[i]
            return flat(self.attend(q, self.gathered(k, causal), self.gathered(v, causal), causal))

        def alone(i):
            self.attend(*there[i], causal)

        contestants = [
            Contestant("mk", OURS, lambda i: flat(f(*sets[i], out=out)), [out], f.check),
            Contestant("NCCL gather, cuDNN", PEER, gather),
            Contestant("cuDNN alone", ALONE, alone),
        ]
        results = self.timer.measure(contestants, judges, self.args.rounds)
        found = {one.name: result for one, result in zip(contestants, results)}
        ms = {name: result.middle for name, result in found.items()}
        wire = 1e3 * 2 * 2 * b * tokens * g * d * (self.size - 1) / self.rate
        # Both round to bfloat16.
        right = found["mk"].errors is not None and good(*(e / 2 for e in found["mk"].errors))
        self.wrong += not right
        shape = f"{tokens} tokens a rank, B{b} H{h}:{g} D{d} {'causal, zigzag' if causal else 'full'}"
        ratios = {"mk / alone": ms["mk"] / ms["cuDNN alone"], "peer / mk": ms["NCCL gather, cuDNN"] / ms["mk"]}
        known = {"mk_ms": ms["mk"], "predicted_ms": predicted.of(f.plans[-1:])}
        self.rows.append(known | {"shape": shape, "results": {name: result.json() for name, result in found.items()}, "link_ms": wire, "right": right} | ratios)
        if self.rank == 0:
            times = ", ".join(f"{name} {1e3 * t:.1f}" for name, t in ms.items())
            said = " | ".join(f"{name} {value:.3f}" for name, value in ratios.items())
            print(f"ring {shape} | us {times}, link {1e3 * wire:.1f} | {said} | error {found['mk'].errors[0]:.1e} {'ok' if right else 'WRONG'}", flush=True)
        f.close()


def main(args):
    """Of a process of `torchrun`; the exit status says whether all results are right."""
    torch.set_grad_enabled(False)
    bench = Bench(args)
    for row in ROWS:
        bench.ring(*row)
    if args.json and bench.rank == 0:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "mk": mk.__version__, "seed": args.seed, "ranks": bench.size}
        pathlib.Path(args.json).write_text(json.dumps({**about, "link_bytes_per_s": bench.rate, "rows": bench.rows}, indent=1) + "\n")
    dist.destroy_process_group()
    return predicted.status(bench.rows, bench.wrong)
