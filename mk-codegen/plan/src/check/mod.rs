//! Structure of a plan: every id exists, every list has the right length, every leaf has what its contract asks for.
//!
//! A plan that passes can be unrolled without panics; whether it is *correct* is the verifier's question.

mod checker;
mod clusters;
mod names;
mod net;
mod tables;

use super::{
    contract::Arity,
    entity::{EdgeId, FamId},
    epilogue::EPILOGUE_OPERANDS,
    expr::{Expr, Var},
    leaf::Mask,
    names::{Mode, Point},
    plan::{Each, Family, Plan, Schedule, Space},
};
use checker::Checker;
pub use checker::StructureError;
use names::RESERVED;
use std::collections::{BTreeMap, BTreeSet};
pub use tables::MAX_ENTRIES;

impl Plan {
    /// Checks everything that is said above.
    ///
    /// # Errors
    /// All mistakes, in the order of the text.
    pub fn check_structure(&self) -> Result<(), Vec<StructureError>> {
        let mut c = Checker::new(self);
        c.plan_level();
        for id in self.families.keys() {
            c.family(id);
        }
        c.edge_ids();
        if c.errors.is_empty() { Ok(()) } else { Err(c.errors) }
    }
}

impl Checker<'_> {
    fn name(&mut self, place: &str, name: &str) {
        let mut chars = name.chars();
        let ok = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !ok {
            self.error(place, format!("`{name}` cannot be a name: use letters, digits and `_`"));
        }
    }

    fn loop_name(&mut self, place: &str, name: &str) {
        self.name(place, name);
        if RESERVED.contains(&name) {
            self.error(
                place,
                format!(
                    "`{name}` means something else in plans or kernels: call the loop `{name}_`"
                ),
            );
        }
        self.not_a_dim(place, name);
    }

    fn not_a_dim(&mut self, place: &str, name: &str) {
        if self.dims.contains(name) {
            self.error(place, format!("`{name}` is a dimension: loops need other names"));
        }
    }

    fn plan_level(&mut self) {
        let plan = self.plan;
        let world = plan.mesh.axes.iter().try_fold(1u32, |n, a| n.checked_mul(a.1)).unwrap_or(0);
        if world == 0 || world as usize > mk_abi::device::MAX_RANKS {
            self.error("mesh", format!("needs 1 to {} ranks", mk_abi::device::MAX_RANKS));
        }
        let mut dims = BTreeSet::new();
        for (id, d) in plan.dims.iter() {
            self.name(&id.to_string(), &d.name);
            if !dims.insert(&d.name) {
                self.error(
                    id.to_string(),
                    format!("`{}` is already a dimension: use another name", d.name),
                );
            }
            if d.value < 0 || d.runtime_max.is_some_and(|max| d.value > max) {
                self.error(
                    id.to_string(),
                    format!("{} = {} is negative or above its bound", d.name, d.value),
                );
            }
        }
        self.nodes(world);
        let ranks = u64::from(world).clamp(1, mk_abi::device::MAX_RANKS as u64);
        self.tables(ranks);
        let mut buffers = BTreeSet::new();
        for (id, b) in plan.buffers.iter() {
            let place = format!("{id} {:?}", b.name);
            if !buffers.insert(&b.name) {
                self.error(&place, "another buffer has this name already: use another name");
            }
            b.shape.iter().for_each(|e| {
                self.expr(&place, e, None, Scope { vars: 1, each: false, inner: false, t: false })
            });
            let plan_scope = Scope { vars: 1, each: false, inner: false, t: false };
            b.pitch.iter().for_each(|e| self.expr(&place, e, None, plan_scope));
            if b.shape.is_empty() {
                self.error(&place, "needs at least one dimension");
            }
            if b.shared && !matches!(b.space, Space::In | Space::Out) {
                self.error(&place, "`shared` is for caller tensors; workspace is shared by nature");
            }
            if b.own_rows && (b.shared || !matches!(b.space, Space::In | Space::Out)) {
                self.error(&place, "`own` is for caller tensors that peers do not touch");
            }
        }
        for (id, s) in plan.signals.iter() {
            let place = format!("{id} {:?}", s.name);
            s.shape.iter().for_each(|e| {
                self.expr(&place, e, None, Scope { vars: 1, each: false, inner: false, t: false })
            });
        }
        for (id, r) in plan.roles.iter() {
            let own = r.kind.owns_ctas();
            if own != (r.ctas > 0) {
                let need = if own { "at least one CTA" } else { "no CTAs of its own" };
                self.error(format!("{id} {}", r.kind.name()), format!("needs {need}"));
            }
        }
        if plan.roles.len() > mk_abi::device::MAX_CTAS {
            self.error("roles", format!("are more than {}", mk_abi::device::MAX_CTAS));
        }
        let total: u64 = plan.roles.values().map(|r| u64::from(r.ctas)).sum();
        if total == 0 || total > mk_abi::device::MAX_CTAS as u64 {
            self.error("roles", format!("need 1 to {} CTAs together", mk_abi::device::MAX_CTAS));
        }
    }

    fn nodes(&mut self, world: u32) {
        let plan = self.plan;
        if let Some(nic) = plan.nic {
            if nic.local.is_some_and(|local| local == 0 || !world.is_multiple_of(local)) {
                self.error("nic", format!("needs nodes of equally many of the {world} ranks"));
            }
            if !(1..=64).contains(&nic.lanes) {
                self.error("nic", "needs 1 to 64 lanes");
            }
        }
        if plan.nic.is_some_and(|nic| nic.local.is_some()) {
            return;
        }
        let what = "is for the network between nodes: say in a `nic` line how many ranks are in one (`local=`)";
        for (id, b) in plan.buffers.iter().filter(|(_, b)| b.space == Space::Net) {
            self.error(format!("{id} {:?}", b.name), what);
        }
        for (id, s) in plan.signals.iter().filter(|(_, s)| s.net) {
            self.error(format!("{id} {:?}", s.name), what);
        }
    }

    fn family(&mut self, id: FamId) {
        let x = &self.plan.families[id];
        let place = format!("{id} {:?}", x.name);
        let all = Scope {
            vars: x.domain.len() + usize::from(Var::DOMAIN),
            each: false,
            inner: x.inner.is_some(),
            t: false,
        };
        if self.plan.roles.get(x.role).is_none() {
            self.error(&place, format!("{} does not exist", x.role));
        }
        for (i, (name, extent)) in x.domain.iter().enumerate() {
            self.loop_name(&place, name);
            if x.domain[..i].iter().chain(&x.inner).any(|(other, _)| other == name) {
                self.error(&place, format!("has two loop variables `{name}`"));
            }
            self.expr(
                &place,
                extent,
                Some(x),
                Scope { vars: usize::from(Var::DOMAIN) + i, inner: false, ..all },
            );
            if extent.mentions(Var::EPOCH) {
                self.error(&place, "the domain must be the same in every epoch");
            }
        }
        if x.domain.len() > 16 {
            self.error(&place, "has more than 16 loop variables");
        }
        if !x.order.is_empty() && x.order.len() != x.domain.len() {
            self.error(&place, "needs an `order` line for every variable of its domain, or none");
        }
        if x.schedule == Schedule::Dynamic {
            let owns = self.plan.roles.get(x.role).is_some_and(|r| r.ctas > 0);
            if !x.leaf.has_dynamic_schedule() || !owns {
                self.error(&place, "only products, sums and copies by loads and stores, in CTAs of their role, have a \
                    dynamic schedule");
            }
        }
        for e in &x.order {
            let scope =
                Scope { vars: usize::from(Var::DOMAIN), t: true, inner: false, each: false };
            self.expr(&place, e, Some(x), scope);
        }
        if let Some((name, extent)) = &x.inner {
            self.loop_name(&place, name);
            self.expr(&place, extent, Some(x), Scope { inner: false, ..all });
        }
        self.positions(&place, x, all);
        self.masks_by(&place, x);
        self.meets(&place, x);
        self.contract(&place, x);
        self.errors.extend(self.plan.mistyped(id));
        self.looks_up(&place, x);
        self.fills(&place, x);
        self.sends(&place, x);
        self.accesses(&place, x, all);
        self.signalling(&place, x, all);
    }

    /// Places of queries and keys: where a mask asks for them, and nowhere else.
    fn positions(&mut self, place: &str, x: &Family, all: Scope) {
        let masks = x.leaf.mask().is_some_and(|mask| mask != Mask::Full);
        match &x.positions {
            None if masks => self.error(place, "masks by position: it needs `position` lines"),
            None => {}
            Some(_) if !masks => {
                self.error(place, "has `position` lines, which only a mask by position asks for")
            }
            Some(at) => {
                let held = Scope { inner: false, ..all };
                let [q, k] = if x.leaf.queries_move() { [all, held] } else { [held, all] };
                self.expr(place, &at.q, Some(x), q);
                self.expr(place, &at.k, Some(x), k);
            }
        }
    }

    /// The scope of a line with `each`, checking the extent on the way.
    fn line(
        &mut self,
        place: &str,
        x: &Family,
        all: Scope,
        at: Point,
        each: Option<&Each>,
        when: Option<&Expr>,
    ) -> Scope {
        let scope = Scope { inner: all.inner && at == Point::Inner, ..all };
        if at == Point::Inner && x.inner.is_none() {
            self.error(place, "is `at inner`, but the family has no inner loop");
        }
        if let Some(each) = each {
            self.loop_name(place, &each.var);
            if x.domain.iter().chain(&x.inner).any(|(name, _)| *name == each.var) {
                self.error(
                    place,
                    format!(
                        "`{}` is a loop variable of the family: use another name for `each`",
                        each.var
                    ),
                );
            }
            self.expr(place, &each.extent, Some(x), scope);
        }
        let scope = Scope { each: each.is_some(), ..scope };
        when.into_iter().for_each(|e| self.expr(place, e, Some(x), scope));
        scope
    }

    fn accesses(&mut self, family: &str, x: &Family, all: Scope) {
        for (i, a) in x.accesses.iter().enumerate() {
            let place = format!("{family}: access {} ({i})", a.operand);
            let scope = self.line(&place, x, all, a.at, a.each.as_ref(), a.when.as_ref());
            self.expr(&place, &a.rank, Some(x), scope);
            self.expr(&place, &a.version, Some(x), scope);
            for (base, len) in &a.region {
                self.expr(&place, base, Some(x), scope);
                self.expr(&place, len, Some(x), scope);
            }
            let Some(b) = self.plan.buffers.get(a.buffer) else {
                self.error(&place, format!("{} does not exist", a.buffer));
                continue;
            };
            if b.shape.len() != a.region.len() {
                self.error(
                    &place,
                    format!(
                        "{} has {} dimensions, the region {}",
                        a.buffer,
                        b.shape.len(),
                        a.region.len()
                    ),
                );
            }
            let local = a.rank == Expr::Var(Var::RANK);
            let sent = b.space == Space::Net && x.leaf.sends();
            if !local && b.space != Space::Workspace && !b.shared && !sent {
                self.error(
                    &place,
                    format!(
                        "{} {:?} is not symmetric memory: only its own rank may touch it",
                        a.buffer, b.name
                    ),
                );
            }
            if b.space == Space::In && a.mode != Mode::Read {
                self.error(&place, format!("{} {:?} is an input", a.buffer, b.name));
            }
        }
    }

    fn signalling(&mut self, family: &str, x: &Family, all: Scope) {
        let agents = x.leaf.contract().agents;
        let lines = x
            .waits
            .iter()
            .map(|w| (w.edge, w.signal, &w.index, w.by, w.at, &w.each, &w.when, vec![&w.count]));
        let posts = x.posts.iter().map(|p| {
            (p.edge, p.signal, &p.index, p.by, p.at, &p.each, &p.when, vec![&p.rank, &p.add])
        });
        for (edge, signal, index, by, at, each, when, exprs) in lines.chain(posts) {
            let place = format!("{family}: {edge}");
            let scope = self.line(&place, x, all, at, each.as_ref(), when.as_ref());
            exprs.into_iter().chain(index).for_each(|e| self.expr(&place, e, Some(x), scope));
            match self.plan.signals.get(signal) {
                None => self.error(&place, format!("{signal} does not exist")),
                Some(s) if s.shape.len() != index.len() => {
                    self.error(
                        &place,
                        format!(
                            "{signal} has {} dimensions, the index {}",
                            s.shape.len(),
                            index.len()
                        ),
                    );
                }
                Some(_) => {}
            }
            if !agents.contains(&by) {
                self.error(&place, format!("{} has no agent `{by}`", x.leaf.name()));
            }
        }
        for w in x.waits.iter().filter(|w| w.lag > 1) {
            self.error(format!("{family}: {}", w.edge), "`lag` is 0 or 1");
        }
    }

    fn contract(&mut self, place: &str, x: &Family) {
        let contract = x.leaf.contract();
        for a in &x.accesses {
            match contract.operand(a.operand) {
                None => {
                    self.error(place, format!("{} has no operand `{}`", x.leaf.name(), a.operand))
                }
                Some(o)
                    if o.mode != a.mode
                        && !(a.mode == Mode::Accumulate && o.mode == Mode::Write) =>
                {
                    self.error(place, format!("operand `{}` is a {}", a.operand, o.mode.name()));
                }
                Some(_) => {}
            }
        }
        for o in &contract.operands {
            let n = x.accesses.iter().filter(|a| a.operand == o.operand).count();
            let ok = match o.arity {
                Arity::One => n == 1,
                Arity::Optional => n <= 1,
                Arity::Many => n >= 1,
                Arity::Any => true,
            };
            if !ok {
                self.error(
                    place,
                    format!("operand `{}` of {} appears {n} times", o.operand, x.leaf.name()),
                );
            }
        }
        let epilogue = x.leaf.epilogue();
        let operands = epilogue.iter().filter(|op| op.operand().is_some()).count();
        if operands > EPILOGUE_OPERANDS.len() {
            self.error(
                place,
                format!("an epilogue has at most four operands, and this one {operands}"),
            );
        }
        if let Some(product) = x.leaf.product() {
            self.cluster(place, x, product);
            self.multicast(place, x, product);
        }
        for what in x.leaf.misuse() {
            self.error(place, what);
        }
        let want: Vec<_> = contract.edges.iter().map(|e| e.name).collect();
        let have: Vec<_> = x.edges.iter().map(|e| e.name.as_str()).collect();
        if want != have {
            self.error(
                place,
                format!(
                    "{} has the internal edges {want:?}, the family lists {have:?}",
                    x.leaf.name()
                ),
            );
        }
    }

    /// Every id is one edge. Families of one role with the same leaf share its barriers, and so the internal ids.
    fn edge_ids(&mut self) {
        let mut seen: BTreeMap<_, (FamId, Option<&str>)> = BTreeMap::new();
        for (id, x) in self.plan.families.iter() {
            let internal = x.edges.iter().map(|e| (e.edge, Some(e.name.as_str())));
            let signals = x.waits.iter().map(|w| w.edge).chain(x.posts.iter().map(|p| p.edge));
            for (edge, name) in internal.chain(signals.map(|e| (e, None))) {
                let Some((other, other_name)) = seen.insert(edge, (id, name)) else { continue };
                let y = &self.plan.families[other];
                let shared = other != id && name.is_some() && name == other_name;
                if !(shared && y.role == x.role && y.leaf.shares_ring(&x.leaf)) {
                    self.error(
                        format!("{id} {:?}", x.name),
                        format!("edge {edge} is already one of {other}"),
                    );
                }
            }
        }
    }

    fn expr(&mut self, place: &str, e: &Expr, family: Option<&Family>, scope: Scope) {
        let mut wrong = Vec::new();
        e.visit(&mut |e| match e {
            Expr::Dim(d) if self.plan.dims.get(*d).is_none() => {
                wrong.push(format!("{d} does not exist"))
            }
            Expr::Table(t, index) => match self.plan.tables.get(*t) {
                None => wrong.push(format!("{t} does not exist")),
                Some(table) if table.shape.len() != index.len() => {
                    wrong.push(format!(
                        "{t} has {} dimensions, the index {}",
                        table.shape.len(),
                        index.len()
                    ));
                }
                Some(_) => {}
            },
            Expr::Var(v) if !scope.has(*v) => {
                wrong.push(format!(
                    "`{}` is not in scope here",
                    self.plan.text(family, None, &Expr::Var(*v))
                ));
            }
            _ => {}
        });
        wrong.into_iter().for_each(|w| self.error(place, w));
    }
}

/// Which variables an expression may name.
#[derive(Clone, Copy)]
struct Scope {
    /// Slots below this, apart from the special ones.
    vars: usize,
    each: bool,
    inner: bool,
    t: bool,
}

impl Scope {
    fn has(self, v: Var) -> bool {
        match v {
            Var::LINEAR => self.t,
            Var::EACH => self.each,
            Var::INNER => self.inner,
            v => usize::from(v.0) < self.vars,
        }
    }
}

impl Family {
    /// Ids of all edges of the family: internal ones, waits, posts.
    pub fn edge_ids(&self) -> impl Iterator<Item = EdgeId> + '_ {
        let internal = self.edges.iter().map(|e| e.edge);
        internal.chain(self.waits.iter().map(|w| w.edge)).chain(self.posts.iter().map(|p| p.edge))
    }

    /// Every expression of the family.
    pub fn expressions(&self) -> Vec<&Expr> {
        let mut list = self.emitted();
        list.extend(self.accesses.iter().map(|a| &a.version));
        list
    }

    /// The expressions that a kernel computes: all but the versions of accesses.
    pub fn emitted(&self) -> Vec<&Expr> {
        let mut list: Vec<&Expr> = self.domain.iter().chain(&self.inner).map(|d| &d.1).collect();
        list.extend(&self.order);
        list.extend(self.positions.iter().flat_map(|at| [&at.q, &at.k]));
        for a in &self.accesses {
            list.push(&a.rank);
            list.extend(a.region.iter().flat_map(|(b, l)| [b, l]));
            list.extend(a.each.iter().map(|e| &e.extent).chain(&a.when));
        }
        for w in &self.waits {
            list.extend(w.index.iter().chain([&w.count]).chain(&w.when));
            list.extend(w.each.iter().map(|e| &e.extent));
        }
        for p in &self.posts {
            list.extend(p.index.iter().chain([&p.rank, &p.add]).chain(&p.when));
            list.extend(p.each.iter().map(|e| &e.extent));
        }
        list
    }
}
