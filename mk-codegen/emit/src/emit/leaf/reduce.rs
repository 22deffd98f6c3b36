//! Sums over the slots of a rank, over ranks as far apart as each other, or of one source: in f32, in order, rounded
//! once, by all computing threads in one team or two.

use super::record::{Group, LeafEmission, Prepared, by_all_threads};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_abi::device::MAX_RANKS;
use mk_plan::{Agent, BinOp, Expr, Operand, Point, Var, row_dim};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "reduce_rows",
    "reduce_rows",
    "Dtype::@{ dtype }@, Dtype::@{ dtype_to }@, @{ teams }@, @{ 2 // teams }@ * kWarpgroupThreads, \
     @{ 1 + teams }@, @{ name }@Edges"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    for f in g.slices.iter().map(|s| &e.plan.families[s.id]) {
        if f.inner.is_some() {
            let what = "no template has sums without factors in an inner loop";
            return EmitError::refuse(&f.name, what);
        }
    }
    let (mut families, mut destinations) = (Vec::new(), None);
    for s in &g.slices {
        let (value, places) = sums(e, *s)?;
        if *destinations.get_or_insert(places) != places {
            let what = "sums of one group have as many destinations";
            return EmitError::refuse(&g.name, what);
        }
        families.push(value);
    }
    let (chain, operands) = e.sum_chain(g.slices[0].id)?;
    let teams = e.points.teams(&g.families())?;
    let (dtype, dtype_to) = (dtype_of(e, g, Operand::Src)?, dtype_of(e, g, Operand::Dst)?);
    Ok(Prepared {
        families,
        hooks: context! { destinations, chain, operands, teams },
        call: context! { teams, dtype, dtype_to },
        workers: teams * g.ctas,
        choices: vec![format!("teams {teams}")],
    })
}

/// The element type that all accesses of an operand have.
fn dtype_of(e: &Emitter<'_>, g: &Group, operand: Operand) -> Result<&'static str> {
    e.one_dtype(g.slices[0].id, |o| o == operand)
}

/// An expression as its value at the first repetition, and what each further one adds; `None` where that is not all.
fn in_steps(e: &Expr) -> Option<(Expr, i32)> {
    match e {
        Expr::Var(Var::EACH) => Some((0.into(), 1)),
        e if !e.mentions(Var::EACH) => Some((e.clone(), 0)),
        Expr::Bin(BinOp::Add, a, b) => {
            let ((a, m), (b, n)) = (in_steps(a)?, in_steps(b)?);
            Some((a + b, m.checked_add(n)?))
        }
        Expr::Bin(BinOp::Mul, a, b) => match (in_steps(a)?, &**b) {
            ((a, step), Expr::Const(n)) => Some((a * *n, step.checked_mul(*n)?)),
            _ => None,
        },
        _ => None,
    }
}

/// One reduction family: the sum over `each` of its source, written to every destination; and how many these are.
fn sums(e: &Emitter<'_>, s: Slice) -> Result<(Value, i32)> {
    let f = &e.plan.families[s.id];
    let src = e.access(f, Operand::Src)?;
    let own = Expr::Var(Var::RANK);
    // Slots of this rank, one after the other; or one buffer of several ranks.
    let apart = in_steps(&src.rank).filter(|(_, step)| *step > 0);
    let everywhere = apart.is_some();
    let n = src.region.len();
    // One source, of any rows of this rank.
    let single = src.each.is_none() && src.rank == own && row_dim(src).is_some();
    let alike = single || if everywhere { n == 3 } else { n >= 3 && src.rank == own };
    let each = src.each.as_ref();
    if !alike || each.is_none() && !single {
        return EmitError::refuse(
            &f.name,
            "a sum runs over slots of its own rank, or over ranks that are as far apart",
        );
    }
    let by_each = src.region.iter().any(|(b, l)| b.mentions(Var::EACH) || l.mentions(Var::EACH));
    let leads = if single {
        true
    } else if everywhere {
        !by_each && src.region[0].1 == Expr::Const(1)
    } else {
        // Of a stack of slots, those of one index.
        let one = |(base, len): &(Expr, Expr)| *len == Expr::Const(1) && !base.mentions(Var::EACH);
        src.region[n - 3] == (Expr::Var(Var::EACH), Expr::Const(1))
            && src.region[..n - 3].iter().all(one)
    };
    let along = if single { row_dim(src).unwrap_or(0) } else { n - 2 };
    let ((first, rows), (col, cols)) = (&src.region[along], &src.region[n - 1]);
    let size = e.plan.buffers[src.buffer].dtype.size_bytes();
    let line = e.own_pitch_bytes(src.buffer);
    let (mut destinations, mut n_destinations) = (Vec::new(), 0);
    for dst in f.accesses.iter().filter(|a| a.operand == Operand::Dst) {
        let d = dst.region.len();
        // Rows of a peer are those of a matrix; the own ones may be of one of several that lie side by side.
        let row = if dst.rank == own { row_dim(dst) } else { d.checked_sub(2) };
        let same = dst.region[d - 1].1 == *cols && row.is_some_and(|r| dst.region[r].1 == *rows);
        if !leads || !same || dst.when.is_some() {
            let what = "source and destination of a sum differ in shape";
            return EmitError::refuse(&f.name, what);
        }
        let each = dst.each.as_ref();
        let end = match each.map(|x| &x.extent) {
            None => n_destinations + 1,
            Some(Expr::Const(n)) if (1..=MAX_RANKS as i32).contains(n) => n_destinations + n,
            Some(_) => {
                let what = format!("a sum goes to 1 to {MAX_RANKS} places at once");
                return EmitError::refuse(&f.name, what);
            }
        };
        // Another rank's rows are addressed by a pitch that all ranks share; own rows may have any.
        let (line, pitch, base) = if dst.rank == own {
            let line = e.own_pitch_bytes(dst.buffer);
            (line, e.row_pitch_bytes(dst), e.base(dst.buffer, "params.header.rank"))
        } else {
            let pitch = e.pitch_bytes(&f.name, dst.buffer)?.to_string();
            (pitch.clone(), pitch, e.base(dst.buffer, &e.c(f, each, &dst.rank)))
        };
        let size = e.plan.buffers[dst.buffer].dtype.size_bytes();
        let (row, col) = (e.c(f, each, &e.row(dst)), e.c(f, each, &dst.region[d - 1].0));
        let address =
            format!("{base} + static_cast<u64>({row}) * {line} + bytes_of({col}, {size})");
        let each = each.map(|x| x.var.clone());
        destinations.push(context! { address, pitch, each, first => n_destinations, end });
        n_destinations = end;
    }
    let (base, row, stride) = if single {
        (e.base(src.buffer, "params.header.rank"), e.row(src), "0".to_string())
    } else if let Some((first, step)) = apart {
        let stride = match step {
            1 => "params.header.sym_stride_bytes".to_string(),
            step => format!("{step} * params.header.sym_stride_bytes"),
        };
        (e.base(src.buffer, &e.c(f, None, &first)), e.row(src), stride)
    } else {
        let rows = e.c(f, None, &e.extent(src.buffer, n - 2));
        let stride = format!("static_cast<u64>({rows}) * {line}");
        let row = match n {
            3 => first.clone(),
            _ => {
                let slots = e.extent(src.buffer, n - 3) * e.extent(src.buffer, n - 2);
                e.flat(src, 0, n - 3) * slots + first.clone()
            }
        };
        (e.base(src.buffer, "params.header.rank"), row, stride)
    };
    let pitch = if single { e.row_pitch_bytes(src) } else { line.clone() };
    let operands = e.sum_operands(s, (rows, cols))?;
    let (row, col) = (e.c(f, None, &row), e.c(f, None, col));
    let value = context! {
        operands,
        rows => e.c(f, None, rows),
        columns => e.c(f, None, cols),
        sources => each.map_or("1".into(), |x| e.c(f, None, &x.extent)),
        source => format!("{base} + static_cast<u64>({row}) * {line} + bytes_of({col}, {size})"),
        source_stride => stride,
        source_pitch => pitch,
        destinations,
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
    };
    Ok((context! { ..value, ..e.slice(s) }, n_destinations))
}
