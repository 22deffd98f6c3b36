//! Which expressions look up what is in memory.
//!
//! A table that is in memory is read when an expression that names it is evaluated. The first agent of a leaf does that
//! at one point of a task, `decode`: after the waits at the start that name no such table, and before all other waits.
//! The reads at that point are the family's accesses [`Operand::Tab`](super::Operand::Tab).
//!
//! A tile that masks by bounds does not look up whether parts of a sequence meet ([`TableSource::Meets`]): the bounds of
//! its rows tell which blocks they meet, and it reads no others.

use super::{
    entity::TabId,
    expr::Expr,
    leaf::Mask,
    plan::{Access, Each, Family, Plan, Post, TableSource, Wait},
};

/// A condition that parts of a sequence meet, and what else it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting<'e> {
    /// The table, a [`TableSource::Meets`].
    pub table: TabId,
    /// The entry.
    pub entry: &'e Expr,
    /// Its place and part.
    pub index: &'e [Expr],
    /// The rest of the condition.
    pub rest: Option<&'e Expr>,
}

impl Plan {
    /// Whether a condition is that parts meet, `tab[place, part]`, or `select(tab[place, part], rest, 0)`.
    pub fn meeting<'e>(&self, when: Option<&'e Expr>) -> Option<Meeting<'e>> {
        let (entry, rest) = match when? {
            Expr::Select(c) if c[2] == Expr::Const(0) => (&c[0], Some(&c[1])),
            entry => (entry, None),
        };
        let Expr::Table(table, index) = entry else { return None };
        let meets = matches!(self.tables.get(*table)?.source, TableSource::Meets { .. });
        meets.then_some(Meeting { table: *table, entry, index, rest })
    }

    /// A condition without that parts meet.
    pub fn beside_meeting<'e>(&self, when: Option<&'e Expr>) -> Option<&'e Expr> {
        self.meeting(when).map_or(when, |meeting| meeting.rest)
    }

    /// An access whether or not parts meet.
    pub fn whether_or_not(&self, a: &Access) -> Access {
        Access { when: self.beside_meeting(a.when.as_ref()).cloned(), ..a.clone() }
    }

    /// Whether a family knows which parts meet without a look-up.
    pub fn knows_meetings(&self, x: &Family) -> bool {
        x.leaf.mask() == Some(Mask::Bounds)
    }

    /// Whether a table is in memory.
    pub fn is_stored(&self, table: TabId) -> bool {
        self.tables.get(table).is_some_and(|t| t.stored.is_some())
    }

    /// Whether an expression names a table in memory.
    pub fn names_stored(&self, e: &Expr) -> bool {
        e.any_table(|t| self.is_stored(t))
    }

    fn any_names<'e>(
        &self,
        list: impl IntoIterator<Item = &'e Expr>,
        each: Option<&Each>,
        when: Option<&Expr>,
    ) -> bool {
        let repeats = each.is_some_and(|each| self.names_stored(&each.extent));
        repeats
            || when.is_some_and(|e| self.names_stored(e))
            || list.into_iter().any(|e| self.names_stored(e))
    }

    /// Whether where, when or how often an access is depends on a table in memory.
    pub fn access_names_stored(&self, a: &Access) -> bool {
        let region = a.region.iter().flat_map(|(base, len)| [base, len]);
        let list = region.chain([&a.rank, &a.version]);
        self.any_names(list, a.each.as_ref(), a.when.as_ref())
    }

    /// Whether one of a family's accesses depends on a look-up.
    fn access_looks_up(&self, x: &Family, a: &Access) -> bool {
        let known = self.knows_meetings(x) && self.meeting(a.when.as_ref()).is_some();
        match known {
            true => self.access_names_stored(&self.whether_or_not(a)),
            false => self.access_names_stored(a),
        }
    }

    /// Whether a wait depends on a table in memory: it comes behind the look-ups then.
    pub fn wait_names_stored(&self, w: &Wait) -> bool {
        let list = w.index.iter().chain([&w.count]);
        self.any_names(list, w.each.as_ref(), w.when.as_ref())
    }

    /// Whether a post depends on a table in memory.
    pub fn post_names_stored(&self, p: &Post) -> bool {
        let list = p.index.iter().chain([&p.add, &p.rank]);
        self.any_names(list, p.each.as_ref(), p.when.as_ref())
    }

    /// Whether some line of a family names a table in memory.
    pub fn looks_up(&self, x: &Family) -> bool {
        self.tables.values().any(|t| t.stored.is_some())
            && (x.accesses.iter().any(|a| self.access_looks_up(x, a))
                || x.waits.iter().any(|w| self.wait_names_stored(w))
                || x.posts.iter().any(|p| self.post_names_stored(p)))
    }
}
