"""Running a tool of the system for what it prints: with a deadline, and without a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.base.text import shortened

#: Seconds that a tool may take. nvidia-smi takes some where no driver stays loaded.
DEADLINE = 30.0


@dataclass(frozen=True)
class ToolOutput:
    """The text that a tool printed, or why it printed nothing of use."""

    text: str = ""
    why: str = ""


#: Takes the words of a command.
Tool = Callable[[Sequence[str]], ToolOutput]


def answer(words: Sequence[str], deadline: float = DEADLINE) -> ToolOutput:
    """Runs a command. What goes wrong is a sentence, never an error.

    >>> answer(["no-such-tool-is-here"]).why
    'no-such-tool-is-here is not installed'
    """
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline,
            check=False,
        )
    except FileNotFoundError:
        return ToolOutput(why=f"{words[0]} is not installed")
    except subprocess.TimeoutExpired:
        return ToolOutput(why=f"{' '.join(words[:2])} took more than {deadline:g} s")
    except OSError as error:
        return ToolOutput(why=f"{words[0]} cannot be run: {error.strerror}")
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip() or text.strip()).splitlines()
        return ToolOutput(why=f"{' '.join(words[:2])} failed: {shortened((said or ['?'])[0], 200)}")
    return ToolOutput(text)
