//! Elementwise chains as CUDA: what is done to a tile's accumulators, or to sums, before they are rounded.

use super::{
    EmitError, Result,
    context::Emitter,
    types::{Slice, dtype_name},
};
use minijinja::{Value, context};
use mk_plan::{
    Access, BufId, EPILOGUE_OPERANDS, EpilogueOp, Expr, FamId, Family, Mode, Operand, Plan,
    QuantTile, Space, Var, applied_first, gate_bias, named_operands, row_dim, saves_gates,
};

/// An operation by the name that the library, or a template, has for it; none for what is done elsewhere.
fn operation(op: EpilogueOp) -> Option<Value> {
    let op = match op {
        EpilogueOp::Scale(bits) => {
            return Some(
                context! { op => "scale", factor => format!("__uint_as_float(0x{bits:08x}u)") },
            );
        }
        EpilogueOp::Round(to) => {
            return Some(context! { op => "round", dtype => to.format().cuda });
        }
        // The gate is the tile's own, and what is carried has a place of its own.
        EpilogueOp::Widen | EpilogueOp::Swiglu | EpilogueOp::Keep | EpilogueOp::Carry => {
            return None;
        }
        EpilogueOp::Bias => "bias",
        EpilogueOp::ScaleRows => "scale_rows",
        EpilogueOp::ScaleColumns => "scale_columns",
        EpilogueOp::ScaleSteps => "scale_steps",
        EpilogueOp::ScaleBlocks => "scale_blocks",
        EpilogueOp::Curve(curve) => curve.cuda(),
        EpilogueOp::Slope(_) | EpilogueOp::MulSilu => {
            return Some(context! { op => "slope", name => slope(op) });
        }
        EpilogueOp::Mul => "mul",
        EpilogueOp::Add => "add",
        EpilogueOp::Save => "save",
        EpilogueOp::Quantize(_) => "quantize",
    };
    Some(context! { op })
}

/// The function of the library that multiplies by a slope.
fn slope(op: EpilogueOp) -> &'static str {
    match op {
        EpilogueOp::Slope(curve) => curve.grad(),
        _ => "mul_silu",
    }
}

impl Emitter<'_> {
    /// What the epilogue does, with its operands (columns as C's, rows from `e_row` on).
    pub(super) fn chain(&self, id: FamId, epilogue: &[EpilogueOp], c: &Access) -> Result<Chain> {
        let f = &self.plan.families[id];
        let mut operands = EPILOGUE_OPERANDS.into_iter();
        let (mut saved, mut chain) = (Vec::<Value>::new(), Vec::new());
        let (mut kept, mut first) = (None, Vec::new());
        for (i, op) in epilogue.iter().enumerate() {
            if *op == EpilogueOp::Keep {
                // A copy is made of accumulators as the save before left them.
                kept = Some(chain.clone());
            }
            let gates = saves_gates(epilogue) && saved.is_empty();
            let Some(mut value) = operation(*op) else { continue };
            if let Some(mode) = op.operand() {
                let operand = operands.next().ok_or_else(|| {
                    EmitError::internal("emit/chain.rs", "more operands than an epilogue has")
                })?;
                value = context! { ..self.extra(f, operand, (*op, mode), gates, c)?, ..value };
            }
            if i < applied_first(epilogue) {
                first.push(value);
                continue;
            }
            if *op != EpilogueOp::Save {
                chain.push(value);
                continue;
            }
            let aside = kept.is_some();
            let mut save = |value: Value, before: Vec<Value>| {
                saved.push(context! { place => saved.len(), chain => before, aside, ..value });
            };
            if gates {
                let (data, pitch) = (value.get_attr("data")?, value.get_attr("pitch")?);
                let both = context! { pitch => format!("2 * {pitch}"), ..value };
                save(both.clone(), Vec::new());
                save(context! { data => format!("{data} + {pitch}"), ..both }, Vec::new());
            } else {
                save(value, std::mem::replace(&mut chain, kept.take().unwrap_or_default()));
            }
        }
        Ok(Chain { first, saved, rest: chain })
    }

    /// Where an epilogue's operand lies; `gates`: those of the tile and their ups, `[m, 2, n]`.
    fn extra(
        &self,
        f: &Family,
        operand: Operand,
        (op, mode): (EpilogueOp, Mode),
        gates: bool,
        c: &Access,
    ) -> Result<Value> {
        let x = self.access(f, operand)?;
        let buffer = &self.plan.buffers[x.buffer];
        let space = if mode == Mode::Write { Space::Out } else { Space::In };
        // The library asks for elements by their place in the tile.
        let dims = match op {
            // The vector of a tile's expert, `[n]` or `[2, n]`.
            EpilogueOp::Bias if x.region.len() == 2 => x.region[0].1 == Expr::Const(1),
            EpilogueOp::Bias if x.region.len() == 3 => {
                let [one, two] = [0, 1].map(|d| &x.region[d].1);
                gate_bias(f.leaf.epilogue()) == Some(operand)
                    && [one, two] == [&1.into(), &2.into()]
            }
            EpilogueOp::Bias | EpilogueOp::ScaleColumns => x.region.len() == 1,
            // Of gathered rows, those of all ranks.
            EpilogueOp::ScaleRows => x.region.len() <= 2 && buffer.pitch.is_none(),
            EpilogueOp::ScaleSteps | EpilogueOp::ScaleBlocks => {
                x.region.len() > 1 && buffer.pitch.is_none()
            }
            EpilogueOp::Quantize(_) => x.region.len() == 2 && beside(x, c),
            _ if gates => x.region.len() == 3 && buffer.shape[1] == Expr::Const(2),
            // Of a stack of matrices, that of the tile.
            _ if x.region.len() == 3 && x.region == c.region => true,
            _ => x.region.len() == 2 || half(self.plan, x).is_some(),
        };
        let last = |a: &Access| a.region[a.region.len() - 1].clone();
        let along = match op {
            EpilogueOp::ScaleBlocks | EpilogueOp::Quantize(_) => true,
            EpilogueOp::ScaleRows | EpilogueOp::ScaleSteps => {
                c.region.len() > 1 && last(x).1 == c.region[c.region.len() - 2].1
            }
            _ => last(x) == last(c),
        };
        // Rows are waited for, and their factors with them; who reads results waits for theirs.
        let made = matches!(buffer.space, Space::Workspace | Space::Scratch | Space::Out);
        let own = mode == Mode::Write && x.buffer == c.buffer;
        let arrives = (op.scales_rows() || matches!(op, EpilogueOp::Quantize(_)) || own) && made;
        let placed = dims && (buffer.space == space || arrives) && x.mode == mode && along;
        if x.each.is_some() || !placed {
            let what = format!("operand `{operand}` does not lie as C does");
            return EmitError::refuse(&f.name, what);
        }
        let (mut data, elements) =
            (self.base(x.buffer, "params.header.rank"), self.elements(f, x)?);
        let mut pitch = elements.get_attr("pitch")?.to_string();
        if let Some(half) = half(self.plan, x) {
            if half > 0 {
                data = format!("{data} + {pitch}");
            }
            pitch = format!("2 * {pitch}");
        }
        Ok(context! {
            data,
            pitch,
            even => self.rows_of(x.buffer, 2).to_string(),
            wide => self.rows_of(x.buffer, 16 / buffer.dtype.size_bytes() as i64).to_string(),
            ..elements
        })
    }

    /// What the elements of an operand are, and how far apart its rows; a vector has one.
    fn elements(&self, f: &Family, x: &Access) -> Result<Value> {
        let dtype = self.plan.buffers[x.buffer].dtype;
        let pitch = if x.region.len() > 1 { self.own_pitch_bytes(x.buffer) } else { "0".into() };
        Ok(context! { pitch, dtype => dtype_name(&f.name, dtype)?, size => dtype.size_bytes() })
    }

    /// What is done to sums, operation by operation, and how many operands that has.
    pub(super) fn sum_chain(&self, id: FamId) -> Result<(Vec<Value>, usize)> {
        let f = &self.plan.families[id];
        let (mut operands, mut chain) = (0, Vec::new());
        for op in f.leaf.epilogue() {
            let Some(mut value) = operation(*op) else { continue };
            if op.operand().is_some() {
                let operand = EPILOGUE_OPERANDS.get(operands).ok_or_else(|| {
                    EmitError::internal("emit/chain.rs", "more operands than an epilogue has")
                })?;
                let x = self.access(f, *operand)?;
                let pitch = if x.region.len() > 1 { self.row_pitch_bytes(x) } else { "0".into() };
                let place = context! { place => operands, pitch };
                value = context! { ..place, ..self.elements(f, x)?, ..value };
                operands += 1;
            }
            chain.push(value);
        }
        Ok((chain, operands))
    }

    /// Where the operands of a task's chain begin, with the rows and columns of its sums.
    pub(super) fn sum_operands(
        &self,
        s: Slice,
        (rows, columns): (&Expr, &Expr),
    ) -> Result<Vec<String>> {
        let f = &self.plan.families[s.id];
        let mut addresses = Vec::new();
        for (op, operand) in named_operands(f.leaf.epilogue()) {
            let x = self.access(f, operand)?;
            let buffer = &self.plan.buffers[x.buffer];
            let fits = match x.region.as_slice() {
                [(_, n)] => op == EpilogueOp::Bias && n == columns,
                [.., (_, n)] => {
                    let of_rows = row_dim(x).is_some_and(|d| x.region[d].1 == *rows);
                    op != EpilogueOp::Bias && of_rows && n == columns
                }
                [] => false,
            };
            let own = x.each.is_none() && x.rank == Expr::Var(Var::RANK);
            if !fits || !own || matches!(buffer.space, Space::Net | Space::Workspace) {
                let what = format!("operand `{operand}` does not lie as the sums do");
                return EmitError::refuse(&f.name, what);
            }
            let base = self.base(x.buffer, "params.header.rank");
            let (col, size) = (&x.region[x.region.len() - 1].0, buffer.dtype.size_bytes());
            let mut address = format!("{base} + bytes_of({}, {size})", self.c(f, None, col));
            if op != EpilogueOp::Bias {
                let row = self.c(f, None, &self.row(x));
                let pitch = self.own_pitch_bytes(x.buffer);
                address += &format!(" + static_cast<u64>({row}) * {pitch}");
            }
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// Whether every row holds a multiple of so many elements, and begins at one, on every rank.
    fn rows_of(&self, buffer: BufId, elements: i64) -> bool {
        let place = &self.layout.buffers[buffer];
        let cols = place.shape.iter().filter_map(|s| s.last());
        cols.chain(&place.pitch).all(|n| n % elements == 0)
    }

    /// The first factor of a tile's rows, or columns, in elements.
    pub(super) fn first_factor(&self, f: &Family, rows: bool) -> Expr {
        let mut named = named_operands(f.leaf.epilogue());
        let of = |op: &EpilogueOp| op.scales() && op.scales_rows() == rows;
        let operand = named.find(|(op, _)| of(op)).map(|(_, o)| o);
        let Some(x) = f.accesses.iter().find(|a| Some(a.operand) == operand) else {
            return Expr::Const(0);
        };
        self.flat(x, 0, x.region.len())
    }

    /// The expert whose vector is added to a tile, where one of several is.
    pub(super) fn vector_row(&self, f: &Family) -> Option<Expr> {
        let mut named = named_operands(f.leaf.epilogue());
        let (_, operand) = named.find(|(op, _)| *op == EpilogueOp::Bias)?;
        let x = f.accesses.iter().find(|a| a.operand == operand)?;
        (x.region.len() > 1).then(|| x.region[0].0.clone())
    }

    /// First row of an epilogue's matrix operands; all have the same.
    pub(super) fn extras_row(&self, f: &Family) -> Result<Expr> {
        let by_rows: Vec<_> = named_operands(f.leaf.epilogue())
            .filter(|(op, _)| op.vector().is_none() && !op.scales())
            .filter(|(op, _)| !matches!(op, EpilogueOp::Quantize(_)))
            .map(|(_, operand)| operand)
            .collect();
        let matrices = f.accesses.iter().filter(|a| by_rows.contains(&a.operand));
        // Of what gates and ups are saved to, rows of both.
        let mut rows = matrices.map(|a| match a.region.as_slice() {
            [rows, (_, n), _] if *n == Expr::Const(2) || half(self.plan, a).is_some() => {
                rows.0.clone()
            }
            _ => self.row(a),
        });
        let first = rows.next().unwrap_or(Expr::Const(0));
        if rows.any(|row| row != first) {
            let what = "operands of the epilogue begin in several rows";
            return EmitError::refuse(&f.name, what);
        }
        Ok(first)
    }
}

/// What an epilogue does.
pub(super) struct Chain {
    /// To all accumulators, before everything else.
    pub first: Vec<Value>,
    /// Saved values, each with the operations before it.
    pub saved: Vec<Value>,
    /// What it does then.
    pub rest: Vec<Value>,
}

/// Which half of `[m, 2, n]` an access touches, if it touches one.
pub(super) fn half(plan: &Plan, x: &Access) -> Option<i32> {
    let [_, (Expr::Const(half @ 0..=1), Expr::Const(1)), _] = x.region.as_slice() else {
        return None;
    };
    (plan.buffers[x.buffer].shape.get(1) == Some(&Expr::Const(2))).then_some(*half)
}

/// Whether factors are those of the blocks of C's columns, and of its rows.
fn beside(x: &Access, c: &Access) -> bool {
    let block = QuantTile::BLOCK;
    let [(at, len), (row, rows)] = x.region.as_slice() else { return false };
    let [.., own, (first, columns)] = c.region.as_slice() else { return false };
    let blocks = (first.clone() / block, (columns.clone() + (block - 1)) / block);
    c.region.len() == 2 && (row, rows) == (&own.0, &own.1) && (at, len) == (&blocks.0, &blocks.1)
}
