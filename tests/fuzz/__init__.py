"""Fuzzing: random inputs, each of which ends in a result or in an error of Loadmaster's own.

By hand, until the minutes are over: ``python -m tests.fuzz --minutes 10 --only onnx``. In
continuous integration ``test_targets.py`` runs a fixed number of inputs of every target.

A module of this folder adds a target by decorating a function that runs one input::

    @target("name", in_ci=200)
    def one(random: Random) -> None: ...

``counts.toml`` keeps how many inputs of each target were ever run by hand.
"""
