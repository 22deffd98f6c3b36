"""``Function.explain``: what is known of a function, and what it does beside torch's operations here and now."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._errors import ArgumentError, Error, RendezvousError
from ._measure import Contestant, Judge, Meter
from ._peer import COLLECTIVES, Peer


@dataclass(frozen=True)
class Explanation:
    """Why a function is as fast as it is, and what torch's operations take for the same tensors. ``str()`` has all of it.

    ``plan`` is what `mk explain` prints. Times are in milliseconds, medians over launches of the slowest rank, the host ahead of the
    GPU; ``steps`` has those of torch's operations, (name, ms), with an event between each two. ``difference`` and ``tile_difference``
    are relative, of mk's results from torch's, over the whole and over the worst tile of 128 x 128. ``*_host_us`` is what the host
    takes for a call, ``dropped`` how many launches were repeated because the host was late.
    """

    plan: str
    mk_ms: float
    torch_ms: float
    rounds: int
    dropped: int
    mk_host_us: float
    torch_host_us: float
    steps: list[tuple[str, float]]
    difference: float
    tile_difference: float
    kernels: list[str] = field(default_factory=list)
    libraries: str = "cuBLAS"
    notes: list[str] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """By how much mk is faster: below 1 it is slower."""
        return self.torch_ms / self.mk_ms

    def __str__(self) -> str:
        made = "one kernel" if len(self.kernels) < 2 else f"{len(self.kernels)} kernels"
        dropped = f"; {self.dropped} more were dropped, where it was late" if self.dropped else ""
        lines = [
            f"measured   {self.rounds} launches of each in turn, caches flushed, results poisoned, the slowest rank counts; medians.",
            f"           The host was ahead of the GPU in all of them{dropped}",
            f"           mk    {1e3 * self.mk_ms:>9.1f} us  {made}; the host takes {self.mk_host_us:.0f} us",
            f"           torch {1e3 * self.torch_ms:>9.1f} us  {self.libraries}, one by one; the host takes {self.torch_host_us:.0f} us",
        ]
        if len(self.steps) > 1:
            lines.append("           of which, with an event after each,")
        lines += [f"                 {1e3 * ms:>9.1f} us  {name}" for name, ms in self.steps if len(self.steps) > 1]
        lines += [f"           {note}" for note in self.notes]
        percent = f"{100 * self.difference:.2f} %", f"{100 * self.tile_difference:.2f} %"
        lines.append(f"results    agree: relative difference {percent[0]} over the whole, {percent[1]} over the worst tile")
        if self.speedup >= 1:
            lines.append(f"verdict    mk is {self.speedup:.2f} times as fast as {self.libraries}")
        else:
            lines.append(f"verdict    mk is slower: torch's operations ({self.libraries}) are {1 / self.speedup:.2f} times as fast")
        return self.plan + "\n".join(lines) + "\n"


def compare(function, plan, text, tensors, rank, *, rounds, tolerance):
    """What ``Function.explain`` returns. Collective; ``text`` explains ``plan``, which ``function`` has for ``tensors``."""
    import torch

    return compare_with(torch, function, plan, text, tensors, rank, rounds, tolerance)


def compare_with(torch, function, plan, text, tensors, rank, rounds, tolerance):
    """``compare`` with operations of this torch."""
    size, device = plan.ranks, tensors[0].device
    dist = distributed(torch, rank, size) if size > 1 else None
    with torch.no_grad(), torch.cuda.device(device):
        made, error = None, None
        try:
            peer = Peer(torch, dist, plan.program, tensors, rank, size)
            meter = Meter(torch, dist, device, function.check)
            made = peer, meter, peer.empty_results()
        except Exception as what:  # the other ranks must hear of it before they wait for this one
            error = what
        agree(torch, dist, size, device, error, (rounds, tolerance))
        peer, meter, out = made
        judge, error = None, None
        try:
            judge = Judge(torch, peer.run())
        except Exception as what:
            error = what
        agree(torch, dist, size, device, error, (rounds, tolerance))

        def ours(mark):
            function(*tensors, out=out[0] if len(out) == 1 else out)
            return out

        contestants = [
            Contestant("mk", ours, out),
            Contestant("torch", lambda mark: peer.run(), peer.buffers),
            Contestant("torch, step by step", peer.run, peer.buffers, steps=len(peer.names)),
        ]
        times = meter.measure(contestants, judge, rounds)
    return conclude(plan, text, peer, _libraries(torch, peer.names, size), contestants, times, tolerance)


def conclude(plan, text, peer, libraries, contestants, times, tolerance):
    """The explanation, or an Error where results differ by more than ``tolerance``, or four times that over a tile."""
    for one, t in zip(contestants, times):
        if not (t.difference <= tolerance and t.tile_difference <= 4 * tolerance):
            whose = "torch's of its first launch" if one.name != "mk" else "torch's"
            raise Error(
                f"{one.name}: results differ from {whose} by {t.difference:.2e} over the whole and {t.tile_difference:.2e} over a tile "
                f"of 128 x 128 (relative), and {tolerance:.0e} and {4 * tolerance:.0e} are allowed: no times are given\n"
                "  help: products of bfloat16 differ by some 1e-3; where sums cancel, pass a greater `tolerance`"
            )
    mk, torch, stepwise = times
    return Explanation(
        plan=text,
        mk_ms=mk.middle,
        torch_ms=torch.middle,
        rounds=min(len(mk.ms), len(torch.ms)),
        dropped=mk.dropped + torch.dropped,
        mk_host_us=mk.host_us,
        torch_host_us=torch.host_us,
        steps=list(zip(peer.names, stepwise.steps)),
        difference=mk.difference,
        tile_difference=mk.tile_difference,
        kernels=plan.kernels,
        libraries=libraries,
        notes=peer.notes,
    )


def distributed(torch, rank, size):
    """torch.distributed, of which the default process group has these ranks and NCCL. RendezvousError otherwise."""
    dist = torch.distributed
    advice = "\n  help: torch.distributed.init_process_group(\"nccl\"), and World.from_torch(); Plan.explain() explains without measuring"
    if not (dist.is_available() and dist.is_initialized()):
        raise RendezvousError(f"torch.distributed is not initialised, and NCCL is reached through it{advice}")
    theirs = dist.get_rank(), dist.get_world_size()
    if theirs != (rank, size):
        raise RendezvousError(
            f"this is rank {rank} of {size} of mk's world, and rank {theirs[0]} of {theirs[1]} of the default process group{advice}"
        )
    backends = str(dist.get_backend_config())
    if "cuda:nccl" not in backends:
        raise RendezvousError(f"the default process group has no NCCL for CUDA tensors, but {backends}{advice}")
    return dist


def agree(torch, dist, size, device, error, terms):
    """Raises this rank's error; else one that names a rank that has one, or that was asked for something else. Collective."""
    mine = [float(error is not None), *map(float, terms)]
    if dist is None:
        said = [mine]
    else:
        # As numbers: objects would need NumPy.
        everybody = torch.empty(len(mine) * size, dtype=torch.float64, device=device)
        dist.all_gather_into_tensor(everybody, torch.tensor(mine, dtype=torch.float64, device=device))
        numbers = everybody.tolist()
        said = [numbers[at : at + len(mine)] for at in range(0, len(numbers), len(mine))]
    if error:
        raise error
    for rank, (failed, *others) in enumerate(said):
        if failed:
            raise Error(f"rank {rank} cannot take part in the comparison; its own error says why")
        if others != mine[1:]:
            raise ArgumentError(
                f"rounds and tolerance are {mine[1:]} here and {others} on rank {rank}\n  help: pass the same on all ranks"
            )


def _libraries(torch, names, size):
    """Whose operations they are, for text."""
    there = ["cuBLAS"] if "mm" in names else []
    if size > 1 and set(names) & COLLECTIVES:
        there.append("NCCL " + ".".join(map(str, torch.cuda.nccl.version())))
    return " and ".join(there or ["torch"])
