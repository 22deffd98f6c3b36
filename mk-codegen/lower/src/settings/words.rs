//! Settings as `name=value` words.

use super::{
    config::Config,
    facts::Facts,
    table::{SETTINGS, Setting, by_name},
};
use thiserror::Error;

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
    #[error("`{value}` is no value of `{}`, which takes {}\n  help: for instance \
        `{}={}`", setting.name, accepted(setting), setting.name, (setting.get)(&Config::default()))]
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
