"""Linear and mixed-integer programs, solved in worker processes that can be killed (section 10)."""

from loadmaster.milp.model import Builder, Model
from loadmaster.milp.worker import Solution, Solver, Status, Watch, optimum, solve

__all__ = ["Builder", "Model", "Solution", "Solver", "Status", "Watch", "optimum", "solve"]
