//! Rule 5 for all values of the run-time dimension: what is read was written, and outputs are written exactly once.
//!
//! A read that has the spans of its writes in every dimension that varies is covered for all values if it is for one.
//! Any other is looked at where the order of bases and ends can change: at the ends of their linear pieces and where
//! two lines cross. Between two such places next to each other the same parts of the same boxes overlap.
//!
//! Outputs are written exactly once if writes do not overlap (rule 1 sees to that) and their areas add up to the whole,
//! as polynomials of the dimension between the places at which a piece begins or ends.

use crate::hash::{FastMap, FastSet};
use crate::valid::{
    actor::Actor,
    boxes::{BoxId, Boxed},
    cells::Shapes,
    coverage::{summed, takes},
    limits::MAX_PAIRS,
    races::{Group, Groups},
    region::{text, uncovered},
    report::{Found, Violation},
    site,
    spans::{
        AtPlaces, SpanId, Spans,
        domain::{Line, Places},
        function::Piece,
        meet,
    },
    world::{AccRec, World},
};
use mk_plan::{BufId, Entity, Mode, Space};
use std::collections::{BTreeMap, BTreeSet};

/// Most dimensions of a buffer that may vary at once, and one more: places at which polynomials that are equal are
/// compared.
const DEGREE: usize = 4;

/// Checks every class. `shapes[i]` are the shapes of class `i`.
pub(super) fn check(
    world: &World<'_>,
    groups: &[Groups],
    overlaps: &[Vec<BoxId>],
    shapes: &[&Shapes],
) -> Found {
    let Some(spans) = &world.boxes.spans else { return Found::default() };
    let mut cover = Cover {
        world,
        spans,
        groups,
        overlaps,
        summed: summed(world.plan),
        known: FastSet::default(),
        told: FastSet::default(),
        work: 0,
        found: Found::default(),
    };
    for (class, shape) in shapes.iter().enumerate().take(world.classes.len()) {
        for id in 0..world.boxes.all.len() {
            cover.reads(class, id as BoxId);
            cover.lost(class, id as BoxId);
        }
        for (id, b) in world.plan.buffers.iter().filter(|b| b.1.space == Space::Out) {
            for rank in 0..world.ranks_looked_at() {
                if let Some((value, message)) = cover.output(class, id, rank, shape)
                    && cover.told.insert((id.index() as u32, u32::MAX))
                {
                    let name = b.name.clone();
                    cover.found.violations.push(Violation::Output {
                        rank,
                        buffer: id,
                        name,
                        message,
                    });
                    cover.found.values.push(value);
                }
            }
        }
    }
    if cover.work > MAX_PAIRS {
        let what = "places at which reads are compared with writes".into();
        cover.found.violations.push(Violation::Limit { what, limit: MAX_PAIRS });
    }
    cover.found
}

struct Cover<'c> {
    world: &'c World<'c>,
    spans: &'c Spans,
    groups: &'c [Groups],
    overlaps: &'c [Vec<BoxId>],
    summed: BTreeSet<BufId>,
    /// Boxes that are known to be covered by others; see [`Cover::relative`].
    known: FastSet<Vec<Vec<i64>>>,
    told: FastSet<(u32, u32)>,
    work: u64,
    found: Found,
}

impl Cover<'_> {
    fn boxed(&self, id: BoxId) -> &Boxed {
        &self.world.boxes.all[id as usize]
    }

    /// Reads and accumulations of one box.
    fn reads(&mut self, class: usize, id: BoxId) {
        let (world, boxed) = (self.world, self.boxed(id));
        if world.plan.buffers[boxed.buffer].space == Space::In {
            return;
        }
        let spans = boxed.spans.to_vec();
        let accs = &world.classes[class].accs;
        let mut seen: Vec<(i64, Mode)> = Vec::new();
        for a in self.groups[class].get(id).accs.iter().map(|a| &accs[*a as usize]) {
            if a.mode == Mode::Write || seen.contains(&(a.version, a.mode)) {
                continue;
            }
            seen.push((a.version, a.mode));
            let counts = |w: &AccRec| match a.mode {
                Mode::Accumulate => w.mode == Mode::Write && w.version < a.version,
                _ => w.mode != Mode::Read && w.version == a.version,
            };
            let mut parts: Vec<&[SpanId]> = Vec::new();
            for &other in &self.overlaps[id as usize] {
                let g = self.groups[class].get(other);
                if g.accs[..g.writers].iter().any(|w| counts(&accs[*w as usize])) {
                    parts.push(&world.boxes.all[other as usize].spans);
                }
            }
            parts.sort_unstable();
            parts.dedup();
            if let Some((value, missing)) = self.missing(&spans, &parts)
                && let Some(read) = self.untold(class, a)
            {
                self.found.violations.push(Violation::Uncovered { read, missing });
                self.found.values.push(value);
            }
        }
    }

    /// Writes of one box that nobody reads.
    fn lost(&mut self, class: usize, id: BoxId) {
        let (world, boxed) = (self.world, self.boxed(id));
        if !self.summed.contains(&boxed.buffer) {
            return;
        }
        let spans = boxed.spans.to_vec();
        let accs = &world.classes[class].accs;
        let group = self.groups[class].get(id);
        let mut seen: Vec<i64> = Vec::new();
        for w in group.accs[..group.writers].iter().map(|a| &accs[*a as usize]) {
            if seen.contains(&w.version) {
                continue;
            }
            seen.push(w.version);
            let groups = &self.groups[class];
            let taken = |g: Group<'_>| g.accs.iter().any(|r| takes(w, &accs[*r as usize]));
            let others = self.overlaps[id as usize].iter().filter(|o| taken(groups.get(**o)));
            let mut parts: Vec<&[SpanId]> =
                others.map(|o| &world.boxes.all[*o as usize].spans[..]).collect();
            parts.sort_unstable();
            parts.dedup();
            if let Some((value, missing)) = self.missing(&spans, &parts)
                && let Some(write) = self.untold(class, w)
            {
                self.found.violations.push(Violation::Unread { write, missing });
                self.found.values.push(value);
            }
        }
    }

    /// Who makes an access, unless its line was told of before.
    fn untold(&mut self, class: usize, a: &AccRec) -> Option<Box<Actor>> {
        let family = self.world.classes[class].tasks[a.task as usize].family;
        let epoch = self.world.class_of.iter().position(|x| *x == class).unwrap_or(0) + 1;
        let is_new = self.told.insert((family.index() as u32, a.line));
        is_new.then(|| site::actor(self.world, epoch as u32, a))
    }

    /// A value of the dimension, and a part of a box that no part covers with it.
    fn missing(&mut self, whole: &[SpanId], parts: &[&[SpanId]]) -> Option<(i64, String)> {
        let spans = self.spans;
        let constant = |id: &SpanId| spans.all[*id as usize].constant;
        let steady = |d: &usize| constant(&whole[*d]) && parts.iter().all(|p| constant(&p[*d]));
        let (fixed, varying): (Vec<usize>, Vec<usize>) = (0..whole.len()).partition(steady);
        // Parts that are there with it, and as long in all that varies.
        let same = parts.iter().filter(|p| varying.iter().all(|d| p[*d] == whole[*d]));
        let of = |list: &[SpanId]| -> Vec<(i64, i64)> {
            let hull = |d: &usize| spans.all[list[*d] as usize].hull;
            fixed.iter().map(hull).map(|(base, end)| (base, end - base)).collect()
        };
        let same: Vec<_> = same.map(|p| of(p)).collect();
        self.work += parts.len() as u64;
        uncovered(&of(whole), same.iter().map(|p| &p[..]))?;
        let key = self.relative(whole, parts, &fixed, &varying);
        if self.work > MAX_PAIRS || self.known.contains(&key) {
            return None;
        }
        let live = spans.overlap(whole, whole);
        let edges: Vec<Vec<SpanId>> = (0..whole.len())
            .map(|d| parts.iter().map(|p| p[d]).chain([whole[d]]).collect())
            .collect();
        for at in &live {
            for k in self.places(at, &edges) {
                let there = |list: &[SpanId]| -> Option<Vec<(i64, i64)>> {
                    list.iter().map(|id| spans.at(*id, at.run, k)).collect()
                };
                let Some(whole) = there(whole) else { continue };
                let parts: Vec<_> = parts.iter().filter_map(|p| there(p)).collect();
                self.work += 1 + parts.len() as u64;
                if let Some(missing) = uncovered(&whole, parts.iter().map(|p| &p[..])) {
                    return Some((spans.value(at.run, k), text(&missing)));
                }
            }
        }
        self.known.insert(key);
        None
    }

    /// A box and its parts, from the box's base in dimensions that are the same for all values: the same answer holds
    /// wherever such a box lies.
    fn relative(
        &self,
        whole: &[SpanId],
        parts: &[&[SpanId]],
        fixed: &[usize],
        varying: &[usize],
    ) -> Vec<Vec<i64>> {
        let hull = |list: &[SpanId], d: usize| self.spans.all[list[d] as usize].hull;
        let of = |list: &&[SpanId]| -> Vec<i64> {
            let ids = varying.iter().map(|d| i64::from(list[*d]));
            let ends = fixed.iter().flat_map(|d| {
                let base = hull(whole, *d).0;
                let (low, high) = hull(list, *d);
                [low - base, high - base]
            });
            ids.chain(ends).collect()
        };
        let mut key: Vec<Vec<i64>> = parts.iter().map(of).collect();
        key.sort_unstable();
        key.dedup();
        key.push(of(&whole));
        key.push(vec![varying.len() as i64]);
        key
    }

    /// Places of a range that stand for all of it: the order of bases and ends in each dimension is the same between
    /// them.
    fn places(&mut self, at: &Places, edges: &[Vec<SpanId>]) -> Vec<i64> {
        let mut places = BTreeSet::from([at.lo, at.hi]);
        let mut add = |k: i64| {
            places.extend((k - 1..=k + 1).filter(|k| (at.lo..=at.hi).contains(k)));
        };
        let mut work = 0;
        for list in edges {
            let mut lines: BTreeSet<Line> = BTreeSet::new();
            for id in list {
                for part in self.spans.all[*id as usize].parts.iter().filter(|p| p.at.run == at.run)
                {
                    if part.at.hi < at.lo || part.at.lo > at.hi {
                        continue;
                    }
                    lines.extend([part.base, part.end]);
                    add(part.at.lo);
                    add(part.at.hi);
                }
            }
            let lines: Vec<Line> = lines.into_iter().collect();
            work += (lines.len() * lines.len()) as u64;
            if self.work.saturating_add(work) > MAX_PAIRS {
                break;
            }
            for (i, a) in lines.iter().enumerate() {
                for b in &lines[i + 1..] {
                    let apart = a.minus(*b);
                    if apart.slope != 0 {
                        // Next to a crossing that is no integer, too.
                        add((-apart.at_zero).div_euclid(apart.slope));
                        add((-apart.at_zero).div_euclid(apart.slope) + 1);
                    }
                }
            }
        }
        self.work += work;
        places.into_iter().collect()
    }

    /// A value for which an output is not written exactly once, and what is wrong with it.
    fn output(
        &mut self,
        class: usize,
        buffer: BufId,
        rank: usize,
        shapes: &Shapes,
    ) -> Option<(i64, String)> {
        let (world, spans) = (self.world, self.spans);
        let accs = &world.classes[class].accs;
        let (mut version, mut disjoint) = (None, true);
        let mut writes: BTreeMap<&[SpanId], i128> = BTreeMap::new();
        for (id, b) in world.boxes.all.iter().enumerate() {
            if b.rank != rank || b.buffer != buffer {
                continue;
            }
            let g = self.groups[class].get(id as BoxId);
            for w in g.accs[..g.writers].iter().map(|a| &accs[*a as usize]) {
                if w.mode == Mode::Write {
                    *writes.entry(&b.spans).or_default() += 1;
                    disjoint &= *version.get_or_insert(w.version) == w.version;
                }
            }
        }
        let mut changes = Changes::default();
        let extents: Vec<&[Piece]> = shapes[buffer.index()][rank].iter().map(|p| &p[..]).collect();
        let mut wanted: Vec<(Places, Vec<Line>)> = Vec::new();
        for (i, dim) in extents.iter().enumerate() {
            wanted = match i {
                0 => dim.iter().map(|p| (p.places(), vec![p.line])).collect(),
                _ => product(&wanted, dim, |p| p.line),
            };
        }
        for (at, lines) in &wanted {
            changes.add(*at, lines, -1);
        }
        // Writes as long as each other are one.
        let mut sizes: FastMap<Vec<u32>, (&[SpanId], i128)> = FastMap::default();
        for (ids, n) in &writes {
            let lengths = ids.iter().map(|id| spans.all[*id as usize].length).collect();
            sizes.entry(lengths).or_insert((ids, 0)).1 += n;
        }
        for (ids, n) in sizes.values() {
            let mut area: Vec<(Places, Vec<Line>)> = Vec::new();
            for (i, id) in ids.iter().enumerate() {
                let parts = &spans.all[*id as usize].parts;
                area = match i {
                    0 => parts.iter().map(|p| (p.at, vec![p.end.minus(p.base)])).collect(),
                    _ => product(&area, parts, |p| p.end.minus(p.base)),
                };
            }
            for (at, lines) in &area {
                changes.add(*at, lines, *n);
            }
        }
        let whole: Vec<Places> = wanted.iter().map(|w| w.0).collect();
        if let Some((run, k, apart)) = changes.first_other(&whole) {
            let message = match apart < 0 {
                true => format!("{} of its elements are never written", -apart),
                false => format!("{apart} elements are written more than once"),
            };
            return Some((spans.value(run, k), message));
        }
        if disjoint {
            return None;
        }
        // With as many elements as there are, some may be written in two versions and others never.
        self.whole_output(&extents, &writes.keys().copied().collect::<Vec<_>>())
    }

    fn whole_output(&mut self, sizes: &[&[Piece]], writes: &[&[SpanId]]) -> Option<(i64, String)> {
        let spans = self.spans;
        let edges: Vec<Vec<SpanId>> =
            (0..sizes.len()).map(|d| writes.iter().map(|w| w[d]).collect()).collect();
        for first in sizes.first().copied().unwrap_or_default() {
            let at = first.places();
            let mut places = self.places(&at, &edges);
            for p in sizes.iter().flat_map(|e| e.iter()).filter(|p| p.run == at.run) {
                places.extend([p.lo, p.hi].into_iter().filter(|k| (at.lo..=at.hi).contains(k)));
            }
            for k in places {
                let extent = |e: &&[Piece]| {
                    let p = e.iter().find(|p| p.run == at.run && (p.lo..=p.hi).contains(&k));
                    p.map(|p| (0, p.line.at(k)))
                };
                let Some(whole) = sizes.iter().map(extent).collect::<Option<Vec<_>>>() else {
                    continue;
                };
                let there = |list: &&[SpanId]| -> Option<Vec<(i64, i64)>> {
                    list.iter().map(|id| spans.at(*id, at.run, k)).collect()
                };
                let parts: Vec<_> = writes.iter().filter_map(there).collect();
                self.work += 1 + parts.len() as u64;
                if self.work > MAX_PAIRS {
                    return None;
                }
                if whole.iter().all(|d| d.1 > 0)
                    && let Some(missing) = uncovered(&whole, parts.iter().map(|p| &p[..]))
                {
                    let message = format!("{} is never written", text(&missing));
                    return Some((spans.value(at.run, k), message));
                }
            }
        }
        None
    }
}

/// Another factor.
fn product<T: AtPlaces>(
    factors: &[(Places, Vec<Line>)],
    next: &[T],
    line: impl Fn(&T) -> Line,
) -> Vec<(Places, Vec<Line>)> {
    let mut out = Vec::new();
    meet(factors, next, |at, (_, lines), t| out.push((at, [&lines[..], &[line(t)]].concat())));
    out
}

impl AtPlaces for (Places, Vec<Line>) {
    fn places(&self) -> Places {
        self.0
    }
}

/// Coefficients of a polynomial of the place.
type Poly = [i128; DEGREE];

/// Where a sum of polynomials changes, and by what.
#[derive(Default)]
struct Changes {
    list: Vec<((u32, i64), Poly)>,
    /// Products of more varying factors than are looked at.
    steep: bool,
}

impl Changes {
    /// Adds `n` times a product of lines on some places.
    fn add(&mut self, at: Places, lines: &[Line], n: i128) {
        let mut poly: Poly = [0; DEGREE];
        poly[0] = n;
        for line in lines {
            let mut next: Poly = [0; DEGREE];
            for (d, c) in poly.iter().enumerate() {
                next[d] += c * i128::from(line.at_zero);
                match next.get_mut(d + 1) {
                    Some(up) => *up += c * i128::from(line.slope),
                    None => self.steep |= *c != 0 && line.slope != 0,
                }
            }
            poly = next;
        }
        self.list.push(((at.run, at.lo), poly));
        self.list.push(((at.run, at.hi + 1), poly.map(|c| -c)));
    }

    /// The first place of `whole` at which the sum is not 0, and the sum there.
    fn first_other(mut self, whole: &[Places]) -> Option<(u32, i64, i128)> {
        if let (true, Some(first)) = (self.steep, whole.first()) {
            return Some((first.run, first.lo, 0));
        }
        self.list.sort_unstable_by_key(|c| c.0);
        let ends: FastMap<u32, i64> = whole.iter().map(|p| (p.run, p.hi)).collect();
        let mut sum: Poly = [0; DEGREE];
        for (i, ((run, k), change)) in self.list.iter().enumerate() {
            sum.iter_mut().zip(change).for_each(|(s, c)| *s += c);
            let end = ends.get(run).copied().unwrap_or(*k);
            let next = self.list.get(i + 1).filter(|n| n.0.0 == *run).map_or(end + 1, |n| n.0.1);
            // A polynomial that is 0 at so many places, or at all there are, is 0.
            for k in (*k..next).take(DEGREE) {
                let value = sum.iter().rev().fold(0i128, |v, c| v * i128::from(k) + c);
                if value != 0 {
                    return Some((*run, k, value));
                }
            }
        }
        None
    }
}
