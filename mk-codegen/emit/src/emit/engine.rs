//! What the host has copy engines do beside the kernel.
//!
//! A copy engine has neither signals that it could wait for nor counters that it could raise, in a graph least of all,
//! whose operations hold the values that they were captured with. So its waits and posts become three things that
//! streams do have:
//!
//! - Its waits, which may only be for the ranks' entries, are made by a warp of the kernel, which leaves the epoch in a
//!   word and then sets another to 1, for which the engine's stream waits. Nothing but the order in which they are
//!   enqueued puts the kernel before that wait, and a graph does not keep it. So in a captured launch they are made by
//!   a kernel of one CTA before the kernel and the copies, the *gate*.
//! - A post to a peer is a copy of the epoch behind the data: a word that one task raises once in a launch counts
//!   launches.
//! - A post that only the plan's epilogue waits for is the end of the engine's stream, for which the caller's waits.

use super::{EmitError, Result, context::Emitter, layout::At};
use minijinja::{Value, context};
use mk_abi::{HostOp, HostProgram};
use mk_plan::{
    Access, Agent, BufId, Expr, FamId, Family, Operand, Point, Post, Region, RoleKind, SigId, Task,
    Var,
};
use std::collections::HashMap;

/// Entry point of the gate.
const GATE: &str = "mk_gate";
/// Its threads: a warp announces, another waits.
const GATE_THREADS: u32 = 64;

/// Whether a plan has copy engines work.
pub(super) fn used(e: &Emitter<'_>) -> bool {
    e.plan.families.values().any(|f| f.leaf.is_host_copy())
}

fn copies<'e>(e: &'e Emitter<'_>) -> impl Iterator<Item = (FamId, &'e Family)> {
    e.plan.families.iter().filter(|(_, f)| f.leaf.is_host_copy())
}

/// Whether a signal is for those alone who end a launch.
fn ends_launch(e: &Emitter<'_>, signal: SigId) -> bool {
    let waits = |f: &Family| f.waits.iter().any(|w| w.signal == signal);
    let mut readers = e.plan.families.values().filter(|f| waits(f)).peekable();
    readers.peek().is_some() && readers.all(|f| e.plan.roles[f.role].kind == RoleKind::Epilogue)
}

/// What the gate is rendered with.
///
/// # Errors
/// For waits of an engine that are not for all entries.
pub(super) fn gate(e: &Emitter<'_>) -> Result<Option<Value>> {
    if !used(e) {
        return Ok(None);
    }
    let mut waits = Vec::new();
    for (_, f) in copies(e) {
        for w in &f.waits {
            let world = Expr::from(e.plan.mesh.size() as i32);
            let all = w.index == [Expr::Var(Var::EACH)]
                && w.each.as_ref().is_some_and(|each| each.extent == world)
                && (w.at, w.lag, w.when.is_none()) == (Point::Start, 0, true);
            if !all || !e.is_entry(w.signal) {
                let what = "a copy engine can only wait until all ranks have entered the launch";
                return EmitError::refuse(&f.name, what);
            }
            waits.push(w.edge.to_string());
        }
    }
    Ok(Some(context! { name => GATE, threads => GATE_THREADS, waits }))
}

/// What the host does for every rank: the copies of its engine in their order, each with the words that it raises.
///
/// # Errors
/// For copies and posts that streams cannot make.
pub(super) fn program(e: &Emitter<'_>) -> Result<Option<HostProgram>> {
    check_ends(e)?;
    if !used(e) {
        return Ok(None);
    }
    let mut ranks = Vec::new();
    let mut raised = HashMap::new();
    for rank in 0..e.plan.mesh.size() as usize {
        let mut list = vec![HostOp::AwaitEntry];
        for (id, f) in copies(e) {
            for task in e.points.tasks(id, rank, 1)? {
                let ops = copy(e, f, &task)?;
                for op in &ops {
                    if let HostOp::Raise { rank, word } = op {
                        *raised.entry((*rank, *word)).or_insert(0) += 1;
                    }
                }
                list.extend(ops);
            }
        }
        ranks.push(list);
    }
    if let Some(((rank, word), n)) = raised.into_iter().find(|(_, n)| *n > 1) {
        let what = format!(
            "word {word} of rank {rank} is raised {n} times in a launch; a copy engine can only count launches"
        );
        return EmitError::refuse("copy_engine", what);
    }
    Ok(Some(HostProgram { gate: GATE.into(), gate_threads: GATE_THREADS, ranks }))
}

/// Families of the epilogue wait for engines, and do nothing else.
fn check_ends(e: &Emitter<'_>) -> Result<()> {
    let role = |f: &Family| e.plan.roles[f.role].kind;
    for f in e.plan.families.values().filter(|f| role(f) == RoleKind::Epilogue) {
        let by_engine = |signal| {
            let posts = e.plan.families.values().flat_map(|f| &f.posts);
            posts.filter(|p| p.signal == signal).all(|p| p.by == Agent::Engine)
        };
        let only_waits = f.posts.is_empty() && f.waits.iter().all(|w| w.lag == 0);
        // A post that others wait for, too, is made in memory, and the end of the stream says nothing of it.
        let stands = |signal| by_engine(signal) && ends_launch(e, signal);
        if !only_waits || !f.waits.iter().all(|w| stands(w.signal)) {
            let what = "the end of a launch can only wait for its copy engines";
            return EmitError::refuse(&f.name, what);
        }
    }
    Ok(())
}

/// A task's copy, if there is something to copy, and behind it the words that it raises.
fn copy(e: &Emitter<'_>, f: &Family, task: &Task) -> Result<Vec<HostOp>> {
    let (src, dst) = (e.access(f, Operand::Src)?, e.access(f, Operand::Dst)?);
    let extents = |a: &Access| {
        let b = &e.plan.buffers[a.buffer];
        let region = a.region.iter().flat_map(|(from, len)| [from, len]);
        region.chain(&b.shape).cloned().collect::<Vec<_>>()
    };
    let mut of_launch = e.plan.dims.iter().filter(|(_, d)| d.runtime_max.is_some());
    let all: Vec<_> = [src, dst].into_iter().flat_map(extents).collect();
    if of_launch.any(|(id, _)| all.iter().any(|x| x.names_dim(id))) {
        let what = "what a copy engine copies cannot depend on a dimension of the launch";
        return EmitError::refuse(&f.name, what);
    }
    if src.each.is_some() || dst.each.is_some() || f.inner.is_some() {
        let what = "a copy engine copies one place to one place";
        return EmitError::refuse(&f.name, what);
    }
    let range = |a: &Access| match e.points.region(task, a)? {
        Some(region) => Ok(Some((region.rank, contiguous(e, f, &region)?))),
        None => Ok::<_, EmitError>(None),
    };
    let mut raises = Vec::new();
    for p in &f.posts {
        raise(e, f, p, task, &mut raises)?;
    }
    let (Some((_, from)), Some((rank, to))) = (range(src)?, range(dst)?) else {
        return Ok(raises);
    };
    let own = src.rank == Expr::Var(Var::RANK);
    let (At::Tensor(tensor), At::Symmetric(at), true) =
        (at(e, src.buffer), at(e, dst.buffer), own && from.1 == to.1)
    else {
        let what = "a copy engine copies from a caller's tensor to as much symmetric memory";
        return EmitError::refuse(&f.name, what);
    };
    let copied = HostOp::Copy {
        tensor,
        from_bytes: from.0,
        to_rank: rank as u32,
        to_bytes: at + to.0,
        bytes: from.1,
    };
    let copied = (from.1 > 0).then_some(copied);
    Ok(copied.into_iter().chain(raises).collect())
}

fn at(e: &Emitter<'_>, buffer: BufId) -> At {
    e.layout.buffers[buffer].at
}

/// Adds the words that a post of a task raises, unless the end of the stream stands for them.
fn raise(e: &Emitter<'_>, f: &Family, p: &Post, task: &Task, out: &mut Vec<HostOp>) -> Result<()> {
    let refuse = |what: &str| EmitError::unsupported(f.name.clone(), what);
    if p.by != Agent::Engine || p.at != Point::End {
        return Err(refuse("a copy engine's posts are its own, at the end of a copy"));
    }
    if ends_launch(e, p.signal) {
        if p.rank != Expr::Var(Var::RANK) {
            return Err(refuse("a launch ends when its own copy engine is through"));
        }
        return Ok(());
    }
    let only = e.plan.families.values().flat_map(|f| &f.posts).filter(|q| q.signal == p.signal);
    if only.count() > 1 {
        return Err(refuse("what a copy engine raises, nobody else may"));
    }
    e.points.for_each(task, 0, p.each.as_ref(), p.when.as_ref(), |at| {
        if e.points.eval(at, &p.add)? != 1 {
            return Err(refuse("a copy engine adds one"));
        }
        let rank = e.points.rank(at, &p.rank)?;
        let shape = e.points.signal_shape(p.signal, rank)?;
        let mut word = 0;
        for (index, extent) in p.index.iter().zip(&shape) {
            word = word * extent + e.points.eval(at, index)?;
        }
        let word = e.layout.signals[p.signal] + word.max(0) as u64;
        out.push(HostOp::Raise { rank: rank as u32, word });
        Ok(())
    })
}

/// First byte and length of a region that has no gaps.
fn contiguous(e: &Emitter<'_>, f: &Family, region: &Region) -> Result<(u64, u64)> {
    let shape = e.points.shape(region.buffer, region.rank)?;
    let pitch = e.points.pitch(region.buffer, region.rank)?;
    let last = shape.len() - 1;
    let cut = region.dims.iter().position(|(_, len)| *len != 1).unwrap_or(last);
    let whole = |d: usize| region.dims[d] == (0, shape[d]) && (d < last || pitch == shape[d]);
    let mut stride = 1;
    let mut first = 0;
    for d in (0..=last).rev() {
        first += region.dims[d].0 * stride;
        stride *= if d == last { pitch } else { shape[d] };
    }
    if (cut + 1..=last).any(|d| !whole(d)) {
        let what = format!("a copy engine copies whole rows of {}, without gaps", region.buffer);
        return EmitError::refuse(&f.name, what);
    }
    let size = e.plan.buffers[region.buffer].dtype.size_bytes();
    Ok((first.max(0) as u64 * size, region.len().max(0) as u64 * size))
}
