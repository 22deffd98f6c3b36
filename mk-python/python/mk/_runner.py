"""What an operator's key stands for: a pipeline, with a way to compute it and the shapes of its results."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

from . import _mk
from ._errors import ArgumentError
from ._evaluate import dtype, evaluate
from ._fake import check
from ._experts import BLOCK, Experts, axis, experts, room
from ._meshes import along, parts
from ._reference import ReferenceWorld


class Sizes(dict):
    """Global sizes of symbols; ``rows`` are this rank's of tensors of which each rank has its own number, where it is known."""

    rows = None


class Runner:
    """A pipeline on the tensors of this rank; of several kernels, where one holds not all of it.

    ``options`` are those of ``_mk.compile``; ``shapes`` and ``dims`` among them are global sizes of this pipeline. ``native`` is the native
    function of the same parameters, which checks their tensors; ``whole``, where it is of all of this pipeline.
    """

    def __init__(self, text, world, options, native=None, whole=False):
        self.text, self.world, self.program = text, world, _mk._describe(text)
        self._reference = isinstance(world, ReferenceWorld)
        if native is None and self._reference:
            native = _mk.compile(text, world, **options)
        self._checks = native
        # What ranks of a reference world must agree upon, beside sizes.
        self._said = {"the pipeline": self.program["text"], "the options": _said(options)}
        self.options = dict(options)
        self.given = self._given(self.options.pop("shapes", None) or {}, self.options.pop("dims", None) or {})
        self.values = self.program["values"]
        self.parameters = [v for v in self.values if v["op"] == "parameter"]
        self._views = list(self._relations())
        self.name = self.program["name"]
        # Symbols of which each rank has its own number, and the most of all ranks.
        self._own = {name: self.given.get(name, most) for name, most in self.program["own"].items()}
        # By axis of the pipeline: ranks, and the place of this one. On one axis they are all that share something.
        self._along = along(world, self.program["axes"])
        # As `_cut` and `_predict` take them.
        self.on = world.mesh or world.size
        # By text and sizes; by sizes; by local shapes, where it is one kernel.
        self._native, self._steps, self._alone, self._prepared = {}, {}, {}, set()
        # What is called for all of it, without being cut.
        self._whole = native if whole and not self._reference else None

    def _given(self, shapes, dims):
        """Global sizes of symbols that were given."""
        sizes = dict(dims)
        for value in self.program["values"]:
            for dim, n in zip(value["dims"], shapes.get(value.get("name"), ())):
                if isinstance(dim, str):
                    sizes[dim] = n
        return sizes

    def sizes(self, shapes):
        """Global sizes of symbols, from local shapes; they may be symbolic."""
        sizes = Sizes(self.given)
        for value, shape in zip(self.parameters, shapes):
            if len(shape) != len(value["dims"]):
                raise ArgumentError(f"`{value['name']}` has {len(shape)} dimensions, and the pipeline says {len(value['dims'])}")
            for i, (dim, n) in enumerate(zip(value["dims"], shape)):
                if dim in self._own:
                    self._count(sizes, dim, n)
                elif isinstance(dim, str):
                    sizes.setdefault(dim, n * self.parts(value, i))
        for value in self.values:
            if value["op"] == "dispatch" and value["dims"][0] not in sizes and isinstance(value["dims"][0], str):
                of = lambda dim: sizes.get(dim, dim)
                tokens, slots = (of(dim) for dim in self.values[value["inputs"][1]]["dims"])
                sizes[value["dims"][0]] = room(tokens, slots, of(experts(self.values, value)), self._along[axis(self.program)][0])
        while any(self._follow(sizes, *relation) for relation in self._views):
            pass
        for value in self.values:
            if value["op"] == "factor" and isinstance(value["dims"][0], str):
                columns = self.values[value["inputs"][0]]["dims"][-1]
                sizes.setdefault(value["dims"][0], -(-sizes.get(columns, columns) // BLOCK))
        return sizes

    def _count(self, sizes, dim, rows):
        """Notes this rank's rows, and the most of all ranks."""
        if self._own[dim] is None:
            raise ArgumentError(f"`{dim}: own` has no bound, and this rank's rows say nothing of the others'\n  help: write `{dim}: own <= 8192`, "
                                f"or give dims={{\"{dim}\": 8192}}: the most rows of all ranks together")
        sizes[dim] = self._own[dim]
        if sizes.rows is None:
            sizes.rows = rows

    def _relations(self):
        """Of each ``view`` the dimension of rows, and the two of which it is the product; the same of columns."""
        for value in self.values:
            if value["op"] == "view":
                (m, k), (b, s, h, d) = sorted((self.values[value["inputs"][0]]["dims"], value["dims"]), key=len)
                yield from ((m, b, s), (k, h, d))

    @staticmethod
    def _follow(sizes, whole, one, other):
        """Whether a size follows from the others, and is new."""
        n = [sizes.get(dim) if isinstance(dim, str) else dim for dim in (whole, one, other)]
        if n.count(None) != 1:
            return False
        if n[0] is None:
            sizes[whole] = n[1] * n[2]
        elif n[1] is None:
            sizes[one] = n[0] // n[2]
        else:
            sizes[other] = n[0] // n[1]
        return True

    def whole(self, value, sizes):
        """The global shape of a value."""
        return [sizes[d] if isinstance(d, str) else d for d in value["dims"]]

    def local(self, value, sizes):
        """What this rank has of it."""
        shape = self.whole(value, sizes)
        if getattr(sizes, "rows", None) is not None and value["dims"][0] in self._own:
            return [sizes.rows, *shape[1:]]
        for axis, (kind, dim) in value["placements"].items():
            if kind not in ("shard", "zigzag"):
                continue
            (ranks, rank), name, n = self._along[axis], value["dims"][dim], shape[dim]
            if name in self.given or not isinstance(name, str):
                parts = [rank] if kind == "shard" else [rank, 2 * ranks - 1 - rank]
                each = -(-n // (len(parts) * ranks))
                shape[dim] = sum(max(0, min(each, n - part * each)) for part in parts)
            else:
                shape[dim] = n // ranks
        return shape

    def parts(self, value, dim):
        """How many ranks share a dimension of a value, each a part of it."""
        return parts(value, dim, self._along)

    def fake(self, torch, tensors):
        """Results without contents."""
        if self._checks is not None:
            check(self._checks, tensors)
        sizes = self.sizes([t.shape for t in tensors])
        results = [self.values[i] for _, i in self.program["results"]]
        return [tensors[0].new_empty(self.local(v, sizes), dtype=dtype(torch, v)) for v in results]

    def infer(self, shapes):
        """Local shapes of the results, from those of the tensors."""
        sizes = Sizes(self._checks._infer([list(shape) for shape in shapes]))
        sizes.rows = self.sizes(shapes).rows
        return [(tuple(self.local(self.values[i], sizes)), self.values[i]) for _, i in self.program["results"]]

    def flops(self, shapes):
        sizes, total = self.sizes(shapes), 0
        for value in self.values:
            if value["op"] == "gemm":
                a, b = (self.local(self.values[i], sizes) for i in value["inputs"])
                rows = a[-1] if value["a_transposed"] else a[0]
                total += 2 * rows * math.prod(b)
        return total

    def says(self, sizes):
        """What every rank of a reference world must say of a call."""
        return {**self._said, "the sizes": ", ".join(f"{name} = {n}" for name, n in sorted(sizes.items()))}

    def by_torch(self, torch, tensors, into=None, out=None):
        """As ``run``, by operations of torch, once every rank of the world has agreed; into results ``out`` of the caller, if they are given."""

        def checked():
            sizes = self._checks._check(*tensors, out=out)
            Experts(self.world.along(axis(self.program)), self.values, lambda value: self.whole(value, sizes)).check(tensors)
            return sizes

        sizes = self.world.agree(checked, self.says)
        whole = lambda value: self.whole(value, sizes)
        move, sequence = self.world.move(whole), self.world.sequence(self.program["axes"], whole)
        experts = Experts(self.world.along(axis(self.program)), self.values, whole).run
        tensors, cut = self._filled(torch, tensors, sizes)
        try:
            results = evaluate(torch, self.program, tensors, move, sequence, experts, widen=True, local=lambda value: self.local(value, sizes))
        except Exception as error:
            # All ranks are here: they find the same, or have their own.
            error._told = True
            raise
        results = cut(results)
        results = [r.clone() if any(r.data_ptr() == t.data_ptr() for t in tensors) else r for r in results]
        if out is not None:
            into = dict(enumerate(out if len(results) > 1 else [out]))
        return [into[i].copy_(r) if into and i in into else r for i, r in enumerate(results)]

    def _filled(self, torch, tensors, sizes):
        """Tensors of this rank's own number of rows with all that it has room for, and what takes the others from results."""
        own = lambda value: value["dims"] and value["dims"][0] in self._own
        if not self._own:
            return tensors, lambda results: results
        rows, filled = None, []
        for value, t in zip(self.parameters, tensors):
            if own(value):
                rows, more = len(t), self.local(value, sizes)[0] - len(t)
                t = torch.nn.functional.pad(t, (0, 0) * (t.dim() - 1) + (0, more), value=0 if t.is_floating_point() else -1)
            filled.append(t)
        values = [self.values[i] for _, i in self.program["results"]]
        return filled, lambda results: [r[:rows] if own(value) else r for value, r in zip(values, results)]

    def run(self, torch, tensors, into=None):
        """New tensors, none of which is an input; but results ``into``, by position, take the place of the given tensors. Where it is several
        kernels, the list ``tensors`` is empty then: each tensor is let go behind the kernel that reads it last."""
        if self._reference:
            return self.by_torch(torch, tensors, into)
        if into:
            return self._cut(torch, tensors, into)
        if self._whole is not None:
            made = self._whole(*tensors)
            return list(made) if isinstance(made, (tuple, list)) else [made]
        shapes = tuple([t.shape for t in tensors])
        alone = self._alone.get(shapes)
        if alone is not None:
            native, order = alone
            made = native(*tensors)
            return [made[i] for i in order] if isinstance(made, (tuple, list)) else [made]
        if self._checks is not None:
            # Before the first of several kernels is launched.
            self._checks._check(*tensors)
        sizes = self.sizes(shapes)
        steps = self.steps(sizes)
        if len(steps) == 1 and steps[0][2] is not None and not steps[0][0]["flat"]:
            step, _, native, _ = steps[0]
            # The whole pipeline, whose results may be in another order.
            results = [i for _, i in self.program["results"]]
            if step["inputs"] == list(range(len(tensors))) and sorted(step["results"]) == sorted(results):
                self._alone[shapes] = native, [step["results"].index(i) for i in results]
        self._prepare(steps, sizes)
        return self._steps_of(torch, steps, sizes, tensors, {})

    def _cut(self, torch, tensors, into):
        sizes = self.sizes([t.shape for t in tensors])
        replaced = {value: into[i] for i, (_, value) in enumerate(self.program["results"]) if i in into}
        steps = self.steps(sizes)
        self._prepare(steps, sizes)
        return self._steps_of(torch, steps, sizes, tensors, replaced)

    def _steps_of(self, torch, steps, sizes, tensors, replaced):
        values = dict(enumerate(tensors))
        taken = {t.data_ptr() for t in tensors} if self._views else set()
        if isinstance(tensors, list):
            tensors.clear()
        for step, program, native, last in steps:
            inputs = [values[i] for i in step["inputs"]]
            for i in last:
                del values[i]
            if native is None:
                made = evaluate(torch, program, inputs)
            else:
                inputs = [t.flatten(-2) if i in step["flat"] else t for i, t in zip(step["inputs"], inputs)]
                out = None
                if any(i in replaced for i in step["results"]):
                    # A view of what is given: a copy would lose what is written.
                    flat = lambda i, t: t.view(*t.shape[:-2], -1) if i in step["flat"] else t
                    out = [flat(i, replaced[i]) if i in replaced else self._empty(torch, i, sizes, i in step["flat"], inputs[0])
                           for i in step["results"]]
                made = native(*inputs) if out is None else native(*inputs, out=out if len(out) > 1 else out[0])
                made = made if isinstance(made, (tuple, list)) else [made]
            for i, tensor in zip(step["results"], made):
                values[i] = tensor.view(self.local(self.values[i], sizes))
        made = [values[i] for _, i in self.program["results"]]
        if not self._views:
            return made
        # Results are new tensors, also where a view is returned.
        return [t.clone() if t.data_ptr() in taken or taken.add(t.data_ptr()) else t for t in made]

    def _prepare(self, steps, sizes):
        """Before the first call with these sizes: on the rank that chooses, all kernels are made at a time, and not each as its call binds it."""
        if id(steps) in self._prepared:
            return
        self._prepared.add(id(steps))  # which self._steps keeps
        kernels = [(step, native) for step, _, native, _ in steps if native is not None]
        if self.world.ranks[0] == 0 and len(kernels) > 1:
            prepare = lambda kernel: kernel[1]._prepare(self.extents(kernel[0], sizes)[0])
            with ThreadPoolExecutor(min(len(kernels), os.cpu_count() or 1)) as pool:
                list(pool.map(prepare, kernels))

    def extents(self, step, sizes):
        """Global shapes of a step's parameters, by name, and the sizes that no tensor has: experts of rows that a route names."""
        values, shapes = _mk._describe(step["text"])["values"], {}
        parameters = [v for v in values if v["op"] == "parameter"]
        for value, i in zip(parameters, step["inputs"]):
            whole = self.whole(self.values[i], sizes)
            shapes[value["name"]] = (*whole[:-2], math.prod(whole[-2:])) if i in step["flat"] else tuple(whole)
        of_tensors = {dim for v in parameters for dim in v["dims"]}
        own = {dim for v in values for dim in v["dims"] if isinstance(dim, str)} - of_tensors
        return shapes, {dim: sizes[dim] for dim in own if dim in sizes}

    def _empty(self, torch, i, sizes, flat, like):
        shape = self.local(self.values[i], sizes)
        if flat:
            shape = [*shape[:-2], math.prod(shape[-2:])]
        return like.new_empty(shape, dtype=dtype(torch, self.values[i]))

    def steps(self, sizes):
        """(step, its description if it is no kernel, its function, the values that it reads last), for these sizes."""
        key = tuple(sorted(sizes.items()))
        steps = self._steps.get(key)
        if steps is None:
            steps = []
            for step in _mk._cut(self.text, self.on, dims=sizes, nodes=self.world._nodes):
                if not step["kernel"]:
                    steps.append([step, _mk._describe(step["text"]), None, []])
                    continue
                shapes, dims = self.extents(step, sizes)
                shapes = shapes if self.given else {}
                at = (step["text"], tuple(sorted(shapes.items())), tuple(sorted(dims.items())))
                if at not in self._native:
                    self._native[at] = _mk.compile(step["text"], self.world, shapes=shapes or None, dims=dims or None, **self.options)
                steps.append([step, None, self._native[at], []])
            kept = {i for _, i in self.program["results"]}
            for step in reversed(steps):
                step[3] = [i for i in dict.fromkeys(step[0]["inputs"]) if i not in kept]
                kept.update(step[3])
            self._steps[key] = steps
        return steps

    def functions(self):
        return list(self._native.values()) + ([] if self._checks is None else [self._checks])


def _said(options):
    """Options that decide a kernel, so that the same ones are the same text."""
    said = {k: v for k, v in options.items() if k in ("settings", "fuse", "overlap", "reserve_sms") and v is not None}
    settings = said.get("settings")
    if settings is not None:
        words = [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, dict) else settings.split()
        said["settings"] = " ".join(sorted(words))
    return repr(sorted(said.items()))


def ready(tensor):
    """A gradient, or what hooks made of a saved tensor, lies as torch likes: as kernels take it, in a copy if need be."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


class Backward:
    """The gradients of some parameters, as one call: its parameters' tensors in, gradients out."""

    def __init__(self, derived, name, world, options):
        self.inputs, self.gradients = derived["inputs"], derived["gradients"]
        self.runner = Runner(derived["backward"], world, options) if derived["backward"] else None
        # Those that have to be computed, in the order of the call's results.
        self.computed = [(p, kind, i) for p, kind, i in self.gradients if kind != "given"]
        self.name = f"{name} backward"
        # Parameters whose gradients are added to f32 matrices, with the results that those become; and the other gradients.
        self.added = [(p, i) for p, kind, i in self.gradients if ("main", p) in self.inputs]
        self.returned = [g for g in self.computed if ("main", g[0]) not in self.inputs]
        # Ones on the GPU, by dtype: what was made, and a view of the most. Graphs that were captured read the smaller ones.
        self._ones = {}

    def operands(self, torch, parameters, results, gradients):
        """What the call takes: ``gradients`` are those of results."""
        values = self.runner.parameters
        operands = []
        for (kind, i), value in zip(self.inputs, values):
            if kind == "gradient":
                operands.append(gradients[i].to(dtype(torch, value)).contiguous())
            elif kind not in ("ones", "main"):
                operands.append(parameters[i] if kind == "parameter" else results[i])
        return operands

    def _of_ones(self, torch, dtype, shape, like):
        """A tensor of ones: on a GPU it is made once, and no kernel fills it at each call."""
        n, bits = math.prod(shape), {torch.bfloat16: 0x3F803F80, torch.float16: 0x3C003C00, torch.float32: 0x3F800000}
        if not like.is_cuda or dtype not in bits or n == 0 or isinstance(like, torch._subclasses.FakeTensor):
            return like.new_ones(shape, dtype=dtype)
        made = self._ones.setdefault(dtype, [])
        if not made or made[-1].numel() < n:
            words = max(1024, 1 << (n * dtype.itemsize // 4).bit_length())
            made.append(torch.as_tensor(_mk._Constant(self.runner.world, bits[dtype], words), device=like.device).view(dtype))
        return made[-1][:n].view(shape)

    def _filled(self, torch, tensors, into=()):
        """With the ones, and the matrices that are added to, in their places."""
        tensors, filled = iter(tensors), []
        mains = {p: t for (p, _), t in zip(self.added, into)}
        for kind, i in self.inputs:
            filled.append(None if kind == "ones" else mains[i] if kind == "main" else next(tensors))
        if any(kind == "ones" for kind, _ in self.inputs):
            known = [(v, t.shape) for v, t in zip(self.runner.parameters, filled) if t is not None]
            sizes = Sizes(self.runner.given)
            for value, shape in known:
                for i, (dim, n) in enumerate(zip(value["dims"], shape)):
                    if dim in self.runner._own:
                        self.runner._count(sizes, dim, n)
                    elif isinstance(dim, str):
                        sizes.setdefault(dim, n * self.runner.parts(value, i))
            like = next(t for t in filled if t is not None)
            for i, (kind, _) in enumerate(self.inputs):
                if kind == "ones":
                    value = self.runner.parameters[i]
                    filled[i] = self._of_ones(torch, dtype(torch, value), self.runner.local(value, sizes), like)
        return filled

    def run(self, torch, tensors, into=(), out=(), frees=False):
        """Gradients that are computed, but for those that are added to the matrices ``into``; in ``out``, if that is given. With ``frees`` the
        list ``tensors`` is emptied, and nothing here keeps them longer than kernels need them."""
        given, tensors = tensors, [ready(t) for t in tensors]
        if frees:
            given.clear()
        replaced = {i: t for (_, i), t in zip(self.added, into)}
        for (_, kind, i), tensor in zip(self.returned, out):
            if kind != "rows":
                replaced.setdefault(i, tensor.unsqueeze(0) if kind == "row" else tensor)
        filled = self._filled(torch, tensors, into)
        tensors.clear()
        made, taken = self.runner.run(torch, filled, replaced), set()
        gradients = []
        for parameter, kind, i in self.returned:
            gradient = made[i].select(("row", "rows").index(kind), 0) if kind in ("row", "rows") else made[i]
            # Two parameters may have one gradient, and results of a call share nothing.
            gradients.append(gradient.clone() if (kind, i) in taken else gradient)
            taken.add((kind, i))
        for gradient, tensor in zip(gradients, out):
            if gradient.data_ptr() != tensor.data_ptr():
                tensor.copy_(gradient)
        return gradients

    def fake(self, torch, tensors, into=()):
        made = self.runner.fake(torch, self._filled(torch, tensors, into))
        part = lambda kind, t: t.new_empty(t.shape).select(1, 0) if kind == "rows" else t.new_empty(t.shape[1:] if kind == "row" else t.shape)
        return [part(kind, made[i]) for _, kind, i in self.returned]

    def flops(self, shapes):
        shapes, every = iter(shapes), []
        for (kind, _), value in zip(self.inputs, self.runner.parameters):
            every.append(None if kind in ("ones", "main") else next(shapes))
        sizes = {}
        for value, shape in zip(self.runner.parameters, every):
            if shape is not None:
                sizes.update((dim, n) for dim, n in zip(value["dims"], shape) if dim not in sizes)
        for i, value in enumerate(self.runner.parameters):
            if every[i] is None and self.inputs[i][0] == "main":
                # As large as the product that is added to it, whose operands' sizes are known.
                every[i] = self._main_shape(value, every)
            elif every[i] is None:
                every[i] = tuple(sizes.get(dim, dim if isinstance(dim, int) else 0) for dim in value["dims"])
        return self.runner.flops(every)

    def _main_shape(self, value, shapes):
        sizes = {}
        for known, shape in zip(self.runner.parameters, shapes):
            if shape is not None:
                sizes.update(zip(known["dims"], shape))
        return [sizes.get(d, d if isinstance(d, int) else 1) for d in value["dims"]]

    def functions(self):
        return self.runner.functions() if self.runner else []
