//! Keyword arguments.

use crate::errors::Class;
use mk::{
    function::Sizes,
    settings::{AllReduce, Config, Consumers, Gather, LastWave, Reduction, Schedule},
    tune::Fuse,
};
use pyo3::{prelude::*, types::PyDict};
use std::{collections::BTreeMap, time::Duration};

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

/// What decides a plan beside its sizes, as it was passed.
pub struct Choices<'a, 'py> {
    pub sms: Option<&'a Bound<'py, PyDict>>,
    pub block: Option<[u32; 3]>,
    pub chunk_bytes: Option<u32>,
    pub k_slices: Option<u32>,
    pub gather: Option<&'a str>,
    pub all_reduce: Option<&'a str>,
    pub sums: Option<&'a str>,
    pub split_k: Option<u32>,
    pub consumers: Option<&'a str>,
    pub group_m: Option<u32>,
    pub tail: Option<&'a str>,
    pub tile_scheduler: Option<&'a str>,
}

impl Choices<'_, '_> {
    /// Whether there is any.
    pub fn given(&self) -> bool {
        let words = [
            self.tail,
            self.gather,
            self.all_reduce,
            self.sums,
            self.consumers,
            self.tile_scheduler,
        ]
        .iter()
        .any(Option::is_some);
        let numbers = [self.chunk_bytes, self.k_slices, self.split_k, self.group_m]
            .iter()
            .any(Option::is_some);
        words || numbers || self.sms.is_some() || self.block.is_some()
    }
}

/// These choices, over the defaults.
pub fn config(py: Python<'_>, ranks: u32, choices: &Choices<'_, '_>) -> PyResult<Config> {
    let mut default = Config::default();
    if let Some(block) = choices.block {
        default.set_block(block);
    }
    let sms = choices.sms.map(|d| map(py, d, "sms", "the name of a role to a number of CTAs"));
    let number = |name, given: Option<u32>, default| match given {
        Some(0) => Err(Class::Argument.error(py, format!("{name} is 0, and must be at least 1"))),
        given => Ok(given.unwrap_or(default)),
    };
    let all_reduce = [
        ("two-phase", AllReduce::TwoShot),
        ("one-shot", AllReduce::OneShot),
        ("by-columns", AllReduce::ByColumns),
    ];
    let consumers = [("cooperative", Consumers::Cooperative), ("ping-pong", Consumers::PingPong)];
    let schedule = [("static", Schedule::Static), ("dynamic", Schedule::Dynamic)];
    let tail = choices.tail.map(|text| {
        text.parse::<Tail>().map_err(|e| Class::Argument.error(py, format!("tail: {e}")))
    });
    let gather = choices.gather.map(|text| {
        text.parse::<Gather>().map_err(|e| Class::Argument.error(py, format!("gather: {e}")))
    });
    let which = [("beside", Reduction::DedicatedSms), ("after", Reduction::AfterLastWave), ("ring", Reduction::Ring)];
    Ok(Config {
        ranks,
        sms: sms.transpose()?.unwrap_or_default(),
        chunk_bytes: number("chunk_bytes", choices.chunk_bytes, default.chunk_bytes)?,
        k_slices: number("k_slices", choices.k_slices, default.k_slices)?,
        all_reduce: one_of(py, "all_reduce", choices.all_reduce, all_reduce, default.all_reduce)?,
        sums: one_of(py, "sums", choices.reduction: sums, which, default.reduction)?,
        split_k: number("split_k", choices.split_k, default.split_k)?,
        group_m: number("group_m", choices.group_m, default.group_m)?,
        consumers: one_of(py, "consumers", choices.consumers, consumers, default.consumers)?,
        gather: gather.transpose()?.unwrap_or_default(),
        last_wave: tail.transpose()?,
        tile_scheduler: one_of(
            py,
            "tile_scheduler",
            choices.tile_scheduler,
            schedule,
            default.tile_scheduler,
        )?,
        ..default
    })
}

/// The value that a word stands for.
fn one_of<T: Copy, const N: usize>(
    py: Python<'_>,
    name: &str,
    given: Option<&str>,
    words: [(&str, T); N],
    default: T,
) -> PyResult<T> {
    let Some(given) = given else { return Ok(default) };
    // Also as plans print it: `ping_pong` is `ping-pong`.
    let spelt = given.replace('_', "-");
    words.iter().find(|(word, _)| *word == spelt).map(|(_, value)| *value).ok_or_else(|| {
        let all = words.map(|(word, _)| format!("\"{word}\"")).join(" or ");
        Class::Argument.error(py, format!("{name} is {given:?}, and must be {all}"))
    })
}

/// Whether to fuse.
pub fn fuse(py: Python<'_>, given: &str) -> PyResult<Fuse> {
    given.parse().map_err(|what| Class::Argument.error(py, format!("fuse: {what}")))
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
