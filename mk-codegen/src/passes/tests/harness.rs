//! Runs a draft: through the passes, the verifier, and the executor; and with each of its flows spoilt.

use crate::ir::{BufId, Completion, Entity, Plan, SigId, TabId};
use crate::passes::{draft::Draft, draft::FlowId, error::LowerError, finish, signals};
use crate::{
    settings::Config,
    sim::{self, Callbacks, Options, Schedule},
    target, valid,
};
use half::bf16;
use mk_abi::DType;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{cell::RefCell, collections::BTreeMap};

/// Relative errors that the roundings of results, and of what is between, explain: of the whole, and of 64 elements.
const WHOLE: f64 = 6e-3;
const PART: f64 = 2e-2;

/// Settings of a small machine: tasks queue up on few CTAs.
pub fn config(ranks: u32) -> Config {
    let (compute_sms, intra_comm_sms) = (Some(3), Some(2));
    Config { ranks, compute_sms, intra_comm_sms, copy_stages: 4, ..Config::default() }
}

/// An empty draft.
pub fn draft(name: &str, ranks: u32) -> Draft {
    Draft::new(name, "world", &config(ranks), &target::SM_90A)
}

/// What a run has read and written, by epoch, rank and name.
#[derive(Default)]
pub struct Data {
    pub inputs: BTreeMap<(i64, usize, String), Vec<f32>>,
    pub tables: BTreeMap<(i64, usize, String), Vec<i32>>,
    outputs: BTreeMap<(i64, usize, String), Vec<f32>>,
}

impl Data {
    pub fn input(&self, epoch: i64, rank: usize, name: &str) -> &[f32] {
        &self.inputs[&(epoch, rank, name.to_string())]
    }
    pub fn table(&self, epoch: i64, rank: usize, name: &str) -> &[i32] {
        &self.tables[&(epoch, rank, name.to_string())]
    }
}

/// A result of a rank in an epoch, from the inputs of all.
pub type Reference<'r> = &'r dyn Fn(&Data, i64, usize) -> Vec<f64>;
/// A table by epoch, rank and name.
pub type Tables<'t> = &'t dyn Fn(i64, usize, &str) -> Vec<i32>;

pub fn no_tables(_: i64, _: usize, _: &str) -> Vec<i32> {
    Vec::new()
}

/// The plan of a draft.
pub fn plan(mut draft: Draft) -> Result<Plan, LowerError> {
    signals::insert(&mut draft)?;
    let ranks = draft.world() as u32;
    finish(draft, &config(ranks))
}

/// The plan of a draft, which verifies, and all of whose waits some proof needs.
pub fn verified(draft: Draft) -> (Plan, valid::Proof) {
    let plan = plan(draft).unwrap_or_else(|e| panic!("{e}"));
    let again: Plan = plan.to_string().parse().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plan, again, "the text is read back");
    let proof = valid::verify(&plan).unwrap_or_else(|e| panic!("{plan}\n{e}"));
    assert_eq!(proof.waits_unused, [], "{plan}\n{proof}");
    (plan, proof)
}

/// Fresh data for every epoch and rank, uniform in -1..1, and all that a run leaves.
fn run(plan: &Plan, tables: Tables<'_>, options: &Options) -> Result<Data, String> {
    let data = RefCell::new(Data::default());
    let name = |b: BufId| plan.buffers[b].name.clone();
    let input = |epoch: i64, rank: usize, b: BufId, shape: &[usize]| {
        let seed = (epoch as u64) << 32 | (rank as u64) << 16 | b.index() as u64;
        let mut rng = SmallRng::seed_from_u64(seed);
        let one = |_| {
            let x: f32 = rng.random_range(-1.0..1.0);
            if plan.buffers[b].dtype == DType::Bf16 { bf16::from_f32(x).to_f32() } else { x }
        };
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(one).collect();
        data.borrow_mut().inputs.insert((epoch, rank, name(b)), values.clone());
        values
    };
    let table = |epoch: i64, rank: usize, t: TabId| {
        let name = plan.tables[t].name.clone();
        let values = tables(epoch, rank, &name);
        data.borrow_mut().tables.insert((epoch, rank, name), values.clone());
        values
    };
    let output = |epoch: i64, rank: usize, b: BufId, _: &[usize], values: &[f32]| {
        data.borrow_mut().outputs.insert((epoch, rank, name(b)), values.to_vec());
    };
    sim::run(plan, &mut Callbacks { input, table, output }, options).map_err(|e| e.to_string())?;
    Ok(data.into_inner())
}

/// Runs a plan under every schedule and a few seeds, with stamps and without, and compares its results.
pub fn right(plan: &Plan, tables: Tables<'_>, results: &[(&str, Reference<'_>)], seeds: u64) {
    for schedule in Schedule::all(plan.mesh.size() as usize) {
        for seed in 0..seeds {
            let check = seed % 2 == 1;
            let options = Options { schedule, seed, launches: 4, check, ..Options::default() };
            let compared = run(plan, tables, &options).and_then(|data| compare(&data, results));
            if let Err(e) = compared {
                panic!("{} under {schedule}, seed {seed}: {e}\n{plan}", plan.name);
            }
        }
    }
}

fn compare(data: &Data, results: &[(&str, Reference<'_>)]) -> Result<(), String> {
    for ((epoch, rank, name), got) in &data.outputs {
        let Some((_, reference)) = results.iter().find(|r| r.0 == name) else {
            return Err(format!("{name} has no reference"));
        };
        let want = reference(data, *epoch, *rank);
        near(got, &want).map_err(|e| format!("{name} of rank {rank}, epoch {epoch}: {e}"))?;
    }
    Ok(())
}

fn near(got: &[f32], want: &[f64]) -> Result<(), String> {
    assert_eq!(got.len(), want.len(), "the reference has as many elements");
    if let Some(i) = got.iter().position(|x| !x.is_finite()) {
        return Err(format!("element {i} is {}, not {}", got[i], want[i]));
    }
    let norm = |part: &[f64]| part.iter().map(|y| y * y).sum::<f64>();
    let error = |x: &[f32], y: &[f64]| {
        x.iter().zip(y).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum::<f64>()
    };
    let all = norm(want);
    for (i, (x, y)) in got.chunks(64).zip(want.chunks(64)).enumerate() {
        // A few elements may be near 0 by chance.
        let floor = 0.1 * all * y.len() as f64 / want.len() as f64;
        let relative = (error(x, y) / norm(y).max(floor)).sqrt();
        if relative > PART {
            return Err(format!("elements from {}: relative error {relative:.2e}", 64 * i));
        }
    }
    let relative = (error(got, want) / all.max(f64::MIN_POSITIVE)).sqrt();
    if relative > WHOLE { Err(format!("relative error {relative:.2e}")) } else { Ok(()) }
}

/// A draft with something taken away from a flow: what, and the plan.
type Spoilt = (String, Result<Plan, LowerError>);

/// The verifier rejects the draft without any one of its flows, writers or readers, with any lag raised or completion weakened, those of
/// entry included. Returns how many plans that were.
pub fn spoilt_are_rejected(draft: &dyn Fn() -> Draft) -> usize {
    let all = spoilt(draft);
    for (what, plan) in &all {
        // A draft without the flow that a read needs may be refused by the passes.
        let Ok(plan) = plan else { continue };
        if let Ok(proof) = valid::verify(plan) {
            panic!("{what}: accepted\n{plan}\n{proof}");
        }
    }
    all.len()
}

fn spoilt(draft: &dyn Fn() -> Draft) -> Vec<Spoilt> {
    let guarded = || {
        let mut draft = draft();
        signals::guard(&mut draft).unwrap_or_else(|e| panic!("{e}"));
        draft
    };
    let lower = |mut draft: Draft| {
        signals::connect(&mut draft)?;
        let ranks = draft.world() as u32;
        finish(draft, &config(ranks))
    };
    let whole = guarded();
    let mut out: Vec<Spoilt> = Vec::new();
    for &id in &whole.flow_order {
        let flow = &whole.flows[id];
        let mut spoil = |what: String, change: &dyn Fn(&mut Draft)| {
            let mut draft = guarded();
            change(&mut draft);
            out.push((format!("{id} {:?}: {what}", flow.name), lower(draft)));
        };
        spoil("dropped".into(), &|d| d.flow_order.retain(|f| *f != id));
        for i in 0..flow.from.len() {
            let name = &whole.plan.families[flow.from[i].family].name;
            spoil(format!("without its writer {name:?}"), &|d| drop(d.flows[id].from.remove(i)));
        }
        for i in 0..flow.to.len() {
            let name = &whole.plan.families[flow.to[i].family].name;
            spoil(format!("without its reader {name:?}"), &|d| drop(d.flows[id].to.remove(i)));
            spoil(format!("{name:?} a launch back"), &|d| d.flows[id].to[i].lag += 1);
        }
    }
    let plan = lower(whole).unwrap_or_else(|e| panic!("{e}"));
    out.extend(weakened(&plan));
    out
}

/// Plans of which one post comes after a weaker completion. Posts behind which there is nothing are as good as before.
fn weakened(plan: &Plan) -> Vec<Spoilt> {
    use Completion::*;
    let all = [ProgramOrder, SmemReadDone, GlobalWriteDone, NicPosted, NicDelivered, NicFlushed];
    let mut out = Vec::new();
    for (id, x) in plan.families.iter().filter(|(_, x)| x.name != "enter.node") {
        for (i, post) in x.posts.iter().enumerate() {
            for after in all.into_iter().filter(|after| *after < post.after) {
                let mut weaker = plan.clone();
                weaker.families[id].posts[i].after = after;
                let what = format!("{:?}: {} after {}", x.name, post.edge, after.name());
                out.push((what, Ok(weaker)));
            }
        }
    }
    out
}

/// The signal of a name.
pub fn signal(plan: &Plan, name: &str) -> SigId {
    let found = plan.signals.iter().find(|(_, s)| s.name == name).map(|(id, _)| id);
    found.unwrap_or_else(|| panic!("no signal {name}"))
}

/// The flow of a name.
pub fn flow(draft: &Draft, name: &str) -> FlowId {
    let found = draft.flows.iter().find(|(_, f)| f.name == name).map(|(id, _)| id);
    found.unwrap_or_else(|| panic!("no flow {name}"))
}
