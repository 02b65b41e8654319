"""The hot paths over numpy arrays, for people who have their own graph.

Build a validated :class:`Graph` once, then call functions on it. Ids are int32 or int64, times
float64 seconds, sizes uint64 or int64 bytes; results are new arrays. A wrong dtype, shape or length
is a ``ValueError`` that says which argument, what it got and what it wants; a bad graph is an
``InputError`` (a ``ValueError`` too). The GIL is released; everything is safe from several threads.

``tensor_time`` arguments have one value per tensor id (without ``tensor``: per op, since then each
op has one output); messages without data take ``control_time``.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, final, overload

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Cluster",
    "Graph",
    "OpGraph",
    "Schedule",
    "adjusting_placement",
    "batch_merge",
    "bounds",
    "breakpoints",
    "contract",
    "cpd_topo",
    "critical_path",
    "dfs_topo",
    "dominant_sequences",
    "edges",
    "exact_breakpoints",
    "fill_in_order",
    "follow_bytes",
    "fuse",
    "heads_and_tails",
    "levels",
    "linear_clusters",
    "m_topo",
    "mean_time",
    "multilevel_partition",
    "needed_control",
    "optimistic_costs",
    "parallel_merge",
    "partition",
    "peak_bytes",
    "placed_paths",
    "priority_order",
    "refine_placement",
    "repeated_groups",
    "round_robin",
    "schedule",
    "schedule_earliest",
    "schedule_placed",
    "search",
    "search_windows",
    "segments",
    "simulate",
]

_Ids = NDArray[np.int32] | NDArray[np.int64]
_Sizes = NDArray[np.uint64] | NDArray[np.int64]
_Seconds = NDArray[np.float64]

class _Bounds(TypedDict):
    critical_path: float
    work: float
    forced_transfers: float
    heads_and_tails: float
    best: float
    source: str

class _Obstacles(TypedDict):
    types: int
    max_time: int
    max_bytes: int
    cycle: int
    slow: bool

@final
class Graph:
    def __new__(
        cls,
        n_ops: int,
        src: _Ids,
        dst: _Ids,
        tensor: _Ids | None = None,
        *,
        tensor_bytes: _Sizes | None = None,
        resident: _Sizes | None = None,
        workspace: _Sizes | None = None,
        output_bytes: _Sizes | None = None,
        colocation: _Ids | None = None,
        allowed: _Sizes | None = None,
    ) -> Graph: ...
    @property
    def n_ops(self) -> int: ...
    @property
    def n_edges(self) -> int: ...
    @property
    def n_tensor_ids(self) -> int: ...
    @property
    def tensor_bytes(self) -> NDArray[np.uint64]: ...
    @property
    def static_bytes(self) -> NDArray[np.uint64]: ...
    @property
    def resident(self) -> NDArray[np.uint64]: ...
    @property
    def workspace(self) -> NDArray[np.uint64]: ...
    @property
    def allowed(self) -> NDArray[np.uint64]: ...
    @property
    def lead(self) -> NDArray[np.int32]: ...
    @property
    def colocation(self) -> NDArray[np.int32]: ...
    def without_advice(self) -> Graph: ...
    def restricted(self, masks: _Sizes) -> Graph: ...
    def kept_to(self, devices: _Ids) -> Graph: ...
    def flows(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint32], NDArray[np.uint64]]: ...

@final
class OpGraph:
    def __new__(
        cls,
        name: list[str],
        src: _Ids,
        dst: _Ids,
        tensor: _Ids | None,
        bytes: _Sizes,
        *,
        view: NDArray[np.bool_],
        placeholder: NDArray[np.bool_],
        alias_of: _Ids,
        colocation: _Ids,
        output_bytes: _Sizes,
        resident: _Sizes,
        workspace: _Sizes,
    ) -> OpGraph: ...
    @property
    def n_ops(self) -> int: ...
    def reduce(
        self, allowed: _Sizes | None = None
    ) -> tuple[Graph, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]: ...

@final
class Cluster:
    def __new__(
        cls,
        devices: list[tuple[str, str, int]],
        links: list[tuple[str, str, float, float, list[str]]],
    ) -> Cluster: ...
    @property
    def n_devices(self) -> int: ...
    @property
    def types(self) -> list[str]: ...
    @property
    def device_types(self) -> list[int]: ...
    @property
    def channels(self) -> list[str]: ...
    @property
    def mean_link(self) -> tuple[float, float]: ...
    @property
    def slowest_link(self) -> tuple[float, float]: ...
    def route(self, src: int, dst: int) -> tuple[float, float, list[int], list[int]]: ...
    def transfer_time(self, src: int, dst: int, bytes: int) -> float: ...

@final
class Schedule:
    @property
    def makespan(self) -> float: ...
    @property
    def start(self) -> _Seconds: ...
    @property
    def finish(self) -> _Seconds: ...
    @property
    def device_busy(self) -> _Seconds: ...
    @property
    def channel_busy(self) -> _Seconds: ...
    @property
    def peak(self) -> NDArray[np.uint64]: ...
    @property
    def static_bytes(self) -> NDArray[np.uint64]: ...
    @property
    def bytes_moved(self) -> int: ...
    @property
    def n_transfers(self) -> int: ...
    @property
    def overflow(
        self,
    ) -> tuple[int, float, int, int, list[tuple[int, int, bool]]] | None: ...
    def transfers(self) -> dict[str, NDArray[Any]]: ...
    def blame(self) -> list[tuple[int, int, float, float, str]]: ...
    def waited(self, op: int) -> tuple[str, int]: ...
    def memory(self) -> tuple[_Seconds, NDArray[np.int32], NDArray[np.uint64]]: ...

def levels(
    graph: Graph, op_time: _Seconds, tensor_time: _Seconds, *, control_time: float = 0.0
) -> tuple[_Seconds, _Seconds]: ...
def m_topo(graph: Graph) -> NDArray[np.int32]: ...
def dfs_topo(graph: Graph) -> NDArray[np.int32]: ...
def cpd_topo(
    graph: Graph, op_time: _Seconds, tensor_time: _Seconds, *, control_time: float = 0.0
) -> NDArray[np.int32]: ...
def breakpoints(
    graph: Graph,
    order: _Ids,
    tensor_time: _Seconds,
    *,
    control_time: float = 0.0,
    op_time: _Seconds | None = None,
    op_bytes: _Sizes | None = None,
    max_ops: int | None = None,
    max_bytes: int | None = None,
    max_time: float | None = None,
) -> NDArray[np.int32]: ...
def batch_merge(
    graph: Graph,
    op_time: _Seconds,
    tensor_time: _Seconds,
    groups: int,
    *,
    control_time: float = 0.0,
    op_bytes: _Sizes | None = None,
    max_time: float | None = None,
    max_bytes: int | None = None,
) -> tuple[NDArray[np.int32], _Obstacles]: ...
def repeated_groups(
    graph: Graph,
    op_time: _Seconds,
    tensor_time: _Seconds,
    rounds: int,
    max_times: Sequence[float],
    *,
    control_time: float = 0.0,
) -> list[NDArray[np.int32]]: ...
def multilevel_partition(
    graph: Graph,
    op_time: _Seconds,
    tensor_time: _Seconds,
    groups: int,
    *,
    control_time: float = 0.0,
    op_bytes: _Sizes | None = None,
    max_time: float | None = None,
    max_bytes: int | None = None,
) -> tuple[NDArray[np.int32], _Obstacles]: ...
def parallel_merge(
    graph: Graph,
    op_time: _Seconds,
    tensor_time: _Seconds,
    groups: int,
    *,
    control_time: float = 0.0,
    op_bytes: _Sizes | None = None,
    max_time: float | None = None,
    max_bytes: int | None = None,
) -> tuple[NDArray[np.int32], _Obstacles]: ...
def fuse(
    graph: Graph,
    op_time: _Seconds,
    kind: _Ids,
    rules: list[list[list[int]]],
    groups: int,
    *,
    op_bytes: _Sizes | None = None,
    max_time: float | None = None,
    max_bytes: int | None = None,
) -> tuple[NDArray[np.int32], _Obstacles]: ...
def exact_breakpoints(
    graph: Graph,
    order: _Ids,
    tensor_time: _Seconds,
    segments: int,
    *,
    control_time: float = 0.0,
    op_time: _Seconds | None = None,
    op_bytes: _Sizes | None = None,
    max_bytes: int | None = None,
    max_time: float | None = None,
) -> tuple[NDArray[np.int32], float]: ...
def refine_placement(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    order: _Ids,
    devices: _Ids,
    levels: list[NDArray[np.int32]],
    *,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    budget: int = 100000000,
) -> tuple[NDArray[np.int32], float, int]: ...
def edges(
    graph: Graph,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.uint64],
    NDArray[np.bool_],
]: ...
def segments(order: _Ids, cuts: _Ids) -> NDArray[np.int32]: ...
def needed_control(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def contract(graph: Graph, group: _Ids, *, colocated: bool = False) -> Graph: ...
def fill_in_order(
    graph: Graph,
    cluster: Cluster,
    order: _Ids,
    *,
    devices: _Ids | None = None,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    best_effort: bool = False,
) -> NDArray[np.int32]: ...
def round_robin(
    graph: Graph,
    cluster: Cluster,
    order: _Ids,
    *,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    best_effort: bool = False,
) -> NDArray[np.int32]: ...
def follow_bytes(
    graph: Graph,
    cluster: Cluster,
    order: _Ids,
    *,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    best_effort: bool = False,
) -> NDArray[np.int32]: ...
def adjusting_placement(
    graph: Graph,
    cluster: Cluster,
    order: _Ids,
    time: _Seconds,
    *,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    best_effort: bool = False,
    contention: bool = True,
) -> tuple[NDArray[np.int32], _Seconds, _Seconds]: ...
def schedule(
    graph: Graph,
    cluster: Cluster,
    order: _Ids,
    time: _Seconds,
    *,
    pinned: _Ids | None = None,
    bias: _Seconds | None = None,
    lead: _Ids | None = None,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    best_effort: bool = False,
    contention: bool = True,
    delay_weight: int = 2,
) -> tuple[NDArray[np.int32], _Seconds, _Seconds]: ...
def schedule_earliest(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    ties: _Ids,
    *,
    favourite: _Ids | None = None,
    lead: _Ids | None = None,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    best_effort: bool = False,
    contention: bool = True,
) -> tuple[NDArray[np.int32], _Seconds, _Seconds]: ...
def schedule_placed(
    graph: Graph,
    cluster: Cluster,
    order: _Ids,
    time: _Seconds,
    devices: _Ids,
    *,
    contention: bool = True,
) -> tuple[_Seconds, _Seconds]: ...
def search(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    devices: _Ids,
    order: _Ids,
    *,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    lead: _Ids | None = None,
    seed: int | None = None,
    moves: int | None = None,
    visits: int | None = None,
    time_limit: float | None = None,
    patience: int | None = None,
    target: float = 0.0,
    chains: int = 1,
    threads: int = 1,
    progress: Callable[[NDArray[np.int32], NDArray[np.int32], float], object] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], float, int, int]: ...
def search_windows(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    devices: _Ids,
    order: _Ids,
    *,
    op_bytes: _Sizes | None = None,
    capacity: _Sizes | None = None,
    lead: _Ids | None = None,
    seed: int | None = None,
    visits: int | None = None,
    time_limit: float | None = None,
    patience: int | None = None,
    target: float = 0.0,
    chains: int = 1,
    threads: int = 1,
    progress: Callable[[NDArray[np.int32], NDArray[np.int32], float], object] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], float, int, int]: ...
def partition(
    weight: _Sizes, src: _Ids, dst: _Ids, edge: _Sizes, share: _Seconds
) -> NDArray[np.int32]: ...
def priority_order(graph: Graph, priority: _Seconds) -> NDArray[np.int32]: ...
def optimistic_costs(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    tensor_time: _Seconds,
    *,
    control_time: float = 0.0,
) -> _Seconds: ...
def critical_path(
    graph: Graph, op_time: _Seconds, tensor_time: _Seconds, *, control_time: float = 0.0
) -> NDArray[np.int32]: ...
def linear_clusters(
    graph: Graph, op_time: _Seconds, tensor_time: _Seconds, *, control_time: float = 0.0
) -> NDArray[np.int32]: ...
def dominant_sequences(
    graph: Graph, op_time: _Seconds, tensor_time: _Seconds, *, control_time: float = 0.0
) -> NDArray[np.int32]: ...
def placed_paths(
    graph: Graph, cluster: Cluster, time: _Seconds, devices: _Ids
) -> tuple[_Seconds, NDArray[np.int32]]: ...
def peak_bytes(graph: Graph, order: _Ids | None = None) -> tuple[int, NDArray[np.uint64]]: ...
def mean_time(graph: Graph, cluster: Cluster, time: _Seconds) -> _Seconds: ...
@overload
def simulate(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    devices: _Ids,
    priority: _Ids | None = None,
    *,
    policy: str = "priority",
    contention: bool = True,
    link_order: str = "fifo",
    seed: int | None = None,
    record_memory: bool = False,
    below: None = None,
) -> Schedule: ...
@overload
def simulate(
    graph: Graph,
    cluster: Cluster,
    time: _Seconds,
    devices: _Ids,
    priority: _Ids | None = None,
    *,
    policy: str = "priority",
    contention: bool = True,
    link_order: str = "fifo",
    seed: int | None = None,
    record_memory: bool = False,
    below: float,
) -> Schedule | None: ...
def bounds(graph: Graph, cluster: Cluster, time: _Seconds) -> _Bounds: ...
def heads_and_tails(
    graph: Graph, cluster: Cluster, time: _Seconds
) -> tuple[_Seconds, _Seconds]: ...
