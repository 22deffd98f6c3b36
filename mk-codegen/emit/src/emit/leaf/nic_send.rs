//! Sends to other nodes: one lane of the grid writes commands into the fifo of its rank's host.

use super::record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups};
use crate::emit::{EmitError, Result, context::Emitter, spans, types::Slice};
use minijinja::{Value, context};
use mk_abi::device::NetCommandKind;
use mk_plan::{Access, Agent, Entity, Expr, Family, Operand, Point, Post, Var};

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "nic_send",
    texts: &[("nic_send", include_str!("../../../templates/leaf/nic_send.cu.j2"))],
    warpgroups: Warpgroups::MOVING,
    ring: None,
    agents: &[AgentEmission {
        agent: Agent::Issuer,
        seat: Seat::Lane(2),
        state: &["NetIssuer issuer{ctx};"],
        function: "net_issuer",
        arguments: "<@{ edges }@>(ctx, @{ name }@Hooks{params}, issuer);",
    }],
    spills: Spills::NONE,
    prepare,
};

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let plan = e.plan;
    let head = g.head(e);
    // Loops of a role share the fifo, and its edges: the first of them prints their names.
    let sends = |f: &&Family| f.role == head.role && f.leaf.sends();
    let first = plan.families.iter().find(|(_, f)| sends(f)).map(|(id, _)| id);
    if g.slices.iter().any(|s| plan.families[s.id].edges != head.edges) {
        let what = "sends of one role share the edges of the fifo";
        return EmitError::refuse(&head.name, what);
    }
    let name = g.name.trim_end_matches(|c: char| c.is_ascii_digit());
    let edges = format!("{name}FifoEdges");
    let internal: Vec<Value> = match first == Some(g.slices[0].id) {
        true => head
            .edges
            .iter()
            .map(|x| context! { name => x.name.clone(), edge => x.edge.to_string() })
            .collect(),
        false => Vec::new(),
    };
    let families = g.slices.iter().map(|s| send(e, *s)).collect::<Result<_, _>>()?;
    Ok(Prepared {
        families,
        hooks: context! { edges => edges.clone(), internal },
        call: context! { edges },
        workers: g.ctas,
        choices: Vec::new(),
    })
}

/// One family of sends.
fn send(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let (src, dst) = (e.access(f, Operand::Src)?, e.access(f, Operand::Dst)?);
    let own = Expr::Var(Var::RANK);
    if src.each.is_some() || dst.each.is_some() || src.rank != own {
        let what = "a send reads one place of its own rank and writes one of another";
        return EmitError::refuse(&f.name, what);
    }
    let enters = e.plan.enters_node(s.id);
    let kind = if enters { NetCommandKind::Enter } else { NetCommandKind::Send };
    let none = || "0".to_string();
    let (from, to, bytes) = match enters {
        true => (none(), none(), none()),
        false => (place(e, f, src)?, place(e, f, dst)?, bytes(e, f, src)),
    };
    // The tables of a length are complete behind the task's waits, not before.
    let looked_up = e.plan.looks_up(f).then(|| bytes.clone());
    let bytes = if looked_up.is_some() { none() } else { bytes };
    let remote = |p: &&Post| p.rank != own;
    let local = |p: &&Post| p.rank == own;
    let (there, here) = (one(f, remote)?, one(f, local)?);
    let record = there.filter(|_| e.options.trace).map(|p| spans::send(p.edge));
    Ok(context! {
        kind => kind as u32,
        from,
        to,
        bytes,
        looked_up,
        peer => e.c(f, None, &dst.rank),
        remote => e.net_post(f, there)?,
        local => e.net_post(f, here)?,
        record,
        waits => e.waits(f, Agent::Issuer, Point::Start)?,
        ..e.slice(s)
    })
}

/// The post of a command at one end, if it has one.
fn one(f: &Family, end: impl Fn(&&Post) -> bool) -> Result<Option<&Post>> {
    let mut found = f.posts.iter().filter(end);
    match (found.next(), found.next()) {
        (post, None) => Ok(post),
        _ => {
            let what = "a command raises one word at either end";
            EmitError::refuse(&f.name, what)
        }
    }
}

/// The first byte of an access, in either rank's range.
fn place(e: &Emitter<'_>, f: &Family, a: &Access) -> Result<String> {
    let size = e.plan.buffers[a.buffer].dtype.size_bytes();
    let pitch = e.pitch_bytes(&f.name, a.buffer)?;
    let column = &a.region[a.region.len() - 1].0;
    Ok(format!(
        "kBuf{} + static_cast<u64>({}) * {pitch} + bytes_of({}, {size})",
        a.buffer.index(),
        e.c(f, None, &e.row(a)),
        e.c(f, None, column)
    ))
}

/// Bytes of a piece of memory; of none, where an extent is not positive.
fn bytes(e: &Emitter<'_>, f: &Family, a: &Access) -> String {
    let size = e.plan.buffers[a.buffer].dtype.size_bytes();
    let extents = a.region.iter().map(|(_, n)| match n {
        Expr::Const(n) => n.max(&0).to_string(),
        n => format!("max_i(0, {})", e.c(f, None, n)),
    });
    format!("static_cast<u32>({} * {size})", extents.collect::<Vec<_>>().join(" * "))
}
