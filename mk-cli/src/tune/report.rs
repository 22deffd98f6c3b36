//! What is said of candidates.

use crate::{failure::Result, output::say};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// How many candidates are printed without `--all`.
const SHOWN: usize = 8;

/// One candidate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Its settings.
    pub config: String,
    /// The model's time, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// Error against the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Why it has no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What was measured of a candidate, in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub median_ms: f64,
    pub least_ms: f64,
    #[serde(default)]
    pub rounds: u64,
}

impl Entry {
    /// What it is ranked by.
    pub fn ms(&self) -> Option<f64> {
        self.measured.as_ref().map(|m| m.median_ms).or(self.predicted_ms)
    }

    /// Reads what was written as JSON.
    pub fn from_json(value: &Value) -> Option<Entry> {
        let entry = Entry::deserialize(value).ok()?;
        let measured = entry.measured.iter().flat_map(|m| [m.median_ms, m.least_ms]);
        let sound = measured.chain(entry.predicted_ms).all(|ms| ms > 0.0 && ms.is_finite());
        sound.then_some(entry)
    }
}

/// The candidates of one pipeline, best first.
pub fn table(entries: &[Entry], all: bool) -> Result<()> {
    let best = entries.iter().find_map(Entry::ms).unwrap_or(f64::NAN);
    let cell = |v: Option<f64>| v.map_or_else(|| "-".to_string(), |v| format!("{v:.4}"));
    say!("  {:>9}  {:>9}  {:>9}  {:>6}  config", "ms", "least", "predicted", "/best")?;
    let timed = entries.iter().filter_map(|e| Some((e, e.ms()?)));
    for (e, ms) in timed.take(if all { usize::MAX } else { SHOWN }) {
        say!(
            "  {:>9}  {:>9}  {:>9}  {:>6.3}  {}",
            cell(e.measured.as_ref().map(|m| m.median_ms)),
            cell(e.measured.as_ref().map(|m| m.least_ms)),
            cell(e.predicted_ms),
            ms / best,
            e.config
        )?;
    }
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for e in entries {
        if let Some(why) = &e.refused {
            reasons.entry(why.replace('\n', " ")).or_default().push(&e.config);
        }
    }
    for (why, configs) in reasons {
        match all {
            true => say!("  refused: {why}\n    {}", configs.join("\n    "))?,
            false if why.starts_with("the same kernel") => {}
            false => say!("  {} refused: {why}", configs.len())?,
        }
    }
    Ok(())
}

/// How far predictions are from measurements.
#[derive(Default)]
pub struct Errors {
    relative: Vec<f64>,
    /// By pipeline: time of what the model would take, over the best.
    regret: Vec<f64>,
}

impl Errors {
    /// Takes the candidates of one pipeline.
    pub fn add(&mut self, entries: &[Entry]) {
        let both: Vec<(f64, f64)> = entries
            .iter()
            .filter_map(|e| Some((e.predicted_ms?, e.measured.as_ref()?.median_ms)))
            .collect();
        self.relative.extend(both.iter().map(|(p, m)| (p / m - 1.0).abs()));
        let best = both.iter().map(|b| b.1).min_by(f64::total_cmp);
        let chosen = both.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some(best), Some((_, ms))) = (best, chosen) {
            self.regret.push(ms / best);
        }
    }

    /// Says it, where there is something to compare.
    pub fn say(&mut self) -> Result<()> {
        if self.relative.is_empty() {
            return Ok(());
        }
        let at = |list: &mut Vec<f64>, q: f64| {
            list.sort_by(f64::total_cmp);
            list.get(((list.len() - 1) as f64 * q).round() as usize).copied().unwrap_or(f64::NAN)
        };
        say!(
            "prediction error of {} candidates: median {:.1} %, 90th percentile {:.1} %, worst {:.1} %",
            self.relative.len(),
            100.0 * at(&mut self.relative, 0.5),
            100.0 * at(&mut self.relative, 0.9),
            100.0 * at(&mut self.relative, 1.0)
        )?;
        say!(
            "what the model would choose, over the best of {} pipelines: median {:.3}, worst {:.3}",
            self.regret.len(),
            at(&mut self.regret, 0.5),
            at(&mut self.regret, 1.0)
        )
    }
}
