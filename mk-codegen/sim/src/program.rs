//! What a rank runs in one launch: the task list of each unit, and the agents that walk it.
//!
//! A unit is a sequence of tasks that one set of agents shares: a CTA's part of its role, the prologue and the epilogue
//! (before and after CTA 0's part), the copy engine's queue. Task n of a role, its families one after the other, goes
//! to CTA n mod ctas, or with a dynamic schedule to any.

use super::{
    Result, SimError,
    context::{Context, Phase},
    options::{MAX_REPEAT, MAX_TASKS},
    signals::Word,
};
use mk_plan::{
    Agent, Completion, Contract, EdgeId, EdgeSpec, Entity, FamId, Plan, PointError, Points,
    RoleKind, Schedule, Scope, Task, Var,
};
use std::fmt;

/// The whole of a rank's launch.
#[derive(Default)]
pub(super) struct Program {
    pub units: Vec<Unit>,
    pub agents: Vec<AgentRun>,
}

/// Which tasks a unit has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Prologue,
    Cta(u32),
    Epilogue,
    CopyEngine,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Prologue => f.write_str("prologue"),
            Place::Cta(n) => write!(f, "cta {n}"),
            Place::Epilogue => f.write_str("epilogue"),
            Place::CopyEngine => f.write_str("copy engine"),
        }
    }
}

pub(super) struct Unit {
    pub place: Place,
    pub tasks: Vec<UnitTask>,
    /// Numbers of its agents.
    pub agents: Vec<usize>,
    /// Agents that have not come to the end.
    pub running: usize,
    /// The unit that begins when this one has ended.
    pub next: Option<usize>,
    /// Whether another unit comes first.
    pub gated: bool,
    /// Edges of back-pressure by agents and kind of step, and the steps that the first agent has completed.
    pub completed: Vec<Completed>,
}

pub(super) struct UnitTask {
    pub task: Task,
    /// Iterations of the inner loop; `None` without one.
    pub inner: Option<i64>,
    pub back: Vec<BackPressure>,
    /// What its agents hand each other, while any is in it.
    pub context: Option<Box<Context>>,
}

/// Agents joined by back-pressure, and how far the first has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub from: Agent,
    pub to: Agent,
    /// Whether steps are tasks.
    pub per_task: bool,
    pub steps: i64,
}

/// An edge of depth d: `to` may begin its step n when `from` has completed step n - d.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackPressure {
    pub edge: EdgeId,
    pub name: &'static str,
    /// Index in [`Unit::completed`].
    pub pair: usize,
    pub depth: i64,
    /// Whether steps are tasks.
    pub per_task: bool,
    /// Number of the task's first step.
    pub base: i64,
}

/// An agent and how far it has come.
pub(super) struct AgentRun {
    pub agent: Agent,
    pub unit: usize,
    /// Its tasks, as indices into the unit's.
    pub list: Vec<usize>,
    pub at: usize,
    pub phase: Phase,
    pub state: State,
    /// Bulk stores that it has issued and not seen complete.
    pub stores: Vec<u64>,
    /// Ordinary stores that no release has pushed out.
    pub buffered: Vec<u64>,
    /// Waits of this task that are too weak for its accesses, to be made up for.
    pub deferred: Vec<Pending>,
    /// Waits of this task that order nothing at all, to be stood through before the next one.
    pub deaf: Vec<Pending>,
    /// Whether the ordinary reads of this phase are over.
    pub early: bool,
    /// Loads of later phases of this task that have been issued: accesses, and their phases.
    pub ahead: Vec<(usize, Phase)>,
    pub blocked: Option<Blocking>,
}

pub(super) enum State {
    /// At the beginning of a phase.
    Begin,
    /// At one of the phase's waits.
    Waiting(Vec<Pending>),
    /// About to touch memory.
    Access,
    /// Has touched memory, and makes up for waits that did not hold it back.
    Settling(Vec<Pending>),
    /// Has these posts to make.
    Posting(std::collections::VecDeque<Ready>),
}

/// A wait that has not been seen to hold.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub edge: EdgeId,
    pub word: Word,
    pub index: Vec<i64>,
    pub expected: i64,
    /// Its line in the family.
    pub line: usize,
}

/// A post to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub word: Word,
    pub add: i64,
    pub after: Completion,
    pub scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocking {
    /// By the first of the waits of its state.
    Signal,
    /// By an edge of its task: id, name, and the agent at the other end.
    Internal(EdgeId, &'static str, Agent),
    /// By an earlier task of another agent, which the same warps run.
    Warps,
    /// By a full fifo.
    Fifo,
}

impl UnitTask {
    /// Phase of the task's end.
    pub fn last(&self) -> Phase {
        self.inner.unwrap_or(0) + 1
    }
    /// Steps that count for back-pressure.
    fn steps(&self, per_task: bool) -> i64 {
        self.inner.filter(|_| !per_task).unwrap_or(1)
    }
    /// The step that begins in a phase, from the task's first.
    pub fn begins(&self, phase: Phase, per_task: bool) -> Option<i64> {
        match self.inner {
            Some(n) if !per_task => (1..=n).contains(&phase).then(|| phase - 1),
            _ => (phase == 0).then_some(0),
        }
    }
    /// Whether a step is completed with this phase.
    pub fn completes(&self, phase: Phase, per_task: bool) -> bool {
        match self.inner {
            Some(n) if !per_task => (1..=n).contains(&phase),
            _ => phase == self.last(),
        }
    }
}

impl Program {
    pub fn new(
        plan: &Plan,
        contracts: &[Contract],
        points: &Points<'_>,
        rank: usize,
        epoch: i64,
        mut taker: impl FnMut(usize) -> usize,
    ) -> Result<Program> {
        let mut budget = MAX_TASKS / u64::from(plan.mesh.size().max(1));
        let (mut before, mut after, mut engine) = (Vec::new(), Vec::new(), Vec::new());
        let mut ctas: Vec<Vec<Task>> = Vec::new();
        for (role_id, role) in plan.roles.iter() {
            let mut tasks = Vec::new();
            for (id, _) in plan.families.iter().filter(|(_, x)| x.role == role_id) {
                count(points, id, rank, epoch, &mut budget)?;
                tasks.extend(points.tasks(id, rank, epoch)?);
            }
            match role.kind {
                RoleKind::Prologue => before.extend(tasks),
                RoleKind::Epilogue => after.extend(tasks),
                RoleKind::CopyEngine => engine.extend(tasks),
                _ => {
                    let first = ctas.len();
                    let n = plan.workers(role_id).max(1) as usize;
                    ctas.resize_with(first + n, Vec::new);
                    for (i, task) in tasks.into_iter().enumerate() {
                        let cta = match plan.families[task.family].schedule {
                            Schedule::Static => i % n,
                            Schedule::Dynamic => taker(n),
                        };
                        ctas[first + cta].push(task);
                    }
                }
            }
        }
        let mut program = Program::default();
        let mut ctas = ctas.into_iter().zip(0..);
        let first = ctas.next().map(|c| c.0).unwrap_or_default();
        let fixed = [
            (Place::Prologue, before),
            (Place::Cta(0), first),
            (Place::Epilogue, after),
            (Place::CopyEngine, engine),
        ];
        let others = ctas.map(|(tasks, n)| (Place::Cta(n), tasks));
        for (place, tasks) in fixed.into_iter().chain(others) {
            program.unit(contracts, points, place, tasks)?;
        }
        Ok(program)
    }

    /// Adds a unit. Prologue, CTA 0 and epilogue are added first, in this order, and run in it.
    fn unit(
        &mut self,
        contracts: &[Contract],
        points: &Points<'_>,
        place: Place,
        list: Vec<Task>,
    ) -> Result<()> {
        let plan = points.plan;
        let mut unit = Unit {
            place,
            tasks: Vec::with_capacity(list.len()),
            agents: Vec::new(),
            running: 0,
            next: match place {
                Place::Prologue | Place::Cta(0) => Some(self.units.len() + 1),
                _ => None,
            },
            gated: matches!(place, Place::Cta(0) | Place::Epilogue),
            completed: Vec::new(),
        };
        let mut steps_before: Vec<i64> = Vec::new();
        for task in list {
            let family = &plan.families[task.family];
            let inner = match &family.inner {
                Some(_) => Some(points.inner(&task)?),
                None => None,
            };
            let mut one = UnitTask { task, inner, back: Vec::new(), context: None };
            let edges = contracts[one.task.family.index()].edges.iter();
            for (spec, edge) in edges.zip(&family.edges) {
                let Some(depth) = spec.depth else { continue };
                let EdgeSpec { from, to, per_task, .. } = *spec;
                let same = |c: &Completed| (c.from, c.to, c.per_task) == (from, to, per_task);
                let pair = unit.completed.iter().position(same).unwrap_or_else(|| {
                    unit.completed.push(Completed { from, to, per_task, steps: 0 });
                    steps_before.push(0);
                    unit.completed.len() - 1
                });
                one.back.push(BackPressure {
                    edge: edge.edge,
                    name: spec.name,
                    pair,
                    depth: i64::from(depth),
                    per_task,
                    base: steps_before[pair],
                });
                steps_before[pair] += one.steps(per_task);
            }
            unit.tasks.push(one);
        }
        for agent in Agent::ALL.iter().copied() {
            // The hosts' proxy threads belong to no CTA.
            if matches!(agent, Agent::Sender | Agent::Receiver) {
                continue;
            }
            let has = |t: &UnitTask| contracts[t.task.family.index()].agents.contains(&agent);
            let list: Vec<usize> = (0..unit.tasks.len()).filter(|i| has(&unit.tasks[*i])).collect();
            if list.is_empty() {
                continue;
            }
            unit.agents.push(self.agents.len());
            self.agents.push(AgentRun {
                agent,
                unit: self.units.len(),
                list,
                at: 0,
                phase: 0,
                state: State::Begin,
                stores: Vec::new(),
                buffered: Vec::new(),
                deferred: Vec::new(),
                deaf: Vec::new(),
                early: false,
                ahead: Vec::new(),
                blocked: None,
            });
        }
        unit.running = unit.agents.len();
        self.units.push(unit);
        Ok(())
    }
}

/// Takes the points of a family's domain from the budget, before anything is allocated for them.
fn count(
    points: &Points<'_>,
    family: FamId,
    rank: usize,
    epoch: i64,
    budget: &mut u64,
) -> Result<()> {
    fn nest(points: &Points<'_>, task: &mut Task, depth: usize, budget: &mut u64) -> Result<()> {
        let Some(left) = budget.checked_sub(1) else {
            return Err(SimError::TooLarge {
                what: format!("tasks of one launch on all ranks, up to {}", task.family),
                wanted: MAX_TASKS + 1,
                limit: MAX_TASKS,
            });
        };
        *budget = left;
        let Some((_, extent)) = points.plan.families[task.family].domain.get(depth) else {
            return Ok(());
        };
        let n = points.eval(task, extent)?.max(0);
        for i in 0..n {
            task.vars[Var::domain(depth).0 as usize] = i;
            nest(points, task, depth + 1, budget)?;
        }
        Ok(())
    }
    let n = points.plan.families[family].domain.len();
    let mut vars = vec![0; Var::DOMAIN as usize + n];
    vars[Var::RANK.0 as usize] = rank as i64;
    vars[Var::EPOCH.0 as usize] = epoch;
    nest(points, &mut Task { family, vars }, 0, budget)
}

/// [`Points::for_each`] for at most [`MAX_REPEAT`] repetitions.
pub(super) fn repeat(
    points: &Points<'_>,
    task: &Task,
    inner: i64,
    each: Option<&mk_plan::Each>,
    when: Option<&mk_plan::Expr>,
    f: impl FnMut(&Task) -> Result<()>,
) -> Result<()> {
    if let Some(each) = each {
        let mut at = task.clone();
        at.vars[Var::INNER.0 as usize] = inner;
        let n: Result<i64, PointError> = points.eval(&at, &each.extent);
        let n = n?.max(0) as u64;
        if n > MAX_REPEAT {
            return Err(SimError::TooLarge {
                what: format!("repetitions of `each {}` in {}", each.var, task.family),
                wanted: n,
                limit: MAX_REPEAT,
            });
        }
    }
    points.for_each(task, inner, each, when, f)
}
