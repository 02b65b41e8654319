"""vLLM: tensor and pipeline parallelism of inference."""
