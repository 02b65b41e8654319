"""The hot paths over numpy arrays, for people who have their own graph.

Build a validated :class:`Graph` once, then call functions on it. Ids are int32 or int64, times
float64 seconds, sizes uint64 or int64 bytes; results are new arrays. A wrong dtype, shape or length
is a ``ValueError`` that says which argument, what it got and what it wants; a bad graph is an
``InputError`` (a ``ValueError`` too). The GIL is released; everything is safe from several threads.

Functions take a :class:`Problem` (a graph, a cluster and times, with the rules to obey), or
:class:`Weights` (times of ops and transfers, for levels, orders and groups). ``tensor_time``
arguments have one value per tensor id (without ``tensor``: per op, since then each op has one
output); messages without data take ``control_time``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NotRequired, Protocol, TypedDict, Unpack, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COLLECTIVES",
    "Board",
    "Cluster",
    "Dispatcher",
    "Emulated",
    "Graph",
    "Labelling",
    "Labels",
    "Links",
    "OpGraph",
    "Part",
    "Pattern",
    "Problem",
    "Schedule",
    "Stop",
    "Weights",
    "adjusting_placement",
    "batch_merge",
    "best_stages",
    "bounds",
    "breakpoints",
    "contract",
    "cpd_topo",
    "critical_path",
    "dfs_topo",
    "dominant_sequences",
    "edges",
    "exact_breakpoints",
    "expand",
    "fill_in_order",
    "follow_bytes",
    "fuse",
    "heads_and_tails",
    "levels",
    "linear_clusters",
    "m_topo",
    "multilevel_partition",
    "needed_control",
    "optimistic_costs",
    "parallel_merge",
    "partition",
    "peak_bytes",
    "piper_stages",
    "placed_paths",
    "priority_order",
    "refine_placement",
    "repeated_groups",
    "replace_op",
    "roles",
    "round_robin",
    "schedule",
    "schedule_below",
    "schedule_earliest",
    "schedule_placed",
    "search",
    "search_windows",
    "segments",
    "simulate",
    "simulate_below",
    "split_max_load",
    "summed_edges",
    "with_control",
]

_Ids = NDArray[np.int32] | NDArray[np.int64]
_Sizes = NDArray[np.uint64] | NDArray[np.int64]
_Seconds = NDArray[np.float64]

#: The kinds of collectives; columns name them by their place here.
COLLECTIVES: Final[tuple[str, ...]]

class _Bounds(TypedDict):
    critical_path: float
    work: float
    forced_transfers: float
    heads_and_tails: float
    launches: float
    best: float
    source: str

class _Obstacles(TypedDict):
    types: int
    max_time: int
    max_bytes: int
    cycle: int
    slow: bool

class _GraphColumns(TypedDict, total=False):
    tensor_bytes: _Sizes | None
    resident: _Sizes | None
    workspace: _Sizes | None
    output_bytes: _Sizes | None
    colocation: _Ids | None
    allowed: _Sizes | None
    collective: _Ids | None
    collective_kind: _Ids | None
    runs: _Sizes | None

class _Members(TypedDict, total=False):
    collective: _Ids
    collective_kind: _Ids
    runs: _Sizes

class _OpColumns(_Members):
    view: NDArray[np.bool_]
    placeholder: NDArray[np.bool_]
    alias_of: _Ids
    near: _Ids
    colocation: _Ids
    flops: _Sizes
    accessed: _Sizes
    output_bytes: _Sizes
    resident: _Sizes
    workspace: _Sizes

class _Changed(TypedDict, total=False):
    src: _Ids
    dst: _Ids
    tensor: _Ids
    bytes: _Sizes
    flops: _Sizes
    accessed: _Sizes
    output_bytes: _Sizes
    resident: _Sizes
    workspace: _Sizes

class _LabelColumns(TypedDict):
    node_table: _Ids
    unary_start: _Ids
    unary: NDArray[np.float64]
    src: _Ids
    dst: _Ids
    edge_table: _Ids
    pair_start: _Ids
    pair_columns: _Ids
    pair: NDArray[np.float64]

class _Copies(TypedDict):
    way_size: _Sizes
    way_start: _Sizes
    way_end: _Sizes
    homes: _Ids
    home: _Ids
    work: _Ids
    resident: _Ids
    accessed_first: _Ids
    accessed_way: _Ids
    accessed_bytes: _Sizes
    output_first: _Ids
    output_way: _Ids
    output_bytes: _Sizes
    stays: NDArray[np.bool_]
    edge: _Ids
    together: _Ids

class _Added(TypedDict):
    place: _Ids
    is_before: NDArray[np.bool_]
    serves: _Ids
    device: _Ids
    collective: _Ids
    kind: _Ids
    runs: NotRequired[_Sizes]
    flops: _Sizes
    accessed: _Sizes
    output: _Sizes
    alias: NotRequired[_Ids]

class _Links(TypedDict):
    place: _Ids
    src: _Ids
    dst: _Ids
    tensor: _Ids
    bytes: _Sizes

class _Block(TypedDict):
    flops: _Sizes
    accessed: _Sizes
    output_bytes: _Sizes
    workspace: _Sizes
    dropped: _Ids
    leaving: _Ids
    leaving_src: _Ids
    src: _Ids
    dst: _Ids
    tensor: _Ids
    bytes: _Sizes
    shows: _Ids
    shown: _Ids

class _Names(Protocol):
    def __getitem__(self, op: int, /) -> str: ...

@final
class Graph:
    """A validated directed acyclic graph of ops joined by tensors. Immutable.

    O(V + E). Edges that repeat another (same ends, same tensor) count once.
    """

    def __new__(
        cls,
        n_ops: int,
        src: _Ids,
        dst: _Ids,
        tensor: _Ids | None = None,
        **columns: Unpack[_GraphColumns],
    ) -> Graph: ...
    @property
    def n_ops(self) -> int:
        """Number of ops."""
    @property
    def n_edges(self) -> int:
        """Number of edges: pairs of a tensor and an op that reads it."""
    @property
    def n_tensor_ids(self) -> int:
        """One past the largest tensor id: how many values a column per tensor id needs."""
    @property
    def tensor_bytes(self) -> NDArray[np.uint64]:
        """Bytes per tensor id, uint64 [n_tensor_ids]."""
    @property
    def static_bytes(self) -> NDArray[np.uint64]:
        """Resident and output bytes per op, uint64 [n_ops]."""
    @property
    def resident(self) -> NDArray[np.uint64]:
        """Bytes per op that stay for the whole step, uint64 [n_ops]."""
    @property
    def workspace(self) -> NDArray[np.uint64]:
        """Bytes per op needed while it runs, uint64 [n_ops]."""
    @property
    def allowed(self) -> NDArray[np.uint64]:
        """Mask of the device types that each op may run on, uint64 [n_ops]."""
    @property
    def lead(self) -> NDArray[np.int32]:
        """The op that decides where each op goes, int32 [n_ops]."""
    @property
    def colocation(self) -> NDArray[np.int32]:
        """Number of the set of colocated ops that each op is in, int32 [n_ops]."""
    def flows(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint32], NDArray[np.uint64]]:
        """Source, destination, distinct tensors and bytes between each pair of ops."""

@final
class OpGraph:
    """A model's graph with all its columns; :class:`loadmaster.OpGraph` is its face."""

    def __new__(
        cls,
        name: list[str],
        src: _Ids,
        dst: _Ids,
        tensor: _Ids | None,
        bytes: _Sizes,
        **columns: Unpack[_OpColumns],
    ) -> OpGraph: ...
    def changed(self, **columns: Unpack[_Changed]) -> OpGraph:
        """The graph with some columns of sizes and of edges in the place of its own, all of it
        checked again.
        """
    @property
    def n_ops(self) -> int:
        """Number of ops."""
    def sent(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """How tensors are sent.

        Per tensor id, the id of the tensor whose data it is (-1: none); and per op, the tensor that
        it shows (-1: it is no view).
        """
    @property
    def n_edges(self) -> int:
        """Number of edges as given."""
    def column(self, name: str) -> NDArray[Any]:
        """A column of numbers by its name; a column that the graph was made without is one of its
        default.
        """
    def reduce(
        self, allowed: _Sizes | None = None
    ) -> tuple[Graph, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """The graph that algorithms run on."""

@final
class Pattern:
    """A regular expression of whole texts. A dot matches line ends too.

    The syntax is that of Python's ``re``, without what takes more than linear time (references
    back, look-ahead and look-behind, atomic groups, possessive quantifiers). O(pattern x text) per
    match.
    """

    def __new__(cls, pattern: str) -> Pattern: ...
    def matches(self, text: str) -> bool:
        """True if a whole text matches."""

@final
class Cluster:
    """Devices joined by channels, with a route for every pair; :class:`loadmaster.Cluster` is its
    face.
    """

    def __new__(
        cls,
        devices: list[tuple[str, str, int]],
        links: list[tuple[str | list[str], str | list[str], float, float, list[str]]],
        tables: list[tuple[str, int, int, list[tuple[int, float]], list[float]]] = ...,
        send_costs: list[tuple[str, float, float]] = ...,
        host_each: bool = False,
    ) -> Cluster: ...
    @property
    def n_devices(self) -> int:
        """Number of devices."""
    @property
    def types(self) -> list[str]:
        """Names of the device types, in order of first use."""
    @property
    def device_types(self) -> list[int]:
        """Index into `types` per device."""
    @property
    def machines(self) -> list[int]:
        """The number of each device's machine."""
    @property
    def channels(self) -> list[str]:
        """Names of the channels."""
    @property
    def n_channels(self) -> int:
        """Number of channels."""
    def channel_name(self, channel: int) -> str:
        """Name of a channel."""
    @property
    def mean_link(self) -> tuple[float, float]:
        """Mean over ordered pairs of devices of latency (s) and of seconds per byte."""
    @property
    def slowest_link(self) -> tuple[float, float]:
        """Largest latency (s) and seconds per byte of any ordered pair of devices."""
    def route(self, src: int, dst: int) -> tuple[float, float, list[int], list[int]]:
        """Latency (s), bandwidth (B/s), channels and devices passed from one device to another."""
    def collective(self, kind: str, devices: list[int], bytes: int) -> tuple[str, float, list[int]]:
        """How a collective among some devices is done: the algorithm, seconds, and channels that it
        holds.

        ``kind`` is one of :data:`COLLECTIVES`, ``bytes`` are those of the whole tensor. A broadcast
        comes from the first device.
        """
    def transfer_time(self, src: int, dst: int, bytes: int) -> float:
        """Seconds that some bytes take from one device to another."""

@final
class Schedule:
    """What :func:`simulate` saw. Times in seconds, sizes in bytes.

    ``start`` and ``finish`` per op, ``device_busy`` per device, ``channel_busy`` per channel,
    ``peak`` and ``static_bytes`` per device. ``transfers()`` has columns tensor (-1: no data),
    op, src, dst, bytes, queued, start, finish, copied. ``collectives()`` has columns op (the member
    that arrived last), kind, algorithm, bytes, busy, queued, start, finish, channels. ``shares()``
    has columns op, start, finish: what devices did of collectives. ``blame()`` is the chain of
    causes, last first: (what happened: "run", "transfer", "copy", "share" or "launch"; its op or
    transfer; start, finish, what it waited for). ``overflow`` is None or
    (device, time, op or -1, bytes over, largest tensors alive as (op, bytes, is a copy)).
    """

    @property
    def makespan(self) -> float:
        """Finish of the last op, in seconds."""
    @property
    def start(self) -> _Seconds:
        """Start per op, in seconds."""
    @property
    def finish(self) -> _Seconds:
        """Finish per op, in seconds."""
    @property
    def device_busy(self) -> _Seconds:
        """Seconds that each device computes."""
    @property
    def channel_busy(self) -> _Seconds:
        """Seconds that each channel carries a transfer or a collective."""
    @property
    def peak(self) -> NDArray[np.uint64]:
        """Most bytes that each device ever holds."""
    @property
    def static_bytes(self) -> NDArray[np.uint64]:
        """Resident and output bytes of the ops on each device."""
    @property
    def bytes_moved(self) -> int:
        """Bytes that transfers send between devices."""
    @property
    def n_transfers(self) -> int:
        """Number of transfers."""
    @property
    def n_collectives(self) -> int:
        """Number of collectives."""
    @property
    def overflow(
        self,
    ) -> tuple[int, float, int, int, list[tuple[int, int, bool]]] | None:
        """The first overflow: device, time, op or -1, bytes over, and the largest tensors alive
        there as (op, bytes, whether it is a copy).
        """
    def transfers(self) -> dict[str, NDArray[Any]]:
        """Columns of the transfers."""
    def collectives(self) -> dict[str, Any]:
        """Columns of the collectives."""
    def shares(self) -> dict[str, NDArray[Any]]:
        """Columns of what devices did of collectives, by member."""
    @property
    def launched(self) -> _Seconds | None:
        """When each op was launched, in seconds; None where launches take no time."""
    def blame(self) -> list[tuple[str, int, float, float, str]]:
        """The chain of causes, last first: what happened, its op or transfer, start, finish, what
        it waited for.
        """
    def waited(self, op: int) -> tuple[str, int]:
        """What one op's start waited for: a word, and the op or transfer; of a collective, the
        member that arrived last.
        """
    def memory(self) -> tuple[_Seconds, NDArray[np.int32], NDArray[np.uint64]]:
        """Memory in use over time: when, on which device, how many bytes from then on."""

@final
class Problem:
    """What there is to place, on what, and by which rules; checked once, used by many functions.

    :meth:`within`, :meth:`led_by` and :meth:`without_contention` give the same problem under
    other rules, which costs next to nothing: all share the graph, the cluster and the times.
    """

    def __new__(
        cls, graph: Graph, cluster: Cluster, time: _Seconds, dispatch: _Seconds | None = None
    ) -> Problem: ...
    @property
    def graph(self) -> Graph:
        """The graph."""
    @property
    def mean_time(self) -> _Seconds:
        """Mean seconds per op over the devices that it may run on, float64 [n_ops]."""
    @property
    def weights(self) -> Weights:
        """What orders, levels and groups count: mean op times, and transfers between an average
        pair of devices. O(V + E).
        """
    @property
    def capacity(self) -> NDArray[np.uint64]:
        """Bytes to fill, uint64 [n_devices]."""
    @property
    def op_bytes(self) -> NDArray[np.uint64] | None:
        """Bytes that each op is charged for the whole step, uint64 [n_ops]; None if none are
        given.
        """
    @property
    def lead(self) -> NDArray[np.int32]:
        """The op that decides where each op goes, int32 [n_ops]."""
    def within(
        self,
        *,
        capacity: _Sizes | None = None,
        op_bytes: _Sizes | None = None,
        best_effort: bool | None = None,
    ) -> Problem:
        """The same problem with other limits on memory; what is absent stays as it is."""
    def led_by(self, lead: _Ids) -> Problem:
        """The same problem with other ops deciding where each op goes. O(V)."""
    def without_contention(self) -> Problem:
        """The same problem with unlimited channels: the classic model, any number of transfers at
        once.
        """
    def restricted(self, masks: _Sizes) -> Problem:
        """The same problem with ops kept to some of the device types they allow. Colocated ops
        keep to what all of them may use. O(V + E).
        """
    def mean(self, values: _Seconds) -> _Seconds:
        """Mean over the devices that each op may run on, of a value per op and device type."""

@final
class Weights:
    """Times of ops and of transfers, for levels, orders and groups; checked once, used by many
    functions.
    """

    def __new__(
        cls,
        graph: Graph,
        op_time: _Seconds,
        tensor_time: _Seconds | None = None,
        *,
        control_time: float = 0.0,
        op_bytes: _Sizes | None = None,
    ) -> Weights: ...
    def kept_to(self, devices: _Ids) -> Weights:
        """The same weights with every op kept to a device, as if devices were types: no group that
        a coarsener makes has ops of two devices. O(V).
        """

@final
class Stop:
    """When a search stops: at the first of these. At least one of `moves`, `visits` and
    `time_limit` is needed.
    """

    def __new__(
        cls,
        *,
        moves: int | None = None,
        visits: int | None = None,
        time_limit: float | None = None,
        patience: int | None = None,
        target: float = 0.0,
    ) -> Stop: ...

@final
class Labelling:
    """Pairwise labelling: one label per node, such that labels and pairs of labels cost little.

    Nodes share tables of costs, and so do edges. A cost has C components, such as seconds, seconds
    of gradient traffic, and bytes. Each solve has its own weights for them. A component of
    ``+inf`` forbids a choice whatever the weights.
    """

    def __new__(cls, **columns: Unpack[_LabelColumns]) -> Labelling: ...
    @property
    def n_nodes(self) -> int: ...
    @property
    def n_edges(self) -> int: ...
    def solve(
        self,
        weights: NDArray[np.float64],
        *,
        tied: _Ids | None = None,
        start: _Ids | None = None,
        after: Labels | None = None,
        sweeps: int = 200,
        progress: Callable[[Labels], object] | None = None,
    ) -> Labels:
        """Labels of little energy, and a bound on the least, by TRW-S and ICM.

        ``after``: what was found for other costs of the same nodes and edges, to go on from.
        O(sweeps E L^2). Can be interrupted between sweeps.
        """

    def energy(self, labels: _Ids, weights: NDArray[np.float64]) -> float:
        """Weighted sum of the costs of labels; ``inf`` where a choice is forbidden."""

    def components(self, labels: _Ids) -> NDArray[np.float64]:
        """Sums of the costs of labels by component; ``inf`` where a choice is forbidden."""

    def descend(self, labels: _Ids, weights: NDArray[np.float64]) -> NDArray[np.int32]:
        """Labels that no change of one node's label makes better (iterated conditional modes)."""

    def walk(
        self,
        labels: _Ids,
        weights: NDArray[np.float64],
        steps: int,
        seed: int,
        *,
        beta: float = 10000.0,
    ) -> NDArray[np.int32]:
        """The best labels of a random walk (FlexFlow's MCMC); never worse than the first.

        O(degree) a step. Can be interrupted.
        """

@final
class Labels:
    """Labels that :meth:`Labelling.solve` found, and how good they are."""

    @property
    def labels(self) -> NDArray[np.int32]: ...
    @property
    def energy(self) -> float: ...
    @property
    def bound(self) -> float: ...
    @property
    def gap(self) -> float: ...
    @property
    def sweeps(self) -> int: ...

@final
class Board:
    """What all devices of a run see, in arrays that may lie in memory that processes share.

    Each array is uint64, writable and contiguous, of the length that :meth:`words` says, and 0 at
    first. No word is ever set back. ``arrivals`` has three words per arrival: the last step that it
    came in, when it began to be sent, and from when on it counts. ``tasks`` has two per task: its
    last start and finish. Clocks are nanoseconds of ``time.monotonic_ns()``, steps count from 1.
    """

    def __new__(
        cls, gates: NDArray[np.uint64], arrivals: NDArray[np.uint64], tasks: NDArray[np.uint64]
    ) -> Board: ...
    @staticmethod
    def words(n_devices: int, n_arrivals: int, n_tasks: int) -> tuple[int, int, int]:
        """The lengths of the three arrays."""
    def stop(self) -> None:
        """Has every device give up its step: each wait ends with an ``InterruptedError``."""
    @property
    def is_stopped(self) -> bool:
        """Whether devices are to give up."""

@final
class Part:
    """What one device has to do in a step of a plan that runs. O(n log n).

    Tasks, arrivals and devices are numbered as on the :class:`Board`. A task is an op, or the share
    of a member in a collective; an arrival is a transfer, a message, or that a member has brought
    its share. ``tasks`` are the numbers of the device's tasks, their priorities (the smaller the
    sooner), and whether each takes no time of the device, so that it runs as soon as it can. Of a
    pair of ``order`` the second task waits for the first; ``waits`` are arrivals and tasks that
    wait for them; ``sends`` are arrivals that the device sends, and devices that are to be told.
    ``fixed``: tasks run exactly in the order of their priorities.
    """

    def __new__(
        cls,
        device: int,
        tasks: tuple[_Ids, _Ids, NDArray[np.bool_]],
        order: tuple[_Ids, _Ids],
        waits: tuple[_Ids, _Ids],
        sends: tuple[_Ids, _Ids],
        *,
        fixed: bool,
    ) -> Part: ...

@final
class Dispatcher:
    """Says which task of a device comes next. The GIL is released while it waits.

    A worker calls, for each step, :meth:`begin`; then :meth:`next` and :meth:`done` in turn, until
    ``next`` gives -1; then :meth:`end`. It calls :meth:`arrive` for what it sends, once that is
    there to be read. A wait keeps its core for ``alert`` seconds after the last news (50 us if
    absent), and then naps. After ``patience`` seconds without news it ends with a ``TimeoutError``;
    where the board was stopped, it ends with an ``InterruptedError``. Neither is mended by waiting
    again. The worker stops the board, and :meth:`missing` says what was waited for.
    """

    def __new__(
        cls, part: Part, board: Board, patience: float, alert: float | None = None
    ) -> Dispatcher: ...
    def begin(self) -> int:
        """Comes to the next step, and waits until it begins for all devices: when that is, in
        nanoseconds.
        """
    def next(self) -> int:
        """Starts the next task, and waits until one can start; -1 once all are done."""
    def done(self, task: int) -> None:
        """Ends a task that :meth:`next` gave."""
    def arrive(self, arrival: int, start: int, counts: int) -> None:
        """Tells of an arrival: when it began to be sent, and from when on it counts, both in
        nanoseconds.
        """
    def end(self) -> None:
        """Waits until all devices have ended the step."""
    def missing(self) -> list[tuple[int, list[int], list[int]]]:
        """The tasks that have not started, by priority: each with the arrivals and the tasks of the
        same device that it waits for.
        """

@final
class Links:
    """The links between emulated devices.

    ``holds`` are arrivals and channels that they hold, ``length`` the nanoseconds that each arrival
    is under way. Arrivals with the same ``collective`` >= 0 are of the members of one collective.
    ``told`` are arrivals and devices that are told of them, ``first`` the arrivals that are sent as
    a step begins, in this order.
    """

    def __new__(
        cls,
        n_devices: int,
        n_channels: int,
        holds: tuple[_Ids, _Ids],
        length: _Sizes,
        collective: _Ids,
        told: tuple[_Ids, _Ids],
        first: _Ids,
    ) -> Links: ...

@final
class Emulated:
    """An emulated device: its ops are waits, and its transfers take their time on :class:`Links`.

    ``length`` are its tasks and the nanoseconds of each, ``after`` tasks and arrivals that are sent
    once they are done, in this order.
    """

    def __new__(
        cls,
        dispatcher: Dispatcher,
        links: Links,
        length: tuple[_Ids, _Sizes],
        after: tuple[_Ids, _Ids],
    ) -> Emulated: ...
    def step(self) -> int:
        """Runs a step: when it began, in nanoseconds. Raises as :class:`Dispatcher` does."""

def roles(
    graph: OpGraph,
    state: NDArray[np.bool_],
    input: NDArray[np.bool_],
    update: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which ops of a model data parallelism replicates, and which edges carry weight gradients."""

def summed_edges(
    graph: OpGraph,
    many: NDArray[np.bool_],
    parameter: NDArray[np.bool_],
    update: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which edges carry what must be summed over replicas, from the model to the optimizer."""

def expand(
    graph: OpGraph, names: _Names, k: int, copies: _Copies, added: _Added, links: _Links
) -> tuple[OpGraph, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Copies the ops of a model to devices, with ops added between them."""

def replace_op(graph: OpGraph, names: _Names, at: int, **columns: Unpack[_Block]) -> OpGraph:
    """Puts a block of ops in the place of an op."""

def with_control(graph: OpGraph, src: _Ids, dst: _Ids) -> OpGraph:
    """Makes ops wait for others: control edges from ``src`` to ``dst``. O(V + E)."""

def levels(weights: Weights) -> tuple[_Seconds, _Seconds]:
    """t-level and b-level of every op (Celeritas eq. (2), (3); b-level is HEFT's upward rank).

    The t-level is the longest path to an op's start, the b-level the longest from its start to
    the end, counting op times and the transfer time of each tensor followed. O(V + E).
    """

def m_topo(graph: Graph) -> NDArray[np.int32]:
    """Kahn's topological order, first in first out (Baechi's m-TOPO). O(V + E)."""

def dfs_topo(graph: Graph) -> NDArray[np.int32]:
    """Depth-first topological order (Celeritas 4.2.2): an op is followed by the ops it makes
    ready.

    Ties: smaller index first. O(V + E) but for sorting ops that become ready together.
    """

def cpd_topo(weights: Weights) -> NDArray[np.int32]:
    """CPD-TOPO (Celeritas 5.1.3): depth first, children on the longest path first.

    Of the ops that become ready together, the one with the largest t-level + b-level comes
    first; ties: smaller index. O(V + E) but for those small sorts.
    """

def priority_order(graph: Graph, priority: _Seconds) -> NDArray[np.int32]:
    """The topological order that always takes the ready op of highest priority.

    With b-levels (upward ranks) it is HEFT's list. Ties: smaller op. O(E + V log V).
    """

def critical_path(weights: Weights) -> NDArray[np.int32]:
    """The ops of a longest path, in order; of several paths the one of the smallest ops.

    Paths count op times and the transfer time of each tensor followed, as in :func:`levels`.
    O(V + E).
    """

def needed_control(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The control edges that no other path implies: their transitive reduction. Can be
    interrupted.

    Edges that carry data stay whatever they imply. What an op reaches without the other control
    edges is what it reached with them. O((V + E) D / 512) for D destinations of control edges,
    64 bytes per op.
    """

def peak_bytes(graph: Graph, order: _Ids | None = None) -> tuple[int, NDArray[np.uint64]]:
    """What one device would hold at the worst moment of running ops one after another.

    O(V + E).
    """

def breakpoints(
    weights: Weights,
    order: _Ids,
    *,
    max_ops: int | None = None,
    max_bytes: int | None = None,
    max_time: float | None = None,
) -> NDArray[np.int32]:
    """The cuts of an order that send least (Celeritas eq. (4)-(6); Kernighan 1971).

    A tensor is charged once to every segment that reads it and did not make it. Equal costs
    take the longer segment; an op over a limit is a segment of its own. O((V + E)
    sqrt(max_ops)) at worst.
    """

def exact_breakpoints(
    weights: Weights,
    order: _Ids,
    segments: int,
    *,
    max_bytes: int | None = None,
    max_time: float | None = None,
) -> tuple[NDArray[np.int32], float]:
    """The cuts of an order into a given number of segments that send about least.

    As :func:`breakpoints`, with a price per segment (Lagrange) that steers their number.
    Optimal where the number is a corner of the lower hull of least cost over number, or comes
    out of the two corners next to it put together; else what is missing is split off where that
    costs least. O((V + E) α(V)) a price, about six prices.
    """

def segments(order: _Ids, cuts: _Ids) -> NDArray[np.int32]:
    """Number of the segment that each op of an order is in."""

def batch_merge(
    weights: Weights, groups: int, *, max_time: float | None = None, max_bytes: int | None = None
) -> tuple[NDArray[np.int32], _Obstacles]:
    """Batch merging (Pesto 3.3): rounds of conflict-free merges, heaviest edge first.

    The quotient never has a cycle (the corrected Theorem 3.5). Stops at ``groups`` groups, or
    where limits, device types or structure allow no merge. O(V + E log E) a round; rounds about
    halve what is left.
    """

def multilevel_partition(
    weights: Weights, groups: int, *, max_time: float | None = None, max_bytes: int | None = None
) -> tuple[NDArray[np.int32], _Obstacles]:
    """Groups of about equal time between which the least data flows: a multilevel acyclic
    partition.

    The best of several orders, each cut into segments where that costs least, then V-cycles of
    local search (dagP's and Moreira's manner) that count a tensor once per group that reads it.
    Without ``max_time`` nothing keeps groups even. Exactly ``groups`` groups, or the fewest
    that an order can be cut into within limits. Arguments, results and errors as for
    :func:`batch_merge`.
    """

def parallel_merge(
    weights: Weights, groups: int, *, max_time: float | None = None, max_bytes: int | None = None
) -> tuple[NDArray[np.int32], _Obstacles]:
    """Merging that keeps parallelism: the merge that lengthens paths least goes first.

    A group runs as one, so merging ops of parallel branches serialises them. Pairs that
    lengthen no path go first (chains), then by how much they eat of the slack, then by how much
    they lengthen the critical path; of equals, those that save most transfer time. Pairs are an
    edge's ends, and ops that run at about the same time. Typically O((V + E) log V). Arguments,
    results and errors as for :func:`batch_merge`.
    """

def fuse(
    weights: Weights,
    kind: _Ids,
    rules: list[list[list[int]]],
    groups: int,
    *,
    max_time: float | None = None,
    max_bytes: int | None = None,
) -> tuple[NDArray[np.int32], _Obstacles]:
    """Fusion by rules (Moirai's GCOF): chains of op kinds that one kernel runs become one group.

    Ops that follow each other and match a rule fuse if every one but the last has one
    successor. Of the rules that match at an op the longest wins, of these the first. O(V + E +
    V R L) for R rules of at most L kinds.
    """

def repeated_groups(
    weights: Weights, rounds: int, max_times: Sequence[float]
) -> list[NDArray[np.int32]]:
    """Groups of ops that play the same part wherever a graph repeats itself, in every layer and
    step.

    Color refinement (Weisfeiler and Leman 1968) by time, allowed types, inputs and readers;
    colors that exchange most for the time they take then join. For moving ops together
    (:func:`refine_placement`), not for placing: groups are neither connected nor acyclic.
    O(rounds (V + E) + E log E) per limit.
    """

def linear_clusters(weights: Weights) -> NDArray[np.int32]:
    """Linear clustering (LC, Kim and Browne 1988).

    The critical path becomes a group, then that of the ops left over, and so on. O((V + E) log
    V) where few levels change per path; O(V (V + E)) at worst.
    """

def dominant_sequences(weights: Weights) -> NDArray[np.int32]:
    """Dominant sequence clustering (DSC, Yang and Gerasoulis 1994).

    Ops by t-level + b-level, each at the end of the producer's group that lets it start
    earliest, or in a group of its own. O((V + E) log V).
    """

def contract(graph: Graph, group: _Ids, *, colocated: bool = False) -> Graph:
    """The coarse graph: one op per group, tensors between groups counted once per reading group.

    Resident and output bytes add up, workspace is the largest. O(V + E).
    """

def edges(
    graph: Graph,
) -> tuple[
    NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64], NDArray[np.bool_]
]:
    """The edges of a graph, home tensors (there at time 0) included; their source is their home.
    O(E).
    """

def partition(
    weight: _Sizes, src: _Ids, dst: _Ids, edge: _Sizes, share: _Seconds
) -> NDArray[np.int32]:
    """Parts of an undirected graph, of given weights, between which edges weigh least.

    Multilevel k-way partitioning (Karypis and Kumar 1998): coarsen by matching along heavy
    edges, grow parts, refine on every level; each part keeps within 5 % of its share where
    weights allow. O((V + E) log V).
    """

def split_max_load(
    times: NDArray[np.float64],
    bytes: _Sizes,
    edges: tuple[_Ids, _Ids],
    tensors: tuple[_Ids, _Ids, _Seconds],
    orders: Sequence[_Ids],
    devices: tuple[int, int, int],
) -> tuple[tuple[NDArray[np.int32], NDArray[np.bool_]] | None, int | None]:
    """Stages of a pipeline with the smallest largest load (Tarnawski et al., NeurIPS 2020).

    The stage of each group and whether a CPU core has each stage, None where nothing fits; and
    how many downsets there are, None where they were too many for an optimum.
    """

def best_stages(
    load: NDArray[np.float64],
    path: NDArray[np.float64],
    bytes: tuple[_Sizes, _Sizes],
    ways: tuple[_Ids, _Ids, _Sizes, _Sizes],
    devices: tuple[list[int], int],
    weight: float,
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Contiguous stages of one linear order with the shortest step of several micro-batches.

    The cut at the end of each stage, and the way in which it is run; None where nothing fits.
    """

def fill_in_order(
    problem: Problem, order: _Ids, *, devices: _Ids | None = None
) -> NDArray[np.int32]:
    """Ops in order on one device until it is full, then the next (Order-Place, m-TOPO).

    Colocated ops go together, when the first of them comes up. O(V D) at worst.
    """

def round_robin(problem: Problem, order: _Ids) -> NDArray[np.int32]:
    """The i-th op on device i mod k, or the next one that has room. O(V D) at worst."""

def follow_bytes(problem: Problem, order: _Ids) -> NDArray[np.int32]:
    """Each op on the device, of those with room, that holds most of the bytes it reads.

    Keeps the backward pass with the activations it needs. O(D (V + E)).
    """

def schedule(
    problem: Problem,
    order: _Ids,
    *,
    pinned: _Ids | None = None,
    bias: _Seconds | None = None,
    delay_weight: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.int32], _Seconds, _Seconds]:
    """List scheduling: ops in order, each where it finishes earliest, in an idle slot or at the
    end.

    With descending upward ranks for `order` (see :func:`priority_order`) it is HEFT; with
    `pinned` or `bias` it is CPoP, DPOS or PEFT. Ties go to the smaller device. O(D (E + V log
    V)), and with contention the transfers pushed back.

    With contention a transfer stands in its queue where first come, first served puts it. An
    op's transfers can delay other ops: `delay_weight` times that delay is added to the op's
    finish when devices are compared. As long as no op is delayed, the simulator finds the same
    schedule when it runs ops in the order of their starts. Without contention it always does.

    Memory counts residents, and tensors from their producer to their last reader; a problem
    with `op_bytes` is charged these for the whole step instead.

    `progress` is called now and then with the number of ops scheduled so far, and how often a
    booked transfer was worked out to be pushed back. What it raises ends the work, and so does
    Ctrl-C.
    """

def schedule_below(
    problem: Problem,
    limit: float,
    order: _Ids,
    *,
    pinned: _Ids | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.int32], _Seconds, _Seconds] | None:
    """List scheduling as :func:`schedule`, unless the makespan is certain not to be below a limit.

    Once an op ends so late that what must run after it ends no earlier than the limit, the
    scheduling stops.
    """

def schedule_earliest(
    problem: Problem, ties: _Ids, *, favourite: _Ids | None = None
) -> tuple[NDArray[np.int32], _Seconds, _Seconds]:
    """Earliest time first (ETF): of all ready ops and devices, again and again the pair that
    starts first.

    Ops are appended to a device. With `favourite` it is Baechi's m-SCT: a device whose last op
    has a favourite child that is ready, or waits for its inputs to arrive, takes nothing that
    would delay it. O(D (E + V log V)) without contention.
    """

def adjusting_placement(
    problem: Problem, order: _Ids
) -> tuple[NDArray[np.int32], _Seconds, _Seconds]:
    """Adjusting Placement (Celeritas Algorithm 2).

    An op stays on its predecessor's device in the order, unless another device lets it start
    earlier by more than sending its output back costs. Starts are estimated on the engine's
    timelines (eq. (7)-(9)). The paper's starts are those of a problem without contention. O(D
    (E + V log V)).
    """

def schedule_placed(problem: Problem, order: _Ids, devices: _Ids) -> tuple[_Seconds, _Seconds]:
    """When ops of a given placement and order run: each at the end of its device, every tensor
    sent the moment it is produced.

    Exactly what :func:`simulate` finds by its policy "fixed", where every channel serves one
    pair of devices (or channels are unlimited); an estimate on shared channels. Memory is not
    counted. O(V + E + transfers).
    """

def placed_paths(problem: Problem, devices: _Ids) -> tuple[_Seconds, NDArray[np.int32]]:
    """b-levels and a critical path of a placed graph: only tensors that change devices take time.
    O(V + E).
    """

def optimistic_costs(
    problem: Problem, tensor_time: _Seconds, *, control_time: float = 0.0
) -> _Seconds:
    """PEFT's optimistic cost table (Arabnejad and Barbosa 2014, eq. (1)).

    The least seconds from an op's finish on a device of each type to the end, if every later op
    had its best device for itself. O(E K^2) for K device types.
    """

def search(
    problem: Problem,
    start: tuple[_Ids, _Ids],
    stop: Stop,
    *,
    seed: int | None = None,
    chains: int = 1,
    threads: int = 1,
    progress: Callable[[NDArray[np.int32], NDArray[np.int32], float], object] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], float, int, int]:
    """Local search from a placement and an order: annealing over both, never worse than the start.

    The search shortens the makespan of :func:`schedule_placed`. Where every channel serves one
    pair of devices that is exactly the simulator's by its policy "fixed"; on shared channels it
    is an estimate. Colocated sets stay together, device types and capacities are obeyed at
    every step. Without a time limit the result depends on the input, `seed` and `chains` alone,
    whatever the machine and the number of threads. O(V + E) per move at worst. Can be
    interrupted.
    """

def search_windows(
    problem: Problem,
    start: tuple[_Ids, _Ids],
    stop: Stop,
    *,
    seed: int | None = None,
    chains: int = 1,
    threads: int = 1,
    progress: Callable[[NDArray[np.int32], NDArray[np.int32], float], object] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], float, int, int]:
    """Local search in windows: stretches of the order, one after another, each with all else as it
    is.

    For large graphs, where moves of all ops cost too much. What the search of a window finds is
    taken over if the makespan of the whole, counted as :func:`search` does, gets no longer.
    After many windows without a better state one window is searched hot and taken over even so;
    the best state is kept. Colocated sets stay together, device types and capacities are
    obeyed. Without a time limit the result depends on the input and `seed` alone. O(V + E) per
    window of some 300 ops at worst. Can be interrupted.
    """

def refine_placement(
    problem: Problem,
    order: _Ids,
    devices: _Ids,
    levels: list[NDArray[np.int32]],
    *,
    budget: int = 100000000,
) -> tuple[NDArray[np.int32], float, int]:
    """Moves groups of ops between devices where that shortens the step, level by level.

    Every group is offered the devices it exchanges most with and the one with least to do; the
    makespan of :func:`schedule_placed` in the given order judges. A device that holds more than
    its capacity takes no more. O(V + E) per move at worst, usually far less.
    """

def simulate(
    problem: Problem,
    devices: _Ids,
    priority: _Ids | None = None,
    *,
    policy: str = "priority",
    link_order: str = "fifo",
    seed: int | None = None,
    record_memory: bool = False,
) -> Schedule:
    """Simulates one step of a placed graph: the judge of every strategy.

    O((V + E + T) log V) for T transfers.
    """

def simulate_below(
    problem: Problem,
    limit: float,
    devices: _Ids,
    priority: _Ids | None = None,
    *,
    policy: str = "priority",
    link_order: str = "fifo",
    seed: int | None = None,
) -> Schedule | None:
    """Simulates one step as :func:`simulate`, unless the makespan is certain not to be below a
    limit.

    Once some device has as much left to compute as time until the limit, the simulation stops.
    """

def bounds(problem: Problem) -> _Bounds:
    """Lower bounds on the makespan of any placement.

    ``critical_path`` (fastest allowed types, free transfers), ``work`` (over capacity, a linear
    program over device types), ``forced_transfers`` (critical path with the transfers that
    joins and forks force), ``heads_and_tails`` (work between them), ``best`` and its
    ``source``. O((V + E log d) T^2) for T types and d neighbours, and a few hundred passes over
    the ops where there are several types.
    """

def heads_and_tails(problem: Problem) -> tuple[_Seconds, _Seconds]:
    """Least times before each op starts and after it ends, in any placement and order.

    Predecessors on the same device run one after another, the others' outputs are sent; so with
    successors. O(E T^2 log d) for T types and d neighbours.
    """

def piper_stages(
    edges: tuple[_Ids, _Ids],
    choices: tuple[_Ids, _Ids, NDArray[np.float64]],
    exchanges: tuple[_Ids, _Ids, _Seconds],
    orders: Sequence[_Ids],
    limits: tuple[int, float, float, int],
) -> tuple[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None, int | None]:
    """Stages that are replicated and tensor-parallel (Piper: Tarnawski et al., NeurIPS 2021).

    The stage and the choice of each layer, and the degree and replicas of each stage, None where
    nothing fits; and how many downsets there are, None where they were too many to be listed.
    """
