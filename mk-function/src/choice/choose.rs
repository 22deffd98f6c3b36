//! What the cost model says of configs, and which is taken: a measured one, a predicted one, or the default.

use super::{
    cache::{Cache, Damaged, Key},
    space,
};
use crate::parallel::in_parallel;
use mk_codegen::{
    check,
    cost::{self, Chip, CostError, DeviceModel, Gpu, Prediction},
    emit,
    passes::{self, LowerError},
    settings::{
        self, AllReduce, BY_TURNS, Config, FLAT, Facts, Gather, IN_PARTS, IN_PARTS_BLOCK,
        MANY_SENDERS, Reduction, SMALL_CHUNK, Schedule, Setting,
    },
    target,
};
use mk_runtime::World;
use mk_syntax::{Bound, Program};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, PoisonError},
};
use thiserror::Error;

/// Why a config has no prediction.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unpredicted {
    /// It has no plan.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The model does not know its plan.
    #[error(transparent)]
    Cost(#[from] CostError),
}

/// How long a launch takes with this config, as the model has it. The plan is lowered, not verified.
///
/// # Errors
/// [`Unpredicted`].
pub fn predict(
    program: &Program,
    bound: &Bound,
    config: &Config,
    model: &DeviceModel,
) -> Result<Prediction, Unpredicted> {
    let plan = passes::lower(program, bound, config)?;
    Ok(cost::predict(&plan, model)?)
}

/// [`predict`] for many configs, side by side; calls `done` after each.
pub fn predict_each(
    program: &Program,
    bound: &Bound,
    configs: &[Config],
    model: &DeviceModel,
    done: &(dyn Fn() + Sync),
) -> Vec<Result<Prediction, Unpredicted>> {
    in_parallel(configs, |config| {
        let predicted = predict(program, bound, config, model);
        done();
        predicted
    })
}

/// Most tasks that a choice simulates: about a second.
const BUDGET_TASKS: usize = 600_000;

/// The config that the model takes for the best. A function of its arguments: it searches one setting after the other
/// from the defaults (and from the flattest tiles, where those are worth trying: they pay together with parts along k;
/// and from small chunks of few rows), twice, and stops where the plans are so large that more predictions would take
/// long.
///
/// Nothing where no config of the space has a plan and a prediction.
pub fn choose(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    model: &DeviceModel,
) -> Option<(Config, Prediction)> {
    choose_in(program, bound, &Config { ranks, ..Config::default() }, model)
}

/// [`choose`] in the world of a config ([`space::defaults`]).
pub fn choose_in(
    program: &Program,
    bound: &Bound,
    world: &Config,
    model: &DeviceModel,
) -> Option<(Config, Prediction)> {
    let facts = space::facts_of(program, bound, world);
    let mut choices = space::choices(&facts, &BTreeMap::new());
    // Strategies first: of the largest plans there are predictions for no more.
    choices.sort_by_key(|(setting, _)| !setting.strategy);
    let default = space::defaults(world);
    // Of a GEMM alone all tiles and clusters are looked at, in closed form.
    if let Some(config) = best_alone(program, bound, &default, model)
        && let Ok(p) = predict(program, bound, &config, model)
    {
        return Some((config, p));
    }
    // Of ragged rows the model does not tell tiles apart.
    if let Some(config) = settings::of_ragged(&default, &facts)
        && let Ok(p) = predict(program, bound, &config, model)
    {
        return Some((config, p));
    }
    let with = |config: &Config, setting: &Setting, value: &String| {
        let mut config = config.clone();
        (setting.set)(&mut config, value).map(|()| settings::settle(config, &facts))
    };
    let scores = Scores { program, bound, facts: &facts, model, known: Mutex::default() };
    let search = Search { scores: &scores, choices: &choices, with: &with };
    let offered = choices.iter().find(|(_, values)| values.iter().any(|v| v == FLAT));
    let flat = offered.and_then(|(setting, _)| with(&default, setting, &FLAT.to_string()));
    // Few rows: small chunks pay where many SMs send them, and the other way round.
    let setting = |name: &str, value: &str| {
        choices
            .iter()
            .find(|(s, values)| s.name == name && values.iter().any(|v| v == value))
            .map(|(s, _)| s)
    };
    let small = setting("chunk_bytes", SMALL_CHUNK).zip(setting("intra_comm_sms", MANY_SENDERS));
    let small = small.and_then(|(chunk, sms)| {
        let from = with(flat.as_ref().unwrap_or(&default), chunk, &SMALL_CHUNK.to_string())?;
        with(&from, sms, &MANY_SENDERS.to_string())
    });
    // Tiles all of whose K is cut are wide ones, and neither alone is a gain.
    let cut = setting("last_wave", IN_PARTS).zip(setting("block", IN_PARTS_BLOCK)).and_then(
        |(wave, block)| {
            let from = small.as_ref().unwrap_or(&default);
            with(&with(from, block, &IN_PARTS_BLOCK.to_string())?, wave, &IN_PARTS.to_string())
        },
    );
    let starts: Vec<Config> = flat.into_iter().chain(small).chain(cut).collect();
    // A share of it each, so that a later one is not what is left of the first.
    let budget = BUDGET_TASKS / (1 + starts.len());
    let mut found = search.descend(default.clone(), budget, true);
    for start in starts {
        found = better(found, search.descend(start, budget, true));
    }
    // Of a GEMM alone whose rows are repacked first there is no closed form, but few tasks.
    if facts.products.iter().any(|p| p.alone) {
        found = better(found, search.pairs(&default, ["block", "cluster"]));
    }
    // Ways of moving and adding need numbers of their own: one that is a little slower with the others' may be the
    // fastest with its own.
    for start in search.other_ways(found.as_ref()?) {
        found = better(found, search.descend(start, BUDGET_TASKS / 2, false));
    }
    // Tiles that consumers take by turns hide epilogues, and are of few columns: neither alone is a gain.
    let turns = setting("block", BY_TURNS).zip(setting("consumers", "ping_pong"));
    if let Some((block, consumers)) = turns.filter(|_| !facts.plain()) {
        let from = with(&found.as_ref()?.0, block, &BY_TURNS.to_string());
        let config = from.and_then(|c| with(&c, consumers, &"ping_pong".to_string()));
        let score = config.as_ref().and_then(|c| scores.of(std::slice::from_ref(c)).pop()?);
        found = better(found, config.zip(score));
    }
    let (config, _) = found?;
    let prediction = predict(program, bound, &config, model).ok()?;
    Some((config, prediction))
}

/// What a search keeps of a prediction.
#[derive(Clone, Copy)]
struct Score {
    total_s: f64,
    /// Tasks that were simulated.
    tasks: usize,
}

/// Scores of configs: each is predicted once, however often a search comes back to it.
struct Scores<'a> {
    program: &'a Program,
    bound: &'a Bound,
    facts: &'a Facts,
    model: &'a DeviceModel,
    /// By text of all settings; `None` where there is no prediction.
    known: Mutex<HashMap<String, Option<Score>>>,
}

impl Scores<'_> {
    fn of(&self, configs: &[Config]) -> Vec<Option<Score>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<String> = configs.iter().map(settings::write_all).collect();
        let mut new: Vec<(&String, &Config)> = Vec::new();
        for (text, config) in texts.iter().zip(configs) {
            if !known().contains_key(text) && new.iter().all(|(other, _)| *other != text) {
                new.push((text, config));
            }
        }
        let predicted = in_parallel(&new, |(_, config)| {
            settings::fits(config, self.facts).then_some(())?;
            let p = predict(self.program, self.bound, config, self.model).ok()?;
            Some(Score { total_s: p.total_s, tasks: p.spans.len() })
        });
        let mut known = known();
        known.extend(new.into_iter().map(|(text, _)| text.clone()).zip(predicted));
        texts.iter().map(|text| known.get(text).copied().flatten()).collect()
    }
}

/// A config of a search and its score.
type Found = (Config, Score);

/// The first, or the second where that is shorter.
fn better(a: Option<Found>, b: Option<Found>) -> Option<Found> {
    match b {
        Some((config, score)) if shorter(score, a.as_ref().map(|f| f.1)) => Some((config, score)),
        _ => a,
    }
}

/// A search by one setting after the other.
struct Search<'a> {
    scores: &'a Scores<'a>,
    choices: &'a [(&'static Setting, Vec<String>)],
    /// A config with another value of a setting, settled.
    with: &'a dyn Fn(&Config, &Setting, &String) -> Option<Config>,
}

impl Search<'_> {
    /// The best by one setting after the other, twice, or until so many tasks were simulated. A way is kept where
    /// `ways` is false.
    fn descend(&self, mut config: Config, budget: usize, ways: bool) -> Option<Found> {
        let mut best = self.scores.of(std::slice::from_ref(&config)).pop().flatten();
        let mut tasks = best.map_or(0, |score| score.tasks);
        for _ in 0..2 {
            let before = config.clone();
            for (setting, values) in self.choices {
                let tried = values.iter().filter_map(|value| (self.with)(&config, setting, value));
                let tried: Vec<Config> =
                    tried.filter(|c| *c != config && (ways || way(c) == way(&config))).collect();
                let scores = self.scores.of(&tried);
                for (tried, score) in tried.into_iter().zip(scores) {
                    let Some(score) = score else { continue };
                    // Also those that were known before: what a search looks at is the same whatever is known.
                    tasks += score.tasks;
                    if shorter(score, best) {
                        (config, best) = (tried, Some(score));
                    }
                }
                if tasks > budget {
                    return best.map(|score| (config, score));
                }
            }
            if config == before {
                break;
            }
        }
        best.map(|score| (config, score))
    }

    /// The best of all values of two settings together, all else as it is.
    fn pairs(&self, config: &Config, names: [&str; 2]) -> Option<Found> {
        let [one, two] = names.map(|name| self.choices.iter().find(|(s, _)| s.name == name));
        let ((one, values), (two, others)) = one.zip(two)?;
        let tried = values.iter().filter_map(|value| (self.with)(config, one, value));
        let tried: Vec<Config> = tried
            .flat_map(|c| others.iter().filter_map(move |value| (self.with)(&c, two, value)))
            .collect();
        let scores = self.scores.of(&tried);
        let known = tried.into_iter().zip(scores);
        known.fold(None, |best, (config, score)| better(best, score.map(|score| (config, score))))
    }

    /// What differs from the best only in its way, and is not far behind; the nearest first, and of each way once.
    /// None where a prediction takes long.
    fn other_ways(&self, best: &Found) -> Vec<Config> {
        if best.1.tasks > BUDGET_TASKS / 40 {
            return Vec::new();
        }
        let mut tried = vec![best.0.clone()];
        for (setting, values) in self.choices.iter().filter(|(setting, _)| setting.strategy) {
            for i in 0..tried.len() {
                for value in values {
                    let Some(other) = (self.with)(&tried[i], setting, value) else { continue };
                    if tried.iter().all(|c| way(c) != way(&other)) {
                        tried.push(other);
                    }
                }
            }
        }
        tried.remove(0);
        let scores = self.scores.of(&tried);
        let near = |score: &Score| score.total_s <= best.1.total_s * FAR;
        let mut others: Vec<_> = tried
            .into_iter()
            .zip(scores)
            .filter_map(|(config, score)| Some((config, score.filter(near)?)))
            .collect();
        others.sort_by(|(_, a), (_, b)| a.total_s.total_cmp(&b.total_s));
        others.into_iter().map(|(config, _)| config).take(OTHER_WAYS).collect()
    }
}

/// How data moves and where it is added; numbers and tiles fit one of them.
fn way(c: &Config) -> (Reduction, AllReduce, Gather) {
    (c.reduction, c.all_reduce, c.gather)
}

/// So many other ways get numbers of their own.
const OTHER_WAYS: usize = 3;

/// The best of all tiles, consumers and clusters for a GEMM alone whose time has a closed form, all else as it is.
fn best_alone(
    program: &Program,
    bound: &Bound,
    base: &Config,
    model: &DeviceModel,
) -> Option<Config> {
    let facts = space::facts_of(program, bound, base);
    if !facts.products.iter().any(|p| p.alone) {
        return None;
    }
    let varied = ["block", "consumers", "cluster", "multicast"];
    let others = settings::SETTINGS.iter().filter(|s| !varied.contains(&s.name));
    let only = others.map(|s| (s.name.to_string(), vec![(s.get)(base)])).collect();
    let all = space::candidates_in(program, bound, base, &only);
    let seconds = in_parallel(&all, |config| {
        let plan = passes::lower(program, bound, config).ok()?;
        cost::alone_s(&plan, model).ok()?
    });
    let known = all.into_iter().zip(seconds).filter_map(|(config, s)| Some((config, s?)));
    known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(config, _)| config)
}

/// Predictions of the best of one way that are so many times that of the best of all say that it is not worth a
/// measurement.
const FAR: f64 = 1.3;

/// The places of the `top` candidates that are worth measuring, by the milliseconds that the model predicts of each:
/// those that it takes for the best, but of every way of adding up, reducing and gathering the best one first, and
/// then, where there are ways of adding up, of each with every tile. The model judges ways against each other worse
/// than settings of one, and tiles that leave for peers worse than those that do not.
pub fn worth_measuring(candidates: &[(Config, f64)], top: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|a, b| candidates[*a].1.total_cmp(&candidates[*b].1));
    let Some(best) = order.first().map(|i| candidates[*i].1) else { return order };
    let adds = candidates.iter().any(|(c, _)| c.reduction != candidates[0].0.reduction);
    let (mut ways, mut tiles) = (Vec::new(), Vec::new());
    // Of what differs in the schedule only, the better one, or the first: the other is measured where that one is good.
    let mut seen = HashSet::new();
    let dealt =
        |c: &Config| settings::write_all(&Config { tile_scheduler: Schedule::Static, ..c.clone() });
    // The order stays within each of the three.
    let mut kinds = [Vec::new(), Vec::new(), Vec::new()];
    for i in order {
        let (c, ms) = &candidates[i];
        if !seen.insert(dealt(c)) {
            continue;
        }
        let (of_way, of_tile) = (way(c), (way(c), c.block));
        let near = *ms <= best * FAR;
        let kind = match (ways.contains(&of_way), tiles.contains(&of_tile)) {
            (false, _) if near => 0,
            (_, false) if near && adds => 1,
            _ => 2,
        };
        ways.push(of_way);
        tiles.push(of_tile);
        kinds[kind].push(i);
    }
    kinds.concat().into_iter().take(top).collect()
}

/// Whether a time is below another, not a little: the first of equals is taken, so that a setting which changes nothing
/// stays at its default.
fn shorter(score: Score, than: Option<Score>) -> bool {
    than.is_none_or(|b| score.total_s < b.total_s * (1.0 - 1e-3))
}

/// Where a config comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The caller gave it.
    Given,
    /// It was measured to be the best.
    Measured,
    /// The cost model takes it for the best.
    Predicted,
    /// There is neither a measurement nor a model of this GPU.
    Default,
}

/// A config, and why it was taken.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The config.
    pub config: Config,
    /// Where it comes from.
    pub origin: Origin,
    /// Its time in milliseconds, measured or predicted.
    pub ms: Option<f64>,
    /// Cache files that were not used.
    pub notes: Vec<Damaged>,
}

/// A GPU as the driver describes that of a rank; what kernels do not run on has a name only.
///
/// # Errors
/// As [`World::device`].
pub fn gpu_of(world: &World, rank: u32) -> Result<Gpu, mk_runtime::Error> {
    let limits = world.device(rank)?;
    let chip = Chip {
        sms: limits.sms,
        clock_hz: 1e3 * f64::from(limits.clock_khz),
        l2_bytes: limits.l2_bytes.into(),
        memory_bytes_per_s: 2e3
            * f64::from(limits.memory_clock_khz)
            * f64::from(limits.memory_bus_bits)
            / 8.0,
    };
    let runs = limits.capability == HOPPER;
    Ok(Gpu { name: world.gpu_name(rank)?, chip: runs.then_some(chip) })
}

/// Compute capability of the GPUs that kernels are made for.
const HOPPER: (u32, u32) = (9, 0);

/// The config for a pipeline on such GPUs, in the world of a config ([`space::defaults`]), but for SMs: a measured
/// winner that has a kernel, else what the model chooses, else the defaults. Over nodes nothing was measured.
pub fn decide_in(
    program: &Program,
    bound: &Bound,
    world: &Config,
    gpu: &Gpu,
    cache: Option<&Cache>,
) -> Decision {
    let default = space::defaults(world);
    // Those that the GPU does not have.
    let sms = target::by_name(&default.target).map_or(0, |t| t.sms);
    let reserved_sms = gpu.chip.map_or(0, |chip| sms.saturating_sub(chip.sms));
    let mut decision = Decision {
        config: Config { reserved_sms, ..default },
        origin: Origin::Default,
        ms: None,
        notes: Vec::new(),
    };
    let target = decision.config.target.clone();
    let key = Key::new(program, bound, world.ranks, &target, &gpu.name);
    match cache.filter(|_| world.nodes == 1).map(|c| c.recall(&key)) {
        Some(Ok(Some(winner))) => match has_kernel(program, bound, &winner.config) {
            Ok(()) => {
                return Decision {
                    config: winner.config,
                    origin: Origin::Measured,
                    ms: Some(winner.ms),
                    ..decision
                };
            }
            Err(what) => {
                let what = format!("its settings have no kernel ({what})");
                decision.notes.extend(cache.map(|c| c.outdated(&key, what)));
            }
        },
        Some(Err(damaged)) => decision.notes.push(damaged),
        Some(Ok(None)) | None => {}
    }
    let (model, note) = model_of(gpu, cache);
    decision.notes.extend(note);
    if let Some((config, p)) = model.and_then(|m| choose_in(program, bound, &decision.config, &m)) {
        decision = Decision { config, origin: Origin::Predicted, ms: Some(p.ms()), ..decision };
    }
    decision
}

/// Whether there is a kernel of a config, and why not.
pub(super) fn has_kernel(program: &Program, bound: &Bound, config: &Config) -> Result<(), String> {
    let plan = passes::lower(program, bound, config).map_err(|e| e.to_string())?;
    check::kernel(&plan, emit::Options::default()).map(|_| ()).map_err(|e| e.to_string())
}

/// The figures for a GPU: installed ones, else those that ship with mk or follow from them ([`DeviceModel::of`]).
pub fn model_of(gpu: &Gpu, cache: Option<&Cache>) -> (Option<DeviceModel>, Option<Damaged>) {
    match cache.map(|c| c.model(&gpu.name)) {
        Some(Ok(Some(model))) => (Some(model), None),
        Some(Err(damaged)) => (DeviceModel::of(gpu), Some(damaged)),
        Some(Ok(None)) | None => (DeviceModel::of(gpu), None),
    }
}
