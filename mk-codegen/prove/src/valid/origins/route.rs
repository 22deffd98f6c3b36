//! What each part of a routing is made of, as [`Tabulation::Route`](mk_plan::Tabulation::Route) has it.

use super::{
    Partition, Stop, Walk,
    memory::{Chunk, Ids, Piece, What, rows, slab},
    wrong,
};
use mk_plan::{
    Axis, BufId, LIST_TOKENS, Leaf, NO_EXPERT, Operand, Region, RoutePart, Routed, TabId,
    TableSource, Tabulate, Tabulation, Task,
};

/// What a task's leaf says of the routing.
#[derive(Clone, Copy)]
struct Says {
    experts: u32,
    over: Axis,
    rows: u32,
    keep: u32,
    local: u32,
}

/// Experts of tokens that a task reads: where they come from, the first token, and how many those are; none of no
/// tokens.
type Experts = Option<(Ids, i64, i64)>;

impl Walk<'_> {
    /// A task that makes a part of what follows from a routing.
    pub(super) fn route(&mut self, task: &Task) -> Result<(), Stop> {
        let x = &self.plan.families[task.family];
        let Leaf::Tabulate(Tabulate {
            of: Tabulation::Route { part, experts, ranks, stride, rows, keep, local, .. },
        }) = x.leaf
        else {
            return Ok(());
        };
        let over = Axis { stride, size: ranks };
        let says = Says { experts, over, rows, keep, local };
        let src = self.operands(task, Operand::Src)?;
        let dst = self.operands(task, Operand::Dst)?;
        if let Some(away) = dst.iter().chain(&src).flatten().find(|r| r.rank != task.rank()) {
            return wrong(format!(
                "it touches {}, and makes tables of its own rank",
                self.named(away)
            ));
        }
        match (part, &src[..], &dst[..]) {
            (RoutePart::Lists, [ids], [Some(list)]) => self.list(says, ids.as_ref(), list),
            (RoutePart::Counts, [Some(lists)], [Some(counts), Some(bases), Some(blocks)]) => {
                self.counts(says, lists, [counts, bases, blocks])
            }
            (RoutePart::Wanted, [ids], [wanted]) => {
                self.wanted(says, ids.as_ref(), wanted.as_ref())
            }
            (RoutePart::Leaving | RoutePart::Coming, [ids], [Some(counts), Some(rows)]) => {
                self.between(says, part, ids.as_ref(), [counts, rows])
            }
            (RoutePart::Sources, [blocks, Some(lists), Some(bases)], [sources]) => {
                self.sources(says, blocks.as_ref(), [lists, bases], sources.as_ref())
            }
            (RoutePart::Dropped, [Some(lists), Some(bases)], [Some(dropped)]) => {
                self.dropped(says, [lists, bases], dropped)
            }
            (RoutePart::Slots, [Some(ids), Some(blocks), Some(sources)], [Some(slots)]) => {
                self.slots(says, ids, [blocks, sources], slots)
            }
            (
                RoutePart::Places,
                [ids, Some(list), Some(bases), begins @ ..],
                [places, kept @ ..],
            ) if kept.len() == 1 && begins.len() < 2 => {
                let begins = begins.iter().flatten().next();
                let kept = kept.iter().flatten().next();
                let written = [(RoutePart::Places, places.as_ref()), (RoutePart::Kept, kept)];
                self.places(says, ids.as_ref(), [Some(list), Some(bases), begins], written)
            }
            _ => wrong(format!("its operands are none of {part}")),
        }
    }

    /// The experts that a region has, of tokens that follow each other.
    fn experts(&self, says: Says, region: Option<&Region>) -> Result<Experts, Stop> {
        let Some(region) = region else { return Ok(None) };
        match &self.get(region)?[..] {
            [Piece { begin, end, what: What::Experts(ids), at }] => {
                if ids.1 != says.over.rank(region.rank, 0) {
                    return wrong(format!(
                        "{} has the experts of tokens that it does not share",
                        self.named(region)
                    ));
                }
                let routed = self.plan.tables.values().filter_map(|t| t.routed);
                let of = |r: Routed| {
                    let t = &self.plan.tables[r.ids];
                    let max = i64::from(says.experts) - 1;
                    let fits = matches!(t.source, TableSource::Runtime { min: NO_EXPERT, max: m } if i64::from(m) == max);
                    fits && t.stored == Some(ids.0)
                };
                match routed.into_iter().any(of) {
                    true => Ok(Some((*ids, *at, end - begin))),
                    false => wrong(format!(
                        "{} has none of {} experts",
                        self.named(region),
                        says.experts
                    )),
                }
            }
            _ => wrong(format!(
                "{} has not the experts of tokens that follow each other",
                self.named(region)
            )),
        }
    }

    /// Tokens of each of the ranks that share them, and room for those of one.
    fn tokens(&self, ids: Ids) -> (&[i64], i64) {
        self.tokens.get(&ids.0).map_or((&[], 0), |(tokens, room)| (tokens, *room))
    }

    /// The first token that is not before a number.
    fn token(&self, ids: Option<Ids>, number: i64) -> i64 {
        let (tokens, room) = ids.map_or((&[][..], 0), |ids| self.tokens(ids));
        let of_rank = |(rank, n): (i64, &i64)| {
            let first = number.max(rank * room);
            (first < rank * room + n).then_some(first)
        };
        (0i64..).zip(tokens).find_map(of_rank).unwrap_or(number)
    }

    /// The table of a part that a region is in.
    fn table(
        &self,
        says: Says,
        part: RoutePart,
        ids: Option<Ids>,
        region: &Region,
    ) -> Result<TabId, Stop> {
        let fits = |r: Routed| {
            let of = self.plan.tables[r.ids].stored;
            (r.part, u32::try_from(r.rows), u32::try_from(r.keep), r.local)
                == (part, Ok(says.rows), Ok(says.keep), says.local)
                && ids.is_none_or(|ids| of == Some(ids.0))
                && r.over(&self.plan.mesh) == says.over
        };
        let mut tables = self.plan.tables.iter();
        let table =
            tables.find(|(_, t)| t.stored == Some(region.buffer) && t.routed.is_some_and(fits));
        match table {
            Some((id, _)) => Ok(self.first(id)),
            None => {
                wrong(format!("{} is not where {part} of these experts belong", self.named(region)))
            }
        }
    }

    /// A region gets rows of a table of its rank, from row `at` on.
    fn fill(&mut self, region: &Region, table: TabId, at: i64) -> Result<(), Stop> {
        let (begin, _) = rows(region);
        if begin != at {
            return wrong(format!("{} has what belongs to row {at} on", self.named(region)));
        }
        Ok(self.put(region, What::Table(table, region.rank), at)?)
    }

    fn list(&mut self, says: Says, ids: Option<&Region>, list: &Region) -> Result<(), Stop> {
        let found = self.experts(says, ids)?;
        let (first, tokens) = found.map_or((0, 0), |(_, first, n)| (first, n));
        if let Some(region) = ids.filter(|r| rows(r).0 != first) {
            return wrong(format!(
                "{} has the experts of token {first} on: a list numbers tokens as the rows that it reads",
                self.named(region)
            ));
        }
        let ids = found.map(|f| f.0);
        let chunk = Chunk { ids, experts: says.experts, first, tokens };
        Ok(self.put(list, What::List(chunk), 0)?)
    }

    /// The chunks that rows of lists are of: all tokens in their order.
    fn partition(&mut self, says: Says, lists: &Region) -> Result<usize, Stop> {
        let key = (slab(lists), rows(lists));
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let (mut ids, mut next, mut listed, mut chunks) = (None, 0, 0, Vec::new());
        for piece in self.get(lists)? {
            let What::List(chunk) = piece.what else {
                return wrong(format!("row {} of {} is no list", piece.begin, lists.buffer));
            };
            // Rows that have the same list one after the other are no piece, but for those of no tokens.
            let follows = chunk.tokens == 0 || chunk.first == self.token(chunk.ids, next);
            let same = chunk.experts == says.experts
                && chunk.ids.is_none_or(|of| {
                    of.1 == says.over.rank(lists.rank, 0) && *ids.get_or_insert(of) == of
                });
            if !follows || !same || piece.end - piece.begin != 1 {
                return wrong(format!(
                    "row {} of {} lists {} tokens from {} on, behind {next}",
                    piece.begin, lists.buffer, chunk.tokens, chunk.first
                ));
            }
            chunks.push((chunk.first, chunk.tokens));
            listed += chunk.tokens;
            if chunk.tokens > 0 {
                next = chunk.first + chunk.tokens;
            }
        }
        let all = ids.map_or(0, |ids| self.tokens(ids).0.iter().sum::<i64>());
        let none = |t: &(Vec<i64>, i64)| t.0.iter().all(|n| *n == 0);
        if listed != all || ids.is_none() && !self.tokens.values().any(none) {
            return wrong(format!("{} lists {listed} of all tokens", self.named(lists)));
        }
        let partition = Partition { ids, experts: says.experts, chunks };
        let found = self.partitions.iter().position(|p| *p == partition);
        let number = found.unwrap_or(self.partitions.len());
        if found.is_none() {
            self.partitions.push(partition);
        }
        self.known.insert(key, number);
        Ok(number)
    }

    fn counts(
        &mut self,
        says: Says,
        lists: &Region,
        [counts, bases, blocks]: [&Region; 3],
    ) -> Result<(), Stop> {
        let number = self.partition(says, lists)?;
        let ids = self.partitions[number].ids;
        let table = self.table(says, RoutePart::Counts, ids, counts)?;
        let made_of = self.blocks_of(blocks.buffer, says);
        let Some(of_blocks) = made_of.filter(|(_, of)| self.first(*of) == table) else {
            return wrong(format!("{} is not where their blocks belong", self.named(blocks)));
        };
        self.fill(counts, table, 0)?;
        self.fill(blocks, of_blocks.0, 0)?;
        if rows(bases).0 != 0 {
            return wrong(format!("{} is not where chunks begin", self.named(bases)));
        }
        Ok(self.put(bases, What::Bases(number), 0)?)
    }

    /// The table of blocks in a buffer, and the counts that it is made of.
    fn blocks_of(&self, buffer: BufId, says: Says) -> Option<(TabId, TabId)> {
        let mut tables = self.plan.tables.iter().filter(|(_, t)| t.stored == Some(buffer));
        tables.find_map(|(id, t)| match t.source {
            TableSource::Blocks { of, rows } if u32::try_from(rows) == Ok(says.rows) => {
                Some((self.first(id), of))
            }
            _ => None,
        })
    }

    /// The chunks that rows of lists are of, whose rows begin where these bases say.
    fn listed(&mut self, says: Says, lists: &Region, bases: &Region) -> Result<usize, Stop> {
        let number = self.partition(says, lists)?;
        let all = self.partitions[number].chunks.len() as i64 + 1;
        match &self.get(bases)?[..] {
            [Piece { begin, end, what: What::Bases(of), at: 0 }]
                if *of == number && end - begin == all =>
            {
                Ok(number)
            }
            _ => {
                let bases = self.named(bases);
                wrong(format!("{bases} is not where the rows of these lists begin"))
            }
        }
    }

    /// Each rank has equally many of the chunks, one rank's after the other's.
    fn dropped(
        &mut self,
        says: Says,
        [lists, bases]: [&Region; 2],
        dropped: &Region,
    ) -> Result<(), Stop> {
        let number = self.listed(says, lists, bases)?;
        let Partition { ids, chunks, .. } = &self.partitions[number];
        let ids = *ids;
        let each = chunks.len() as i64 / i64::from(says.over.size.max(1));
        let room = ids.map_or(0, |ids| self.tokens(ids).1).max(1);
        let elsewhere = |(i, (first, tokens)): (i64, &(i64, i64))| {
            *tokens > 0 && (each == 0 || first / room != i / each)
        };
        if (0i64..).zip(chunks).any(elsewhere) {
            return wrong(format!("{} has not as many chunks of each rank", self.named(lists)));
        }
        let table = self.table(says, RoutePart::Dropped, ids, dropped)?;
        self.fill(dropped, table, 0)
    }

    fn sources(
        &mut self,
        says: Says,
        blocks: Option<&Region>,
        [lists, bases]: [&Region; 2],
        sources: Option<&Region>,
    ) -> Result<(), Stop> {
        let number = self.listed(says, lists, bases)?;
        let ids = self.partitions[number].ids;
        let (blocks, sources) = match (blocks, sources) {
            (Some(blocks), Some(sources)) => (blocks, sources),
            (None, None) => return Ok(()),
            _ => return wrong("blocks without rows, or rows without blocks"),
        };
        let table = self.table(says, RoutePart::Sources, ids, sources)?;
        let found = self.get(blocks)?;
        let own = self.blocks_of(blocks.buffer, says);
        let counted = own.filter(|(_, counts)| {
            let t = &self.plan.tables[*counts];
            t.routed.is_some_and(|r| {
                let of = self.plan.tables[r.ids].stored;
                u32::try_from(r.keep) == Ok(says.keep) && ids.is_none_or(|ids| of == Some(ids.0))
            })
        });
        let same = |of: TabId, what: &What| *what == What::Table(of, blocks.rank);
        match (&found[..], counted) {
            ([Piece { begin, end, what, at }], Some((of, _))) if begin == at && same(of, what) => {
                let each = i64::from(says.rows);
                let (first, last) = rows(sources);
                if last - first != (end - begin) * each {
                    return wrong(format!("{} is not as long as its blocks", self.named(sources)));
                }
                self.fill(sources, table, begin * each)
            }
            _ => wrong(format!("{} has not the blocks of these lists", self.named(blocks))),
        }
    }

    /// Rows look their token up among the experts of all tokens, which lie by their numbers.
    fn slots(
        &mut self,
        says: Says,
        ids: &Region,
        [blocks, sources]: [&Region; 2],
        slots: &Region,
    ) -> Result<(), Stop> {
        let (begin, end) = rows(ids);
        let mut of = None;
        for piece in self.get(ids)? {
            let What::Experts(buffer) = piece.what else {
                return wrong(format!("{} has not the experts of all tokens", self.named(ids)));
            };
            let own = buffer.1 == says.over.rank(ids.rank, 0);
            if piece.at != piece.begin || *of.get_or_insert(buffer) != buffer || !own {
                return wrong(format!("{} has experts of other tokens", self.named(ids)));
            }
        }
        let Some(of) = of else { return wrong("it reads experts of no tokens") };
        let (tokens, room) = self.tokens(of);
        let last = (0i64..).zip(tokens).filter(|(_, n)| **n > 0).last();
        if begin != 0 || last.is_none_or(|(rank, n)| end != rank * room + n) {
            return wrong(format!("{} has not the experts of all tokens", self.named(ids)));
        }
        let table = self.table(says, RoutePart::Slots, Some(of), slots)?;
        let made_of = self.table(says, RoutePart::Sources, Some(of), sources)?;
        let Some((of_blocks, counts)) = self.blocks_of(blocks.buffer, says) else {
            return wrong(format!("{} has no blocks", self.named(blocks)));
        };
        let counted = self.plan.tables[counts].routed;
        let counted = counted.filter(|r| self.plan.tables[r.ids].stored == Some(of.0));
        let own = |table: TabId, region: &Region| What::Table(table, region.rank);
        match (&self.get(blocks)?[..], &self.get(sources)?[..]) {
            ([b], [s])
                if (b.begin, &b.what) == (b.at, &own(of_blocks, blocks))
                    && (s.begin, &s.what) == (s.at, &own(made_of, sources))
                    && counted.is_some_and(|r| u32::try_from(r.keep) == Ok(says.keep)) =>
            {
                let each = i64::from(says.rows);
                let (first, last) = rows(slots);
                let wanted = (b.begin * each, b.end * each);
                if (s.begin, s.end) != wanted || last - first != wanted.1 - wanted.0 {
                    return wrong(format!("{} is not as long as its blocks", self.named(slots)));
                }
                self.fill(slots, table, wanted.0)
            }
            _ => wrong("it reads other blocks, or tokens of other rows"),
        }
    }

    fn wanted(
        &mut self,
        says: Says,
        ids: Option<&Region>,
        wanted: Option<&Region>,
    ) -> Result<(), Stop> {
        let found = self.experts(says, ids)?;
        let Some(wanted) = wanted else { return Ok(()) };
        let table = self.table(says, RoutePart::Wanted, found.map(|f| f.0), wanted)?;
        let stored = || {
            let of = self.plan.tables[self.plan.tables[table].routed?.ids].stored?;
            Some((of, says.over.rank(wanted.rank, 0)))
        };
        let ids = found.map(|f| f.0).or_else(stored);
        let entries = self.plan.tables[table].shape.iter().product::<u32>();
        let room = i64::from(entries) / i64::from(says.over.size.max(1));
        let (tokens, most) = ids.map_or((&[][..], 0), |ids| self.tokens(ids));
        let (first, n) = found.map_or((0, 0), |(_, first, n)| (first, n));
        let (begin, end) = rows(wanted);
        for entry in begin..end {
            let (rank, i) = (entry / room.max(1), entry % room.max(1));
            let own = usize::try_from(rank).ok().and_then(|r| tokens.get(r)).copied().unwrap_or(0);
            let token = (i < own).then_some(rank * most + i);
            let read = (entry - begin < n).then_some(first + entry - begin);
            if token != read {
                let say = |t: Option<i64>| t.map_or("no token".into(), |t| format!("token {t}"));
                let (read, token) = (say(read), say(token));
                return wrong(format!(
                    "it reads the experts of {read} for entry {entry}, which is about {token}"
                ));
            }
        }
        self.fill(wanted, table, begin)
    }

    /// What crosses of a chunk, in the row of its tables that is its own: the experts of these tokens alone are read.
    fn between(
        &mut self,
        says: Says,
        part: RoutePart,
        ids: Option<&Region>,
        [counts, made]: [&Region; 2],
    ) -> Result<(), Stop> {
        let found = self.experts(says, ids)?;
        let of = found.map(|f| f.0);
        let tables = [(RoutePart::Crossing, counts), (part, made)];
        let [crossing, table] = match tables.map(|(part, r)| self.table(says, part, of, r)) {
            [Ok(a), Ok(b)] => [a, b],
            [Err(stop), _] | [_, Err(stop)] => return Err(stop),
        };
        let stored = self.plan.tables[crossing].routed.and_then(|r| {
            let of = self.plan.tables[r.ids].stored?;
            Some((of, says.over.rank(counts.rank, 0)))
        });
        let (tokens, room) = of.or(stored).map_or((&[][..], 0), |ids| self.tokens(ids));
        let rows_of = |t: TabId| self.plan.tables[t].shape.first().map_or(0, |n| i64::from(*n));
        let chunks = (rows_of(crossing) / i64::from(says.over.size.max(1))).max(1);
        let row = rows(counts).0;
        let (place, chunk) = (row / chunks, row % chunks);
        let most = i64::from(LIST_TOKENS as u32);
        let own = usize::try_from(place).ok().and_then(|p| tokens.get(p)).copied().unwrap_or(0);
        let n = (own - chunk * most).clamp(0, most);
        let wanted = (n > 0).then_some((place * room + chunk * most, n));
        if found.map(|(_, first, n)| (first, n)) != wanted {
            return wrong(format!(
                "{} counts other tokens than those that it reads",
                self.named(counts)
            ));
        }
        let at = match part {
            RoutePart::Leaving if place == says.over.place(made.rank) as i64 => chunk,
            RoutePart::Leaving => return wrong("it lists tokens that another rank sends"),
            _ => row,
        };
        self.fill(counts, crossing, row)?;
        self.fill(made, table, at)
    }

    fn places(
        &mut self,
        says: Says,
        ids: Option<&Region>,
        [list, bases, begins]: [Option<&Region>; 3],
        written: [(RoutePart, Option<&Region>); 2],
    ) -> Result<(), Stop> {
        let found = self.experts(says, ids)?;
        let Some((ids, first, n)) = found else {
            return match written.iter().find_map(|w| w.1) {
                Some(region) => wrong(format!("{} is made of no experts", self.named(region))),
                None => Ok(()),
            };
        };
        let piece = |region: Option<&Region>| -> Result<Option<(What, i64, i64)>, Stop> {
            let Some(region) = region else { return Ok(None) };
            let [piece] = &self.get(region)?[..] else { return Ok(None) };
            Ok(Some((piece.what.clone(), piece.at, piece.end - piece.begin)))
        };
        let chunk = match piece(list)? {
            Some((What::List(c), _, 1)) if (c.ids, c.experts) == (Some(ids), says.experts) => c,
            _ => return wrong("it reads no list of these experts"),
        };
        if chunk.first != first || chunk.tokens < n {
            return wrong(format!(
                "it reads the list of {} tokens from {} on, for {n} from {first} on",
                chunk.tokens, chunk.first
            ));
        }
        let number = match piece(bases)? {
            Some((What::Bases(number), at, 1)) => {
                let partition = &self.partitions[number];
                let of = usize::try_from(at).ok().and_then(|at| partition.chunks.get(at));
                if of != Some(&(chunk.first, chunk.tokens)) || partition.ids != Some(ids) {
                    return wrong("it reads where the rows of another list begin");
                }
                number
            }
            _ => return wrong("it does not read where the rows of its list begin"),
        };
        let behind = self.partitions[number].chunks.len() as i64;
        if says.keep > 0 && piece(begins)? != Some((What::Bases(number), behind, 1)) {
            return wrong("it does not read where the rows of experts begin");
        }
        let most = self.tokens(ids).1.max(1);
        for (part, region) in written {
            let Some(region) = region else { continue };
            let (begin, end) = rows(region);
            let table = self.table(says, part, Some(ids), region)?;
            if end - begin != n {
                return wrong(format!("{} is of other tokens than {n}", self.named(region)));
            }
            let at = match i64::from(says.local) {
                0 => first - says.over.place(region.rank) as i64 * most,
                // Node by node, the tokens of the rank with the same place in it.
                local if first / most % local == says.over.place(region.rank) as i64 % local => {
                    first / most / local * most + first % most
                }
                _ => {
                    return wrong(format!(
                        "{} has places of tokens from {first} on, which another rank of the node has",
                        self.named(region)
                    ));
                }
            };
            self.fill(region, table, at)?;
        }
        Ok(())
    }
}
