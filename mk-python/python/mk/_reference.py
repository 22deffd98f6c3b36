"""Worlds of CPU tensors: the same programs by torch operations, and collectives over a process group such as gloo's."""

from __future__ import annotations

from ._errors import RendezvousError


class ReferenceWorld:
    """Made by ``World.reference(group)``. ``group`` may be a DeviceMesh of one dimension."""

    def __init__(self, group=None):
        import torch.distributed as dist

        if hasattr(group, "get_group"):
            group = group.get_group()
        ready = dist.is_available() and dist.is_initialized()
        if group is not None and not ready:
            raise RendezvousError("torch.distributed is not initialised: call torch.distributed.init_process_group() first")
        self._dist, self._group = dist, group
        self.size = dist.get_world_size(group) if ready else 1
        self.rank = dist.get_rank(group) if ready else 0
        self.ranks, self.devices, self.sm_budget = [self.rank], [], None

    def __repr__(self):
        return f"<mk.World of {self.size} ranks: {self.ranks} here, on CPU tensors>"

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
        self._dist.all_gather(every, padded, group=self._group)
        return torch.cat([part[:n] for part, n in zip(every, parts)])

    def sum(self, x):
        """The sum of what all ranks have, in its place."""
        if self.size > 1:
            self._dist.all_reduce(x, group=self._group)
        return x

    def sequence(self, sizes):
        """Of a tensor of this rank that lies along ``dim``, and its value: all of it where it is ``passed`` on by a ring, and the places
        of its rows."""
        import torch

        def sequence(x, value, dim, passed):
            (placement, cut), n = value["placement"], sizes(value)[dim]
            placement = placement if cut == dim else "replicate"
            every = [torch.tensor([i for part in self.places(n, placement, r) for i in part]) for r in range(self.size)]
            if not passed or self.size == 1 or placement == "replicate":
                return x, every[self.rank].long()
            x = x.movedim(dim, 0).contiguous()
            padded = x.new_zeros(max(map(len, every)), *x.shape[1:])
            padded[: x.shape[0]] = x
            all_padded = [torch.empty_like(padded) for _ in every]
            self._dist.all_gather(all_padded, padded, group=self._group)
            whole = x.new_empty(n, *x.shape[1:])
            for part, at in zip(all_padded, every):
                whole[at.long()] = part[: len(at)]
            return whole.movedim(0, dim), torch.arange(n)

        return sequence

    def move(self, sizes):
        """The collectives, for the global shapes ``sizes`` of values."""

        def move(kind, x, value):
            if self.size == 1:
                return x.clone()
            if kind == "all_reduce":
                x = x.contiguous().clone()
                self._dist.all_reduce(x, group=self._group)
                return x
            dim, shape = value["dim"], sizes(value)
            parts = self.parts(shape[dim])
            x = x.movedim(dim, 0).contiguous()
            if kind == "reduce_scatter":
                self._dist.all_reduce(x, group=self._group)
                return x.split(parts)[self.rank].movedim(0, dim).contiguous()
            return self.whole_rows(x, shape[dim]).movedim(0, dim).contiguous()

        return move
