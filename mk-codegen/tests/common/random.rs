//! Pipelines of every kind in small, with sizes, worlds and settings that a seed decides.

use super::kinds::{KINDS, SIZES, kind};
use mk_codegen::{
    passes,
    settings::{self, Config, Facts, NicOrdering, SETTINGS, Setting},
};
use mk_syntax::{Bound, Program};

/// Numbers in a row that a seed decides.
#[allow(dead_code)]
pub struct Numbers(pub u64);

#[allow(dead_code)]
impl Numbers {
    /// One below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }

    /// One of a list.
    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A text for a setting: one that a search tries, the default, or any.
fn text_of(setting: &Setting, facts: &Facts, numbers: &mut Numbers) -> String {
    let tried = (setting.values)(facts);
    if numbers.below(2) == 0 && !tried.is_empty() {
        return tried[numbers.below(tried.len())].clone();
    }
    let n = numbers.of(&[0, 1, 2, 3, 4, 5, 7, 8, 16, 100, 132, 133, 1000, 1 << 20, u32::MAX]);
    let rows = numbers.of(&[1, 16, 64, 100, 112, 128, 176, 192, 240, 256, 512]);
    let columns = numbers.of(&[1, 32, 64, 96, 104, 128, 160, 192, 256]);
    match setting.name {
        "block" => format!("{rows}x{columns}x{}", numbers.of(&[64, 64, 64, 32])),
        "last_wave" => format!("{}x{columns}/{}", numbers.below(4), numbers.below(5)),
        "multicast" => {
            let below = numbers.of(&[0, 1, 1, 2, 2, 3, u32::MAX]);
            format!("{below}x{}", numbers.of(&[0, 1, 1, 2, 2, 3, u32::MAX]))
        }
        "gather" => numbers.of(&["sms", "copy_engine", "copy_engine/3"]).into(),
        "all_reduce" => numbers.of(&["two_shot", "one_shot", "by_columns"]).into(),
        "reduction" => numbers.of(&["dedicated_sms", "after_last_wave", "ring"]).into(),
        "consumers" => numbers.of(&["cooperative", "ping_pong"]).into(),
        "tile_scheduler" => numbers.of(&["static", "dynamic"]).into(),
        _ => n.to_string(),
    }
}

/// A few settings of a kind, some of which fit.
#[allow(dead_code)]
pub fn some_settings(facts: &Facts, base: &Config, numbers: &mut Numbers) -> Config {
    let mut config = base.clone();
    for _ in 0..1 + numbers.below(3) {
        let setting = &SETTINGS[numbers.below(SETTINGS.len())];
        let text = text_of(setting, facts, numbers);
        // What is no text of the setting is left out.
        let _ = settings::set(&mut config, setting.name, &text);
    }
    config
}

/// A pipeline that was drawn.
#[allow(dead_code)]
pub struct Drawn {
    /// Its kind: a name of [`KINDS`].
    pub kind: &'static str,
    /// All of it, for messages.
    pub what: String,
    /// The pipeline.
    pub program: Program,
    /// Its sizes.
    pub bound: Bound,
    /// How it is lowered.
    pub config: Config,
}

/// How large what is drawn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub enum Scale {
    /// A few tiles, ragged ones, odd pitches, less than one for each rank.
    Small,
    /// As few elements as there are kinds of tasks.
    Tiny,
}

/// A size for a symbol of [`KINDS`].
fn size(symbol: &str, scale: Scale, numbers: &mut Numbers) -> u64 {
    let [small, tiny]: [&[u64]; 2] = match symbol {
        "M" => [&[1, 2, 5, 9, 16, 33, 100, 128, 131, 256, 260, 300], &[1, 2, 5, 9, 130, 260]],
        "K" => [&[8, 8, 16, 24, 64, 72, 3, 33], &[8, 8, 3]],
        "N" => [&[8, 8, 16, 40, 136, 264, 9, 65], &[8, 8, 16, 264, 9]],
        "B" => [&[1, 1, 2, 4], &[1, 1, 2]],
        "S" => [&[12, 24, 48, 96, 132, 144, 300], &[12, 24, 48]],
        "H" => [&[1, 2], &[1, 2]],
        "D" => [&[64, 64, 128], &[64]],
        "R" => [&[256, 384, 512, 768, 1024, 1536], &[256, 384, 512]],
        "E" => [&[1, 2, 3, 4, 4, 6, 8], &[1, 2, 3, 4]],
        "T" => [&[1, 2, 5, 9, 16, 24, 33, 140], &[1, 2, 5, 6]],
        _ => [&[1, 2, 2, 3], &[1, 2]],
    };
    match scale {
        Scale::Small => numbers.of(small),
        Scale::Tiny => numbers.of(tiny),
    }
}

/// Ranks and nodes.
const WORLDS: &[(u32, u32)] = &[(1, 1), (2, 1), (2, 1), (3, 1), (4, 1), (4, 2), (6, 3)];

/// A pipeline of any kind; `None` for sizes that do not fit it. Not all of them have a plan.
#[allow(dead_code)]
pub fn any(scale: Scale, numbers: &mut Numbers) -> Option<Drawn> {
    let kind = numbers.below(KINDS.len());
    one(kind, scale, numbers)
}

/// A pipeline of one kind: [`any`].
#[allow(dead_code)]
pub fn one(number: usize, scale: Scale, numbers: &mut Numbers) -> Option<Drawn> {
    let (name, text) = KINDS[number];
    let symbols = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let there = SIZES.iter().filter(|(symbol, _)| symbols.symbol(symbol).is_some());
    let sizes: Vec<(&str, u64)> =
        there.map(|(symbol, _)| (*symbol, size(symbol, scale, numbers))).collect();
    let (program, bound) = kind(text, &sizes)?;
    let worlds = if scale == Scale::Tiny { &WORLDS[..WORLDS.len() - 1] } else { WORLDS };
    let (ranks, nodes) = numbers.of(worlds);
    // Room for dispatched rows is a question of ranks.
    let bound = bound.on(&program, ranks).ok()?;
    let net = numbers.of(&[NicOrdering::InOrder, NicOrdering::Unordered]);
    let mut config = Config { ranks, nodes, net, ..Config::default() };
    if numbers.below(2) == 0 {
        let facts = passes::facts(&program, &bound, ranks).unwrap_or_default();
        let base = config.clone();
        config = some_settings(&facts, &base, numbers);
        // Settings that do not fit are refused at once: most of what is drawn has a plan.
        if passes::lower(&program, &bound, &config).is_err() {
            config = base;
        }
    }
    let text = settings::write_all(&config);
    let what = format!("{name}, {sizes:?}, {ranks} ranks of {nodes} nodes, {text}");
    Some(Drawn { kind: name, what, program, bound, config })
}
