"""mk as a contestant: the whole row as one kernel, and, for chains, as several.

Settings of a kernel are a dict of names to text, as `Plan.settings` has them and `mk.compile` takes them; none leaves them to mk.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import contestant
import mk

# Names of the two contestants.
FUSED, SEPARATE = "mk", "mk, two kernels"


def settings_of(config, key):
    """Settings of a row's fused kernel, from a parsed config file: ``{"ROW": {"block": "128x128x64", …}}``. ValueError for others."""
    return checked(config.get(key, {}), key)


def checked(settings, key):
    """The same settings. ValueError for names that are none: mk.compile says it of values."""
    known = [s.name for s in mk.SETTINGS]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(f"{key}: there is no setting {', '.join(unknown)}; the settings are {', '.join(known)}")
    return settings


def given(row, name, world, config, stored=None):
    """Settings of each kernel of a contestant: those ``stored`` with a row of a result, else those of a config file,
    which are the fused kernel's. ValueError for settings that are none, or of another number of kernels."""
    kernels = 1 if name == FUSED else len(row.separate(world))
    if stored is None:
        return [settings_of(config, row.key)] if name == FUSED else [{}] * kernels
    found = next((r["settings"] for r in stored["results"] if r["name"] == name), None)
    if found is None:  # it was missing in that run
        return [{}] * kernels
    if len(found) != kernels:
        raise ValueError(f"{row.key}: {name} was made of {len(found)} kernels, and settings are given to {kernels}")
    return [checked(settings, row.key) for settings in found]


def compile_ahead(rows, rank, world, given):
    """Compiles this rank's share of all kernels into the disk cache, several at a time; binding then finds them there.
    ``given(row, contestant)`` has the settings of each kernel of a contestant."""

    def one(kernel, settings):
        try:
            plan = mk.compile(kernel.pipeline, mk.World.offline(world), settings=settings).bind(shapes=kernel.shapes)
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
    """The row as one kernel, with its settings. Collective."""
    f = mk.compile(row.kernel(world.size).pipeline, world, fuse="always", settings=given[0])
    plan = f.bind(shapes=row.kernel(world.size).shapes)
    out = result()

    def run(i):
        return f(*inputs.sets[i], out=out)

    return contestant.Contestant(FUSED, contestant.OURS, run, [out], f.check, roles(plan), settings([plan]), plan.predicted_ms), [f]


def separate(row, inputs, world, result, given):
    """A chain as two kernels, with the settings of each. Collective."""
    first, second = row.separate(world.size)
    f, g = (mk.compile(kernel.pipeline, world, settings=one) for kernel, one in zip((first, second), given))
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
