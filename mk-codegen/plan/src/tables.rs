//! Contents of a plan's tables on every rank, in one launch: those that the caller gives, and those that follow from
//! them.

use super::{
    blocks::{blocks, needed},
    documents::{Parts, check_documents, document_bounds, meets_table},
    entity::{Entity, TabId},
    names::RoutePart,
    plan::{Plan, Routed, Table, TableSource},
    routes::{NO_EXPERT, Routing, wanted_share},
};

/// Contents of the tables on every rank for one epoch.
#[derive(Clone, Debug, Default)]
pub struct TableSet {
    ranks: Vec<Vec<Vec<i32>>>,
}

impl TableSet {
    /// Fills the tables that come with a launch by `given(rank, table)`, row-major, and derives the others from them.
    /// Missing entries read as "no entry"; values are not checked: see [`TableSet::refused`].
    pub fn new(plan: &Plan, given: impl FnMut(usize, TabId) -> Vec<i32>) -> TableSet {
        TableSet::with(plan, given, |_, _| None)
    }

    /// Tables of one possible launch: groups have equally many rows, as many as there is room for, but one; other
    /// entries are their least values. For what is the same in every launch, and what is estimated for one.
    pub fn example(plan: &Plan) -> TableSet {
        let room = |of: TabId| {
            let blocks = plan.tables.values().filter_map(|t| match t.source {
                TableSource::Blocks { of: counts, rows } if counts == of => {
                    Some((i64::from(t.shape.first().copied().unwrap_or(0)), i64::from(rows)))
                }
                _ => None,
            });
            blocks.min_by_key(|(n, rows)| n * rows)
        };
        // Every part meets each.
        let instead = |_, id: TabId| {
            let table = &plan.tables[id];
            let meets = matches!(table.source, TableSource::Meets { .. });
            meets.then(|| vec![1; entries(table)])
        };
        let given = |_, id: TabId| {
            let table = &plan.tables[id];
            let n = entries(table);
            let TableSource::Runtime { min, max } = table.source else { return vec![0; n] };
            if let Some(routed) = table.routed.filter(|r| r.part == RoutePart::Wanted) {
                return spread(n, expected_share(plan, routed));
            }
            if let Some(routed) = table.routed.filter(|r| r.part == RoutePart::Crossing) {
                let tokens = plan.tables.get(routed.ids).and_then(|ids| ids.shape.first());
                let most = tokens.map_or(0, |n| *n as i32).min(max);
                return vec![
                    (f64::from(most) * expected_share(plan, routed)).ceil().max(1.0) as i32;
                    n
                ];
            }
            // Every slot has a row.
            if table.routed.is_some_and(|r| r.part == RoutePart::Kept) {
                return vec![max; n];
            }
            if let Some(rows) = tokens(plan, id) {
                // Documents of one length.
                let last = n.saturating_sub(1).max(1) as i64;
                return (0..n as i64).map(|i| (i * i64::from(rows) / last) as i32).collect();
            }
            let Some((blocks, rows)) = room(id) else { return vec![min; n] };
            let groups = n.max(1) as i64;
            // Every group has its share of blocks, the first ones one more.
            let share = |g: i64| (blocks / groups + i64::from(g < blocks % groups)) * rows;
            let count = |g: i64| (share(g) - 1).clamp(i64::from(min), i64::from(max)) as i32;
            (0..n as i64).map(count).collect()
        };
        TableSet::with(plan, given, instead)
    }

    /// As [`TableSet::new`], with what follows from routings.
    ///
    /// # Errors
    /// The rank with a routing that no launch can have, and what is wrong with it.
    pub fn routed(
        plan: &Plan,
        mut given: impl FnMut(usize, TabId) -> Vec<i32>,
    ) -> Result<TableSet, (usize, String)> {
        let ranks = plan.mesh.size() as usize;
        // Of each table, by rank.
        let mut all: Vec<Vec<Vec<i32>>> = Vec::new();
        // Those of the ranks that share tokens with one, in their order.
        let shared = |all: &[Vec<Vec<i32>>], routed: Routed, rank: usize| -> Option<Vec<i32>> {
            let (of, over) = (all.get(routed.ids.index())?, routed.over(&plan.mesh));
            let ranks = (0..over.size as usize).map(|place| over.rank(rank, place));
            Some(ranks.filter_map(|rank| of.get(rank)).flatten().copied().collect())
        };
        for (id, table) in plan.tables.iter() {
            let of_ids = |r: Routed| r.ids == id;
            let is_ids = plan.tables.values().filter_map(|t| t.routed).any(of_ids);
            all.push(match is_ids {
                // Ranks may have fewer tokens than there is room for: those of the next one come behind that.
                true => (0..ranks).map(|rank| padded(given(rank, id), entries(table))).collect(),
                false => Vec::new(),
            });
            let Some(routed) = table.routed.filter(|r| r.ids.index() < all.len()) else { continue };
            // Of the same ids.
            let counted = |of: &TabId| plan.tables.get(*of)?.routed.map(|r| (r.ids, r.part));
            let blocks = plan.tables.values().find_map(|t| match &t.source {
                TableSource::Blocks { of, .. }
                    if counted(of) == Some((routed.ids, RoutePart::Counts)) =>
                {
                    t.shape.first().map(|n| *n as usize)
                }
                _ => None,
            });
            let blocks = blocks.unwrap_or(usize::MAX);
            let over = routed.over(&plan.mesh);
            for rank in (0..ranks).filter(|rank| over.place(*rank) == 0) {
                let ids = shared(&all, routed, rank).unwrap_or_default();
                let checked = routing(plan, routed, &ids).check(blocks);
                checked.map_err(|e| (rank, format!("{id} {:?}: {e}", table.name)))?;
            }
        }
        let contents = |rank: usize, id: TabId| {
            let table = &plan.tables[id];
            let routed = table.routed?;
            let ids = shared(&all, routed, rank)?;
            let place = routed.over(&plan.mesh).place(rank);
            Some(routing(plan, routed, &ids).table(routed.part, place, entries(table)))
        };
        let each = |rank: usize, id: TabId| contents(rank, id).unwrap_or_else(|| given(rank, id));
        Ok(TableSet::with(plan, each, |_, _| None))
    }

    /// As [`TableSet::new`], with other contents for some derived tables: what no launch need have, for proofs.
    pub fn with(
        plan: &Plan,
        mut given: impl FnMut(usize, TabId) -> Vec<i32>,
        instead: impl Fn(usize, TabId) -> Option<Vec<i32>>,
    ) -> TableSet {
        let ranks = (0..plan.mesh.size() as usize)
            .map(|rank| {
                let mut tables: Vec<Vec<i32>> = Vec::new();
                for (id, table) in plan.tables.iter() {
                    let before = |of: &TabId| tables.get(of.index()).map_or(&[][..], Vec::as_slice);
                    let values = match (&table.source, instead(rank, id)) {
                        (TableSource::Const(values), _) => values.clone(),
                        (TableSource::Runtime { .. } | TableSource::Places { .. }, _) => {
                            given(rank, id)
                        }
                        (_, Some(values)) => values,
                        (TableSource::Prefix { of, align }, None) => prefix(before(of), *align),
                        (TableSource::Blocks { of, rows }, None) => {
                            blocks(before(of), *rows, entries(table))
                        }
                        (TableSource::Bounds { of, side, mask }, None) => {
                            let rows = table.shape.first().map_or(0, |n| *n as i32);
                            let bounds = |row| document_bounds(before(of), row, *side, *mask);
                            (0..rows).flat_map(bounds).collect()
                        }
                        (TableSource::Meets { of, side, mask, .. }, None) => {
                            let parts = plan.parts(id).unwrap_or(Parts::NONE);
                            meets_table(before(of), parts, *side, *mask)
                        }
                    };
                    tables.push(values);
                }
                tables
            })
            .collect();
        TableSet { ranks }
    }

    /// A table's contents on a rank.
    pub fn values(&self, rank: usize, table: TabId) -> &[i32] {
        self.ranks.get(rank).and_then(|t| t.get(table.index())).map_or(&[], Vec::as_slice)
    }

    /// The rows that a table of blocks fills, on all ranks.
    pub fn filled(&self, plan: &Plan, blocks: TabId) -> FilledRows {
        let mut filled = FilledRows::default();
        let Some(TableSource::Blocks { rows, .. }) = plan.tables.get(blocks).map(|t| &t.source)
        else {
            return filled;
        };
        for rank in 0..self.ranks.len() {
            for (entry, block) in self.values(rank, blocks).chunks_exact(2).zip(0..) {
                if entry[1] > 0 {
                    filled.blocks.push((filled.len, rank as i32, block * rows));
                    filled.len += entry[1] as u64;
                }
            }
        }
        filled
    }

    /// Why no launch can have these contents: the rank, and what is wrong with its tables.
    pub fn refused(&self, plan: &Plan) -> Option<(usize, String)> {
        let of_rank = |rank: usize| {
            let mut tables = plan.tables.iter();
            tables.find_map(|(id, t)| {
                let why = self.misfit(plan, rank, id, t)?;
                Some((rank, format!("{id} {:?}: {why}", t.name)))
            })
        };
        (0..self.ranks.len()).find_map(of_rank)
    }

    fn misfit(&self, plan: &Plan, rank: usize, id: TabId, table: &Table) -> Option<String> {
        let (values, want) = (self.values(rank, id), entries(table));
        let given =
            matches!(table.source, TableSource::Runtime { .. } | TableSource::Places { .. });
        // Ranks may have fewer tokens than others.
        let fewer = plan.tables.values().filter_map(|t| t.routed).any(|r| r.ids == id);
        if given && values.len() != want && !(fewer && values.len() < want) {
            return Some(format!("has {want} entries, the caller gave {}", values.len()));
        }
        match table.source {
            TableSource::Runtime { min, max } => {
                let v = values.iter().find(|v| !(min..=max).contains(*v))?;
                Some(format!("the entry {v} is outside {min}..={max}"))
            }
            TableSource::Blocks { of, rows } => {
                let need = needed(self.values(rank, of), rows);
                let have = table.shape.first().copied().unwrap_or(0);
                let over = need > i64::from(have);
                over.then(|| format!("the counts of {of} take {need} blocks, and it has {have}"))
            }
            TableSource::Bounds { of, .. } => {
                let rows = table.shape.first().map_or(0, |n| *n as i32);
                check_documents(self.values(rank, of), rows).err().map(|e| e.to_string())
            }
            TableSource::Meets { .. } => {
                let differs = values != self.values(0, id);
                differs.then(|| "documents are others than those of rank 0".into())
            }
            TableSource::Places { .. } if table.routed.is_some() => None,
            TableSource::Places { of } => {
                let place = values.chunks_exact(2).find(|p| !self.is_filled(plan, of, p))?;
                let [to, row] = [place[0], place[1]];
                Some(format!("the row {row} of rank {to} is none that {of} fills there"))
            }
            TableSource::Const(_) | TableSource::Prefix { .. } => None,
        }
    }

    fn is_filled(&self, plan: &Plan, blocks: TabId, place: &[i32]) -> bool {
        let Some(TableSource::Blocks { rows, .. }) = plan.tables.get(blocks).map(|t| &t.source)
        else {
            return false;
        };
        let [rank, row] = [place[0], place[1]].map(usize::try_from);
        let (Ok(rank), Ok(row)) = (rank, row) else { return false };
        let height = *rows as usize;
        let entry = self.values(rank, blocks).chunks_exact(2).nth(row / height);
        entry.is_some_and(|e| row % height < e[1] as usize)
    }
}

/// The rows that packed blocks fill, in the order of ranks and rows.
#[derive(Clone, Debug, Default)]
pub struct FilledRows {
    /// Of each block: rows before it, its rank, and its first row there.
    blocks: Vec<(u64, i32, i32)>,
    len: u64,
}

impl FilledRows {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those of some ranks, each under the number that it has there.
    pub fn of_ranks(&self, number: impl Fn(usize) -> Option<usize>) -> FilledRows {
        let mut out = FilledRows::default();
        for (i, (before, rank, first)) in self.blocks.iter().enumerate() {
            let rank = usize::try_from(*rank).ok().and_then(&number);
            if let Some(rank) = rank.and_then(|rank| i32::try_from(rank).ok()) {
                let end = self.blocks.get(i + 1).map_or(self.len, |next| next.0);
                out.blocks.push((out.len, rank, *first));
                out.len += end - before;
            }
        }
        out
    }

    /// Rank and number of the `i`-th.
    pub fn get(&self, i: u64) -> Option<(i32, i32)> {
        let block = self.blocks.partition_point(|b| b.0 <= i).checked_sub(1)?;
        let (before, rank, first) = self.blocks[block];
        (i < self.len).then(|| (rank, first + (i - before) as i32))
    }
}

/// Tokens of a sequence, of a table that says where its documents begin.
pub fn tokens(plan: &Plan, documents: TabId) -> Option<i32> {
    plan.tables.values().find_map(|t| match t.source {
        TableSource::Bounds { of, .. } if of == documents => t.shape.first().map(|n| *n as i32),
        _ => None,
    })
}

impl Plan {
    /// The parts of a sequence that a table of which parts meet is of.
    pub fn parts(&self, meets: TabId) -> Option<Parts> {
        let table = self.tables.get(meets)?;
        let TableSource::Meets { of, rows, .. } = table.source else { return None };
        let TableSource::Runtime { max: tokens, .. } = self.tables.get(of)?.source else {
            return None;
        };
        let [places, count] = table.shape[..] else { return None };
        Some(Parts { tokens, rows, count: count as i32, places: places as i32 })
    }
}

/// The share of tokens that a rank, or its node, has an expert of, if each goes to any experts.
fn expected_share(plan: &Plan, routed: Routed) -> f64 {
    let r = routing(plan, routed, &[]);
    let experts = r.experts.max(1) as usize;
    wanted_share(experts, experts.div_ceil(r.ranks.max(1)) * r.local.max(1), r.slots)
}

/// So many of `n` entries are 1, evenly.
fn spread(n: usize, share: f64) -> Vec<i32> {
    let before = |i: usize| (i as f64 * share) as i32;
    (0..n).map(|i| before(i + 1) - before(i)).collect()
}

/// The routing of a world, from the ids of all ranks.
fn routing<'i>(plan: &Plan, routed: Routed, ids: &'i [i32]) -> Routing<'i> {
    let table = plan.tables.get(routed.ids);
    let experts = match table.map(|t| &t.source) {
        Some(TableSource::Runtime { max, .. }) => max.saturating_add(1),
        _ => 0,
    };
    let slots = table.and_then(|t| t.shape.last()).map_or(1, |n| *n as usize);
    let ranks = routed.over(&plan.mesh).size as usize;
    let (keep, local) = (routed.keep, routed.local as usize);
    Routing { ids, slots, experts, ranks, rows: routed.rows, keep, local }
}

/// So many experts of tokens at least: those that are missing go nowhere.
fn padded(mut ids: Vec<i32>, n: usize) -> Vec<i32> {
    ids.resize(n.max(ids.len()), NO_EXPERT);
    ids
}

/// Entries of a table.
pub fn entries(table: &Table) -> usize {
    table.shape.iter().map(|n| *n as usize).product()
}

/// The table of [`TableSource::Prefix`]: sums of what comes before, each rounded up.
pub fn prefix(counts: &[i32], align: i32) -> Vec<i32> {
    let align = align.max(1);
    let mut sum = 0i32;
    let mut out = Vec::with_capacity(counts.len() + 1);
    out.push(0);
    for c in counts {
        sum = sum.saturating_add(
            c.div_euclid(align)
                .saturating_add(i32::from(c.rem_euclid(align) != 0))
                .saturating_mul(align),
        );
        out.push(sum);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "plan \"p\"\nmesh world=2\ntarget sm_90a\ntable tab0 \"counts\" [3] runtime 0..=300\n\
        table tab1 \"blocks\" [4, 2] blocks tab0 rows 128\ntable tab2 \"place\" [2, 2] places tab1\n";

    fn set(counts: [i32; 3], place: [i32; 4]) -> (Plan, TableSet) {
        let plan: Plan = TEXT.parse().expect("a plan");
        let given = |rank, id: TabId| match (id.index(), rank) {
            (0, 0) => counts.to_vec(),
            (0, _) => vec![0; 3],
            _ => place.to_vec(),
        };
        let set = TableSet::new(&plan, given);
        (plan, set)
    }

    #[test]
    fn blocks_are_packed_and_the_rest_is_empty() {
        let (plan, tables) = set([130, 0, 128], [0, 129, 0, 383]);
        assert_eq!(tables.values(0, TabId::new(1)), [0, 128, 0, 2, 2, 128, 2, 0]);
        assert_eq!(tables.values(1, TabId::new(1)), [2, 0, 2, 0, 2, 0, 2, 0]);
        assert_eq!(tables.refused(&plan), None);
        let filled = tables.filled(&plan, TabId::new(1));
        let at = |i| filled.get(i);
        assert_eq!((filled.len(), at(0), at(129)), (258, Some((0, 0)), Some((0, 129))));
        assert_eq!((at(130), at(257), at(258)), (Some((0, 256)), Some((0, 383)), None));
    }

    #[test]
    fn a_launch_has_room_for_its_rows_and_places_that_are_filled() {
        let why = |counts, place| {
            let (plan, tables) = set(counts, place);
            tables.refused(&plan).map_or_else(String::new, |(_, why)| why)
        };
        assert!(why([129, 129, 1], [0; 4]).contains("take 5 blocks, and it has 4"));
        assert!(why([301, 0, 0], [0; 4]).contains("the entry 301 is outside 0..=300"));
        assert!(
            why([1, 1, 1], [0, 0, 0, 1]).contains("the row 1 of rank 0 is none that tab1 fills")
        );
        assert!(why([1, 1, 1], [1, 0, 0, 0]).contains("the row 0 of rank 1 is none"));
        assert!(why([1, 1, 1], [0, -1, 0, 0]).contains("the row -1"));
        assert!(why([1, 1, 1], [0, 512, 0, 0]).contains("the row 512"));
    }
}
