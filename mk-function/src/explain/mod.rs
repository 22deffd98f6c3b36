//! Why a pipeline takes as long as it does: how it is lowered and why so, what that should take, what bounds it, and
//! what else there is: other settings, and a kernel for each operation. `mk explain` and Python print the same
//! [`Explanation`].

mod explanation;
mod text;

pub use explanation::{Apart, Explanation, Workspace};

use crate::build::Composition;
use crate::choice::{
    Cache, Indivisible, Key, Origin, Part, Times, Unpredicted, choices, choose_in, facts, facts_of,
    model_of, parts, predict_each, verdict,
};
use mk_codegen::{
    check,
    cost::{self, DeviceModel, Gpu},
    emit, passes,
    settings::{self, Config, Facts},
};
use mk_syntax::{Bound, Program};

/// What is explained.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A function that looks for its settings, in the world of this config ([`defaults`](crate::choice::defaults)).
    Searched(&'a Config),
    /// What it is with these.
    Options(&'a Config),
    /// What was made.
    Composition(&'a Composition),
}

/// By what it is explained.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Figures of the machine.
    pub model: &'a DeviceModel,
    /// Where measured winners are; `None`: nowhere.
    pub cache: Option<&'a Cache>,
    /// Tasks of the critical chain that are said.
    pub chain: usize,
}

/// Tasks of the critical chain that are said where nobody asks for another number.
pub const CHAIN: usize = 8;
/// How many other settings are said.
const OTHERS: usize = 5;

/// Explains a pipeline with its sizes on `ranks` ranks.
///
/// # Errors
/// [`Unpredicted`] where the pipeline has no kernel as a whole, or none that the model knows.
pub fn explain(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    subject: Subject<'_>,
    sources: &Sources<'_>,
) -> Result<Explanation, Unpredicted> {
    let Sources { model, cache, chain } = *sources;
    let mut notes = Vec::new();
    let unset = Config::default();
    let (searched, fixed, world) = match subject {
        Subject::Searched(world) => (true, None, world),
        Subject::Options(given) => (false, Some(given), given),
        Subject::Composition(made) => {
            let first = made.configs.first();
            (true, first, first.unwrap_or(&unset))
        }
    };
    let Config { mesh, nodes, net, .. } = world.clone();
    let default = Config { ranks, mesh, nodes, net, ..Config::default() };
    let whole = (!default.mesh.is_empty()).then_some(Indivisible::Mesh);
    let facts = facts_of(program, bound, &default);
    let target = match subject {
        Subject::Options(given) => &given.target,
        Subject::Searched(_) | Subject::Composition(_) => &default.target,
    };
    let mut winner = |program: &Program, bound: &Bound| {
        let key = Key::new(program, bound, ranks, target, &model.gpu);
        cache.filter(|_| nodes == 1)?.recall(&key).unwrap_or_else(|damaged| {
            notes.push(damaged);
            None
        })
    };
    // Nothing is measured or searched over several axes, and over nodes nothing is measured.
    let best = if whole.is_some() { None } else { winner(program, bound) };
    let chosen = || match whole {
        Some(_) => None,
        None => choose_in(program, bound, &default, model).map(|(config, _)| config),
    };
    let same = |a: &Config, b: &Config| settings::write(a, &facts) == settings::write(b, &facts);
    let (config, origin) = match (subject, fixed, &best) {
        (Subject::Options(given), ..) => (given.clone(), Origin::Given),
        (Subject::Composition(made), Some(config), best) if made.parts.is_empty() => {
            let origin = match best {
                Some(w) if same(&w.config, config) => Origin::Measured,
                _ if chosen().is_some_and(|c| same(&c, config)) => Origin::Predicted,
                _ if *config == default => Origin::Default,
                _ => Origin::Given,
            };
            (config.clone(), origin)
        }
        (_, _, Some(w)) => (w.config.clone(), Origin::Measured),
        (_, _, None) => match chosen() {
            Some(config) => (config, Origin::Predicted),
            None => (default.clone(), Origin::Default),
        },
    };
    let plan = passes::lower(program, bound, &config)?;
    let prediction = cost::predict(&plan, model)?;
    let workspace = match subject {
        Subject::Composition(made) => Workspace::of(made.kernels.iter().map(|k| &k.source)),
        // What the emitter refuses has none.
        _ => Workspace::of(check::kernel(&plan, emit::Options::default()).ok().as_ref()),
    };
    let measured_ms = best.filter(|w| same(&w.config, &config)).map(|w| w.ms);
    let times = Times { measured_ms, predicted_ms: Some(prediction.ms()) };
    let pieces = whole.map_or_else(|| parts(program, bound), Err);
    let apart = match pieces {
        Err(why) => Apart::Indivisible(why),
        Ok(list) => {
            let mut known = Vec::with_capacity(list.len());
            let mut without = None;
            for part in list {
                let (program, bound) = (&part.program, &part.bound);
                let Some((_, p)) = choose_in(program, bound, &default, model) else {
                    without = Some(part.name);
                    break;
                };
                let measured_ms = winner(program, bound).map(|w| w.ms);
                known.push((part.name, Times { measured_ms, predicted_ms: Some(p.ms()) }));
            }
            match without {
                Some(name) => Apart::NoPart(name),
                None => {
                    let list: Vec<Times> = known.iter().map(|(_, times)| *times).collect();
                    Apart::Parts { parts: known, verdict: verdict(Some(times), Some(&list), ranks) }
                }
            }
        }
    };
    Ok(Explanation {
        ranks,
        machine: format!("{} ({}){}", model.gpu, model.measured, cards(&config, model)),
        settings: settings::write(&config, &facts),
        others: others(program, bound, &config, &facts, model),
        config,
        origin,
        prediction,
        measured_ms,
        apart,
        workspace,
        made: match subject {
            Subject::Searched(_) | Subject::Options(_) => None,
            Subject::Composition(made) => Some(made.verdict),
        },
        gave_way: match subject {
            Subject::Searched(_) | Subject::Options(_) => 0,
            Subject::Composition(made) => made.gave_way,
        },
        kernels: match subject {
            Subject::Searched(_) | Subject::Options(_) => Vec::new(),
            Subject::Composition(made) => kernels(made, ranks),
        },
        searched,
        notes,
        chain,
    })
}

/// Which network is supposed, where there is one.
fn cards(config: &Config, model: &DeviceModel) -> String {
    let [rate, latency] = [model.card_bytes_per_s / 1e9, model.card_s * 1e6];
    match config.nodes {
        0 | 1 => String::new(),
        nodes => format!(
            ", {nodes} nodes with network cards of {rate} GB/s and {latency} us, which nobody measured"
        ),
    }
}

/// Operations and settings of each kernel of what was made apart.
fn kernels(made: &Composition, ranks: u32) -> Vec<(String, String)> {
    let settings = |(part, config): (&Part, &Config)| {
        (part.name.clone(), settings::write(config, &facts(&part.program, &part.bound, ranks)))
    };
    made.parts.iter().zip(&made.configs).map(settings).collect()
}

/// What can be said of what was made, for GPUs of a name, as text: an [`Explanation`], or why there is none.
pub fn explain_made(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    made: &Composition,
    (gpu, cache): (&Gpu, Option<&Cache>),
) -> String {
    let (model, note) = model_of(gpu, cache);
    let explained = match &model {
        None => Err(format!(
            "there are no figures of {}, which `mk probe --install` measures",
            gpu.name
        )),
        Some(model) => {
            let sources = Sources { model, cache, chain: CHAIN };
            explain(program, bound, ranks, Subject::Composition(made), &sources)
                .map_err(|e| e.to_string())
        }
    };
    let (mut text, notes) = match explained {
        Ok(explained) => (explained.to_string(), explained.notes),
        Err(why) => {
            let mut text = format!("prediction none: {why}\nmade       {}\n", made.verdict);
            if made.gave_way > 0 {
                text += &format!("           {}\n", text::gave_way(made.gave_way));
            }
            (text, Vec::new())
        }
    };
    for note in note.iter().chain(&notes) {
        text += &format!("note       {note}\n");
    }
    text
}

/// Neighbours of the config, what one setting changes: the fastest, with their times.
fn others(
    program: &Program,
    bound: &Bound,
    config: &Config,
    facts: &Facts,
    model: &DeviceModel,
) -> Vec<(f64, String)> {
    let mut configs = Vec::new();
    for (setting, values) in choices(facts, &Default::default()) {
        for value in values {
            let mut other = config.clone();
            if (setting.set)(&mut other, &value).is_none() {
                continue;
            }
            let other = settings::settle(other, facts);
            if other != *config && !configs.contains(&other) {
                configs.push(other);
            }
        }
    }
    let predicted = predict_each(program, bound, &configs, model, &|| ());
    let mut list: Vec<_> =
        configs.iter().zip(predicted).filter_map(|(c, p)| Some((p.ok()?.ms(), c))).collect();
    list.sort_by(|a, b| a.0.total_cmp(&b.0));
    list.into_iter().take(OTHERS).map(|(ms, c)| (ms, settings::write(c, facts))).collect()
}
