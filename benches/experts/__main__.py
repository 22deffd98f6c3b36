"""Experts as `mk.compile` lowers them, beside torch's operations, on one GPU:

    python3 benches/experts                              # grouped products, tables of a routing, the layer
    python3 benches/experts --part layer --seed 3 --json layer.json
    python3 benches/experts --part grouped --settings block=128x128x64 --settings "block=64x256x64 group_m=1"

A row is a shape, microseconds of each contestant, the fastest peer's time ÷ mk's, and whether results are right; a wrong one fails the run. Routings and
inputs rotate, every contestant is captured in a graph where it can be, 256 MiB are overwritten between launches, contestants take turns, the median
counts. `seed` is that of inputs and routings.

    python3 -m torch.distributed.run --nproc-per-node 2 benches/experts     # over ranks: ranks.py says beside whom

Peers of a grouped product are `torch._grouped_mm` and a loop of `torch.mm`; of the layer, torch's sort, gathers, `_grouped_mm`, gates and sums,
compiled or not, and mk's own separate launches (`fuse="never"`), where a layer comes apart. `--part step` is the layer forward and backward, with
all gradients, beside torch's autograd through the same operations; `backward` in its row is that less mk's forward. With `--settings` grouped products and layers are
also timed with those, as contestants of mk's own that are no peers.
"""

import argparse
import json
import os
import pathlib
import sys

# Before torch and NCCL read them.
os.environ.update({"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"})

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "torch_peers"))

import torch  # noqa: E402

import mk  # noqa: E402
import predicted  # noqa: E402

SETS = 3
GROUPED = "fn grouped(x: bf16[R, K], counts: i32[E], w: bf16[E, K, N]) { ragged(x, counts) -> grouped_gemm(w) }"
LAYER = """fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}"""
# Little besides tables: rows of 64 elements.
NARROW = 64
TABLES = """fn tables(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), w: bf16[E, H, N] @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w)
}"""
# Rows, depth, columns, experts; once with as many rows for each expert, once with eight times as many for one.
PRODUCTS = [
    (64, 2048, 2048, 16), (512, 2048, 2048, 16), (512, 7168, 2048, 64), (8192, 7168, 2048, 16), (16384, 7168, 2048, 32),
    (16384, 2048, 1536, 32), (65536, 2048, 2048, 64), (65536, 2048, 1536, 128),
]
# Tokens, elements, elements between the products, experts, slots.
LAYERS = [
    (64, 2048, 768, 128, 8), (512, 2048, 768, 128, 8), (4096, 2048, 768, 128, 8), (8192, 2048, 768, 128, 8), (8192, 2048, 1024, 64, 8),
    (4096, 4096, 14336, 8, 2),
]
ROUTED = [(8192, 64, 8)]


class Bench:
    def __init__(self, args):
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.rounds, self.seed, self.rows, self.wrong = args.rounds, args.seed, [], 0

    def random(self, *shape, seed, scale=1.0):
        generator = torch.Generator(device="cuda").manual_seed(1000 * self.seed + seed)
        return (torch.randn(*shape, device="cuda", generator=generator) * scale).bfloat16()

    def time(self, contestants):
        """Microseconds of each, by turns: medians over rounds, each of which takes the next set of inputs."""
        pairs = {name: [] for name in contestants}
        for i in range(2 + self.rounds):
            names = list(contestants)
            for name in names[i % len(names) :] + names[: i % len(names)]:
                self.flush.fill_(i & 1)
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                contestants[name][i % SETS]()
                end.record()
                if i >= 2:
                    pairs[name].append((begin, end))
        torch.cuda.synchronize()
        middle = lambda all_of_it: sorted(1e3 * a.elapsed_time(b) for a, b in all_of_it)[len(all_of_it) // 2]
        return {name: middle(p) for name, p in pairs.items()}

    def judge(self, got, want, limit):
        """Relative error over the whole, and of the worst 128 rows."""
        error, norm = (got.float() - want).pow(2).sum(1), want.pow(2).sum(1)
        whole = (error.sum() / norm.sum()).sqrt().item()
        parts = [(e.sum() / n.sum().clamp_min(norm.mean() * len(n) / 10)).sqrt().item() for e, n in zip(error.split(128), norm.split(128))]
        right = whole < limit and max(parts) < 2 * limit
        self.wrong += not right
        return {"error": whole, "worst_rows": max(parts), "right": right}

    def row(self, part, shape, times, judged, plans=(), **more):
        peers = [t for name, t in times.items() if name != "mk" and "=" not in name]
        ratio = min(peers) / times["mk"] if peers else None
        known = {"mk_ms": times["mk"] / 1e3, "predicted_ms": predicted.of(plans)}
        self.rows.append({"part": part, "shape": shape, "us": times, "peer_over_mk": ratio, **known, **judged, **more})
        rates = " ".join(f"{name} {t:.1f}" for name, t in times.items())
        beside = f" | peer / mk {ratio:.3f}" if ratio else ""
        said = "ok" if judged["right"] else "WRONG"
        extra = "".join(f" | {name} {value}" for name, value in more.items())
        print(f"{part} {shape} | us {rates}{beside} | error {judged['error']:.1e}, rows {judged['worst_rows']:.1e} {said}{extra}", flush=True)


def captured(run):
    """A graph of a call's kernels; the call itself where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        # What the graph reads and writes lives as long as the call that has it.
        return lambda run=run: graph.replay()
    except RuntimeError as refused:
        print(f"not captured: {str(refused).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
        return run


def counts_of(rows, experts, skew, seed):
    """Rows of each expert that add up: about as many each, or the first with ``skew`` times its share."""
    weights = torch.rand(experts, generator=torch.Generator().manual_seed(seed)) + 1.0
    weights[seed % experts] *= skew
    counts = (weights / weights.sum() * rows).long()
    counts[seed % experts] += rows - counts.sum()
    return counts.tolist()


def product(bench, world, rows, depth, columns, experts, skew, settings):
    w = bench.random(experts, depth, columns, seed=7, scale=depth**-0.5)
    sets, room = [], 0
    for i in range(SETS):
        counts = counts_of(rows, experts, skew, bench.seed + i)
        starts, at = [], 0
        for n in counts:
            starts.append(at)
            at += -(-n // 128) * 128
        room = max(room, at)
        sets.append((counts, starts))
    functions = {"mk": mk.compile(GROUPED, world), **{text: mk.compile(GROUPED, world, settings=text) for text in settings}}
    ours, grouped, loops, judged = {name: [] for name in functions}, [], [], None
    for i, (counts, starts) in enumerate(sets):
        dense = bench.random(rows, depth, seed=20 + i)
        padded = torch.zeros(room, depth, dtype=torch.bfloat16, device="cuda")
        place = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, counts)]).cuda()
        padded[place] = dense
        numbers = torch.tensor(counts, dtype=torch.int32, device="cuda")
        ends = numbers.cumsum(0).int()
        out = torch.full((room, columns), float("nan"), dtype=torch.bfloat16, device="cuda")
        begins = [int(e) - n for e, n in zip(ends.tolist(), counts)]

        def loop(dense=dense, counts=counts, begins=begins):
            return [dense[b : b + n] @ w[e] for e, (b, n) in enumerate(zip(begins, counts)) if n]

        grouped.append(captured(lambda dense=dense, ends=ends: torch._grouped_mm(dense, w, offs=ends)))
        loops.append(captured(loop))
        want = torch.cat([p.float() for p in loop()])
        for name, f in functions.items():
            try:
                run = captured(lambda f=f, padded=padded, numbers=numbers, out=out: f(padded, numbers, w, out=out))
            except mk.Error as refused:
                print(f"{name}: {refused}".splitlines()[0], flush=True)
                continue
            ours[name].append(run)
            out.fill_(float("nan"))
            run()
            found = bench.judge(out[place], want, 6e-3)
            judged = found if judged is None or not found["right"] else judged
    times = bench.time({**{name: runs for name, runs in ours.items() if runs}, "grouped_mm": grouped, "mm_loop": loops})
    flops = 2 * rows * depth * columns
    bench.row("grouped", f"R{rows} K{depth} N{columns} E{experts} skew {skew}", times, judged, functions["mk"].plans[-1:], tflops=round(flops / times["mk"] / 1e6))
    for f in functions.values():
        f.close()


def routing(bench, tokens, experts, slots, skew, seed):
    generator = torch.Generator(device="cuda").manual_seed(1000 * bench.seed + seed)
    scores = torch.randn(tokens, experts, device="cuda", generator=generator)
    if skew > 1:
        # The first expert is chosen about so many times as often as another one.
        scores[:, 0] += torch.tensor(float(skew)).log()
    weights, ids = scores.softmax(1).topk(slots)
    return ids.contiguous(), (weights / weights.sum(1, keepdim=True)).contiguous()


def torch_tables(ids, experts):
    """Order of rows by expert, the token of each, and where each expert's rows end."""
    order = ids.flatten().argsort(stable=True)
    ends = torch.zeros(experts, dtype=torch.int32, device=ids.device).scatter_add_(
        0, ids.flatten(), torch.ones_like(ids.flatten(), dtype=torch.int32)
    ).cumsum(0).int()
    return order, order // ids.shape[1], ends


def torch_layer(x, ids, gate, w1, w2):
    order, token, ends = torch_tables(ids, w1.shape[0])
    h = torch._grouped_mm(x[token], w1.flatten(2), offs=ends)
    g, u = h.chunk(2, 1)
    y = torch._grouped_mm(torch.nn.functional.silu(g) * u, w2, offs=ends)
    back = torch.empty_like(y)
    back[order] = y
    return (back.view(*ids.shape, -1).float() * gate[..., None]).sum(1).to(x.dtype)


def dense_layer(x, ids, gate, w1, w2):
    out = torch.zeros(x.shape, device=x.device)
    for e in range(w1.shape[0]):
        token, slot = (ids == e).nonzero(as_tuple=True)
        h = x[token].float() @ w1[e].flatten(1).float()
        g, u = h.chunk(2, 1)
        out.index_add_(0, token, (torch.nn.functional.silu(g) * u) @ w2[e].float() * gate[token, slot, None])
    return out


def layer(bench, world, tokens, hidden, inner, experts, slots, skew, settings):
    w1 = bench.random(experts, hidden, 2, inner, seed=7, scale=hidden**-0.5)
    w2 = bench.random(experts, inner, hidden, seed=8, scale=inner**-0.5)
    f = mk.compile(LAYER, world, fuse="always")
    apart = mk.compile(LAYER, world, fuse="never")
    others = {text: mk.compile(LAYER, world, fuse="always", settings=text) for text in settings}
    contestants = {"mk": [], "torch": [], **{text: [] for text in settings}}
    judged, note = None, {}
    for i in range(SETS):
        x = bench.random(tokens, hidden, seed=20 + i)
        ids, gate = routing(bench, tokens, experts, slots, skew, seed=30 + i)
        given = [x, ids, gate, w1, w2]
        out, other = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
        contestants["mk"].append(captured(lambda given=given, out=out: f(*given, out=out)))
        contestants["torch"].append(captured(lambda given=given: torch_layer(*given)))
        if i == 0:
            apart(*given, out=other)
            if not apart.plans[-1].fused:
                contestants["mk_apart"] = []
            else:
                note["apart"] = apart.plans[-1].verdict
        out.fill_(float("nan"))
        contestants["mk"][-1]()
        found = bench.judge(out, dense_layer(*given), 8e-3)
        if "mk_apart" in contestants:
            contestants["mk_apart"].append(captured(lambda given=given, other=other: apart(*given, out=other)))
            other.fill_(float("nan"))
            contestants["mk_apart"][-1]()
            found["same_bits"] = torch.equal(out, other)
            found["right"] &= found["same_bits"]
            bench.wrong += not found["same_bits"]
        for text, g in others.items():
            contestants[text].append(captured(lambda g=g, given=given, other=other: g(*given, out=other)))
        judged = found if judged is None or not found["right"] else judged
    times = bench.time(contestants)
    flops = 6 * tokens * slots * hidden * inner
    shape = f"T{tokens} H{hidden} I{inner} E{experts} k{slots} skew {skew}"
    bench.row("layer", shape, times, judged, f.plans[-1:], tflops=round(flops / times["mk"] / 1e6), **note)
    for g in (f, apart, *others.values()):
        g.close()


def step(bench, world, tokens, hidden, inner, experts, slots, skew):
    """Forward and backward: gradients of tokens, weights and matrices."""
    f = mk.compile(LAYER, world)
    w1 = bench.random(experts, hidden, 2, inner, seed=7, scale=hidden**-0.5).requires_grad_()
    w2 = bench.random(experts, inner, hidden, seed=8, scale=inner**-0.5).requires_grad_()
    contestants, forward, judged = {"mk": [], "torch": []}, [], None

    def gradients(layer, x, ids, gate, d):
        with torch.enable_grad():
            return torch.autograd.grad(layer(x, ids, gate, w1, w2), [x, gate, w1, w2], d)

    for i in range(SETS):
        x, d = bench.random(tokens, hidden, seed=20 + i).requires_grad_(), bench.random(tokens, hidden, seed=40 + i)
        ids, gate = routing(bench, tokens, experts, slots, skew, seed=30 + i)
        given = [x, ids, gate.requires_grad_(), d]
        if i == 0:
            wide = [t.detach().float().requires_grad_() for t in (x, gate, w1, w2)]
            with torch.enable_grad():
                y = dense_layer(wide[0], ids, *wide[1:])
                want = torch.autograd.grad(y, wide, d.float())
            for got, exact in zip(gradients(f, *given), want):
                found = bench.judge(got.reshape(-1, got.shape[-1]), exact.reshape(-1, exact.shape[-1]), 2e-2)
                judged = found if judged is None or not found["right"] else judged
            del wide, y, want
        contestants["mk"].append(captured(lambda given=given: gradients(f, *given)))
        contestants["torch"].append(captured(lambda given=given: gradients(torch_layer, *given)))
        forward.append(captured(lambda given=given: f(given[0].detach(), given[1], given[2].detach(), w1.detach(), w2.detach())))
    alone = bench.time({"forward": forward})["forward"]
    times = bench.time(contestants)
    flops, backward = 6 * tokens * slots * hidden * inner, times["mk"] - alone
    bench.row("step", f"T{tokens} H{hidden} I{inner} E{experts} k{slots} skew {skew}", times, judged, backward=round(backward, 1),
              tflops=round(2 * flops / backward / 1e6))
    f.close()


def tables(bench, world, tokens, experts, slots):
    """All of a kernel whose rows are short, beside torch's tables alone."""
    f = mk.compile(TABLES, world)
    w = bench.random(experts, NARROW, NARROW, seed=7, scale=NARROW**-0.5)
    ours, theirs, judged = [], [], None
    for i in range(SETS):
        x, (ids, _) = bench.random(tokens, NARROW, seed=20 + i), routing(bench, tokens, experts, slots, 1, seed=30 + i)
        [(shape, dtype)] = f.infer(x.shape, ids.shape, w.shape)
        out = torch.full(shape, float("nan"), dtype=dtype, device="cuda")
        ours.append(captured(lambda x=x, ids=ids, out=out: f(x, ids, w, out=out)))
        theirs.append(captured(lambda ids=ids: torch_tables(ids, experts)))
        out.fill_(float("nan"))
        ours[-1]()
        at, got, want = 0, [], []
        for e in range(experts):
            token = (ids == e).nonzero()[:, 0]
            got.append(out[at : at + len(token)])
            want.append(x[token].float() @ w[e].float())
            at += -(-len(token) // 128) * 128
        found = bench.judge(torch.cat(got), torch.cat(want), 6e-3)
        judged = found if judged is None or not found["right"] else judged
    times = bench.time({"mk": ours, "torch_tables": theirs})
    bench.row("tables", f"T{tokens} E{experts} k{slots}", times, judged, f.plans[-1:], of_mk=f"tables, rows of {NARROW} elements, and their product")
    f.close()


def main():
    parser = argparse.ArgumentParser(description="experts of mk and of torch on one GPU")
    parser.add_argument("--part", choices=["grouped", "tables", "layer", "step"], help="one part [all]")
    parser.add_argument("--rounds", type=int, default=15, help="timed launches of each contestant [15]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", help="only shapes whose place in the list is among these, as `0,2`")
    parser.add_argument("--skew", type=int, nargs="+", default=[1, 8], help="times as many rows for one expert as for another [1 8]")
    parser.add_argument("--settings", action="append", default=[], help="more settings of grouped products and layers to time, once for each")
    parser.add_argument("--json", help="where to write all figures")
    args = parser.parse_args()
    chosen = lambda rows: rows if args.rows is None else [rows[int(i)] for i in args.rows.split(",") if int(i) < len(rows)]
    if "LOCAL_RANK" in os.environ:
        import ranks

        sys.exit(ranks.main(args, chosen, LAYER))
    bench, world = Bench(args), mk.World.local(1)
    with torch.no_grad():
        if args.part in (None, "tables"):
            for row in ROUTED:
                tables(bench, world, *row)
        if args.part in (None, "layer"):
            for row in chosen(LAYERS):
                for skew in args.skew:
                    layer(bench, world, *row, skew, args.settings)
        if args.part in (None, "step"):
            for row in chosen(LAYERS):
                for skew in args.skew:
                    step(bench, world, *row, skew)
        if args.part in (None, "grouped"):
            for row in chosen(PRODUCTS):
                for skew in args.skew:
                    product(bench, world, *row, skew, args.settings)
    if args.json:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "mk": mk.__version__, "seed": args.seed, "rounds": args.rounds}
        with open(args.json, "w") as file:
            json.dump({**about, "rows": bench.rows}, file, indent=1)
    sys.exit(predicted.status(bench.rows, bench.wrong))


if __name__ == "__main__":
    main()
