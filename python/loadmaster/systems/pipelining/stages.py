"""The part of a written pipeline that cuts a model into stages: text of Python, the same in each.

``torch.distributed.pipelining`` runs stages that are made by hand as it runs those that it traces.
They are made of the model's own modules here, so that what modules do inside (checkpoints, experts,
functions with a backward pass of their own) stays as it is. Only the code of a module that is cut
is written down, call by call, while the model runs once on tensors without data. Each stage repeats
its calls.
"""

#: What it imports.
IMPORTS = (
    "import copy",
    "import dataclasses",
    "import inspect",
    "import itertools",
    "from contextlib import contextmanager, nullcontext",
    "from operator import attrgetter",
    "from typing import NamedTuple",
    "from torch import nn",
    "from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode",
    "from torch.overrides import TorchFunctionMode",
    "from torch.utils.checkpoint import CheckpointFunction, checkpoint",
)

STAGES = '''\
class Value(NamedTuple):
    """A tensor: the call that it comes from, and its number there. Call -1: the step's inputs."""

    call: int
    number: int


class Stored(NamedTuple):
    """A parameter or a buffer, by its name in the model."""

    name: str


class Call(NamedTuple):
    """A call of a module, or of a function by a module's own code, and the state that it ran in."""

    number: int
    path: str
    function: object  # None: the module of that path.
    arguments: tuple
    grad: bool
    autocast: tuple
    checkpoint: object  # Calls with the same one are recomputed together; None: they are not.

    @property
    def reads(self):
        return _parts(self.arguments, (Value, Stored))

    @property
    def state(self):
        return self.grad, self.autocast, self.checkpoint


def _changed(value, change):
    """A nest of tuples, lists, dictionaries and dataclasses, with what is in it changed."""
    if isinstance(value, (Value, Stored, torch.Size)):
        return change(value)
    if isinstance(value, slice):
        return slice(*(_changed(one, change) for one in (value.start, value.stop, value.step)))
    if isinstance(value, (tuple, list)):
        new = [_changed(one, change) for one in value]
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    if isinstance(value, dict):
        old, put = dict(value), type(value).__setitem__
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        old, put = dict(vars(value)), object.__setattr__
    else:
        return change(value)
    new = {name: _changed(one, change) for name, one in old.items()}
    if any(new[name] is not one for name, one in old.items()):
        value = copy.copy(value)
        for name, one in new.items():
            put(value, name, one)
    return value


def _parts(value, kind):
    """All of a kind that is in a nest."""
    parts = []
    _changed(value, lambda one: (parts.append(one) if isinstance(one, kind) else None) or one)
    return parts


class _Recorder(TorchFunctionMode):
    """Writes down the calls of a model: of modules in modules that are cut, and of functions there.

    ``cut`` are the paths of modules that are in several stages.
    """

    def __init__(self, model, cut):
        super().__init__()
        self.model, self.cut, self.calls, self.tensors = model, cut, [], {}
        self.paths, self.is_inside, self.checkpoint = [""], False, None
        stored = (*model.named_buffers(), *model.named_parameters())
        self.origin = {id(tensor): Stored(name) for name, tensor in stored}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return self.call(self.paths[-1], function, function, args, kwargs or {})

    def call(self, path, function, run, args, kwargs):
        """Runs a function or a module, and writes down that it was called."""
        if self.is_inside:
            return run(*args, **kwargs)
        arguments, state = self.written((args, kwargs)), self.state()
        self.is_inside = True
        try:
            output = run(*args, **kwargs)
        finally:
            self.is_inside = False
        tensors = _outputs(function, args, output)
        if tensors or function is None:
            self.calls.append(Call(len(self.calls), path, function, arguments, *state))
        for number, tensor in enumerate(tensors):
            self.know(tensor, Value(len(self.calls) - 1, number))
        return output

    def state(self):
        """If gradients are kept, the autocast that is on, the checkpoint that code is inside of."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        is_checkpoint = bool(hooks) and "checkpoint" in hooks[0].__qualname__
        on = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
        autocast = (torch.get_autocast_dtype(on[0]),) if on else ()
        return torch.is_grad_enabled(), autocast, hooks[0] if is_checkpoint else self.checkpoint

    def know(self, tensor, value):
        self.origin[id(tensor)], self.tensors[value] = value, tensor

    def written(self, value):
        """Arguments, with each tensor as what it is."""

        def origin(one):
            if isinstance(one, FakeTensor) and id(one) not in self.origin:
                where = self.paths[-1] or "the model"
                raise RuntimeError(f"{where} has a tensor that no function of torch returned")
            return self.origin.get(id(one), one) if isinstance(one, torch.Tensor) else one

        return _changed(value, origin)

    @contextmanager
    def watching(self):
        """Modules and autograd's functions say that they are called."""
        apply, kinds = inspect.getattr_static(torch.autograd.Function, "apply"), {}

        def applied(kind, *args, **kwargs):
            if kind is CheckpointFunction:  # A function, if it keeps random numbers, arguments.
                self.checkpoint = object()
                try:
                    return args[0](*args[2:])
                finally:
                    self.checkpoint = None
            run = apply.__get__(None, kind)
            return self.call(self.paths[-1], run, run, args, kwargs)

        for path, module in self.model.named_modules():
            is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict))
            if not is_list and (not path or path.rpartition(".")[0] in self.cut):
                kinds[module] = type(module)
                module.__class__ = self.watched(path, type(module))
        torch.autograd.Function.apply = classmethod(applied)
        try:
            with self:
                yield
        finally:
            torch.autograd.Function.apply = apply
            for module, kind in kinds.items():
                module.__class__ = kind

    def watched(self, path, kind):
        """The class of a module, with calls that are written down."""

        def whole(module, *args, **kwargs):
            return self.call(path, None, super(watched, module).__call__, args, kwargs)

        def in_parts(module, *args, **kwargs):
            self.paths.append(path)
            try:
                return super(watched, module).__call__(*args, **kwargs)
            finally:
                self.paths.pop()

        call = in_parts if path in self.cut else whole
        watched = type(kind.__name__, (kind,), {"__call__": call})
        return watched


def _outputs(function, args, output):
    """The tensors that a call puts out; of an assignment to an index, what it changes."""
    is_change = getattr(function, "__name__", "") == "__setitem__"
    return [args[0]] if is_change else _parts(output, torch.Tensor)


def _recorded(model, batch, loss_of):
    """The calls of a step on a micro-batch, what the step returns, and all tensors by value."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = False  # A cache would go from call to call, unseen.
    above = [path.split(".")[:n] for path in SPLIT_SPEC for n in range(path.count(".") + 1)]
    recorder = _Recorder(model, {".".join(words) for words in above} | {""})
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    args, kwargs, targets = batch = _changed(
        _micro_batches(batch)[0],
        lambda one: fake.from_tensor(one) if isinstance(one, torch.Tensor) else one,
    )
    for number, tensor in enumerate(_parts(batch, torch.Tensor)):
        recorder.know(tensor, Value(-1, number))
    with fake, recorder.watching():
        output = model(*args, **kwargs)
        result = loss_of(output, *targets)[None] if loss_of else output
    return recorder.calls, recorder.written(result), recorder.tensors


def _micro_batches(batch):
    """A batch in equal parts: of each tensor that has a row for every sample, as many rows."""

    def rows(one, number):
        is_divided = isinstance(one, torch.Tensor) and one.shape[:1] == (BATCH,)
        return one.chunk(MICRO_BATCHES)[number] if is_divided else one

    return [_changed(batch, lambda one: rows(one, number)) for number in range(MICRO_BATCHES)]


class Part(NamedTuple):
    """Of a stage its calls, the values that it is sent, those that an earlier stage of its process
    has kept for it, and those that it keeps for a later one.
    """

    calls: list
    reads: list
    takes: list
    keeps: list


def _cut(calls, result, tensors):
    """The parts of the stages.

    Calls that depend on inputs alone, such as those that make a mask, are in each stage that needs
    one of them. What skips a stage is sent through it, unless a stage of the same process has it.
    """
    begins = []
    for path, side in SPLIT_SPEC.items():
        numbers = [call.number for call in calls if f"{call.path}.".startswith(f"{path}.")]
        begins.append(min(numbers) if side == "BEGINNING" else max(numbers) + 1)
    stage_of = {call.number: sum(begin <= call.number for begin in begins) for call in calls}
    stage_of[-1] = -1
    of_inputs = {-1}
    for call in calls:
        if call.function and all(getattr(one, "call", None) in of_inputs for one in call.reads):
            of_inputs.add(call.number)
    parts, needs = [], [set() for _ in range(STAGES)]
    for call in calls:
        if call.number not in of_inputs:
            needs[stage_of[call.number]] |= {x for x in call.reads if isinstance(x, Value)}
    needs[-1] |= set(_parts(result, Value))
    own = [[c for c in calls if stage_of[c.number] == s] for s in range(STAGES)]
    for stage, needed in enumerate(needs):
        own[stage] = [c for c in own[stage] if c.number not in of_inputs]
        if any(-1 < one.call and one.call in of_inputs for one in needed):
            own[stage] = [c for c in calls if c.number in of_inputs or c in own[stage]]
    keeps = [set() for _ in range(STAGES)]
    for stage in reversed(range(STAGES)):
        outer = {x for x in needs[stage] if x.call not in of_inputs and stage_of[x.call] < stage}
        takes = set()
        for one in outer:
            others = range(stage - PROCESSES, stage_of[one.call] - 1, -PROCESSES)
            has = [n for n in others if one in needs[n] or stage_of[one.call] == n]
            # Gradients of what is kept come with those of what the stage makes and sends.
            comes = has and any(
                stage_of[x.call] == has[0] and tensors[x].requires_grad for x in needs[has[0] + 1]
            )
            if has and HANDS_OVER and (comes or not tensors[one].requires_grad):
                takes.add(one)
                keeps[has[0]].add(one)
            else:
                needs[stage - 1].add(one)
        reads = sorted(outer - takes)
        parts.insert(0, Part(own[stage], reads, sorted(takes), sorted(keeps[stage])))
    return parts


class _Handed(torch.autograd.Function):
    """A tensor as it is. Its gradient comes with those of what a later stage took."""

    @staticmethod
    def forward(ctx, tensor, copies, *kept):
        ctx.copies = copies
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, *(copy.grad for copy in ctx.copies)


class _Stage(nn.Module):
    """One stage: it is sent tensors, runs its calls, and sends on what later stages read, each
    tensor in its dtype.
    """

    def __init__(self, model, part, sends, result, device):
        super().__init__()
        self.__dict__.update(model=model, device=device, part=part)
        self.calls, self.reads, self.sends, self.result = part.calls, part.reads, sends, result
        self.weights = []

    def parameters(self, recurse=True):
        return iter(self.weights)

    def forward(self, *received, micro_batch):
        inputs = _parts(self.model.micro_batches[int(micro_batch)], torch.Tensor)
        values = {Value(-1, number): x.to(self.device) for number, x in enumerate(inputs)}
        values.update(zip(self.reads, received))
        for one in self.part.takes:
            values[one] = self.model.kept.pop((int(micro_batch), one))
        for tensor in received:
            if tensor.requires_grad:  # Gradients are messages too, one element after another.
                tensor.register_hook(torch.Tensor.contiguous)
        for (grad, autocast, region), calls in itertools.groupby(self.calls, lambda c: c.state):
            calls = list(calls)
            known = {one: values[one] for call in calls for one in call.reads if one in values}
            on = torch.autocast(self.device.type, *autocast) if autocast else nullcontext()
            with torch.set_grad_enabled(grad and torch.is_grad_enabled()), on:
                if region:
                    values |= checkpoint(self.run, calls, known, use_reentrant=False)
                else:
                    values |= self.run(calls, known)
        if self.result is not None:
            return self.filled(self.result, values)
        sent = {one: values[one].to(dtype) for one, dtype in self.sends.items()}
        messages = [_message(tensor, one in self.reads) for one, tensor in sent.items()]
        return tuple(self.kept(int(micro_batch), values, messages))

    def kept(self, micro_batch, values, messages):
        """Messages, of which one brings the gradients of what is kept for a later stage."""
        kept = [values[one] for one in self.part.keeps]
        copies = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in kept]
        self.model.kept |= {(micro_batch, one): x for one, x in zip(self.part.keeps, copies)}
        if any(tensor.requires_grad for tensor in kept):
            at = [tensor.requires_grad for tensor in messages].index(True)
            messages[at] = _Handed.apply(messages[at], copies, *kept)
        return messages

    def run(self, calls, values):
        """What calls put out."""
        values = dict(values)
        for call in calls:
            args, kwargs = self.filled(call.arguments, values)
            output = (call.function or self.stored(call.path))(*args, **kwargs)
            for number, tensor in enumerate(_outputs(call.function, args, output)):
                values[Value(call.number, number)] = tensor
        return values

    def filled(self, value, values):
        """Arguments of a call, from the tensors that there are."""

        def filled(one):
            if isinstance(one, Value):
                return values[one]
            if isinstance(one, Stored):
                return self.stored(one.name)
            if isinstance(one, torch.Tensor):
                return one.to(self.device)
            return self.device if isinstance(one, torch.device) else one

        return _changed(value, filled)

    def stored(self, path):
        return attrgetter(path)(self.model) if path else self.model

    def owned(self):
        """The parameters and buffers that its calls read."""
        for call in self.calls:
            if call.function is None:
                module = self.stored(call.path)
                yield from (*module.parameters(), *module.buffers())
            yield from (self.stored(one.name) for one in call.reads if isinstance(one, Stored))


def _drop_others(model, stages):
    """Drops parameters and buffers of other ranks. The first has those that no call reads."""
    own = {id(tensor) for stage in stages for tensor in stage.owned()}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: None for name, x in tensors.items() if id(x) not in own})
'''
