//! The combinations of settings that a search tries: every one in the table of [`settings`] that a kernel has a use
//! for.

use mk_codegen::{
    passes,
    settings::{self, Config, Facts, SETTINGS, Schedule, Setting},
};
use mk_syntax::{Bound, Program};
use std::collections::{BTreeMap, HashSet};

/// What decides the settings of a pipeline; of one that has no kernel, nothing.
pub fn facts(program: &Program, bound: &Bound, ranks: u32) -> Facts {
    // The passes report why it has none when a plan is requested.
    passes::facts(program, bound, ranks).unwrap_or(Facts { ranks, ..Facts::default() })
}

/// The same on the mesh of a config.
pub fn facts_of(program: &Program, bound: &Bound, config: &Config) -> Facts {
    let ranks = config.ranks;
    let facts = passes::facts_on(program, bound, ranks, &config.mesh);
    facts.unwrap_or(Facts { ranks, ..Facts::default() })
}

/// The defaults in the world of a config, which no setting changes: its ranks, their mesh and nodes, and the SMs that
/// are not there.
pub fn defaults(world: &Config) -> Config {
    let Config { ranks, mesh, nodes, net, reserved_sms, .. } = world.clone();
    Config { ranks, mesh, nodes, net, reserved_sms, ..Config::default() }
}

/// The values of each setting that a search tries, first those given in `only`.
pub fn choices(
    facts: &Facts,
    only: &BTreeMap<String, Vec<String>>,
) -> Vec<(&'static Setting, Vec<String>)> {
    let values = |setting: &'static Setting| match only.get(setting.name) {
        Some(values) => (setting, values.clone()),
        None => (setting, (setting.values)(facts)),
    };
    SETTINGS.iter().map(values).filter(|(_, values)| !values.is_empty()).collect()
}

/// Every combination of values of the settings that are tried; the first is of each setting's first value. Some may
/// have no plan: that is for the passes to say.
///
/// `only` replaces a setting's values by others; what is no value of it is left out, and so are combinations with
/// another value.
pub fn candidates(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    only: &BTreeMap<String, Vec<String>>,
) -> Vec<Config> {
    candidates_in(program, bound, &Config { ranks, ..Config::default() }, only)
}

/// The same in the world of a config ([`defaults`]).
pub(super) fn candidates_in(
    program: &Program,
    bound: &Bound,
    world: &Config,
    only: &BTreeMap<String, Vec<String>>,
) -> Vec<Config> {
    let facts = facts_of(program, bound, world);
    let mut all = vec![defaults(world)];
    for (setting, values) in choices(&facts, only) {
        let with = |config: &Config, value: &String| {
            let mut config = config.clone();
            (setting.set)(&mut config, value).map(|()| config)
        };
        all = all.iter().flat_map(|c| values.iter().filter_map(move |v| with(c, v))).collect();
    }
    let asked: Vec<_> =
        SETTINGS.iter().filter_map(|s| Some((s, as_written(s, only.get(s.name)?)))).collect();
    let mut seen = HashSet::new();
    let settled = all.into_iter().map(|config| settings::settle(config, &facts));
    let asked = |config: &Config| {
        asked.iter().all(|(setting, values)| {
            let value = (setting.get)(config);
            // Left to the compiler it is void, as the CTAs that copy are where the copy engine does.
            value == AUTO || values.is_empty() || values.contains(&value)
        })
    };
    settled.filter(|config| asked(config) && seen.insert(settings::write_all(config))).collect()
}

/// The text of a number that is left to the compiler.
const AUTO: &str = "auto";

/// Values of a setting as it writes them.
fn as_written(setting: &Setting, values: &[String]) -> Vec<String> {
    let written = |value: &String| {
        let mut config = Config::default();
        (setting.set)(&mut config, value).map(|()| (setting.get)(&config))
    };
    values.iter().filter_map(written).collect()
}

/// Configs that differ from one in a number, by a step up or down, or in the tile scheduler: values around it that no
/// search tries.
pub fn neighbours(config: &Config, program: &Program, bound: &Bound) -> Vec<Config> {
    let facts = facts(program, bound, config.ranks);
    let mut near = Vec::new();
    if facts.multiplies() {
        let n = config.group_blocks();
        let three = n.saturating_mul(3);
        let others = [n / 4, n / 2, three / 4, three / 2, n.saturating_mul(2)];
        near.extend(others.map(|n| Config { group_m: Some(n), ..config.clone() }));
        near.push(other_scheduler(config));
    }
    if let Some(n) = config.intra_comm_sms {
        let times = |by| n.saturating_mul(by);
        let others = [times(3) / 4, times(5) / 4, times(3) / 2];
        near.extend(others.map(|n| Config { intra_comm_sms: Some(n), ..config.clone() }));
    }
    let mut seen = HashSet::from([settings::write_all(config)]);
    let settled = near.into_iter().map(|c| settings::settle(c, &facts));
    let there = settled.filter(|c| c.group_blocks() > 0 && c.intra_comm_sms != Some(0));
    there.filter(|c| seen.insert(settings::write_all(c))).collect()
}

/// The same with the other tile scheduler.
fn other_scheduler(config: &Config) -> Config {
    let tile_scheduler = match config.tile_scheduler {
        Schedule::Static => Schedule::Dynamic,
        Schedule::Dynamic => Schedule::Static,
    };
    Config { tile_scheduler, ..config.clone() }
}

/// How many of those behind a winner may be ahead of it with the other scheduler.
const RUNNERS_UP: usize = 6;

/// Of configs that came in this order behind a winner, the first with the other tile scheduler: where sums leave tiles,
/// it gains up to 8 %, more with some tiles than with others, and the model does not tell the two apart.
pub fn runners_up<'c>(
    behind: impl Iterator<Item = &'c Config>,
    program: &Program,
    bound: &Bound,
) -> Vec<Config> {
    let facts = facts(program, bound, 1);
    let leave = |config: &&Config| facts.multiplies() && facts.sums() && config.ranks > 1;
    behind.take(RUNNERS_UP).filter(leave).map(other_scheduler).collect()
}

/// Reads the settings that [`settings::write`] made.
///
/// # Errors
/// The word that is none.
pub fn read(text: &str, ranks: u32) -> Result<Config, settings::NotASetting> {
    read_in(text, &Config { ranks, ..Config::default() })
}

/// The same in the world of a config ([`defaults`]).
pub(super) fn read_in(text: &str, world: &Config) -> Result<Config, settings::NotASetting> {
    let mut config = defaults(world);
    settings::read(&mut config, text)?;
    Ok(config)
}
