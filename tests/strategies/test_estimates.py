"""Estimates of labels, held against the simulation of all devices."""

from __future__ import annotations

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.judge.problem import Problem
from loadmaster.strategies.sharding.judging import expanded
from loadmaster.strategies.sharding.meshes import meshes
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.space import Space

#: Hosts are drawn of these: the devices of one, and what joins them.
HOSTS = [("4xH100", "nvlink"), ("8xH100", "nvlink"), ("4xA100", "pcie4"), ("2xV100", "pcie3")]

NETWORKS = ["25GbE", "200Gb-IB", "400Gb-IB"]


@pytest.fixture(scope="module")
def graphs():
    return [lm.read("example:lenet"), lm.read("example:alexnet")]


def deviation(graph: lm.OpGraph, seed: int) -> float:
    """What an estimate is off by, as a share of the simulation: labels of a drawn mesh of several
    axes on a drawn cluster of several hosts.
    """
    random = np.random.default_rng(seed)
    gpus, link = HOSTS[int(random.integers(len(HOSTS)))]
    network = NETWORKS[int(random.integers(len(NETWORKS)))]
    cluster = lm.Cluster.new(gpus, link, hosts=int(random.choice([2, 4])), network=network)
    space = Space.of(Problem.make(graph, cluster, lm.costs.estimate(graph, cluster)))
    every = [mesh for mesh in meshes(space.problem) if len(mesh.axes) > 1]
    mesh = every[int(random.integers(len(every)))]
    solver = space.solver(mesh)
    ranked = Ranked(mesh, solver.solve(1.0), solver, True).looked_at()
    seconds = expanded(space, ranked).verdict.step_time
    return ranked.labels.estimate.step_time / seconds - 1


def test_estimates_are_near_the_simulation_on_meshes_of_several_axes(graphs):
    off = np.array([deviation(graphs[seed % 2], seed) for seed in range(24)])
    assert np.median(abs(off)) < 0.025
    assert np.quantile(abs(off), 0.9) < 0.1
