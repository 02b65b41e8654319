"""TensorFlow: graphs, and session runs."""
