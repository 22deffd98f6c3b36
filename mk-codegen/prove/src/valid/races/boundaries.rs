//! Pairs of accesses between launches, most of which the boundaries of kernels order: all pairs of two boxes at once.

use super::{
    groups::Group,
    search::{Lines, Races},
};
use crate::hash::{FastMap, FastSet};
use crate::valid::{
    boxes::BoxId,
    limits::MAX_PAIRS,
    paths::{Goal, SigKey},
    world::AccRec,
};

/// What is known of pairs between launches.
#[derive(Default)]
pub(super) struct Boundaries {
    /// Lines for which the waits between epochs have been marked as used.
    marked: FastSet<Lines>,
    /// The last ones of them: pairs come box by box, and many are of the same lines.
    last_marked: Option<Lines>,
    profiles: Profiles,
    rows: Rows,
    /// Whether accesses of two profiles, with what the later ones know, are ordered by boundaries.
    settled: FastMap<Alike, bool>,
    last: Option<(Alike, bool)>,
}

/// Two profiles, what is known before the later accesses, and both epochs.
type Alike = (u32, u32, u32, u32, u32);

/// Who makes the accesses of a box.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Maker {
    writes: bool,
    host: bool,
    rank: u32,
    line: (u32, u32),
}

/// Makers of accesses of boxes, one number for those that are the same.
#[derive(Default)]
struct Profiles {
    all: Vec<Vec<Maker>>,
    ids: FastMap<Vec<Maker>, u32>,
    /// By class, of each box.
    of: FastMap<usize, Vec<u32>>,
}

/// For each rank, the newest kernel that is known to have started before all accesses of a box, and before those that
/// write.
#[derive(Default)]
struct Rows {
    all: Vec<[Box<[u8]>; 2]>,
    ids: FastMap<[Box<[u8]>; 2], u32>,
    /// By epoch, of each box.
    of: FastMap<u32, Vec<u32>>,
}

/// Of no box yet.
const UNKNOWN: u32 = u32::MAX;

/// Later accesses, and ranks (of hosts, or not) whose earlier accesses are not known to come before them.
struct Left {
    ys: Vec<u32>,
    ranks: Vec<(u32, bool)>,
}

impl Boundaries {
    /// Box `i` in an earlier epoch against box `j` in a later one.
    pub fn between(&mut self, r: &mut Races<'_, '_, '_>, i: BoxId, xe: u32, j: BoxId, ye: u32) {
        let (gx, gy) = (r.group(xe, i), r.group(ye, j));
        if (gx.writers == 0 && gy.writers == 0) || gx.accs.is_empty() || gy.accs.is_empty() {
            return;
        }
        let readers = gx.accs.len() - gx.writers;
        r.pairs += (gx.writers * gy.accs.len() + readers * gy.writers) as u64;
        if !r.world().rotation.is_folded() && self.alike(r, (i, xe, gx), (j, ye, gy)) {
            return;
        }
        let (xs, ys) = (gx.accs, gy.accs);
        for (xs, ys) in [(&xs[..gx.writers], ys), (&xs[gx.writers..], &ys[..gy.writers])] {
            self.settle(r, xs, xe, ys, ye);
        }
    }

    /// Whether boundaries are known to order two boxes, from others that are like them.
    fn alike(
        &mut self,
        r: &mut Races<'_, '_, '_>,
        (i, xe, gx): (BoxId, u32, Group<'_>),
        (j, ye, gy): (BoxId, u32, Group<'_>),
    ) -> bool {
        let (x, y) = (self.profile(r, i, xe, gx), self.profile(r, j, ye, gy));
        let pair = (x, y, self.row(r, j, ye, gy), xe, ye);
        if let Some((last, settled)) = self.last
            && last == pair
        {
            return settled;
        }
        let settled = match self.settled.get(&pair) {
            Some(settled) => *settled,
            None => {
                let [all, writers] = &self.rows.all[pair.2 as usize];
                let before = |m: &Maker| {
                    let row = if m.writes { all } else { writers };
                    !m.host && u32::from(row[m.rank as usize]) > xe
                };
                let settled = self.profiles.all[x as usize].iter().all(before);
                if settled {
                    self.mark_all(r, (xe, gx), (ye, gy));
                }
                self.settled.insert(pair, settled);
                settled
            }
        };
        self.last = Some((pair, settled));
        settled
    }

    /// Marks the waits of all pairs of lines of two boxes.
    fn mark_all(
        &mut self,
        r: &mut Races<'_, '_, '_>,
        (xe, gx): (u32, Group<'_>),
        (ye, gy): (u32, Group<'_>),
    ) {
        // One access for each line and rank.
        let some = |r: &Races<'_, '_, '_>, e: u32, accs: &[u32]| {
            let mut seen = Vec::new();
            let mut new = |id: &u32| {
                let a = r.acc(e, *id);
                let key = (r.line(e, &a), r.rank(e, &a));
                let is_new = !seen.contains(&key);
                if is_new {
                    seen.push(key);
                }
                is_new
            };
            accs.iter().copied().filter(|id| new(id)).collect::<Vec<u32>>()
        };
        let halves =
            [(&gx.accs[..gx.writers], gy.accs), (&gx.accs[gx.writers..], &gy.accs[..gy.writers])];
        for (xs, ys) in halves {
            let (xs, ys) = (some(r, xe, xs), some(r, ye, ys));
            for y in ys {
                xs.iter().for_each(|x| self.mark(r, *x, xe, y, ye));
            }
        }
    }

    fn profile(&mut self, r: &Races<'_, '_, '_>, b: BoxId, e: u32, group: Group<'_>) -> u32 {
        let world = r.world();
        let of = self.profiles.of.entry(world.class_of[e as usize - 1]);
        let of = of.or_insert_with(|| vec![UNKNOWN; world.boxes.all.len()]);
        let slot = &mut of[b as usize];
        if *slot != UNKNOWN {
            return *slot;
        }
        let mut makers: Vec<Maker> = Vec::new();
        for (n, id) in group.accs.iter().enumerate() {
            let a = r.acc(e, *id);
            let (host, rank, line) = (r.host(e, &a), r.rank(e, &a), r.line(e, &a));
            let maker = Maker { writes: n < group.writers, host, rank, line };
            if !makers.contains(&maker) {
                makers.push(maker);
            }
        }
        let new = self.profiles.all.len() as u32;
        let id = *self.profiles.ids.entry(makers).or_insert_with_key(|makers| {
            self.profiles.all.push(makers.clone());
            new
        });
        *slot = id;
        id
    }

    fn row(&mut self, r: &mut Races<'_, '_, '_>, b: BoxId, e: u32, group: Group<'_>) -> u32 {
        let of = self.rows.of.entry(e);
        let of = of.or_insert_with(|| vec![UNKNOWN; r.world().boxes.all.len()]);
        let slot = &mut of[b as usize];
        if *slot != UNKNOWN {
            return *slot;
        }
        let ranks = r.world().ranks;
        let mut rows = [vec![u8::MAX; ranks], vec![u8::MAX; ranks]];
        let mut last = None;
        for (n, id) in group.accs.iter().enumerate() {
            let key = r.paths.key(e, *id);
            let writes = n < group.writers;
            if last.replace((key, writes)) == Some((key, writes)) {
                continue;
            }
            let [all, written] = &mut rows;
            for (rank, (all, written)) in all.iter_mut().zip(written).enumerate() {
                let started = r.paths.started(e, key, rank as u32) as u8;
                *all = (*all).min(started);
                if writes {
                    *written = (*written).min(started);
                }
            }
        }
        let new = self.rows.all.len() as u32;
        let id = *self.rows.ids.entry(rows.map(Vec::into_boxed_slice)).or_insert_with_key(|rows| {
            self.rows.all.push(rows.clone());
            new
        });
        *slot = id;
        id
    }

    /// All pairs of an earlier and a later epoch, with any values of the run-time dimension: of accesses to the same
    /// memory.
    pub fn launches(&mut self, r: &mut Races<'_, '_, '_>, xe: u32, ye: u32) {
        for memory in r.world().boxes.memories() {
            let accs = |r: &Races<'_, '_, '_>, e: u32, writers: Option<bool>| -> Vec<u32> {
                let groups = memory.iter().map(|b| r.group(e, *b));
                let part = |g: Group<'_>| match writers {
                    None => g.accs.to_vec(),
                    Some(true) => g.accs[..g.writers].to_vec(),
                    Some(false) => g.accs[g.writers..].to_vec(),
                };
                groups.flat_map(part).collect()
            };
            for (xs, ys) in [(Some(true), None), (Some(false), Some(true))] {
                let writers = xs == Some(true);
                let (xs, ys) = (accs(r, xe, xs), accs(r, ye, ys));
                r.pairs += xs.len() as u64 * ys.len() as u64;
                let left = self.unsettled(r, &xs, xe, &ys, ye);
                one_by_one(r, &memory, xe, writers, ye, &left);
                if r.is_over() {
                    return;
                }
            }
        }
    }

    /// Every one of `xs` before every one of `ys`, an epoch or more later.
    fn settle(&mut self, r: &mut Races<'_, '_, '_>, xs: &[u32], xe: u32, ys: &[u32], ye: u32) {
        for Left { ys, ranks } in self.unsettled(r, xs, xe, ys, ye) {
            if !r.afford(xs.len() * ys.len()) {
                return;
            }
            for &x in xs {
                let a = r.acc(xe, x);
                if ranks.contains(&(r.rank(xe, &a), r.host(xe, &a))) {
                    ys.iter().for_each(|y| r.ordered(x, xe, *y, ye));
                }
            }
        }
    }

    /// Those of `ys`, and ranks of `xs`, that are not known to be ordered by the boundaries of kernels.
    fn unsettled(
        &mut self,
        r: &mut Races<'_, '_, '_>,
        xs: &[u32],
        xe: u32,
        ys: &[u32],
        ye: u32,
    ) -> Vec<Left> {
        // Each with its first access.
        let mut ranks: Vec<(u32, bool, u32)> = Vec::new();
        for &x in xs {
            let a = r.acc(xe, x);
            let key = (r.rank(xe, &a), r.host(xe, &a));
            if !ranks.iter().any(|r| (r.0, r.1) == key) {
                ranks.push((key.0, key.1, x));
            }
        }
        let mut keys: Vec<((SigKey, u32), Vec<u32>)> = Vec::new();
        let mut place: FastMap<(SigKey, u32), usize> = FastMap::default();
        for &y in ys {
            let key = (r.paths.key(ye, y), r.acc(ye, y).turn);
            let i = *place.entry(key).or_insert(keys.len());
            match keys.get_mut(i) {
                Some(k) => k.1.push(y),
                None => keys.push((key, vec![y])),
            }
        }
        let mut left = Vec::new();
        for ((key, turn), ys) in keys {
            let mut open = Vec::new();
            for (rank, host, x) in &ranks {
                let seen = r.seen_from(*rank, turn);
                if !host && r.paths.started(ye, key, seen) > xe {
                    self.mark(r, *x, xe, ys[0], ye);
                } else {
                    open.push((*rank, *host));
                }
            }
            if !open.is_empty() {
                left.push(Left { ys, ranks: open });
            }
        }
        left
    }

    /// Marks the waits that make a kernel known to be complete, once for each pair of lines.
    fn mark(&mut self, r: &mut Races<'_, '_, '_>, x: u32, xe: u32, y: u32, ye: u32) {
        let (ax, ay) = (r.acc(xe, x), r.acc(ye, y));
        let (rx, ry) = (r.rank(xe, &ax), r.rank(ye, &ay));
        if rx == ry || ye - xe > r.world().period {
            return;
        }
        let lines = r.lines(xe, &ax, ye, &ay);
        if self.last_marked == Some(lines) {
            return;
        }
        self.last_marked = Some(lines);
        if self.marked.insert(lines) {
            let goal = Goal {
                rank: r.seen_from(rx, ay.turn),
                floor: xe + 1,
                words: vec![],
                kernel: Some(xe + 1),
                end: Some(xe + 1),
            };
            let starts = r.paths.starts(ye, r.paths.key(ye, y));
            r.paths.search(starts, &goal);
        }
    }
}

/// Accesses of one memory and their ranks, of those that kernel boundaries do not settle: all that have anything in
/// common, for whichever values of the run-time dimension. Boxes are compared by their hulls.
fn one_by_one(
    r: &mut Races<'_, '_, '_>,
    memory: &[BoxId],
    xe: u32,
    writers: bool,
    ye: u32,
    left: &[Left],
) {
    if left.is_empty() {
        return;
    }
    let mut near = FastMap::default();
    if r.world().boxes.hulls(memory, &mut near, MAX_PAIRS).is_none() {
        r.afford(MAX_PAIRS as usize + 1);
        return;
    }
    for Left { ys, ranks } in left {
        for &y in ys {
            let boxed = r.acc(ye, y).boxed;
            for &b in near.get(&boxed).map_or(&[][..], Vec::as_slice) {
                let group = r.group(xe, b);
                let xs = match writers {
                    true => &group.accs[..group.writers],
                    false => &group.accs[group.writers..],
                };
                if !r.afford(xs.len()) {
                    return;
                }
                for &x in xs {
                    let a: AccRec = r.acc(xe, x);
                    if ranks.contains(&(r.rank(xe, &a), r.host(xe, &a))) {
                        r.ordered(x, xe, y, ye);
                    }
                }
            }
        }
    }
}
