"""Errors of a model's own code and of PyTorch in a captured step, said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

import torch

from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.readers.pytorch.recorder import Recorder

#: Letters of an error's own words that are said.
_SAID = 200


@contextmanager
def in_one_line(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Turns every error but this project's into an InputError that names the module.

    An error of the caller's own progress callback stays as it is.
    """
    try:
        yield
    except LoadmasterError:
        raise
    except Exception as error:
        if error is recorder.stopped:
            raise
        raise InputError(_line(model, error)) from None


def _line(model: torch.nn.Module, error: Exception) -> str:
    """The innermost module that an error came through, its words, and the line of code."""
    names = {id(module): name for name, module in model.named_modules()}
    where, place = f"the step of {type(model).__name__}", ""
    library = str(Path(torch.__file__).parent)
    for frame, line in walk_tb(error.__traceback__):
        holder = frame.f_locals.get("self")
        if name := names.get(id(holder)):
            where = f"module {name!r} ({type(holder).__name__})"
        file = frame.f_code.co_filename
        if not file.startswith((library, str(Path(__file__).parent))):
            place = f" ({Path(file).name}, line {line})"
    lines = [type(error).__name__, *(line.strip() for line in str(error).splitlines())]
    words = ": ".join([line for line in lines if line][:2])
    said = words if len(words) <= _SAID else f"{words[:_SAID].rsplit(' ', 1)[0]} ..."
    return f"{where} does not run on tensors that have sizes and no numbers: {said}{place}"
