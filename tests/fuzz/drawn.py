"""Arguments for the functions of ``loadmaster.fast``: arrays of any type, shape and value.

Most arrays have the right type and length, so that values reach the algorithms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from random import Random
from threading import Timer
from typing import Any

import numpy as np

from loadmaster import fast

_SIZES = [0, 1, 3, 8, 2**20, 2**31, 2**32, 2**53, 2**62, 2**63 - 1]
_IDS = [-(2**63), -(2**31), -2, -1, 2**31 - 1, 2**31, 2**62, 2**63 - 1]
_TIMES = [0.0, -0.0, 1.0, 1e-9, 1e-18, 5e-324, 1e9, 1e300, 1.7e308, -1.0, np.inf, -np.inf, np.nan]
_TYPES = [
    "i1",
    "i4",
    "i8",
    "u1",
    "u4",
    "u8",
    "f4",
    "f8",
    ">f8",
    ">i8",
    "?",
    "c16",
    "U1",
    "O",
    "M8[s]",
]
_COUNTS = (0, 5, 2**16, 2**31, 2**40, 2**63 - 1, 2**64, -1)
_POLICIES = ["priority", "fixed", "fifo", "random"] * 4 + ["x"]


class Draw:
    """Arguments of calls, for a graph of so many ops."""

    def __init__(self, random: Random) -> None:
        self.random, self.n = random, random.choice((1, 2, 3, 5, 9))

    def length(self) -> int:
        return self.random.choice([self.n] * 60 + [0, 1, self.n + 1])

    def odd(self, array: np.ndarray) -> Any:
        """The array; seldom of another type, shape or layout."""
        match self.random.randrange(200):
            case 0:
                with np.errstate(all="ignore"), contextlib.suppress(ValueError, TypeError):
                    return array.astype(self.random.choice(_TYPES))
                return array
            case 1:
                return array.reshape(-1, 1)
            case 2:
                return np.repeat(array, 2)[::2]
            case 3:
                return array[::-1]
            case 4:
                return np.array(7)
            case 5:
                array.flags.writeable = False
        return array

    def some(self, usual: Callable[[], Any], extreme: list[Any], kind: str) -> Any:
        """An array of usual values, some of which may be extreme."""
        values = [usual() for _ in range(self.length())]
        if values and self.random.random() < 0.1:
            for _ in range(self.random.randint(1, 3)):
                values[self.random.randrange(len(values))] = self.random.choice(extreme)
        return self.odd(np.array(values, dtype=kind))

    def ids(self, most: int | None = None) -> Any:
        top = self.n - 1 if most is None else most
        kind = self.random.choice(("i4", "i8", "i8"))
        extreme = _IDS if kind == "i8" else [v for v in _IDS if -(2**31) <= v < 2**31]
        return self.some(lambda: self.random.randint(0, max(top, 0)), extreme, kind)

    def order(self) -> Any:
        """Ops in the order of the graph, or anything."""
        if self.random.random() < 0.8:
            return np.arange(self.n)
        shuffled = self.random.sample(range(self.n), self.n)
        return self.odd(np.array(shuffled)) if self.random.random() < 0.5 else self.ids()

    def sizes(self) -> Any:
        kind = self.random.choice(("u8", "i8"))
        return self.some(lambda: self.random.choice((0, 1, 4, 100)), _SIZES, kind)

    def times(self) -> Any:
        return self.some(lambda: self.random.choice((0.0, 1.0, 0.5, 1e-3)), _TIMES, "f8")

    def shares(self) -> Any:
        return self.some(lambda: self.random.choice((1.0, 0.5)), _TIMES, "f8")

    def number(self) -> float:
        return self.random.choice(_TIMES)

    def count(self) -> int:
        return self.random.choice((1, 2, 2, 3) * 4 + _COUNTS)

    def maybe(self, draw: Callable[[], Any]) -> Any:
        return draw() if self.random.random() < 0.6 else None

    def flags(self) -> Any:
        return self.odd(np.array([self.random.random() < 0.5 for _ in range(self.n)], dtype=bool))

    def column(self, values: Iterable[int], kind: str = "i8") -> np.ndarray:
        return np.array(list(values), dtype=kind)

    def some_pairs(self, firsts: int, seconds: int) -> tuple[np.ndarray, np.ndarray]:
        """A few pairs of numbers below two."""
        ends = [
            (self.random.randrange(firsts), self.random.randrange(seconds))
            for _ in range(self.random.randrange(4) if firsts and seconds else 0)
        ]
        return self.column(a for a, _ in ends), self.column(b for _, b in ends)

    # -- calls

    def called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a good call, or of one with a wild argument."""
        if self.random.random() < 0.4 and (args or kwargs):
            args, kwargs = self.wild((args, kwargs))
        return function(*args, **kwargs)

    def wild(self, value: Any) -> Any:
        """A value with one part of it as nobody would give it."""
        random = self.random
        match value:
            case tuple() | list() if value:
                at = random.choice([i for i, v in enumerate(value) if not _is_empty(v)] or [0])
                return type(value)([*value[:at], self.wild(value[at]), *value[at + 1 :]])
            case dict() if value:
                at = random.choice(list(value))
                return value | {at: self.wild(value[at])}
            case bool() | None:
                return value
            case int():
                return random.choice(_COUNTS)
            case float():
                return random.choice(_TIMES)
            case str():
                return random.choice(("", "x", "(", value * 2, "\0", "\ud800"))
            case np.ndarray():
                return self.wild_array(value)
        return value

    def wild_array(self, array: np.ndarray) -> Any:
        extreme: list[Any] = {"i": _IDS, "u": _SIZES, "f": _TIMES}.get(array.dtype.kind, [])
        match self.random.randrange(4):
            case 0:
                return np.concatenate([array, array[:1]])
            case 1:
                return array[:-1]
            case 2 if array.size and extreme:
                changed = array.copy()
                with contextlib.suppress(OverflowError):
                    changed.flat[self.random.randrange(array.size)] = self.random.choice(extreme)
                return changed
            case _ if array.dtype.kind not in "bc":
                with np.errstate(all="ignore"):
                    return array.astype(self.random.choice(("i4", "i8", "u8", "f8", "?", "O")))
        return array.reshape(1, -1)

    # -- what calls work on

    def graph(self) -> fast.Graph:
        """A graph, most often a good one with edges from smaller ops to larger ones."""
        n, random = self.n, self.random
        if random.random() < 0.05:
            src, dst = self.ids(), self.ids()
        else:
            pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
            pairs = [pair for pair in pairs if random.random() < 0.4]
            src = np.array([a for a, _ in pairs], dtype="i4")
            dst = np.array([b for _, b in pairs], dtype="i4")
        columns = {
            name: draw()
            for name, draw in {
                "tensor_bytes": self.sizes,
                "resident": self.sizes,
                "workspace": self.sizes,
                "output_bytes": self.sizes,
                "colocation": lambda: self.some(lambda: random.randint(-1, 2), _IDS, "i8"),
                "allowed": lambda: self.some(lambda: 3, [1, 2, 0, 2**63 - 1], "u8"),
            }.items()
            if random.random() < 0.15
        }
        return fast.Graph(n, src, dst, **columns)

    def cluster(self) -> fast.Cluster:
        random = self.random
        if random.random() < 0.9:
            return _TWO
        devices = [
            (
                random.choice("abc"),
                random.choice(("gpu", "cpu")),
                random.choice((0, 100, 2**63 - 1)),
            )
            for _ in range(random.randint(0, 3))
        ]
        links = [
            (a, b, self.number(), self.number(), random.choice(([], ["bus"])))
            for a in "abc"
            for b in "abc"
            if a != b
        ]
        return fast.Cluster(devices, links)

    def cluster_parts(self) -> tuple[Any, ...]:
        """Devices, links, tables of collectives and costs of sending."""
        points, busy = [(1000, 1e-5), (2000, 2e-5)], [1e-6, 1e-6]
        tables = [(fast.COLLECTIVES[0], 1, 2, points, busy)]
        return _DEVICES, _LINKS, tables, [("gpu", 1e-6, 1e9)], False

    def problem(self) -> fast.Problem:
        cluster = self.cluster()
        times = self.times()
        if len(cluster.types) > 1 and self.random.random() < 0.9:
            times = np.repeat(times.reshape(-1, 1), len(cluster.types), axis=1)
        problem = fast.Problem(self.graph(), cluster, times)
        random = self.random
        if random.random() < 0.4:
            capacity = np.array([random.choice((50, 2**40, *_SIZES)) for _ in range(2)], dtype="u8")
            problem = problem.within(
                capacity=self.maybe(lambda: capacity),
                op_bytes=self.maybe(self.sizes),
                best_effort=random.choice((None, True, False)),
            )
        if random.random() < 0.1:
            problem = problem.led_by(self.ids())
        if random.random() < 0.1:
            problem = problem.restricted(self.sizes())
        return problem.without_contention() if random.random() < 0.1 else problem

    def weights(self) -> fast.Weights:
        return fast.Weights(
            self.graph(),
            self.times(),
            self.maybe(self.times),
            control_time=self.random.choice((0.0,) * 9 + (self.number(),)),
            op_bytes=self.maybe(self.sizes),
        )

    def limits(self) -> dict[str, Any]:
        return {"max_time": self.maybe(self.number), "max_bytes": self.maybe(self.count)}

    def devices(self) -> Any:
        return self.ids(1)

    def stop(self, counts: str) -> fast.Stop:
        return fast.Stop(
            **{counts: self.random.choice((0, 1, 100))},
            patience=self.maybe(self.count),
            target=self.random.choice((0.0, 0.0, 1.0, self.number())),
        )

    def pairs(self) -> tuple[Any, Any]:
        """Ends of edges, no edge from a vertex to itself."""
        ends = [self.random.sample(range(self.n), 2) for _ in range(self.n if self.n > 1 else 0)]
        src, dst = np.array(ends, dtype="i8").reshape(-1, 2).T
        return self.odd(src.copy()), self.odd(dst.copy())

    def searched(self) -> dict[str, Any]:
        few = [1, 1, 2, 2, 0]
        return {
            "seed": self.maybe(self.count),
            "chains": self.random.choice(few),
            "threads": self.random.choice(few),
        }

    def simulated(self) -> dict[str, Any]:
        return {
            "policy": self.random.choice(_POLICIES),
            "link_order": self.random.choice(("fifo", "priority", "fifo", "priority", "x")),
            "seed": self.maybe(self.count),
        }

    # -- running

    def board(self, devices: int = 2) -> fast.Board:
        """A board of two arrivals and of a task per op."""
        words = fast.Board.words(devices, 2, self.n)
        return self.called(fast.Board, *(np.zeros(n, dtype="u8") for n in words))

    def part(self, devices: int = 2) -> fast.Part:
        """The part of device 0."""
        src, dst = self.some_pairs(self.n, self.n)
        order = np.minimum(src, dst)[src != dst], np.maximum(src, dst)[src != dst]
        waits = self.some_pairs(2, self.n) if self.random.random() < 0.3 else self.some_pairs(0, 0)
        tasks = np.arange(self.n), np.arange(self.n, dtype="i4"), self.flags()
        sends = self.some_pairs(2, devices)
        return self.called(
            fast.Part, 0, tasks, order, waits, sends, fixed=self.random.random() < 0.3
        )

    def dispatcher(self, board: fast.Board, devices: int = 2) -> fast.Dispatcher:
        return self.called(
            fast.Dispatcher, self.part(devices), board, 1e-3, self.maybe(lambda: 1e-5)
        )

    def stepped(self) -> None:
        """A step of a dispatcher, to its end."""
        board = self.board(1)
        dispatcher = self.dispatcher(board, 1)
        dispatcher.begin()
        while (task := dispatcher.next()) >= 0:
            dispatcher.done(task)
        dispatcher.end()

    def emulated(self, board: fast.Board, devices: int = 2) -> fast.Emulated:
        tasks = np.arange(self.n), np.full(self.n, 1000, dtype="u8")
        dispatcher = self.dispatcher(board, devices)
        return self.called(
            fast.Emulated, dispatcher, self.links(), tasks, self.some_pairs(self.n, 2)
        )

    def emulated_step(self) -> None:
        """A step of an emulated device, which is stopped if it lasts."""
        board = self.board(1)
        device = self.emulated(board, 1)
        timer = Timer(0.005, board.stop)
        timer.start()
        try:
            device.step()
        finally:
            timer.cancel()
            timer.join()

    def links(self) -> fast.Links:
        lengths = self.column((1000, 2000), "u8")
        group = self.column(self.random.choice(((-1, -1), (0, 0))))
        first = self.column(range(self.random.randrange(3)))
        return self.called(
            fast.Links, 2, 2, self.some_pairs(2, 2), lengths, group, self.some_pairs(2, 2), first
        )

    # -- models

    def op_graph(self) -> fast.OpGraph:
        """A model of ops that most often have no views."""
        n, random = self.n, self.random
        pairs = [(a, b) for b in range(n) for a in range(b) if random.random() < 0.4]
        numbers = {
            name: np.array([random.choice((0, 4, 100)) for _ in range(n)], dtype="u8")
            for name in ("flops", "accessed", "output_bytes", "resident", "workspace")
        }
        none = np.full(n, -1)
        src = self.column(a for a, _ in pairs)
        return self.called(
            fast.OpGraph,
            [f"op{i}" for i in range(n)],
            src,
            self.column(b for _, b in pairs),
            self.maybe(lambda: src),
            np.full(len(pairs), 4, dtype="u8"),
            view=np.array([random.random() < 0.1 for _ in range(n)]),
            placeholder=np.array([random.random() < 0.1 for _ in range(n)]),
            alias_of=none if random.random() < 0.7 else np.arange(n) - 1,
            near=none,
            colocation=none if random.random() < 0.7 else np.zeros(n, dtype="i8"),
            **numbers,
        )

    def names(self, n: int) -> list[str]:
        return [str(i) for i in range(n)]

    def expanded(self) -> Any:
        """The call of ``expand`` that halves each op and each edge on two devices."""
        graph = self.op_graph()
        n, m, k = graph.n_ops, graph.n_edges, 2
        zeros, none = np.zeros(n, dtype="i8"), np.empty(0, dtype="i8")
        copies: dict[str, Any] = {
            "way_size": self.column([2], "u8"),
            "way_start": self.column([0, 1], "u8"),
            "way_end": self.column([1, 2], "u8"),
            "homes": self.column(self.random.choice(([0, 1], [0, 0]))),
            "home": zeros - (1 if self.random.random() < 0.2 else 0),
            "together": zeros - 1,
            "work": zeros,
            "resident": zeros,
            "stays": np.ones(m, dtype=bool),
            "edge": np.zeros(m, dtype="i8"),
        }
        for amount in ("accessed", "output"):
            copies |= {
                f"{amount}_first": np.arange(n + 1),
                f"{amount}_way": zeros,
                f"{amount}_bytes": zeros + 4,
            }
        added: dict[str, Any] = {"is_before": np.ones(0, dtype=bool)}
        added |= dict.fromkeys(("place", "serves", "device"), none)
        added |= dict.fromkeys(("collective", "kind", "flops", "accessed", "output"), none)
        links: dict[str, Any] = dict.fromkeys(("place", "src", "dst", "tensor", "bytes"), none)
        if self.random.random() < 0.4:
            zero = self.column([0])
            added = {"is_before": np.array([self.random.random() < 0.5]), "alias": zero - 1}
            added |= dict.fromkeys(("place", "serves", "flops", "accessed", "output"), zero)
            added |= dict.fromkeys(("device", "collective", "kind"), zero)
            end = self.column([n * k])
            links = {"place": zero + m, "src": zero, "dst": end, "tensor": zero - 1, "bytes": zero}
        return self.called(fast.expand, graph, self.names(n * k + 1), k, copies, added, links)

    def replaced(self) -> Any:
        """The call of ``replace_op`` that puts two ops in the place of the last."""
        graph = self.op_graph()
        n = graph.n_ops
        two, one, none = self.column([1, 1]), self.column([n - 1]), np.empty(0, dtype="i8")
        block: dict[str, Any] = dict.fromkeys(
            ("flops", "accessed", "output_bytes", "workspace"), two
        )
        block |= {"src": one, "dst": one + 1, "tensor": one * 0 - 1, "bytes": one * 0}
        block |= dict.fromkeys(("dropped", "leaving", "leaving_src", "shows", "shown"), none)
        return self.called(fast.replace_op, graph, self.names(n + 1), n - 1, **block)

    def schedule(self) -> fast.Schedule:
        return fast.simulate(self.problem(), self.devices())

    # -- labels

    def labelling(self) -> fast.Labelling:
        """A labelling of so many nodes of two labels, in a ring."""
        n = self.n
        ring = np.arange(n), (np.arange(n) + 1) % n
        edges = n if n > 2 else 0
        return self.called(
            fast.Labelling,
            node_table=np.zeros(n, dtype="i4"),
            unary_start=self.column([0, 2]),
            unary=np.array([[1.0, 0.5], [0.5, 2.0]]),
            src=ring[0][:edges],
            dst=ring[1][:edges],
            edge_table=np.zeros(edges, dtype="i4"),
            pair_start=self.column([0, 4]),
            pair_columns=self.column([2], "i4"),
            pair=np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.5], [0.0, np.inf]]),
        )

    def labels(self) -> np.ndarray:
        return self.column((self.random.randrange(2) for _ in range(self.n)), "i4")

    # -- pipelines

    def staged(self) -> Any:
        """The call of ``best_stages`` for an order of so many cuts."""
        n, k, used = self.n, self.random.choice((1, 2)), 2
        size = k * n * n
        seconds = np.array([self.random.choice((0.0, 1.0, 2.5)) for _ in range(size)])
        load = seconds.reshape(k * n, n)
        held = np.zeros(size, dtype="u8"), np.full(size, 4, dtype="u8")
        ways = (
            np.zeros(k, dtype="i8"),
            np.ones(k, dtype="i8"),
            np.full(k, 100, dtype="u8"),
            np.ones(k * used, dtype="u8"),
        )
        return self.called(fast.best_stages, load, load, held, ways, ([2], used), 3.0)

    def split(self) -> Any:
        """The call of ``split_max_load`` for so many groups."""
        n = self.n
        times = np.array([[1.0, 2.0]] * n)
        tensors = (*self.some_pairs(2, n), np.array([0.5, 0.1]))
        ends = np.sort(np.stack(self.some_pairs(n, n)), axis=0)
        edges = ends[0][ends[0] < ends[1]], ends[1][ends[0] < ends[1]]
        held = np.full(n, 4, dtype="u8")
        orders = [np.arange(n)]
        return self.called(fast.split_max_load, times, held, edges, tensors, orders, (2, 100, 1))

    def piper(self) -> Any:
        """The call of ``piper_stages`` for so many layers of two choices."""
        n = self.n
        layer, degree = np.repeat(np.arange(n), 2), np.tile(np.array([1, 2]), n)
        numbers = np.array([[1.0, 4.0, 1.0, 0.0], [0.6, 2.0, 1.0, 0.0]] * n)
        exchanges = self.some_pairs(2 * n, n)
        sent = (*exchanges, np.ones(len(exchanges[0])))
        chain = np.arange(n - 1), np.arange(1, n)
        limits = self.random.choice((1, 4, 5)), 100.0, 1.0, self.random.choice((1, 6))
        return self.called(
            fast.piper_stages, chain, (layer, degree, numbers), sent, [np.arange(n)], limits
        )

    # -- texts

    def pattern(self) -> str:
        pieces = ("a", "b", ".", "*", "+", "?", "|", "(", ")", "[", "]", "^", "$", "\\", "{9}", "-")
        return "".join(self.random.choice(pieces) for _ in range(self.random.randrange(9)))


def _is_empty(value: object) -> bool:
    """True if there is no part of it that could be wrong."""
    return isinstance(value, tuple | dict) and not value


_LINKS = [("a", "b", 1e9, 1e-6, []), ("b", "a", 1e9, 1e-6, [])]
_DEVICES = [("a", "gpu", 100), ("b", "gpu", 100)]
_TWO = fast.Cluster(_DEVICES, _LINKS)
