"""Instances to compare methods on: graphs with clusters, and what is known of their shortest steps.

======================  ==========================================================================
``planted/...``         a schedule without idle time was planted, so that the optimum is known;
                        any size, CCR and seed
``scheduling/...``      groups of ops, memory tight or not; best makespans of long searches,
                        optima proved by a solver for those of 20 groups
``measured/...``        models whose ops and links were measured on four types of GPUs
``models/...``          traced models on presets: any example on any preset
======================  ==========================================================================

>>> import loadmaster as lm
>>> found = lm.instances.load("scheduling/n20-lstm-K4-hom-ccr1-tight")
>>> found.graph.n_ops, found.cluster.n_devices, found.optimum
(20, 4, 0.024146)
>>> lm.place(found.graph, found.cluster, "heft").makespan >= found.optimum
True
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

from loadmaster.readers.instances.instance import Instance

__all__ = ["Instance", "load", "names"]


def names(pattern: str = "*", folder: str | os.PathLike[str] | None = None) -> list[str]:
    """Names of instances, as :func:`load` takes them.

    Parameters
    ----------
    pattern : str
        A glob, such as ``"scheduling/n20-*"``.
    folder : path, optional
        A folder of yours: its instances instead of those that come along. It has graphs in any
        format that :func:`loadmaster.read` reads. ``NAME.cluster.toml`` beside a graph is its
        cluster; a file of SAGA has its own; other graphs are listed on two presets.

    Raises
    ------
    InputError
        A folder that cannot be read.

    Examples
    --------
    >>> names("measured/*")
    ['measured/googlenet', 'measured/transformer']
    """
    if folder is not None:
        from loadmaster.readers.instances import folder as own

        every = own.names(folder)
    else:
        from loadmaster.readers.instances import builtin

        every = builtin.names()
    return [name for name in every if fnmatchcase(name, pattern)]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Instance:
    """The instance of a name: one that is listed, or another of the same form.

    Parameters
    ----------
    name : str
        ``"planted/OPSxDEVICES-ccrCCR-SEED"`` with any numbers, ``"models/EXAMPLE@PRESET"`` with any
        example and preset, ``"scheduling/..."`` or ``"measured/..."`` as :func:`names` lists them.
    folder : path, optional
        The folder that has it. There ``"NAME@CLUSTER"`` puts a graph on a preset or a TOML file.

    Raises
    ------
    InputError
        No such instance; the way names are made is said.

    Examples
    --------
    >>> load("planted/100x4-ccr1-7").optimum
    0.025
    """
    if folder is not None:
        from loadmaster.readers.instances import folder as own

        return own.load(name, folder)
    from loadmaster.readers.instances import builtin

    return builtin.load(name)
