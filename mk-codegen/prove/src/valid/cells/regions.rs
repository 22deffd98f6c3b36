//! Regions of accesses as functions of the run-time dimension, while a plan is unrolled.

use super::{Cell, Halt};
use crate::hash::{FastMap, FastSet};
use crate::valid::{
    boxes::{BoxId, Boxes},
    leaf,
    rotation::Way,
    spans::{
        AtPlaces, LiveId, Part, SpanId, Spans,
        domain::{Line, Places},
        function::Stop,
        meet,
    },
    touched::{Operated, Touched},
};
use mk_plan::{Access, Entity, Expr, FamId, Operand, PointError, Region, Task};
use std::collections::BTreeSet;

/// The dimension of an access, and the values of the variables that its expressions name.
type Key = (u32, [i32; FEW]);

/// The number of a dimension of an access, and the variables that it names; none if it does not name the run-time
/// dimension.
type Named = (u32, Option<Vec<u8>>);

/// Most variables of which values are remembered.
const FEW: usize = 4;

/// An operand, at which step, for which value of `each`, and the lengths of its dimensions.
type Sized = (Operand, u32, Option<i64>, Vec<u32>);

/// Makes the boxes of one class.
pub(in crate::valid) struct Regions<'c> {
    cell: &'c Cell<'c>,
    /// By family, line and dimension.
    named: Vec<Vec<Vec<Named>>>,
    known: FastMap<Key, Option<SpanId>>,
    constants: FastMap<(i64, i64), Option<SpanId>>,
    /// Spans that lie inside a dimension of a buffer on a rank.
    inside: FastSet<(SpanId, u32, u32, u32)>,
    /// Operands, by family, that fit each other.
    fitted: FastSet<(FamId, Vec<Sized>)>,
    /// Ranks are folded, and a region does not turn as a whole.
    pub unlike: bool,
    /// Why this cannot go on.
    pub halt: Option<Halt>,
}

impl<'c> Regions<'c> {
    pub fn new(cell: &'c Cell<'c>) -> Regions<'c> {
        Regions {
            cell,
            named: named(cell),
            known: FastMap::default(),
            constants: FastMap::default(),
            inside: FastSet::default(),
            fitted: FastSet::default(),
            unlike: false,
            halt: None,
        }
    }

    /// The box of one repetition of an access, its version, and whose memory it is; `None` where it is empty for all
    /// values. With the dimensions that turn: the box as rank 0 has it.
    pub fn region(
        &mut self,
        boxes: &mut Boxes,
        family: FamId,
        line: usize,
        at: &Task,
        a: &Access,
        turned: Option<&[Option<Way>]>,
    ) -> Result<Option<(BoxId, i64, usize)>, PointError> {
        let points = self.cell.points;
        let Some(spans) = &mut boxes.spans else { return Ok(None) };
        // A kernel has the rank of a region in which there is nothing, too.
        let rank = points.rank(at, &a.rank)?;
        let mut ids = Vec::with_capacity(a.region.len());
        for d in 0..a.region.len() {
            match self.span(spans, family, line, d, at, a)? {
                Some(id) => ids.push(id),
                None => return Ok(None),
            }
        }
        let version = points.eval(at, &a.version)?;
        let (mut live, mut dims) = (self.cell.whole, Vec::with_capacity(ids.len()));
        for (d, id) in ids.iter().enumerate() {
            let span = &spans.all[*id as usize];
            dims.push((span.hull.0, span.hull.1 - span.hull.0));
            let key = (*id, a.buffer.index() as u32, rank as u32, d as u32);
            if !self.inside.contains(&key) {
                if let Some(value) = self.outside(spans, *id, a.buffer.index(), rank, d) {
                    self.stop(Stop::At(value), family, at, a, &a.region[d].0);
                    return Ok(None);
                }
                self.inside.insert(key);
            }
            match spans.both(live, spans.all[*id as usize].live, self.cell.whole) {
                Some(both) => live = both,
                None => return Ok(None),
            }
        }
        let mut hull = Region { rank, buffer: a.buffer, dims, version };
        if let Some(turned) = turned {
            hull.rank = 0;
            for d in 0..ids.len() {
                let Some(way) = turned[d] else { continue };
                match self.turned(spans, ids[d], a.buffer.index(), rank, (d, way)) {
                    Some(id) => {
                        ids[d] = id;
                        hull.dims[d].0 = spans.all[id as usize].hull.0;
                    }
                    None => self.unlike = true,
                }
            }
        }
        Ok(Some((boxes.add(&hull, &ids, live), version, rank)))
    }

    /// A span of a dimension that turns, as rank 0 has it: one that is the same for all values.
    fn turned(
        &mut self,
        spans: &mut Spans,
        id: SpanId,
        buffer: usize,
        rank: usize,
        (d, way): (usize, Way),
    ) -> Option<SpanId> {
        let span = &spans.all[id as usize];
        let extent = self.cell.shapes[buffer][rank][d].first()?.line.at_zero;
        if !span.constant {
            return None;
        }
        let (base, len) = (span.hull.0, span.hull.1 - span.hull.0);
        let base = way.turned_back(extent, (base, len), rank)?;
        let (cell, make) = (self.cell, |n| Line::constant(n));
        *self.constants.entry((base, len)).or_insert_with(|| {
            spans.intern(&cell.pieces(make(base)), &cell.pieces(make(len)), cell.whole)
        })
    }

    fn stop(&mut self, stop: Stop, family: FamId, at: &Task, a: &Access, e: &Expr) {
        let plan = self.cell.points.plan;
        let x = &plan.families[family];
        self.halt.get_or_insert_with(|| Halt::Stop {
            stop,
            place: format!("{family} {:?} {:?}: access {}", x.name, at.domain(), a.operand),
            text: plan.text(Some(x), a.each.as_ref(), e).to_string(),
        });
    }

    fn span(
        &mut self,
        spans: &mut Spans,
        family: FamId,
        line: usize,
        d: usize,
        at: &Task,
        a: &Access,
    ) -> Result<Option<SpanId>, PointError> {
        let (base, len) = &a.region[d];
        let (number, names) = &self.named[family.index()][line][d];
        let Some(names) = names else {
            let points = self.cell.points;
            let len = points.eval(at, len)?;
            if len < 1 {
                return Ok(None);
            }
            let base = points.eval(at, base)?;
            let (cell, make) = (self.cell, |n| Line::constant(n));
            return Ok(*self.constants.entry((base, len)).or_insert_with(|| {
                spans.intern(&cell.pieces(make(base)), &cell.pieces(make(len)), cell.whole)
            }));
        };
        let mut key: Option<Key> = (names.len() <= FEW).then_some((*number, [0; FEW]));
        for (i, v) in names.iter().enumerate() {
            let value = i32::try_from(at.vars.get(usize::from(*v)).copied().unwrap_or(0)).ok();
            key = key.zip(value).map(|((number, mut values), value)| {
                values[i] = value;
                (number, values)
            });
        }
        if let Some(known) = key.and_then(|key| self.known.get(&key)) {
            return Ok(*known);
        }
        let found = self.function(spans, at, base, len);
        match found {
            Ok(id) => {
                self.known.extend(key.map(|key| (key, id)));
                Ok(id)
            }
            Err((stop, which)) => {
                self.stop(stop, family, at, a, if which { len } else { base });
                Ok(None)
            }
        }
    }

    /// The error says whether it is the length's.
    fn function(
        &self,
        spans: &mut Spans,
        at: &Task,
        base: &Expr,
        len: &Expr,
    ) -> Result<Option<SpanId>, (Stop, bool)> {
        let (functions, rank) = (&self.cell.functions, at.rank());
        let len =
            functions.of(rank, &at.vars, len, &self.cell.places).map_err(|stop| (stop, true))?;
        let mut there = Vec::new();
        for piece in &len {
            let at = piece.places();
            if let Some((lo, hi)) = piece.line.positive(at.lo, at.hi) {
                there.push(Places { run: at.run, lo, hi });
            }
        }
        let base = functions.of(rank, &at.vars, base, &there).map_err(|stop| (stop, false))?;
        Ok(spans.intern(&base, &len, self.cell.whole))
    }

    /// A value for which a span leaves a dimension of its buffer.
    fn outside(
        &self,
        spans: &Spans,
        id: SpanId,
        buffer: usize,
        rank: usize,
        d: usize,
    ) -> Option<i64> {
        let mut found = None;
        let shape = &self.cell.shapes[buffer][rank][d];
        meet(&spans.all[id as usize].parts, shape, |at, part: &Part, extent| {
            for k in [at.lo, at.hi] {
                if part.base.at(k) < 0 || part.end.at(k) > extent.line.at(k) {
                    found.get_or_insert(spans.value(at.run, k));
                }
            }
        });
        found
    }

    /// Whether the operands of a task fit each other for every value.
    pub fn fit(&mut self, boxes: &Boxes, family: FamId, touched: &[Operated]) {
        let Some(spans) = &boxes.spans else { return };
        let ids = |b: &Option<BoxId>| b.map_or(&[][..], |b| &boxes.all[b as usize].spans[..]);
        let lengths = |b: &Option<BoxId>| -> Vec<u32> {
            ids(b).iter().map(|id| spans.all[*id as usize].length).collect()
        };
        let key = touched.iter().map(|t| (t.0, t.1, t.2, lengths(&t.3))).collect();
        if !self.fitted.insert((family, key)) {
            return;
        }
        let x = &self.cell.points.plan.families[family];
        let varying = touched.iter().flat_map(|t| ids(&t.3)).map(|id| &spans.all[*id as usize]);
        let parts: Vec<Part> =
            varying.filter(|s| !s.constant).flat_map(|s| s.parts.iter().copied()).collect();
        for whole in &self.cell.places {
            // Between two of these all extents are linear and the same regions empty.
            let mut cuts = BTreeSet::from([whole.lo, whole.hi + 1]);
            for at in parts.iter().map(|p| p.at).filter(|at| at.run == whole.run) {
                cuts.extend([at.lo, at.hi + 1]);
            }
            let cuts: Vec<i64> = cuts.into_iter().collect();
            for range in cuts.windows(2) {
                let (lo, hi) = (range[0], range[1] - 1);
                let middle = lo + (hi - lo) / 2;
                // An extent of 1 is special, and lies at an end; what is equal at five other places is equal as
                // products are, too.
                for k in BTreeSet::from([lo, lo + 1, lo + 2, middle, hi - 2, hi - 1, hi]) {
                    if k < lo || k > hi {
                        continue;
                    }
                    let extents: Vec<Option<Vec<(i64, i64)>>> = touched
                        .iter()
                        .map(|t| {
                            t.3.as_ref()?;
                            ids(&t.3).iter().map(|id| spans.at(*id, whole.run, k)).collect()
                        })
                        .collect();
                    let regions: Vec<Touched<'_>> = touched
                        .iter()
                        .zip(&extents)
                        .map(|(t, e)| Touched {
                            operand: t.0,
                            step: t.1,
                            each: t.2,
                            extents: e.as_deref(),
                        })
                        .collect();
                    if leaf::misfit(x, &regions).is_err() {
                        self.halt.get_or_insert_with(|| Halt::Stop {
                            stop: Stop::At(spans.value(whole.run, k)),
                            place: format!("{family} {:?}", x.name),
                            text: "its operands".into(),
                        });
                        return;
                    }
                }
            }
        }
    }
}

/// The variables that each dimension of each access names, if it names the run-time dimension.
fn named(cell: &Cell<'_>) -> Vec<Vec<Vec<Named>>> {
    let (dim, mut next) = (cell.functions.dim, 0);
    let mut of_dim = |(base, len): &(Expr, Expr)| {
        next += 1;
        if !base.names_dim(dim) && !len.names_dim(dim) {
            return (next, None);
        }
        let mut vars = BTreeSet::new();
        for e in [base, len] {
            e.visit(&mut |e| {
                if let Expr::Var(v) = e {
                    vars.insert(v.0);
                }
            });
        }
        (next, Some(vars.into_iter().collect()))
    };
    let families = cell.points.plan.families.values();
    families
        .map(|x| x.accesses.iter().map(|a| a.region.iter().map(&mut of_dim).collect()).collect())
        .collect()
}

/// Spans for some cells; each cell's places are a set with its name.
pub(in crate::valid) fn spans_of(cells: &[Cell<'_>]) -> Spans {
    let mut spans = Spans::new(cells.first().map_or(Vec::new(), |c| c.functions.runs.to_vec()));
    for (i, cell) in cells.iter().enumerate() {
        debug_assert_eq!(cell.whole, i as LiveId + 1);
        spans.lives.push(cell.places.clone());
    }
    spans
}
