//! That a setting does not fit, and what would.

use super::values::Block;
use thiserror::Error;

/// A setting that a kernel cannot have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{setting}={value}`: {why}\n  help: {help}")]
pub struct Refusal {
    /// Name of the setting.
    pub setting: &'static str,
    /// Its value, as text.
    pub value: String,
    /// Why it does not fit.
    pub why: String,
    /// What would be accepted.
    pub help: String,
    /// Settings that the help names, or some of a range that it names: each text would be accepted, as [`super::read`]
    /// takes it, in place of what was given.
    pub instead: Vec<String>,
}

/// Why a setting does not fit, and what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Why.
    pub why: String,
    /// What would be accepted; nothing where `instead` says all.
    pub help: String,
    /// Settings that may be accepted instead, as [`super::read`] takes them; the first ones are the nearest.
    pub instead: Vec<String>,
}

/// What leaves a setting alone.
pub(super) const DEFAULT: &str = "leave it as it is by default";

/// A line that names changes.
pub(crate) fn set_one_of(changes: &[String]) -> String {
    let quoted: Vec<String> = changes.iter().map(|c| format!("`{c}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => format!("set {one}"),
        [others @ .., last] => format!("set {} or {last}", others.join(", ")),
    }
}

/// Tiles, the nearest first: those of as many rows before others that are as near.
pub(super) fn tiles(near: Block) -> Vec<String> {
    let [rows, columns, _] = near.map(|n| f64::from(n.max(1)).log2());
    let all = (1..=16).flat_map(|m| [32, 64, 96, 128, 160, 192, 256].map(|n| [16 * m, n]));
    let far = |[m, n]: [u32; 2]| {
        let [m, n] = [m, n].map(|n| f64::from(n).log2());
        // In steps that are the same on every machine.
        (1e6 * (1.5 * (m - rows).abs() + (n - columns).abs())).round() as u64
    };
    let mut all: Vec<[u32; 2]> = all.collect();
    all.sort_by_key(|tile| far(*tile));
    all.into_iter().map(|[m, n]| format!("block={m}x{n}x64")).collect()
}
