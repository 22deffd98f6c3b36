//! Tables that a kernel fills: by ordinary loads and stores of all computing threads.

use super::record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups};
use crate::emit::{context::Emitter, error::EmitError, types::Slice};
use crate::ir::{Access, Agent, Expr, Family, Leaf, Operand, Point, Tabulation, Var};
use minijinja::{Value, context};
use mk_abi::DType;

/// Blocks of the rows of groups.
pub(in crate::emit) const EMISSION: LeafEmission = emission(blocks);
/// Rows of groups.
pub(in crate::emit) const COUNTS: LeafEmission = emission(counts);
/// Tokens of the rows of blocks.
pub(in crate::emit) const TOKENS: LeafEmission = emission(tokens);

type Prepare = fn(&mut Emitter<'_>, &Group) -> Result<Prepared, EmitError>;

const fn emission(prepare: Prepare) -> LeafEmission {
    LeafEmission {
        template: "tabulate",
        texts: &[
            ("tabulate", include_str!("../../../../templates/leaf/tabulate.cu.j2")),
            ("schedule", include_str!("../../../../templates/leaf/schedule.cu.j2")),
        ],
        warpgroups: Warpgroups::MOVING,
        ring: None,
        agents: &[AgentEmission {
            agent: Agent::Copier,
            seat: Seat::Computing,
            state: &[],
            function: "tabulate_tasks",
            arguments: "<2 * kWarpgroupThreads, 2, @{ name }@Edges>(ctx, @{ name }@Hooks{params}, threadIdx.x - kWarpgroupThreads);",
        }],
        spills: Spills::NONE,
        prepare,
    }
}

fn blocks(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared, EmitError> {
    prepare(e, g, ["BlocksTask", "tabulate_blocks"], of_blocks)
}

fn counts(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared, EmitError> {
    prepare(e, g, ["CountsTask", "count_rows"], of_counts)
}

fn tokens(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared, EmitError> {
    prepare(e, g, ["TokensTask", "list_tokens"], of_tokens)
}

/// What a task has behind its number and its family's, as C.
type Values = fn(&Emitter<'_>, &Family) -> Result<Vec<String>, EmitError>;

fn prepare(
    e: &Emitter<'_>,
    g: &Group,
    [task, function]: [&str; 2],
    values: Values,
) -> Result<Prepared, EmitError> {
    let family = |s: &Slice| {
        let f = &e.plan.families[s.id];
        Ok(context! {
            values => values(e, f)?,
            load_waits => e.waits(f, Agent::Copier, Point::Start)?,
            posts => e.posts(f),
            ..e.slice(*s)
        })
    };
    let families = g.slices.iter().map(family).collect::<Result<Vec<Value>, EmitError>>()?;
    let (hooks, call) = (context! { task, function }, context! {});
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// An operand: integers of the own rank, of so many dimensions; whole, unless it is `part` of a buffer of one.
fn integers<'p>(
    e: &Emitter<'p>,
    f: &'p Family,
    operand: Operand,
    dims: usize,
    part: bool,
) -> Result<&'p Access, EmitError> {
    let a = e.access(f, operand)?;
    let own = a.rank == Expr::Var(Var::RANK) && a.each.is_none() && a.when.is_none();
    let integers = e.plan.buffers[a.buffer].dtype == DType::I32;
    let starts = part || a.region.iter().all(|(base, _)| *base == Expr::Const(0));
    if !own || !integers || !starts || a.region.len() != dims {
        let what = "what tables are made of, and tables, are whole buffers of integers";
        return Err(EmitError::unsupported(f.name.clone(), what));
    }
    Ok(a)
}

fn of_blocks(e: &Emitter<'_>, f: &Family) -> Result<Vec<String>, EmitError> {
    let Leaf::Tabulate { of: Tabulation::Blocks { rows } } = f.leaf else {
        return Err(EmitError::internal(
            "emit/leaf/tabulate.rs",
            format!("{} is no table", f.name),
        ));
    };
    let counts = integers(e, f, Operand::Src, 1, false)?;
    let blocks = integers(e, f, Operand::Dst, 2, false)?;
    if blocks.region[1].1 != Expr::Const(2) {
        return Err(EmitError::unsupported(f.name.clone(), "a block has a group and rows"));
    }
    Ok(vec![
        e.base(counts.buffer, "params.header.rank"),
        e.base(blocks.buffer, "params.header.rank"),
        e.c(f, None, &counts.region[0].1),
        e.c(f, None, &blocks.region[0].1),
        rows.to_string(),
    ])
}

/// The part of a table, as an address.
fn part(e: &Emitter<'_>, f: &Family, a: &Access) -> String {
    let base = e.base(a.buffer, "params.header.rank");
    format!("{base} + static_cast<u64>({}) * 4", e.c(f, None, &a.region[0].0))
}

fn unsigned(e: &Emitter<'_>, f: &Family, x: &Expr) -> String {
    format!("static_cast<u32>({})", e.c(f, None, x))
}

fn of_counts(e: &Emitter<'_>, f: &Family) -> Result<Vec<String>, EmitError> {
    let Leaf::Tabulate { of: Tabulation::Counts { groups } } = f.leaf else {
        return Err(EmitError::internal(
            "emit/leaf/tabulate.rs",
            format!("{} is no table", f.name),
        ));
    };
    let ids = integers(e, f, Operand::Src, 2, false)?;
    let counts = integers(e, f, Operand::Dst, 1, true)?;
    let (first, n) = &counts.region[0];
    Ok(vec![
        e.base(ids.buffer, "params.header.rank"),
        part(e, f, counts),
        e.c(f, None, &ids.region[0].1),
        e.c(f, None, &ids.region[1].1),
        groups.to_string(),
        unsigned(e, f, first),
        unsigned(e, f, n),
    ])
}

fn of_tokens(e: &Emitter<'_>, f: &Family) -> Result<Vec<String>, EmitError> {
    let ids = integers(e, f, Operand::Src, 2, false)?;
    let blocks = integers(e, f, Operand::W, 2, false)?;
    let tokens = integers(e, f, Operand::Dst, 1, true)?;
    let (first, Expr::Const(rows)) = &tokens.region[0] else {
        return Err(EmitError::unsupported(
            f.name.clone(),
            "a block has as many rows as all others",
        ));
    };
    Ok(vec![
        e.base(ids.buffer, "params.header.rank"),
        e.base(blocks.buffer, "params.header.rank"),
        part(e, f, tokens),
        e.c(f, None, &ids.region[0].1),
        e.c(f, None, &ids.region[1].1),
        unsigned(e, f, &(first.clone() / *rows)),
        rows.to_string(),
    ])
}
