//! Core errors as the package's exceptions.

use loadmaster_core::{ClusterError, Error};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// A core error on its way to Python.
pub struct Raised(Error);

impl From<Error> for Raised {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<ClusterError> for Raised {
    fn from(error: ClusterError) -> Self {
        Self(error.into())
    }
}

impl From<Raised> for PyErr {
    fn from(Raised(error): Raised) -> Self {
        Python::attach(|py| raise(py, &error).unwrap_or_else(|broken| broken))
    }
}

fn raise(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = |name: &str| -> PyResult<Bound<'_, PyType>> {
        py.import("loadmaster.base.errors")?.getattr(name)?.cast_into::<PyType>().map_err(PyErr::from)
    };
    let message = error.to_string();
    match error {
        Error::DoesNotFit { needed, free, device, .. } => {
            let shortfall = PyDict::new(py);
            shortfall.set_item(device, needed - free)?;
            Ok(PyErr::from_type(class("InfeasibleError")?, (message, shortfall.unbind())))
        }
        Error::NoAllowedDevice { .. } | Error::NoLabelling(_) => {
            Ok(PyErr::from_type(class("InfeasibleError")?, message))
        }
        _ => Ok(PyErr::from_type(class("InputError")?, message)),
    }
}
