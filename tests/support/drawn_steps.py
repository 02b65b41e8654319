"""Training steps of drawn modules, as people write them: what systems that take modules must run.

A step has blocks one after another, each of a drawn kind, within modules that hand on keywords,
dictionaries and dataclasses, and a loss of the model's own or one that is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH = 8, 8


class Block(nn.Module):
    """Two layers and what stands between them."""

    def __init__(self, scaled=False):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.tensor(0.5)) if scaled else 1.0

    def forward(self, x):
        return x + self.scale * self.down(torch.tanh(self.up(x)))


class Squared(torch.autograd.Function):
    """A function whose gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.sign()


class Custom(nn.Module):
    """A layer before a function of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Squared.apply(self.layer(x))


class Checkpointed(nn.Module):
    """A block that is recomputed."""

    def __init__(self, reentrant):
        super().__init__()
        self.block, self.reentrant = Block(), reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


class Experts(nn.Module):
    """Two experts, of which each sample has a mixture."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        share = self.router(x).softmax(-1)
        parts = [part(x) * share[..., i : i + 1] for i, part in enumerate(self.experts)]
        return torch.stack(parts).sum(0)


@dataclass
class Passed:
    """What named blocks hand on."""

    x: torch.Tensor
    note: str = "as it was"


class Named(nn.Module):
    """A block that is called by name, and puts out a dataclass or a dictionary."""

    def __init__(self, as_dictionary):
        super().__init__()
        self.block, self.as_dictionary = Block(scaled=True), as_dictionary

    def forward(self, *, state):
        x = self.block(state.x)
        return {"x": x} if self.as_dictionary else Passed(x)


#: Kinds of blocks by name.
BLOCKS = {
    "plain": Block,
    "scaled": lambda: Block(scaled=True),
    "custom": Custom,
    "checkpoint": lambda: Checkpointed(reentrant=False),
    "reentrant": lambda: Checkpointed(reentrant=True),
    "experts": Experts,
    "named": lambda: Named(as_dictionary=False),
    "dictionary": lambda: Named(as_dictionary=True),
}


class Model(nn.Module):
    """Blocks between two layers. A mask that is made of the inputs is read behind each; with skips
    each second one also reads what came before the one before it.
    """

    def __init__(self, kinds, skips, masked, own_loss):
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(BLOCKS[kind]() for kind in kinds)
        self.skips, self.masked, self.own_loss = skips, masked, own_loss

    def forward(self, x, labels=None, *, lengths=None):
        mask = torch.arange(WIDTH)[None, :] < lengths[:, None] if self.masked else None
        x = before = functional.relu(self.stem(x))
        for i, block in enumerate(self.blocks):
            last = x
            if isinstance(block, Named):
                passed = block(state=Passed(x))
                x = passed["x"] if block.as_dictionary else passed.x
            else:
                x = block(x)
            if mask is not None:
                x = x * mask
            if self.skips and i % 2:
                x = x + before
            before = last
        x = self.head(x)
        if not self.own_loss:
            return x
        return {"loss": functional.mse_loss(x, labels), "logits": x}


class Wrapped(nn.Module):
    """A module around a model, as adapters and trainers have it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


@dataclass(frozen=True)
class DrawnStep:
    """A model as it is made anew each time, its batch, and its loss."""

    kinds: tuple[str, ...]
    skips: bool
    masked: bool
    own_loss: bool
    wrapped: bool
    by_name: bool
    frozen: int

    def module(self):
        """The model, its weights the same every time; the first of it are frozen, unless a
        checkpoint that is reentrant would give no gradients then.
        """
        torch.manual_seed(0)
        model = Model(self.kinds, self.skips, self.masked, self.own_loss)
        frozen = 0 if "reentrant" in self.kinds else self.frozen
        for module in [model.stem, *model.blocks][:frozen]:
            module.requires_grad_(False)
        return Wrapped(model) if self.wrapped else model

    @property
    def inputs(self):
        """What the model is called with, and the targets of its loss."""
        numbers = torch.Generator().manual_seed(1)
        x = torch.rand(BATCH, WIDTH, generator=numbers)
        labels = torch.rand(BATCH, WIDTH, generator=numbers)
        lengths = torch.randint(1, WIDTH, (BATCH,), generator=numbers)
        more = {"lengths": lengths} if self.masked else {}
        given = {"labels": labels} if self.own_loss else {}
        if self.by_name or more:
            return {"x": x, **given, **more}, labels
        return (x, *given.values()), labels

    @property
    def batch(self):
        """The same as files take it."""
        inputs, labels = self.inputs
        targets = () if self.own_loss else (labels,)
        return ((), inputs, targets) if isinstance(inputs, dict) else (inputs, {}, targets)

    def loss_of(self, output, *targets):
        """The loss of what the model puts out."""
        return output["loss"] if self.own_loss else functional.mse_loss(output, *targets)

    @property
    def captured(self):
        """The arguments of capture."""
        inputs, labels = self.inputs
        given = {} if self.own_loss else {"loss": functional.mse_loss, "targets": labels}
        return {
            "model": self.module(),
            "example_inputs": inputs,
            "optimizer": torch.optim.SGD,
            **given,
        }

    def whole(self):
        """Loss and gradients of a step on one device."""
        module, (args, kwargs, targets) = self.module(), self.batch
        loss = self.loss_of(module(*args, **kwargs), *targets)
        loss.backward()
        return loss.detach(), gradients(module)


def gradients(module):
    """Gradients by name, of what has some."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def drawn_steps():
    """Steps of models of three to six blocks."""
    return st.builds(
        DrawnStep,
        st.lists(st.sampled_from([*BLOCKS]), min_size=3, max_size=6).map(tuple),
        *(st.booleans() for _ in range(5)),
        st.integers(0, 3),
    )
