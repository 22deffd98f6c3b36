"""Worlds of process groups, made when they are first asked for."""

from __future__ import annotations

import weakref

from .. import _mk

_made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def world_of(group, device):
    """The world of a process group's ranks: on GPUs, or of CPU tensors. Collective at its first call: every rank of the group makes it."""
    found = _made.setdefault(group, {})
    kind = device.type
    if kind not in found:
        found[kind] = _mk.World.from_torch(group=group, device=device.index) if kind == "cuda" else _mk.World.reference(group)
    return found[kind]
