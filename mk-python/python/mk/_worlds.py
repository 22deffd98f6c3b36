"""Worlds by name: pickles of worlds and functions find them in another process that has made such a world."""

from __future__ import annotations

import threading
import weakref

from ._errors import DeviceError

_lock = threading.Lock()
# Names of living worlds, by identity; and the worlds.
_names: dict[int, str] = {}
_worlds: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def register(world):
    """Names a new world: by what it is, and a number if others like it live."""
    base, n = repr(world), 1
    with _lock:
        while (made := base if n == 1 else f"{base}, number {n}") in _worlds:
            n += 1
        _worlds[made], _names[id(world)] = world, made
    weakref.finalize(world, _names.pop, id(world), None)


def name(world):
    return _names[id(world)]


def find(name):
    world = _worlds.get(name)
    if world is None:
        raise DeviceError(f"the pickle is of {name}, and this process has made no such world\n  help: make the world first")
    return world
