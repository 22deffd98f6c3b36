//! Tables: their size, and what they are derived from.

use super::checker::Checker;
use crate::{
    entity::{Entity, TabId},
    expr::{Expr, Var},
    leaf::{Leaf, Mask, Tabulate, Tabulation},
    lookup::Meeting,
    names::{Mode, Operand, Point, RoutePart, Side},
    plan::{Access, Family, Space, Table, TableSource},
    routes::{LIST_TOKENS, NO_EXPERT},
};
use mk_abi::DType;

/// Most entries of all tables, on all ranks together: each run of a plan fills every table on every rank, and the
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
                self.too_large(&place, "is larger than 2^24 entries");
                continue;
            }
            let before = entries;
            entries = entries.saturating_add(len as u64 * ranks);
            if before <= MAX_ENTRIES && entries > MAX_ENTRIES {
                self.too_large(
                    &place,
                    format!("has, with the tables before it and on all ranks together, more than {MAX_ENTRIES} \
                        entries: make tables smaller, or ranks fewer"),
                );
            }
            self.source(&place, id, t, len);
            self.stored(&place, t);
            self.routed(&place, id, t);
        }
    }

    /// Memory that has a table: integers, as many as the table has, on every rank.
    fn stored(&mut self, place: &str, t: &Table) {
        let Some(buffer) = t.stored else { return };
        let Some(b) = self.plan.buffers.get(buffer) else {
            return self.error(place, format!("{buffer} does not exist"));
        };
        let shape: Vec<_> = t.shape.iter().map(|n| Expr::Const(*n as i32)).collect();
        // What nobody looks up may have fewer rows on some ranks.
        let same = b.shape == shape || self.is_ids(t) && b.shape.len() == shape.len();
        // Nor is their width anyone's business but of who makes lists and places of them.
        let wide = b.dtype == DType::I64 && b.space == Space::In && self.is_ids(t);
        if b.dtype != DType::I32 && !wide || !same || b.pitch.is_some() {
            let shape: Vec<_> = t.shape.iter().map(u32::to_string).collect();
            let what =
                format!("is in {buffer}, which must be i32[{}], row by row", shape.join(", "));
            self.error(place, what);
        }
        // The count of dropped rows is a result: no task looks it up.
        let counted = t.routed.is_some_and(|r| r.part == RoutePart::Dropped);
        if counted && b.space != Space::Out {
            self.error(place, "counts dropped rows, and is no result");
        }
        if b.space == Space::Out && !counted || b.space == Space::Net {
            self.error(place, "is in memory that a kernel does not read by itself: use an input, workspace or scratch");
        }
        // Tokens that are routed may be fewer in a launch.
        let routes = self.plan.tables.values().any(|t| t.routed.is_some());
        if self.plan.runtime_dim().is_some() && !routes {
            self.error(place, "is in memory, in a plan with a dimension that comes with each launch: use one or the \
                other");
        }
        if matches!(t.source, TableSource::Const(_)) {
            self.error(place, "is in the plan already: it needs no memory");
        }
    }

    /// Whether a table has the ids of a routing.
    fn is_ids(&self, t: &Table) -> bool {
        let routed = self.plan.tables.values().filter_map(|t| t.routed);
        let mut ids = routed.filter_map(|r| self.plan.tables.get(r.ids));
        ids.any(|ids| std::ptr::eq(ids, t))
    }

    /// Checks a table of a routing: the table of ids comes before it, and this one has the shape that its part of a
    /// routing has.
    fn routed(&mut self, place: &str, id: TabId, t: &Table) {
        let Some(r) = t.routed else { return };
        let over = r.over(&self.plan.mesh);
        let ranks = over.size.max(1) as i64;
        let is_axis = |(name, _): &(String, u32)| self.plan.mesh.axis(name) == Some(over);
        if r.along.is_some() && !self.plan.mesh.axes.iter().any(is_axis) {
            return self
                .error(place, "follows from a routing over ranks that are no axis of the mesh");
        }
        let Some(ids) = self.before(id, r.ids) else {
            return self.error(place, "follows from a table before it");
        };
        let TableSource::Runtime { min: NO_EXPERT, max } = ids.source else {
            return self.error(place, "follows from a table of experts, from -1 on");
        };
        let [tokens, slots] = ids.shape[..] else {
            return self.error(place, "follows from a table of [tokens, slots]");
        };
        let experts = i64::from(max) + 1;
        // Nodes of which a rank has the tokens of its rails.
        let world = over.size;
        let nodes = match r.local {
            0 => Some(1),
            local => (world.is_multiple_of(local) && local < world).then(|| world / local),
        };
        let fits = match r.part {
            RoutePart::Lists => false,
            RoutePart::Wanted => {
                let runtime = t.source == TableSource::Runtime { min: 0, max: 1 };
                let room =
                    |n: u32| i64::from(n) % ranks == 0 && i64::from(n) / ranks >= tokens.into();
                runtime && matches!(t.shape[..], [n] if room(n))
            }
            RoutePart::Counts => {
                let runtime = matches!(t.source, TableSource::Runtime { min: 0, .. });
                runtime && t.shape == [(experts + ranks - 1).div_euclid(ranks) as u32]
            }
            RoutePart::Sources => {
                let tokens = i64::from(tokens) * ranks;
                let below = |max: i32| i64::from(max) < tokens;
                let runtime =
                    matches!(t.source, TableSource::Runtime { min: 0, max } if below(max));
                runtime && matches!(t.shape[..], [n] if n % (r.rows.max(1) as u32) == 0)
            }
            RoutePart::Dropped => {
                let runtime = matches!(t.source, TableSource::Runtime { min: 0, .. });
                runtime && t.shape == [1] && r.keep > 0
            }
            RoutePart::Slots => {
                let max = slots as i32 - 1;
                t.source == TableSource::Runtime { min: 0, max }
                    && matches!(t.shape[..], [n] if n % (r.rows.max(1) as u32) == 0)
            }
            RoutePart::Places => {
                let of_all = nodes.map(|nodes| nodes * tokens);
                matches!(t.source, TableSource::Places { .. })
                    && of_all.is_some_and(|tokens| t.shape == [tokens, slots, 2])
            }
            RoutePart::Kept => {
                let bits = matches!(t.source, TableSource::Runtime { min: 0, max: 1 });
                let of_all = nodes.map(|nodes| nodes * tokens);
                bits && of_all.is_some_and(|tokens| t.shape == [tokens, slots])
            }
            RoutePart::Crossing | RoutePart::Leaving | RoutePart::Coming => {
                let most = LIST_TOKENS as i32;
                let bounds = match t.source {
                    TableSource::Runtime { min, max } => Some((min, max)),
                    _ => None,
                };
                let chunks = tokens.div_ceil(LIST_TOKENS as u32).max(1);
                let width = chunks.checked_mul(ranks as u32);
                nodes.filter(|_| r.local > 0).is_some_and(|nodes| match (r.part, &t.shape[..]) {
                    (RoutePart::Crossing, [n, m]) => {
                        bounds == Some((1, most)) && (Some(*n), *m) == (width, nodes)
                    }
                    (RoutePart::Leaving, [n, m, w]) => {
                        bounds == Some((0, most - 1))
                            && (*n, *m) == (chunks, nodes)
                            && *w >= tokens.min(LIST_TOKENS as u32)
                    }
                    (_, [n, w]) => {
                        bounds == Some((0, most - 1))
                            && Some(*n) == width
                            && *w >= tokens.min(LIST_TOKENS as u32)
                    }
                    _ => false,
                })
            }
        };
        let of_node = !matches!(
            r.part,
            RoutePart::Lists
                | RoutePart::Wanted
                | RoutePart::Counts
                | RoutePart::Sources
                | RoutePart::Slots
                | RoutePart::Dropped
        );
        if !fits || r.local != 0 && !of_node || r.keep < 0 || r.rows < 1 || slots < 1 {
            self.error(place, "is not what follows from a routing: rows of the rank's experts, tokens of packed rows \
                and their slots, [tokens, slots, 2] places, whether they are kept, how many are not, whether a rank \
                wants each token of the world, or what crosses between nodes");
        }
        if self.is_ids(t) {
            self.error(place, "follows from a routing, and is one");
        }
    }

    /// Where a family may look up what is in memory: not where it must know its tasks, and not in what it waits with
    /// and reads to look up.
    pub(super) fn looks_up(&mut self, place: &str, x: &Family) {
        let plan = self.plan;
        let tables = |e: &Expr| plan.names_stored(e);
        let loops = x.domain.iter().chain(&x.inner).map(|(_, extent)| extent);
        let loops = loops.chain(&x.order);
        let places = x.positions.iter().flat_map(|p| [&p.q, &p.k]);
        if loops.chain(places).any(tables) {
            self.error(place, "a table in memory decides how many tasks there are, or their order: let conditions and \
                lengths do");
        }
        let tab = |a: &&Access| a.operand == Operand::Tab;
        if x.accesses.iter().filter(tab).any(|a| a.rank != Expr::Var(Var::RANK)) {
            self.error(place, "looks up what is on its own rank");
        }
        let wide = |a: &Access| plan.buffers.get(a.buffer).is_some_and(|b| b.dtype == DType::I64);
        let result = |a: &Access| plan.buffers.get(a.buffer).is_some_and(|b| b.space == Space::Out);
        if x.accesses.iter().filter(tab).any(result) {
            self.error(place, "looks up a result");
        }
        if x.accesses.iter().filter(tab).any(wide) {
            self.error(place, "looks up integers of 64 bits: tables are of 32");
        }
        if x.accesses.iter().filter(tab).any(|a| plan.access_names_stored(a)) {
            self.error(place, "what it reads to look up depends on a look-up");
        }
        if !x.accesses.iter().any(|a| tab(&a)) && plan.looks_up(x) {
            self.error(place, "a table in memory is looked up, and no access `tab` reads it");
        }
    }

    /// Bounds by which a tile masks: rows of a table of its side, the same for who masks and who brings.
    pub(super) fn masks_by(&mut self, place: &str, x: &Family) {
        let of = |operand| x.accesses.iter().find(|a| a.operand == operand);
        let (Some(bounds), Some(span)) = (of(Operand::Bounds), of(Operand::Span)) else { return };
        let side = if x.leaf.queries_move() { Side::Keys } else { Side::Queries };
        let is_table = |t: &Table| {
            let own = matches!(t.source, TableSource::Bounds { side: of, .. } if of == side);
            own && t.stored == Some(bounds.buffer)
        };
        if !self.plan.tables.values().any(is_table) {
            self.error(place, format!("`bounds` reads no table of the bounds of {side}"));
        }
        let line = |a: &Access| (a.buffer, a.rank.clone(), a.region.clone(), a.version.clone());
        let own = bounds.rank == Expr::Var(Var::RANK) && bounds.version == Expr::Const(0);
        let always = [bounds, span].iter().all(|a| (&a.each, &a.when) == (&None, &None));
        if line(bounds) != line(span) || !own || !always {
            self.error(place, "`bounds` and `span` read the same rows of the own rank, always");
        }
        let at = x.positions.as_ref().map(|p| if side == Side::Keys { &p.k } else { &p.q });
        if at != bounds.region.first().map(|(first, _)| first) {
            self.error(
                place,
                format!(
                    "bounds are of the rows at the positions of the tile's {side}, and of no others"
                ),
            );
        }
    }

    /// That parts meet says whether a copy moves something, or a tile reads a step of what moves past it; and nothing
    /// else does it say.
    pub(super) fn meets(&mut self, place: &str, x: &Family) {
        let plan = self.plan;
        let named = |e: &Expr| {
            let mut n = 0;
            e.visit(&mut |e| {
                if let Expr::Table(t, _) = e {
                    let source = plan.tables.get(*t).map(|t| &t.source);
                    n += usize::from(matches!(source, Some(TableSource::Meets { .. })));
                }
            });
            n
        };
        let lines = x.emitted().into_iter().chain(x.accesses.iter().map(|a| &a.version));
        let all: usize = lines.map(named).sum();
        let told = x.accesses.iter().filter_map(|a| Some((a, plan.meeting(a.when.as_ref())?)));
        let told: Vec<_> = told.collect();
        let comes = |e: &Expr| e.any_table(|t| plan.tables.get(t).is_none_or(|t| t.source.comes()));
        let plain = |m: &Meeting<'_>| !m.index.iter().chain(m.rest).any(comes);
        if all != told.len() || !told.iter().all(|(_, m)| plain(m)) {
            self.error(place, "that parts meet is a condition of accesses, alone or beside one that no launch changes");
        }
        let bounds = x.accesses.iter().find(|a| a.operand == Operand::Bounds);
        let masks = |of: TabId| {
            let TableSource::Meets { of, side, mask, .. } = plan.tables[of].source else {
                return false;
            };
            let same = |t: &Table| t.source == TableSource::Bounds { of, side, mask };
            let bounds = bounds.map(|a| a.buffer);
            plan.tables.values().any(|t| same(t) && bounds.is_some() && t.stored == bounds)
        };
        // A copy that reads where parts meet writes there, too.
        let alike =
            |(a, m): &(&Access, Meeting<'_>)| a.each.is_none() && m.entry == told[0].1.entry;
        let reads = told.iter().any(|(a, _)| a.mode == Mode::Read);
        let mut written = x.accesses.iter().filter(|a| a.operand == Operand::Dst);
        let both = !reads || written.all(|a| plan.meeting(a.when.as_ref()).is_some());
        if x.leaf.copies() && !(told.iter().all(alike) && both) {
            let what = "copies where some parts meet: source and destination need the same condition, and there is \
                        one destination";
            self.error(place, what);
        }
        for (a, meeting) in told {
            let fits = match plan.knows_meetings(x) {
                true => a.at == Point::Inner && a.mode == Mode::Read && masks(meeting.table),
                false => x.leaf.copies(),
            };
            if !fits {
                let what = format!(
                    "`{}` depends on which parts meet: of a copy it may, and of what moves past a \
                    tile that masks by bounds of the same documents and mask",
                    a.operand
                );
                self.error(place, what);
            }
        }
    }

    /// A task that fills a table of blocks fills all of it, from all that the table says that it is made of; tasks that
    /// fill one that follows from a routing, their share of it.
    pub(super) fn fills(&mut self, place: &str, x: &Family) {
        let Leaf::Tabulate(Tabulate { of }) = x.leaf else { return };
        let plan = self.plan;
        let whole = |operand: Operand, id: TabId| {
            let Some(table) = plan.tables.get(id) else { return false };
            let mut all = x.accesses.iter().filter(|a| a.operand == operand);
            let (Some(a), None) = (all.next(), all.next()) else { return false };
            let extents = table.shape.iter().map(|n| (Expr::Const(0), Expr::Const(*n as i32)));
            table.stored == Some(a.buffer)
                && a.region.iter().cloned().eq(extents)
                && a.rank == Expr::Var(Var::RANK)
                && (&a.each, &a.when) == (&None, &None)
        };
        let blocks = |rows: u32, (id, t): (TabId, &Table)| match t.source {
            TableSource::Blocks { of, rows: n } => {
                u32::try_from(n) == Ok(rows) && whole(Operand::Dst, id) && whole(Operand::Src, of)
            }
            _ => false,
        };
        let begins = |rows: u32, (id, t): (TabId, &Table)| match t.source {
            TableSource::Prefix { of, align } => {
                u32::try_from(align) == Ok(rows)
                    && whole(Operand::Dst, id)
                    && whole(Operand::Src, of)
            }
            _ => false,
        };
        // Some of the rows of a table of bounds.
        let bounds = |(n, own): (u32, (Side, Mask)), t: &Table| {
            let TableSource::Bounds { of, side, mask } = t.source else { return false };
            let mut all = x.accesses.iter().filter(|a| a.operand == Operand::Dst);
            let (Some(a), None) = (all.next(), all.next()) else { return false };
            let pair = a.region.get(1) == Some(&(Expr::Const(0), Expr::Const(2)));
            own == (side, mask)
                && t.shape.first() == Some(&n)
                && t.stored == Some(a.buffer)
                && pair
                && a.rank == Expr::Var(Var::RANK)
                && (&a.each, &a.when) == (&None, &None)
                && whole(Operand::Src, of)
        };
        let over = of.over();
        let (part, experts, rows, keep, local) = match of {
            Tabulation::Bounds { rows, side, mask } => {
                if !plan.tables.values().any(|t| bounds((rows, (side, mask)), t)) {
                    self.error(
                        place,
                        "fills rows of a table of bounds in memory, from where documents begin in \
                        memory, which no table line says",
                    );
                }
                return;
            }
            Tabulation::Meets { rows, part, side, mask } => {
                let is = |(id, t): (TabId, &Table)| {
                    let TableSource::Meets { of, side: s, mask: m, rows: n } = t.source else {
                        return false;
                    };
                    let says = plan.parts(id).map(|p| u32::try_from(p.tokens));
                    (s, m, u32::try_from(n)) == (side, mask, Ok(part))
                        && says == Some(Ok(rows))
                        && whole(Operand::Dst, id)
                        && whole(Operand::Src, of)
                };
                if !plan.tables.iter().any(is) {
                    self.error(
                        place,
                        "fills a table of which parts meet in memory, whole, from where documents \
                        begin in memory, which no table line says",
                    );
                }
                return;
            }
            Tabulation::Blocks { rows } => {
                if !plan.tables.iter().any(|t| blocks(rows, t)) {
                    self.error(
                        place,
                        "fills a table of blocks in memory, whole, from the rows of its groups in \
                        memory, which no table line says",
                    );
                }
                return;
            }
            Tabulation::Begins { rows } => {
                if !plan.tables.iter().any(|t| begins(rows, t)) {
                    self.error(place, "fills a table of where rows of groups begin in memory, whole, from the rows of \
                        its groups in memory, which no table line says");
                }
                return;
            }
            Tabulation::Route { part, experts, rows, keep, local, .. } => {
                (part, experts, rows, keep, local)
            }
        };
        let filled = |id: TabId, t: &Table| {
            let mut all = x.accesses.iter().filter(|a| a.operand == Operand::Dst);
            let own = |a: &Access| a.rank == Expr::Var(Var::RANK) && t.stored == Some(a.buffer);
            match part {
                // Beside where rows of chunks begin, and their blocks.
                RoutePart::Counts => {
                    let fills = |a: &Access, t: &Table| {
                        let extents =
                            t.shape.iter().map(|n| (Expr::Const(0), Expr::Const(*n as i32)));
                        let own = a.rank == Expr::Var(Var::RANK) && t.stored == Some(a.buffer);
                        own && a.region.iter().cloned().eq(extents)
                    };
                    let blocks = |t: &&Table| matches!(t.source, TableSource::Blocks { of, rows: n } if of == id && u32::try_from(n) == Ok(rows));
                    let mut blocks = plan.tables.values().filter(blocks);
                    let (counts, last) = (all.next(), all.nth(1));
                    counts.is_some_and(|a| fills(a, t))
                        && last.is_some_and(|a| blocks.any(|t| fills(a, t)))
                }
                // Beside which of them are kept, or how many they are.
                RoutePart::Places | RoutePart::Leaving | RoutePart::Coming => all.any(own),
                _ => {
                    matches!((all.next(), all.next()), (Some(a), None) if own(a)) && id.index() > 0
                }
            }
        };
        let of_node = [RoutePart::Places, RoutePart::Leaving, RoutePart::Coming].contains(&part);
        if local != 0 && !of_node {
            self.error(place, "is of nodes: that places alone are, and what crosses between them");
        }
        if part == RoutePart::Lists {
            return;
        }
        if let RoutePart::Kept | RoutePart::Crossing = part {
            return self.error(
                place,
                "makes which rows are kept, or how many cross: that is made with others",
            );
        }
        let routed = |(id, t): (TabId, &Table)| {
            let Some(r) = t.routed else { return false };
            let of = plan.tables.get(r.ids).map(|ids| &ids.source);
            let max = i32::try_from(experts).unwrap_or(0) - 1;
            (r.part, u32::try_from(r.rows)) == (part, Ok(rows))
                && (u32::try_from(r.keep), r.local) == (Ok(keep), local)
                && of == Some(&TableSource::Runtime { min: NO_EXPERT, max })
                && over == Some(r.over(&plan.mesh))
                && filled(id, t)
        };
        if !plan.tables.iter().any(routed) {
            self.error(
                place,
                "fills a table that follows from a routing in memory, which no table line says",
            );
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
            TableSource::Bounds { of, mask, .. } => {
                let documents = self.before(id, *of).map(|t| (t.shape.len(), &t.source));
                let [rows, 2] = t.shape[..] else {
                    return self.error(
                        place,
                        "must be [rows, 2]: the first row that each meets, and the one behind \
                        the last",
                    );
                };
                let runtime = TableSource::Runtime { min: 0, max: rows as i32 };
                if documents != Some((1, &runtime)) {
                    self.error(
                        place,
                        format!(
                            "must be of a one-dimensional table before it that comes with each \
                        launch, of 0..={rows}"
                        ),
                    );
                }
                if *mask == Mask::Bounds {
                    self.error(place, "follows from a mask, and not from bounds");
                }
            }
            TableSource::Meets { of, mask, rows, .. } => {
                let documents = self.before(id, *of).map(|t| (t.shape.len(), &t.source));
                let tokens = match documents {
                    Some((1, TableSource::Runtime { min: 0, max })) => i64::from(*max),
                    _ => {
                        let what = "must be of a one-dimensional table before it that comes with \
                                    each launch, from 0 on";
                        return self.error(place, what);
                    }
                };
                let all = |n: u32| *rows > 0 && i64::from(n) * i64::from(*rows) >= tokens;
                match t.shape[..] {
                    [places, parts]
                        if (parts == places || parts / 2 == places && parts % 2 == 0)
                            && all(parts) => {}
                    _ => self.error(
                        place,
                        "must be [places, parts], one or two parts for each place, and all rows \
                        in them",
                    ),
                }
                if *mask == Mask::Bounds {
                    self.error(place, "follows from a mask, and not from bounds");
                }
                if t.stored.is_none() || self.plan.runtime_dim().is_some() {
                    self.error(
                        place,
                        "is made in the launch: it must be in memory, and all dimensions fixed",
                    );
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

    fn blocks(&mut self, place: &str, id: TabId, t: &Table, (of, rows): (TabId, i32)) {
        if !matches!(t.shape[..], [n, 2] if n > 0) {
            self.error(place, "must be [blocks, 2]: groups and rows");
        }
        if rows < 1 {
            self.error(place, "must have blocks of at least 1 row");
        }
        let counts = self.before(id, of).map(|c| (c.shape.len(), &c.source));
        let Some((1, TableSource::Runtime { min, .. })) = counts else {
            let what = "must cut the rows of a one-dimensional table before it that comes with each launch";
            return self.error(place, what);
        };
        let least = i64::from((*min).max(0)) + i64::from(rows.max(1)) - 1;
        let groups = self.before(id, of).map_or(0, |c| i64::from(c.shape[0]));
        if least / i64::from(rows.max(1)) * groups > t.shape.first().map_or(0, |n| i64::from(*n)) {
            self.error(place, "has no room for the fewest rows that its groups can have");
        }
        let last = t.shape.first().map_or(0, |n| i64::from(*n)) * i64::from(rows.max(1));
        if last > i64::from(i32::MAX) {
            self.too_large(place, "has more rows than fit in 32 bits");
        }
    }
}
