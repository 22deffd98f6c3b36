//! Settings: one table that lowering, search, the command line, Python, caches and reports share.
//!
//! A setting is a field of [`Config`] and a row of [`SETTINGS`]: its name, its texts, which kernels have a use for it,
//! which values fit them, and which values a search tries. Everything that reads or prints settings goes through the
//! table, so that a new one touches this folder and the pass that obeys it.
//!
//! What decides whether a setting fits is the selected kernel, as [`Facts`]: `passes::facts` makes them.

mod config;
mod facts;
mod help;
mod misfit;
mod nodes;
mod ragged;
mod rules;
mod table;
mod text;
mod tried;
mod values;
mod words;

pub use config::Config;
pub use facts::{Facts, GatheredRows, Product, Sum};
pub(crate) use help::other_tiles;
pub(crate) use misfit::set_one_of;
pub use misfit::{Misfit, Refusal};
pub use mk_plan::{Consumers, NicOrdering, Schedule};
pub use ragged::of_ragged;
pub use table::{SETTINGS, Setting, by_name};
pub use tried::{BY_TURNS, FLAT, IN_PARTS, IN_PARTS_BLOCK, MANY_SENDERS, SMALL_CHUNK};
pub use values::{AllReduce, Block, Gather, LastWave, Multicast, Reduction, Returns};
pub use words::{NotASetting, accepted, read, set, write, write_all};

use mk_plan::target::Target;

/// The settings as a kernel on `target` has them: all of them fit, and none is left to the compiler that does not
/// depend on the plan.
///
/// # Errors
/// The first [`Refusal`], in the order of the table.
pub fn normalise(config: &Config, facts: &Facts, target: &Target) -> Result<Config, Refusal> {
    nodes::check(config, facts)?;
    if let Some((at, misfit)) = help::first_misfit(config, facts) {
        return Err(help::refusal(at, misfit, config, facts));
    }
    Ok(Config {
        stages: Some(config.stages_on(target, rules::shifted(config, facts))),
        ..config.clone()
    })
}

/// Whether [`normalise`] takes them; why not takes it longer to say than a search has for each.
pub fn fits(config: &Config, facts: &Facts) -> bool {
    nodes::check(config, facts).is_ok() && help::first_misfit(config, facts).is_none()
}

/// The same without the settings that others make void: each combination that a search meets stands for one plan.
pub fn settle(mut config: Config, facts: &Facts) -> Config {
    for setting in SETTINGS {
        (setting.settle)(&mut config, facts);
    }
    config
}
