"""Kernels on disk before anybody asks for them: NVRTC compiles one at a time in a process, so that several processes do it. Needs no torch."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, wait

import mk

PROCESSES = 16
_world = None


def fill(pipeline, work, seconds=None):
    """Compiles a kernel for each of ``work``, pairs of shapes by parameter and settings, into the cache on disk. Gives up after so many
    seconds, and leaves to the caller what fails."""
    processes = min(PROCESSES, os.cpu_count() or 1, len(work))
    if processes < 2:
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin) as pool:
        pending = wait([pool.submit(_make, pipeline, *one) for one in work], seconds)
        pool.shutdown(wait=True, cancel_futures=bool(pending.not_done))


def _begin():
    global _world
    _world = mk.World.local(1)


def _make(pipeline, shapes, settings):
    try:
        mk.compile(pipeline, _world, fuse="always", settings=settings).bind(shapes=shapes)
    except mk.Error:
        pass  # whoever runs it says so
