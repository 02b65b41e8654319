"""TensorFlow: devices of nodes."""
