"""A plan as a JSON document: version 3 is written, and older versions are read (:mod:`.older`).

A document holds the graph, the cluster and the costs that the plan was made for, so that the plan
can be explained and simulated on any machine. Hashes tell whether a plan is for another graph or
cluster. Where the user's graph was transformed, the document holds both graphs, the program's
columns, and the recipe if there is one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError, malformed
from loadmaster.base.files import check_format, limited_input, naming, parse_json, read_bytes
from loadmaster.costs import PROVENANCES, Costs
from loadmaster.judge.bounds import SPACES
from loadmaster.judge.objective import OBJECTIVES
from loadmaster.judge.policies import PLAN_POLICIES
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import reduced_assignment
from loadmaster.judge.streaming import MOST_IN_FLIGHT, judge
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.program import COLUMNS, ROLES, Program, Split
from loadmaster.model.recipe import Recipe
from loadmaster.plans import older
from loadmaster.plans.plan import Plan
from loadmaster.rules.constraints import Constraints
from loadmaster.strategies.candidate import Best
from loadmaster.strategies.kinds import Kind, Request

FORMAT = "loadmaster-plan"
VERSION = 3


def read_plan(
    path: str | os.PathLike[str],
    graph: OpGraph | None = None,
    cluster: Cluster | None = None,
    *,
    max_input: int | str | None = None,
) -> Plan:
    """The plan of a file; see :meth:`Plan.load`."""
    with limited_input(max_input):
        document = parse_json(read_bytes(path), path)
    return plan_of_document(document, os.fspath(path), graph, cluster)


@dataclass(frozen=True)
class _Range:
    """Whole numbers from ``least`` to ``most``, which may differ by row."""

    least: int
    most: int | NDArray[np.int64]

    def has_all_of(self, column: NDArray[np.integer[Any]]) -> bool:
        """True if every number of a column is within."""
        return bool(((column >= self.least) & (column <= self.most)).all())


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as the document of version 3."""
    program, problem, verdict = plan.program, plan.problem, plan.verdict
    asked = plan.constraints.to_document()
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadmaster": metadata.version("loadmaster"),
        "method": plan.method,
        "options": dict(plan.options),
        **({} if plan.target is None else {"target": plan.target}),
        "seed": plan.seed,
        "makespan": plan.makespan,
        "objective": plan.objective.goal,
        "period": verdict.period,
        "latency": plan.latency,
        "in_flight": plan.in_flight,
        "limit": plan.limit,
        "peak": verdict.peak.tolist(),
        "excess": verdict.excess,
        "lower_bound": plan.lower_bound,
        "bound_source": plan.bound_source,
        "space": plan.space,
        "bounds": dict(plan.bounds),
        "offers": [_offer_row(one) for one in plan.offers],
        "left_out": [list(row) for row in plan.left_out],
        "notes": list(plan.notes),
        "planning_seconds": plan.planning_seconds,
        "estimate": plan.estimate,
        "graph_sha256": plan.graph.digest,
        **({"splits": _rows(plan.splits)} if program.is_plain and plan.splits else {}),
        **({} if plan.constraints.is_empty else {"constraints": asked}),
        "cluster_sha256": plan.cluster.digest,
        "policy": plan.policy,
        "devices": plan.running_devices.tolist(),
        "priority": plan.running_priority.tolist(),
        "costs": _costs_document(problem.costs),
        "cluster": plan.cluster.to_toml(),
        "graph": plan.graph.to_document(),
        **({} if program.is_plain else {"program": _program_document(problem)}),
        **({} if plan.recipe is None else {"recipe": plan.recipe.to_document()}),
        **({} if plan.parallelism is None else {"parallelism": plan.parallelism.to_document()}),
        **({"for_writer": dict(plan.for_writer)} if plan.for_writer else {}),
    }


def _offer_row(offer: Best) -> dict[str, Any]:
    """An offer as plain data; its kind is empty where it has none."""
    request = offer.request
    asked = request and {"method": request.method, "options": dict(request.options)}
    return vars(offer) | {"kind": offer.kind or "", "request": asked}


def _rows(splits: tuple[Split, ...]) -> list[list[Any]]:
    return [[split.op, split.dimension, split.n] for split in splits]


def _costs_document(costs: Costs) -> dict[str, Any]:
    """Costs as plain data: words of kernels that no op has are not listed."""
    last = int(costs.provenance.max(initial=0))
    n = max(last + 1, PROVENANCES.index("kernels"))
    return {
        "types": list(costs.types),
        "time": costs.time.tolist(),
        "provenance": costs.provenance.tolist(),
        "provenances": list(PROVENANCES[:n]),
    }


def _program_document(problem: Problem) -> dict[str, Any]:
    """The graph that runs, which op serves which, and the costs of the user's ops."""
    program = problem.program
    return {
        "sha256": program.graph.digest,
        "columns": {name: getattr(program, name).tolist() for name in COLUMNS},
        "roles": list(ROLES),
        "batches": program.batches,
        "splits": _rows(program.splits),
        "notes": list(program.notes),
        "costs": _costs_document(problem.user_costs),
        "graph": program.graph.to_document(),
    }


def plan_of_document(
    document: Any, source: str, graph: OpGraph | None = None, cluster: Cluster | None = None
) -> Plan:
    """The plan of a document, simulated again; ``source`` is named in errors.

    Raises
    ------
    InputError
        Not a plan, another version, damaged, or a plan for another graph or cluster.
    """
    check_format(document, FORMAT, VERSION, "a plan", source, older=older.VERSIONS)
    with malformed(f"{source} is a damaged plan"):
        if document["version"] in older.VERSIONS:
            document, graph = older.upgraded(document, source, graph)
        return _DocumentReader(document, source).plan(graph, cluster)


def _is_size(size: object) -> bool:
    """True if it is a number of bytes, or None for what is not known."""
    return size is None or (checks.is_integer(size) and size >= 0)


class _DocumentReader:
    """Reads one document and says what is wrong with it."""

    def __init__(self, document: Mapping[str, Any], source: str) -> None:
        self.document, self.source = document, source

    def expect(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise InputError(f"{self.source} is damaged: {complaint}")

    def plan(self, graph: OpGraph | None, cluster: Cluster | None) -> Plan:
        document, expect = self.document, self.expect
        own_graph = OpGraph.from_document(document["graph"], self.source)
        own_cluster = Cluster.from_toml(document["cluster"], self.source, bare=True)
        self._check_same("cluster", own_cluster, cluster, document["cluster_sha256"])
        is_meant = graph is not None and own_graph.is_same(graph)
        self._check_same(
            "graph", own_graph, own_graph if is_meant else graph, document["graph_sha256"]
        )
        expect(isinstance(document["priority"], list), "priority is no list")
        expect(isinstance(document["options"], Mapping), "options are no object")
        expect(isinstance(document["method"], str), "method is no text")
        target = document.get("target")
        expect(target is None or isinstance(target, str), "target is no text")
        expect(isinstance(document["bound_source"], str), "bound_source is no text")
        problem = self._problem(own_graph, own_cluster)
        policy = document["policy"]
        expect(policy in PLAN_POLICIES, f"policy is {policy!r}: wants one of {PLAN_POLICIES}")
        estimate = document["estimate"]
        expect(
            estimate is None or (checks.is_number(estimate) and estimate >= 0),
            f"estimate is {estimate!r}: wants seconds >= 0, or null",
        )
        assignment = replace(
            reduced_assignment(problem, document["devices"], document["priority"]),
            policy=policy,
            estimate=None if estimate is None else float(estimate),
        )
        verdict = judge(problem, assignment, window=self._window(problem))
        return Plan(
            problem=problem,
            assignment=assignment,
            verdict=verdict,
            method=document["method"],
            options=document["options"],
            lower_bound=self._lower_bound(problem.objective.seconds(verdict)),
            bound_source=document["bound_source"],
            **self._spaces(),
            notes=self._notes(document["notes"]),
            planning_seconds=checks.not_negative("planning_seconds", document["planning_seconds"]),
            constraints=self._constraints(),
            target=target,
            parallelism=self._parallelism(),
            for_writer=self._for_writer(),
        )

    def _check_same(
        self, noun: str, own: OpGraph | Cluster, wanted: OpGraph | Cluster | None, digest: str
    ) -> None:
        """Refuses a graph or cluster that does not match its hash or is not the one wanted."""
        if own.digest != digest:
            raise InputError(f"{self.source} is damaged: its {noun} does not match its hash")
        if wanted is not None and wanted.digest != digest:
            raise InputError(f"{self.source} is a plan for another {noun}: {own!r}, not {wanted!r}")

    def _problem(self, graph: OpGraph, cluster: Cluster) -> Problem:
        document = self.document
        program, source_costs = Program.of(graph), None
        recipe = self._recipe(document["recipe"], graph, cluster) if "recipe" in document else None
        imbalance = 1.0 if recipe is None else recipe.expert_imbalance
        if "program" in document:
            described = document["program"]
            program = self._program(graph, described, imbalance)
            source_costs = self._costs(described["costs"], graph, cluster)
        elif "splits" in document:
            program = replace(program, splits=self._splits(document["splits"]))
        if recipe is not None:
            program = replace(program, recipe=recipe)
        goal = document["objective"]
        self.expect(goal in OBJECTIVES, f"objective is {goal!r}: wants one of {[*OBJECTIVES]}")
        problem = Problem.make(
            program,
            cluster,
            self._costs(document["costs"], program.graph, cluster),
            seed=checks.seed(document["seed"]),
            expert_imbalance=imbalance,
            source_costs=source_costs,
        )
        return replace(problem, objective=OBJECTIVES[goal])

    def _window(self, problem: Problem) -> int | None:
        """Steps under way at a time; None: the plan is for a step alone."""
        if problem.objective.goal == "step":
            return None
        window, rest = divmod(self.document["in_flight"], problem.program.batches)
        self.expect(
            not rest and 1 <= window <= MOST_IN_FLIGHT,
            f"in_flight is {self.document['in_flight']!r}: wants a multiple of the batches of a "
            f"step, {problem.program.batches}, of at most {MOST_IN_FLIGHT} steps",
        )
        return int(window)

    def _recipe(self, document: Any, graph: OpGraph, cluster: Cluster) -> Recipe:
        """The recipe, if it speaks of this graph and this cluster."""
        with naming(f"{self.source} is damaged"):
            recipe = Recipe.from_document(document)
            recipe.mesh.on(cluster)
            recipe.words(graph)
            recipe.stage_of(graph)
        return recipe

    def _costs(self, costs: Any, graph: OpGraph, cluster: Cluster) -> Costs:
        expect = self.expect
        with naming(f"{self.source} is damaged"):
            known = Costs.given(np.array(costs["time"], dtype=np.float64), graph, cluster)
        expect(tuple(costs["types"]) == known.types, "costs.types are not the cluster's")
        expect(set(costs["provenances"]) <= set(PROVENANCES), "an unknown word in provenances")
        words = np.array([PROVENANCES.index(word) for word in costs["provenances"]], dtype=np.uint8)
        sources = self._column(
            "costs.provenance", costs["provenance"], graph.n_ops, _Range(0, len(words) - 1)
        )
        return Costs(known.time, known.types, words[sources])

    def _column(self, name: str, values: Any, n: int, within: _Range) -> NDArray[np.int64]:
        """A column of whole numbers within a range."""
        column = np.array(values)
        if not len(column):
            column = column.astype(np.int64)
        self.expect(column.shape == (n,), f"{name} has the wrong length")
        self.expect(column.dtype.kind in "iu", f"{name} is no list of integers")
        self.expect(within.has_all_of(column), f"{name} is out of range")
        return column.astype(np.int64)

    def _program(self, source: OpGraph, described: Any, imbalance: float) -> Program:
        """The program of a version-2 document; ``imbalance`` is that of its experts."""
        graph = OpGraph.from_document(described["graph"], self.source)
        self.expect(
            graph.digest == described["sha256"], "its graph that runs does not match its hash"
        )
        columns, n, most = described["columns"], graph.n_ops, np.iinfo(np.int32).max
        self.expect(tuple(described["roles"]) == ROLES, "an unknown word in roles")
        share = np.array(columns["share"], dtype=np.float64)
        self.expect(share.shape == (n,), "share has the wrong length")
        # An expert may do more than its op says, by what others do less; in thousandths.
        is_share = (share >= 0) & (share <= imbalance + 0.001)
        self.expect(bool(is_share.all()), "share is out of range")
        parts = self._column("parts", columns["parts"], n, _Range(1, most))
        ranges = {
            "serves": _Range(0, source.n_ops - 1),
            "part": _Range(0, parts - 1),
            "parts": _Range(1, most),
            "replica": _Range(-1, most),
            "micro": _Range(-1, most),
            "role": _Range(0, len(ROLES) - 1),
            "rank": _Range(-1, most),
        }
        whole: dict[str, Any] = {
            name: self._column(name, columns[name], n, within).astype(
                np.uint8 if name == "role" else np.int32
            )
            for name, within in ranges.items()
        }
        program = Program(
            source,
            graph,
            **whole,
            share=share,
            splits=self._splits(described["splits"]),
            batches=checks.integer("batches", described["batches"]),
            notes=self._notes(described["notes"]),
        )
        served = np.bincount(program.origin[~program.own], minlength=source.n_ops)
        self.expect(bool(served.all()), "no op serves some op of the graph")
        return program

    def _notes(self, notes: Any) -> tuple[str, ...]:
        texts = isinstance(notes, list) and all(isinstance(note, str) for note in notes)
        self.expect(texts, "notes are no list of texts")
        return tuple(notes)

    def _splits(self, rows: Any) -> tuple[Split, ...]:
        splits = tuple(Split(*row) for row in rows)
        self.expect(
            all(
                isinstance(split.op, str) and isinstance(split.dimension, str) and split.n >= 2
                for split in splits
            ),
            "splits are no list of op, dimension and number",
        )
        return splits

    def _lower_bound(self, makespan: float) -> float:
        bound = self.document["lower_bound"]
        self.expect(
            checks.is_number(bound) and 0 <= bound <= makespan * (1 + 1e-9),
            f"lower_bound is {bound!r} where the plan takes {makespan} s",
        )
        return float(bound)

    def _spaces(self) -> dict[str, Any]:
        """The fields on spaces of plans."""
        space, bounds = self.document["space"], self.document["bounds"]
        offers = tuple(self._offer(row) for row in self.document["offers"])
        left_out = tuple((kind, why) for kind, why in self.document["left_out"])
        self.expect(space in SPACES, f"space is {space!r}: wants one of {SPACES}")
        self.expect(
            isinstance(bounds, Mapping)
            and set(bounds) <= set(SPACES)
            and all(checks.is_number(seconds) and seconds >= 0 for seconds in bounds.values()),
            "bounds are no seconds by space",
        )
        self.expect(
            all(
                offer.space in SPACES
                and isinstance(offer.what, str)
                and checks.is_number(offer.seconds)
                and all(_is_size(size) for size in (offer.peak, offer.memory))
                for offer in offers
            ),
            "offers are no list of space, words, seconds, kind, peak, memory and request",
        )
        self.expect(
            all(isinstance(text, str) for row in left_out for text in row),
            "left_out is no list of kinds and reasons",
        )
        return {"space": space, "bounds": dict(bounds), "offers": offers, "left_out": left_out}

    def _offer(self, row: Mapping[str, Any]) -> Best:
        kind, request = row["kind"], row["request"]
        self.expect(kind in ("", *Kind), f"one of the offers is of an unknown kind, {kind!r}")
        return Best(
            row["space"],
            row["what"],
            row["seconds"],
            Kind(kind) if kind else None,
            row["peak"],
            row["memory"],
            request and Request(request["method"], tuple(request["options"].items())),
        )

    def _constraints(self) -> Constraints:
        return Constraints.from_document(self.document.get("constraints", {}), self.source)

    def _for_writer(self) -> Mapping[str, Any]:
        facts = self.document.get("for_writer", {})
        self.expect(isinstance(facts, Mapping), "for_writer is no table")
        return dict(facts)

    def _parallelism(self) -> Parallelism | None:
        if "parallelism" not in self.document:
            return None
        with naming(f"{self.source} is damaged"):
            return Parallelism.from_document(self.document["parallelism"])
