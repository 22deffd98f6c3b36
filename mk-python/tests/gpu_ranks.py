"""The module with one process per GPU: ``torchrun --nproc-per-node 4 mk-python/tests/gpu_ranks.py``.

Each case is collective; a rank that fails ends the run with a traceback and a status other than 0.
"""

import datetime
import gc
import os
import time

import torch
import torch.distributed as dist

import mk

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINEAR = "gather(a) -> gemm(b)"


def random(*shape, seed):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=g, device="cuda").bfloat16()


def chunk(whole, dim):
    """This rank's part, as torch.chunk cuts, which has fewer chunks than ranks when there is little."""
    parts = whole.chunk(SIZE, dim)
    empty = whole.narrow(dim, 0, 0)
    return (parts[RANK] if RANK < len(parts) else empty).contiguous()


def right(y, want):
    assert y.shape == want.shape, (y.shape, want.shape)
    error = ((y.float() - want).norm() / want.norm().clamp(min=1e-30)).item()
    assert error < 4e-3, f"rank {RANK}: relative error {error}"


def linear(f, m, k, n, seed):
    a, b = random(m, k, seed=seed), random(k, n, seed=seed + 1)
    right(f(chunk(a, 0), chunk(b, 1)), a.float() @ chunk(b, 1).float())


def shapes(world):
    f = mk.compile(LINEAR, world)
    for seed, m in enumerate([256, 1024, 256]):
        linear(f, m * SIZE, 512, 256 * SIZE, seed)
    f.synchronize()


def ragged(world):
    m = 128 * SIZE + 5
    f = mk.compile(LINEAR, world, shapes={"a": (m, 512)})
    linear(f, m, 512, 256 * SIZE, 7)


def reduction(world):
    f = mk.compile("gemm(a, b) -> reduce_scatter", world)
    a, b = random(256 * SIZE, 256 * SIZE, seed=1), random(256 * SIZE, 512, seed=2)
    y = f(chunk(a, 1), chunk(b, 0))
    right(y, chunk(a.float() @ b.float(), 0))


def apart(world):
    """A kernel for each operation."""
    f = mk.compile(LINEAR, world, fuse="never")
    for seed, m in enumerate([256, 1024, 256]):
        linear(f, m * SIZE, 512, 256 * SIZE, seed)
    f.synchronize()
    assert [plan.kernels for plan in f.plans] == 2 * [["gather", "gemm"]], f.plans
    m = 128 * SIZE + 5
    linear(mk.compile(LINEAR, world, shapes={"a": (m, 512)}, fuse="never"), m, 512, 256 * SIZE, 7)


def graph(world):
    for fuse in ("always", "never"):
        replays(mk.compile(LINEAR, world, fuse=fuse))


def replays(f):
    a, b = random(256 * SIZE, 512, seed=1), random(512, 256 * SIZE, seed=2)
    a_r, b_r = chunk(a, 0), chunk(b, 1)
    f.bind(shapes={"a": tuple(a.shape), "b": tuple(b.shape)})
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = f(a_r, b_r)
    for seed in range(10):
        a = random(256 * SIZE, 512, seed=10 + seed)
        a_r.copy_(chunk(a, 0))
        y.fill_(float("nan"))
        captured.replay()
        right(y, a.float() @ b_r.float())
    f.check()
    torch.cuda.synchronize()
    dist.barrier()
    del captured
    f.close()


def filled_just_before(world):
    """Copy engines send what the caller's streams fill behind a delay right before the calls, on two streams in turn, and clear behind them."""
    f = mk.compile(LINEAR, world, settings={"gather": "copy_engine/2"})
    whole = [random(512 * SIZE, 1024, seed=seed) for seed in range(12)]
    b = chunk(random(1024, 256 * SIZE, seed=99), 1)
    parts = [chunk(a, 0) for a in whole]
    rows = [torch.full_like(part, float("nan")) for part in parts]
    results = [torch.full((512 * SIZE, 256), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in whole]
    f.bind(shapes={"a": tuple(whole[0].shape), "b": (1024, 256 * SIZE)})
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for i, (part, row, y) in enumerate(zip(parts, rows, results)):
        with torch.cuda.stream(streams[i % 2]):
            torch.cuda._sleep(200_000)
            row.copy_(part)
            f(row, b, out=y)
            row.fill_(float("nan"))
    f.synchronize()
    torch.cuda.synchronize()
    for a, y in zip(whole, results):
        right(y, a.float() @ b.float())


def fault(world):
    """The last rank does not come: the others are told who."""
    for fuse in ("always", "never"):
        absence(mk.compile(LINEAR, world, entry_limit_s=1.0, fuse=fuse))
    unheard(mk.compile(LINEAR, world, entry_limit_s=1.0))
    # A new one works.
    linear(mk.compile(LINEAR, world), 256 * SIZE, 512, 256 * SIZE, 3)


def unheard(f):
    """`close` raises what nobody has heard of; that a bad argument was refused is not to hear of it."""
    f.bind(shapes={"a": (256 * SIZE, 512), "b": (512, 256 * SIZE)})
    if RANK < SIZE - 1:
        f(random(256, 512, seed=1), random(512, 256, seed=2))
        time.sleep(2.0)
        try:
            f.bind(shapes={"a": (7, 512), "b": (3, 256)})
            raise AssertionError("bound shapes that do not fit")
        except mk.ArgumentError:
            pass
        try:
            f.close()
            raise AssertionError("nobody heard of the fault")
        except mk.FaultError:
            pass
    dist.barrier()


def absence(f):
    f.bind(shapes={"a": (256 * SIZE, 512), "b": (512, 256 * SIZE)})
    a, b = random(256, 512, seed=1), random(512, 256, seed=2)
    if RANK < SIZE - 1:
        f(a, b)
        begin = time.monotonic()
        try:
            f.synchronize()
            raise AssertionError("a launch without a peer came to its end")
        except mk.FaultError as error:
            took = time.monotonic() - begin
            assert took < 5.0, took
            text = str(error)
            assert "did not enter the launch" in text or "abort" in text, text
            if RANK == 0:
                print(f"   after {took:.2f} s: {text.splitlines()[0]} (peer {error.peer})", flush=True)
        try:
            f(a, b)
            raise AssertionError("a function that failed was launched")
        except mk.FaultError as error:
            assert "unusable" in str(error), error
    dist.barrier()


def forked(world):
    """What a fork does with a function, and with its end, is not told to its parent and to other ranks."""
    f = mk.compile(LINEAR, world)
    linear(f, 256 * SIZE, 512, 256 * SIZE, 3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            f.close()
            del f
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()
    linear(f, 256 * SIZE, 512, 256 * SIZE, 5)
    f.check()
    f.synchronize()


def explained(world):
    """What `explain` says and measures: both times, results that agree, the operations one by one."""
    rows, depth = 512 * SIZE, 256 * SIZE
    wide = random(1024, depth, seed=2)
    products = chunk(random(rows, depth, seed=1), 1), chunk(random(depth, 1024, seed=2), 0)
    x = chunk(random(rows, 1024, seed=3), 0)
    mlp = "gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter"
    cases = {
        LINEAR: ((x, chunk(wide, 1)), ["all_gather_into_tensor", "mm"]),
        "gemm(a, b) -> reduce_scatter": (products, ["mm", "reduce_scatter_tensor"]),
        "gemm(a, b) -> all_reduce": (products, ["mm", "all_reduce"]),
        mlp: ((x, chunk(wide, 1), products[1]), ["all_gather_into_tensor", "mm", "gelu", "mm", "reduce_scatter_tensor"]),
    }
    for fuse in ("always", "never"):
        for text, (tensors, steps) in cases.items():
            f = mk.compile(text, world, fuse=fuse)
            known(f.explain(*tensors, rounds=5), steps, show=fuse == "always")
            f.close()
    f = mk.compile(LINEAR, world, shapes={"a": (rows + 5, 1024)})
    a = random(rows + 5, 1024, seed=5)
    uneven = f.explain(chunk(a, 0), b=chunk(wide, 1), rounds=3)
    known(uneven, ["all_gather_into_tensor", "mm"])
    assert SIZE == 1 or any("padded" in note for note in uneven.notes), uneven.notes
    # The function is as good as before.
    right(f(chunk(a, 0), chunk(wide, 1)), a.float() @ chunk(wide, 1).float())


def known(found, steps, show=True):
    text = str(found)
    assert 0.0 < found.mk_ms < 1e3 and 0.0 < found.torch_ms < 1e3, text
    assert found.difference < 8e-3 and found.tile_difference < 3.2e-2, text
    names = [name.split(" ")[0] for name, _ in found.steps]
    assert names == steps, names
    assert all(ms >= 0.0 for _, ms in found.steps), found.steps
    # One by one is what they are together, apart from an event after each.
    together = sum(ms for _, ms in found.steps)
    assert 0.3 < together / found.torch_ms < 3.0, text
    for words in ("machine ", "settings ", "bound by ", "measured ", "cuBLAS", "results    agree", "verdict "):
        assert words in text, f"no `{words}` in\n{text}"
    if RANK == 0 and show:
        print(text, flush=True)


def environment(world):
    """Without torch.distributed, beside a world that was made with it."""
    linear(mk.compile(LINEAR, mk.World.from_env()), 256 * SIZE, 512, 256 * SIZE, 5)


def side_by_side(world):
    """Two functions on two streams, in the opposite order on every other rank."""
    options = {"settings": {"compute_sms": 40, "intra_comm_sms": 8}, "overlap": True}
    f, g = (mk.compile(LINEAR, world, share=False, **options) for _ in range(2))
    for one in f, g:
        one.bind(shapes={"a": (256 * SIZE, 512), "b": (512, 256 * SIZE)})
    a, b = random(256 * SIZE, 512, seed=1), random(512, 256 * SIZE, seed=2)
    a_r, b_r = chunk(a, 0), chunk(b, 1)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    for stream, one in zip(streams, (f, g) if RANK % 2 == 0 else (g, f)):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(one(a_r, b_r))
    f.synchronize()
    g.synchronize()
    for y in results:
        right(y, a.float() @ b_r.float())


def disagreement(world):
    """Ranks that compile different kernels are told so when they bind."""
    f = mk.compile(LINEAR, world, settings={"intra_comm_sms": 8 + 4 * (RANK % 2)})
    try:
        f.bind(shapes={"a": (256 * SIZE, 512), "b": (512, 256 * SIZE)})
        raise AssertionError("different kernels were bound")
    except mk.RendezvousError as error:
        assert "every rank must pass the same" in str(error), error


def uncompiled(world):
    """The last rank has no kernel: all are told so at once, and the world is as good as before."""
    f = mk.compile(LINEAR, world, settings={"intra_comm_sms": 8 if RANK < SIZE - 1 else 4000})
    begin = time.monotonic()
    try:
        f.bind(shapes={"a": (256 * SIZE, 512), "b": (512, 256 * SIZE)})
        raise AssertionError("a kernel without its last rank was bound")
    except mk.Error as error:
        assert "do not fit 132 SMs" in str(error), error
        assert RANK == SIZE - 1 or f"compiling: rank {SIZE - 1} failed" in str(error), error
    assert time.monotonic() - begin < 20.0
    linear(mk.compile(LINEAR, world), 256 * SIZE, 512, 256 * SIZE, 3)


def missing(world):
    """The last rank does not come to a new world: the others are told who, within the limit."""
    if RANK < SIZE - 1:
        begin = time.monotonic()
        try:
            mk.World.from_torch(timeout_s=2.0)
            raise AssertionError("a world without a rank was made")
        except mk.RendezvousError as error:
            assert f"missing: rank {SIZE - 1}" in str(error), error
            assert time.monotonic() - begin < 10.0


def main():
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("nccl", device_id=gpu, timeout=datetime.timedelta(seconds=60))
    world = mk.World.from_torch()
    assert (world.size, world.ranks, world.devices) == (SIZE, [RANK], [torch.cuda.current_device()])
    cases = [shapes, ragged, reduction, apart, graph, forked, explained, environment] + ([filled_just_before, side_by_side, disagreement, uncompiled, fault, missing] if SIZE > 1 else [])
    for case in cases:
        case(world)
        gc.collect()
        torch.cuda.synchronize()
        dist.barrier()
        if RANK == 0:
            print(f"ok {case.__name__}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
