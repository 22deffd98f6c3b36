//! Tables: their size, and what they are derived from.

use super::Checker;
use crate::ir::{
    entity::{Entity, TabId},
    expr::{Expr, Var},
    leaf::{COUNTED, Leaf, Operand, Tabulation},
    plan::{Access, Family, Space, Table, TableSource},
};
use mk_abi::DType;

/// The entries of a table of `total` that the task of number `v0` fills, of `n` each.
pub(crate) fn part_of_table(total: u32, n: u32) -> (Expr, Expr) {
    let first = Expr::from(Var::domain(0)) * n as i32;
    let len = match total.is_multiple_of(n) {
        true => Expr::Const(n as i32),
        false => (Expr::Const(total as i32) - first.clone()).min(n as i32),
    };
    (first, len)
}

/// Most entries of all tables, on all ranks together: whoever runs a plan fills every table on every rank, and the
/// verifier holds several fillings.
pub const MAX_ENTRIES: u64 = 1 << 24;

impl Checker<'_> {
    /// Checks all tables of a world of so many ranks.
    pub(super) fn tables(&mut self, ranks: u64) {
        let mut entries = 0u64;
        for (id, t) in self.plan.tables.iter() {
            let sizes = t.shape.iter();
            let len = sizes.copied().try_fold(1usize, |n, x| n.checked_mul(x as usize));
            let len = len.unwrap_or(usize::MAX);
            let place = format!("{id} {:?}", t.name);
            if len > 1 << 24 {
                self.error(&place, "is larger than 2^24 entries");
                continue;
            }
            let before = entries;
            entries = entries.saturating_add(len as u64 * ranks);
            if before <= MAX_ENTRIES && entries > MAX_ENTRIES {
                self.error(
                    &place,
                    format!("has, with the tables before it and on all ranks together, more than {MAX_ENTRIES} entries: make tables smaller, or ranks fewer"),
                );
            }
            self.source(&place, id, t, len);
            self.stored(&place, t);
        }
    }

    /// Memory that has a table: integers, as many as the table has, on every rank.
    fn stored(&mut self, place: &str, t: &Table) {
        let Some(buffer) = t.stored else { return };
        let Some(b) = self.plan.buffers.get(buffer) else {
            return self.error(place, format!("{buffer} does not exist"));
        };
        let shape: Vec<_> = t.shape.iter().map(|n| Expr::Const(*n as i32)).collect();
        if b.dtype != DType::I32 || b.shape != shape || b.pitch.is_some() {
            let shape: Vec<_> = t.shape.iter().map(u32::to_string).collect();
            let what =
                format!("is in {buffer}, which must be i32[{}], row by row", shape.join(", "));
            self.error(place, what);
        }
        if matches!(b.space, Space::Out | Space::Net) {
            self.error(place, "is in memory that a kernel does not read by itself: use an input, workspace or scratch");
        }
        if self.plan.runtime_dim().is_some() {
            self.error(place, "is in memory, in a plan with a dimension that comes with each launch: use one or the other");
        }
        if matches!(t.source, TableSource::Const(_)) {
            self.error(place, "is in the plan already: it needs no memory");
        }
    }

    /// Where a family may look up what is in memory: not where it must know its tasks, and not in what it waits with and reads to look up.
    pub(super) fn looks_up(&mut self, place: &str, x: &Family) {
        let plan = self.plan;
        let tables = |e: &Expr| plan.names_stored(e);
        let loops = x.domain.iter().chain(&x.inner).map(|(_, extent)| extent);
        let loops = loops.chain(&x.order);
        let places = x.positions.iter().flat_map(|p| [&p.q, &p.k]);
        if loops.chain(places).any(tables) {
            self.error(place, "a table in memory decides how many tasks there are, or their order: let conditions and lengths do");
        }
        let tab = |a: &&Access| a.operand == Operand::Tab;
        if x.accesses.iter().filter(tab).any(|a| a.rank != Expr::Var(Var::RANK)) {
            self.error(place, "looks up what is on its own rank");
        }
        if x.accesses.iter().filter(tab).any(|a| plan.access_names_stored(a)) {
            self.error(place, "what it reads to look up depends on a look-up");
        }
        if !x.accesses.iter().any(|a| tab(&a)) && plan.looks_up(x) {
            self.error(place, "a table in memory is looked up, and no access `tab` reads it");
        }
    }

    /// A task that fills a table fills all of it, from all that the table says that it is made of.
    pub(super) fn fills(&mut self, place: &str, x: &Family) {
        let Leaf::Tabulate { of: kind } = x.leaf else { return };
        let plan = self.plan;
        // The one access of an operand is this region of a table.
        let is = |operand: Operand, id: TabId, region: &[(Expr, Expr)]| {
            let Some(table) = plan.tables.get(id) else { return false };
            let mut all = x.accesses.iter().filter(|a| a.operand == operand);
            let (Some(a), None) = (all.next(), all.next()) else { return false };
            table.stored == Some(a.buffer)
                && a.region == region
                && a.rank == Expr::Var(Var::RANK)
                && (&a.each, &a.when) == (&None, &None)
        };
        let whole = |operand: Operand, id: TabId| {
            let shape = plan.tables.get(id).map_or(&[][..], |t| &t.shape);
            let extents = shape.iter().map(|n| (Expr::Const(0), Expr::Const(*n as i32)));
            is(operand, id, &extents.collect::<Vec<_>>())
        };
        // Tasks have consecutive parts of so many entries.
        let parts = |id: TabId, n: u32| {
            let total = plan.tables.get(id).and_then(|t| t.shape.first().copied()).unwrap_or(0);
            let [(_, tasks)] = &x.domain[..] else { return false };
            *tasks == Expr::Const(total.div_ceil(n) as i32)
                && is(Operand::Dst, id, &[part_of_table(total, n)])
        };
        let fits = |(id, t): (TabId, &Table)| match (kind, &t.source) {
            (Tabulation::Blocks { rows }, TableSource::Blocks { of, rows: n }) => {
                u32::try_from(*n) == Ok(rows) && whole(Operand::Dst, id) && whole(Operand::Src, *of)
            }
            (Tabulation::Counts { groups }, TableSource::Counts { of }) => {
                t.shape == [groups] && whole(Operand::Src, *of) && parts(id, COUNTED)
            }
            (Tabulation::Tokens, TableSource::Tokens { of, blocks }) => {
                let rows = match plan.tables.get(*blocks).map(|t| &t.source) {
                    Some(TableSource::Blocks { rows, .. }) => (*rows).max(1) as u32,
                    _ => return false,
                };
                whole(Operand::Src, *of) && whole(Operand::W, *blocks) && parts(id, rows)
            }
            _ => false,
        };
        if !plan.tables.iter().any(fits) {
            let what = match kind {
                Tabulation::Blocks { .. } => {
                    "fills a table of blocks in memory, whole, from the rows of its groups in memory, which no table line says"
                }
                Tabulation::Counts { .. } => {
                    "fills a table of counts in memory, all of it, from what names the groups, which no table line says"
                }
                Tabulation::Tokens => {
                    "fills a table of tokens in memory, a block in each task, from what names the groups and all blocks, which no table line says"
                }
            };
            self.error(place, what);
        }
    }

    /// The table before `id` of this number.
    fn before(&self, id: TabId, of: TabId) -> Option<&Table> {
        (of.index() < id.index()).then(|| self.plan.tables.get(of)).flatten()
    }

    fn source(&mut self, place: &str, id: TabId, t: &Table, len: usize) {
        match &t.source {
            TableSource::Const(v) if v.len() != len => {
                self.error(place, format!("has {} values for {len} entries", v.len()));
            }
            TableSource::Const(_) => {}
            TableSource::Runtime { min, max } if min > max => {
                self.error(place, "has an empty range")
            }
            TableSource::Runtime { .. } => {}
            TableSource::Prefix { of, align } => {
                let fits = self.before(id, *of).is_some_and(|counts| {
                    let [n] = counts.shape[..] else { return false };
                    n.checked_add(1).is_some_and(|n| t.shape == [n])
                });
                if !fits {
                    self.error(place, "must have one more entry than the one-dimensional table before it that it sums");
                }
                if *align < 1 {
                    self.error(place, "must align to at least 1");
                }
            }
            TableSource::Blocks { of, rows } => self.blocks(place, id, t, (*of, *rows)),
            TableSource::Counts { of } => {
                if !self.names_groups(id, *of, t.shape.first()) || t.shape.len() != 1 {
                    self.error(place, "must count, of a table [tokens, slots] before it that comes with each launch, all groups that entries can be");
                }
            }
            TableSource::Tokens { of, blocks } => {
                let cut = self.before(id, *blocks).filter(|b| {
                    let TableSource::Blocks { of: counts, rows } = b.source else { return false };
                    let counted = self.plan.tables.get(counts).map(|t| &t.source);
                    let rows = b.shape.first().map(|n| i64::from(*n) * i64::from(rows));
                    counted == Some(&TableSource::Counts { of: *of })
                        && t.shape.len() == 1
                        && rows == t.shape.first().map(|n| i64::from(*n))
                });
                if cut.is_none() {
                    self.error(place, "must have the rows of a table of blocks before it, made of counts of the same groups");
                }
            }
            TableSource::Places { of } => {
                let blocks = self.before(id, *of).map(|b| &b.source);
                if !matches!(blocks, Some(TableSource::Blocks { .. })) {
                    self.error(place, "must be places in a table of blocks before it");
                }
                if t.shape.len() < 2 || t.shape.last() != Some(&2) {
                    self.error(place, "must be [.., 2]: ranks and rows");
                }
            }
        }
    }

    /// Whether a table before `id` names groups, of so many.
    fn names_groups(&self, id: TabId, of: TabId, groups: Option<&u32>) -> bool {
        self.before(id, of).is_some_and(|t| match t.source {
            TableSource::Runtime { min: 0, max } => {
                let n = groups.map(|n| i64::from(*n) - 1);
                t.shape.len() == 2 && n == Some(i64::from(max))
            }
            _ => false,
        })
    }

    fn blocks(&mut self, place: &str, id: TabId, t: &Table, (of, rows): (TabId, i32)) {
        if !matches!(t.shape[..], [n, 2] if n > 0) {
            self.error(place, "must be [blocks, 2]: groups and rows");
        }
        if rows < 1 {
            self.error(place, "must have blocks of at least 1 row");
        }
        let counts = self.before(id, of).map(|c| (c.shape.len(), &c.source));
        let min = match counts {
            Some((1, TableSource::Runtime { min, .. })) => Some(*min),
            Some((1, TableSource::Counts { .. })) => Some(0),
            _ => None,
        };
        let Some(min) = min else {
            let what = "must cut the rows of a one-dimensional table before it that comes with each launch";
            return self.error(place, what);
        };
        let least = i64::from(min.max(0)) + i64::from(rows.max(1)) - 1;
        let groups = self.before(id, of).map_or(0, |c| i64::from(c.shape[0]));
        if least / i64::from(rows.max(1)) * groups > t.shape.first().map_or(0, |n| i64::from(*n)) {
            self.error(place, "has no room for the fewest rows that its groups can have");
        }
        let last = t.shape.first().map_or(0, |n| i64::from(*n)) * i64::from(rows.max(1));
        if last > i64::from(i32::MAX) {
            self.error(place, "has more rows than fit in 32 bits");
        }
    }
}
