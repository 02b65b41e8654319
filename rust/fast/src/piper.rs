//! Piper's stages in `loadmaster.fast`.

use loadmaster_core::csr::Csr;
use loadmaster_core::pipeline::piper;
use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::errors::Raised;
use crate::graph::Ids;
use crate::staging::pairs;

/// Stages, choices, and a row per stage: its degree of tensor parallelism and its replicas.
type PiperStages<'py> = (Ids<'py>, Ids<'py>, Bound<'py, PyArray2<i32>>);

/// Stages that are replicated and tensor-parallel, with a choice per layer.
///
/// Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization"
/// (NeurIPS 2021, section 3). A stage of degree t and of d replicas is on t x d devices, and takes, per
/// sample, 1 / d of the seconds of its choices and of what they exchange with other stages, and the
/// exchange of gradients between its replicas once per batch.
///
/// Parameters
/// ----------
/// edges : (int [m], int [m])
///     The second layer of a pair is in the stage of the first or in a later one.
/// choices : (int [c], int [c], float64 [c, 4])
///     The layer and the degree of tensor parallelism of each choice; its seconds per sample, bytes of
///     parameters, bytes held per sample, and bytes held besides.
/// exchanges : (int [x], int [x], float64 [x])
///     A choice, a layer, and bytes per sample that the choice sends and receives where that layer is
///     in another stage.
/// orders : list of int [n_layers]
///     Topological orders of the layers, one at least.
/// limits : (int, float, float, int)
///     Devices, bytes of each, bytes per second that a device sends and receives, samples of a batch.
///     Replicas divide the batch.
///
/// Returns
/// -------
/// stages : (int32 [n_layers], int32 [n_layers], int32 [n_stages, 2]), optional
///     The stage and the choice of each layer; the degree and the replicas of each stage. None where
///     nothing fits.
/// downsets : int, optional
///     How many downsets there are. None where they were too many: then stages are cut out of orders.
///
/// Raises
/// ------
/// InputError
///     No layers.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> two = np.array([0, 1])
/// >>> choices = two, np.ones(2, dtype=np.int64), np.array([[2.0, 0, 1, 0], [3.0, 0, 1, 0]])
/// >>> none = two[:0], two[:0], np.empty(0)
/// >>> found, _ = fast.piper_stages((two[:1], two[1:]), choices, none, [two], (5, 10.0, 1.0, 6))
/// >>> found[0].tolist(), found[2].tolist()
/// ([0, 1], [[1, 2], [1, 3]])
#[pyfunction]
#[pyo3(signature = (edges, choices, exchanges, orders, limits))]
pub fn piper_stages<'py>(
    py: Python<'py>,
    edges: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    choices: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    exchanges: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    orders: Vec<Bound<'_, PyAny>>,
    limits: (u32, f64, f64, u32),
) -> PyResult<(Option<PiperStages<'py>>, Option<usize>)> {
    let Some(first) = orders.first() else {
        return Err(PyValueError::new_err("orders: wants one at least"));
    };
    let n = convert::integers("orders", first)?.len();
    let orders: Vec<Vec<u32>> =
        orders.iter().map(|o| convert::indices("orders", o, n, n)).collect::<PyResult<_>>()?;
    let edges = pairs("edges", &edges, (n, n))?;
    let layers = piper_layers(n, edges, &choices, &exchanges)?;
    let (devices, memory, bandwidth, samples) = limits;
    if !(memory >= 0.0 && bandwidth > 0.0 && samples > 0) {
        return Err(PyValueError::new_err("limits: wants bytes, a bandwidth and samples above 0"));
    }
    let limits = piper::Limits { devices, memory, bandwidth, samples };
    let orders: Vec<&[u32]> = orders.iter().map(Vec::as_slice).collect();
    let (stages, downsets) = py.detach(|| piper::plan(&layers, limits, &orders)).map_err(Raised::from)?;
    let stages = stages.map(|stages| {
        let (mut of, mut choice) = (vec![0i32; n], vec![0i32; n]);
        for (s, stage) in stages.iter().enumerate() {
            for (&v, &c) in stage.layers.iter().zip(&stage.choices) {
                (of[v as usize], choice[v as usize]) = (s as i32, c as i32);
            }
        }
        let rows: Vec<Vec<i32>> = stages.iter().map(|s| vec![s.tensor as i32, s.replicas as i32]).collect();
        let rows = PyArray2::from_vec2(py, &rows).expect("rows of two");
        (PyArray1::from_vec(py, of), PyArray1::from_vec(py, choice), rows)
    });
    Ok((stages, downsets))
}

/// Layers from columns.
fn piper_layers(
    n: usize,
    edges: Vec<(u32, u32)>,
    choices: &(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    exchanges: &(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
) -> PyResult<piper::Layers> {
    let c = convert::integers("choices", &choices.0)?.len();
    let layer = convert::indices("choices", &choices.0, c, n)?;
    let degree = convert::indices("choices", &choices.1, c, u32::MAX as usize)?;
    let numbers = convert::time_matrix("choices", &choices.2, c, 4)?;
    if degree.contains(&0) || !numbers.iter().all(|x| x.is_finite() && *x >= 0.0) {
        return Err(PyValueError::new_err("choices: wants degrees above 0, and no negative number"));
    }
    let x = convert::integers("exchanges", &exchanges.0)?.len();
    let by = convert::indices("exchanges", &exchanges.0, x, c)?;
    let with = convert::indices("exchanges", &exchanges.1, x, n)?;
    let bytes = convert::seconds("exchanges", &exchanges.2, x, true)?;
    let mut degrees = degree.clone();
    degrees.sort_unstable();
    degrees.dedup();
    let row = |i: usize| {
        let at = degrees.binary_search(&degree[i]).expect("one of them");
        (layer[i] as usize * degrees.len() + at, i as u32)
    };
    let made = |f: &[f64]| piper::Choice { seconds: f[0], parameters: f[1], held: f[2], fixed: f[3] };
    Ok(piper::Layers {
        n,
        edges,
        choices: numbers.chunks_exact(4).map(made).collect(),
        of: Csr::from_pairs(n * degrees.len(), (0..c).map(row)),
        exchanges: Csr::from_pairs(c, (0..x).map(|i| (by[i] as usize, (with[i], bytes[i])))),
        degrees,
    })
}
