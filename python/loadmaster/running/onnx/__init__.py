"""Sub-models of an exported ONNX plan, run by ONNX Runtime."""
