//! Keyword arguments.

use crate::{errors::Class, numbers};
use mk::{
    abi::device::MAX_RANKS,
    function::Sizes,
    kept::Prove,
    runtime::{
        self,
        jit::{JitOptions, find_nvrtc},
    },
    settings::{self, Config, SETTINGS},
    tune::Fuse,
};
use pyo3::{
    prelude::*,
    types::{PyBool, PyDict, PyInt, PyString, PyTuple},
};
use std::{collections::BTreeMap, time::Duration};

/// NVRTC of the packages that this interpreter sees (torch brings them), where nothing else has one.
pub fn jit(py: Python<'_>) -> JitOptions {
    let plain = JitOptions::default();
    if find_nvrtc(&plain).is_ok() {
        return plain;
    }
    let paths = || -> PyResult<Vec<String>> {
        py.import("nvidia")?.getattr("__path__")?.try_iter()?.map(|p| p?.extract()).collect()
    };
    // No such package: the error at the first compilation says how to get one.
    let folders = paths().unwrap_or_default();
    let options = folders.into_iter().map(|folder| JitOptions {
        nvrtc_dir: Some(std::path::Path::new(&folder).join("cu13/lib")),
        ..JitOptions::default()
    });
    options.into_iter().find(|o| find_nvrtc(o).is_ok()).unwrap_or(plain)
}

/// `shapes` and `dims`.
pub fn sizes(
    py: Python<'_>,
    shapes: Option<&Bound<'_, PyDict>>,
    dims: Option<&Bound<'_, PyDict>>,
) -> PyResult<Sizes> {
    let shapes = shapes.map(|d| map(py, d, "shapes", "a name to a tuple of positive integers"));
    let dims = dims.map(|d| map(py, d, "dims", "a name to a positive integer"));
    Ok(Sizes {
        shapes: shapes.transpose()?.unwrap_or_default(),
        dims: dims.transpose()?.unwrap_or_default(),
    })
}

/// Ranks in a row, or along the axes of a mesh.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    pub ranks: u32,
    /// Axes by name, the last one fastest; none of ranks in a row.
    pub mesh: Vec<(String, u32)>,
}

impl Ranks {
    /// From a number, or a dict of axes to numbers.
    ///
    /// # Errors
    /// ArgumentError for other things, and for more ranks than a world has.
    pub fn new(given: &Bound<'_, PyAny>) -> PyResult<Ranks> {
        let most = MAX_RANKS as u64;
        let Ok(dict) = given.cast::<PyDict>() else {
            let ranks = numbers::whole(given, "ranks", 1..=most)? as u32;
            return Ok(Ranks { ranks, mesh: Vec::new() });
        };
        let refuse = |what: String| {
            let help = "give the ranks along each axis, the last one's side by side: {\"dp\": 2, \"tp\": 4}";
            Err(Class::Argument.error(given.py(), format!("{what}\n  help: {help}")))
        };
        let mut mesh = Vec::new();
        for (name, size) in dict.iter() {
            let Ok(name) = name.extract::<String>() else {
                return refuse(format!("{} is no name of an axis", name.repr()?));
            };
            mesh.push((name.clone(), numbers::whole(&size, &name, 1..=most)? as u32));
        }
        let ranks = mesh.iter().map(|(_, n)| u64::from(*n)).try_fold(1u64, u64::checked_mul);
        match ranks.filter(|n| *n <= most && !mesh.is_empty()) {
            Some(ranks) => Ok(Ranks { ranks: ranks as u32, mesh }),
            None => refuse(format!("ranks is {}, and a mesh has 1 to {most} ranks", given.repr()?)),
        }
    }
}

/// One setting, as ``mk.SETTINGS`` lists it: a row of the table that the command line and searches use.
#[pyclass(frozen, get_all, module = "mk")]
pub struct Setting {
    /// Its name.
    name: &'static str,
    /// One line about it.
    doc: &'static str,
    /// The texts that it takes.
    form: String,
    /// Its text where nothing is said.
    default: String,
}

#[pymethods]
impl Setting {
    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __repr__(&self) -> String {
        let Setting { name, form, default, .. } = self;
        format!("<mk.Setting {name}={default}, of {form}>")
    }
}

/// All of them, in the order in which they are printed.
pub fn table(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let default = Config::default();
    let row = |s: &'static settings::Setting| Setting {
        name: s.name,
        doc: s.doc,
        form: settings::accepted(s),
        default: (s.get)(&default),
    };
    let rows: Vec<_> = SETTINGS.iter().map(|s| Py::new(py, row(s))).collect::<PyResult<_>>()?;
    PyTuple::new(py, rows)
}

/// The keyword argument ``settings``: a dict of names to ``str`` or ``int``, or the text that ``mk explain`` prints.
pub struct Given {
    /// The defaults, with the given settings in their place.
    pub config: Config,
    /// The names that are given.
    names: Vec<String>,
}

impl Given {
    pub fn new(py: Python<'_>, on: Ranks, given: Option<&Bound<'_, PyAny>>) -> PyResult<Given> {
        let Ranks { ranks, mesh } = on;
        let config = Config { ranks, mesh, ..Config::default() };
        let mut this = Given { config, names: Vec::new() };
        let Some(given) = given else { return Ok(this) };
        let words = match given.cast::<PyDict>() {
            Ok(dict) => dict.iter().map(|(name, value)| word(py, &name, &value)).collect(),
            Err(_) => given.extract::<String>().map_err(|_| not_settings(py, given)),
        };
        let words: String = words?;
        settings::read(&mut this.config, &words)
            .map_err(|e| Class::Argument.error(py, e.to_string()))?;
        let names = words.split_whitespace().filter_map(|word| word.split_once('='));
        this.names = names.map(|(name, _)| name.to_string()).collect();
        Ok(this)
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        !self.names.is_empty()
    }

    /// SMs that the function keeps free: given by the keyword, or by the setting.
    pub fn reserve_sms(&self, py: Python<'_>, keyword: u32) -> PyResult<u32> {
        let setting = self.config.reserved_sms;
        match self.names.iter().any(|name| name == "reserved_sms") {
            false => Ok(keyword),
            true if keyword == 0 || keyword == setting => Ok(setting),
            true => Err(Class::Argument.error(
                py,
                format!("reserve_sms is {keyword}, and the setting reserved_sms is {setting}\n  help: give one of \
                    them"),
            )),
        }
    }
}

/// A setting as text, with a space behind it.
fn word(py: Python<'_>, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let whole = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    let text = match whole || value.is_instance_of::<PyString>() {
        true => value.str()?.extract::<String>().ok(),
        false => None,
    };
    // A blank would begin another setting.
    let plain = |text: &String| !text.contains(char::is_whitespace);
    match (name.extract::<String>().ok().filter(plain), text.filter(plain)) {
        (Some(name), Some(text)) => Ok(format!("{name}={text} ")),
        _ => {
            let item = format!("{}: {}", name.repr()?, value.repr()?);
            Err(Class::Argument.error(
                py,
                format!("settings maps a name to a str or an int, and has {{{item}}}\n  help: for instance \
                    settings={{\"block\": \"128x128x64\", \"split_k\": 2}}; mk.SETTINGS lists them"),
            ))
        }
    }
}

fn not_settings(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyErr {
    let kind = given.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    Class::Argument.error(
        py,
        format!(
            "settings is a {kind}, and must be a dict of names to str or int, or a text such as \
            \"block=128x128x64 split_k=2\""
        ),
    )
}

/// Channels of NCCL where the environment does not say how many.
const NCCL_CHANNELS: u32 = 24;

/// SMs that NCCL takes at most, one for each of its channels.
#[pyfunction]
#[pyo3(name = "_nccl_channels")]
pub fn nccl_channels(py: Python<'_>) -> PyResult<u32> {
    let found = runtime::nccl_channels().map_err(|e| Class::Argument.error(py, e.to_string()))?;
    Ok(found.unwrap_or(NCCL_CHANNELS))
}

/// Whether to fuse.
pub fn fuse(py: Python<'_>, given: &str) -> PyResult<Fuse> {
    given.parse().map_err(|what| Class::Argument.error(py, format!("fuse: {what}")))
}

/// Whether proofs of earlier processes are taken.
pub fn prove(py: Python<'_>, given: &str) -> PyResult<Prove> {
    given.parse().map_err(|what| Class::Argument.error(py, format!("prove: {what}")))
}

/// A time in seconds, more than 0.
pub fn seconds(py: Python<'_>, name: &str, value: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(Class::Argument.error(
            py,
            format!(
                "{name} is {value}, and must be a number of seconds greater than 0 and below 2e19"
            ),
        )),
    }
}

fn map<'py, V>(
    py: Python<'py>,
    dict: &Bound<'py, PyDict>,
    name: &str,
    what: &str,
) -> PyResult<BTreeMap<String, V>>
where
    V: for<'a> FromPyObject<'a, 'py>,
{
    let mut out = BTreeMap::new();
    for (key, value) in dict.iter() {
        let pair = (key.extract::<String>().ok(), value.extract::<V>().ok());
        let (Some(key), Some(value)) = pair else {
            let item = format!("{}: {}", key.repr()?, value.repr()?);
            return Err(
                Class::Argument.error(py, format!("{name} maps {what}, and has {{{item}}}"))
            );
        };
        out.insert(key, value);
    }
    Ok(out)
}
