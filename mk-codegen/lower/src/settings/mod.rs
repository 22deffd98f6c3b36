//! Settings: one table that lowering, search, the command line, Python, caches and reports share.
//!
//! A setting is a field of [`Config`] and a row of [`SETTINGS`]: its name, its texts, which kernels have a use for it, which values fit
//! them, and which values a search tries. Everything that reads or prints settings goes through the table, so that a new one touches
//! this folder and the pass that obeys it.
//!
//! What decides whether a setting fits is the selected kernel, as [`Facts`]: `passes::facts` makes them.

mod config;
mod facts;
mod help;
mod nodes;
mod ragged;
mod rules;
mod table;
mod text;
mod tried;
mod values;

pub use config::Config;
pub use facts::{Facts, GatheredRows, Product, Sum};
pub(crate) use help::{other_tiles, set_one_of};
pub use mk_plan::{Consumers, NicOrdering, Schedule};
pub use ragged::of_ragged;
pub use table::{Misfit, SETTINGS, Setting, by_name};
pub use tried::FLAT;
pub use values::{AllReduce, Block, Gather, LastWave, Multicast, Reduction};

use mk_plan::target::Target;
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
    /// Settings that the help names, or some of a range that it names: each text would be accepted, as [`read`] takes it, in place of what was given.
    pub instead: Vec<String>,
}

/// A text that is no setting, or none of its values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotASetting {
    /// No setting has this name.
    #[error("there is no setting `{name}`\n  help: the settings are {}", names())]
    Name {
        /// The name.
        name: String,
    },
    /// The text is no value of the setting.
    #[error("`{value}` is no value of `{}`, which takes {}\n  help: for instance `{}={}`", setting.name, accepted(setting), setting.name, (setting.get)(&Config::default()))]
    Value {
        /// The setting.
        setting: &'static Setting,
        /// The text.
        value: String,
    },
    /// There is no `=` between name and value.
    #[error("`{word}` is no setting\n  help: write NAME=VALUE, for instance `block=128x128x64`")]
    Word {
        /// The text.
        word: String,
    },
    /// Two words name the same setting.
    #[error("`{name}` is given twice")]
    Twice {
        /// Its name.
        name: String,
    },
}

/// The names of all settings.
fn names() -> String {
    SETTINGS.iter().map(|s| s.name).collect::<Vec<_>>().join(", ")
}

/// The texts that a setting takes: its form, and the word for a value that is left out.
pub fn accepted(setting: &Setting) -> String {
    let default = (setting.get)(&Config::default());
    match default.as_str() {
        "auto" | "none" => format!("{} | {default}", setting.form),
        _ => setting.form.to_string(),
    }
}

impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        self.name == other.name
    }
}

impl Eq for Setting {}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Sets one setting by its texts.
///
/// # Errors
/// [`NotASetting`] for another name, and for a text that is no value.
pub fn set(config: &mut Config, name: &str, value: &str) -> Result<(), NotASetting> {
    let setting = by_name(name).ok_or_else(|| NotASetting::Name { name: name.into() })?;
    let set = (setting.set)(config, value);
    set.ok_or_else(|| NotASetting::Value { setting, value: value.into() })
}

/// Sets everything that a text of `name=value` words says, as [`write()`] makes it.
///
/// # Errors
/// [`NotASetting`] for the first word that is none, or names a setting again.
pub fn read(config: &mut Config, text: &str) -> Result<(), NotASetting> {
    let mut seen = Vec::new();
    for word in text.split_whitespace() {
        let Some((name, value)) = word.split_once('=') else {
            return Err(NotASetting::Word { word: word.into() });
        };
        if seen.contains(&name) {
            return Err(NotASetting::Twice { name: name.into() });
        }
        set(config, name, value)?;
        seen.push(name);
    }
    Ok(())
}

/// The settings that a search tries for a kernel, and others that are not at their default, as `name=value` words.
pub fn write(config: &Config, facts: &Facts) -> String {
    let default = Config::default();
    let said = |s: &&Setting| {
        !(s.values)(facts).is_empty() && (s.get)(config) != "auto"
            || (s.get)(config) != (s.get)(&default)
    };
    let word = |s: &Setting| format!("{}={}", s.name, (s.get)(config));
    SETTINGS.iter().filter(said).map(word).collect::<Vec<_>>().join(" ")
}

/// Every setting as a `name=value` word: equal for equal settings.
pub fn write_all(config: &Config) -> String {
    let word = |s: &Setting| format!("{}={}", s.name, (s.get)(config));
    SETTINGS.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The settings as a kernel on `target` has them: all of them fit, and none is left to the compiler that does not depend on the plan.
///
/// # Errors
/// The first [`Refusal`], in the order of the table.
pub fn normalise(config: &Config, facts: &Facts, target: &Target) -> Result<Config, Refusal> {
    nodes::check(config, facts)?;
    if let Some((at, misfit)) = help::first_misfit(config, facts) {
        return Err(help::refusal(at, misfit, config, facts));
    }
    Ok(Config { stages: Some(config.stages_on(target)), ..config.clone() })
}

/// The same without the settings that others make void: each combination that a search meets stands for one plan.
pub fn settle(mut config: Config, facts: &Facts) -> Config {
    for setting in SETTINGS {
        (setting.settle)(&mut config, facts);
    }
    config
}
