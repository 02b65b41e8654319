//! `fast.Part`, `fast.Dispatcher`, `fast.Links` and `fast.Emulated`: running a plan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loadmaster_core::dispatch::emulate::{Device, Links as CoreLinks};
use loadmaster_core::dispatch::{Columns, Dispatcher as Core, Ended, Monotonic, Part as CorePart};
use loadmaster_core::ids::DeviceId;
use pyo3::exceptions::{PyInterruptedError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::board::Board;
use crate::convert;
use crate::errors::Raised;

/// Two columns.
type Pairs<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A task, and the arrivals and tasks that it waits for.
type MissingRow = (u32, Vec<u32>, Vec<u32>);

fn numbers(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let values = convert::integers(argument, object)?;
    let n = values.len();
    convert::indices(argument, object, n, u32::MAX as usize)
}

fn pairs(argument: &str, (first, second): &Pairs<'_>) -> PyResult<Vec<(u32, u32)>> {
    let (first, second) = (numbers(argument, first)?, numbers(argument, second)?);
    if first.len() != second.len() {
        return Err(convert::wrong_length(argument, second.len(), format!("{} (pairs)", first.len())));
    }
    Ok(first.into_iter().zip(second).collect())
}

/// What one device has to do in a step, of a plan that runs.
///
/// Tasks, arrivals and devices are numbered as on the :class:`Board`. A task is an op, or the share of a
/// member in a collective; an arrival is a transfer, a message, or that a member has brought its share.
/// O(n log n).
///
/// Parameters
/// ----------
/// device : int
/// tasks : tuple of int [n], int [n], bool [n]
///     The tasks of the device; their priorities, the smaller the sooner; and whether each takes no time of
///     the device (a view), so that it runs as soon as it can.
/// order : tuple of int, int
///     Pairs of tasks of the device, of which the second waits for the first.
/// waits : tuple of int, int
///     Arrivals, and tasks of the device that wait for them.
/// sends : tuple of int, int
///     Arrivals that the device sends, and the devices that are to be told of them.
/// fixed : bool
///     Whether tasks run exactly in the order of their priorities.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype or length.
/// InputError
///     A task of another device, or tasks that wait for each other.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> none = np.empty(0, dtype=int), np.empty(0, dtype=int)
/// >>> part = fast.Part(0, (np.array([0]), np.array([0]), np.array([False])), none, none, none, fixed=False)
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Part(Arc<CorePart>);

#[pymethods]
impl Part {
    #[new]
    #[pyo3(signature = (device, tasks, order, waits, sends, *, fixed))]
    fn new(
        device: u32,
        tasks: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
        order: Pairs<'_>,
        waits: Pairs<'_>,
        sends: Pairs<'_>,
        fixed: bool,
    ) -> PyResult<Self> {
        let numbers = numbers("tasks", &tasks.0)?;
        let columns = Columns {
            priority: convert::priorities(&tasks.1, numbers.len())?,
            at_once: convert::flags("tasks", &tasks.2)?,
            order: pairs("order", &order)?,
            waits: pairs("waits", &waits)?,
            sends: pairs("sends", &sends)?,
            tasks: numbers,
        };
        let part = CorePart::new(DeviceId(device), fixed, columns).map_err(Raised::from)?;
        Ok(Self(Arc::new(part)))
    }
}

/// Says which task of a device comes next. The GIL is released while it waits.
///
/// A worker calls, for each step, :meth:`begin`; then :meth:`next` and :meth:`done` in turn, until ``next``
/// gives -1; then :meth:`end`. It calls :meth:`arrive` for what it sends, once that is there to be read.
///
/// Parameters
/// ----------
/// part : Part
/// board : Board
/// patience : float
///     Seconds without news after which a wait ends with a ``TimeoutError``.
/// alert : float, optional
///     Seconds after the last news for which a wait keeps its core, and then naps: long where the core is the
///     worker's own, for a nap ends later than the news came. 50 us if absent.
///
/// Raises
/// ------
/// InputError
///     A part with numbers that the board does not have.
/// TimeoutError
///     By ``begin``, ``next``, ``end``: nothing happened for as long; :meth:`missing` says what is waited for.
/// InterruptedError
///     By the same: the board was stopped.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> none = np.empty(0, dtype=int), np.empty(0, dtype=int)
/// >>> tasks = np.array([0, 1]), np.array([1, 0]), np.array([False, False])
/// >>> part = fast.Part(0, tasks, none, none, none, fixed=False)
/// >>> board = fast.Board(*(np.zeros(n, dtype=np.uint64) for n in fast.Board.words(1, 0, 2)))
/// >>> dispatcher, ran = fast.Dispatcher(part, board, 1.0), []
/// >>> clock = dispatcher.begin()
/// >>> while (task := dispatcher.next()) >= 0:
/// ...     ran.append(task)
/// ...     dispatcher.done(task)
/// >>> dispatcher.end()
/// >>> ran
/// [1, 0]
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Dispatcher {
    core: Mutex<Core>,
    board: Py<Board>,
}

#[pymethods]
impl Dispatcher {
    #[new]
    #[pyo3(signature = (part, board, patience, alert=None))]
    fn new(part: &Part, board: Py<Board>, patience: f64, alert: Option<f64>) -> PyResult<Self> {
        let py_board = board.get();
        let core = Core::new(
            Arc::clone(&part.0),
            &py_board.core()?,
            Python::attach(clock)?,
            nanoseconds("patience", patience)?,
        );
        let mut core = core.map_err(Raised::from)?;
        if let Some(alert) = alert {
            core.stay_alert(nanoseconds("alert", alert)?);
        }
        Ok(Self { core: Mutex::new(core), board })
    }

    /// Comes to the next step, and waits until it begins for all devices: when that is, in nanoseconds.
    fn begin(&self, py: Python<'_>) -> PyResult<u64> {
        let board = self.board.get().core()?;
        py.detach(|| self.core().begin(&board)).map_err(given_up)
    }

    /// Starts the next task, and waits until one can start; -1 once all are done.
    fn next(&self, py: Python<'_>) -> PyResult<i64> {
        let board = self.board.get().core()?;
        let task = py.detach(|| self.core().next(&board)).map_err(given_up)?;
        Ok(task.map_or(-1, i64::from))
    }

    /// Ends a task that `next` gave.
    fn done(&self, task: u32) -> PyResult<()> {
        let board = self.board.get().core()?;
        Ok(self.core().done(&board, task).map_err(Raised::from)?)
    }

    /// Tells of an arrival: when it began to be sent, and from when on it counts, in nanoseconds.
    fn arrive(&self, arrival: u32, start: u64, counts: u64) -> PyResult<()> {
        let board = self.board.get().core()?;
        Ok(self.core().arrive(&board, arrival, (start, counts)).map_err(Raised::from)?)
    }

    /// Waits until all devices have ended the step.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let board = self.board.get().core()?;
        py.detach(|| self.core().end(&board)).map_err(given_up)
    }

    /// The tasks that have not started, by priority: each with the arrivals and the tasks that it waits for.
    fn missing(&self) -> Vec<MissingRow> {
        let missing = self.core().missing().into_iter();
        missing.map(|missing| (missing.task, missing.arrivals, missing.tasks)).collect()
    }
}

impl Dispatcher {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links between emulated devices.
///
/// Parameters
/// ----------
/// n_devices, n_channels : int
/// holds : tuple of int, int
///     Arrivals, and channels that they hold.
/// length : uint64 [n_arrivals]
///     Nanoseconds that each arrival is under way.
/// collective : int [n_arrivals]
///     Arrivals with the same number >= 0 are the members of one collective.
/// told : tuple of int, int
///     Arrivals, and the devices that are told of them.
/// first : int
///     Arrivals that are sent as a step begins, in this order.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype or length.
/// InputError
///     An arrival or a channel that there is not.
///
/// Examples
/// --------
/// One transfer of a millisecond over channel 0, to device 1:
///
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> zero, none = np.array([0]), np.array([-1])
/// >>> links = fast.Links(2, 1, (zero, zero), np.array([1_000_000]), none, (zero, np.array([1])), none[:0])
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Links(CoreLinks);

#[pymethods]
impl Links {
    #[new]
    fn new(
        n_devices: usize,
        n_channels: usize,
        holds: Pairs<'_>,
        length: &Bound<'_, PyAny>,
        collective: &Bound<'_, PyAny>,
        told: Pairs<'_>,
        first: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (length, collective) =
            (convert::sizes("length", length)?, convert::integers("collective", collective)?);
        let (holds, told) = (pairs("holds", &holds)?, pairs("told", &told)?);
        let (n, first) = ((n_devices, n_channels), numbers("first", first)?);
        Ok(Self(CoreLinks::new(n, &holds, length, &collective, &told, first).map_err(Raised::from)?))
    }
}

/// An emulated device: its ops are waits, and its transfers take their time on :class:`Links`.
///
/// Parameters
/// ----------
/// dispatcher : Dispatcher
/// links : Links
/// length : tuple of int [n], uint64 [n]
///     Tasks of the device, and nanoseconds that each takes.
/// after : tuple of int, int
///     Tasks, and arrivals that are sent once they are done, in this order.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype or length.
/// InputError
///     A task or an arrival of another device.
///
/// Examples
/// --------
/// A device that does one op, of a millisecond:
///
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> none = np.empty(0, dtype=int), np.empty(0, dtype=int)
/// >>> links = fast.Links(1, 0, none, none[0], none[0], none, none[0])
/// >>> part = fast.Part(0, (np.array([0]), np.array([0]), np.array([False])), none, none, none, fixed=False)
/// >>> arrays = [np.zeros(n, dtype=np.uint64) for n in fast.Board.words(1, 0, 1)]
/// >>> dispatcher = fast.Dispatcher(part, fast.Board(*arrays), 1.0)
/// >>> length = np.array([0]), np.array([1_000_000])
/// >>> clock = fast.Emulated(dispatcher, links, length, none).step()
/// >>> bool(arrays[2][1] - arrays[2][0] >= 1_000_000)
/// True
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Emulated {
    dispatcher: Py<Dispatcher>,
    links: Py<Links>,
    device: Device,
}

#[pymethods]
impl Emulated {
    #[new]
    fn new(
        dispatcher: Py<Dispatcher>,
        links: Py<Links>,
        length: Pairs<'_>,
        after: Pairs<'_>,
    ) -> PyResult<Self> {
        let (tasks, nanoseconds) = (numbers("length", &length.0)?, convert::sizes("length", &length.1)?);
        let length: Vec<(u32, u64)> = tasks.into_iter().zip(nanoseconds).collect();
        let after = pairs("after", &after)?;
        let (core_links, board) = (&links.get().0, dispatcher.get().board.get());
        core_links.check(&board.core()?).map_err(Raised::from)?;
        let device =
            Device::new(&dispatcher.get().core(), core_links, &length, &after).map_err(Raised::from)?;
        dispatcher.get().core().wake_by(Arc::clone(&core_links.bells));
        Ok(Self { dispatcher, links, device })
    }

    /// Runs a step: when it began, in nanoseconds. Raises as :class:`Dispatcher` does.
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        let (dispatcher, links) = (self.dispatcher.get(), self.links.get());
        let board = dispatcher.board.get().core()?;
        py.detach(|| self.device.step(&mut dispatcher.core(), &board, &links.0)).map_err(given_up)
    }
}

/// The machine's clock, read so that it is off by little.
fn clock(py: Python<'_>) -> PyResult<Monotonic> {
    let time = py.import("time")?.getattr("monotonic_ns")?;
    let (mut best, mut narrowest) = (None, u128::MAX);
    for _ in 0..8 {
        let before = std::time::Instant::now();
        let now: u64 = time.call0()?.extract()?;
        let took = before.elapsed().as_nanos();
        if took < narrowest {
            (best, narrowest) = (Some(Monotonic::starting(now)), took);
        }
    }
    best.ok_or_else(|| PyValueError::new_err("time.monotonic_ns() is no clock"))
}

fn nanoseconds(argument: &str, seconds: f64) -> PyResult<u64> {
    if seconds > 0.0 && seconds < 1e9 {
        return Ok((seconds * 1e9) as u64);
    }
    Err(PyValueError::new_err(format!("{argument} is {seconds}: it must be above 0 and below 1e9 s")))
}

fn given_up(ended: Ended) -> PyErr {
    match ended {
        Ended::Overdue => PyTimeoutError::new_err("nothing happened for longer than the patience lasts"),
        Ended::Stopped => PyInterruptedError::new_err("the run was stopped"),
    }
}
