"""Functions of torch tensors that record gradients: a layer over the native ones."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import weakref

from . import _mk, _op
from ._errors import ArgumentError, DeviceError, FaultError, UnsupportedError
from ._evaluate import dtype
from ._reference import ReferenceWorld
from ._runner import Backward, Runner

# What backward computes again: gathered inputs, activations.
_SAVES = {"all": (False, False), "shard": (True, False), "pre": (False, True), "least": (True, True)}
# Of functions by world and key, while somebody holds them.
_functions: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_worlds: dict[int, str] = {}
_made: dict[str, int] = {}
_unshared = itertools.count()


class Train:
    """A function with what its backward wants saved: an entry of the operator."""

    def __init__(self, key, derived, derive, world, options):
        self._derive, self._world, self._options = derive, world, options
        self._runner = Runner(derived["forward"], world, options)
        self._key, self._backwards = key, {}
        self.name = self._runner.name

    def backward(self, wanted):
        found = self._backwards.get(wanted)
        if found is None:
            options = {k: v for k, v in self._options.items() if k not in ("shapes", "dims", "settings")}
            runner = self._runner
            derived = self._derive(list(wanted))
            derived["inputs"] = [self._place(derived["forward"], *given) for given in derived["inputs"]]
            found = Backward(derived, self.name, self._world, {**options, "dims": runner.given or None})
            found.key = f"{self._key}/d{'.'.join(map(str, wanted))}"
            _op.ENTRIES[found.key] = found
            self._backwards[wanted] = found
        return found

    def _place(self, forward, kind, i):
        """What a backward of some gradients wants saved, among all that is."""
        if kind != "saved":
            return kind, i
        name = _mk._describe(forward)["results"][i][0]
        names = [n for n, _ in self._runner.program["results"]]
        return kind, names.index(name) if name in names else i

    def dtype(self, torch, parameter):
        return dtype(torch, self._runner.parameters[parameter])

    def run(self, torch, tensors):
        return self._runner.run(torch, tensors)

    def fake(self, torch, tensors):
        return self._runner.fake(torch, tensors)

    def flops(self, shapes):
        return self._runner.flops(shapes)

    def functions(self):
        return self._runner.functions() + [f for b in self._backwards.values() for f in b.functions()]


class Function:
    """A pipeline as a function of torch tensors. Made by ``mk.compile``.

    Calling it takes one tensor for each parameter, by position or by name, on the rank's GPU, contiguous, of the pipeline's dtype and
    of the shape of the rank's part; ``[B, S, H]`` where the pipeline has ``[M, H]``. It enqueues on torch's current stream and
    returns the result, or ``out``; nothing waits. Gradients are recorded as by any operation of torch; ``backward`` is the derived text.

    The first call with new shapes compiles and binds, which all ranks must do together, and so does the first backward; ``bind`` does
    the former ahead. One text with the same options in one world is one function with one workspace, however often it is compiled. It
    goes where modules go: deep copies are the function itself, and a pickle finds it again by world, text and options.

    Inside ``torch.cuda.graph`` it must have run before. In a world of several ranks in one process each argument is a list with one
    tensor per rank, and so is the result; no gradients are recorded then.
    """

    def __init__(self, text, world, options, save, key):
        self._text, self._world, self._options, self._save, self._key = text, world, options, save, key
        reference = isinstance(world, ReferenceWorld)
        self._native = None if reference else _mk.compile(text, world, **options)
        self._several = not reference and len(world.ranks) != 1
        self._runner = self._train = None
        self.why = None
        if self._several:
            return
        self._runner = Runner(text, world, options, gpu=self._native)
        self._names = [v["name"] for v in self._runner.parameters]
        self._rows = [v["dims"] for v in self._runner.parameters]
        results = [self._runner.values[i] for _, i in self._runner.program["results"]]
        self._results = [(v["dims"], v["placement"]) for v in results]
        self._placements = [v["placement"] for v in self._runner.parameters]
        gather_again, activate_again = _SAVES[save]

        def derive(wanted=None):
            return _mk._derive(text, wanted, gather_again=gather_again, activate_again=activate_again)

        try:
            self._derived = derive()
        except UnsupportedError as error:
            self.why = str(error)
        else:
            self._train = Train(f"{key}/train", self._derived, derive, world, options)
            _op.ENTRIES[self._train._key] = self._train
        _op.ENTRIES[key] = self._runner
        if "torch" in sys.modules and hasattr(sys.modules["torch"], "library"):
            _op.register()

    @property
    def backward(self):
        """The text of the backward of all parameters; None without one (``why`` says why), or where it has nothing to do."""
        return None if self._train is None else self._derived["backward"]

    def infer(self, *shapes):
        """``(shape, dtype)`` of each result, from the shapes of what this rank holds of each parameter. Nothing is bound."""
        import torch

        sizes = self._runner.sizes(shapes)
        results = [self._runner.values[i] for _, i in self._runner.program["results"]]
        return [(tuple(self._runner.local(v, sizes)), dtype(torch, v)) for v in results]

    def __call__(self, *args, out=None, **kwargs):
        try:
            return self._call(args, out, kwargs)
        except FaultError:
            self._forget()
            raise

    def _forget(self):
        """Who compiles the text again gets another function."""
        functions = _functions.get(self._world, {})
        for key in [key for key, function in functions.items() if function() is self]:
            del functions[key]

    def _call(self, args, out, kwargs):
        torch = sys.modules.get("torch")
        if self._several or out is not None or not hasattr(torch, "library"):
            if self._native is None:
                raise ArgumentError("`out` is of functions on GPUs")
            return self._native(*args, out=out, **kwargs)
        tensors = list(args) if not kwargs else self._ordered(args, kwargs)
        if len(tensors) != len(self._names):
            raise ArgumentError(f"{len(tensors)} tensors were given, and the pipeline has {len(self._names)}: {', '.join(self._names)}")
        lead = None
        for i, tensor in enumerate(tensors):
            if tensor.dim() > 2 and len(self._rows[i]) == 2:
                lead = lead or (self._rows[i][0], self._placements[i], tensor.shape[:-1])
                tensors[i] = tensor.flatten(0, -2)
        compiling = torch.compiler.is_compiling()
        if not compiling:
            self._refuse_tangents(torch, tensors)
        kind = tensors[0].device.type
        if torch.is_autocast_enabled(kind):
            tensors = [self._narrow(torch, i, t) for i, t in enumerate(tensors)]
        records = torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
        if records and self._train is None:
            raise UnsupportedError(f"no gradient is recorded: {self.why}\n  help: call under torch.no_grad()")
        if not records and not compiling and self._native is not None and lead is None:
            return self._native(*tensors)
        if records and not compiling and _op.is_plain(torch, tensors):
            results = _op.direct(self._train, len(self._results), *tensors)
        else:
            results = torch.ops.mk.call(tensors, self._train._key if records else self._key)[: len(self._results)]
        if lead is not None:
            results = [self._with_leading(lead, i, r) for i, r in enumerate(results)]
        return results[0] if len(results) == 1 else tuple(results)

    def _narrow(self, torch, i, tensor):
        """Under autocast, float32 becomes what the pipeline takes."""
        if tensor.dtype != torch.float32:
            return tensor
        return tensor.to(dtype(torch, self._runner.parameters[i]))

    def _ordered(self, args, kwargs):
        tensors = list(args) + [kwargs.pop(name) for name in self._names[len(args) :] if name in kwargs]
        if kwargs:
            raise ArgumentError(f"there is no parameter `{next(iter(kwargs))}`, but {', '.join(self._names)}")
        return tensors

    def _refuse_tangents(self, torch, tensors):
        forward_ad = torch.autograd.forward_ad
        if forward_ad._current_level < 0:
            return
        for name, tensor in zip(self._names, tensors):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise UnsupportedError(f"`{name}` has a tangent, and forward-mode derivatives are not computed\n  help: use reverse mode")

    def _with_leading(self, lead, i, result):
        """Rows as the tensor of three dimensions had them: its first dimension is the one that is sharded."""
        name, (kind, dim), shape = lead
        dims, (mine, mine_dim) = self._results[i]
        if dims[0] != name or len(dims) != 2:
            return result
        sharded, was = mine == "shard" and mine_dim == 0, kind == "shard" and dim == 0
        first = shape[0]
        if sharded and not was:
            first = first // self._world.size
        elif was and not sharded:
            first = first * self._world.size
        return result.view(first, *shape[1:], result.shape[-1])

    def __deepcopy__(self, memo):
        return self

    def __copy__(self):
        return self

    def __reduce__(self):
        return _find, (_worlds[id(self._world)], self._text, self._options, self._save)

    def __getattr__(self, name):
        native = self.__dict__.get("_native")
        if name.startswith("_") or native is None:
            raise AttributeError(name)
        return getattr(native, name)

    def _all(self):
        own = [] if self._native is None else [self._native]
        more = self._train.functions() if self._train is not None else []
        steps = self._runner.functions() if self._runner is not None else []
        return list({id(f): f for f in own + steps + more}.values())

    def _each(self, name):
        try:
            for f in self._all():
                getattr(f, name)()
        except FaultError:
            self._forget()
            raise

    def check(self):
        """Raises what a kernel gave up with, of forward or backward."""
        self._each("check")

    def synchronize(self):
        """Waits for the kernels, and raises as ``check``."""
        self._each("synchronize")

    def close(self):
        """Frees workspace, for everybody who compiled this text with these options. Idempotent."""
        self._forget()
        self._each("close")

    def __repr__(self):
        if self._native is not None:
            return repr(self._native)
        return f"<mk.Function {self._runner.name}({', '.join(self._names)}) on {self._world.size} ranks>"


def _find(world, text, options, save):
    for other in list(_functions):
        if _worlds.get(id(other)) == world:
            return compile(text, other, save=save, **options)
    raise DeviceError(f"this function is of {world}, and this process has made no such world\n  help: make the world first")


def _world_name(world):
    name = _worlds.get(id(world))
    if name is None:
        kind = "a reference world" if isinstance(world, ReferenceWorld) else "a world"
        base = f"{kind} of {world.size} ranks, {list(world.ranks)} here, GPUs {list(world.devices)}"
        _made[base] = n = _made.get(base, 0) + 1
        name = base if n == 1 else f"{base}, number {n}"
        _worlds[id(world)] = name
        weakref.finalize(world, _worlds.pop, id(world), None)
    return name


def compile(pipeline, world, *, save="all", reserve_sms=0, share=True, **options):
    """A function of torch tensors from the text of a pipeline. Nothing is compiled yet: see ``Function``.

    ``save`` says what forward keeps for backward: ``"all"``; ``"shard"``, whose backward gathers inputs again; ``"pre"``, which keeps values
    before activations and computes activations again; ``"least"``, both. ``reserve_sms="nccl"`` keeps as many SMs free as NCCL has
    channels at most: ``NCCL_MAX_NCHANNELS``, else 24.

    With ``share`` it is the function that somebody has compiled before from the same text with the same options in this world, unless a
    kernel of that one gave up; else one with workspace of its own.

    ``shapes`` maps tensors to global shapes and ``dims`` symbols to extents. Neither is needed while shards are even: the global shape
    then follows from the tensors. ``settings``, ``tuning``, ``fuse``, ``overlap``, ``wait_limit_s`` and ``entry_limit_s``: docs/python.md.

    Raises PipelineError with all mistakes of the text, or ArgumentError.
    """
    if save not in _SAVES:
        raise ArgumentError(f"save is {save!r}, and must be one of {', '.join(map(repr, _SAVES))}")
    if reserve_sms == "nccl":
        reserve_sms = int(os.environ.get("NCCL_MAX_NCHANNELS", 24))
    if reserve_sms:
        options["reserve_sms"] = reserve_sms
    if not isinstance(world, (_mk.World, ReferenceWorld)):
        raise TypeError(f"world is a {type(world).__name__}, and must be an mk.World")
    functions = _functions.setdefault(world, {})
    name = _world_name(world)
    text = f"{name}\n{pipeline}\n{save}\n{sorted((k, repr(v)) for k, v in options.items())}"
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    if not share:
        return Function(pipeline, world, options, save, f"{key}/{next(_unshared)}")
    found = functions.get(key)
    found = found() if found is not None else None
    if found is None:
        # Keys of functions that were closed, or gave up, are not taken again: graphs may name them.
        found = Function(pipeline, world, options, save, f"{key}/{next(_unshared)}" if key in _op.ENTRIES else key)
        functions[key] = weakref.ref(found)
    return found
