//! What a refused setting could be instead: named only if it would be accepted.

use super::{
    config::Config,
    facts::Facts,
    misfit::{DEFAULT, Misfit, Refusal, set_one_of, tiles},
    nodes,
    table::{SETTINGS, Setting},
    words::{read, write_all},
};

/// Settings that a help line names, at most.
const NAMED: usize = 3;

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

/// The refusal of a setting. Its help keeps to what fits: changes with which all settings do, else those with which
/// this one does.
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
