"""Ranks begin together: a barrier between GPUs, and how far apart they leave it.

The barrier is a kernel of one thread. All ranks tell rank 0, rank 0 tells all and leaves as much later as a message takes.
It is followed on its stream by what is timed. It gives up after some seconds, so that a dead rank is an error.

How far apart ranks leave it is measured by their %globaltimer, whose offsets are measured right before by messages to and
fro: an offset is wrong by at most half of the shortest round trip, which is reported beside.
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

_PINGS = 24
_LIMIT = 8_000_000  # polls, several seconds
# Symmetric words: at rank 0 one per rank that has come, at the others one to go on; pings, and their answers.
_WORDS, _GO, _PING, _PONG = 64, 16, 32, 48


@triton.jit
def _now():
    """The GPU's clock, in ns."""
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _tell(address, value):
    """Stores a word at a peer. Nothing is published by it, and nothing waits for it: an atomic would wait for its answer."""
    tl.inline_asm_elementwise(
        """{
            .reg .pred first;
            .reg .b32 lane;
            mov.u32 lane, %laneid;
            setp.eq.u32 first, lane, 0;
            @first st.relaxed.sys.global.b32 [$1], $2;
            mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [address, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _wait(word, value, limit):
    seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    polls = 0
    while (seen < value) & (polls < limit):
        seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
        polls += 1
    return seen


@triton.jit(do_not_specialize=["epoch", "rank", "travel_ns"])
def _meet(peers, mine, stamp, epoch, rank, travel_ns, limit, WORLD: tl.constexpr, GO: tl.constexpr):
    _tell(tl.load(peers) + rank * 4, epoch)
    least = epoch
    if rank == 0:
        for peer in tl.static_range(WORLD):
            least = tl.minimum(least, _wait(mine + peer, epoch, limit))
        begin = _now()
        for peer in tl.static_range(1, WORLD):
            _tell(tl.load(peers + peer) + GO * 4, epoch)
        while _now() - begin < travel_ns:
            pass
    else:
        least = _wait(mine + GO, epoch, limit)
    now = _now()
    tl.store(stamp, tl.where(least < epoch, -1, now))


@triton.jit(do_not_specialize=["first", "rank"])
def _clocks(peers, mine, out, first, rank, limit, WORLD: tl.constexpr, PINGS: tl.constexpr, PING: tl.constexpr, PONG: tl.constexpr):
    """Rank 0 calls every peer in turn; ``out`` is [peer, ping, 2] there (sent, answered), and [ping] elsewhere."""
    if rank == 0:
        for peer in tl.static_range(1, WORLD):
            address = tl.load(peers + peer) + PING * 4
            for i in range(PINGS):
                sent = _now()
                _tell(address, first + i)
                _wait(mine + PONG + peer, first + i, limit)
                answered = _now()
                tl.store(out + (peer * PINGS + i) * 2, sent)
                tl.store(out + (peer * PINGS + i) * 2 + 1, answered)
    else:
        address = tl.load(peers) + (PONG + rank) * 4
        for i in range(PINGS):
            _wait(mine + PING, first + i, limit)
            tl.store(out + i, _now())
            _tell(address, first + i)


class Alignment:
    """Collective to make; afterwards ``begin`` enqueues the barrier on the current stream, as often on every rank."""

    def __init__(self, group):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._words = symm_mem.empty(_WORDS, dtype=torch.int32, device="cuda")
        handle = symm_mem.rendezvous(self._words, group)
        self._words.zero_()
        self._peers = torch.tensor([int(p) for p in handle.buffer_ptrs], dtype=torch.int64, device="cuda")
        self._stamp = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._epoch = self._pings = self._travel_ns = 0
        torch.cuda.synchronize()
        dist.barrier()
        self.begin(0)  # compiles
        self._offsets()
        self.check()
        calls = self._offsets().view(self.world, _PINGS, 2)[1:]
        if self.rank == 0 and self.world > 1:
            self._travel_ns = int((calls[..., 1] - calls[..., 0]).amin(1).float().mean().item() / 2)

    def begin(self, delay_us, clock_mhz=1900):
        """Waits a while on the device, so that the host can enqueue what follows, and then for all ranks."""
        if delay_us:
            torch.cuda._sleep(int(delay_us * clock_mhz))
        self._epoch += 1
        arguments = self._peers, self._words, self._stamp, self._epoch, self.rank, self._travel_ns, _LIMIT
        _meet[(1,)](*arguments, WORLD=self.world, GO=_GO, num_warps=1)

    def check(self):
        """Waits for the GPU. RuntimeError if a rank did not come to the last barrier."""
        if self._stamp.item() < 0:
            raise RuntimeError(f"rank {self.rank}: not all ranks came to barrier {self._epoch}")

    def _offsets(self):
        """What ``_clocks`` leaves on this rank. Collective."""
        first = self._pings + 1
        self._pings += _PINGS
        out = torch.zeros(self.world * _PINGS * 2, dtype=torch.int64, device="cuda")
        dist.barrier()
        _clocks[(1,)](
            *(self._peers, self._words, out, first, self.rank, _LIMIT),
            **{"WORLD": self.world, "PINGS": _PINGS, "PING": _PING, "PONG": _PONG, "num_warps": 1},
        )
        return out

    def skew(self, rounds=30):
        """How far apart ranks leave the barrier, in us: in the middle and by rounds in order of size, and what the
        comparison of clocks may be wrong by. Collective."""
        apart, doubt = [], []
        for _ in range(rounds):
            out = self._offsets()
            self.begin(50)
            mine = torch.cat([out, self._stamp])
            parts = [torch.empty_like(mine) for _ in range(self.world)]
            dist.all_gather(parts, mine)
            calls, left = parts[0].tolist(), [p[-1].item() for p in parts]
            for peer in range(1, self.world):
                answers = parts[peer].tolist()
                pings = [(calls[(peer * _PINGS + i) * 2], calls[(peer * _PINGS + i) * 2 + 1], answers[i]) for i in range(_PINGS)]
                sent, answered, there = min(pings, key=lambda p: p[1] - p[0])
                left[peer] -= (2 * there - sent - answered) // 2  # in integers: a float has no ns after so many of them
                doubt.append((answered - sent) / 2)
            apart.append((max(left) - min(left)) / 1e3)
        apart.sort()
        doubt.sort()
        return {"median_us": apart[len(apart) // 2], "all_us": apart, "clock_doubt_us": doubt[len(doubt) // 2] / 1e3 if doubt else 0.0}
