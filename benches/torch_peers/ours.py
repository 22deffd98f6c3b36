"""mk as a contestant: the whole row as one kernel, and, for chains, as several.

Settings of a kernel are a dict of names to text, as `Plan.settings` has them; keyword arguments are those of `mk.compile`.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import contestant
import mk

# Names of the two contestants.
FUSED, SEPARATE = "mk", "mk, two kernels"

# What a config file may set, by mk.compile's keyword.
OPTIONS = "sms block consumers group_rows chunk_bytes k_slices gather all_reduce sums split_k tail tile_schedule".split()


def options(config, key):
    """Keyword arguments for a row, from a parsed config file: ``{"ROW": {"sms": {…}, …}}``. ValueError for others."""
    given = config.get(key, {})
    unknown = set(given) - set(OPTIONS)
    if unknown:
        raise ValueError(f"{key}: no option {', '.join(sorted(unknown))}; there are {', '.join(OPTIONS)}")
    return {name: tuple(value) if name == "block" else value for name, value in given.items()}


def keywords(settings):
    """Keyword arguments that fix the settings of a kernel. ValueError for a setting that is none."""
    out = {}
    for name, text in settings.items():
        if name == "intra_comm":
            out["sms"] = {name: int(text)}
        elif name not in OPTIONS:
            raise ValueError(f"no setting {name}; there are intra_comm, {', '.join(OPTIONS)}")
        elif name == "block":
            out[name] = tuple(int(n) for n in text.split("x"))
        elif text != "none":
            out[name] = int(text) if text.isdigit() else text
    return out


def given(row, name, world, config, stored=None):
    """Keyword arguments for each kernel of a contestant: those ``stored`` with a row of a result, else those of a config file,
    which are the fused kernel's. ValueError for settings that are none, or of another number of kernels."""
    kernels = 1 if name == FUSED else len(row.separate(world))
    if stored is None:
        return [options(config, row.key)] if name == FUSED else [{}] * kernels
    found = next((r["settings"] for r in stored["results"] if r["name"] == name), None)
    if found is None:  # it was missing in that run
        return [{}] * kernels
    if len(found) != kernels:
        raise ValueError(f"{row.key}: {name} was made of {len(found)} kernels, and settings are given to {kernels}")
    return [keywords(settings) for settings in found]


def compile_ahead(rows, rank, world, given):
    """Compiles this rank's share of all kernels into the disk cache, several at a time; binding then finds them there.
    ``given(row, contestant)`` has keyword arguments for each kernel of a contestant."""

    def one(kernel, keywords):
        try:
            plan = mk.compile(kernel.pipeline, mk.World.offline(world), **keywords).bind(shapes=kernel.shapes)
            plan.compile()
        except mk.Error:
            pass  # the row itself says what is wrong

    work = []
    for row in rows:
        work += list(zip([row.kernel(world)], given(row, FUSED)))
        work += list(zip(row.separate(world), given(row, SEPARATE)))
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // world))) as pool:
        list(pool.map(lambda item: one(*item), work[rank::world]))
    return len(work)


def fused(row, inputs, world, result, given):
    """The row as one kernel, with keyword arguments for it. Collective."""
    f = mk.compile(row.kernel(world.size).pipeline, world, fuse="always", **given[0])
    plan = f.bind(shapes=row.kernel(world.size).shapes)
    out = result()

    def run(i):
        return f(*inputs.sets[i], out=out)

    return contestant.Contestant(FUSED, contestant.OURS, run, [out], f.check, roles(plan), settings([plan])), [f]


def separate(row, inputs, world, result, given):
    """A chain as two kernels, with keyword arguments for each. Collective."""
    first, second = row.separate(world.size)
    f, g = (mk.compile(kernel.pipeline, world, **more) for kernel, more in zip((first, second), given))
    plans = [f.bind(shapes=first.shapes), g.bind(shapes=second.shapes)]
    out = result()
    # The first kernel's result: all rows, and the columns that the second one's weight has rows.
    hidden = out.new_empty(row.m, inputs.sets[0][-1].shape[0])

    def run(i):
        first_arguments = inputs.sets[i][:-1]
        return g(f(*first_arguments, out=hidden), inputs.sets[i][-1], out=out)

    def after():
        f.check()
        g.check()

    note = "; ".join(roles(p) for p in plans)
    return contestant.Contestant(SEPARATE, contestant.SEPARATE, run, [out, hidden], after, note, settings(plans)), [f, g]


def settings(plans):
    """Those of each kernel, in the order of launches."""
    return [kernel for plan in plans for kernel in plan.settings]


def roles(plan):
    """``compute 124, intra_comm 8``."""
    return ", ".join(f"{name} {ctas}" for name, ctas in plan.roles.items() if ctas)
