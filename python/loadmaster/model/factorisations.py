"""Devices in grids: the sizes of axes whose product is a number of devices.

Every planner that divides devices into axes asks here, and says by a bound which beginnings of a
factorisation are of use to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import gcd


def divisors(n: int) -> list[int]:
    """The divisors of a number, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [k for k in range(1, n + 1) if n % k == 0]


def halvings(n: int) -> list[int]:
    """A number, its half and so on down to 1, rounded down.

    >>> halvings(12)
    [12, 6, 3, 1]
    """
    return [n >> i for i in range(n.bit_length())]


def sharing_more(n: int, batch: int) -> list[int]:
    """The numbers from n down that share a batch equally among more devices than all before them.

    More devices cut the same work into smaller parts. Fewer are of use only where they divide the
    batch better.

    >>> sharing_more(12, 8), sharing_more(8, 8), sharing_more(7, 8)
    ([12, 8], [8], [7, 6, 4])
    """
    most, numbers = 0, []
    for number in range(n, 0, -1):
        if gcd(number, batch) > most:
            most = gcd(number, batch)
            numbers.append(number)
    return numbers


def fewer_devices(n: int, batch: int, hosts: Sequence[int] = ()) -> list[int]:
    """The numbers of devices to plan for where there are n, the most first: all, half of them,
    whole hosts, those that share a batch better than more do, and what there is to plan for on each
    of these. One alone is left out.

    ``hosts``: the numbers of devices of the first host, of the first two, and so on.

    >>> fewer_devices(12, 8), fewer_devices(8, 8), fewer_devices(1, 8)
    ([12, 8, 6, 4, 3, 2], [8, 4, 2], [])
    >>> fewer_devices(8, 8, [3, 6, 8])
    [8, 6, 4, 3, 2]
    """
    numbers, left = set[int](), [n]
    while left:
        number = left.pop()
        if number > 1 and number not in numbers:
            numbers.add(number)
            left += [number // 2, *sharing_more(number, batch), *_whole_hosts(number, hosts)]
    return sorted(numbers, reverse=True)


def _whole_hosts(number: int, hosts: Sequence[int]) -> list[int]:
    """The most devices of whole hosts below a number; of whole hosts half of these, rounded up."""
    whole = [end for end in hosts if end <= number]
    if number in whole:
        whole = whole[: (len(whole) + 1) // 2]
    return whole[-1:]


def factorisations(
    numbers: Iterable[int], axes: int, may: Callable[[tuple[int, ...]], bool] = lambda sizes: True
) -> Iterator[tuple[int, ...]]:
    """Every way to write numbers of devices as a product of sizes of axes, in order.

    Parameters
    ----------
    numbers : iterable of int
        Numbers of devices, each taken when it is its turn.
    axes : int
        How many axes there are, 1 or more. An axis may be of one device.
    may : callable
        The bound. It is asked of every beginning of a factorisation: of the first size, of the
        first two, and so on. Nothing that begins so is made where it says no.

    Yields
    ------
    tuple of int [axes]
        By number as they are given, then by the first size ascending, then by the second.

    Examples
    --------
    >>> list(factorisations([4, 3], 2))
    [(1, 4), (2, 2), (4, 1), (1, 3), (3, 1)]
    >>> list(factorisations([8], 3, lambda sizes: sizes[0] <= 2))
    [(1, 1, 8), (1, 2, 4), (1, 4, 2), (1, 8, 1), (2, 1, 4), (2, 2, 2), (2, 4, 1)]
    """
    for number in numbers:
        yield from _begun(number, axes, (), may)


def _begun(
    left: int, axes: int, sizes: tuple[int, ...], may: Callable[[tuple[int, ...]], bool]
) -> Iterator[tuple[int, ...]]:
    """The factorisations that begin with some sizes, of which a number is left."""
    for size in divisors(left) if axes > 1 else [left]:
        begun = (*sizes, size)
        if not may(begun):
            continue
        if axes > 1:
            yield from _begun(left // size, axes - 1, begun, may)
        else:
            yield begun
