"""Plain and slow: what the fast functions must agree with, written from the design alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from strategies import Plain

from loadmaster import Cluster


class StuckError(Exception):
    """A fixed sequence that can never run."""


@dataclass
class Seen:
    """What happened, in ms and bytes."""

    start: dict[int, int] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    sent: dict[tuple, tuple[int, int, int]] = field(default_factory=dict)
    peak: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    copied: dict[tuple, int] = field(default_factory=dict)
    launched: dict[int, int] = field(default_factory=dict)


def launches(
    graph: Plain,
    device: list[int],
    priority: list[int],
    policy: str,
    dispatch: list[int],
    one_host: bool,
) -> dict[int, int]:
    """When each op is launched, in ms, in the order of launches; fewer where ops block others."""
    before = [{s for s, d, _ in graph.edges if d == u} for u in range(graph.n)]
    if policy == "fixed":
        for u in range(graph.n):
            mine = [v for v in range(graph.n) if device[v] == device[u]]
            before[u] |= {v for v in mine if (priority[v], v) < (priority[u], u)}
    busy: dict[int, int] = {}
    at: dict[int, int] = {}
    since: dict[int, int] = {}
    while True:
        for u in range(graph.n):
            if before[u] <= set(at):
                since.setdefault(u, len(at))
        free = [u for u in since if u not in at]
        if not free:
            return at
        u = min(free, key=lambda u: (since[u] if policy == "fifo" else priority[u], u))
        host = 0 if one_host else device[u]
        at[u] = busy[host] = busy.get(host, 0) + dispatch[u]


def simulate(
    graph: Plain,
    cluster: Cluster,
    time: list[list[int]],
    device: list[int],
    priority: list[int],
    *,
    policy: str = "priority",
    contention: bool = True,
    link_order: str = "fifo",
    dispatch: list[int] | None = None,
    one_host: bool = True,
) -> Seen:
    """The design's section 6, round by round. ``time[op][type]`` and everything else in ms."""
    n, k = graph.n, cluster.n_devices
    kinds = cluster.device_types
    # A tensor with data is (0, id); the control message of an op is (1, op): last among ties.
    made: dict[tuple, int] = {}
    readers: dict[tuple, set[int]] = {}
    for s, d, t in graph.edges:
        key = (1, s) if t < 0 else (0, t)
        made[key] = s
        readers.setdefault(key, set()).add(d)
    size = {t: graph.tensor_bytes[t[1]] if t[0] == 0 else 0 for t in made}
    outputs = {u: [t for t in made if made[t] == u] for u in range(n)}
    missing = {u: sum(u in r for r in readers.values()) for u in range(n)}
    kept, freed_after = {}, {}
    for u in range(n):
        total = sum(size[t] for t in outputs[u])
        rest = max(graph.output_bytes[u] - total, 0) if graph.output_bytes is not None else 0
        is_read = any(t[0] == 0 for t in outputs[u])
        kept[u], freed_after[u] = (0, rest) if is_read else (rest, 0)

    uses = {}
    for t, s in made.items():
        there = {device[c] for c in readers[t]} - {device[s]}
        uses[t] = sum(device[c] == device[s] for c in readers[t]) + len(there)
    copies = {
        (t, d): sum(device[c] == d for c in readers[t])
        for t, s in made.items()
        for d in {device[c] for c in readers[t]} - {device[s]}
    }

    seen = Seen(used=[0] * k, peak=[0] * k)
    for u in range(n):
        seen.used[device[u]] += graph.resident[u]
    seen.peak = list(seen.used)

    def take(d, b):
        seen.used[d] += b
        seen.peak[d] = max(seen.peak[d], seen.used[d])

    place = {u: (priority[u], u) for u in range(n)}
    if dispatch is not None:
        launched = launches(graph, device, priority, policy, dispatch, one_host)
        if len(launched) < n:
            raise StuckError
        seen.launched, policy = launched, "fixed"
        ranked = sorted(launched, key=launched.__getitem__)
        place = {u: (i, u) for i, u in enumerate(ranked)}
        missing = {u: missing[u] + (launched[u] > 0) for u in range(n)}
    ready = {u: 0 for u in range(n) if missing[u] == 0}
    sequence = {
        d: sorted((u for u in range(n) if device[u] == d), key=place.__getitem__) for d in range(k)
    }
    outbox: dict[int, list[tuple]] = {d: [] for d in range(k)}
    copying: dict[int, tuple[int, tuple]] = {}  # per device: the end, and the message
    running: dict[int, int] = {}
    routes = {}
    queue: list[tuple] = []  # (urgency, arrival, message), message = (tensor, destination)
    under_way: dict[tuple, int] = {}
    arrivals = 0
    now = 0

    def route(message):
        pair = device[made[message[0]]], message[1]
        if pair not in routes:
            r = cluster.route(*pair)
            routes[pair] = (round(r.latency * 1000), round(1000 / r.bandwidth), r.channels)
        return routes[pair]

    def channels(message):
        return set(route(message)[2])

    def enqueue(messages):
        nonlocal arrivals
        for message in sorted(messages):
            t, x = message
            urgency = min(priority[c] for c in readers[t] if device[c] == x)
            queue.append((urgency if link_order == "priority" else 0, arrivals, message))
            arrivals += 1
            seen.sent[message] = (now, -1, -1)
            seen.copied.setdefault(message, now)

    while True:
        # Starts: devices, then channels.
        for d in range(k):
            if d not in running and d not in copying and outbox[d]:
                message = outbox[d].pop(0)
                cost = cluster.types[kinds[d]].send_cost
                takes = round(1000 * (cost.latency + size[message[0]] / cost.bandwidth))
                copying[d] = now + takes, message
                seen.copied[message] = now
            here = [u for u in ready if device[u] == d]
            if d in running or d in copying or not here:
                continue
            if policy == "priority":
                op = min(here, key=lambda u: (priority[u], u))
            elif policy == "fifo":
                op = min(here, key=lambda u: (ready[u], u))
            elif sequence[d][0] in here:
                op = sequence[d].pop(0)
            else:
                continue
            del ready[op]
            running[d] = op
            seen.start[op] = now
            seen.finish[op] = now + time[op][kinds[d]]
            take(
                d,
                graph.workspace[op]
                + kept[op]
                + freed_after[op]
                + sum(size[t] for t in outputs[op]),
            )
        busy = set().union(*map(channels, under_way)) if contention else set()
        waiting = sorted(queue)
        for entry in waiting:
            message = entry[2]
            needs = channels(message) if contention else set()
            if needs & busy:
                busy |= needs  # those behind it in any of its queues wait as well
                continue
            busy |= needs
            queue.remove(entry)
            latency, per_byte, _ = route(message)
            finish = now + latency + size[message[0]] * per_byte
            under_way[message] = finish
            seen.sent[message] = (seen.sent[message][0], now, finish)
            take(message[1], size[message[0]])
        # The next instant's completions.
        ends = [seen.finish[u] for u in running.values()] + list(under_way.values())
        ends += [end for end, _ in copying.values()]
        ends += [at for at in seen.launched.values() if at > now]
        if not ends:
            break
        arrived = [u for u, at in seen.launched.items() if now < at == min(ends)]
        now = min(ends)
        fresh = []
        done = []
        for d in [d for d, u in running.items() if seen.finish[u] == now]:
            op = running.pop(d)
            seen.used[d] -= graph.workspace[op] + freed_after[op]
            for t, s in made.items():
                if op in readers[t]:
                    if device[s] == d:
                        uses[t] -= 1
                        if uses[t] == 0:
                            seen.used[d] -= size[t]
                    else:
                        copies[t, d] -= 1
                        if copies[t, d] == 0:
                            seen.used[d] -= size[t]
            for t in outputs[op]:
                arrived += [c for c in readers[t] if device[c] == d]
                fresh += [(t, x) for x in {device[c] for c in readers[t]} - {d}]
        for message in [m for m, end in under_way.items() if end == now]:
            del under_way[message]
            t, x = message
            uses[t] -= 1
            if uses[t] == 0:
                seen.used[device[made[t]]] -= size[t]
            arrived += [c for c in readers[t] if device[c] == x]
        for d in [d for d, (end, _) in copying.items() if end == now]:
            done.append(copying.pop(d)[1])
        for c in arrived:
            missing[c] -= 1
            if missing[c] == 0:
                ready[c] = now
        for message in sorted(fresh):
            src = device[made[message[0]]]
            if cluster.types[kinds[src]].send_cost is None:
                done.append(message)
            else:
                outbox[src].append(message)
        enqueue(done)
    if len(seen.start) < n:
        raise StuckError
    return seen


def levels(graph: Plain, tensor_time: list[int], control_time: int) -> tuple[list[int], list[int]]:
    """Longest path to and from each op, by walking every path."""
    out: dict[int, list[tuple[int, int]]] = {u: [] for u in range(graph.n)}
    into: dict[int, list[tuple[int, int]]] = {u: [] for u in range(graph.n)}
    for s, d, t in graph.edges:
        cost = control_time if t < 0 else tensor_time[t]
        out[s].append((d, cost))
        into[d].append((s, cost))

    def top(u):
        return max((top(s) + graph.time[s] + c for s, c in into[u]), default=0)

    def bottom(u):
        return graph.time[u] + max((c + bottom(d) for d, c in out[u]), default=0)

    return [top(u) for u in range(graph.n)], [bottom(u) for u in range(graph.n)]


def cut_cost(graph: Plain, segment: list[int], tensor_time: list[int], control_time: int) -> int:
    """Transfers, weighted by time, if every segment has a device of its own."""
    crossing = {
        ((1, s) if t < 0 else (0, t), segment[d])
        for s, d, t in graph.edges
        if segment[s] != segment[d]
    }
    return sum(control_time if t[0] else tensor_time[t[1]] for t, _ in crossing)


def peak_bytes(graph: Plain, order: list[int]) -> int:
    """Most bytes that running ops in this order on one device holds."""
    position = {u: i for i, u in enumerate(order)}
    tensors: dict[int, tuple[int, int]] = {}
    for s, d, t in graph.edges:
        if t >= 0:
            _, last = tensors.get(t, (s, 0))
            tensors[t] = (s, max(last, position[d]))
    worst = 0
    for i, op in enumerate(order):
        used = sum(graph.resident) + graph.workspace[op]
        for t, (s, last) in tensors.items():
            used += graph.tensor_bytes[t] if position[s] <= i <= last else 0
        if graph.output_bytes is not None:
            for u in range(graph.n):
                mine = [t for t, (s, _) in tensors.items() if s == u]
                rest = max(graph.output_bytes[u] - sum(graph.tensor_bytes[t] for t in mine), 0)
                if position[u] == i or (position[u] < i and not mine):
                    used += rest
        worst = max(worst, used)
    return worst
