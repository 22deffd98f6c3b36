//! What a plan may say and no template carries out: the emitter would drop it, or print something else.

use super::{
    EmitError, Result,
    arch::{Arch, carrier},
    error::Refused,
    leaf::Carrier,
    nodes,
};
use mk_abi::device::MAX_RUNTIME_DIMS;
use mk_plan::{
    Access, BufId, CopyTile, CopyVia, Expr, FamId, Family, Leaf, Operand, Plan, Points, Post,
    QuantTile, RoleKind, Scope, Space, StructureError, TableSet, Var,
};

/// Names that the templates give to their own variables, around expressions of the plan.
const TAKEN: &[&str] =
    &["step", "source", "destination_", "begin_", "row_", "contribution_", "item_"];

/// Notes everything that is said above.
///
/// # Errors
/// Where an expression has no value.
pub(super) fn check(plan: &Plan, refused: &mut Refused) -> Result<()> {
    refused.note(Arch::of(plan).map(|_| ()))?;
    refused.note(nodes::check(plan))?;
    misplaced(plan.check_elements().err().unwrap_or_default(), refused)?;
    refused.note(dims(plan))?;
    for (id, t) in plan.tables.iter().filter(|(_, t)| t.stored.is_none()) {
        let what = "a kernel has tables in memory only";
        refused.note::<()>(EmitError::refuse(format!("{id} {:?}", t.name), what))?;
    }
    for id in plan.buffers.keys() {
        refused.note(rows(plan, id))?;
    }
    for (id, f) in plan.families.iter() {
        let place = format!("{id} {:?}", f.name);
        refused.note(carried(plan, f, &place))?;
        refused.note(looked_up(plan, f))?;
        refused.note(own_rows(plan, f))?;
        refused.note(names(f, &place))?;
        // The host evaluates what its copy engines do, for every rank.
        if !f.leaf.is_host_copy() {
            refused.note(accesses(plan, f, &place))?;
            refused.note(posts(plan, f, &place))?;
        }
    }
    refused.note(entry(plan))?;
    // Accesses, waits and posts stand where the leaf's templates carry them out.
    misplaced(plan.check_points().err().unwrap_or_default(), refused)?;
    let tables = TableSet::example(plan);
    misplaced(Points::new(plan, &tables).rows_for_tma()?, refused)
}

fn misplaced(
    errors: impl IntoIterator<Item = StructureError>,
    refused: &mut Refused,
) -> Result<()> {
    for error in errors {
        refused.note::<()>(EmitError::refuse(error.place, error.message))?;
    }
    Ok(())
}

/// Dimensions that come with each launch.
fn dims(plan: &Plan) -> Result<()> {
    let runtime = || plan.dims.iter().filter(|(_, d)| d.runtime_max.is_some());
    if let Some((id, d)) = runtime().find(|(_, d)| d.runtime_max != Some(d.value)) {
        let what =
            format!("{} must be at its bound: the kernel is the same for every value", d.name);
        return EmitError::refuse(id.to_string(), what);
    }
    if let Some((id, d)) = runtime().nth(MAX_RUNTIME_DIMS) {
        let what = format!("{} is one run-time dimension more than {MAX_RUNTIME_DIMS}", d.name);
        return EmitError::refuse(id.to_string(), what);
    }
    Ok(())
}

/// What the host encodes of the workspace, it encodes once.
fn rows(plan: &Plan, id: BufId) -> Result<()> {
    let b = &plan.buffers[id];
    let runtime =
        |e: &Expr| plan.dims.iter().any(|(dim, d)| d.runtime_max.is_some() && e.names_dim(dim));
    let mut row = b.pitch.iter().chain(b.shape.last()).filter(|_| b.shape.len() > 1);
    if !matches!(b.space, Space::In | Space::Out) && row.any(runtime) {
        let what = "its rows are as long in every launch: give them the bound";
        return EmitError::refuse(format!("{id} {:?}", b.name), what);
    }
    Ok(())
}

/// Whether a template or the host runs a family in its role, and its expressions can be emitted.
fn carried(plan: &Plan, f: &Family, place: &str) -> Result<()> {
    let kind = plan.roles[f.role].kind;
    let known = match carrier(plan, f) {
        Carrier::Agents(_) => match (&f.leaf, kind) {
            // What ends a launch surrounds the roles.
            (Leaf::Signal, RoleKind::Epilogue | RoleKind::InterReduce) => true,
            (Leaf::NicSend, RoleKind::InterSend) => true,
            (Leaf::CopyTile(_), RoleKind::InterSend) => true,
            (Leaf::Signal | Leaf::NicSend, _) => false,
            _ => matches!(kind, RoleKind::Compute | RoleKind::IntraComm),
        },
        Carrier::Frame if f.leaf.enters() => kind == RoleKind::Prologue,
        Carrier::Frame => kind == RoleKind::Epilogue,
        Carrier::Host => kind == RoleKind::CopyEngine,
        Carrier::Nobody => false,
    };
    if !known {
        let what = format!("no template runs {} in role {}", f.leaf.name(), kind.name());
        return EmitError::refuse(place, what);
    }
    if f.emitted().iter().any(|e| e.mentions(Var::EPOCH)) {
        return EmitError::refuse(place, "expressions over `epoch` are not emitted");
    }
    Ok(())
}

/// Whether a template looks up what a family does.
fn looked_up(plan: &Plan, f: &Family) -> Result<()> {
    let looks = match f.leaf {
        Leaf::MmaTile(_)
        | Leaf::DotTile(_)
        | Leaf::SwigluGradTile(_)
        | Leaf::NicSend
        | Leaf::CopyTile(CopyTile { via: CopyVia::Gather, .. }) => true,
        Leaf::ReduceTile(_) => f.inner.is_some(),
        _ => false,
    };
    let asks = |a: &Access| plan.meeting(a.when.as_ref()).is_some();
    if f.accesses.iter().any(asks) {
        let bulk = matches!(f.leaf, Leaf::CopyTile(CopyTile { via: CopyVia::Bulk, .. }));
        let beside = Family {
            accesses: f.accesses.iter().map(|a| plan.whether_or_not(a)).collect(),
            ..f.clone()
        };
        if !(bulk || plan.knows_meetings(f)) || plan.looks_up(&beside) {
            let what = format!("no template of {} asks which parts meet", f.leaf.name());
            return EmitError::refuse(&f.name, what);
        }
        return Ok(());
    }
    if plan.looks_up(f) && !looks {
        let what = format!("no template of {} looks up what is in memory", f.leaf.name());
        return EmitError::refuse(&f.name, what);
    }
    Ok(())
}

/// Whether the templates of a family end where a rank's own rows do.
fn own_rows(plan: &Plan, f: &Family) -> Result<()> {
    let ends = |a: &Access| match f.leaf {
        Leaf::CopyTile(CopyTile { via: CopyVia::Ldst | CopyVia::Gather, .. }) => {
            a.operand == Operand::Src
        }
        Leaf::QuantTile(QuantTile { back: false, .. }) => a.operand == Operand::Src,
        Leaf::ReduceTile(_) => f.accesses.iter().any(|a| a.operand == Operand::W),
        Leaf::DotTile(_) => true,
        _ => false,
    };
    let own = |a: &&Access| plan.buffers.get(a.buffer).is_some_and(|b| b.own_rows);
    let rows = |a: &Access| a.region.len() == 2;
    match f.accesses.iter().filter(own).find(|a| !ends(a) || !rows(a)) {
        None => Ok(()),
        Some(a) => {
            let what = format!(
                "no template of {} ends where a rank's own rows of {} do",
                f.leaf.name(),
                a.buffer
            );
            EmitError::refuse(&f.name, what)
        }
    }
}

/// A loop variable must not stand in front of a constant of the kernel (`kDim_M`, `kSig0`), or of a template's
/// variable.
fn names(f: &Family, place: &str) -> Result<()> {
    let loops = f.domain.iter().chain(&f.inner).map(|(name, _)| name);
    let each = f.accesses.iter().map(|a| &a.each).chain(f.waits.iter().map(|w| &w.each));
    let each = each.chain(f.posts.iter().map(|p| &p.each)).flatten().map(|e| &e.var);
    let taken = |name: &&String| {
        let constant = name.strip_prefix('k').is_some_and(|n| n.starts_with(char::is_uppercase));
        constant || TAKEN.contains(&name.as_str())
    };
    let Some(name) = loops.chain(each).find(taken) else { return Ok(()) };
    let what = format!(
        "the loop variable `{name}` would hide a name of the kernel: use none of {TAKEN:?}, and none that begins with \
         `k` and a capital letter"
    );
    EmitError::refuse(place, what)
}

/// Whether extents depend on the rank, apart from the first, which flattening does not use.
fn differs<'e>(extents: impl IntoIterator<Item = &'e Expr>) -> bool {
    extents.into_iter().skip(1).any(|e| e.mentions(Var::RANK))
}

/// A kernel has the addresses of its own rank's tensors, and flattens with its own rank's extents.
fn accesses(plan: &Plan, f: &Family, place: &str) -> Result<()> {
    for a in f.accesses.iter().filter(|a| a.rank != Expr::Var(Var::RANK)) {
        let b = &plan.buffers[a.buffer];
        let what = if f.leaf.sends() && !differs(b.shape.iter().chain(&b.pitch)) {
            continue;
        } else if b.space != Space::Workspace && !f.leaf.sends() {
            "is the caller's: a kernel reaches it only `@ rank`, and peers' memory is workspace"
        } else if differs(b.shape.iter().chain(&b.pitch)) {
            "is another rank's, and only its first extent may depend on the rank"
        } else {
            continue;
        };
        let what = format!("{} {:?}, of operand `{}`, {what}", a.buffer, b.name, a.operand);
        return EmitError::refuse(place, what);
    }
    Ok(())
}

/// A post to another rank finds its word by the extents of the own one.
fn posts(plan: &Plan, f: &Family, place: &str) -> Result<()> {
    let own = Expr::Var(Var::RANK);
    let wrong = f.posts.iter().find(|p| p.rank != own && differs(&plan.signals[p.signal].shape));
    let Some(p) = wrong else { return Ok(()) };
    let what = format!(
        "{} posts {} to another rank, and only the first extent of that may depend on the rank",
        p.edge, p.signal
    );
    EmitError::refuse(place, what)
}

/// Whether a post goes to every rank whose memory is mapped, once.
fn announced(plan: &Plan, id: FamId, p: &Post) -> Result<bool> {
    let tables = TableSet::example(plan);
    let points = Points::new(plan, &tables);
    let world = plan.mesh.size() as usize;
    let local = plan.nic.and_then(|nic| nic.local).map_or(world, |local| local.max(1) as usize);
    for rank in 0..world {
        let mut to = Vec::new();
        for task in points.tasks(id, rank, 1)? {
            points.for_each::<EmitError>(&task, 0, p.each.as_ref(), None, |at| {
                to.push(points.rank(at, &p.rank)?);
                Ok(())
            })?;
        }
        to.sort_unstable();
        let first = rank / local * local;
        if !to.iter().copied().eq(first..first + local) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Ranks announce themselves in one way only: each raises its own word on every rank by one, and nobody else raises
/// these.
fn entry(plan: &Plan) -> Result<()> {
    let world = plan.mesh.size();
    let mut enter = plan.families.iter().filter(|(_, f)| f.leaf.enters());
    let Some((id, f)) = enter.next() else { return Ok(()) };
    let refuse = |id: FamId| {
        let what = format!(
            "ranks enter by one family with one post, `sig[rank] @ p += 1` at scope sys for each p in {world} (of the \
             node, where there are nodes), of a signal that nobody else posts, and without waits or loops"
        );
        EmitError::refuse(format!("{id} {:?}", plan.families[id].name), what)
    };
    if let Some((other, _)) = enter.next() {
        return refuse(other);
    }
    let ([p], true, true) = (f.posts.as_slice(), f.waits.is_empty(), f.domain.is_empty()) else {
        return refuse(id);
    };
    let word = p.index == [Expr::Var(Var::RANK)];
    let each = word && p.when.is_none() && announced(plan, id, p)?;
    if !each || p.add != Expr::Const(1) || p.scope != Scope::Sys {
        return refuse(id);
    }
    let posts = |f: &Family| f.posts.iter().any(|q| q.signal == p.signal);
    match plan.families.iter().find(|(other, f)| *other != id && posts(f)) {
        Some((other, _)) => refuse(other),
        None => Ok(()),
    }
}
