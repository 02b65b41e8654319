"""Grids: tensor parallelism inside of replicas inside of stages of whole layers."""
