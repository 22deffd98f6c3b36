//! One kernel for a pipeline, or a sequence of them: never slower than not fusing.
//!
//! ```text
//! measured times of the kernel and of all parts > predicted ones > one kernel
//! ```
//!
//! Predictions are compared with a margin ([`CLEARLY`]), measurements without. On several ranks it favours one kernel,
//! which overlaps traffic and GEMMs; on one rank there is nothing to overlap, and it favours the parts. The time of
//! the parts is the sum of theirs: each is measured with caches flushed, where a sequence finds some of its inputs
//! there, and without the gap between two kernels of a stream.

use super::{
    cache::Cache,
    choose::{Origin, decide_in, has_kernel, model_of, predict},
    space,
    unfused::{Indivisible, Part, parts},
};
use mk_codegen::{
    cost::Gpu,
    settings::{self, Config},
};
use mk_syntax::{Bound, Program};
use std::{fmt, str::FromStr};

/// By how much the alternative must be predicted to be faster, parts on several ranks and one kernel on one: the median
/// error of the cost model (docs/cost-model.md).
pub const CLEARLY: f64 = 0.05;

/// Whether a pipeline becomes one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fuse {
    /// Where that is not slower than its parts as separate kernels, as far as is known.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Only where it does not come apart.
    Never,
}

impl Fuse {
    const WORDS: [(Fuse, &'static str); 3] =
        [(Fuse::Auto, "auto"), (Fuse::Always, "always"), (Fuse::Never, "never")];
}

impl fmt::Display for Fuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(&Fuse::WORDS, *self))
    }
}

impl FromStr for Fuse {
    type Err = String;

    /// `auto`, `always` or `never`.
    fn from_str(text: &str) -> Result<Fuse, String> {
        let known = meaning(&Fuse::WORDS, text);
        known.ok_or_else(|| format!("`{text}` is not `auto`, `always` or `never`"))
    }
}

/// What a pipeline became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// One kernel.
    Fused,
    /// A kernel for each of its [`parts`], launched one after the other.
    Apart,
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The caller said so.
    Asked,
    /// The caller gave settings, which are those of one kernel, or wants none looked for.
    Given,
    /// The pipeline does not come apart.
    Indivisible(Indivisible),
    /// It shall run beside other kernels; parts, which share tensors with the next call's, run alone.
    Overlap,
    /// A part has no kernel by itself.
    NoPart,
    /// There is no kernel for the whole.
    NoKernel,
    /// It is the faster one of the two by what `mk tune` measured.
    Measured,
    /// By what the cost model predicts, with a margin of [`CLEARLY`].
    Predicted,
    /// There are not both times: neither all measured, nor a model of this GPU.
    Unknown,
}

impl Reason {
    const WORDS: [(Reason, &'static str); 14] = [
        (Reason::Asked, "asked"),
        (Reason::Given, "given"),
        (Reason::Overlap, "overlap"),
        (Reason::NoPart, "no-part"),
        (Reason::NoKernel, "no-kernel"),
        (Reason::Measured, "measured"),
        (Reason::Predicted, "predicted"),
        (Reason::Unknown, "unknown"),
        (Reason::Indivisible(Indivisible::Single), "single"),
        (Reason::Indivisible(Indivisible::Runtime), "runtime"),
        (Reason::Indivisible(Indivisible::Elementwise), "elementwise"),
        (Reason::Indivisible(Indivisible::Results), "results"),
        (Reason::Indivisible(Indivisible::Unwritten), "unwritten"),
        (Reason::Indivisible(Indivisible::Mesh), "mesh"),
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Asked => "as the options say",
            Reason::Given => "no times are looked for with these options",
            Reason::Indivisible(whole) => return whole.fmt(f),
            Reason::Overlap => "it shall run beside other kernels",
            Reason::NoPart => "a part has no kernel by itself",
            Reason::NoKernel => "it has no kernel as a whole",
            Reason::Measured => "measured",
            Reason::Predicted => "predicted",
            Reason::Unknown => "not all is measured, and there is no model of this GPU",
        })
    }
}

/// What a pipeline became, why, and the times that decided it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What it became.
    pub made: Fusion,
    /// Why.
    pub why: Reason,
    /// Time of one kernel, in milliseconds, where times decided.
    pub fused_ms: Option<f64>,
    /// Time of all parts together, in milliseconds, where times decided.
    pub apart_ms: Option<f64>,
}

impl Verdict {
    /// One without times.
    pub fn new(made: Fusion, why: Reason) -> Verdict {
        Verdict { made, why, fused_ms: None, apart_ms: None }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (made, other) = match self.made {
            Fusion::Fused => ("one kernel", "apart"),
            Fusion::Apart => ("apart", "as one kernel"),
        };
        match (self.made, self.fused_ms, self.apart_ms) {
            (Fusion::Fused, Some(own), Some(others)) | (Fusion::Apart, Some(others), Some(own)) => {
                let (own, others) = (1e3 * own, 1e3 * others);
                write!(f, "{made}: {own:.1} us, {other} {others:.1} us, {}", self.why)
            }
            _ => write!(f, "{made}: {}", self.why),
        }
    }
}

/// What is known of how long a kernel takes, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// By `mk tune`.
    pub measured_ms: Option<f64>,
    /// By the cost model.
    pub predicted_ms: Option<f64>,
}

/// Which to take on so many ranks: `fused` are the times of one kernel and `apart` of each part; `None` where there is
/// no kernel.
pub fn verdict(fused: Option<Times>, apart: Option<&[Times]>, ranks: u32) -> Verdict {
    let (fused, apart) = match (fused, apart) {
        (_, None) => return Verdict::new(Fusion::Fused, Reason::NoPart),
        (None, Some(_)) => return Verdict::new(Fusion::Apart, Reason::NoKernel),
        (Some(fused), Some(apart)) => (fused, apart),
    };
    let sum = |time: fn(&Times) -> Option<f64>| apart.iter().map(time).sum::<Option<f64>>();
    let by = |why, fused: Option<f64>, apart: Option<f64>, margin: f64| {
        let (fused_ms, apart_ms) = (fused?, apart?);
        let favoured = if ranks == 1 { 1.0 / (1.0 + margin) } else { 1.0 + margin };
        let made = if apart_ms * favoured < fused_ms { Fusion::Apart } else { Fusion::Fused };
        Some(Verdict { made, why, fused_ms: Some(fused_ms), apart_ms: Some(apart_ms) })
    };
    let measured = by(Reason::Measured, fused.measured_ms, sum(|t| t.measured_ms), 0.0);
    let predicted = || by(Reason::Predicted, fused.predicted_ms, sum(|t| t.predicted_ms), CLEARLY);
    measured.or_else(predicted).unwrap_or(Verdict::new(Fusion::Fused, Reason::Unknown))
}

/// What a choice follows from, beside the pipeline and its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// How to lower, unless settings are looked for.
    pub config: &'a Config,
    /// Whether to fuse.
    pub fuse: Fuse,
    /// Whether launches shall run beside those of others.
    pub overlap: bool,
    /// Where settings and times are looked for: the GPU, and the cache. `None`: nowhere.
    pub search: Option<(&'a Gpu, Option<&'a Cache>)>,
}

/// How a pipeline is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// As one kernel or apart, and why.
    pub verdict: Verdict,
    /// How to lower the kernel, or each part.
    pub configs: Vec<Config>,
}

/// Chooses. A function of its arguments and of what the cache holds.
///
/// A config without a plan stands where there is none: lowering says why.
pub fn settle(program: &Program, bound: &Bound, terms: &Conditions<'_>) -> Choice {
    let whole = || piece(program, bound, terms);
    // Given settings are taken as they are.
    let searched = || terms.search.and_then(|_| whole());
    let fused = |why, found: Option<Candidate>| Choice {
        verdict: Verdict::new(Fusion::Fused, why),
        configs: vec![found.map_or_else(|| terms.config.clone(), |p| p.config)],
    };
    let pieces = match terms.config.mesh.is_empty() {
        true => parts(program, bound),
        false => Err(Indivisible::Mesh),
    };
    let list = match (terms.fuse, pieces) {
        (Fuse::Always, _) => return fused(Reason::Asked, searched()),
        (_, Err(why)) => return fused(Reason::Indivisible(why), searched()),
        (_, Ok(list)) => list,
    };
    let all = || list.iter().map(|p| piece(&p.program, &p.bound, terms)).collect();
    let apart = |why, pieces: Vec<Candidate>| Choice {
        verdict: Verdict::new(Fusion::Apart, why),
        configs: pieces.into_iter().map(|p| p.config).collect(),
    };
    if terms.fuse == Fuse::Never {
        return match all() {
            Some(pieces) => apart(Reason::Asked, pieces),
            None => fused(Reason::NoPart, searched()),
        };
    }
    let one = whole();
    if one.is_some() && (terms.overlap || terms.search.is_none()) {
        return fused(if terms.overlap { Reason::Overlap } else { Reason::Given }, one);
    }
    let (mut one, mut several): (_, Option<Vec<Candidate>>) = (one, all());
    if let (Some(one), Some(several), Some((gpu, cache))) = (&mut one, &mut several, terms.search) {
        predicted(program, bound, list.iter().zip(several), one, gpu, cache);
    }
    let times: Option<Vec<Times>> = several.as_ref().map(|s| s.iter().map(|p| p.times).collect());
    let verdict = verdict(one.as_ref().map(|p| p.times), times.as_deref(), terms.config.ranks);
    let choice = match (verdict.made, several) {
        (Fusion::Apart, Some(pieces)) => apart(verdict.why, pieces),
        _ => fused(verdict.why, one),
    };
    Choice { verdict, ..choice }
}

/// A kernel that there is.
struct Candidate {
    config: Config,
    times: Times,
}

fn piece(program: &Program, bound: &Bound, terms: &Conditions<'_>) -> Option<Candidate> {
    let sound = |config: &Config| has_kernel(program, bound, config).is_ok();
    let given = terms.config;
    let Some((gpu, cache)) = terms.search else {
        // Settings that do not fit are the caller's mistake, and not a reason for something else.
        let there = sound(given) || sound(&space::defaults(given));
        return there.then(|| Candidate { config: given.clone(), times: Times::default() });
    };
    let decision = decide_in(program, bound, given, gpu, cache);
    // A measured one has a kernel; of others the plan alone was looked at, or nothing.
    if decision.origin != Origin::Measured && !sound(&decision.config) {
        let config = given.clone();
        return sound(given).then(|| Candidate { config, times: Times::default() });
    }
    let times = match decision.origin {
        Origin::Measured => Times { measured_ms: decision.ms, predicted_ms: None },
        Origin::Predicted => Times { measured_ms: None, predicted_ms: decision.ms },
        Origin::Given | Origin::Default => Times::default(),
    };
    Some(Candidate { config: decision.config, times })
}

/// Predicts also what was measured, where not everything was.
fn predicted<'a>(
    program: &'a Program,
    bound: &'a Bound,
    parts: impl Iterator<Item = (&'a Part, &'a mut Candidate)>,
    one: &'a mut Candidate,
    gpu: &Gpu,
    cache: Option<&Cache>,
) {
    let parts = parts.map(|(part, piece)| (&part.program, &part.bound, piece));
    let all: Vec<_> = std::iter::once((program, bound, one)).chain(parts).collect();
    if all.iter().all(|(.., piece)| piece.times.measured_ms.is_some()) {
        return;
    }
    let (Some(model), _) = model_of(gpu, cache) else { return };
    for (program, bound, piece) in all {
        if piece.times.predicted_ms.is_none() {
            let found = predict(program, bound, &piece.config, &model);
            piece.times.predicted_ms = found.ok().map(|p| p.ms());
        }
    }
}

impl Choice {
    /// As text for [`Choice::read`]: what rank 0 says to the others.
    pub fn write(&self, program: &Program, bound: &Bound) -> String {
        let (verdict, apart) = (&self.verdict, self.verdict.made == Fusion::Apart);
        let ms = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| ms.to_string());
        let mut text = format!(
            "{} {} {} {}",
            if apart { "apart" } else { "fused" },
            word(&Reason::WORDS, verdict.why),
            ms(verdict.fused_ms),
            ms(verdict.apart_ms)
        );
        let parts = if apart { parts(program, bound).unwrap_or_default() } else { Vec::new() };
        for (i, config) in self.configs.iter().enumerate() {
            let (program, bound) =
                parts.get(i).map_or((program, bound), |p| (&p.program, &p.bound));
            let facts = space::facts(program, bound, config.ranks);
            text += &format!("\nconfig {}", settings::write(config, &facts));
        }
        text
    }

    /// Reads what [`Choice::write`] made, in the world of a config.
    ///
    /// # Errors
    /// The word or line that is none.
    pub fn read(text: &str, world: &Config) -> Result<Choice, String> {
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        let ms = |word: &str| match word {
            "-" => Some(None),
            ms => ms.parse::<f64>().ok().map(Some),
        };
        let verdict = || {
            let words: Vec<&str> = head.split(' ').collect();
            let [made, why, fused, apart] = words[..] else { return None };
            let made = meaning(&[(Fusion::Fused, "fused"), (Fusion::Apart, "apart")], made)?;
            let why = meaning(&Reason::WORDS, why)?;
            Some(Verdict { made, why, fused_ms: ms(fused)?, apart_ms: ms(apart)? })
        };
        let verdict = verdict().ok_or_else(|| head.to_string())?;
        let config = |line: &str| {
            let settings = line.strip_prefix("config ").ok_or_else(|| line.to_string())?;
            space::read_in(settings, world).map_err(|e| e.to_string())
        };
        let configs = lines.map(config).collect::<Result<Vec<_>, _>>()?;
        Ok(Choice { verdict, configs })
    }
}

fn word<T: PartialEq>(words: &[(T, &'static str)], value: T) -> &'static str {
    words.iter().find(|(v, _)| *v == value).map_or("", |(_, word)| word)
}

fn meaning<T: Copy>(words: &[(T, &str)], word: &str) -> Option<T> {
    words.iter().find(|(_, w)| *w == word).map(|(value, _)| *value)
}
