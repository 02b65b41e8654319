"""ONNX Runtime as planning for it sees it, and ONNX files that only say where ops are."""

from loadmaster.model.runtime import SessionCost
from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "onnx"

#: The cost of a sub-model's run on device types that do not say theirs.
SESSION = SessionCost(
    30e-6,
    0.5e-6,
    "ONNX Runtime 1.32 on cores of servers: 9 to 32 us, of which the dearer end",
)

SEMANTICS = Semantics(
    system="ONNX Runtime, a session per sub-model",
    models="the inference of an ONNX model, as it was read",
    splits="nothing",
    unit="a segment: ops on one device between what it waits for and what it sends",
    moves="what other segments read, when a segment ends",
    launches="each device's process its own segments in turn, a session's run each",
    memory="weights in each segment that reads them, and activations",
    framework="onnx",
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.onnx.plan:onnx",
        WrittenForm(
            "loadmaster.systems.onnx.write:onnx",
            "ONNX: sub-models per device and a manifest (folder)",
            is_file=True,
            in_segments=True,
            session=SESSION,
        ),
        packages=("onnxruntime", "onnxruntime-gpu"),
    ),
    System(
        "onnx-annotated",
        form=WrittenForm(
            "loadmaster.systems.onnx.annotations:onnx_annotated",
            "ONNX with metadata_props and device configuration (.onnx)",
            is_file=True,
        ),
        packages=("onnxruntime", "onnxruntime-gpu"),
    ),
)
