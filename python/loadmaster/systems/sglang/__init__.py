"""SGLang: tensor and pipeline parallelism of inference."""
