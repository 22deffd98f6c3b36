"""Functions of torch tensors that record gradients: a layer over the native ones."""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
import weakref
from collections.abc import Mapping

from . import _fake, _mk, _op, _worlds
from ._ahead import begin, finish
from ._errors import ArgumentError, FaultError, UnsupportedError
from ._evaluate import dtype
from ._reference import ReferenceWorld
from ._runner import Backward, Runner
from ._saves import CHOICES, savings
from ._texts import on_one_rank, turned

# Of functions by world and key, while somebody holds them.
_functions: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# All functions of a world, in the order in which they were made.
_members: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_unshared = itertools.count()


class Train:
    """A function with what its backward wants saved: an entry of the operator."""

    def __init__(self, key, derived, derive, world, options, mains, native):
        self._derive, self._world, self._options = derive, world, options
        # Positions of parameters whose gradients are added to f32 matrices; those follow the parameters' tensors.
        self.mains = mains
        self._runner = Runner(derived["forward"], world, options, native)
        self._key, self._backwards, self.plans = key, {}, {}
        self.name = self._runner.name

    def plan(self, needs):
        """By inputs of the eager function that want a gradient: the backward; what it wants saved, each whether it is a parameter, and which;
        and the positions of matrices that gradients are added to."""
        needs = needs[2:]
        back = self.backward(tuple(i for i, want in enumerate(needs) if want))
        wants = [(kind == "parameter", i) for kind, i in back.inputs if kind in ("parameter", "saved")]
        first = len(needs) - len(self.mains)
        mains = [first + at for at, parameter in enumerate(self.mains) if needs[parameter]]
        self.plans[(False, False, *needs)] = plan = back, wants, mains
        return plan

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
        return kind, names.index(name)

    def dtype(self, torch, parameter):
        return dtype(torch, self._runner.parameters[parameter])

    def _own(self, tensors):
        return tensors[: len(tensors) - len(self.mains)] if self.mains else tensors

    def run(self, torch, tensors):
        return self._runner.run(torch, self._own(tensors))

    def fake(self, torch, tensors):
        return self._runner.fake(torch, self._own(tensors))

    def flops(self, shapes):
        return self._runner.flops(self._own(shapes))

    def functions(self):
        return self._runner.functions() + [f for b in self._backwards.values() for f in b.functions()]


class Function:
    """A pipeline as a function of torch tensors. Made by ``mk.compile``.

    Calling it takes one tensor for each parameter, by position or by name, on the rank's GPU, contiguous, of the pipeline's dtype and
    of the shape of the rank's part; ``[S, B, H]`` where the pipeline has ``[M, H]``, of which ranks share the first dimension. It enqueues on torch's current stream and
    returns the result, or ``out``; nothing waits. Gradients are recorded as by any operation of torch; ``backward`` is the derived text.

    The first call with new shapes compiles and binds, which all ranks must do together, and so does the first backward; ``bind`` does
    the former ahead. One text with the same options in one world is one function with one workspace, however often it is compiled. It
    goes where modules go: deep copies are the function itself, and a pickle finds it again by world, text and options.

    Inside ``torch.cuda.graph`` it must have run before. In a world of several ranks in one process each argument is a list with one
    tensor per rank, and so is the result; no gradients are recorded then.
    """

    def __init__(self, text, world, options, save, key, grads=()):
        self._text, self._world, self._options, self._save, self._key = text, world, options, save, key
        self._grads, self._turned, self._home, self._told = dict(grads), {}, None, False
        # Without collectives on one rank, unless settings are of those, or no kernel holds what is left.
        self._alone = world.size == 1 and "settings" not in options and on_one_rank(text)
        members = _members.setdefault(world, [])
        members[:] = [f for f in members if f() is not None] + [weakref.ref(self)]
        self._make()

    def _make(self):
        """What is bound and compiled: nothing yet."""
        text, world, options, key, save = self._alone or self._text, self._world, self._options, self._key, self._save
        # In a world of CPU tensors it checks, and computes nothing.
        self._native = _mk.compile(text, world, **options)
        self._reference = isinstance(world, ReferenceWorld)
        self._several = len(world.ranks) != 1
        self._runner = self._train = self._why = None
        if self._several:
            return
        self._runner = Runner(text, world, options, self._native, whole=True)
        self._names = [v["name"] for v in self._runner.parameters]
        self._rows = [v["dims"] for v in self._runner.parameters]
        self._dims = [len(dims) for dims in self._rows]
        results = [self._runner.values[i] for _, i in self._runner.program["results"]]
        self._results = results
        gather_again, activate_again = CHOICES[save]
        unknown = [name for name in self._grads if name not in self._names]
        if unknown:
            raise ArgumentError(f"grads has `{unknown[0]}`, and the pipeline has {', '.join(self._names)}")
        # (position, attribute) of parameters whose gradients are added to f32 matrices.
        self._mains = [(i, self._grads[name]) for i, name in enumerate(self._names) if name in self._grads]
        mains = [i for i, _ in self._mains]
        self._grads_at = set(mains)

        def derive(wanted=None, gather_again=gather_again, activate_again=activate_again):
            into = [i for i in mains if wanted is None or i in wanted]
            return _mk._derive(text, wanted, gather_again=gather_again, activate_again=activate_again, into=into)

        self._derive = derive

        try:
            self._derived = derive()
        except UnsupportedError as error:
            if mains:
                raise
            self._why = str(error)
            self._derived = self._of_some(derive)
        if self._derived is not None:
            self._train = Train(f"{key}/train", self._derived, derive, world, options, mains, self._native)
            _op.ENTRIES[self._train._key] = self._train
        _op.ENTRIES[key] = self._runner
        if "torch" in sys.modules and hasattr(sys.modules["torch"], "library"):
            _op.register()

    def _of_some(self, derive):
        """The backward of those parameters that have a gradient, where others have none; None without any."""

        def has(i):
            try:
                return derive([i])["backward"] is not None
            except UnsupportedError:
                return False

        some = [i for i, value in enumerate(self._runner.parameters) if not value["dtype"].startswith("i") and has(i)]
        return derive(some) if some else None

    @property
    def backward(self):
        """The text of the backward of all parameters, or of those that have one; None without any (``why`` says why), or where it has
        nothing to do."""
        return None if self._train is None else self._derived["backward"]

    @property
    def why(self):
        """Why there is no backward of all parameters; None where there is one."""
        return self._why

    @property
    def plans(self):
        """What was bound so far, in that order: a ``Plan`` for each set of sizes."""
        return self._native.plans

    @property
    def parameters(self):
        """The names of the parameters."""
        return self._native.parameters

    def infer(self, *shapes):
        """``(shape, dtype)`` of each result, from the shapes of what this rank holds of each parameter. Nothing is bound."""
        import torch

        if self._several:
            raise UnsupportedError("this process has several ranks, whose results may differ\n  help: bind(..).local_shapes(rank) has them")
        return [(shape, dtype(torch, value)) for shape, value in self._runner.infer(shapes)]

    def bind(self, *, shapes=None, dims=None):
        """Compiles and binds ahead of the first call, unless that was done. Collective: every rank calls it, in the same order as its other
        first calls. Without GPUs it plans.

        ``shapes`` (global) and ``dims`` add to those given to ``compile``. Returns the ``Plan``.

        Raises ArgumentError for sizes that are missing or do not fit, UnsupportedError, CompileError, DeviceError, RendezvousError.
        """
        finish(self._world)
        bind = lambda: self._native.bind(shapes=shapes, dims=dims)
        return self._world.agree(bind, lambda plan: self._runner.says(plan.shapes)) if self._reference else bind()

    def explain(self, *args, rounds=20, tolerance=1e-2, **kwargs):
        """Why it takes as long as it does on these tensors, as an ``Explanation``: ``str()`` of it is what `mk explain` prints, and what was
        measured here beside the same operations one by one in torch. Collective; docs/python.md.

        ``rounds`` launches of each count. Each result is compared: ``tolerance`` bounds the relative difference over the whole, and four
        times that over each tile.

        Raises what a call raises; UnsupportedError for several GPUs in one process, RendezvousError without a process group of NCCL,
        DeviceError without GPUs, Error where the two compute different things.
        """
        return self._native.explain(*args, rounds=rounds, tolerance=tolerance, **kwargs)

    def saves(self, *shapes):
        """What each value of ``save`` costs on this rank, as a list of ``Saving`` (bytes that forward keeps, bytes at the peak of a forward and
        backward, predicted milliseconds), whose ``str()`` is a table. ``shapes`` are those of what this rank holds of each parameter. Nothing is
        bound. Choices with the same kernels are listed once.

        Raises ArgumentError for shapes that do not fit, UnsupportedError where there is no backward.
        """
        import torch

        if self._several:
            raise UnsupportedError("this process has several ranks, and records no gradients")
        # Checks them, too.
        self._runner.infer(shapes)
        devices = self._world.devices
        gpu = torch.cuda.get_device_name(devices[0]) if devices and torch.cuda.is_available() else "h200"
        return savings(torch, self, shapes, gpu)

    def bind_async(self, *, shapes=None, dims=None):
        """``bind`` in a thread, while this one goes on: a ``concurrent.futures.Future`` of the plan. Collective, as ``bind``. Calls and binds
        of this world wait until all that was asked for before them is bound. Not while a CUDA graph is captured.
        """
        return begin(self._world, lambda: self.bind(shapes=shapes, dims=dims))

    def __call__(self, *args, out=None, **kwargs):
        finish(self._world)
        try:
            return self._call(args, out, kwargs)
        except FaultError:
            self._forget()
            raise
        except UnsupportedError as error:
            if not self._alone or self._bound():
                if self._reference:
                    self._world.tell(error)
                raise
            self._alone = None
            self._make()
            return self._call(args, out, kwargs)
        except Exception as error:
            if self._reference:
                self._world.tell(error)
            raise

    def _bound(self):
        return self._reference or bool(self._native.plans)

    def _renew(self):
        """Frees what is bound. The next calls bind anew, and graphs that name its keys find it."""
        try:
            self._each("close")
        except FaultError:
            pass
        self._make()
        functions = _functions.get(self._world, {})
        if self._home is not None and (functions.get(self._home) or (lambda: None))() is None:
            functions[self._home] = weakref.ref(self)

    def _forget(self):
        """Who compiles the text again gets another function."""
        functions = _functions.get(self._world, {})
        for key in [key for key, function in functions.items() if function() is self]:
            del functions[key]

    def _has_factors(self, torch, tensors, i):
        """Whether argument `i` has the factors of another one."""
        of = self._names[i].removesuffix("_scale")
        if of == self._names[i] or of not in self._names or tensors[i].dtype is not torch.float32:
            return False
        return tensors[self._names.index(of)].dtype in (torch.float8_e4m3fn, torch.float8_e5m2)

    def _call(self, args, out, kwargs):
        torch = sys.modules.get("torch")
        if self._several or not hasattr(torch, "library"):
            return self._native(*args, out=out, **kwargs)
        tensors = args if not kwargs else self._ordered(args, kwargs)
        if out is not None:
            return self._into(torch, tensors, out)
        if len(tensors) != len(self._names):
            _fake.refuse(self._native, tensors)
        lead, compiling = None, torch.compiler.is_compiling()
        for i, (tensor, n) in enumerate(zip(tensors, self._dims)):
            # Dynamo asks for no layout within a backward.
            if not isinstance(tensor, torch.Tensor) or not compiling and tensor.layout is not torch.strided:
                _fake.refuse(self._native, tensors)
            if tensor.dim() > 2 == n:
                lead = lead or (self._rows[i][0], i, tensor.shape[:-1])
                tensors = [*tensors[:i], tensor.flatten(0, -2), *tensors[i + 1 :]]
            elif not tensor.is_contiguous() and n == 2 == tensor.dim() and tensor.t().is_contiguous() and i not in self._grads_at:
                if self._has_factors(torch, tensors, i):
                    # As torch._scaled_mm takes them: the same memory.
                    tensors = [*tensors[:i], tensor.t(), *tensors[i + 1 :]]
                    continue
                return self._turn(i)(*tensors[:i], tensor.t(), *tensors[i + 1 :])
        if not compiling:
            if torch.autograd.forward_ad._current_level >= 0:
                self._refuse_tangents(torch, tensors)
            if torch._C._functorch.peek_interpreter_stack() is not None:
                raise UnsupportedError(f"transforms of torch.func (grad, vmap, jvp, ..) do not go through {self._runner.name}\n  help: use "
                                       "torch.autograd.grad; in the place of vmap, rows of one call")
            if lead is not None:
                self._tell_of_rows(lead)
        if (compiling or torch._C._is_any_autocast_enabled()) and torch.is_autocast_enabled(tensors[0].device.type):
            tensors = [self._narrow(torch, i, t) for i, t in enumerate(tensors)]
        records = torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
        if records and self._train is None:
            raise UnsupportedError(f"no gradient is recorded: {self._why}\n  help: call under torch.no_grad()")
        if records and self._mains:
            tensors = [*tensors] + [self._main(torch, i, name, tensors[i]) for i, name in self._mains]
        if not records and not compiling and not self._reference and lead is None and not torch._C._len_torch_dispatch_stack():
            return self._native(*tensors)
        if records and not compiling and _op.is_plain(torch, tensors):
            results = _op.direct(self._train, len(self._results), *tensors)
        else:
            results = torch.ops.mk.call(list(tensors), self._train._key if records else self._key)[: len(self._results)]
        if lead is not None:
            results = [self._with_leading(lead, i, r) for i, r in enumerate(results)]
        return results[0] if len(results) == 1 else tuple(results)

    def _main(self, torch, i, attribute, tensor):
        """The f32 matrix that the gradient of a parameter is added to; in the place of one that is not wanted, anything."""
        if not tensor.requires_grad:
            return tensor
        main = getattr(tensor, attribute, None)
        if main is None:
            raise ArgumentError(f"`{self._names[i]}` has no `{attribute}`, which `grads` names\n  help: "
                                f"w.{attribute} = torch.zeros(w.shape, dtype=torch.float32, device=w.device), for each parameter w")
        if main.dtype != torch.float32 or main.shape != tensor.shape or not main.is_contiguous() or main.requires_grad:
            raise ArgumentError(f"`{attribute}` of `{self._names[i]}` must be contiguous, float32, of the parameter's shape, and without a "
                                f"gradient of its own: it is {main.dtype}, {tuple(main.shape)}")
        return main

    def _turn(self, i):
        """The function that takes parameter ``i`` as its transpose."""
        found = self._turned.get(i)
        if found is None:
            text = turned(_mk._describe(self._text), i)
            if text is None:
                raise ArgumentError(f"`{self._names[i]}` is a transposed view, and something other than `gemm` reads it\n  help: pass "
                                    f"{self._names[i]}.contiguous()")
            found = self._turned[i] = _compile(text, self._world, self._save, self._grads, self._options)
        return found

    def _narrow(self, torch, i, tensor):
        """Under autocast, float32 becomes what the pipeline takes."""
        if tensor.dtype != torch.float32:
            return tensor
        return tensor.to(dtype(torch, self._runner.parameters[i]))

    def _ordered(self, args, kwargs):
        rest = self._names[len(args) :]
        if len(kwargs) != len(rest) or any(name not in kwargs for name in rest):
            _fake.refuse(self._native, args, kwargs)
        return [*args, *(kwargs[name] for name in rest)]

    def _into(self, torch, tensors, out):
        """A call whose results are the caller's tensors."""
        if not self._reference:
            return self._native(*tensors, out=out)
        self._runner.by_torch(torch, tensors, out=out)
        return out

    def _tell_of_rows(self, lead):
        """Once, where ranks share the first of two dimensions of rows and that looks like one of batches."""
        _, at, (first, *rest) = lead
        if self._told or self._runner.parts(self._runner.parameters[at], 0) == 1 or first >= max(rest):
            return
        self._told = True
        logging.getLogger("mk").warning(
            "%s: a tensor with rows %s: ranks share the first dimension, and their parts follow each other along it. Where they share the second "
            "one, transpose: x.transpose(0, 1).contiguous()", self._runner.name, (first, *rest))

    def _refuse_tangents(self, torch, tensors):
        forward_ad = torch.autograd.forward_ad
        for name, tensor in zip(self._names, tensors):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise UnsupportedError(f"`{name}` has a tangent, and forward-mode derivatives are not computed\n  help: use reverse mode")

    def _with_leading(self, lead, i, result):
        """Rows as the tensor of three dimensions had them: its first dimension is the one that is sharded."""
        (name, at, shape), value = lead, self._results[i]
        if value["dims"][0] != name or len(value["dims"]) != 2:
            return result
        was, now = self._runner.parts(self._runner.parameters[at], 0), self._runner.parts(value, 0)
        return result.view(shape[0] * was // now, *shape[1:], result.shape[-1])

    def __deepcopy__(self, memo):
        return self

    def __copy__(self):
        return self

    def __reduce__(self):
        return _find, (_worlds.name(self._world), self._text, self._options, self._save, self._grads)

    def _all(self):
        own = [self._native]
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
        return repr(self._native)


def check_world(world):
    if not isinstance(world, _mk.World):
        raise TypeError(f"world is a {type(world).__name__}, and must be an mk.World")


def recover(world, timeout_s=600.0):
    """Makes the functions of a world usable after a fault, where all its processes live. Collective: every rank calls it.

    All of them are bound anew at their next calls, with workspace of a new generation: first calls once more, which ranks make in the same
    order. What a kernel computed that gave up is undefined; go back to what was kept of the step before. CUDA graphs that captured
    functions of this world must be captured again.

    Raises RendezvousError for ranks that do not come within ``timeout_s``: if a process is gone, the others make a new world.
    """
    check_world(world)
    if isinstance(world, ReferenceWorld):
        return
    world._barrier(timeout_s)
    for function in list(_members.get(world, ())):
        function = function()
        if function is not None:
            function._renew()
    # Nobody launches before all have freed.
    world._barrier(timeout_s)


def _find(world, text, options, save, grads):
    return _compile(text, _worlds.find(world), save, grads, options)


def compile(pipeline, world, *, save="all", grads=None, reserve_sms=0, share=True, shapes=None, dims=None, settings=None, wait_limit_s=30.0,
            entry_limit_s=600.0, overlap=False, tuning=True, fuse="auto", prove="cached"):
    """A function of torch tensors from a pipeline, a text or the path of a `.mk` file. Nothing is compiled yet: see ``Function``.

    ``save`` says what forward keeps for backward: ``"all"``; ``"shard"``, whose backward gathers inputs again; ``"pre"``, which keeps values
    before activations and computes activations again; ``"least"``, both. ``reserve_sms="nccl"`` keeps as many SMs free as NCCL has
    channels at most: ``NCCL_MAX_NCHANNELS``, else 24.

    ``grads`` maps parameters to attributes of their tensors: ``grads={"w": "main_grad"}`` adds the gradient of ``w`` to the f32 matrix
    ``w.main_grad``, within the product that makes it, and leaves ``w.grad`` alone.

    With ``share`` it is the function that somebody has compiled before from the same text with the same options in this world, unless a
    kernel of that one gave up; else one with workspace of its own.

    ``shapes`` maps tensors to global shapes and ``dims`` symbols to extents. Neither is needed while shards are even: the global shape
    then follows from the tensors. ``settings``, ``tuning``, ``fuse``, ``overlap``, ``wait_limit_s`` and ``entry_limit_s``: docs/python.md.
    ``prove="always"`` proves plans again that this very build has proved before (docs/first-call.md).

    Raises PipelineError with all mistakes of the text, or ArgumentError.
    """
    if save not in CHOICES:
        raise ArgumentError(f"save is {save!r}, and must be one of {', '.join(map(repr, CHOICES))}")
    check_world(world)
    if grads is not None and not isinstance(grads, Mapping):
        raise TypeError(f"grads is a {type(grads).__name__}, and must be a dict of parameters to attributes")
    if isinstance(reserve_sms, str) and reserve_sms == "nccl":
        reserve_sms = _mk._nccl_channels()
    given = {"reserve_sms": reserve_sms, "shapes": shapes, "dims": dims, "settings": settings, "wait_limit_s": wait_limit_s,
             "entry_limit_s": entry_limit_s, "overlap": overlap, "tuning": tuning, "fuse": fuse, "prove": prove}
    # One text with the same options is one function, whether defaults are written or not.
    options = {name: value for name, value in given.items() if not _is_default(name, value)}
    return _compile(_mk._source(pipeline), world, save, grads or {}, options, share)


_DEFAULTS = {"reserve_sms": 0, "shapes": None, "dims": None, "settings": None, "wait_limit_s": 30.0, "entry_limit_s": 600.0, "overlap": False,
             "tuning": True, "fuse": "auto", "prove": "cached"}


def _is_default(name, value):
    default = _DEFAULTS[name]
    return value is default or type(value) is type(default) and value == default


def _compile(text, world, save, grads, options, share=True):
    functions = _functions.setdefault(world, {})
    said = f"{_worlds.name(world)}\n{text}\n{save}\n{sorted(grads.items())}\n{sorted((k, repr(v)) for k, v in options.items())}"
    key = hashlib.sha256(said.encode()).hexdigest()[:24]
    if not share:
        return Function(text, world, options, save, f"{key}/{next(_unshared)}", grads)
    found = functions.get(key)
    found = found() if found is not None else None
    if found is None:
        # Keys of functions that were closed, or gave up, are not taken again: graphs may name them.
        found = Function(text, world, options, save, f"{key}/{next(_unshared)}" if key in _op.ENTRIES else key, grads)
        functions[key], found._home = weakref.ref(found), key
    return found
