"""ONNX Runtime: sub-models per device."""
