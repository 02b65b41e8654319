"""Sub-models that a plan was exported to, run by ONNX Runtime one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError, importing
from loadmaster.readers.onnx.nodes import library_errors
from loadmaster.systems.onnx.manifest import read_manifest

#: The execution provider that is always there.
CPU = "CPUExecutionProvider"


class OnnxSegments:
    """Runs what :func:`loadmaster.writers.onnx` wrote, one sub-model after the other.

    In parallel, as planned, they run in :class:`~loadmaster.running.onnx.processes.OnnxProcesses`.

    Parameters
    ----------
    folder : path
    providers : mapping, optional
        Device name to ONNX Runtime's execution providers; else the manifest's where they are
        installed, and the CPU.
    optimize : bool
        Whether ONNX Runtime may rewrite each sub-model.

    Raises
    ------
    InputError
        No export in the folder, or a sub-model that ONNX Runtime cannot load.
    MissingExtraError
        The package ``onnxruntime`` is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        providers: Mapping[str, Sequence[Any]] | None = None,
        *,
        optimize: bool = True,
    ) -> None:
        self.folder = Path(folder)
        #: The manifest.
        self.manifest = read_manifest(self.folder)
        runtime()
        chosen = providers or {}
        self._sessions = [
            session(self.folder, segment, chosen.get(segment["device"]), optimize=optimize)
            for segment in self.manifest["segments"]
        ]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of the whole model, by name.

        Raises
        ------
        InputError
            An input is missing.
        """
        outputs = self.manifest["outputs"]
        values = dict(feeds)
        for results in self.made(feeds):
            values |= {name: value for name, value in results.items() if name in outputs}
        return {name: values[name] for name in outputs}

    def made(self, feeds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Values that each segment makes for others or for the whole, by name, as they are made.

        Raises
        ------
        InputError
            An input is missing.
        """
        check_feeds(self.manifest, feeds)
        values = dict(feeds)
        segments = self.manifest["segments"]
        last = {v: i for i, segment in enumerate(segments) for v in segment["inputs"]}
        for i, (segment, chosen) in enumerate(zip(segments, self._sessions, strict=True)):
            inputs = {name: values[name] for name in segment["inputs"]}
            outputs = run(chosen, segment["outputs"], inputs, segment["file"])
            results = dict(zip(segment["outputs"], outputs, strict=True))
            values |= results
            for name in segment["inputs"]:
                if last[name] == i:
                    del values[name]
            yield results


def check_feeds(manifest: Mapping[str, Any], feeds: Mapping[str, Any]) -> None:
    """Refuses to run without a value for every input."""
    missing = [i["name"] for i in manifest["inputs"] if i["name"] not in feeds]
    if missing:
        raise InputError(f"no value for the input {missing[0]!r}")


def runtime() -> Any:
    """The package ``onnxruntime``."""
    with importing("onnxruntime", "onnxruntime", "running ONNX models"):
        import onnxruntime
    return onnxruntime


def session(
    folder: Path,
    segment: Mapping[str, Any],
    providers: Sequence[Any] | None = None,
    **how: Any,
) -> Any:
    """ONNX Runtime's session of a segment, by its own provider if none is given; see :func:`load`
    for the rest.
    """
    if providers is None:
        name, options = segment["provider"]
        providers = [(name, options)] if name in runtime().get_available_providers() else []
        providers += [] if name == CPU else [CPU]
    return load(folder / segment["file"], providers, **how)


def load(
    path: Path,
    providers: Sequence[Any],
    *,
    threads: int = 0,
    optimize: bool = True,
    shares: bool = False,
) -> Any:
    """ONNX Runtime's session of a model.

    Parameters
    ----------
    path, providers
    threads : int
        Of each op; 0: as many as it likes.
    optimize : bool
        Whether it may rewrite the model.
    shares : bool
        Whether it takes memory from what :func:`share_memory` has set up.
    """
    options = runtime().SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = runtime().GraphOptimizationLevel.ORT_DISABLE_ALL
    if shares:
        options.add_session_config_entry("session.use_env_allocators", "1")
    with library_errors(f"ONNX Runtime cannot load {path}", Exception):
        return runtime().InferenceSession(str(path), options, providers=list(providers))


def share_memory() -> None:
    """Sets up memory that sessions of this process may take from in turn: what one has just used is
    in the cache for the next.
    """
    ort = runtime()
    on_cpu = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(on_cpu, None)


def run(chosen: Any, outputs: Sequence[str], feeds: Mapping[str, Any], noun: str) -> Any:
    """The outputs of a session, from its inputs."""
    with library_errors(f"ONNX Runtime cannot run {noun}", Exception):
        return chosen.run(outputs, feeds)
