//! Conversion of numeric arguments, with errors that name the argument and the value, which Python's own do not.

use crate::errors::Class;
use pyo3::{
    prelude::*,
    types::{PyBool, PyInt},
};
use std::ops::RangeInclusive;

/// A whole number for `name`.
///
/// # Errors
/// ArgumentError for other things, and for numbers outside the range.
pub fn whole(given: &Bound<'_, PyAny>, name: &str, range: RangeInclusive<u64>) -> PyResult<u64> {
    let is_whole = given.is_instance_of::<PyInt>() && !given.is_instance_of::<PyBool>();
    let read = given.extract::<u64>().ok().filter(|n| is_whole && range.contains(n));
    read.ok_or_else(|| {
        let (least, most) = range.into_inner();
        let most = if most == u64::MAX { "2^64 - 1".into() } else { most.to_string() };
        let text = given.repr().map_or_else(|_| "?".into(), |text| text.to_string());
        let what = format!("{name} is {text}, and must be a whole number from {least} to {most}");
        Class::Argument.error(given.py(), what)
    })
}

/// A list of numbers for `name`.
///
/// # Errors
/// ArgumentError for other things.
pub fn list(given: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<f64>> {
    given.extract().map_err(|_| {
        let kind = given.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        let what = format!("{name} is a {kind}, and must be a flat list of numbers");
        Class::Argument.error(given.py(), what)
    })
}
