"""TensorRT-LLM: tensor and pipeline parallelism of inference."""
