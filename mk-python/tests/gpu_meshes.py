"""Meshes of two axes on GPUs: ``python3 mk-python/tests/gpu_meshes.py``, four and eight ranks that share the first GPU; ``torchrun --nproc-per-node 4
mk-python/tests/gpu_meshes.py``, a DeviceMesh of 2 x 2 with gradients, and its two axes as worlds of their own at once. Needs torch.

A rank that fails ends the run with a traceback and a status other than 0.
"""

import datetime
import os

import torch

import mk

ROWS = "a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)"
TOKENS = "x: bf16[T, M] @ shard(0, dp), d: bf16[T, N] @ shard(0, dp) @ shard(1, tp)"
TWICE = "x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)"
BACK = "d: bf16[M, N] @ shard(0, dp) @ shard(1, tp), w: bf16[K, N] @ shard(1, tp)"
# Parameters, what is computed, how operands are cut, and how the result is.
FORMS = [
    (ROWS, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", ({"tp": 0, "dp": 1}, {"tp": 1, "dp": 0}), {"dp": 0, "tp": 1}),
    (ROWS, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", ({"tp": 0, "dp": 1}, {"tp": 1, "dp": 0}), {"tp": 1}),
    (TOKENS, "gemm(x.t, d) -> reduce_scatter(dp)", ({"dp": 0}, {"dp": 0, "tp": 1}), {"dp": 0, "tp": 1}),
    (TOKENS, "gemm(x.t, d) -> all_reduce(dp)", ({"dp": 0}, {"dp": 0, "tp": 1}), {"tp": 1}),
    (TWICE, "gather(x, tp) -> gemm(w)", ({"dp": 0, "tp": 0}, {"tp": 1}), {"dp": 0, "tp": 1}),
    (BACK, "gemm(d, w.t) -> reduce_scatter(tp)", ({"dp": 0, "tp": 1}, {"tp": 1}), {"dp": 0, "tp": 0}),
]
LAYER = """fn layer(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, F] @ shard(1, tp), w2: bf16[F, K] @ shard(0, tp)) {
    x -> gemm(w1) -> silu -> gemm(w2) -> all_reduce(tp)
}"""
BOTH = """fn both(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w1: bf16[K, F] @ shard(1, tp), w2: bf16[F, K] @ shard(0, tp)) {
    gather(x, tp) -> gemm(w1) -> silu -> gemm(w2) -> reduce_scatter(tp)
}"""
ULYSSES = """fn ulysses(q: bf16[B, S, H, D] @ shard(1), k: bf16[B, S, G, D] @ shard(1), v: bf16[B, S, G, D] @ shard(1)) {
    let x = all_to_all(k, split = 2, concat = 1);
    let y = all_to_all(v, split = 2, concat = 1);
    all_to_all(q, split = 2, concat = 1) -> attention(x, y, causal) -> all_to_all(split = 1, concat = 2)
}"""
# Heads over `tp`, a ring over `dp`: of a sequence that ranks of both share, and of heads that ranks along `tp` have.
ATTENDS = [
    ("""fn both(q: bf16[B, S, H, D] @ shard(1, dp) @ shard(1, tp), k: bf16[B, S, G, D] @ shard(1, dp) @ shard(1, tp), v: bf16[B, S, G, D] @ shard(1, dp) @ shard(1, tp)) {
        let h = all_to_all(q, tp, split = 2, concat = 1);
        let x = all_to_all(k, tp, split = 2, concat = 1);
        let y = all_to_all(v, tp, split = 2, concat = 1);
        ring(x, y, dp) -> attention(h, causal) -> all_to_all(tp, split = 1, concat = 2)
    }""", {"dp": 1, "tp": 1}),
    ("""fn ring(q: bf16[B, S, H, D] @ shard(1, dp) @ shard(2, tp), k: bf16[B, S, G, D] @ shard(1, dp) @ shard(2, tp), v: bf16[B, S, G, D] @ shard(1, dp) @ shard(2, tp)) {
        ring(k, v, dp) -> attention(q, causal)
    }""", {"dp": 1, "tp": 2}),
]
# Experts over `dp`, their matrices over `tp`.
EXPERTS = """fn experts(x: bf16[T, H] @ shard(0, dp), ids: i32[T, K] @ shard(0, dp), gate: f32[T, K] @ shard(0, dp),
        w1: bf16[E, H, 2, I] @ shard(0, dp) @ shard(3, tp), w2: bf16[E, I, H] @ shard(0, dp) @ shard(1, tp)) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) -> SUM(tp)
}"""
# Their backward, kernel by kernel: of rows that forward has saved.
ROWED, OWN = "ids: i32[T, K] @ shard(0, dp)", "@ shard(0, dp) @ shard(1, tp)"
SAVES = EXPERTS.split("{")[0] + """{
    let rows = dispatch(x, ids, capacity = ROOM);
    let h = rows -> grouped_gemm(w1);
    let a = h -> swiglu;
    (a -> grouped_gemm(w2) -> combine(gate) -> all_reduce(tp), rows, h, a)
}"""
HIDDEN = f"""fn hidden(d: bf16[T, H] @ shard(0, dp), {ROWED}, gate: f32[T, K] @ shard(0, dp), w2: bf16[E, I, H] {OWN}, h: bf16[R, 2, I] @ shard(0, dp) @ shard(2, tp)) {{
    let rows = dispatch(d, ids, gate, capacity = R);
    (rows -> grouped_gemm(w2.t) -> swiglu_grad(h), rows)
}}"""
TO_TOKENS = f"""fn tokens(dh: bf16[R, N] {OWN}, {ROWED}, ones: f32[T, K] @ shard(0, dp), w1: bf16[E, H, N] @ shard(0, dp) @ shard(2, tp)) {{
    ragged(dh, ids) -> grouped_gemm(w1.t) -> combine(ones) -> SUM(tp)
}}"""
DOWN = f"fn down(a: bf16[R, I] {OWN}, {ROWED}, d: bf16[R, H] @ shard(0, dp)) {{ ragged(a, ids) -> grouped_wgrad(d, experts = 8) }}"
UP = f"fn up(x: bf16[R, H] @ shard(0, dp), {ROWED}, d: bf16[R, N] {OWN}) {{ ragged(x, ids) -> grouped_wgrad(d, experts = 8) }}"
GATES = f"""fn gates(a: bf16[R, I] {OWN}, {ROWED}, w2: bf16[E, I, H] {OWN}, d: bf16[T, H] @ shard(0, dp)) {{
    ragged(a, ids) -> grouped_gemm(w2) -> combine_grad(d) -> all_reduce(tp)
}}"""
FSDP = """fn fsdp(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, F] @ shard(0, dp) @ shard(1, tp), w2: bf16[K, F] @ shard(0, dp) @ shard(1, tp)) {
    let u = gather(w1, dp);
    let v = gather(w2, dp);
    x -> gemm(u) -> silu -> gemm(v.t) -> all_reduce(tp)
}"""


def drawn(*shape, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(*shape, generator=g, device="cuda") / shape[0] ** 0.5).bfloat16()


def part(x, cuts, places, sizes):
    for axis, dim in cuts.items():
        x = x.chunk(sizes[axis], dim)[places[axis]]
    return x.contiguous()


def close(what, found, wanted, limit=6e-3):
    error = ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()
    assert found.shape == wanted.shape and error < limit, f"{what}: {found.shape}, {wanted.shape}, relative error {error}"


def local():
    for sizes in ({"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}, {"dp": 2, "tp": 4}):
        world = mk.World.local(sizes, gpu=0)
        outer, inner = sizes
        places = [{outer: i, inner: j} for i in range(sizes[outer]) for j in range(sizes[inner])]
        for params, body, cuts, out in FORMS:
            f = mk.compile(f"fn f({params}) {{ {body} }}", world)
            for rows, k, n in ((1024, 512, 768), (768, 256, 512)):
                shapes = {TOKENS: ((rows, k), (rows, n)), BACK: ((rows, n), (k, n))}.get(params, ((rows, k), (k, n)))
                left, right = (drawn(*shape, seed=i) for i, shape in enumerate(shapes))
                want = (left.t() if params is TOKENS else left).float() @ (right.t() if params is BACK else right).float()
                args = [[part(t, cut, place, sizes) for place in places] for t, cut in zip((left, right), cuts)]
                for _ in range(3):
                    results = f(*args)
                torch.cuda.synchronize()
                for place, found in zip(places, results):
                    close(f"{body} on {sizes}", found, part(want, out, place, sizes))
            f.synchronize()
            f.close()
            print(f"right: {body} on {sizes}", flush=True)
        experts(world, sizes, places)
        experts_backward(world, sizes, places)
        for text, cuts in ATTENDS:
            f = mk.compile(text, world)
            q, k, v = (drawn(1, 2048, heads, 128, seed=i) for i, heads in enumerate((8, 4, 4)))
            want = attention(*(x.float().transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
            for _ in range(3):
                results = f(*([part(t, cuts, place, sizes) for place in places] for t in (q, k, v)))
            torch.cuda.synchronize()
            for place, found in zip(places, results):
                close(f"attention {cuts} on {sizes}", found, part(want, cuts, place, sizes), 1e-2)
            f.synchronize()
            f.close()
            print(f"right: attention {cuts} on {sizes}", flush=True)


def experts(world, sizes, places):
    """Tokens to their experts and back, beside torch on all of them."""
    tokens, hidden, inner, number, slots = 512, 256, 512, 8, 2
    x, w1, w2 = (drawn(*shape, seed=i) for i, shape in enumerate(((tokens, hidden), (number, hidden, 2, inner), (number, inner, hidden))))
    scores = torch.rand(tokens, number, generator=torch.Generator(device="cuda").manual_seed(7), device="cuda")
    gate, ids = scores.softmax(1).topk(slots)
    want = torch.zeros(tokens, hidden, device="cuda")
    for e in range(number):
        rows = torch.nn.functional.silu(x.float() @ w1[e, :, 0].float()) * (x.float() @ w1[e, :, 1].float())
        want += (gate * (ids == e)).sum(1, keepdim=True) * (rows @ w2[e].float())
    tensors, cuts = (x, ids.int(), gate, w1, w2), ({"dp": 0}, {"dp": 0}, {"dp": 0}, {"dp": 0, "tp": 3}, {"dp": 0, "tp": 1})
    for how, out in (("all_reduce", {"dp": 0}), ("reduce_scatter", {"dp": 0, "tp": 0})):
        f = mk.compile(EXPERTS.replace("SUM", how), world)
        args = [[part(t, cut, place, sizes) for place in places] for t, cut in zip(tensors, cuts)]
        for _ in range(3):
            results = f(*args)
        torch.cuda.synchronize()
        for place, found in zip(places, results):
            close(f"experts, {how} on {sizes}", found, part(want, out, place, sizes), 1.5e-2)
        f.synchronize()
        f.close()
        print(f"right: experts, {how}(tp) on {sizes}", flush=True)


def experts_backward(world, sizes, places):
    """Gradients of tokens, gates and matrices, beside torch's on all of them."""
    tokens, hidden, inner, number, slots = 512, 256, 512, 8, 2
    shapes = ((tokens, hidden), (number, hidden, 2, inner), (number, inner, hidden), (tokens, hidden))
    x, w1, w2, d = (drawn(*shape, seed=30 + i) for i, shape in enumerate(shapes))
    scores = torch.rand(tokens, number, generator=torch.Generator(device="cuda").manual_seed(8), device="cuda")
    gate, ids = scores.softmax(1).topk(slots)
    theirs = [t.float().requires_grad_() for t in (x, w1, w2)] + [gate.clone().requires_grad_()]
    y = 0
    for e in range(number):
        rows = torch.nn.functional.silu(theirs[0] @ theirs[1][e, :, 0]) * (theirs[0] @ theirs[1][e, :, 1])
        y = y + (theirs[3] * (ids == e)).sum(1, keepdim=True) * (rows @ theirs[2][e])
    y.backward(d.float())

    def ran(text, *args):
        f = mk.compile(text, world)
        for _ in range(3):
            results = f(*args)
        torch.cuda.synchronize()
        f.synchronize()
        f.close()
        return results

    cut = lambda t, **cuts: [part(t, cuts, place, sizes) for place in places]
    flat = lambda all: [t.flatten(-2) for t in all]
    own_x, own_d, own_ids, own_gate = (cut(t, dp=0) for t in (x, d, ids.int(), gate))
    own_w1, own_w2 = cut(w1, dp=0, tp=3), cut(w2, dp=0, tp=1)
    saved = ran(SAVES.replace("ROOM", str(2 * (tokens * slots + number // 2 * 128))), own_x, own_ids, own_gate, own_w1, own_w2)
    found, rows, h, a = saved
    dh, d_rows = ran(HIDDEN, own_d, own_ids, own_gate, own_w2, h)
    dh = flat(dh)
    d_w1 = ran(UP, rows, own_ids, dh)
    found = [
        ("out", y.detach(), {"dp": 0}, found),
        ("gate", theirs[3].grad, {"dp": 0}, ran(GATES, a, own_ids, own_w2, own_d)),
        ("w1", theirs[1].grad, {"dp": 0, "tp": 3}, [t.unflatten(-1, (2, -1)) for t in d_w1]),
        ("w2", theirs[2].grad, {"dp": 0, "tp": 1}, ran(DOWN, a, own_ids, d_rows)),
    ]
    for how, cuts in (("all_reduce", {"dp": 0}), ("reduce_scatter", {"dp": 0, "tp": 0})):
        ones = [torch.ones_like(t) for t in own_gate]
        found.append((f"x, {how}", theirs[0].grad, cuts, ran(TO_TOKENS.replace("SUM", how), dh, own_ids, ones, flat(own_w1))))
    for name, whole, cuts, parts in found:
        for place, one in zip(places, parts):
            close(f"experts, {name} on {sizes}", one, part(whole, cuts, place, sizes), 2e-2)
        print(f"right: experts, {name} on {sizes}", flush=True)


def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def time_of(call, rounds=30):
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for _ in range(5):
        call()
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))
    return times[rounds // 2]


def on_ranks():
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120))
    sizes = {"dp": dist.get_world_size() // 2, "tp": 2}
    mesh = dist.init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    places = {axis: mesh.get_local_rank(axis) for axis in sizes}
    world = mk.World.from_torch(group=mesh)
    assert world.mesh == sizes, world
    mine = lambda x, **cuts: part(x, cuts, places, sizes)

    layers = [
        (LAYER, {"dp": 0}, ({"tp": 1}, {"tp": 0})),
        (FSDP, {"dp": 0}, ({"dp": 0, "tp": 1}, {"dp": 0, "tp": 1})),
        (BOTH, {"dp": 0, "tp": 0}, ({"tp": 1}, {"tp": 0})),
    ]
    for text, rows, cuts in layers:
        x, w1, d = drawn(2048, 1024, seed=1), drawn(1024, 4096, seed=2), drawn(2048, 1024, seed=4)
        w2 = drawn(1024, 4096, seed=3) if text is FSDP else drawn(4096, 1024, seed=3)
        theirs = [t.float().requires_grad_() for t in (x, w1, w2)]
        want = torch.nn.functional.silu(theirs[0] @ theirs[1]) @ (theirs[2].t() if text is FSDP else theirs[2])
        want.backward(d.float())
        own = [mine(t, **cut).requires_grad_() for t, cut in zip((x, w1, w2), (rows, *cuts))]
        f = mk.compile(text, world)
        y = f(*own)
        close("forward", y, mine(want.detach(), **rows), 1e-2)
        y.backward(mine(d, **rows))
        for t, whole, cut in zip(own, theirs, (rows, *cuts)):
            close(f"gradient {cut}", t.grad, mine(whole.grad, **cut), 2e-2)
        f.synchronize()
        if rank == 0:
            print("right:", f.backward, flush=True)

    # Both axes as worlds of their own, in one order on all ranks.
    along = {axis: mk.World.from_torch(group=mesh[axis]) for axis in sizes}
    gather = mk.compile("gather(a) -> gemm(b)", along["tp"])
    total = mk.compile("gemm(a, b) -> all_reduce", along["dp"])
    a, b = drawn(1024, 512, seed=5), drawn(512, 1024, seed=6)
    for _ in range(100):
        y, z = gather(mine(a, tp=0), mine(b, tp=1)), total(mine(a, dp=1), mine(b, dp=0))
    close("along tp", y, a.float() @ mine(b, tp=1).float())
    close("along dp", z, a.float() @ b.float())
    gather.synchronize(), total.synchronize()
    exchanged(mesh, rank)
    for text, cuts in ATTENDS:
        attended(mk.compile(text, world), lambda x: mine(x, **cuts), rank)

    # A gradient summed on the way, beside torch.mm and NCCL.
    tokens, m, n = 8192, 4096, 14336
    x, d = mine(drawn(tokens, m, seed=7), dp=0), mine(drawn(tokens, n, seed=8), dp=0, tp=1)
    f = mk.compile(f"fn f({TOKENS}) {{ gemm(x.t, d) -> all_reduce(dp) }}", world)
    scatter = mk.compile(f"fn f({TOKENS}) {{ gemm(x.t, d) -> reduce_scatter(dp) }}", world)
    group, out = mesh.get_group("dp"), torch.empty(m // sizes["dp"], n // 2, dtype=torch.bfloat16, device="cuda")
    rows = [
        ("all_reduce", lambda: f(x, d), lambda: dist.all_reduce(x.t() @ d, group=group)),
        ("reduce_scatter", lambda: scatter(x, d), lambda: dist.reduce_scatter_tensor(out, x.t() @ d, group=group)),
    ]
    for name, ours, nccl in rows:
        times = time_of(ours), time_of(nccl)
        if rank == 0:
            print(f"gemm(x.t, d) -> {name}(dp), {sizes}, {tokens} tokens, [{m}, {n}]: mk {times[0]:.3f} ms, torch and NCCL {times[1]:.3f} ms", flush=True)
    crossed(mesh, places, mine, rank)
    dist.destroy_process_group()


def exchanged(mesh, rank):
    """Attention by heads of sequences that ranks along `tp` share, beside torch on all of it."""
    world, place = mk.World.from_torch(group=mesh["tp"]), mesh.get_local_rank("tp")
    q, k, v = (drawn(1, 2048, heads, 64, seed=9 + i) for i, heads in enumerate((16, 4, 4)))
    part = lambda x: x.chunk(2, 1)[place].contiguous()
    f = mk.compile(ULYSSES, world)
    for _ in range(20):
        y = f(*map(part, (q, k, v)))
    want = attention(*(x.float().transpose(1, 2) for x in (q, k, v)))
    close("ulysses", y, part(want.transpose(1, 2)), 1e-2)
    attended(f, part, rank)


def attended(f, part, rank):
    """Attention and its gradients, beside torch on the whole sequence and all heads."""
    q, k, v, d = (drawn(1, 2048, heads, 64, seed=20 + i) for i, heads in enumerate((16, 4, 4, 16)))
    theirs = [x.float().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    want = attention(*theirs)
    want.backward(d.float().transpose(1, 2))
    for _ in range(5):
        own = [part(x).requires_grad_() for x in (q, k, v)]
        y = f(*own)
        y.backward(part(d))
    close("attention", y, part(want.detach().transpose(1, 2)), 1e-2)
    for t, whole in zip(own, theirs):
        close("gradient by heads", t.grad, part(whole.grad.transpose(1, 2)), 2e-2)
    f.synchronize()
    if rank == 0:
        print("right:", f.backward, flush=True)


def crossed(mesh, places, mine, rank):
    """Ranks launch kernels of two worlds in orders that wait for each other: refused, and nobody hangs."""
    import torch.distributed as dist

    along = {axis: mk.World.from_torch(group=mesh[axis]) for axis in ("dp", "tp")}
    gather = mk.compile("gather(a) -> gemm(b)", along["tp"], entry_limit_s=30)
    total = mk.compile("gemm(a, b) -> all_reduce", along["dp"], entry_limit_s=30)
    a, b = drawn(1024, 512, seed=5), drawn(512, 1024, seed=6)
    calls = [lambda: gather(mine(a, tp=0), mine(b, tp=1)), lambda: total(mine(a, dp=1), mine(b, dp=0))]
    for call in calls:
        call()
    gather.synchronize(), total.synchronize()
    dist.barrier()
    said = "nothing"
    try:
        for call in calls if places["dp"] == places["tp"] else reversed(calls):
            call()
        gather.synchronize(), total.synchronize()
    except mk.Error as error:
        said = f"{type(error).__name__}: {error}"
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, said)
    if rank == 0:
        print("two worlds in opposite orders:", *every, sep="\n  ", flush=True)
    assert any("behind a kernel of another world" in text for text in every), every


if __name__ == "__main__":
    on_ranks() if "RANK" in os.environ else local()
