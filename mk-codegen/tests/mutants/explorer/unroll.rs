//! The plan at concrete points: tasks of every rank and epoch, with their accesses, waits and posts.

use mk_codegen::plan::{
    self, Agent, BufId, Completion, Contract, EdgeId, Entity, FamId, Mode, Operand, Plan, Point,
    PointError, Points, Proxy, RoleKind, Schedule, Scope, SigId, TableSet, Var,
};
use std::collections::HashMap;

/// One repetition of an access that touches something.
pub struct Touch {
    pub agent: usize,
    pub proxy: Proxy,
    pub mode: Mode,
    pub step: u32,
    pub rank: usize,
    pub buffer: BufId,
    pub dims: Vec<(i64, i64)>,
    pub version: i64,
}

pub struct Await {
    pub agent: usize,
    pub step: u32,
    pub word: u32,
    pub least: i64,
    pub proxy: Proxy,
    pub scope: Scope,
}

pub struct Raise {
    pub agent: usize,
    pub step: u32,
    pub word: u32,
    pub add: i64,
    pub after: Completion,
    pub scope: Scope,
}

pub struct Task {
    pub family: FamId,
    pub rank: usize,
    pub epoch: i64,
    /// Number in its family.
    pub linear: i64,
    /// `start`, the iterations, `end`.
    pub steps: u32,
    pub domain: Vec<i64>,
    /// CTA (the copy engine's comes after them), and part of its program: before, in, after its own role.
    pub place: (usize, u8),
    pub touches: Vec<Touch>,
    pub waits: Vec<Await>,
    pub posts: Vec<Raise>,
}

/// A plan at all points of a few epochs.
pub struct Unrolled<'p> {
    pub plan: &'p Plan,
    pub contracts: Vec<Contract>,
    pub ranks: usize,
    pub epochs: i64,
    /// By epoch, then rank, then role order.
    pub tasks: Vec<Task>,
    /// Home of each word.
    pub words: Vec<usize>,
    dealing: usize,
}

impl<'p> Unrolled<'p> {
    /// Unrolls; `tables` are those of the epochs, and of the later ones in turn. Of tasks for whoever is free the first CTA has all, or,
    /// where `dealing` is not 0, any CTA each, which depends on it.
    pub fn new(
        plan: &'p Plan,
        tables: &[TableSet],
        dealing: usize,
    ) -> Result<Unrolled<'p>, String> {
        let epochs = if mentions_epoch(plan) { 4 } else { 3 };
        let mut u = Unrolled {
            plan,
            contracts: plan.families.values().map(|x| x.leaf.contract()).collect(),
            ranks: plan.mesh.size() as usize,
            epochs,
            tasks: Vec::new(),
            words: Vec::new(),
            dealing,
        };
        let mut known = HashMap::new();
        for epoch in 1..=epochs {
            let points = Points::new(plan, &tables[epoch as usize % tables.len()]);
            for rank in 0..u.ranks {
                u.kernel(&points, rank, epoch, &mut known)?;
            }
        }
        Ok(u)
    }

    fn kernel(
        &mut self,
        points: &Points<'_>,
        rank: usize,
        epoch: i64,
        known: &mut HashMap<(usize, SigId, Vec<i64>), u32>,
    ) -> Result<(), String> {
        let mut first = 0;
        let all = self.plan.roles.values().map(|r| r.ctas as usize).sum::<usize>();
        for (role, r) in self.plan.roles.iter() {
            let mut n = 0;
            let mut mine = self.plan.families.values().filter(|x| x.role == role);
            let queued = mine.any(|x| x.schedule == Schedule::Dynamic);
            let ctas = r.ctas.max(1) as usize;
            for (family, x) in self.plan.families.iter().filter(|x| x.1.role == role) {
                for t in points.tasks(family, rank, epoch).map_err(text)? {
                    let taker = match (self.dealing, x.schedule) {
                        (0, _) if queued => 0,
                        (0, _) | (_, Schedule::Static) => n % ctas,
                        (seed, Schedule::Dynamic) => {
                            let place = (n + 131 * rank + 17 * epoch as usize + 1) * (2 * seed + 1);
                            place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
                        }
                    };
                    let place = match r.kind {
                        RoleKind::Prologue => (0, 0),
                        RoleKind::Epilogue => (0, 2),
                        RoleKind::CopyEngine => (all, 1),
                        _ => (first + taker % ctas, 1),
                    };
                    n += 1;
                    let task = self.task(points, &t, place, known)?;
                    self.tasks.push(task);
                }
            }
            first += r.ctas as usize;
        }
        Ok(())
    }

    fn task(
        &mut self,
        points: &Points<'_>,
        t: &plan::Task,
        place: (usize, u8),
        known: &mut HashMap<(usize, SigId, Vec<i64>), u32>,
    ) -> Result<Task, String> {
        let x = &self.plan.families[t.family];
        let contract = self.contracts[t.family.index()].clone();
        let agent = |a: Agent| contract.agents.iter().position(|b| *b == a).unwrap_or(0);
        let inner = if x.inner.is_some() { points.inner(t).map_err(text)? as u32 } else { 0 };
        let mut out = Task {
            family: t.family,
            rank: t.rank(),
            epoch: t.epoch(),
            linear: t.linear(),
            steps: inner + 2,
            domain: t.domain().to_vec(),
            place,
            touches: Vec::new(),
            waits: Vec::new(),
            posts: Vec::new(),
        };
        for a in &x.accesses {
            let Some(spec) = contract.operand(a.operand) else { continue };
            for (step, i) in steps(a.at, inner) {
                points
                    .for_each(t, i, a.each.as_ref(), a.when.as_ref(), |at| {
                        if let Some(r) = points.region(at, a)? {
                            out.touches.push(Touch {
                                agent: agent(spec.agent),
                                proxy: spec.proxy,
                                mode: a.mode,
                                step,
                                rank: r.rank,
                                buffer: r.buffer,
                                dims: r.dims,
                                version: r.version,
                            });
                        }
                        Ok::<(), PointError>(())
                    })
                    .map_err(text)?;
            }
        }
        for touch in &out.touches {
            let shape = points.shape(touch.buffer, touch.rank).map_err(text)?;
            let inside = touch.dims.iter().zip(&shape).all(|((b, l), n)| *b >= 0 && b + l <= *n);
            if !inside {
                return Err(format!("outside: {} is {shape:?}", self.touch_name(&out, touch)));
            }
        }
        let mut named: Vec<(usize, SigId, Vec<i64>, EdgeId)> = Vec::new();
        for w in &x.waits {
            for (step, i) in steps(w.at, inner) {
                points
                    .for_each(t, i, w.each.as_ref(), w.when.as_ref(), |at| {
                        let index = values(points, at, &w.index)?;
                        named.push((t.rank(), w.signal, index, w.edge));
                        let epochs = (t.epoch() - i64::from(w.lag)).max(0);
                        out.waits.push(Await {
                            agent: agent(w.by),
                            step,
                            word: 0,
                            least: epochs * points.eval(at, &w.count)?,
                            proxy: w.proxy,
                            scope: w.scope,
                        });
                        Ok::<(), PointError>(())
                    })
                    .map_err(text)?;
            }
        }
        for (w, (rank, sig, index, edge)) in out.waits.iter_mut().zip(named) {
            w.word = self.word(points, known, (rank, sig, index), edge)?;
        }
        let mut named: Vec<(usize, SigId, Vec<i64>, EdgeId)> = Vec::new();
        for p in &x.posts {
            let dst = x.accesses.iter().find(|a| a.operand == Operand::Dst);
            if let (Agent::Receiver, Some(dst)) = (p.by, dst) {
                // The receiving host is on the rank that the data goes to, and reaches no other.
                if points.rank(t, &dst.rank) != points.rank(t, &p.rank) {
                    return Err(format!("outside: {} is not on the receiver's rank", p.edge));
                }
            }
            for (step, i) in steps(p.at, inner) {
                points
                    .for_each(t, i, p.each.as_ref(), p.when.as_ref(), |at| {
                        let add = points.eval(at, &p.add)?;
                        let rank = points.rank(at, &p.rank)?;
                        let index = values(points, at, &p.index)?;
                        if add != 0 {
                            named.push((rank, p.signal, index, p.edge));
                            out.posts.push(Raise {
                                agent: agent(p.by),
                                step,
                                word: 0,
                                add,
                                after: p.after,
                                scope: p.scope,
                            });
                        }
                        Ok::<(), PointError>(())
                    })
                    .map_err(text)?;
            }
        }
        for (p, (rank, sig, index, edge)) in out.posts.iter_mut().zip(named) {
            p.word = self.word(points, known, (rank, sig, index), edge)?;
        }
        Ok(out)
    }

    fn word(
        &mut self,
        points: &Points<'_>,
        known: &mut HashMap<(usize, SigId, Vec<i64>), u32>,
        name: (usize, SigId, Vec<i64>),
        edge: EdgeId,
    ) -> Result<u32, String> {
        if let Some(word) = known.get(&name) {
            return Ok(*word);
        }
        let shape = points.signal_shape(name.1, name.0).map_err(text)?;
        let inside = name.2.iter().zip(&shape).all(|(i, n)| (0..*n).contains(i));
        if !inside {
            return Err(format!("outside: {edge} names {}{:?}, of {shape:?}", name.1, name.2));
        }
        let word = self.words.len() as u32;
        self.words.push(name.0);
        known.insert(name, word);
        Ok(word)
    }

    pub fn contract(&self, task: &Task) -> &Contract {
        &self.contracts[task.family.index()]
    }
    pub fn agent(&self, task: &Task, agent: usize) -> Agent {
        self.contract(task).agents[agent]
    }

    pub fn task_name(&self, t: &Task) -> String {
        let name = &self.plan.families[t.family].name;
        format!("{} {name:?} {:?} of rank {}, epoch {}", t.family, t.domain, t.rank, t.epoch)
    }

    pub fn touch_name(&self, task: &Task, t: &Touch) -> String {
        let (mode, buffer) = (t.mode.name(), &self.plan.buffers[t.buffer].name);
        format!("{} {mode}s {buffer:?} {:?} @ {}", self.task_name(task), t.dims, t.rank)
    }
}

fn steps(at: Point, inner: u32) -> Vec<(u32, i64)> {
    match at {
        Point::Start => vec![(0, 0)],
        Point::Inner => (0..inner).map(|i| (i + 1, i64::from(i))).collect(),
        Point::End => vec![(inner + 1, i64::from(inner))],
    }
}

fn values(p: &Points<'_>, at: &plan::Task, list: &[plan::Expr]) -> Result<Vec<i64>, PointError> {
    list.iter().map(|e| p.eval(at, e)).collect()
}

fn text(e: PointError) -> String {
    format!("no value: {e}")
}

fn mentions_epoch(plan: &Plan) -> bool {
    let of = |x: &plan::Family| {
        let regions = x.accesses.iter().flat_map(|a| a.region.iter().flat_map(|r| [&r.0, &r.1]));
        let index =
            x.waits.iter().flat_map(|w| &w.index).chain(x.posts.iter().flat_map(|p| &p.index));
        regions.chain(index).any(|e| e.mentions(Var::EPOCH))
    };
    plan.families.values().any(of)
}
