"""The machine at hand, or one that is thought of, as a cluster.

``types.toml`` and ``links.toml`` have the figures of devices and links that are known.
``nvidia.py``, ``amd.py`` and ``host.py`` read what tools and the system say of a machine, each from
text alone; ``detected.py`` makes a cluster of it, ``described.py`` one of a few words.
"""
