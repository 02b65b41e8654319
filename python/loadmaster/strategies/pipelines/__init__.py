"""Pipelines: which stage runs what, so that samples follow each other as closely as can be."""
