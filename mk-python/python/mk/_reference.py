"""Worlds of CPU tensors: the same programs by torch operations, and collectives over a process group such as gloo's."""

from __future__ import annotations

import hashlib

from . import _meshes, _mk, _worlds
from ._errors import ArgumentError, RendezvousError, UnsupportedError

# How ranks call what they agree upon.
_CALL = "calling a function"
_UNEVEN = "\n  help: shards that are not even need the global shape when compiling, as shapes={\"a\": (4001, 8192)}"


class ReferenceWorld(_mk.World):
    """Made by ``World.reference(group)``. ``group`` may be a DeviceMesh."""

    def __new__(cls, group=None):
        import torch.distributed as dist

        ready = dist.is_available() and dist.is_initialized()
        if group is not None and not ready:
            raise RendezvousError("torch.distributed is not initialised: call torch.distributed.init_process_group() first")
        whole, mesh = _meshes.ranks(group)
        size, rank = (dist.get_world_size(whole), dist.get_rank(whole)) if ready else (1, 0)
        if rank < 0:
            raise ArgumentError("this process is not in `group`\n  help: every rank of a group, and no other, makes its world")
        return super().__new__(cls, size, rank, mesh or None)

    def __init__(self, group=None):
        import torch.distributed as dist

        self._dist, self.rank = dist, self.ranks[0]
        self._all = Ranks(dist, _meshes.ranks(group)[0], self.size, self.rank)
        # By axis of a mesh.
        self._along = {}
        for axis, (size, place) in _meshes.along(self, self.mesh).items():
            self._along[axis] = Ranks(dist, group.get_group(axis), size, place)
        _worlds.register(self)

    def agree(self, check, says):
        """What ``check()`` finds, before any collective: every rank must find the same, by ``says(found)``, a dict of texts.

        Raises what ``check`` raises; RendezvousError, where that of another rank does, or where ranks differ."""
        try:
            found = check()
        except Exception as error:
            self.tell(error)
            raise
        if self.size > 1:
            self._compare(says(found), None)
        return found

    def tell(self, error):
        """Tells the other ranks of an error before they wait in a collective, unless they know of it."""
        if self.size > 1 and not getattr(error, "_told", False):
            self._compare({}, error)
            error._told = True

    def _compare(self, mine, wrong):
        import torch

        digest = hashlib.sha256(repr(mine).encode()).digest()
        message = torch.tensor([wrong is not None, *digest], dtype=torch.uint8, device="cpu")
        every = [torch.empty_like(message) for _ in range(self.size)]
        self.collective(self._dist.all_gather, every, message)
        if not any(t[0] or not torch.equal(t, message) for t in every):
            return
        said = [None] * self.size
        self.collective(self._dist.all_gather_object, said, (mine, None if wrong is None else str(wrong)))
        if wrong is not None:
            return
        for rank, (_, why) in enumerate(said):
            if why is not None:
                raise _known(RendezvousError(f"{_CALL}: rank {rank} failed: {why}"))
        for what, text in mine.items():
            others = [r for r, (theirs, _) in enumerate(said) if theirs.get(what) != text]
            if others:
                ranks = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
                there = said[others[0]][0].get(what)
                raise _known(RendezvousError(
                    f"{_CALL}: rank {self.rank} differs from {ranks} in {what}: `{text}` here, `{there}` on rank {others[0]}; every rank must "
                    f"pass the same{_UNEVEN if what == 'the sizes' else ''}"))

    def collective(self, call, *args):
        """A collective of all ranks, whose failure is told as on GPUs."""
        return self._all.collective(call, *args)

    def along(self, axis):
        """The ranks along an axis of a pipeline."""
        return self._along.get(axis, self._all)

    def sequence(self, axes, sizes):
        """``Ranks.sequence`` along the axis that shares a value's sequence."""
        along = {axis: self.along(axis).sequence(sizes) for axis in axes}

        def sequence(x, value, dim, passed):
            over = [axis for axis, placement in value["placements"].items() if placement[1:] == (dim,)]
            if len(over) > 1:
                raise UnsupportedError(f"axes {', '.join(over)} share a sequence\n  help: exchange it for heads over one of them")
            axis = over[0] if over else axes[0]
            return along[axis](x, {**value, "placement": value["placements"][axis] if over else ("replicate", None)}, dim, passed)

        return sequence

    def move(self, sizes):
        """The collectives, for the global shapes ``sizes`` of values."""

        def move(kind, x, value):
            over = value["axis"]

            def whole(dim):
                """What the group has of a dimension, which another axis may share."""
                n = sizes(value)[dim]
                for axis, placement in value["placements"].items():
                    if axis != over and placement == ("shard", dim):
                        n = self.along(axis).parts(n)[self.along(axis).rank]
                return n

            if kind == "all_reduce":
                return self.along(over).sum(x.contiguous().clone())
            if kind == "all_to_all":
                return self.along(over).exchange(x, *((value[key], whole(value[key])) for key in ("split", "concat")))
            return self.along(over).move(kind, x, value["dim"], whole(value["dim"]))

        return move


class Ranks:
    """The ranks of a process group, of which this process is one, and what they do together."""

    def __init__(self, dist, group, size, rank):
        self._dist, self._group, self.size, self.rank = dist, group, size, rank

    def collective(self, call, *args):
        """A collective of the group, whose failure is told as on GPUs."""
        try:
            return call(*args, group=self._group)
        except RuntimeError as error:
            raise _known(RendezvousError(f"rank {self.rank}: a collective of the reference world failed: {error}")) from error

    def parts(self, n):
        """How many of ``n`` rows each rank has, cut as torch.chunk does."""
        each = -(-n // self.size)
        return [max(0, min(each, n - r * each)) for r in range(self.size)]

    def places(self, n, placement, rank=None):
        """Where the rows of a rank are among ``n``, as ranges that follow each other."""
        rank = self.rank if rank is None else rank
        if placement == "shard":
            each = -(-n // self.size)
            parts = [rank]
        elif placement == "zigzag":
            each = -(-n // (2 * self.size))
            parts = [rank, 2 * self.size - 1 - rank]
        else:
            each, parts = n, [0]
        return [range(min(n, part * each), min(n, (part + 1) * each)) for part in parts]

    def whole_rows(self, x, n):
        """All ``n`` rows, of which each rank has its part."""
        import torch

        if self.size == 1:
            return x
        parts = self.parts(n)
        padded = x.new_zeros(parts[0], *x.shape[1:])
        padded[: x.shape[0]] = x
        every = [torch.empty_like(padded) for _ in parts]
        self.collective(self._dist.all_gather, every, padded)
        return torch.cat([part[:n] for part, n in zip(every, parts)])

    def sum(self, x):
        """The sum of what all ranks have, in its place."""
        if self.size > 1:
            self.collective(self._dist.all_reduce, x)
        return x

    def sequence(self, sizes):
        """Of a tensor of this rank that lies along ``dim``, and its value: all of it where it is ``passed`` on by a ring, and the places
        of its rows, from the end on: the last row is at -1."""
        import torch

        def sequence(x, value, dim, passed):
            (placement, cut), n = value["placement"], sizes(value)[dim]
            placement = placement if cut == dim else "replicate"
            every = [torch.tensor([i for part in self.places(n, placement, r) for i in part]) for r in range(self.size)]
            if not passed or self.size == 1 or placement == "replicate":
                return x, every[self.rank].long() - n
            x = x.movedim(dim, 0).contiguous()
            padded = x.new_zeros(max(map(len, every)), *x.shape[1:])
            padded[: x.shape[0]] = x
            all_padded = [torch.empty_like(padded) for _ in every]
            self.collective(self._dist.all_gather, all_padded, padded)
            whole = x.new_empty(n, *x.shape[1:])
            for part, at in zip(all_padded, every):
                whole[at.long()] = part[: len(at)]
            return whole.movedim(0, dim), torch.arange(n) - n

        return sequence

    def exchange(self, x, split, concat):
        """Parts along the first dimension for those along the second one, each with its extent on all ranks together."""
        import torch

        if self.size == 1:
            return x.clone()
        (to, n), (dim, whole) = split, concat
        # All of it to all, as gloo has no unequal exchange on every version.
        padded = x.new_zeros(*(max(self.parts(whole)) if d == dim else n for d, n in enumerate(x.shape)))
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        every = [torch.empty_like(padded) for _ in range(self.size)]
        self.collective(self._dist.all_gather, every, padded)
        rows = torch.cat([part.narrow(dim, 0, m) for part, m in zip(every, self.parts(whole))], dim)
        parts = self.parts(n)
        return rows.narrow(to, sum(parts[: self.rank]), parts[self.rank]).contiguous()

    def move(self, kind, x, dim, n):
        """A collective of values that have ``n`` elements along ``dim`` on all ranks together."""
        if self.size == 1:
            return x.clone()
        parts = self.parts(n)
        x = x.movedim(dim, 0).contiguous()
        if kind == "reduce_scatter":
            self.collective(self._dist.all_reduce, x)
            return x.split(parts)[self.rank].movedim(0, dim).contiguous()
        return self.whole_rows(x, n).movedim(0, dim).contiguous()


def _known(error):
    """An error that other ranks have, too."""
    error._told = True
    return error

