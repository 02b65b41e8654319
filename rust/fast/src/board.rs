//! `fast.Board`: numpy arrays, which may lie in memory that processes share, as words of the board.

use loadmaster_core::dispatch::{Board as Core, words};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::AtomicU64;

use crate::errors::Raised;

/// The words of an array, which is kept alive.
struct Words {
    _array: Py<PyAny>,
    address: usize,
    n: usize,
}

impl Words {
    fn of(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = || {
            PyValueError::new_err(format!(
                "{argument}: wants a writable, contiguous one-dimensional uint64 numpy array"
            ))
        };
        let array = object.cast::<PyArray1<u64>>().map_err(|_| wrong())?;
        let mut all = array.try_readwrite().map_err(|_| wrong())?;
        let words = all.as_slice_mut().map_err(|_| wrong())?;
        let start = words.as_mut_ptr();
        if !start.cast::<AtomicU64>().is_aligned() {
            return Err(wrong());
        }
        Ok(Self { _array: object.clone().unbind(), address: start.expose_provenance(), n: words.len() })
    }

    /// The words, for devices that read and write them at the same time.
    #[allow(unsafe_code, reason = "memory that other processes write can only be reached by its address")]
    fn shared(&self) -> &[AtomicU64] {
        let start = std::ptr::with_exposed_provenance::<AtomicU64>(self.address);
        // SAFETY: `of` saw an array of `n` aligned words at this address. It stays there, since the array is
        // kept, and numpy does not move the words of an array that somebody refers to. Rust reaches them as
        // atomics alone.
        unsafe { std::slice::from_raw_parts(start, self.n) }
    }
}

/// What all devices of a run see, in arrays that may lie in shared memory.
///
/// Each array is uint64, writable and contiguous, of the length that :meth:`words` says, and 0 at first.
/// ``arrivals`` has three words per arrival: the last step that it came in, when it began to be sent, and
/// from when on it counts. ``tasks`` has two per task: its last start and finish. Clocks are nanoseconds of
/// ``time.monotonic_ns()``.
///
/// Parameters
/// ----------
/// gates, arrivals, tasks : uint64
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, an array that cannot be written, or a length that no board has.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> lengths = fast.Board.words(2, 3, 4)
/// >>> lengths
/// (9, 9, 8)
/// >>> board = fast.Board(*(np.zeros(n, dtype=np.uint64) for n in lengths))
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Board {
    gates: Words,
    arrivals: Words,
    tasks: Words,
}

#[pymethods]
impl Board {
    #[new]
    fn new(
        gates: &Bound<'_, PyAny>,
        arrivals: &Bound<'_, PyAny>,
        tasks: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let made = Self {
            gates: Words::of("gates", gates)?,
            arrivals: Words::of("arrivals", arrivals)?,
            tasks: Words::of("tasks", tasks)?,
        };
        made.core()?;
        Ok(made)
    }

    /// The lengths of the three arrays.
    #[staticmethod]
    fn words(n_devices: usize, n_arrivals: usize, n_tasks: usize) -> PyResult<(usize, usize, usize)> {
        Ok(words(n_devices, n_arrivals, n_tasks).map_err(Raised::from)?.into())
    }

    /// Has every device give up its step.
    fn stop(&self) -> PyResult<()> {
        self.core()?.stop();
        Ok(())
    }

    /// Whether devices are to give up.
    #[getter]
    fn is_stopped(&self) -> PyResult<bool> {
        Ok(self.core()?.is_stopped())
    }
}

impl Board {
    pub fn core(&self) -> PyResult<Core<'_>> {
        let made = Core::new(self.gates.shared(), self.arrivals.shared(), self.tasks.shared());
        Ok(made.map_err(Raised::from)?)
    }
}
