//! Task families as CUDA: how a task's number becomes coordinates, and what its leaf is told.

use super::{EmitError, context::Emitter};
use crate::ir::{
    ALayout, Access, Agent, BLayout, Consumers, EPILOGUE_OPERANDS, Entity, EpilogueOp, Expr, FamId,
    Family, Leaf, Mode, Operand, Point, Store, Var, carry_last, gated, mma_panel_columns,
    one_warpgroup_takes,
};
use minijinja::{Value, context};
use mk_abi::DType;

/// A family with its tasks' numbers in the role.
#[derive(Clone, Copy)]
pub(super) struct Slice {
    pub id: FamId,
    pub first: u32,
    pub tasks: u32,
}

/// A tile of the left operand: first row, first k, extent along k.
struct Along {
    row: Expr,
    k: Expr,
    depth: Expr,
}

/// A tile of the right operand: first k, first column, and the distance from gates to ups.
struct Across {
    k: Expr,
    col: Expr,
    up: Expr,
}

/// An element type as the library names it.
pub(super) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "F16",
        DType::F32 => "F32",
        _ => "Bf16",
    }
}

impl<'p> Emitter<'p> {
    /// The struct that decodes a family's tasks.
    pub fn family(&self, s: Slice) -> Value {
        let f = &self.plan.families[s.id];
        let order: Vec<Expr> = if f.order.is_empty() { nested(f) } else { f.order.clone() };
        let vars: Vec<_> = f
            .domain
            .iter()
            .zip(&order)
            .map(|((name, _), e)| context! { name => name.clone(), expr => self.c(f, None, e) })
            .collect();
        context! { id => s.id.index(), name => f.name.clone(), first => s.first, tasks => s.tasks, vars }
    }

    pub(super) fn access<'f>(
        &self,
        f: &'f Family,
        operand: Operand,
    ) -> Result<&'f Access, EmitError> {
        let mut found = f.accesses.iter().filter(|a| a.operand == operand);
        match (found.next(), found.next()) {
            (Some(a), None) if a.when.is_none() => Ok(a),
            _ => {
                let what = format!("operand `{operand}` must be one unconditional access");
                Err(EmitError::unsupported(f.name.clone(), what))
            }
        }
    }

    /// What `decode`, the waits, the posts and the epilogue of one matrix-product family are made of; and the least number of steps
    /// along k that a tile of it has.
    pub fn mma(&mut self, s: Slice) -> Result<(Value, i64), EmitError> {
        let f = &self.plan.families[s.id];
        let Leaf::MmaTile { block, store, epilogue, a_layout, b_layout, consumers, .. } = &f.leaf
        else {
            return Err(EmitError::unsupported(f.name.clone(), "is not a matrix product"));
        };
        let (a, b) = (self.access(f, Operand::A)?, self.access(f, Operand::B)?);
        let targets = self.targets(s.id)?;
        let c = targets[0];
        let gated = gated(epilogue);
        let halves = block[1].is_multiple_of(128);
        let rows = [128, 256].contains(&block[0]) || block[0] == 64 && halves && !gated;
        if block[2] != 64 || !rows || gated && !halves {
            let what = "tiles have 128 or 256 rows, or 64 in multiples of 128 columns, a depth of 64, and with a gate whole panels of 64 columns of each half";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        let alone = *consumers == Consumers::PingPong;
        if alone && !one_warpgroup_takes([block[0], block[1]]) {
            let what =
                "one warpgroup multiplies tiles of 128 rows and at most 160 columns by itself";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        let flat = targets.iter().any(|c| c.region.len() < 2);
        if b.region.len() < if gated { 3 } else { 2 } || flat || a.region.len() < 2 {
            return Err(EmitError::unsupported(f.name.clone(), "operands are matrices"));
        }
        let along = self.along(a, *a_layout == ALayout::Km);
        let each = along.depth.clone().ceil_div(block[2] as i32);
        let least = self.least_steps(s.id, &each)?;
        self.check_starts(s.id, a)?;
        self.check_starts(s.id, b)?;
        let a_k = match (a_layout, a.region.len()) {
            (ALayout::Mk, n) => n - 1,
            (ALayout::Km, 3) => 0,
            (ALayout::Km, n) => n - 2,
        };
        let b_k =
            b.region.len() - if *b_layout == BLayout::Nk { 1 } else { 2 + usize::from(gated) };
        self.check_depth(s.id, a, a_k, block[2])?;
        self.check_depth(s.id, b, b_k, block[2])?;
        let own = Expr::Var(Var::RANK);
        let mut all = [a, b].into_iter().chain(targets.iter().copied());
        if all.any(|x| x.each.is_some()) || a.rank != own || b.rank != own {
            return Err(EmitError::unsupported(
                f.name.clone(),
                "operands must lie on the own rank",
            ));
        }
        if *store == Store::Direct && (targets.len() > 1 || c.rank != own) {
            let what = "only TMA stores tiles to peers, or to several places";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        for c in &targets {
            match store {
                Store::Tma => {
                    self.check_starts(s.id, c)?;
                    self.check_clipped(s.id, c, [block[0], f.leaf.out_columns()])?;
                }
                Store::Direct => self.check_lines(s.id, c)?,
            }
        }
        for x in f
            .accesses
            .iter()
            .filter(|x| EPILOGUE_OPERANDS.contains(&x.operand) && x.mode == Mode::Write)
        {
            self.check_lines(s.id, x)?;
        }
        let last = |x: &Access| x.region[x.region.len() - 1].clone();
        let rows = |x: &Access| x.region[x.region.len() - 2].clone();
        let say = |e: &Expr| self.c(f, None, e);
        let wide = if self.plan.buffers[c.buffer].dtype == DType::F32 { 32 } else { 64 };
        let panel_cols = mma_panel_columns(block[1]).min(wide);
        let right = self.across(b, *b_layout, gated);
        let (saved, extras) = self.chain(s.id, epilogue, c)?;
        let carries = epilogue.contains(&EpilogueOp::Carry);
        let carry = if carries { Some(self.carry(s.id, c, epilogue)?) } else { None };
        let (all_steps, inner) = match &f.inner {
            None => (each, None),
            Some((name, extent)) => {
                let inner = self.inner(s.id, name, [a, b], &along, &right)?;
                (extent.clone() * each, Some(inner))
            }
        };
        let value = context! {
            id => s.id.index(),
            first => s.first,
            end => s.first + s.tasks,
            names => names(f),
            a_row => say(&along.row),
            a_k => say(&along.k),
            b_k => say(&right.k),
            b_col => say(&right.col),
            b_up => say(&right.up),
            k_blocks => self.steps(f, &all_steps, &rows(c).1),
            inner,
            c_row => self.of_targets(f, &targets, |c| say(&self.row(c))),
            e_row => say(&self.extras_row(f)?),
            gated,
            saved,
            c_col => say(&last(c).0),
            adds => self.adds(f, &targets),
            rows => say(&rows(c).1),
            cols => say(&last(c).1),
            c_data => self.base(c.buffer, "params.header.rank"),
            c_pitch => self.own_pitch_bytes(c.buffer),
            direct => *store == Store::Direct,
            load_waits => self.waits(f, Agent::Loader, Point::Start)?,
            store_waits => self.waits(f, Agent::Storer, Point::Start)?,
            posts => self.posts(f)?,
            extras,
            carry,
        };
        if f.waits.iter().any(|w| w.by == Agent::Consumers) {
            return Err(EmitError::unsupported(
                f.name.clone(),
                "consumers do not wait for signals",
            ));
        }
        let by_owner = *a_layout == ALayout::Km && a.region.len() == 3;
        let a_shards = if by_owner { Some(self.points.shape(a.buffer, 0)?[1]) } else { None };
        let (a, b) = (a.buffer, b.buffer);
        let mut target = |rows: u32| {
            if *store == Store::Direct {
                return "&params.maps[0]".to_string();
            }
            let (plan, mut maps) = (self.plan, Vec::new());
            for c in &targets {
                maps.push(if c.rank == own {
                    format!(
                        "&params.maps[kMap{}]",
                        self.maps.index(plan, c.buffer, rows, panel_cols)
                    )
                } else {
                    let rank = self.c(f, None, &c.rank);
                    let map = self.maps.index_of_ranks(plan, c.buffer, rows, panel_cols);
                    format!("&params.maps[kMap{map} + {rank}]")
                });
            }
            let mut maps = maps.into_iter();
            self.of_targets(f, &targets, |_| maps.next().unwrap_or_default())
        };
        let (c_map, line_map) = (target(64), target(1));
        let a_box = if *a_layout == ALayout::Mk { block[0] } else { 64 };
        let a_map = match a_shards {
            Some(shards) => self.maps.index_of_wide(self.plan, a, [a_box, 64], shards),
            None => self.maps.index(self.plan, a, a_box, 64),
        };
        let b_map = match (*b_layout, gated) {
            (BLayout::Kn, false) => self.maps.index(self.plan, b, 64, mma_panel_columns(block[1])),
            (BLayout::Kn, true) => self.maps.index_of_wide(self.plan, b, [64, 64], 2),
            (BLayout::Nk, false) => self.maps.index(self.plan, b, block[1], 64),
            (BLayout::Nk, true) => self.maps.index(self.plan, b, block[1] / 2, 64),
        };
        let carried = f.accesses.iter().find(|x| carries && x.operand == Operand::AccIn);
        let carry_map = carried.map(|x| self.maps.index(self.plan, x.buffer, 64, panel_cols));
        let maps = context! { a_map, b_map, c_map, line_map, carry_map };
        Ok((context! { ..value, ..maps }, least))
    }

    /// What changes from one iteration of a product's inner loop to the next: where both operands come from. Each iteration has
    /// the same whole steps along k.
    fn inner(
        &self,
        id: FamId,
        name: &str,
        operands: [&Access; 2],
        along: &Along,
        right: &Across,
    ) -> Result<Value, EmitError> {
        let f = &self.plan.families[id];
        let steps = match along.depth {
            Expr::Const(depth) if depth > 0 && depth % 64 == 0 => depth / 64,
            _ => 0,
        };
        let both = operands.iter().all(|a| a.at == Point::Inner);
        let moves = [&right.col, &right.up].iter().any(|e| e.mentions(Var::INNER));
        if steps == 0 || !both || moves || self.runtime() {
            let what = "an inner loop walks both operands along k, in equal parts of whole steps, and needs dimensions that no launch decides";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        let say = |e: &Expr| self.c(f, None, e);
        Ok(context! {
            name,
            steps,
            a_row => say(&along.row),
            a_k => say(&along.k),
            b_k => say(&right.k),
            waits => self.waits(f, Agent::Loader, Point::Inner)?,
        })
    }

    /// Steps along k. Where a launch decides how many rows there are, tiles without any make one step, over nothing.
    fn steps(&self, f: &Family, steps: &Expr, rows: &Expr) -> String {
        let steps = self.c(f, None, steps);
        if self.runtime() {
            format!("({}) > 0 ? {steps} : 1", self.c(f, None, rows))
        } else {
            steps
        }
    }

    /// Whether some dimension comes with each launch.
    pub(super) fn runtime(&self) -> bool {
        self.plan.dims.values().any(|d| d.runtime_max.is_some())
    }

    /// Where a tile of the left operand lies; `turned` if its rows are along the last dimension: `[k, rows]`, or
    /// `[k, shards, rows]`.
    fn along(&self, a: &Access, turned: bool) -> Along {
        let n = a.region.len();
        let last = a.region[n - 1].clone();
        match (turned, n) {
            (false, _) => Along { row: self.row(a), k: last.0, depth: last.1 },
            (true, 3) => Along {
                row: a.region[1].0.clone() * self.pitch(a.buffer) + last.0,
                k: a.region[0].0.clone(),
                depth: a.region[0].1.clone(),
            },
            (true, _) => Along { row: last.0, k: self.row(a), depth: a.region[n - 2].1.clone() },
        }
    }

    /// Where a tile of the right operand lies. Gated, `[k, 2, n]` or `[2, n, k]`: the tile of gates, and how far behind it
    /// that of ups is.
    fn across(&self, b: &Access, layout: BLayout, gated: bool) -> Across {
        let n = b.region.len();
        let last = b.region[n - 1].0.clone();
        let none = Expr::Const(0);
        match (layout, gated) {
            (BLayout::Kn, false) => Across { k: self.row(b), col: last, up: none },
            (BLayout::Nk, false) => Across { k: last, col: self.row(b), up: none },
            (BLayout::Kn, true) => {
                Across { k: b.region[n - 3].0.clone(), col: last, up: self.pitch(b.buffer) }
            }
            (BLayout::Nk, true) => {
                Across { k: last, col: self.row(b), up: self.extent(b.buffer, n - 2) }
            }
        }
    }

    /// The least number of steps along k of any tile, `each` in every iteration. Each tile has one: consumers hand back the stage of the
    /// last.
    fn least_steps(&self, id: FamId, each: &Expr) -> Result<i64, EmitError> {
        // A launch may leave a tile without rows.
        let mut least = if self.runtime() { 1 } else { i64::MAX };
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.points.tasks(id, rank, 1)? {
                let (each, times) = (self.points.eval(&task, each)?, self.points.inner(&task)?);
                least = least.min(each * times);
                if each < 1 || times < 1 {
                    let what = format!("task {:?} of rank {rank} has no depth", task.domain());
                    return Err(EmitError::unsupported(id.to_string(), what));
                }
            }
        }
        Ok(least)
    }

    /// Where the tiles of a family go: always to one place, or each to one of several, with the same columns and rows.
    fn targets(&self, id: FamId) -> Result<Vec<&'p Access>, EmitError> {
        let f = &self.plan.families[id];
        let all: Vec<_> = f.accesses.iter().filter(|a| a.operand == Operand::C).collect();
        let of = |a: &Access, back: usize| a.region.get(a.region.len().wrapping_sub(back)).cloned();
        let rows = |a: &Access| of(a, 2).map(|r| r.1);
        let fits = match all.as_slice() {
            [only] => only.when.is_none() && only.mode == Mode::Write,
            [one, ..] => {
                let dtype = |a: &Access| self.plan.buffers[a.buffer].dtype;
                let alike = |a: &&Access| {
                    let placed = of(one, 1) == of(a, 1) && rows(one) == rows(a);
                    placed && dtype(one) == dtype(a) && a.when.is_some() && a.each.is_none()
                };
                all.iter().all(alike) && self.one_of(id, &all)?
            }
            [] => false,
        };
        if fits {
            return Ok(all);
        }
        let what =
            "a tile goes to one place, or under conditions of which one holds to one of several";
        Err(EmitError::unsupported(f.name.clone(), what))
    }

    /// Whether each task makes exactly one of some accesses.
    fn one_of(&self, id: FamId, all: &[&Access]) -> Result<bool, EmitError> {
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.points.tasks(id, rank, 1)? {
                let mut made = 0;
                for x in all {
                    self.points.for_each::<EmitError>(&task, 0, None, x.when.as_ref(), |_| {
                        made += 1;
                        Ok(())
                    })?;
                }
                if made != 1 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// What depends on where a tile goes.
    fn of_targets(
        &self,
        f: &Family,
        targets: &[&Access],
        mut say: impl FnMut(&Access) -> String,
    ) -> String {
        let all: Vec<String> = targets.iter().map(|c| say(c)).collect();
        let Some((last, others)) = all.split_last() else { return String::new() };
        if others.iter().all(|text| text == last) {
            return last.clone();
        }
        let chosen = others.iter().zip(targets);
        chosen.map(|(text, c)| format!("{} ? {text} : ", self.condition(f, c))).collect::<String>()
            + last
    }

    /// When a tile is added to what is there, if ever.
    fn adds(&self, f: &Family, targets: &[&Access]) -> Option<String> {
        let adding = targets.iter().filter(|c| c.mode == Mode::Accumulate);
        let when: Vec<_> = adding.map(|c| self.condition(f, c)).collect();
        match when.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            all => Some(format!("({})", all.join(") || ("))),
        }
    }

    /// When an access is made.
    fn condition(&self, f: &Family, a: &Access) -> String {
        a.when.as_ref().map_or("true".into(), |w| self.c(f, a.each.as_ref(), w))
    }

    /// What a tile goes on with: the same columns as C's, in a buffer of C's type whose rows begin at multiples of 16 bytes; of
    /// several, each in as many rows. The loader brings it in the second half of the steps along k, which is in the last iteration
    /// of an inner loop, or behind them.
    fn carry(&self, id: FamId, c: &Access, epilogue: &[EpilogueOp]) -> Result<Value, EmitError> {
        let f = &self.plan.families[id];
        let mut all = f.accesses.iter().filter(|a| a.operand == Operand::AccIn);
        let (Some(x), None) = (all.next(), all.next()) else {
            let what = "a tile goes on with what one access says";
            return Err(EmitError::unsupported(f.name.clone(), what));
        };
        let gated = gated(epilogue);
        let tma = matches!(f.leaf, Leaf::MmaTile { store: Store::Tma, .. });
        if gated || !tma || epilogue.last() != Some(&EpilogueOp::Carry) {
            let what = "only tiles without a gate that leave by TMA go on with sums, behind their elementwise operations";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        if epilogue.contains(&EpilogueOp::Save) {
            let what = "a tile that goes on with sums saves nothing";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        let late = Expr::from(Var::INNER).equals(1);
        let in_time = match (&f.inner, carry_last(epilogue)) {
            (_, true) => x.at == Point::End && x.when.is_none(),
            (None, false) => x.at == Point::Start && x.when.is_none(),
            (Some((_, n)), false) => {
                *n == Expr::Const(2) && x.at == Point::Inner && x.when.as_ref() == Some(&late)
            }
        };
        if !in_time {
            let what = "what a tile goes on with comes in the second of two iterations, at the start without an inner loop, or at the end behind elementwise operations";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        let last = |a: &Access| a.region[a.region.len() - 1].clone();
        let dtype = |a: &Access| self.plan.buffers[a.buffer].dtype;
        let pitches = &self.layout.buffers[x.buffer].pitch;
        let spaced = pitches.iter().all(|n| n * dtype(x).size_bytes() as i64 % 16 == 0);
        let here = x.rank == Expr::Var(Var::RANK) && x.region.len() > 1;
        let rows = &x.region[x.region.len() - 2].1;
        let alike = !rows.mentions(Var::EACH) && !last(x).0.mentions(Var::EACH);
        if !here || !spaced || !alike || last(x) != last(c) || dtype(x) != dtype(c) {
            let what = "what a tile goes on with does not lie as C does";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
        self.check_starts(id, x)?;
        let each = x.each.as_ref();
        Ok(context! {
            each => each.map(|e| e.var.clone()),
            count => each.map_or("1".into(), |e| self.c(f, None, &e.extent)),
            row => self.c(f, each, &self.row(x)),
            rows => self.c(f, None, rows),
        })
    }
}

/// Names that a task's coordinates are bound to.
pub(super) fn names(f: &Family) -> Vec<String> {
    f.domain.iter().map(|(n, _)| n.clone()).collect()
}

/// Nested loops, last variable fastest, as expressions over `t`. Extents do not depend on other variables here.
fn nested(f: &Family) -> Vec<Expr> {
    let t = Expr::from(Var::LINEAR);
    let mut inner = Expr::Const(1);
    let mut out = Vec::new();
    for (d, (_, extent)) in f.domain.iter().enumerate().rev() {
        let e = t.clone() / inner.clone();
        // The outermost needs no modulus.
        out.push(if d == 0 { e } else { e % extent.clone() });
        inner = inner * extent.clone();
    }
    out.reverse();
    out
}
