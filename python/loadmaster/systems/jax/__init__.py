"""JAX: meshes and ``PartitionSpec``."""
