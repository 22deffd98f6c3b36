"""`mk tune` from Python: the command of this package, as a process of its own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig

from ._errors import Error


def command():
    """The `mk` command: that of this installation, else one that the shell finds."""
    own = pathlib.Path(sysconfig.get_path("scripts")) / "mk"
    found = str(own) if own.exists() else shutil.which("mk")
    if found is None:
        raise Error("there is no `mk` command\n  help: install the wheel, or put the one that `cargo build --release -p mk-command` makes into PATH")
    return found


def _nvrtc():
    """The folder of NVRTC among the packages of this interpreter."""
    try:
        import nvidia
    except ImportError:
        return None
    folders = [pathlib.Path(folder) / "cu13/lib" for folder in nvidia.__path__]
    return next((str(folder) for folder in folders if folder.is_dir()), None)


def tune(pipeline, *, shapes=None, dims=None, devices=(0,), top=None):
    """Measures strategies and settings of a pipeline, one rank for each of ``devices``, and keeps the best for functions of these sizes on such GPUs.

    ``shapes`` and ``dims`` are global, as of ``mk.plan``. ``top`` measures only so many candidates, those that the cost model takes for the
    best. Nothing else may use these GPUs meanwhile. Returns what `mk tune` prints: docs/tuning.md.

    Raises Error with what the command says.
    """
    arguments = [command(), "tune", pipeline, "--gpus", ",".join(map(str, devices)), "--color", "never"]
    for name, shape in (shapes or {}).items():
        arguments += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
    for name, n in (dims or {}).items():
        arguments += ["--dim", f"{name}={n}"]
    if top is not None:
        arguments += ["--top", str(top)]
    environment = dict(os.environ)
    # As the command reads it: an empty one is none.
    if not environment.get("MK_NVRTC_DIR") and (folder := _nvrtc()):
        environment["MK_NVRTC_DIR"] = folder
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Error(done.stderr.strip() or f"`mk tune` ended with status {done.returncode}")
    return done.stdout
