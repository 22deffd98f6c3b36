//! Copies and sums as CUDA: what the leaves that move rows are told.

use super::{
    EmitError,
    context::Emitter,
    tasks::{Slice, names},
};
use crate::ir::{
    Access, Agent, COPY_STAGE_BYTES, Entity, Expr, FamId, Family, Operand, Point, Var,
};
use minijinja::{Value, context};
use mk_abi::device::MAX_RANKS;

impl Emitter<'_> {
    /// One copy family: a contiguous block (bulk) or rows (ldst), read once and written to each destination.
    pub fn copy(&self, s: Slice, bulk: bool) -> Result<Value, EmitError> {
        let f = &self.plan.families[s.id];
        let (src, dst) = (self.access(f, Operand::Src)?, self.access(f, Operand::Dst)?);
        if src.each.is_some() {
            return Err(EmitError::unsupported(f.name.clone(), "a copy reads one place"));
        }
        let (col, cols) = &src.region[src.region.len() - 1];
        let (d_col, d_cols) = &dst.region[dst.region.len() - 1];
        let (Some((rows, s_step)), Some((d_rows, d_step))) = (self.rows(src), self.rows(dst))
        else {
            return Err(EmitError::unsupported(f.name.clone(), "a copy moves evenly spaced rows"));
        };
        if cols != d_cols || rows != d_rows {
            return Err(EmitError::unsupported(
                f.name.clone(),
                "source and destination differ in shape",
            ));
        }
        self.check_dtypes(f, src, dst)?;
        let size = self.plan.buffers[src.buffer].dtype.size_bytes();
        let place = f.name.as_str();
        let from = self.own_pitch_bytes(src.buffer);
        // Rows of another rank must be as long as the own ones; the own ones may be what they are.
        let to = if dst.rank == Expr::Var(Var::RANK) {
            self.own_pitch_bytes(dst.buffer)
        } else {
            self.pitch_bytes(place, dst.buffer)?.to_string()
        };
        if bulk {
            self.check_rows(s.id, src, dst)?;
        }
        let each = dst.each.as_ref();
        let at = |a: &Access, base: String, pitch: &str, col: &Expr| {
            let each = a.each.as_ref();
            format!(
                "{base} + static_cast<u64>({}) * {pitch} + bytes_of({}, {size})",
                self.c(f, each, &self.row(a)),
                self.c(f, each, col)
            )
        };
        let target = self.base(dst.buffer, &self.c(f, each, &dst.rank));
        Ok(context! {
            id => s.id.index(),
            first => s.first,
            end => s.first + s.tasks,
            names => names(f),
            rows => self.c(f, None, &rows),
            row_bytes => self.row_bytes(f, cols, size),
            source => at(src, self.base(src.buffer, &self.c(f, None, &src.rank)), &from, col),
            strided => bulk && !(self.whole_rows(s.id, src)? && self.whole_rows(s.id, dst)?),
            source_pitch => spaced(from, &self.c(f, None, &s_step)),
            destination => at(dst, target, &to, d_col),
            destination_pitch => spaced(to, &self.c(f, None, &d_step)),
            each => each.map(|e| e.var.clone()),
            destinations => each.map_or("1".into(), |e| self.c(f, None, &e.extent)),
            load_waits => self.waits(f, if bulk { Agent::Loader } else { Agent::Copier }, Point::Start)?,
            store_waits => self.waits(f, Agent::Storer, Point::Start)?,
            store_signals => f.waits.iter().any(|w| w.by == Agent::Storer && !self.is_entry(w.signal)),
            posts => self.posts(f)?,
        })
    }

    /// A copy moves bytes.
    pub(super) fn check_dtypes(
        &self,
        f: &Family,
        src: &Access,
        dst: &Access,
    ) -> Result<(), EmitError> {
        let dtype = |a: &Access| self.plan.buffers[a.buffer].dtype;
        if dtype(src) == dtype(dst) {
            return Ok(());
        }
        let what = format!("a copy converts nothing, {} to {}", dtype(src), dtype(dst));
        Err(EmitError::unsupported(f.name.clone(), what))
    }

    /// Bytes of so many columns: none, where a task's columns lie past the end.
    fn row_bytes(&self, f: &Family, columns: &Expr, size: u64) -> String {
        let say = self.c(f, None, columns);
        match columns {
            Expr::Const(_) | Expr::Dim(_) => format!("bytes_of({say}, {size})"),
            _ => format!("bytes_of(max_i(0, {say}), {size})"),
        }
    }

    /// How many rows of the last dimension a region has, and how many rows of the buffer apart, if they are evenly spaced:
    /// one dimension is cut, and all behind it are whole, or all a single index.
    fn rows(&self, a: &Access) -> Option<(Expr, Expr)> {
        let leading = &a.region[..a.region.len().checked_sub(1)?];
        let cut = leading.iter().position(|(_, len)| *len != Expr::Const(1));
        let cut = cut.unwrap_or(leading.len().checked_sub(1)?);
        let behind = || leading.iter().enumerate().skip(cut + 1);
        let rows = leading[cut].1.clone();
        let extents = || behind().map(|(d, _)| self.extent(a.buffer, d));
        if behind().all(|(_, (_, len))| *len == Expr::Const(1)) {
            return Some((rows, extents().fold(Expr::Const(1), |n, e| n * e)));
        }
        let whole = |(d, (base, len)): (usize, &(Expr, Expr))| {
            *base == Expr::Const(0) && *len == self.extent(a.buffer, d)
        };
        behind().all(whole).then(|| (extents().fold(rows, |n, e| n * e), Expr::Const(1)))
    }

    /// One reduction family: the sum over `each` of its source, written to every destination; and how many these are.
    pub fn reduce(&self, s: Slice) -> Result<(Value, i32), EmitError> {
        let f = &self.plan.families[s.id];
        let src = self.access(f, Operand::Src)?;
        let own = Expr::Var(Var::RANK);
        // Slots of the own rank, one after the other; or one buffer of every rank.
        let everywhere = src.rank == Expr::Var(Var::EACH);
        let (Some(each), true, 3) = (&src.each, everywhere || src.rank == own, src.region.len())
        else {
            return Err(EmitError::unsupported(
                f.name.clone(),
                "a sum runs over slots of its own rank, or over all ranks",
            ));
        };
        let by_each =
            src.region.iter().any(|(b, l)| b.mentions(Var::EACH) || l.mentions(Var::EACH));
        let leads = if everywhere {
            !by_each && src.region[0].1 == Expr::Const(1)
        } else {
            src.region[0] == (Expr::Var(Var::EACH), Expr::Const(1))
        };
        let ((_, rows), (col, cols)) = (&src.region[1], &src.region[2]);
        let size = self.plan.buffers[src.buffer].dtype.size_bytes();
        let pitch = self.own_pitch_bytes(src.buffer);
        let (mut destinations, mut n_destinations) = (Vec::new(), 0);
        for dst in f.accesses.iter().filter(|a| a.operand == Operand::Dst) {
            let n = dst.region.len();
            let same = dst.region[n - 1].1 == *cols && n >= 2 && dst.region[n - 2].1 == *rows;
            if !leads || !same || dst.when.is_some() {
                let what = "source and destination of a sum differ in shape";
                return Err(EmitError::unsupported(f.name.clone(), what));
            }
            let each = dst.each.as_ref();
            let end = match each.map(|e| &e.extent) {
                None => n_destinations + 1,
                Some(Expr::Const(n)) if (1..=MAX_RANKS as i32).contains(n) => n_destinations + n,
                Some(_) => {
                    let what = format!("a sum goes to 1 to {MAX_RANKS} places at once");
                    return Err(EmitError::unsupported(f.name.clone(), what));
                }
            };
            // Rows of another rank must be as long as the own ones; the own ones may be what they are.
            let (pitch, base) = if dst.rank == own {
                (self.own_pitch_bytes(dst.buffer), self.base(dst.buffer, "params.header.rank"))
            } else {
                let pitch = self.pitch_bytes(&f.name, dst.buffer)?.to_string();
                (pitch, self.base(dst.buffer, &self.c(f, each, &dst.rank)))
            };
            let size = self.plan.buffers[dst.buffer].dtype.size_bytes();
            let (row, col) =
                (self.c(f, each, &self.row(dst)), self.c(f, each, &dst.region[n - 1].0));
            let address =
                format!("{base} + static_cast<u64>({row}) * {pitch} + bytes_of({col}, {size})");
            let each = each.map(|e| e.var.clone());
            destinations.push(context! { address, pitch, each, first => n_destinations, end });
            n_destinations = end;
        }
        let (base, row, stride) = if everywhere {
            let stride = "params.header.sym_stride_bytes".to_string();
            (self.base(src.buffer, "0"), self.row(src), stride)
        } else {
            let rows = self.c(f, None, &self.extent(src.buffer, 1));
            let stride = format!("static_cast<u64>({rows}) * {pitch}");
            (self.base(src.buffer, "params.header.rank"), src.region[1].0.clone(), stride)
        };
        let operands = self.sum_operands(s, (rows, cols))?;
        let (row, col) = (self.c(f, None, &row), self.c(f, None, col));
        let value = context! {
            id => s.id.index(),
            first => s.first,
            end => s.first + s.tasks,
            names => names(f),
            operands,
            rows => self.c(f, None, rows),
            columns => self.c(f, None, cols),
            sources => self.c(f, None, &each.extent),
            source => format!("{base} + static_cast<u64>({row}) * {pitch} + bytes_of({col}, {size})"),
            source_stride => stride,
            source_pitch => pitch,
            destinations,
            load_waits => self.waits(f, Agent::Copier, Point::Start)?,
            posts => self.posts(f)?,
        };
        Ok((value, n_destinations))
    }

    /// A bulk copy moves whole rows without gaps, in multiples of 16 bytes, on every rank; or parts of rows, each of which fits a
    /// stage.
    fn check_rows(&self, id: FamId, src: &Access, dst: &Access) -> Result<(), EmitError> {
        let (mut aligned, mut longest) = (true, 0);
        for access in [src, dst] {
            self.each_row(id, access, |base, len, pitch| {
                aligned &= [base, len, pitch].iter().all(|n| n % 16 == 0);
                longest = longest.max(len);
            })?;
        }
        if !aligned {
            let what = format!(
                "{} to {} is not rows of 16-byte multiples: use via=ldst",
                src.buffer, dst.buffer
            );
            return Err(EmitError::unsupported(id.to_string(), what));
        }
        let whole = self.whole_rows(id, src)? && self.whole_rows(id, dst)?;
        if longest > i64::from(COPY_STAGE_BYTES) && !whole {
            let what = format!(
                "parts of rows of {longest} bytes do not fit a stage of {COPY_STAGE_BYTES}: use via=ldst"
            );
            return Err(EmitError::unsupported(id.to_string(), what));
        }
        Ok(())
    }

    /// Whether all rows of an access are whole, and multiples of 16 bytes.
    fn whole_rows(&self, id: FamId, a: &Access) -> Result<bool, EmitError> {
        let mut whole = true;
        self.each_row(id, a, |base, len, pitch| {
            whole &= base == 0 && len == pitch && pitch % 16 == 0;
        })?;
        Ok(whole)
    }

    /// Runs `f` for first byte, length and pitch of the rows of an access, in every task of every rank.
    fn each_row(
        &self,
        id: FamId,
        a: &Access,
        mut f: impl FnMut(i64, i64, i64),
    ) -> Result<(), EmitError> {
        let size = self.plan.buffers[a.buffer].dtype.size_bytes() as i64;
        for rank in 0..self.plan.mesh.size() as usize {
            for task in self.points.tasks(id, rank, 1)? {
                self.points.for_each::<EmitError>(&task, 0, a.each.as_ref(), None, |at| {
                    let Some(r) = self.points.region(at, a)? else { return Ok(()) };
                    let (base, len) = r.dims[r.dims.len() - 1];
                    let pitch = self.points.pitch(a.buffer, r.rank)?;
                    f(base * size, len * size, pitch * size);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// A distance in memory, so many times.
fn spaced(pitch: String, times: &str) -> String {
    if times == "1" { pitch } else { format!("{pitch} * ({times})") }
}
