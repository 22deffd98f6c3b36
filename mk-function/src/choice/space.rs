//! The settings that are tried, one line of a table each.
//!
//! A [`Knob`] reads and writes one setting of a [`Config`] as text, and says which values are worth trying for a pipeline.
//! Candidates, cache entries, the command line and reports are made of knobs, so that a new setting is one more line.

use super::facts::Facts;
use mk_codegen::{
    ir::one_warpgroup_takes,
    passes::{AllReduce, Config, Consumers, Gather, Schedule, Sums},
    target,
};
use mk_syntax::{Bound, Program};
use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;

/// One setting.
pub struct Knob {
    /// Its name in files and on the command line.
    pub name: &'static str,
    /// Values worth trying; none where the setting does not apply.
    pub values: fn(&Facts) -> Vec<String>,
    /// The value in a config; nothing where the default is left to the passes.
    pub get: fn(&Config) -> Option<String>,
    /// Sets it; `None` for a text that is no value.
    pub set: fn(&mut Config, &str) -> Option<()>,
}

/// Every setting that is tried.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "block",
        values: |facts| match facts.products {
            true => blocks(facts),
            false => Vec::new(),
        },
        get: |c| Some(c.block.map(|n| n.to_string()).join("x")),
        set: |c, text| {
            let mut parts = text.split('x').map(|n| n.parse::<u32>().ok());
            c.set_block([parts.next()??, parts.next()??, parts.next()??]);
            parts.next().is_none().then_some(())
        },
    },
    Knob {
        name: "consumers",
        values: |facts| match facts.products {
            true => vec!["cooperative".into(), "ping_pong".into()],
            false => Vec::new(),
        },
        get: |c| name_of(CONSUMERS, c.consumers),
        set: |c, text| {
            c.consumers = value_of(CONSUMERS, text)?;
            Some(())
        },
    },
    Knob {
        name: "group_rows",
        values: |facts| match facts.products && shard_rows(facts, facts.most_rows) >= MANY_ROWS {
            true => texts(&[8, 16]),
            false => Vec::new(),
        },
        get: |c| Some(c.group_rows.to_string()),
        set: |c, text| {
            c.group_rows = text.parse().ok().filter(|n| *n > 0)?;
            Some(())
        },
    },
    Knob {
        name: "intra_comm",
        values: |facts| match (facts.communicates(), facts.products) {
            (true, true) => texts(&[4, 8, 10, 12, 16, 20, 24, 32]),
            // The others only copy: what is received, or what is sent.
            (true, false) => texts(&[8, 16, 32, 64]),
            (false, _) => Vec::new(),
        },
        get: |c| c.sms.get("intra_comm").map(u32::to_string),
        set: |c, text| {
            c.sms.insert("intra_comm".into(), text.parse().ok().filter(|n| *n > 0)?);
            Some(())
        },
    },
    Knob {
        name: "chunk_bytes",
        values: |facts| match facts.gathers && facts.ranks > 1 {
            true => texts(&[128 << 10, 256 << 10, 512 << 10]),
            false => Vec::new(),
        },
        get: |c| Some(c.chunk_bytes.to_string()),
        set: |c, text| {
            c.chunk_bytes = text.parse().ok().filter(|n| *n > 0)?;
            Some(())
        },
    },
    Knob {
        name: "k_slices",
        values: |facts| match facts.gathers && facts.products && facts.ranks > 1 {
            true => texts(&[1, 4, 8]),
            false => Vec::new(),
        },
        get: |c| Some(c.k_slices.to_string()),
        set: |c, text| {
            c.k_slices = text.parse().ok().filter(|n| *n > 0)?;
            Some(())
        },
    },
    Knob {
        name: "gather",
        values: |facts| match facts.gathers && facts.products && facts.ranks > 1 {
            true => ["sms", "engine", "engine/2", "engine/4"].map(String::from).to_vec(),
            false => Vec::new(),
        },
        get: |c| Some(c.gather.to_string()),
        set: |c, text| {
            c.gather = text.parse().ok()?;
            Some(())
        },
    },
    Knob {
        name: "all_reduce",
        values: |facts| match facts.all_reduces && facts.products && facts.ranks > 1 {
            true if facts.sum_rows > FEW_ROWS => vec!["two_phase".into(), "one_shot".into()],
            true => vec!["two_phase".into(), "one_shot".into(), "by_columns".into()],
            false => Vec::new(),
        },
        get: |c| name_of(ALL_REDUCE, c.all_reduce),
        set: |c, text| {
            c.all_reduce = value_of(ALL_REDUCE, text)?;
            Some(())
        },
    },
    Knob {
        name: "sums",
        values: |facts| match facts.sums && facts.products {
            true => {
                let mut ways = vec!["beside", "after"];
                let in_tiles = !facts.all_reduces && !facts.finishes;
                // Every hop rounds: on many ranks that adds up.
                if (2..=8).contains(&facts.ranks) && in_tiles {
                    ways.push("ring");
                }
                ways.into_iter().map(String::from).collect()
            }
            false => Vec::new(),
        },
        get: |c| name_of(SUMS, c.sums),
        set: |c, text| {
            c.sums = value_of(SUMS, text)?;
            Some(())
        },
    },
    Knob {
        name: "tail",
        values: |facts| match facts.products && !facts.sums {
            true => {
                let mut tails = vec!["none", "1x64", "1x128", "2x64", "2x128"];
                if facts.plain {
                    tails.extend(["1x256/4", "1x256/8", "2x256/2", "2x256/4", "3x256/4"]);
                    if facts.rows <= 128 {
                        tails.push("1x128/2");
                    }
                }
                let mut tails: Vec<_> = tails.into_iter().map(String::from).collect();
                let more = last_wave(facts).into_iter().filter(|t| !tails.contains(t));
                tails.extend(more.collect::<Vec<_>>());
                tails
            }
            false => Vec::new(),
        },
        get: |c| {
            Some(match c.tail {
                None => "none".into(),
                Some(tail) => tail.to_string(),
            })
        },
        set: |c, text| {
            c.tail = or_none(text)?;
            Some(())
        },
    },
    Knob {
        name: "split_k",
        values: |facts| match facts.sums && facts.products && facts.sum_rows <= 1024 {
            true => texts(&[1, 2, 3, 4]),
            false => Vec::new(),
        },
        get: |c| Some(c.split_k.to_string()),
        set: |c, text| {
            c.split_k = text.parse().ok().filter(|n| *n > 0)?;
            Some(())
        },
    },
    Knob {
        name: "tile_schedule",
        // Where tiles leave for peers. The model knows little of it: those that were measured are measured in the other one, too.
        values: |facts| match facts.products && facts.sums && facts.ranks > 1 {
            true => vec!["static".into(), "dynamic".into()],
            false => Vec::new(),
        },
        get: |c| name_of(SCHEDULE, c.tile_schedule),
        set: |c, text| {
            c.tile_schedule = value_of(SCHEDULE, text)?;
            Some(())
        },
    },
];

/// A value, or `none`.
fn or_none<T: FromStr>(text: &str) -> Option<Option<T>> {
    match text {
        "none" => Some(None),
        text => text.parse().ok().map(Some),
    }
}

const SCHEDULE: &[(&str, Schedule)] =
    &[("static", Schedule::Static), ("dynamic", Schedule::Dynamic)];
const CONSUMERS: &[(&str, Consumers)] =
    &[("cooperative", Consumers::Cooperative), ("ping_pong", Consumers::PingPong)];
const ALL_REDUCE: &[(&str, AllReduce)] = &[
    ("two_phase", AllReduce::TwoPhase),
    ("one_shot", AllReduce::OneShot),
    ("by_columns", AllReduce::ByColumns),
];
const SUMS: &[(&str, Sums)] =
    &[("beside", Sums::Beside), ("after", Sums::After), ("ring", Sums::Ring)];

fn name_of<T: PartialEq>(names: &[(&str, T)], value: T) -> Option<String> {
    names.iter().find(|(_, v)| *v == value).map(|(name, _)| name.to_string())
}

/// The value that a word stands for, also as options spell it: `ping-pong` is `ping_pong`.
fn value_of<T: Copy>(names: &[(&str, T)], text: &str) -> Option<T> {
    let text = text.replace('-', "_");
    names.iter().find(|(name, _)| *name == text).map(|(_, v)| *v)
}

fn texts(numbers: &[u32]) -> Vec<String> {
    numbers.iter().map(u32::to_string).collect()
}

/// Rows up to which an `all_reduce` whose rows are not cut is worth its slots, which are as large as the result for each rank.
const FEW_ROWS: u64 = 1024;

/// Tiles of few rows, where few columns make enough of them.
pub(super) const FLAT: &str = "64x128x64";

/// Tails of a product alone that take in what its last wave of default tiles leaves over, where it has several waves.
fn last_wave(facts: &Facts) -> Vec<String> {
    let default = Config::default();
    let [height, width, _] = default.block.map(u64::from);
    let sms = target::by_name(&default.target).map_or(1, |t| u64::from(t.sms));
    let across = facts.columns.div_ceil(width).max(1);
    let tiles = facts.rows.div_ceil(height) * across;
    let (waves, left) = (tiles / sms, tiles % sms);
    if facts.ranks > 1 || waves == 0 || left == 0 {
        return Vec::new();
    }
    let (fewer, more) = (left / across, left.div_ceil(across));
    let mut tails: Vec<_> =
        [fewer, more].iter().filter(|n| **n > 0).map(|n| format!("{n}x{}", width / 2)).collect();
    if facts.plain {
        tails.extend([2, 3, 4].map(|parts| format!("{more}x{width}/{parts}")));
    }
    tails.dedup();
    tails
}

/// Rows of a shard from which on groups of 16 row blocks are worth trying: two of 8.
const MANY_ROWS: u64 = 2048;

/// Rows that lie together: those of a gathered operand, and of a result that is summed, are cut by owner.
fn shard_rows(facts: &Facts, rows: u64) -> u64 {
    if facts.sums || facts.gathers { rows / u64::from(facts.ranks.max(1)) } else { rows }
}

fn blocks(facts: &Facts) -> Vec<String> {
    let [rows, most] = [facts.rows, facts.most_rows].map(|rows| shard_rows(facts, rows));
    let mut blocks = vec!["128x256x64", "128x128x64"];
    if !facts.gated {
        blocks.insert(1, "128x192x64");
        blocks.push("128x160x64");
        if most >= 256 {
            blocks.extend(["256x128x64", "256x160x64"]);
        }
        // Rows that are not there take TMA longer than others.
        if rows <= 64 {
            blocks.extend(["64x256x64", FLAT]);
        } else if rows <= 512 {
            blocks.push("128x64x64");
        }
    } else if most >= 256 {
        blocks.push("256x128x64");
    }
    blocks.into_iter().map(String::from).collect()
}

/// The values of each knob that applies, first those given in `only`.
pub fn choices(
    facts: &Facts,
    only: &BTreeMap<String, Vec<String>>,
) -> Vec<(&'static Knob, Vec<String>)> {
    let values = |knob: &'static Knob| match only.get(knob.name) {
        Some(values) => (knob, values.clone()),
        None => (knob, (knob.values)(facts)),
    };
    KNOBS.iter().map(values).filter(|(_, values)| !values.is_empty()).collect()
}

/// Every combination of values of the knobs that apply; the first is of each knob's first value. Some may have no plan:
/// that is for the passes to say.
///
/// `only` replaces a knob's values by others; what is no value of it is left out, and so are combinations with another value.
pub fn candidates(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    only: &BTreeMap<String, Vec<String>>,
) -> Vec<Config> {
    let facts = Facts::new(program, bound, ranks);
    let mut all = vec![Config { ranks, ..Config::default() }];
    for (knob, values) in choices(&facts, only) {
        let with = |config: &Config, value: &String| {
            let mut config = config.clone();
            (knob.set)(&mut config, value).map(|()| config)
        };
        all = all.iter().flat_map(|c| values.iter().filter_map(move |v| with(c, v))).collect();
    }
    let asked: Vec<_> =
        KNOBS.iter().filter_map(|k| Some((k, as_written(k, only.get(k.name)?)))).collect();
    // Every setting is in its text.
    let mut seen = HashSet::new();
    let settled = all.into_iter().map(|config| settle(config, &facts));
    let asked = |config: &Config| {
        asked.iter().all(|(knob, values)| {
            let value = (knob.get)(config);
            // Without a value it is about something else, as the CTAs that copy are where the copy engine does.
            value.is_none() || values.is_empty() || values.contains(&value)
        })
    };
    settled.filter(|config| asked(config) && seen.insert(text_of(config))).collect()
}

/// Values of a knob as it writes them.
fn as_written(knob: &Knob, values: &[String]) -> Vec<Option<String>> {
    let written = |value: &String| {
        let mut config = Config::default();
        (knob.set)(&mut config, value).map(|()| (knob.get)(&config))
    };
    values.iter().filter_map(written).collect()
}

/// Configs that differ from one in a number, by a step up or down, or in the schedule: what the values that are tried leave out around it.
pub fn neighbours(config: &Config, program: &Program, bound: &Bound) -> Vec<Config> {
    let facts = Facts::new(program, bound, config.ranks);
    let mut near = Vec::new();
    if facts.products {
        let n = config.group_rows;
        let three = n.saturating_mul(3);
        let others = [n / 4, n / 2, three / 4, three / 2, n.saturating_mul(2)];
        near.extend(others.map(|group_rows| Config { group_rows, ..config.clone() }));
        near.push(other_schedule(config));
    }
    if let Some(n) = config.sms.get("intra_comm") {
        let times = |by| n.saturating_mul(by);
        near.extend([times(3) / 4, times(5) / 4, times(3) / 2].map(|sms| {
            let mut config = config.clone();
            config.sms.insert("intra_comm".into(), sms);
            config
        }));
    }
    let mut seen = HashSet::from([text_of(config)]);
    let settled = near.into_iter().map(|c| settle(c, &facts));
    let there = settled.filter(|c| c.group_rows > 0 && c.sms.values().all(|n| *n > 0));
    there.filter(|c| seen.insert(text_of(c))).collect()
}

/// The same with tiles dealt out, or for whoever is free.
fn other_schedule(config: &Config) -> Config {
    let tile_schedule = match config.tile_schedule {
        Schedule::Static => Schedule::Dynamic,
        Schedule::Dynamic => Schedule::Static,
    };
    Config { tile_schedule, ..config.clone() }
}

/// How many of those behind a winner may be ahead of it with the other schedule.
const RUNNERS_UP: usize = 6;

/// Of configs that came in this order behind a winner, the first in the other schedule: where sums leave tiles, it gains up to 8 %, more with some
/// tiles than with others, and the model does not tell the two apart.
pub fn runners_up<'c>(
    behind: impl Iterator<Item = &'c Config>,
    program: &Program,
    bound: &Bound,
) -> Vec<Config> {
    let facts = Facts::new(program, bound, 1);
    let leave = |config: &&Config| facts.products && facts.sums && config.ranks > 1;
    behind.take(RUNNERS_UP).filter(leave).map(other_schedule).collect()
}

/// Without settings that others make void: where the CTAs that multiply add up, too, none communicate only; sums in a ring are of
/// whole products; tiles of a tail are not wider than the others.
pub(crate) fn settle(mut config: Config, facts: &Facts) -> Config {
    let [height, width, _] = config.block;
    if !one_warpgroup_takes([height, width]) {
        config.consumers = Consumers::Cooperative;
    }
    config.tail = config
        .tail
        .filter(|tail| width.is_multiple_of(64) && (tail.parts > 1 || tail.columns < width));
    if let Some(tail) = &mut config.tail {
        tail.columns = tail.columns.min(width);
    }
    if config.sums == Sums::Ring {
        config.split_k = 1;
    }
    let engine = config.gather != Gather::Sms;
    if engine {
        let default = Config::default();
        (config.chunk_bytes, config.k_slices) = (default.chunk_bytes, default.k_slices);
    }
    let adds = facts.sums && config.sums == Sums::Beside;
    if facts.products && !adds && (engine || !facts.gathers) {
        config.sms.remove("intra_comm");
    }
    config
}

pub(super) fn text_of(config: &Config) -> String {
    KNOBS.iter().map(|knob| (knob.get)(config).unwrap_or_default() + " ").collect()
}

/// A config as `name=value` words: knobs that apply, and others that are not at their default.
pub fn write(config: &Config, facts: &Facts) -> String {
    let default = Config::default();
    let applies = |knob: &&Knob| {
        !(knob.values)(facts).is_empty() || (knob.get)(config) != (knob.get)(&default)
    };
    let word = |knob: &Knob| Some(format!("{}={}", knob.name, (knob.get)(config)?));
    KNOBS.iter().filter(applies).filter_map(word).collect::<Vec<_>>().join(" ")
}

/// Reads what [`write()`] made.
///
/// # Errors
/// The word that is none.
pub fn read(text: &str, ranks: u32) -> Result<Config, String> {
    let mut config = Config { ranks, ..Config::default() };
    for word in text.split_whitespace() {
        let set = word.split_once('=').and_then(|(name, value)| {
            let knob = KNOBS.iter().find(|k| k.name == name)?;
            (knob.set)(&mut config, value)
        });
        set.ok_or_else(|| word.to_string())?;
    }
    Ok(config)
}
