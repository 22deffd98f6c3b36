"""A pipeline that was read from a file."""

from __future__ import annotations

import os

from . import _function, _mk


class Pipeline(str):
    """The text of a pipeline, which ``mk.compile`` and ``mk.plan`` take as any other. Made by ``mk.load``."""

    def __new__(cls, path):
        path = os.fspath(path)
        # What is wrong with it is said here, with the file's name.
        dims = _mk._defaults(path if str(path).endswith(".mk") else _Path(path))
        self = super().__new__(cls, _mk._source(path if str(path).endswith(".mk") else _Path(path)))
        self._path, self._dims, self._program = path, dims, _mk._describe(str(self))
        return self

    @property
    def path(self):
        """The file."""
        return self._path

    @property
    def name(self):
        """The pipeline's name."""
        return self._program["name"]

    @property
    def dims(self):
        """The sizes at the head of the file, which ``plan`` takes where it is given no others."""
        return dict(self._dims)

    @property
    def parameters(self):
        """``(name, dtype, dims, placement)`` of each parameter."""
        values = [v for v in self._program["values"] if v["op"] == "parameter"]
        return [(v["name"], v["dtype"], tuple(v["dims"]), v["placement"]) for v in values]

    def compile(self, world, **options):
        """``mk.compile(self, world, ...)``."""
        return _function.compile(self, world, **options)

    def plan(self, *, ranks, **options):
        """``mk.plan(self, ranks=ranks, ...)``."""
        return _mk.plan(self, ranks=ranks, **options)

    def __reduce__(self):
        return type(self), (self._path,)

    def __repr__(self):
        return f"<mk.Pipeline {self.name} of {self._path}>"


class _Path(os.PathLike):
    """A path that does not end with `.mk`."""

    def __init__(self, path):
        self._path = path

    def __fspath__(self):
        return self._path


def load(path):
    """The pipeline in a file, by convention `x.mk`, as a ``Pipeline``: checked, with the sizes at its head.

    Raises PipelineError with all mistakes of the text, ArgumentError for a file that cannot be read.
    """
    return Pipeline(path)
