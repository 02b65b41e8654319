"""The kinds of inputs of a program for XLA, and the ops that train it.

The program says neither.

A training step takes state (parameters, slots of the optimizer, counters) and returns it anew, in
the same order. So state is told by its place and by its update: the k-th input of a run of inputs
comes back as the k-th output of a run of outputs. Both have the same type, and elementwise ops make
the output of the input. These ops are the optimizer's. State that only they read is the
optimizer's, too. Other state is a parameter if its type is a floating one.

Backward ops are those that JAX's name stacks call transposed. Without name stacks, backward ops are
the ops before the optimizer on which no other output, such as the loss, depends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.base.reached import reached
from loadmaster.base.units import counted
from loadmaster.readers.xla.columns import XlaColumns, XlaValue
from loadmaster.readers.xla.costs import VIEWS, plain
from loadmaster.readers.xla.program import Type, XlaProgram

#: The most ops between an output and the input whose new value it is.
_DEPTH = 256

#: Wrappers that JAX puts around the names of modules in a path.
_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|remat|rematted_computation|checkpoint)\((.*)\)$")
_PART = re.compile(r"(?:[^/(]|\([^()]*(?:\([^()]*\)[^()]*)*\)|\()+")
_NO_MODULE = re.compile(
    r"^(?:jit|pjit|jit\(.*\)|pjit\(.*\)|while|scan|cond|body|branch_\d+(?:_fun)?|closed_call|"
    r"checkpoint|remat2?|rematted_computation|custom_[jv]{1,2}[pj]+_call|shard_map|)$"
)


def assign(
    columns: XlaColumns, program: XlaProgram, outputs: Sequence[XlaValue]
) -> list[str] | None:
    """Fills phases, modules, kinds and names of inputs, and colocation. Gives what it assumed; None
    of a program that trains nothing, whose inputs are all of one kind.

    O(V + E), and a bounded walk per output.
    """
    types = [type_ for _, type_ in program.entry.inputs]
    modules = {path: module(path) for path in set(columns.paths)}
    columns.ops["module"] = [modules[path] for path in columns.paths]
    columns.ops["phase"] = ["b" if "transpose(" in path else "f" for path in columns.paths]
    _name_inputs(columns, program, len(types))
    step = _TrainingStep(columns, types, outputs)
    if not step.is_training:
        return None
    _set_phases(columns, step, outputs)
    _set_state(columns, program, step)
    _share_modules(columns, step)
    _colocate(columns, step)
    kept = _update_in_place(columns, program, step)
    notes = [
        f"a training step: {len(step.state) + len(step.carried)} inputs that come back updated are "
        "its parameters and state"
    ]
    if kept:
        notes.append(f"{counted(kept, 'donated input is', 'donated inputs are')} updated in place")
    return notes


def module(path: str) -> str:
    """The module of an op by its name stack.

    >>> module("jit(step)/transpose(jvp(MLP))/Dense_0"), module("jit(step)/while/body")
    ('MLP.Dense_0', '')
    """
    parts = []
    for part in _PART.findall(path):
        while match := _WRAPPED.match(part):
            part = match[1]
        if not _NO_MODULE.match(part) and "->" not in part:  # an einsum has its formula there
            parts.append(part)
    return ".".join(parts)


def dotted(name: str) -> str:
    """The path of a leaf of a tree, without brackets.

    >>> dotted("state.params['Dense_0']['kernel']"), dotted("result[1][0].mu['w']")
    ('state.params.Dense_0.kernel', 'result.1.0.mu.w')
    """
    return re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", name).strip(".")


def _is_float(type_: Type) -> bool:
    return type_.dtype.startswith(("f", "bf")) and type_.dtype != "float0"


def _words(name: str) -> list[str]:
    return name.split(".")


class _TrainingStep:
    """Inputs that come back updated, the outputs that they become, and the ops that update them."""

    def __init__(
        self, columns: XlaColumns, types: Sequence[Type], outputs: Sequence[XlaValue]
    ) -> None:
        self.columns = columns
        self.n_inputs = len(types)
        self.before: list[list[int]] = [[] for _ in range(len(columns))]
        self.readers: list[list[int]] = [[] for _ in range(len(columns))]
        for src, dst in zip(columns.edges["src"], columns.edges["dst"], strict=True):
            self.before[dst].append(src)
            self.readers[src].append(dst)
        paths = columns.paths
        #: True if the program says which of its ops are transposed ones.
        self.has_paths = any("jvp(" in path for path in paths)
        walks = [self._walk(value) for value in outputs]
        shifts = Counter(
            j - i
            for j, (value, (inputs, _)) in enumerate(zip(outputs, walks, strict=True))
            for i in inputs
            if types[i] == value.type
        )
        shift = min(shifts, key=lambda s: (-shifts[s], abs(s)), default=0)
        #: Output by the input that it updates.
        self.state: dict[int, int] = {}
        updates: set[int] = set()
        for j, (inputs, ops) in enumerate(walks):
            i = j - shift
            if not 0 <= i < len(types) or types[i] != outputs[j].type:
                continue
            made_by = outputs[j].op
            if i in inputs:
                self.state[i] = made_by
                updates |= ops
            elif shifts and self._is_read_by_update(i, made_by):
                self.state[i] = made_by
                updates.add(made_by)
        self.shift = shift
        self.updates = {op for op in updates if "jvp(" not in paths[op]}
        #: State that more than the optimizer reads.
        self.read = {i for i in self.state if not self.readers_of(i) <= self.updates}
        #: Parameters: what is trained.
        self.trained = {
            i
            for i in self.read
            if _is_float(types[i]) and "batch_stats" not in columns.ops["name"][i]
        }
        #: Inputs that come back between the updated ones, otherwise made: running means, keys.
        self.carried = self._carried(types, outputs)
        if self.has_paths:
            told_apart = any("transpose(" in path for path in paths)
        else:
            # A training step sums gradients or returns a loss. A cache that comes back has neither.
            losses = [v for j, v in enumerate(outputs) if j - shift not in self.state]
            sums = any(plain(kind) == "add_any" for kind in columns.ops["kind"])
            loss = any(_is_float(v.type) and not v.type.shape for v in losses)
            told_apart = len(self.state) > 1 and (sums or loss)
        self.is_training = told_apart and bool(self.trained)

    def _is_read_by_update(self, i: int, op: int) -> bool:
        """True if an op of the optimizer reads an input; a fusion may make the gradient itself."""
        is_update = op >= self.n_inputs and "jvp(" not in self.columns.paths[op]
        return is_update and i in self.before[op]

    def _carried(self, types: Sequence[Type], outputs: Sequence[XlaValue]) -> dict[int, int]:
        """Output by input, of those beside the updated ones that are of the same types."""
        carried: dict[int, int] = {}
        for step in (-1, 1):
            i = min(self.state, default=0)
            while 0 <= i < len(types) and 0 <= i + self.shift < len(outputs) and self.state:
                if i not in self.state:
                    if types[i] != outputs[i + self.shift].type:
                        break
                    carried[i] = outputs[i + self.shift].op
                i += step
        return carried

    def _walk(self, value: XlaValue) -> tuple[set[int], set[int]]:
        """The inputs of which elementwise ops of its shape make an output, and these ops."""
        inputs: set[int] = set()
        ops: set[int] = set()
        shape = str(value.type).partition("[")[2]
        stack = [value.op] if value.op >= 0 else []
        while stack and len(ops) < _DEPTH:
            op = stack.pop()
            if op in ops or op in inputs:
                continue
            shape_of_output = self.columns.ops["output"][op].partition("[")[2]
            if shape_of_output not in (shape, "]"):
                continue
            if op < self.n_inputs:
                inputs.add(op)
            elif self._updates(op):
                ops.add(op)
                stack += self.before[op]
        return inputs, ops

    def _updates(self, op: int) -> bool:
        kind = self.columns.ops["kind"][op]
        if "jvp(" in self.columns.paths[op] or plain(kind) == "add_any":
            return False
        return op in self.columns.elementwise or plain(kind) in VIEWS

    def readers_of(self, op: int) -> set[int]:
        """The ops that read an op's data, directly or through views."""
        readers: set[int] = set()
        stack = list(self.readers[op])
        while stack:
            reader = stack.pop()
            if reader in readers:
                continue
            if self.columns.ops["view"][reader]:
                stack += self.readers[reader]
                if reader not in self.updates:
                    continue
            readers.add(reader)
        return readers


def _name_inputs(columns: XlaColumns, program: XlaProgram, n: int) -> None:
    names = columns.ops["name"]
    for i in range(n):
        names[i] = dotted(names[i]).lstrip("%") or f"input{i}"
    # The module is the path of the leaf in its tree. A plain argument has no module.
    for i in range(n):
        if i < len(program.names) and program.names[i]:
            columns.ops["module"][i] = names[i].rpartition(".")[0]


def _share_modules(columns: XlaColumns, step: _TrainingStep) -> None:
    """Gives a parameter its reader's module where name stacks tell it, else the reader the
    parameter's.
    """
    modules, phases = columns.ops["module"], columns.ops["phase"]
    for i in step.read:
        readers = sorted(r for r in step.readers_of(i) if r not in step.updates)
        if step.has_paths:
            modules[i] = next((modules[r] for r in readers if modules[r]), modules[i])
            continue
        for reader in readers:
            if columns.groups[reader] < 0 and phases[reader] != "o":
                modules[reader] = modules[reader] or modules[i]


def _mark(columns: XlaColumns, i: int, kind: str) -> None:
    columns.ops["kind"][i] = kind
    columns.ops["param_bytes"][i] = columns.ops["output_bytes"][i]


def _set_state(columns: XlaColumns, program: XlaProgram, step: _TrainingStep) -> None:
    """Kinds, names and modules of what comes back updated."""
    names, modules = columns.ops["name"], columns.ops["module"]
    for i in (*step.state, *step.carried):
        result = i + step.shift
        if not program.names and result < len(program.result_names):
            # The input has no name, but the output that returns it has one.
            words = [w for w in _words(dotted(program.result_names[result])) if not w.isdecimal()]
            names[i] = ".".join(w for w in words if w != "result") or names[i]
            modules[i] = names[i].rpartition(".")[0]
        _mark(columns, i, "parameter" if i in step.trained else "buffer")
        if i in step.state and i not in step.read and "batch_stats" not in names[i]:
            modules[i] = f"optim.{modules[i]}".rstrip(".")


def _set_phases(columns: XlaColumns, step: _TrainingStep, outputs: Sequence[XlaValue]) -> None:
    phases = columns.ops["phase"]
    if not step.has_paths:
        state = {i + step.shift for i in step.state}
        others = [v.op for j, v in enumerate(outputs) if j not in state and v.op >= 0]
        updated = [v.op for j, v in enumerate(outputs) if j in state and v.op >= 0]
        if others:
            forward = reached(others, step.before.__getitem__)
            for op in reached(updated, step.before.__getitem__) - forward:
                phases[op] = "b"
    for op in step.updates:
        phases[op] = "o"
    phases[: step.n_inputs] = ["f"] * step.n_inputs
    if step.has_paths:
        # Ops that read gradients and have no module are the optimizer's; XLA loses some names.
        for op, sources in enumerate(step.before):
            if phases[op] == "f" and any(phases[source] != "f" for source in sources):
                phases[op] = "o" if columns.paths[op] else "b"


def _colocate(columns: XlaColumns, step: _TrainingStep) -> None:
    """A parameter, its slots and its update share a device: they meet there every step."""
    sets = DisjointSets((op, op) for op in (*step.state, *step.updates))
    outputs = columns.ops["output"]
    for src, dst, tensor in zip(
        columns.edges["src"], columns.edges["dst"], columns.edges["tensor"], strict=True
    ):
        joined = src in sets and dst in sets and tensor >= 0
        if joined and outputs[src] == outputs[dst] and not outputs[src].endswith("[]"):
            sets[sets.find(dst)] = sets.find(src)
    for i, op in step.state.items():
        if op in sets:
            sets[sets.find(op)] = sets.find(i)
    labels: dict[int, str] = {}
    for i in sorted(step.state, key=lambda i: (columns.ops["kind"][i] != "parameter", i)):
        labels.setdefault(sets.find(i), columns.ops["name"][i])
    for op in sets:
        if sets.find(op) in labels and columns.groups[op] < 0 and not columns.ops["view"][op]:
            columns.colocation[op] = labels[sets.find(op)]


def _update_in_place(columns: XlaColumns, program: XlaProgram, step: _TrainingStep) -> int:
    """Updates donated state in place, after all readers of the old value. Gives the number."""
    count = 0
    for i, op in (step.state | step.carried).items():
        donated = i < len(program.donated) and program.donated[i]
        readers = step.readers_of(i) - {op}
        if not donated or op < step.n_inputs or columns.ops["view"][op] or columns.groups[op] >= 0:
            continue
        if columns.ops["alias_of"][op] >= 0 or any(reader > op for reader in readers):
            continue
        columns.ops["alias_of"][op] = i
        columns.ops["output_bytes"][op] = 0
        for reader in sorted(readers):
            columns.edge(reader, op)
        count += 1
    return count
