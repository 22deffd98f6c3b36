//! Runs a draft: through the passes, the verifier, and the executor; and with each of its flows spoilt.

use crate::passes::{
    World,
    draft::{Draft, FlowId},
    error::LowerError,
    finish,
    shape::ranks::RankGroup,
    signals,
};
use crate::settings::Config;
use mk_cost::{self as cost};
use mk_emit::{draw, emit};
use mk_plan::{Axis, BufId, Completion, Entity, Nic, Plan, TabId};
use mk_prove::valid;
use mk_sim::{self, Callbacks, Options, Schedule};
use mk_syntax::Program;
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
    let program = Program::parse("gather(a) -> gemm(b)").expect("a pipeline");
    let shapes = [("a", [64, 64]), ("b", [64, 64])].map(|(n, s)| (n.to_string(), s.to_vec()));
    let bound = program.bind(&BTreeMap::new(), &shapes.into()).expect("sizes");
    let (world, _, config) = World::of(&program, &bound, &config(ranks)).expect("a world");
    Draft::new(name, &world, &config)
}

/// All ranks of a world.
pub fn world(ranks: i32) -> RankGroup {
    let size = ranks as u32;
    RankGroup::of(Axis { stride: 1, size }, size)
}

/// Puts a draft on nodes.
pub fn on_nodes(draft: &mut Draft, nic: Nic) {
    draft.plan.nic = Some(nic);
    let local = nic.local.map_or(draft.ranks(), |local| local as i32);
    draft.nodes = draft.nodes.group.by_node(local).expect("whole nodes");
}

/// What a run has read and written, by epoch, rank and name.
#[derive(Default)]
pub struct Data {
    pub inputs: BTreeMap<(i64, usize, String), Vec<f32>>,
    outputs: BTreeMap<(i64, usize, String), Vec<f32>>,
}

impl Data {
    pub fn input(&self, epoch: i64, rank: usize, name: &str) -> &[f32] {
        &self.inputs[&(epoch, rank, name.to_string())]
    }
}

/// A result of a rank in an epoch, from the inputs of all; nothing where nobody writes.
pub type Reference<'r> = &'r dyn Fn(&Data, i64, usize) -> Vec<Option<f64>>;
/// A table by epoch, rank and name.
pub type Tables<'t> = &'t dyn Fn(i64, usize, &str) -> Vec<i32>;

pub fn no_tables(_: i64, _: usize, _: &str) -> Vec<i32> {
    Vec::new()
}

/// The plan of a draft.
pub fn plan(mut draft: Draft) -> Result<Plan, LowerError> {
    signals::insert(&mut draft)?;
    let ranks = draft.ranks() as u32;
    finish(draft, &config(ranks))
}

/// Waits that other flows make superfluous: flow and family.
pub type Superfluous<'s> = &'s [(&'s str, &'s str)];

/// The plan of a draft, which verifies, and all of whose waits but the superfluous ones some proof needs.
pub fn verified(draft: Draft, superfluous: Superfluous<'_>) -> (Plan, valid::Proof) {
    let plan = plan(draft).unwrap_or_else(|e| panic!("{e}"));
    let again: Plan = plan.to_string().parse().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plan, again, "the text is read back");
    let json = plan.to_json().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plan, Plan::from_json(&json).unwrap_or_else(|e| panic!("{e}")));
    assert!(draw::svg(&plan).ends_with("</svg>\n"));
    // No template carries it out, and the emitter says so.
    let refused = emit::emit(&plan);
    assert!(matches!(refused, Err(emit::EmitError::Refused(_))), "{:?}", refused.err());
    // Nor has the cost model figures for most of these leaves.
    let figures = cost::predict(&plan, cost::DeviceModel::h200());
    assert!(matches!(figures, Ok(_) | Err(cost::CostError::Unsupported { .. })), "{figures:?}");
    let proof = valid::verify(&plan).unwrap_or_else(|e| panic!("{plan}\n{e}"));
    for edge in &proof.waits_unused {
        let mut waits = plan.families.values().flat_map(|x| x.waits.iter().map(move |w| (x, w)));
        let (x, wait) = waits.find(|(_, w)| w.edge == *edge).expect("a wait");
        let name = &*plan.signals[wait.signal].name;
        assert!(superfluous.contains(&(name, &*x.name)), "{edge} is superfluous\n{plan}\n{proof}");
    }
    (plan, proof)
}

/// Fresh data for every epoch and rank, uniform in -1..1, and all that a run leaves.
fn run(plan: &Plan, tables: Tables<'_>, options: &Options) -> Result<Data, String> {
    let data = RefCell::new(Data::default());
    let name = |b: BufId| plan.buffers[b].name.clone();
    let input = |epoch: i64, rank: usize, b: BufId, shape: &[usize]| {
        let seed = (epoch as u64) << 32 | (rank as u64) << 16 | b.index() as u64;
        let mut rng = SmallRng::seed_from_u64(seed);
        let one = |_| plan.buffers[b].dtype.round(rng.random_range(-1.0..1.0));
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(one).collect();
        data.borrow_mut().inputs.insert((epoch, rank, name(b)), values.clone());
        values
    };
    let table = |epoch: i64, rank: usize, t: TabId| tables(epoch, rank, &plan.tables[t].name);
    let output = |epoch: i64, rank: usize, b: BufId, _: &[usize], values: &[f32]| {
        data.borrow_mut().outputs.insert((epoch, rank, name(b)), values.to_vec());
    };
    mk_sim::run(plan, &mut Callbacks { input, table, output }, options)
        .map_err(|e| e.to_string())?;
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

/// What the executor says of a plan that it does not run to the end.
pub fn fails(plan: &Plan, tables: Tables<'_>) -> String {
    run(plan, tables, &Options::default()).map(drop).expect_err("a run that fails")
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

fn near(got: &[f32], want: &[Option<f64>]) -> Result<(), String> {
    assert_eq!(got.len(), want.len(), "the reference has as many elements");
    let wrong = |(x, y): (&f32, &Option<f64>)| x.is_finite() != y.is_some();
    if let Some(i) = got.iter().zip(want).position(wrong) {
        return Err(format!("element {i} is {}, not {:?}", got[i], want[i]));
    }
    let written = got.iter().zip(want).filter_map(|(x, y)| Some((*x, (*y)?)));
    let (got, want): (Vec<f32>, Vec<f64>) = written.unzip();
    let norm = |part: &[f64]| part.iter().map(|y| y * y).sum::<f64>();
    let error = |x: &[f32], y: &[f64]| {
        x.iter().zip(y).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum::<f64>()
    };
    let all = norm(&want);
    for (i, (x, y)) in got.chunks(64).zip(want.chunks(64)).enumerate() {
        // A few elements may be near 0 by chance.
        let floor = 0.1 * all * y.len() as f64 / want.len() as f64;
        let relative = (error(x, y) / norm(y).max(floor)).sqrt();
        if relative > PART {
            return Err(format!("elements from {}: relative error {relative:.2e}", 64 * i));
        }
    }
    let relative = (error(&got, &want) / all.max(f64::MIN_POSITIVE)).sqrt();
    if relative > WHOLE { Err(format!("relative error {relative:.2e}")) } else { Ok(()) }
}

/// A draft with something taken away from a flow.
struct Spoilt {
    /// The flow, and the family at its end, if it is one end that is spoilt.
    flow: String,
    family: String,
    what: String,
    plan: Result<Plan, LowerError>,
}

const WITHOUT_READER: &str = "without this reader";

/// The verifier rejects the draft without any one of its flows, writers or readers, with any lag raised or completion
/// weakened, those of entry included; without superfluous waits it is accepted.
///
/// Returns how many plans are rejected.
pub fn spoilt_are_rejected(draft: &dyn Fn() -> Draft, superfluous: Superfluous<'_>) -> usize {
    let all = spoilt(draft);
    let mut rejected = 0;
    for Spoilt { flow, family, what, plan } in &all {
        let plan = plan.as_ref().unwrap_or_else(|e| panic!("{flow} {what}: {e}"));
        let needed = !superfluous.contains(&(flow, family));
        match valid::verify(plan) {
            Ok(proof) if needed => panic!("{flow} {family} {what}: accepted\n{plan}\n{proof}"),
            Err(e) if !needed && what == WITHOUT_READER => {
                panic!("{flow} {family} {what}: needed\n{plan}\n{e}")
            }
            found => rejected += usize::from(found.is_err()),
        }
    }
    rejected
}

fn spoilt(draft: &dyn Fn() -> Draft) -> Vec<Spoilt> {
    let guarded = || {
        let mut draft = draft();
        signals::guard(&mut draft).unwrap_or_else(|e| panic!("{e}"));
        draft
    };
    let lower = |mut draft: Draft| {
        signals::connect(&mut draft)?;
        let mut plan = crate::passes::roles::assign(draft, &config(1))?;
        crate::passes::rename(&mut plan);
        Ok(plan)
    };
    let whole = guarded();
    let mut out: Vec<Spoilt> = Vec::new();
    for &id in &whole.flow_order {
        let flow = &whole.flows[id];
        let family = |id| whole.plan.families[id].name.clone();
        let mut spoil = |family: String, what: &str, change: &dyn Fn(&mut Draft)| {
            let mut draft = guarded();
            change(&mut draft);
            let (flow, what) = (flow.name.to_string(), what.to_string());
            out.push(Spoilt { flow, family, what, plan: lower(draft) });
        };
        spoil(String::new(), "dropped", &|d| d.flow_order.retain(|f| *f != id));
        for (i, w) in flow.from.iter().enumerate() {
            spoil(family(w.family), "without this writer", &|d| {
                drop(d.flows[id].from.remove(i));
            });
        }
        for (i, r) in flow.to.iter().enumerate() {
            spoil(family(r.family), WITHOUT_READER, &|d| drop(d.flows[id].to.remove(i)));
            spoil(family(r.family), "a launch back", &|d| d.flows[id].to[i].lag += 1);
        }
    }
    let plan = lower(whole).unwrap_or_else(|e: LowerError| panic!("{e}"));
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
                let (flow, family) = (plan.signals[post.signal].name.clone(), x.name.clone());
                let what = format!("{} after {}", post.edge, after.name());
                out.push(Spoilt { flow, family, what, plan: Ok(weaker) });
            }
        }
    }
    out
}

/// The flow of a name.
pub fn flow(draft: &Draft, name: &str) -> FlowId {
    let found = draft.flows.iter().find(|(_, f)| f.name == name).map(|(id, _)| id);
    found.unwrap_or_else(|| panic!("no flow {name}"))
}
