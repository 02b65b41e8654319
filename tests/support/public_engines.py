"""Steps of public models by systems that have engines of their own, on processes of gloo.

What was written is taken as it is, by DeepSpeed, by accelerate and by transformers' Trainer. Each
function gives the loss of the whole batch, and whole gradients by the names of parameters.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from public_models import BATCH, PUBLIC
from runs_accelerate import as_its_launcher_reads, sharded_by
from runs_public import called, gradients_of, loss_of
from torch.utils._pytree import tree_map_only


@contextmanager
def environment(rank, k, **more):
    """The variables that torchrun gives a process, and more."""
    before = dict(os.environ)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(k), **more)
    os.environ.update(LOCAL_WORLD_SIZE=str(k), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def share_of(case, rank, k):
    """Positional and named arguments, and targets, with the samples of a process."""

    def part(tensor):
        return tensor.chunk(k)[rank] if tensor.dim() and len(tensor) == BATCH else tensor

    return tree_map_only(torch.Tensor, part, (*called(case), case.get("targets")))


def loss_on_share(case, model, rank, k):
    """The loss of a process's samples."""
    args, kwargs, targets = share_of(case, rank, k)
    return loss_of({**case, "targets": targets}, model(*args, **kwargs))


def whole(loss, gradients):
    """A step of the whole batch, of a process's loss."""
    dist.all_reduce(mean := loss.detach().clone())
    return {"loss": mean / dist.get_world_size(), "gradients": gradients}


def trained(model):
    """The parameters that an optimizer gets."""
    return [p for p in model.parameters() if p.requires_grad]


def deepspeed(rank, k, written, name):
    """A step by DeepSpeed's engine with the configuration that was written."""
    with environment(rank, k, DS_ACCELERATOR="cpu"):
        import deepspeed
        from deepspeed.utils import safe_get_full_grad

        # It would compile sums in shared memory, which are for speed alone.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        case = PUBLIC[name]()
        model = case["model"].train()
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=trained(model),
            optimizer=case["optimizer"](trained(model)),
            config=json.loads(json.dumps(written)),
            dist_init_required=False,
        )
        engine.backward(loss := loss_on_share(case, engine, rank, k))
        gradients = {
            key: gradient.clone()
            for key, p in model.named_parameters()
            if p.requires_grad and (gradient := safe_get_full_grad(p)) is not None
        }
        engine.destroy()
    return whole(loss, gradients)


def accelerate(rank, k, written, name):
    """A step by accelerate as its launcher starts it: DistributedDataParallel on CPUs, or FSDP2."""
    said, case = as_its_launcher_reads(written)[1], PUBLIC[name]()
    if "ACCELERATE_USE_CPU=true accelerate launch" in written:  # The command in the file's head.
        said["ACCELERATE_USE_CPU"] = "true"
    with environment(rank, k, **said):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        if said.get("ACCELERATE_USE_FSDP") == "true":  # It prepares FSDP2 on accelerators alone.
            model = sharded_by(said, case["model"].train(), rank)
            (loss := loss_on_share(case, model, rank, k)).backward()
        else:
            accelerator = Accelerator()
            model, _ = accelerator.prepare(
                case["model"].train(), case["optimizer"](trained(case["model"]))
            )
            accelerator.backward(loss := loss_on_share(case, model, rank, k))
            AcceleratorState._reset_state(reset_partial_state=True)
    return whole(loss, gradients_of([model]))


def trainer(rank, k, written, name):
    """A step by transformers' Trainer with the arguments that were written."""
    case, ended, before = PUBLIC[name](), [], os.getcwd()
    with (
        environment(rank, k, ACCELERATE_USE_CPU="true"),
        tempfile.TemporaryDirectory() as folder,
    ):
        from accelerate.state import AcceleratorState
        from transformers import HfArgumentParser, Trainer, TrainingArguments

        class Steps(Trainer):
            """Ends behind the backward pass of the first step, before gradients are clipped."""

            def compute_loss(self, model, inputs, *_, **__):
                args, kwargs, targets = inputs
                return loss_of({**case, "targets": targets}, model(*args, **kwargs))

            def training_step(self, model, inputs, *more):
                loss = super().training_step(model, inputs, *more)
                ended.append(whole(loss, gradients_of([model])))
                self.control.should_training_stop = True
                return loss

        os.chdir(folder)
        Path("training_arguments.yaml").write_text(written)
        (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(
            "training_arguments.yaml"
        )
        every = (*called(case), case.get("targets"))

        def together(samples):
            at = torch.tensor(samples)

            def part(tensor):
                return tensor[at] if tensor.dim() and len(tensor) == BATCH else tensor

            return tree_map_only(torch.Tensor, part, every)

        Steps(case["model"], arguments, data_collator=together, train_dataset=range(BATCH)).train()
        os.chdir(before)
        AcceleratorState._reset_state(reset_partial_state=True)
    return ended[0]
