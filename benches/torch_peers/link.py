"""How fast a rank sends while all ranks send."""

import statistics

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

PIECE_BYTES = 96 << 20
ROUNDS = 7


def measure(group, alignment):
    """Bytes per second that the slowest rank sends, the best of several ways, and that way's name; nothing with one rank. Collective.

    Copies are those of the copy engines, to one peer or to all peers at a time, written or read by the rank that counts.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return None, None
    mine = symm_mem.empty(PIECE_BYTES * (world - 1), dtype=torch.uint8, device="cuda")
    handle = symm_mem.rendezvous(mine, group.name)
    mine.random_()
    local = torch.randint(0, 255, (PIECE_BYTES * (world - 1),), dtype=torch.uint8, device="cuda")
    peers = [(rank + s) % world for s in range(1, world)]

    def far(peer, slot):
        return handle.get_buffer(peer, (PIECE_BYTES,), torch.uint8, storage_offset=slot * PIECE_BYTES)

    def near(slot):
        return local[slot * PIECE_BYTES : (slot + 1) * PIECE_BYTES]

    one = [(peers[0], slot) for slot in range(world - 1)]
    # Rank r writes to peer p's slot of r, so that nobody writes where another does.
    each = [(peer, (rank - peer) % world - 1) for peer in peers]
    ways = {
        "writes to one peer": [(far(p, s), near(s)) for p, s in one],
        "writes to all peers": [(far(p, s), near(s)) for p, s in each],
        "reads from one peer": [(near(s), far(p, s)) for p, s in one],
        "reads from all peers": [(near(s), far(p, s)) for p, s in each],
    }
    streams = [torch.cuda.Stream() for _ in peers]
    rates = {name: _rate(copies, streams if "all" in name else streams[:1], alignment) for name, copies in ways.items()}
    best = max(rates, key=rates.get)
    return rates[best], best


def _rate(copies, streams, alignment):
    times = []
    for i in range(ROUNDS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        main = torch.cuda.current_stream()
        alignment.begin(200)
        start.record()
        for stream in streams:
            stream.wait_stream(main)
        for j, (to, source) in enumerate(copies):
            with torch.cuda.stream(streams[j % len(streams)]):
                to.copy_(source, non_blocking=True)
        for stream in streams:
            main.wait_stream(stream)
        end.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(end))
    slowest = torch.tensor(times, dtype=torch.float64, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return sum(to.numel() for to, _ in copies) / (statistics.median(slowest.tolist()) / 1e3)
