"""Ways to cut an op: those that the rules allow of a call, and those that are left by its views.

A rule binds to a call and gives a :class:`Pattern`: which axes of its tensors are one dimension.
Axes that views take apart are written as products of *factors* (:mod:`.factors`). What the parts of
an op need and give is then said in factors, which survive reshapes: a :class:`Form`.

A *spec* says how a tensor lies on one axis of a mesh. It is one number: a factor of the tensor
(from 0), which is sharded, or one of the negative words below.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Every device has the whole tensor (DTensor's ``Replicate``).
REPLICATE = -1
#: The tensor is the sum of what the devices have (DTensor's ``Partial``).
PARTIAL = -2
#: Of a reader: its result does not depend on the values, only on the shape.
ANY = -3
#: Every device has an equal part of the storage, by flat index, of a parameter or its state.
FLAT = -4
#: One device has the whole tensor, another one per parameter or expert: of a parameter, its state,
#: or what an expert makes.
OWNER = -5
#: Every device has the rows that an index picks of entries which it has: as many, on average.
PICKED = -6

#: A factor of a tensor: the axis that it is a part of, and its size.
Factor = tuple[int, int]


@dataclass(frozen=True)
class Meaning:
    """The effect of cutting an op along one of its dimensions.

    Attributes
    ----------
    exchanged : int
        Bytes that the parts all-reduce while they run, such as the sums of a layer norm. What lacks
        the dimension is then whole on every device. 0: nothing, and it is a sum over the parts.
    is_mean : bool
        Whether the op divides by the length of the dimension: what a part makes counts by its
        share, be it summed or joined.
    works : bool
        Whether the parts share the FLOPs. Else each part does all of them.
    halos : tuple of (int, int)
        Per argument, how much of the dimension a part needs before and after its own. Empty: none.
    steps : tuple of int
        Where there are halos, per argument and then per output, how many of its positions are one
        of the dimension: part [a, b) of an argument is [a * step - before, b * step + after).
        The last part goes on to the end. Empty: one each.
    sends : tuple of (int, int)
        Positions of the dimension, and those that what stands there is sent to: each part gets what
        is sent to its own positions. Such a dimension is cut as a whole axis alone.
    least : int
        Parts must be multiples of so much, such as the channels of a group, on the shortest axis.
        If axes differ in length without a period, parts have the same shares of all of them: 8
        heads of keys beside 32 of queries.
    period : int
        Axes of this dimension need not be of one size: each is a whole number of periods, and the
        dimension is the place within the period. Slices and concatenations that begin and end at
        periods have it: 3 x 1024 that is split into three of 1024. 0: all axes are of one size, or
        they are one dimension only as a whole, such as what a convolution with strides makes.
    picked : tuple of int
        Tensors of the call, arguments then outputs, that lack the dimension and whose rows an index
        picks of it: a part needs, or makes, the rows of its own entries.
    """

    exchanged: int = 0
    is_mean: bool = False
    works: bool = True
    halos: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, ...] = ()
    sends: tuple[tuple[int, int], ...] = ()
    least: int = 1
    period: int = 0
    picked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisPart:
    """A part of an axis that is a dimension: its strides from ``low`` to below ``high``.

    ``tensor`` counts arguments, then outputs.
    """

    dimension: int
    tensor: int
    axis: int
    low: int
    high: int


@dataclass(frozen=True)
class Pattern:
    """The dimension of an op that each axis of its tensors is.

    Attributes
    ----------
    words : tuple of str
        Names of the dimensions, unique in the op: "row", "column", "contraction", "axis0".
    meanings : tuple of Meaning
        Per dimension.
    inputs : tuple of (None or tuple of int)
        Per tensor argument of the call and per axis, the dimension that it is; -1: an axis that is
        never cut, such as one of size 1 that is broadcast. None: the values do not matter.
    outputs : tuple of tuple of int
        The same per output.
    linear : tuple of tuple of int
        Sets of arguments in which the op is linear: if all of a set are partial sums and no other
        argument is, the outputs are partial sums. Every part then does all the work. An argument
        that is in a set with one that is cut, and that lacks the dimension, is an addend: it must
        be a partial sum where the outputs are, such as the bias of a product cut by contraction.
    is_reshape : bool
        Whether the first output has the elements of the first argument in the same order, in
        another shape. Dimensions then are those of the other axes, if any.
    pieces : tuple of AxisPart
        Dimensions that are parts of axes, beside those of whole axes.
    """

    words: tuple[str, ...]
    meanings: tuple[Meaning, ...]
    inputs: tuple[tuple[int, ...] | None, ...]
    outputs: tuple[tuple[int, ...], ...]
    linear: tuple[tuple[int, ...], ...] = ()
    is_reshape: bool = False
    pieces: tuple[AxisPart, ...] = ()


@dataclass(frozen=True)
class Cut:
    """One way in which devices share the work of an op.

    Attributes
    ----------
    name : str
        Unique in the op: the word of its dimension, with ".1", ".2" for further factors of it;
        "partial": every part does all the work on partial sums.
    role : str
        What the dimension is in the model: "batch", "token", "feature", "head", "expert",
        "spatial", "parameter"; empty: not known.
    size : int
        The most parts that there can be: the size of the factor; 0: any number.
    inputs : tuple of int
        The spec that each argument must have.
    outputs : tuple of int
        The spec that each output then has.
    works, exchanged, is_mean, halos, steps, sends
        See :class:`Meaning`.
    """

    name: str
    role: str
    size: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    works: bool = True
    exchanged: int = 0
    is_mean: bool = False
    halos: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, ...] = ()
    sends: tuple[tuple[int, int], ...] = ()

    @property
    def shares_experts(self) -> bool:
        """True if each part does the work of some experts: all tensors are theirs alone. The scores
        that a router makes are of every token.
        """
        is_theirs = self.role == "expert" and self.works and not self.exchanged
        return is_theirs and all(spec >= 0 or spec == ANY for spec in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class Form:
    """All ways to cut an op, and the factors of its tensors.

    Attributes
    ----------
    cuts : tuple of Cut
    inputs, outputs : tuple of tuple of Factor
        The factors of each argument and of each output, major to minor.
    reads_values : bool
        Whether it matters what is in any argument: to ``zeros_like`` only its sizes do.
    """

    cuts: tuple[Cut, ...]
    inputs: tuple[tuple[Factor, ...], ...]
    outputs: tuple[tuple[Factor, ...], ...]
    reads_values: bool = True


def part_sizes(size: int, k: int) -> list[int]:
    """Sizes of ``k`` parts of a factor: equal, but for one more in each of the first ``size % k``.

    >>> part_sizes(10, 4)
    [3, 3, 2, 2]
    """
    return [size // k + (j < size % k) for j in range(k)]
