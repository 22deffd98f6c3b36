"""What is bound ahead of a first call, in threads."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, wait

# Of each world, in the order in which it was asked for.
_pending: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_thread = threading.local()


def begin(world, bind):
    """Runs ``bind`` in a thread, after what was begun before in this world: ranks bind in the same order."""
    before, future = list(_pending.get(world, ())), Future()
    future.set_running_or_notify_cancel()

    def work():
        _thread.binds = True
        wait(before)
        try:
            future.set_result(bind())
        except BaseException as error:
            future.set_exception(error)

    _pending[world] = [*before, future]
    threading.Thread(target=work, name="mk-bind", daemon=True).start()
    return future


def finish(world):
    """Waits for what was begun, unless this is its thread. Errors are their futures'."""
    if _pending and not getattr(_thread, "binds", False):
        wait(_pending.pop(world, ()))
