//! `fast.Labelling`: one label per node, such that labels and pairs of labels cost little.

use loadmaster_core::Error;
use loadmaster_core::border::is_no_time;
use loadmaster_core::labelling::icm;
use loadmaster_core::labelling::mcmc::Walk;
use loadmaster_core::labelling::model::Model;
use loadmaster_core::labelling::solve::{Labels as CoreLabels, Solver};
use loadmaster_core::labelling::ties::Ties;
use loadmaster_core::labelling::{Columns, Labelling as CoreLabelling, energy};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::errors::Raised;
use crate::graph::{GivenColumns, Ids, ids};

/// Steps of a walk before Ctrl-C is looked at.
const STEPS: u64 = 1 << 16;

/// Columns of [`Labelling`].
const COLUMNS: &[&str] =
    &["node_table", "unary_start", "unary", "src", "dst", "edge_table", "pair_start", "pair_columns", "pair"];

/// Pairwise labelling: one label per node, such that labels and pairs of labels cost little in all.
///
/// Nodes share tables of costs, and so do edges. A cost has C components, such as seconds, seconds of
/// gradient traffic, and bytes. Each solve has its own weights for them. A component of ``+inf``
/// forbids a choice whatever the weights. All arguments are keywords. O(n + m + numbers in tables).
///
/// Parameters
/// ----------
/// node_table : int32 [n]
///     The table of each node: rows ``unary_start[t]`` to ``unary_start[t + 1]`` of ``unary``, one per
///     label.
/// unary_start : int64 [n_unary_tables + 1]
/// unary : float64 [labels of all tables, C]
/// src, dst : int32 [m]
///     The ends of each edge. Several edges may join two nodes; none joins a node to itself.
/// edge_table : int32 [m]
///     The table of each edge: rows ``pair_start[p]`` to ``pair_start[p + 1]`` of ``pair``, one per
///     label of ``src`` and label of ``dst``, the latter varying fastest.
/// pair_start : int64 [n_pair_tables + 1]
/// pair_columns : int32 [n_pair_tables]
///     Labels of ``dst``.
/// pair : float64 [pairs of all tables, C]
///
/// Raises
/// ------
/// InputError
///     A table that does not fit its node or edge; an index out of range; a cost that is NaN or
///     ``-inf``.
/// ValueError
///     A wrong dtype or shape.
///
/// Examples
/// --------
/// Two nodes with two labels each: the second label is cheaper, but both may not have it.
///
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> table, one = np.array([0, 0]), np.array([0])
/// >>> choices = fast.Labelling(
/// ...     node_table=table, unary_start=np.array([0, 2]), unary=np.array([[3.0], [1.0]]),
/// ...     src=one, dst=one + 1, edge_table=one,
/// ...     pair_start=np.array([0, 4]), pair_columns=np.array([2]),
/// ...     pair=np.array([[0.0], [0.5], [0.5], [np.inf]]),
/// ... )
/// >>> found = choices.solve(np.ones(1))
/// >>> sorted(found.labels.tolist()), found.energy, found.bound
/// ([0, 1], 4.5, 4.5)
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Labelling {
    core: CoreLabelling,
}

#[pymethods]
impl Labelling {
    #[new]
    #[pyo3(signature = (**columns))]
    fn new(py: Python<'_>, columns: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let given = GivenColumns::new("Labelling", columns, COLUMNS)?;
        let integers = |name| given.required(name, convert::integers);
        let (unary, components) = given.required("unary", convert::rows)?;
        let (pair, of_pairs) = given.required("pair", convert::rows)?;
        if of_pairs != components {
            let reason = format!("pair: got {of_pairs} columns, wants those of unary, {components}");
            return Err(PyValueError::new_err(reason));
        }
        let columns = Columns {
            node_table: integers("node_table")?,
            unary_start: integers("unary_start")?,
            unary,
            src: integers("src")?,
            dst: integers("dst")?,
            edge_table: integers("edge_table")?,
            pair_start: integers("pair_start")?,
            pair_columns: integers("pair_columns")?,
            pair,
            components,
        };
        let core = py.detach(|| CoreLabelling::new(columns)).map_err(Raised::from)?;
        Ok(Self { core })
    }

    /// Number of nodes.
    #[getter]
    fn n_nodes(&self) -> usize {
        self.core.n_nodes()
    }

    /// Number of edges.
    #[getter]
    fn n_edges(&self) -> usize {
        self.core.n_edges()
    }

    /// Labels of little energy, and a bound on the least, by TRW-S and ICM.
    ///
    /// Stops once the energy is within a relative 1e-4 of the bound, or nothing has improved for some
    /// sweeps. More sweeps never give a worse result. O(sweeps E L^2). Can be interrupted between
    /// sweeps.
    ///
    /// Parameters
    /// ----------
    /// weights : float64 [C]
    ///     Finite, not negative.
    /// tied : int32 [n], optional
    ///     Nodes of one number take one label; they have equally many. A negative number: tied to none.
    /// start : int32 [n], optional
    ///     Labels to improve. The result is never worse than these.
    /// after : Labels, optional
    ///     What was found for other costs of the same nodes and edges, with the same ties. The search
    ///     goes on from there: from its bound, and from its labels where ``start`` gives none. The
    ///     nearer the costs are, the fewer sweeps it takes.
    /// sweeps : int
    ///     At most so many.
    /// progress : callable, optional
    ///     Called with the best labels so far, as this function returns them, whenever the number of
    ///     sweeps has doubled, unless all that were found have a forbidden choice.
    ///
    /// Returns
    /// -------
    /// Labels
    ///
    /// Raises
    /// ------
    /// InfeasibleError
    ///     A node or an edge has no choice that is not forbidden, or no labelling without one was found.
    /// InputError
    ///     Tied nodes with different numbers of labels; a label that a node does not have; a bad weight.
    /// ValueError
    ///     A wrong dtype or shape.
    #[pyo3(signature = (weights, *, tied=None, start=None, after=None, sweeps=200, progress=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn solve(
        &self,
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        tied: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
        after: Option<&Labels>,
        sweeps: u32,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Labels> {
        let weights = self.weights(weights)?;
        let tied = tied.map(|tied| convert::integers("tied", tied)).transpose()?;
        let after = after.map(|known| &known.core);
        let start = match (start, after) {
            (Some(start), _) => Some(self.labels("start", start)?),
            (None, Some(known)) => {
                Some(self.checked("after", known.labels.iter().map(|&label| label.into()).collect())?)
            }
            (None, None) => None,
        };
        let made = py.detach(|| {
            let solver = Solver::new(&self.core, &weights, tied.as_deref(), start.as_deref())?;
            Ok(match after {
                Some(known) => solver.after(&known.sent),
                None => solver,
            })
        });
        let mut solver = made.map_err(|error: Error| Raised::from(error))?;
        let mut next = 1;
        for done in 1..=sweeps {
            if solver.is_done() {
                break;
            }
            py.detach(|| solver.sweep()).map_err(Raised::from)?;
            py.check_signals()?;
            if done < next {
                continue;
            }
            next *= 2;
            if let (Some(progress), Ok(found)) = (progress, solver.labels()) {
                progress.call1((Labels { core: found },))?;
            }
        }
        let found = py.detach(|| solver.labels()).map_err(Raised::from)?;
        Ok(Labels { core: found })
    }

    /// Weighted sum of the costs of labels; ``inf`` where a choice is forbidden. O(n + m).
    fn energy(&self, py: Python<'_>, labels: &Bound<'_, PyAny>, weights: &Bound<'_, PyAny>) -> PyResult<f64> {
        let (labels, weights) = (self.labels("labels", labels)?, self.weights(weights)?);
        Ok(py.detach(|| energy(&self.core.components(&labels), &weights)))
    }

    /// Sums of the costs of labels by component, float64 [C]; ``inf`` where a choice is forbidden.
    /// O(n + m).
    fn components<'py>(
        &self,
        py: Python<'py>,
        labels: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let labels = self.labels("labels", labels)?;
        Ok(py.detach(|| self.core.components(&labels)).into_pyarray(py))
    }

    /// Labels, int32 [n], that no change of one node's label makes better (iterated conditional modes).
    ///
    /// Each node in turn takes the label that is best with all others as they are. O(E L) a pass.
    ///
    /// Parameters
    /// ----------
    /// labels : int32 [n]
    ///     Where to begin.
    /// weights : float64 [C]
    ///     Finite, not negative.
    fn descend<'py>(
        &self,
        py: Python<'py>,
        labels: &Bound<'py, PyAny>,
        weights: &Bound<'py, PyAny>,
    ) -> PyResult<Ids<'py>> {
        let (mut labels, weights) = (self.labels("labels", labels)?, self.weights(weights)?);
        let model = py.detach(|| self.model(&weights)).map_err(Raised::from)?;
        py.detach(|| icm::descend(&model, &mut labels));
        Ok(ids(py, labels.into_iter()))
    }

    /// The best labels, int32 [n], of a random walk (FlexFlow's MCMC), which are never worse than the first.
    ///
    /// A step draws a node and another label for it. Labels that cost more by a share s of the first
    /// labels' energy are accepted with probability exp(-beta s). The walk ends early once half of its
    /// steps have passed since the best labels. O(degree) a step. Can be interrupted.
    ///
    /// Parameters
    /// ----------
    /// labels : int32 [n]
    ///     Where to begin.
    /// weights : float64 [C]
    ///     Finite, not negative.
    /// steps : int
    /// seed : int
    /// beta : float
    ///     Inverse temperature, not negative. Of powers of ten, 10,000 was best on a CNN and two transformers.
    #[pyo3(signature = (labels, weights, steps, seed, *, beta=10_000.0))]
    fn walk<'py>(
        &self,
        labels: &Bound<'py, PyAny>,
        weights: &Bound<'py, PyAny>,
        steps: &Bound<'py, PyAny>,
        seed: &Bound<'py, PyAny>,
        beta: f64,
    ) -> PyResult<Ids<'py>> {
        let py = labels.py();
        let (labels, weights) = (self.labels("labels", labels)?, self.weights(weights)?);
        let (steps, seed) = (convert::unsigned("steps", steps)?, convert::unsigned("seed", seed)?);
        if is_no_time(beta) {
            return Err(PyValueError::new_err(format!("beta is {beta}: it must be finite and not negative")));
        }
        let model = py.detach(|| self.model(&weights)).map_err(Raised::from)?;
        let mut walk = py.detach(|| Walk::new(&model, labels, beta, steps, seed));
        while !walk.is_done() {
            py.detach(|| walk.run(STEPS));
            py.check_signals()?;
        }
        Ok(ids(py, walk.best().iter().copied()))
    }
}

impl Labelling {
    /// The problem for these weights, nothing tied.
    fn model(&self, weights: &[f64]) -> Result<Model, Error> {
        Ties::new(&self.core, None)?.model(&self.core, weights)
    }

    fn weights(&self, weights: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
        let weights = convert::seconds("weights", weights, self.core.n_components(), false)?;
        self.core.check_weights(&weights).map_err(Raised::from)?;
        Ok(weights)
    }

    fn labels(&self, argument: &'static str, labels: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        self.checked(argument, convert::integers(argument, labels)?)
    }

    fn checked(&self, argument: &'static str, labels: Vec<i64>) -> PyResult<Vec<u32>> {
        Ok(self.core.check_labels(argument, &labels).map_err(Raised::from)?)
    }
}

/// Labels that :meth:`Labelling.solve` found, and how good they are.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> none = np.empty(0, dtype=np.int32)
/// >>> alone = fast.Labelling(
/// ...     node_table=np.array([0]), unary_start=np.array([0, 3]), unary=np.array([[2.0], [1.0], [4.0]]),
/// ...     src=none, dst=none, edge_table=none,
/// ...     pair_start=np.array([0]), pair_columns=none, pair=np.empty((0, 1)),
/// ... )
/// >>> found = alone.solve(np.ones(1))
/// >>> found.labels.tolist(), found.energy, found.gap
/// ([1], 1.0, 0.0)
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Labels {
    core: CoreLabels,
}

#[pymethods]
impl Labels {
    /// The label of each node, int32 [n].
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> Ids<'py> {
        ids(py, self.core.labels.iter().copied())
    }

    /// Weighted sum of the labels' costs.
    #[getter]
    fn energy(&self) -> f64 {
        self.core.energy
    }

    /// No labels that obey the ties have less energy; at most :attr:`energy`.
    #[getter]
    fn bound(&self) -> f64 {
        self.core.bound
    }

    /// What is between energy and bound, as a share of the energy's size; 0 where the labels are proved best.
    #[getter]
    fn gap(&self) -> f64 {
        self.core.gap()
    }

    /// Sweeps that were made: passes forwards and backwards.
    #[getter]
    fn sweeps(&self) -> u32 {
        self.core.sweeps
    }
}
