//! Numpy arrays as arguments: checked by name, dtype and shape, and copied to what the core wants.

use std::fmt::Display;

use loadmaster_core::border::{first_wrong, is_no_time};
use loadmaster_core::error::Counted;
use numpy::{Element, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

fn describe(array: &Bound<'_, PyUntypedArray>) -> String {
    format!("{} array of shape {:?}", array.dtype(), array.shape())
}

/// The array behind an argument, or an error that says what it got and wants.
fn array<'a, 'py>(
    argument: &str,
    object: &'a Bound<'py, PyAny>,
    wants: &str,
) -> PyResult<&'a Bound<'py, PyUntypedArray>> {
    object.cast::<PyUntypedArray>().map_err(|_| {
        let got = object.get_type().name().map_or_else(|_| "?".to_owned(), |n| n.to_string());
        PyValueError::new_err(format!("{argument}: got {got}, wants {wants}"))
    })
}

fn values<T: Element + Copy>(object: &Bound<'_, PyAny>) -> Option<Vec<T>> {
    let array: PyReadonlyArrayDyn<'_, T> = object.extract().ok()?;
    Some(match array.as_slice() {
        Ok(slice) => slice.to_vec(),
        Err(_) => array.as_array().iter().copied().collect(),
    })
}

/// The values of a one-dimensional array of exactly this dtype.
fn one_dimensional_values<T: Element + Copy>(object: &Bound<'_, PyAny>) -> Option<Vec<T>> {
    let is_one = object.cast::<PyUntypedArray>().is_ok_and(|array| array.ndim() == 1);
    if is_one { values(object) } else { None }
}

fn one_dimensional<'a, 'py>(
    argument: &str,
    object: &'a Bound<'py, PyAny>,
    wants: &str,
) -> PyResult<&'a Bound<'py, PyUntypedArray>> {
    let array = array(argument, object, wants)?;
    if array.ndim() == 1 {
        Ok(array)
    } else {
        Err(PyValueError::new_err(format!("{argument}: got {}, wants {wants}", describe(array))))
    }
}

fn wrong_dtype(argument: &str, array: &Bound<'_, PyUntypedArray>, wants: &str) -> PyErr {
    PyValueError::new_err(format!("{argument}: got {}, wants {wants}", describe(array)))
}

/// A one-dimensional int32 or int64 array.
pub fn integers(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    const WANTS: &str = "a one-dimensional int32 or int64 numpy array";
    let array = one_dimensional(argument, object, WANTS)?;
    if let Some(values) = values::<i64>(object) {
        return Ok(values);
    }
    match values::<i32>(object) {
        Some(values) => Ok(values.into_iter().map(i64::from).collect()),
        None => Err(wrong_dtype(argument, array, WANTS)),
    }
}

/// A one-dimensional array of bytes: uint64 or int64, not negative.
pub fn sizes(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    const WANTS: &str = "a one-dimensional uint64 or int64 numpy array of bytes";
    let array = one_dimensional(argument, object, WANTS)?;
    if let Some(values) = values::<u64>(object) {
        return Ok(values);
    }
    let Some(values) = values::<i64>(object) else { return Err(wrong_dtype(argument, array, WANTS)) };
    match values.iter().position(|&v| v < 0) {
        None => Ok(values.into_iter().map(|v| v as u64).collect()),
        Some(i) => {
            Err(PyValueError::new_err(format!("{argument}[{i}] is {}: it must not be negative", values[i])))
        }
    }
}

/// Nothing, or [`sizes`].
pub fn optional_sizes(argument: &str, object: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u64>> {
    object.map_or_else(|| Ok(Vec::new()), |o| sizes(argument, o))
}

/// A one-dimensional bool array.
pub fn flags(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
    const WANTS: &str = "a one-dimensional bool numpy array";
    let array = one_dimensional(argument, object, WANTS)?;
    values::<bool>(object).ok_or_else(|| wrong_dtype(argument, array, WANTS))
}

/// A one-dimensional float64 array of finite seconds >= 0, `n` long (at least, when `or_more`).
pub fn seconds(argument: &str, object: &Bound<'_, PyAny>, n: usize, or_more: bool) -> PyResult<Vec<f64>> {
    let wants = format!("a float64 numpy array of shape ({n},){}", if or_more { " or longer" } else { "" });
    let array = one_dimensional(argument, object, &wants)?;
    let values = values::<f64>(object).ok_or_else(|| wrong_dtype(argument, array, &wants))?;
    if values.len() < n || (values.len() > n && !or_more) {
        return Err(wrong_dtype(argument, array, &wants));
    }
    match first_wrong(&values, is_no_time) {
        None => Ok(values),
        Some(i) => Err(PyValueError::new_err(format!(
            "{argument}[{i}] is {}: it must be finite and not negative",
            values[i]
        ))),
    }
}

/// A float64 matrix `[n_ops, n_types]`, row-major; `[n_ops]` where there is one type.
pub fn time_matrix(
    argument: &str,
    object: &Bound<'_, PyAny>,
    n_ops: usize,
    n_types: usize,
) -> PyResult<Vec<f64>> {
    let wants = format!("a float64 numpy array of shape ({n_ops}, {n_types}), ops by device types");
    let array = array(argument, object, &wants)?;
    let fits = array.shape() == [n_ops, n_types] || (n_types == 1 && array.shape() == [n_ops]);
    if !fits {
        return Err(wrong_dtype(argument, array, &wants));
    }
    values::<f64>(object).ok_or_else(|| wrong_dtype(argument, array, &wants))
}

/// A float64 matrix, row-major, and its number of columns.
pub fn rows(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<(Vec<f64>, usize)> {
    const WANTS: &str = "a two-dimensional float64 numpy array";
    let array = array(argument, object, WANTS)?;
    match array.shape() {
        &[_, columns] => {
            let values = values::<f64>(object).ok_or_else(|| wrong_dtype(argument, array, WANTS))?;
            Ok((values, columns))
        }
        _ => Err(wrong_dtype(argument, array, WANTS)),
    }
}

/// An argument that is too short or too long.
pub fn wrong_length(argument: &str, got: usize, wants: impl Display) -> PyErr {
    PyValueError::new_err(format!("{argument}: got {}, wants {wants}", Counted(got, "value")))
}

/// Indices below `n`, `length` of them.
pub fn indices(argument: &str, object: &Bound<'_, PyAny>, length: usize, n: usize) -> PyResult<Vec<u32>> {
    match one_dimensional_values::<i32>(object) {
        Some(values) => indices_of(argument, values, length, n),
        None => indices_of(argument, integers(argument, object)?, length, n),
    }
}

fn indices_of<T: Copy + Into<i64>>(
    argument: &str,
    values: Vec<T>,
    length: usize,
    n: usize,
) -> PyResult<Vec<u32>> {
    if values.len() != length {
        return Err(wrong_length(argument, values.len(), length));
    }
    match first_wrong(&values, |v| v.into() as u64 >= n as u64) {
        None => Ok(values.into_iter().map(|v| v.into() as u32).collect()),
        Some(i) => Err(PyValueError::new_err(format!(
            "{argument}[{i}] is {}: it must be 0 to {}",
            values[i].into(),
            n.max(1) - 1
        ))),
    }
}

/// A priority per op.
pub fn priorities(object: &Bound<'_, PyAny>, n_ops: usize) -> PyResult<Vec<i32>> {
    let narrow = |(i, v): (usize, i64)| {
        i32::try_from(v)
            .map_err(|_| PyValueError::new_err(format!("priority[{i}] is {v}: it must fit in 32 bits")))
    };
    let values = match one_dimensional_values::<i32>(object) {
        Some(values) => values,
        None => integers("priority", object)?.into_iter().enumerate().map(narrow).collect::<PyResult<_>>()?,
    };
    if values.len() == n_ops {
        Ok(values)
    } else {
        Err(wrong_length("priority", values.len(), format!("{n_ops} (one per op)")))
    }
}

/// A number of things, not negative.
pub fn count(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    unsigned(argument, object).map(|n| n as usize)
}

/// An integer from 0 to 2^64 - 1.
pub fn unsigned(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<u64> {
    object.extract::<u64>().map_err(|_| {
        let got = object.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        PyValueError::new_err(format!("{argument}: got {got}, wants an integer from 0 to 2^64 - 1"))
    })
}

/// Refuses a limit that no time can be below or above.
pub fn limit(seconds: f64) -> PyResult<()> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("limit is {seconds}: it must be a number >= 0")));
    }
    Ok(())
}
