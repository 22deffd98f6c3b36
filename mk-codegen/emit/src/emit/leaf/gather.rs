//! Gathers rows by an index (embedding-style), through registers, by all compute threads.

use super::moves;
use super::record::{Group, LeafEmission, Prepared, by_all_threads};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, BinOp, Expr, Operand, Var};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "gather_rows",
    "gather_rows",
    "@{ teams }@, @{ 2 // teams }@ * kWarpgroupThreads, @{ 1 + teams }@, @{ name }@Edges@{ \", 1\" if bytes else \", 2\" if columns else \
     \"\" }@@{ \", true\" if columns else \"\" }@"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families: Vec<_> = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_>>()?;
    let columns = families.iter().any(by_columns);
    let teams = e.points.teams(&g.families())?;
    let call = context! { bytes => moves::of_bytes(e, g), columns, teams };
    let hooks = context! { columns, teams };
    let choices = vec![format!("teams {teams}")];
    Ok(Prepared { families, hooks, call, workers: teams * g.ctas, choices })
}

/// Whether a family copies columns.
fn by_columns(family: &Value) -> bool {
    family.get_attr("lines").is_ok_and(|lines| !lines.is_none() && !lines.is_undefined())
}

/// Template values of one family. Each value of `each` names a source row, on any rank. Destination rows are on this
/// rank: the first n values of `each` fill rows `first..first + n`, or each value that exists fills `first + each`.
fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let one = |operand: Operand| {
        let mut all = f.accesses.iter().filter(|a| a.operand == operand);
        all.next().filter(|_| all.next().is_none())
    };
    let (Some(src), Some(dst)) = (one(Operand::Src), one(Operand::Dst)) else {
        return refuse("a gather reads one tensor and writes one");
    };
    let own = dst.rank == Expr::Var(Var::RANK) && (dst.each.is_none() || dst.each == src.each);
    let Some(each) = src.each.as_ref().filter(|_| own) else {
        return refuse("a gather writes rows of its own rank");
    };
    if src.region.len() != 2 || dst.region.len() != 2 {
        return refuse("a gather copies rows of matrices");
    }
    // Whole rows, or whole columns: factors of rows lie below each other.
    let along = usize::from(src.region[1].0.mentions(Var::EACH));
    let wide = |a: &Access| e.number(&e.extent(a.buffer, 1 - along));
    let whole = |a: &Access| {
        let (from, n) = &a.region[1 - along];
        *from == Expr::Const(0) && wide(a).is_some() && e.number(n) == wide(a)
    };
    let size = e.plan.buffers[src.buffer].dtype.size_bytes();
    let width = &src.region[1 - along].1;
    let one = src.region[along].1 == Expr::Const(1);
    if !one || wide(src) != wide(dst) || !whole(src) || !whole(dst) || along == 1 && size != 4 {
        return refuse(
            "a gather copies whole rows, or columns of f32, one for each value of `each`",
        );
    }
    // First destination row, upper bound of the count, and the condition under which a row exists.
    let (first, rows, exists) = match &dst.each {
        None if dst.when.is_none() && first_ones(src, &dst.region[along].1) => {
            (&dst.region[along].0, &dst.region[along].1, "true".into())
        }
        None => return refuse("a gather writes as many rows as it reads, from the first on"),
        Some(each) => match (one_of_several(&dst.region[along]), &src.when) {
            (Some(first), Some(when)) if src.when == dst.when => {
                (first, &each.extent, e.c(f, Some(each), when))
            }
            _ => return refuse("a gather with `each` in `dst` writes row `first + each`"),
        },
    };
    let from = e.pitch_bytes(&f.name, src.buffer)?;
    let to = e.own_pitch_bytes(dst.buffer);
    let each = Some(each);
    let base = e.base(src.buffer, &e.c(f, each, &src.rank));
    let row = e.c(f, each, &src.region[along].0);
    // Of columns, what lies between two of them is an element, and between two of their elements a row.
    let [source, destination] = match along {
        0 => [
            format!("static_cast<u64>({row}) * {from}"),
            format!("static_cast<u64>({}) * {to}", e.c(f, None, first)),
        ],
        _ => [
            format!("bytes_of({row}, {size})"),
            format!("bytes_of({}, {size})", e.c(f, None, first)),
        ],
    };
    let source = format!("{base} + {source}");
    // No table names a row that is not there; such a one would be left out.
    let source = match e.plan.buffers[src.buffer].own_rows {
        true => format!("static_cast<u32>({row}) < params.header.own_rows ? {source} : 0"),
        false => source,
    };
    let (decode_waits, load_waits) = e.waits_to_look_up(f)?;
    Ok(context! {
        rows => e.c(f, None, rows),
        exists,
        row_bytes => format!("bytes_of({}, {size})", e.c(f, None, width)),
        lines => (along == 1).then(|| e.c(f, None, width)),
        source_pitch => from,
        source,
        destination => format!("{} + {destination}", e.base(dst.buffer, "params.header.rank")),
        destination_pitch => to,
        each => each.map(|each| each.var.clone()),
        decode_waits,
        load_waits,
        posts => e.posts(f),
        ..e.slice(s)
    })
}

/// `first`, if the destination row is `first + each`.
fn one_of_several(rows: &(Expr, Expr)) -> Option<&Expr> {
    let (row, Expr::Const(1)) = rows else { return None };
    let Expr::Bin(BinOp::Add, first, last) = row else { return None };
    (**last == Expr::Var(Var::EACH) && !first.mentions(Var::EACH)).then_some(first)
}

/// Whether exactly the first `rows` values of the source's `each` exist: its condition is `first + each < count` and
/// `rows` is `min(extent, count - first)`; or `each < count` and `min(extent, count)`.
fn first_ones(src: &Access, rows: &Expr) -> bool {
    let (Some(each), Some(Expr::Bin(BinOp::Lt, at, count))) = (&src.each, &src.when) else {
        return false;
    };
    let left = match &**at {
        Expr::Var(Var::EACH) => (**count).clone(),
        Expr::Bin(BinOp::Add, first, last)
            if **last == Expr::Var(Var::EACH) && !first.mentions(Var::EACH) =>
        {
            (**count).clone() - (**first).clone()
        }
        _ => return false,
    };
    !count.mentions(Var::EACH) && *rows == each.extent.clone().min(left)
}
