"""Experts over ranks, a process and a GPU each: mk's one kernel beside NCCL's all-to-all and `torch._grouped_mm`.

Peers get their tables for nothing: the order of rows, and how many go where, are on the host and on the device before they are timed, while
mk builds its own in each launch. One peer sends a row for each expert of a token, the other a token once to each rank that has one of its
experts; on the way back, sums of a rank's experts. `bound` is the longer of the products alone on the fullest rank and of those bytes over
the link.
"""

import datetime
import json
import math
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "torch_peers"))

import link  # noqa: E402
import predicted  # noqa: E402
from align import Alignment  # noqa: E402
from check import Judge, good  # noqa: E402
from contestant import ALONE, OURS, PEER, Contestant  # noqa: E402
from inputs import SETS  # noqa: E402
from peers import Group  # noqa: E402
from timing import Timer  # noqa: E402

import mk  # noqa: E402

DISPATCH = """fn dispatched(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), w: bf16[E, H, N] @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w)
}"""
# Tokens of all ranks, elements, columns of an expert, experts, slots.
PRODUCTS = [(8192, 7168, 2048, 64, 8), (32768, 7168, 2048, 64, 8), (8192, 2048, 1536, 128, 8)]
# Tokens of a rank, elements, elements between the products, experts, slots.
LAYERS = [(64, 2048, 768, 128, 8), (512, 2048, 768, 128, 8), (8192, 2048, 768, 128, 8), (4096, 4096, 14336, 8, 2)]


class Routing:
    """Where a set's tokens go: on this rank, what torch would otherwise find out in each step."""

    def __init__(self, ids, experts):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.ids, self.mine = ids, experts // world
        of_ranks = _gathered(ids)
        self.all_ids = torch.cat(of_ranks)
        tokens, slots = ids.shape
        # A row for each expert of a token, by expert.
        self.order = ids.flatten().argsort(stable=True)
        self.token = self.order // slots
        self.sent = (ids.flatten() // self.mine).bincount(minlength=world).tolist()
        arrived = [part.flatten()[part.flatten() // self.mine == rank].sort(stable=True).values for part in of_ranks]
        self.received = [len(part) for part in arrived]
        expert = torch.cat(arrived) - rank * self.mine
        self.by_expert = expert.argsort(stable=True)
        self.back = self.by_expert.argsort()
        self.counts = expert.bincount(minlength=self.mine)
        self.ends = self.counts.cumsum(0).int()
        # A token once to each rank that has one of its experts.
        goes = torch.zeros(tokens, world, dtype=torch.bool, device=ids.device).scatter_(1, ids // self.mine, True)
        self.once = goes.T.nonzero()[:, 1].contiguous()
        self.once_sent = goes.sum(0).tolist()
        come = [part[(part // self.mine == rank).any(1)] for part in of_ranks]
        self.once_received = [len(part) for part in come]
        come = torch.cat(come)
        here, slot = (come // self.mine == rank).nonzero(as_tuple=True)
        chosen = come[here, slot] - rank * self.mine
        by_expert = chosen.argsort(stable=True)
        self.expand, self.slot = here[by_expert], slot[by_expert]

    def place(self):
        """Where mk has this rank's rows: experts begin at multiples of 128."""
        begins, at = [], 0
        for n in self.counts.tolist():
            begins.append(torch.arange(at, at + n, device=self.ids.device))
            at += -(-n // 128) * 128
        return torch.cat(begins)


class Placed(Judge):
    """Judges rows that lie at ``place``, or that are contiguous."""

    def __init__(self, reference, place=None):
        super().__init__(reference)
        self._place = place

    def errors(self, y):
        return super().errors(y if y.shape[0] == self._reference.shape[0] else y[self._place])


class Bench:
    """Collective to make and to use."""

    def __init__(self, args):
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
        torch.set_grad_enabled(False)
        dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=120))
        self.args, self.rank, self.size = args, dist.get_rank(), dist.get_world_size()
        self.world, group = mk.World.from_torch(), Group()
        self.alignment = Alignment(group.name)
        self.timer = Timer(self.alignment)
        self.rate, self.way = link.measure(group, self.alignment)
        self.rows, self.wrong = [], 0

    def random(self, *shape, seed, scale=1.0, shared=False):
        """Different on each rank, or the same on all."""
        generator = torch.Generator(device="cuda").manual_seed(1000 * self.args.seed + seed + (0 if shared else 100_000 * (self.rank + 1)))
        return (torch.randn(*shape, device="cuda", generator=generator) * scale).bfloat16()

    def routing(self, tokens, experts, slots, skew, seed):
        scores = self.random(tokens, experts, seed=seed).float()
        if skew > 1:
            scores[:, 0] += math.log(skew)
        weights, ids = scores.softmax(1).topk(slots)
        return Routing(ids.contiguous(), experts), (weights / weights.sum(1, keepdim=True)).contiguous()

    def row(self, part, shape, contestants, judges, bytes_moved, plans):
        results = self.timer.measure(contestants, judges, self.args.rounds)
        found = {one.name: result for one, result in zip(contestants, results)}
        moved = torch.tensor(bytes_moved / self.rate, dtype=torch.float64, device="cuda")
        dist.all_reduce(moved, dist.ReduceOp.MAX)
        ours = found["mk"]
        peers = [result.middle for one, result in zip(contestants, results) if one.kind == PEER]
        alone = [result.middle for one, result in zip(contestants, results) if one.kind == ALONE]
        bound = max(*alone, 1e3 * moved.item())
        right = all(good(*result.errors) for result in results if result.errors)
        self.wrong += not right
        self.rows.append({
            "part": part, "shape": shape, "results": {name: result.json() for name, result in found.items()}, "link_ms": 1e3 * moved.item(),
            "mk_ms": ours.middle, "predicted_ms": predicted.of(plans), "bound_ms": bound, "peer_over_mk": min(peers) / ours.middle, "bound_over_mk": bound / ours.middle, "right": right,
        })
        if self.rank == 0:
            times = ", ".join(f"{name} {1e3 * result.middle:.1f}" for name, result in found.items())
            error = max(result.errors[0] for result in results if result.errors)
            ratios = f"peer / mk {min(peers) / ours.middle:.3f} | bound / mk {bound / ours.middle:.3f}"
            print(f"{part} {shape} | us {times}, link {1e6 * moved.item():.1f} | {ratios} | error {error:.1e} {'ok' if right else 'WRONG'}", flush=True)

    def product(self, tokens, hidden, columns, experts, slots, skew):
        tokens //= self.size
        f = mk.compile(DISPATCH, self.world)
        w = self.random(experts // self.size, hidden, columns, seed=7, scale=hidden**-0.5)
        sets, judges = [], []
        for i in range(SETS):
            x = self.random(tokens, hidden, seed=20 + i)
            route, _ = self.routing(tokens, experts, slots, skew, seed=30 + i)
            rows = torch.cat(_gathered(x))
            theirs = [rows[(route.all_ids == self.rank * route.mine + e).nonzero()[:, 0]] for e in range(route.mine)]
            sets.append((x, route, torch.cat(theirs)))
            judges.append(Placed(torch.cat([t.float() @ w[e].float() for e, t in enumerate(theirs)]), route.place()))
        [(shape, dtype)] = f.infer(sets[0][0].shape, sets[0][1].ids.shape, w.shape)
        out = torch.empty(shape, dtype=dtype, device="cuda")

        def every(i):
            x, route, _ = sets[i]
            got = _exchanged(x[route.token], route.sent, route.received)
            return torch._grouped_mm(got[route.by_expert], w, offs=route.ends)

        def once(i):
            x, route, _ = sets[i]
            got = _exchanged(x[route.once], route.once_sent, route.once_received)
            return torch._grouped_mm(got[route.expand], w, offs=route.ends)

        def alone(i):
            torch._grouped_mm(sets[i][2], w, offs=sets[i][1].ends)

        contestants = [
            Contestant("mk", OURS, lambda i: f(sets[i][0], sets[i][1].ids, w, out=out), [out], f.check),
            Contestant("NCCL, grouped_mm", PEER, every),
            Contestant("NCCL once a rank, grouped_mm", PEER, once),
            Contestant("products alone", ALONE, alone),
        ]
        moved = 2 * hidden * max(self.elsewhere(s[1].once_sent) for s in sets)
        self.row("dispatch", f"T{tokens * self.size} H{hidden} N{columns} E{experts} k{slots} skew {skew}", contestants, judges, moved, f.plans[-1:])
        f.close()

    def elsewhere(self, rows):
        return sum(n for to, n in enumerate(rows) if to != self.rank)

    def layer(self, tokens, hidden, inner, experts, slots, skew, pipeline):
        f = mk.compile(pipeline, self.world, fuse="always")
        others = {text: mk.compile(pipeline, self.world, fuse="always", settings=text) for text in self.args.settings}
        w1 = self.random(experts // self.size, hidden, 2, inner, seed=7, scale=hidden**-0.5)
        w2 = self.random(experts // self.size, inner, hidden, seed=8, scale=inner**-0.5)
        sets, judges = [], []
        for i in range(SETS):
            x = self.random(tokens, hidden, seed=20 + i)
            route, gate = self.routing(tokens, experts, slots, skew, seed=30 + i)
            gates = torch.cat(_gathered(gate))
            own = gates.view(self.size, tokens, slots)
            comes = torch.cat([part[(ids // route.mine == self.rank).any(1)] for part, ids in zip(own, route.all_ids.view(self.size, tokens, slots))])
            rows = torch.cat(_gathered(x))
            sets.append((x, route, gate, comes[route.expand, route.slot], rows))
            judges.append(Judge(self.sum_of_experts(rows, route, gates, w1, w2)))
        out = torch.empty_like(sets[0][0])

        def hidden_rows(rows, ends):
            g, u = torch._grouped_mm(rows, w1.flatten(2), offs=ends).chunk(2, 1)
            return torch._grouped_mm(F.silu(g) * u, w2, offs=ends)

        def every(i):
            x, route, gate, _, _ = sets[i]
            got = _exchanged(x[route.token], route.sent, route.received)
            y = hidden_rows(got[route.by_expert], route.ends)
            returned = _exchanged(y[route.back], route.received, route.sent)
            back = torch.empty_like(returned)
            back[route.order] = returned
            return (back.view(*gate.shape, -1).float() * gate[..., None]).sum(1).bfloat16()

        def once(i):
            x, route, _, weight, _ = sets[i]
            got = _exchanged(x[route.once], route.once_sent, route.once_received)
            y = hidden_rows(got[route.expand], route.ends)
            sums = torch.zeros(got.shape, device="cuda").index_add_(0, route.expand, y * weight[:, None])
            returned = _exchanged(sums.bfloat16(), route.once_received, route.once_sent)
            return torch.zeros(x.shape, device="cuda").index_add_(0, route.once, returned.float()).bfloat16()

        def alone(i):
            route, rows = sets[i][1], sets[i][4]
            hidden_rows(arrived[i], route.ends)

        arrived = [
            torch.cat([s[4][(s[1].all_ids == self.rank * s[1].mine + e).nonzero()[:, 0]] for e in range(s[1].mine)]) for s in sets
        ]
        def of_ours(f):
            return lambda i: f(*sets[i][:1], sets[i][1].ids, sets[i][2], w1, w2, out=out)

        contestants = [
            *(Contestant(text, OURS, of_ours(g), [out], g.check) for text, g in {"mk": f, **others}.items()),
            Contestant("NCCL, grouped_mm", PEER, every),
            Contestant("NCCL once a rank, grouped_mm", PEER, once),
            Contestant("products and gates alone", ALONE, alone),
        ]
        moved = 2 * hidden * max(self.elsewhere(s[1].once_sent) + self.elsewhere(s[1].once_received) for s in sets)
        self.row("layer", f"T{tokens} a rank, H{hidden} I{inner} E{experts} k{slots} skew {skew}", contestants, judges, moved, f.plans[-1:])
        for g in (f, *others.values()):
            g.close()

    def sum_of_experts(self, rows, route, gates, w1, w2):
        """This rank's tokens, in float32: each rank's experts on all tokens, added up."""
        whole = torch.zeros(rows.shape, device="cuda")
        for e in range(route.mine):
            token, slot = (route.all_ids == self.rank * route.mine + e).nonzero(as_tuple=True)
            g, u = (rows[token].float() @ w1[e].flatten(1).float()).chunk(2, 1)
            whole.index_add_(0, token, ((F.silu(g) * u) @ w2[e].float()) * gates[token, slot, None])
        dist.all_reduce(whole)
        return whole.chunk(self.size)[self.rank].clone()


    def step(self, tokens, hidden, inner, experts, slots, skew, pipeline):
        f = mk.compile(pipeline, self.world)
        others = {text: mk.compile(pipeline, self.world, settings=text) for text in self.args.settings}
        w1 = self.random(experts // self.size, hidden, 2, inner, seed=7, scale=hidden**-0.5).requires_grad_()
        w2 = self.random(experts // self.size, inner, hidden, seed=8, scale=inner**-0.5).requires_grad_()
        sets = []
        for i in range(SETS):
            x, d = self.random(tokens, hidden, seed=20 + i).requires_grad_(), self.random(tokens, hidden, seed=40 + i)
            route, gate = self.routing(tokens, experts, slots, skew, seed=30 + i)
            sets.append((x, route, gate.requires_grad_(), d))

        def hidden_rows(rows, ends):
            g, u = torch._grouped_mm(rows, w1.flatten(2), offs=ends).chunk(2, 1)
            return torch._grouped_mm(F.silu(g) * u, w2, offs=ends)

        def every(x, route, gate):
            got = _Exchanged.apply(x[route.token], route.sent, route.received)
            y = hidden_rows(got[route.by_expert], route.ends)
            returned = _Exchanged.apply(y[route.back], route.received, route.sent)
            return (returned[route.order.argsort()].view(*gate.shape, -1).float() * gate[..., None]).sum(1).bfloat16()

        def once(x, route, gate):
            got = _Exchanged.apply(x[route.once], route.once_sent, route.once_received)
            weight = _Exchanged.apply(gate[route.once], route.once_sent, route.once_received)[route.expand, route.slot]
            y = hidden_rows(got[route.expand], route.ends)
            sums = torch.zeros(got.shape, device="cuda").index_add(0, route.expand, y * weight[:, None])
            returned = _Exchanged.apply(sums.bfloat16(), route.once_received, route.once_sent)
            return torch.zeros(x.shape, device="cuda").index_add(0, route.once, returned.float()).bfloat16()

        def gradients(of, i):
            x, route, gate, d = sets[i]
            with torch.enable_grad():
                return torch.autograd.grad(of(x, route, gate), [x, gate, w1, w2], d)

        def of_ours(f):
            return lambda x, route, gate: f(x, route.ids, gate, w1, w2)

        def timed(name, f):
            return Contestant(name, OURS, lambda i: _nothing(gradients(of_ours(f), i)), after=f.check)

        ours = of_ours(f)
        contestants = [
            *(timed(text, g) for text, g in {"mk": f, **others}.items()),
            Contestant("forward of mk", ALONE, lambda i: _nothing(f(sets[i][0].detach(), sets[i][1].ids, sets[i][2].detach(), w1.detach(), w2.detach()))),
            Contestant("NCCL, grouped_mm", PEER, lambda i: _nothing(gradients(every, i))),
            Contestant("NCCL once a rank, grouped_mm", PEER, lambda i: _nothing(gradients(once, i))),
            Contestant("products of a backward alone", ALONE, self.products_of_a_backward(sets, w1.detach(), w2.detach())),
        ]
        wants = self.slopes(sets[0], w1, w2)
        errors = [self.worst(gradients(of, 0), wants) for of in (ours, every, once)]
        found = self.timer.measure(contestants, [None] * SETS, self.args.rounds)
        errors.append(self.worst(gradients(ours, 0), wants))
        ms = {one.name: result.middle for one, result in zip(contestants, found)}
        moved = 2 * hidden * max(self.elsewhere(s[1].once_sent) + self.elsewhere(s[1].once_received) for s in sets) / self.rate
        moved = torch.tensor(moved, dtype=torch.float64, device="cuda")
        dist.all_reduce(moved, dist.ReduceOp.MAX)
        backward = ms["mk"] - ms["forward of mk"]
        over = min(t for name, t in ms.items() if "NCCL" in name) / ms["mk"]
        bound = max(ms["products of a backward alone"], 1e3 * moved.item())
        right = max(errors) < 2e-2
        self.wrong += not right
        shape = f"T{tokens} a rank, H{hidden} I{inner} E{experts} k{slots} skew {skew}"
        self.rows.append({"part": "step", "shape": shape, "ms": ms, "backward_ms": backward, "peer_over_mk": over, "bound_over_mk": bound / backward, "right": right})
        if self.rank == 0:
            times = ", ".join(f"{name} {1e3 * t:.1f}" for name, t in ms.items())
            rate = 12 * tokens * slots * hidden * inner / backward / 1e9
            print(
                f"step {shape} | us {times}, backward {1e3 * backward:.1f} ({rate:.0f} TFLOP/s) | peer / mk {over:.3f} | bound / backward "
                f"{bound / backward:.3f} | errors {', '.join(f'{e:.1e}' for e in errors)} {'ok' if right else 'WRONG'}", flush=True,
            )
        for g in (f, *others.values()):
            g.close()

    def products_of_a_backward(self, sets, w1, w2):
        """Of arrived rows: slopes of what is between the products, of the rows, and of both matrices."""
        parts = []
        for x, route, _, d in sets:
            of = lambda rows: torch.cat([rows[(route.all_ids == self.rank * route.mine + e).nonzero()[:, 0]] for e in range(route.mine)])
            rows, dy = (of(torch.cat(_gathered(t.detach()))) for t in (x, d))
            parts.append((rows, dy, torch._grouped_mm(rows, w1.flatten(2), offs=route.ends), route.ends))

        def run(i):
            rows, dy, h, ends = parts[i]
            torch._grouped_mm(dy, w2.transpose(1, 2), offs=ends)
            torch._grouped_mm(h, w1.flatten(2).transpose(1, 2), offs=ends)
            torch._grouped_mm(rows.t(), h, offs=ends)
            torch._grouped_mm(h[:, : w2.shape[1]].t(), dy, offs=ends)

        return run

    def slopes(self, given, w1, w2):
        """Gradients of tokens, weights and this rank's matrices, in float32."""
        x, route, gate, d = given
        rows, gates, wide = torch.cat(_gathered(x.detach())).float(), torch.cat(_gathered(gate.detach())), torch.cat(_gathered(d)).float()
        leaves = [t.detach().float().requires_grad_() for t in (rows, gates, w1, w2)]
        sums = [torch.zeros_like(t) for t in leaves]
        for e in range(route.mine):
            token, slot = (route.all_ids == self.rank * route.mine + e).nonzero(as_tuple=True)
            with torch.enable_grad():
                g, u = (leaves[0][token] @ leaves[2][e].flatten(1)).chunk(2, 1)
                y = ((F.silu(g) * u) @ leaves[3][e]) * leaves[1][token, slot, None]
                found = torch.autograd.grad(y, leaves, wide[token], allow_unused=True)
            for s, t in zip(sums, found):
                s += t
        for t in sums[:2]:
            dist.all_reduce(t)
        return [t.chunk(self.size)[self.rank] for t in sums[:2]] + sums[2:]

    def worst(self, got, wants):
        """The largest relative error of a gradient, on any rank; infinite where one has a NaN."""
        errors = torch.stack([(g.float() - w).norm() / w.norm() for g, w in zip(got, wants)]).nan_to_num(nan=float("inf"))
        dist.all_reduce(errors, dist.ReduceOp.MAX)
        return errors.max().item()


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.counts = received, sent
        return _exchanged(rows.contiguous(), sent, received)

    @staticmethod
    def backward(ctx, d):
        return _exchanged(d.contiguous(), *ctx.counts), None, None


def _nothing(_):
    """A contestant that is judged apart has no result."""


def _gathered(mine):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return parts


def _exchanged(rows, sent, received):
    got = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(got, rows, received, sent)
    return got


def main(args, chosen, pipeline):
    """Of a process of `torchrun`; the exit status says whether all results are right."""
    bench = Bench(args)
    if bench.rank == 0:
        print(f"link: {bench.rate / 1e9:.0f} GB/s, {bench.way}, {bench.size} ranks at once", flush=True)
    if args.part in (None, "grouped"):
        for row in chosen(PRODUCTS):
            bench.product(*row, 1)
    if args.part in (None, "layer"):
        for row in chosen(LAYERS):
            for skew in (1, 8):
                bench.layer(*row, skew, pipeline)
    if args.part in (None, "step"):
        for row in chosen(LAYERS):
            bench.step(*row, 1, pipeline)
    if args.json and bench.rank == 0:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "mk": mk.__version__, "seed": args.seed, "rounds": args.rounds}
        about |= {"ranks": bench.size, "link_bytes_per_s": bench.rate}
        pathlib.Path(args.json).write_text(json.dumps({**about, "rows": bench.rows}, indent=1) + "\n")
    dist.destroy_process_group()
    return predicted.status(bench.rows, bench.wrong)
