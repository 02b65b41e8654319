"""Times of ops as kernels were measured to take: a surface per family, dtype and device type.

``kinds`` says which kernels an op is, ``works`` how large it is, ``cutting`` how large a part of it
is. ``surface`` interpolates between measured sizes, ``tables`` has what was measured, ``kin`` which
device type stands in for another, and ``seconds`` puts them together. The rest are families, a file
each.
"""
