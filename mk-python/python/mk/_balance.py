"""``mk.balance``: an order of packed documents that gives ranks equal work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import _mk

if TYPE_CHECKING:
    from torch import Tensor


def balance(cu_seqlens: Sequence[int] | Tensor, world: int | _mk.World) -> tuple[list[int], float]:
    """An order of the documents of a packed sequence by which ranks that share it in zigzag have equal work of a causal ``mk.attention``: for a data
    loader, which packs document ``order[0]`` first. With it the most work of a rank by the mean.

    ``cu_seqlens`` as ``mk.attention`` has them; ``world``, or its number of ranks. Equal numbers give equal orders, on any rank. Documents of up to half a
    chunk, ``T / (4 * ranks)`` tokens, are even to some percent; longer ones may leave no even order.

    Raises ArgumentError for numbers that do not ascend from 0.
    """
    begins = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else list(cu_seqlens)
    return _mk._balance(begins, world if isinstance(world, int) else world.size)
