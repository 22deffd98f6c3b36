"""Errors of a result, on the device: nothing waits, so that every launch can be judged."""

import torch
import torch.nn.functional as F

# Relative Frobenius errors that bfloat16 results may have, over the whole and over each tile; a tile of garbage has 1 or more.
WHOLE, TILE = 5e-3, 2e-2
BLOCK = 128


class Judge:
    """Compares results with one reference, ``[rows, columns]`` in fp32."""

    def __init__(self, reference):
        self._reference = reference
        squares = _tiles(reference.square())
        self._tiles, self._whole = squares.clamp_(min=1e-30), squares.sum()

    def errors(self, y):
        """Over the whole and of the worst tile of 128 x 128: two numbers on the device, infinite where y has a NaN."""
        if y.shape != self._reference.shape:
            raise ValueError(f"the result is {list(y.shape)}, and must be {list(self._reference.shape)}")
        wrong = _tiles(y.float().sub_(self._reference).square_())
        both = torch.stack([(wrong.sum() / self._whole).sqrt(), (wrong / self._tiles).max().sqrt()])
        return both.nan_to_num_(nan=float("inf"))


def _tiles(t):
    rows, columns = t.shape
    if rows % BLOCK or columns % BLOCK:
        t = F.pad(t, (0, -columns % BLOCK, 0, -rows % BLOCK))
    return t.view(t.shape[0] // BLOCK, BLOCK, -1, BLOCK).sum((1, 3))


def good(whole, tile):
    """Whether these errors are what bfloat16 explains. False for NaN."""
    return whole < WHOLE and tile < TILE
