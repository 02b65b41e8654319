"""SAGA: task graphs and schedules."""
