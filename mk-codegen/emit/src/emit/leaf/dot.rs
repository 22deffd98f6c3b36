//! Products of rows that are each looked up, an element for each, with a row of the own rank: in f32, each by a warp.
//! Or elements alone that are each looked up, each by a thread.

use super::record::{Group, LeafEmission, Prepared, by_all_threads, inner_access};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Agent, DotTile, Expr, Family, Leaf, Operand, Point, Var};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "dot_rows",
    "dot_rows",
    "Dtype::@{ dtype }@, 2 * kWarpgroupThreads, 2, @{ name }@Edges@{ \", true\" if plain else \"\" }@"
);

/// Rows, products of each, and columns.
type Sizes = [i32; 3];

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_>>()?;
    let all = g.slices.iter().map(|s| sizes(e, &e.plan.families[s.id]));
    let all = all.collect::<Result<Vec<_>>>()?;
    let [rows, products, columns] = all[0];
    if all.iter().any(|sizes| *sizes != all[0]) {
        let what = "products of one group are of as many rows and columns";
        return EmitError::refuse(&g.name, what);
    }
    let dtype = e.one_dtype(g.slices[0].id, |o| matches!(o, Operand::Src | Operand::W))?;
    let plain = is_plain(g.head(e));
    let (hooks, call) = (context! { rows, products, columns, plain }, context! { dtype, plain });
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// Whether elements stand for products.
fn is_plain(f: &Family) -> bool {
    f.leaf == Leaf::DotTile(DotTile { plain: true })
}

/// The one access of an operand, in the inner loop.
fn one(f: &Family, operand: Operand) -> Result<&Access> {
    let what = "a product has rows, one row, and results in its inner loop";
    inner_access(f, operand).map_or_else(|| EmitError::refuse(&f.name, what), Ok)
}

fn sizes(e: &Emitter<'_>, f: &Family) -> Result<Sizes> {
    let src = one(f, Operand::Src)?;
    let rows = f.inner.as_ref().and_then(|i| e.number(&i.1));
    let products = src.each.as_ref().and_then(|each| e.number(&each.extent));
    let columns = src.region.last().and_then(|(_, n)| e.number(n));
    match (rows, products, columns) {
        (Some(rows), Some(products), Some(columns)) if rows.min(products).min(columns) > 0 => {
            Ok([rows, products, columns])
        }
        _ => {
            let what = "products have a fixed number of rows and columns";
            EmitError::refuse(&f.name, what)
        }
    }
}

/// Where a row of all columns lies, or one element of those of a row.
fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let [_, _, columns] = sizes(e, f)?;
    let (src, dst) = (one(f, Operand::Src)?, one(f, Operand::Dst)?);
    let plain = is_plain(f);
    // What says whether a row is there.
    let w = if plain { dst } else { one(f, Operand::W)? };
    let own = |a: &Access| a.rank == Expr::Var(Var::RANK);
    let whole = |a: &Access| {
        let (last, front) = a.region.split_last()?;
        let one = front.iter().all(|(_, n)| *n == Expr::Const(1));
        let all = e.number(&e.extent(a.buffer, a.region.len() - 1));
        (one && last.0 == Expr::Const(0) && e.number(&last.1) == all).then_some(all?)
    };
    if plain {
        if src.region.iter().any(|(_, n)| *n != Expr::Const(1)) || dst.each != src.each {
            return refuse("one element is picked at a time");
        }
    } else if [src, w].iter().any(|a| whole(a) != Some(columns)) {
        return refuse("a product is of whole rows, one at a time");
    } else if !own(w) || w.each.is_some() || dst.each != src.each {
        return refuse("products are of the own rank, one for each row");
    }
    if [Var::INNER, Var::EACH].iter().any(|var| dst.rank.mentions(*var)) {
        return refuse("products of a task go to one rank");
    }
    if !own(dst) {
        // Places there are counted as here.
        e.pitch_bytes(&f.name, dst.buffer)?;
    }
    if dst.region.iter().any(|(_, n)| *n != Expr::Const(1))
        || e.plan.buffers[dst.buffer].pitch.is_some()
    {
        return refuse("a product is one element");
    }
    if w.when != dst.when || dst.when.as_ref().is_some_and(|w| w.mentions(Var::EACH)) {
        return refuse("products are there, or are not, as their row is");
    }
    let own = |a: &Access| e.plan.buffers[a.buffer].own_rows;
    if own(src) || own(w) != own(dst) || own(w) && w.region[0] != dst.region[0] {
        return refuse("products of a rank's own rows are those of these rows");
    }
    let mut looks = f.waits.iter().filter(|w| w.at == Point::Start);
    if looks.any(|w| e.plan.wait_names_stored(w)) {
        return refuse("products look words up in their inner loop");
    }
    let (Some(each), Some(inner)) = (&src.each, &f.inner) else {
        return refuse("products run over their rows");
    };
    let (from, of_row) = (e.pitch_bytes(&f.name, src.buffer)?, e.own_pitch_bytes(w.buffer));
    let say = |x: &Expr| e.c(f, Some(each), x);
    let within = match src.region.last() {
        Some((at, _)) if plain => format!(" + static_cast<u64>({}) * 4", say(at)),
        _ => String::new(),
    };
    Ok(context! {
        inner => inner.0.clone(),
        each => each.var.clone(),
        exists => e.there(f, None, w),
        there => src.when.as_ref().map_or("true".into(), &say),
        source => format!(
            "{} + static_cast<u64>({}) * {from}{within}",
            e.base(src.buffer, &say(&src.rank)),
            say(&e.row(src))
        ),
        factor => if plain { String::new() } else { format!(
            "{} + static_cast<u64>({}) * {of_row}",
            e.base(w.buffer, "params.header.rank"),
            e.c(f, None, &e.row(w))
        ) },
        destination => format!(
            "{} + static_cast<u64>({}) * 4",
            e.base(dst.buffer, &e.c(f, None, &dst.rank)),
            say(&e.flat(dst, 0, dst.region.len()))
        ),
        decode_waits => e.waits(f, Agent::Copier, Point::Start)?,
        load_waits => e.waits(f, Agent::Copier, Point::Inner)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
