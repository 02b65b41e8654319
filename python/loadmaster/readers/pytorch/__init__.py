"""PyTorch: modules captured, programs exported, traces."""
