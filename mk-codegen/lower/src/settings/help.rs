//! What a refused setting could be instead: named only if it would be accepted.

use super::{
    Refusal,
    config::Config,
    facts::Facts,
    nodes, read,
    table::{Misfit, SETTINGS, Setting},
    values::Block,
    write_all,
};

/// Settings that a help line names, at most.
const NAMED: usize = 3;

/// What leaves a setting alone.
pub(super) const DEFAULT: &str = "leave it as it is by default";

/// The first setting that does not fit: its place in the table, and why.
pub(super) fn first_misfit(config: &Config, facts: &Facts) -> Option<(usize, Misfit)> {
    let default = Config::default();
    SETTINGS.iter().enumerate().find_map(|(i, setting)| {
        let applies = match (setting.get)(config) == (setting.get)(&default) {
            true => Ok(()),
            false => (setting.applies)(facts),
        };
        applies.and_then(|()| (setting.fits)(config, facts)).err().map(|misfit| (i, misfit))
    })
}

/// How far settings get along the table: all of it, where there is no other misfit.
fn reach(config: &Config, change: &str, facts: &Facts) -> Option<usize> {
    let mut config = config.clone();
    read(&mut config, change).ok()?;
    nodes::check(&config, facts).ok()?;
    Some(first_misfit(&config, facts).map_or(SETTINGS.len(), |(i, _)| i))
}

/// The refusal of a setting. Its help keeps to what fits: changes with which all settings do, else those with which this one does.
pub(super) fn refusal(at: usize, misfit: Misfit, config: &Config, facts: &Facts) -> Refusal {
    let setting = &SETTINGS[at];
    let Misfit { why, help, instead } = misfit;
    let refuse = |help: String, instead: Vec<String>| {
        let value = (setting.get)(config);
        Refusal { setting: setting.name, value, why: why.clone(), help, instead }
    };
    let default = as_by_default(setting);
    let getting = |least: usize, changes: &[String]| -> Vec<String> {
        let far = |change: &&String| reach(config, change, facts).is_some_and(|i| i >= least);
        changes.iter().filter(far).cloned().collect()
    };
    for least in [SETTINGS.len(), at + 1] {
        let mut named = getting(least, &instead);
        if !named.is_empty() && named.len() == instead.len() && !help.is_empty() {
            return refuse(help, named);
        }
        named.truncate(NAMED);
        if !named.is_empty() {
            return refuse(set_one_of(&named), named);
        }
        if !getting(least, std::slice::from_ref(&default)).is_empty() {
            return refuse(DEFAULT.into(), vec![default]);
        }
    }
    refuse("leave all settings as they are by default".into(), vec![write_all(&Config::default())])
}

/// A setting at its default.
pub(super) fn as_by_default(setting: &Setting) -> String {
    format!("{}={}", setting.name, (setting.get)(&Config::default()))
}

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

/// Tiles that all settings accept, the nearest first, of those that `takes` accepts.
pub(crate) fn other_tiles(
    config: &Config,
    facts: &Facts,
    takes: fn([u32; 2]) -> bool,
) -> Vec<String> {
    let fits = |change: &String| {
        let mut other = config.clone();
        read(&mut other, change).is_ok()
            && takes([other.block[0], other.block[1]])
            && reach(config, change, facts) == Some(SETTINGS.len())
    };
    tiles(config.block).into_iter().filter(fits).take(NAMED).collect()
}
