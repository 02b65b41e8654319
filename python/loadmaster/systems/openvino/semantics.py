"""OpenVINO's HETERO plugin as planning for it sees it."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "openvino"

SEMANTICS = Semantics(
    system="OpenVINO's HETERO plugin",
    models="the inference of an ONNX model, as it was read",
    splits="nothing",
    unit="an op, by its affinity",
    moves="what another device reads, between sub-graphs",
    launches="one sub-graph after another: devices do not work at the same time",
    memory="weights where they are read, and activations",
    framework="onnx",
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.openvino.plan:openvino",
        WrittenForm("loadmaster.systems.openvino.write:openvino", "OpenVINO affinities (JSON)"),
        packages=("openvino",),
    ),
)
