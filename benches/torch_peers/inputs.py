"""Inputs of a row on one rank, and what its result must be."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

SETS = 3
CHUNK = 4096  # rows that a reference converts to fp32 at a time


class Inputs:
    """``SETS`` random sets of bfloat16 tensors of one row: what this rank holds, and x or a gathered where it is."""

    def __init__(self, row, rank, world, seed):
        self.row, self.rank, self.world = row, rank, world
        self._random = torch.Generator(device="cuda").manual_seed(seed * 1000 + rank)
        m, k, n = row.m, row.k, row.n
        if m % world or (row.op.startswith("mlp") and n % world):
            raise ValueError(f"{row.key}: rows and hidden columns must be multiples of the {world} ranks")
        make = self._tensor
        if row.op in ("gemm", "gemm-reduce_scatter", "gemm-all_reduce"):
            self.sets = [(make(m, k), make(k, n)) for _ in range(SETS)]
        elif row.op in ("gather-gemm", "gather-gemm-reduce_scatter"):
            self.sets = [(make(m // world, k), make(k, n)) for _ in range(SETS)]
        else:
            up = (k, n // world) if row.op == "mlp-gelu" else (k, 2, n // world)
            self.sets = [(make(m // world, k), make(*up, scale=k**-0.5), make(n // world, k, scale=n**-0.5)) for _ in range(SETS)]
        self.whole = [_gathered(s[0], world) for s in self.sets] if "gather" in row.op or row.op.startswith("mlp") else None

    def _tensor(self, *shape, scale=1.0):
        return torch.randn(*shape, generator=self._random, device="cuda", dtype=torch.bfloat16).mul_(scale)

    def reference(self, i):
        """This rank's result for set ``i``, in fp32 from first to last."""
        row, world = self.row, self.world
        first = self.whole[i] if self.whole else self.sets[i][0]
        weights = [w.float().flatten(1) for w in self.sets[i][1:]]
        if row.op in ("gemm", "gather-gemm"):
            return torch.cat([rows.float() @ weights[0] for rows in first.split(CHUNK)])
        if row.op == "gemm-all_reduce":
            parts = [rows.float() @ weights[0] for rows in first.split(CHUNK)]
            for part in parts:
                dist.all_reduce(part)
            return torch.cat(parts)
        mine = None
        for owner, rows in enumerate(first.chunk(world)):
            part = torch.cat([self._rows(r.float(), weights) for r in rows.split(CHUNK)])
            dist.reduce(part, dst=owner)
            if owner == self.rank:
                mine = part
        return mine

    def _rows(self, x, weights):
        x = x @ weights[0]
        if self.row.op == "mlp-gelu":
            x = F.gelu(x) @ weights[1]
        elif self.row.op == "mlp-swiglu":
            gate, up = x.chunk(2, dim=1)
            x = (F.silu(gate) * up) @ weights[1]
        return x


def _gathered(shard, world):
    whole = shard.new_empty(shard.shape[0] * world, shard.shape[1])
    dist.all_gather_into_tensor(whole, shard)
    return whole
