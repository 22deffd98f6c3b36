//! The text of a pipeline: given as it is, or as the path of a `.mk` file.

use crate::errors::{self, Class};
use mk::{Diagnostics, Program, file, function::Sizes};
use pyo3::{exceptions::PyTypeError, prelude::*};
use std::collections::BTreeMap;

/// A text, and the file that it is from.
pub struct Source {
    pub text: String,
    origin: Option<String>,
}

impl Source {
    /// A `str` that ends with `.mk`, and a path of any other kind, are read.
    pub fn new(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Source> {
        if let Ok(text) = given.extract::<String>() {
            return match text.ends_with(".mk") {
                true => Source::read(py, text),
                false if file::is_path(&text) => Err(no_pipeline(py, &text)),
                false => Ok(Source { text, origin: None }),
            };
        }
        match py.import("os")?.call_method1("fspath", (given,)).and_then(|p| p.extract()) {
            Ok(path) => Source::read(py, path),
            Err(_) => {
                let kind = given.get_type().name()?;
                let what = format!("pipeline is a {kind}, and must be a str or a path");
                Err(PyTypeError::new_err(what))
            }
        }
    }

    fn read(py: Python<'_>, path: String) -> PyResult<Source> {
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Source { text, origin: Some(path) }),
            Err(e) => Err(Class::Argument.error(py, format!("{path} cannot be read: {e}"))),
        }
    }

    fn wrong(&self, py: Python<'_>, mistakes: Diagnostics) -> PyErr {
        errors::pipeline(
            py,
            &match &self.origin {
                Some(origin) => mistakes.in_file(origin),
                None => mistakes,
            },
        )
    }

    /// The checked pipeline.
    pub fn parse(&self, py: Python<'_>) -> PyResult<Program> {
        Program::parse(&self.text).map_err(|mistakes| self.wrong(py, mistakes))
    }

    /// Sizes, with those of the text's head for symbols that get none otherwise.
    pub fn with_head(&self, py: Python<'_>, program: &Program, given: Sizes) -> PyResult<Sizes> {
        let dims = file::defaults_beside(&self.text, program, given.shapes.keys());
        let mut dims = dims.map_err(|mistakes| self.wrong(py, mistakes))?;
        dims.extend(given.dims);
        Ok(Sizes { dims, shapes: given.shapes })
    }
}

fn no_pipeline(py: Python<'_>, text: &str) -> PyErr {
    let what = format!(
        "`{text}` is no pipeline\n  help: give one, such as \"gather(a) -> gemm(b)\", or a file x.mk, or any other as \
         pathlib.Path(\"{text}\")"
    );
    Class::Argument.error(py, what)
}

/// The text of a pipeline that is given as it is or as a path.
#[pyfunction]
#[pyo3(name = "_source")]
pub fn source(py: Python<'_>, pipeline: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(Source::new(py, pipeline)?.text)
}

/// The sizes at the head of a text, or of a file.
#[pyfunction]
#[pyo3(name = "_defaults")]
pub fn defaults(py: Python<'_>, pipeline: &Bound<'_, PyAny>) -> PyResult<BTreeMap<String, u64>> {
    let source = Source::new(py, pipeline)?;
    source.parse(py)?;
    file::defaults(&source.text).map_err(|mistakes| source.wrong(py, mistakes))
}
