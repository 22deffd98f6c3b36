"""How ranks of a world that is to be made find each other in a store: restarted ones meet those that stayed.

Each rank says that it wants a world, under a name that nobody had before. Rank 0 calls a round of those that want one, calls another when
somebody is new, and lets it begin when everybody of it is there. What a rank said that has died since, or has its world, is called once at
most, and nobody is there.
"""

from __future__ import annotations

import hashlib
import time
import uuid

from ._errors import RendezvousError

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.0002, 0.02


def absent(store, world, size):
    """Ranks that are not there, of a round that was called."""
    return [r for r in range(1, size) if not store.check([f"{world}/here/{r}"])]


def meet(store, name, rank, size, timeout_s):
    """What the keys of this world begin with; no other world of the store has it. ``name`` is of these ranks."""
    mine, begin, pause = uuid.uuid4().hex, time.monotonic(), _FIRST_PAUSE_S
    wants = [f"{name}/wants/{r}" for r in range(size)]
    read = lambda key: bytes(store.get(key)).decode() if store.check([key]) else None
    store.set(wants[rank], mine.encode())
    called = world = None
    place = lambda round: f"{name}/{hashlib.sha256(','.join(round).encode()).hexdigest()[:16]}"
    while True:
        if rank == 0:
            seen = [read(key) for key in wants]
            if None not in seen and seen != called:
                called, world = seen, place(seen)
                store.set(f"{name}/round", ",".join(seen).encode())
            if world and not absent(store, world, size):
                store.set(f"{world}/begins", b"1")
                break
        else:
            round = (read(f"{name}/round") or "").split(",")
            if len(round) == size and round[rank] == mine:
                world = place(round)
                store.set(f"{world}/here/{rank}", b"1")
                if store.check([f"{world}/begins"]):
                    break
        waited = time.monotonic() - begin
        if waited > timeout_s:
            # Who never said a word; else who is not in the round that was called; else rank 0, which calls rounds and lets them begin.
            missing = [r for r in range(size) if not store.check([wants[r]])]
            missing = missing or (absent(store, world, size) if world else []) or [0] * (rank > 0)
            ranks = f"; missing: rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}" if missing else ""
            raise RendezvousError(f"rank {rank} waited {waited:.1f} s for the other processes of its world: every rank must make the same "
                                  f"worlds in the same order{ranks}")
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_S)
    # A store that cannot delete keeps a few bytes.
    for key in [wants[rank]] + [f"{world}/here/{r}" for r in range(1, size) if rank == 0]:
        try:
            store.delete_key(key)
        except Exception:
            pass
    return world
