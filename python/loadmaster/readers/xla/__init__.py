"""JAX and XLA: jaxprs, StableHLO, HLO, and traces of JAX's profiler."""
