//! Mutants of a plan: one edge dropped, weakened or moved.

mod accesses;
mod kinds;
mod one_rank;
mod operands;
mod slots;
mod values;

pub use accesses::of_accesses;
pub use kinds::Kind;
pub use one_rank::of_one_rank;
pub use operands::{of_operands, of_reach};
pub use values::of_values;

use mk_codegen::plan::{Completion, Expr, FamId, Plan, Point, Proxy, Scope, SigId};

/// A plan with one thing changed.
pub struct Mutant {
    pub kind: Kind,
    /// What was changed.
    pub name: String,
    pub plan: Plan,
}

/// All mutants of a plan.
pub fn mutants(plan: &Plan) -> Vec<Mutant> {
    let mut m = Maker::new(plan);
    edges(&mut m);
    // A change that changes nothing is no mutant.
    m.out.retain(|x| x.plan != *plan);
    m.out
}

fn edges(m: &mut Maker<'_>) {
    for id in m.plan.families.keys() {
        m.waits(id);
        m.posts(id);
        m.pairs(id);
    }
    m.entered();
    m.ctas();
    slots::shrink(m);
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub enum Of {
    /// Waits, posts, slots, CTAs: [`mutants`].
    Edges,
    /// Accesses and tables: [`of_accesses`].
    Accesses,
}

/// One of the mutants of a plan, without making the others; `None` where it is no plan, or changes nothing.
#[allow(dead_code)]
pub fn one(plan: &Plan, of: Of, number: usize) -> Option<Mutant> {
    let list = match of {
        Of::Edges => edges,
        Of::Accesses => accesses::all,
    };
    let mut counted = Maker { only: Some(usize::MAX), ..Maker::new(plan) };
    list(&mut counted);
    let only = number.checked_rem(counted.seen)?;
    let mut m = Maker { only: Some(only), ..Maker::new(plan) };
    list(&mut m);
    m.out.pop().filter(|x| x.plan != *plan && x.plan.check_structure().is_ok())
}

struct Maker<'p> {
    plan: &'p Plan,
    /// Only the mutant of this number is made.
    only: Option<usize>,
    /// How many mutants there were.
    seen: usize,
    out: Vec<Mutant>,
}

impl<'p> Maker<'p> {
    fn new(plan: &'p Plan) -> Maker<'p> {
        Maker { plan, only: None, seen: 0, out: Vec::new() }
    }

    fn add(&mut self, kind: Kind, name: String, change: impl FnOnce(&mut Plan)) {
        self.seen += 1;
        if self.only.is_some_and(|n| n != self.seen - 1) {
            return;
        }
        let mut plan = self.plan.clone();
        change(&mut plan);
        self.out.push(Mutant { kind, name, plan });
    }

    /// Dimensions of a signal that have more than one word, and how many.
    fn extents(&self, signal: SigId) -> Vec<(usize, i32)> {
        let shape = self.plan.signals[signal].shape.iter().enumerate();
        let many = shape.filter_map(|(d, n)| match n {
            Expr::Const(n) if *n > 1 => Some((d, *n)),
            _ => None,
        });
        many.collect()
    }

    fn waits(&mut self, id: FamId) {
        let x = &self.plan.families[id];
        for (i, w) in x.waits.iter().enumerate() {
            let e = w.edge;
            self.add(Kind::DropWait, format!("{e} dropped"), |p| {
                p.families[id].waits.remove(i);
            });
            let mut change = |kind, name: String, f: &dyn Fn(&mut mk_codegen::plan::Wait)| {
                self.add(kind, format!("{e} {name}"), |p| f(&mut p.families[id].waits[i]));
            };
            change(Kind::LowerThreshold, "count - 1".into(), &|w| w.count = w.count.clone() - 1);
            change(Kind::LowerThreshold, "count / 2".into(), &|w| w.count = w.count.clone() / 2);
            change(Kind::RaiseThreshold, "count + 1".into(), &|w| w.count = w.count.clone() + 1);
            change(Kind::EpochEarly, format!("lag {}", w.lag + 1), &|w| w.lag += 1);
            if w.scope == Scope::Sys {
                change(Kind::WaitScope, "scope gpu".into(), &|w| w.scope = Scope::Gpu);
            }
            for proxy in [Proxy::Generic, Proxy::Async, Proxy::Host] {
                change(Kind::WaitProxy, format!("for {}", proxy.name()), &|w| w.proxy = proxy);
            }
            for agent in x.leaf.contract().agents {
                change(Kind::WaitAgent, format!("by {agent}"), &|w| w.by = agent);
            }
            for at in [Point::Start, Point::Inner, Point::End] {
                if at != Point::Inner || x.inner.is_some() {
                    change(Kind::WaitMoved, format!("at {}", at.name()), &|w| w.at = at);
                }
            }
            for (d, n) in self.extents(w.signal) {
                self.add(Kind::WrongWord, format!("{e}, next word in dimension {d}"), |p| {
                    let index = &mut p.families[id].waits[i].index[d];
                    *index = (index.clone() + 1) % n;
                });
            }
            let mut change = |kind, name: String, f: &dyn Fn(&mut mk_codegen::plan::Wait)| {
                self.add(kind, format!("{e} {name}"), |p| f(&mut p.families[id].waits[i]));
            };
            if w.each.is_some() {
                change(Kind::EachFewer, "one repetition fewer".into(), &|w| {
                    if let Some(each) = &mut w.each {
                        each.extent = each.extent.clone() - 1;
                    }
                });
            }
        }
    }

    fn posts(&mut self, id: FamId) {
        let x = &self.plan.families[id];
        let credit = x.leaf == mk_codegen::plan::Leaf::Signal;
        let ranks = self.plan.mesh.size() as i32;
        for (i, post) in x.posts.iter().enumerate() {
            let e = post.edge;
            let kind = if credit { Kind::DropCredit } else { Kind::DropPost };
            self.add(kind, format!("{e} dropped"), |p| {
                p.families[id].posts.remove(i);
            });
            let mut change = |kind, name: String, f: &dyn Fn(&mut mk_codegen::plan::Post)| {
                self.add(kind, format!("{e} {name}"), |p| f(&mut p.families[id].posts[i]));
            };
            change(Kind::PostTwice, "twice as much".into(), &|p| p.add = p.add.clone() * 2);
            if post.scope == Scope::Sys {
                change(Kind::PostScope, "scope gpu".into(), &|p| p.scope = Scope::Gpu);
            }
            use Completion::*;
            for after in
                [ProgramOrder, SmemReadDone, GlobalWriteDone, NicPosted, NicDelivered, NicFlushed]
            {
                if after < post.after {
                    let name = format!("after {}", after.name());
                    change(Kind::Completion, name, &|p| p.after = after);
                }
            }
            for agent in x.leaf.contract().agents {
                change(Kind::PostAgent, format!("by {agent}"), &|p| p.by = agent);
            }
            if post.at == Point::End {
                change(Kind::PostMoved, "at start".into(), &|p| p.at = Point::Start);
            }
            change(Kind::WrongRank, "to the next rank".into(), &|p| {
                p.rank = (p.rank.clone() + 1) % ranks;
            });
            for (d, n) in self.extents(post.signal) {
                self.add(Kind::WrongWord, format!("{e}, next word in dimension {d}"), |p| {
                    let index = &mut p.families[id].posts[i].index[d];
                    *index = (index.clone() + 1) % n;
                });
            }
            let mut change = |kind, name: String, f: &dyn Fn(&mut mk_codegen::plan::Post)| {
                self.add(kind, format!("{e} {name}"), |p| f(&mut p.families[id].posts[i]));
            };
            if post.each.is_some() {
                change(Kind::EachFewer, "one repetition fewer".into(), &|p| {
                    if let Some(each) = &mut p.each {
                        each.extent = each.extent.clone() - 1;
                    }
                });
            }
        }
    }

    /// Two waits of a family trade places, or the words that they wait for.
    fn pairs(&mut self, id: FamId) {
        let n = self.plan.families[id].waits.len();
        for (i, j) in (0..n).flat_map(|j| (0..j).map(move |i| (i, j))) {
            let waits = &self.plan.families[id].waits;
            let (a, b) = (waits[i].edge, waits[j].edge);
            self.add(Kind::SwapWaits, format!("{a} and {b} in the other order"), |p| {
                p.families[id].waits.swap(i, j)
            });
            self.add(Kind::SwapWaits, format!("{a} and {b} trade agents"), |p| {
                let waits = &mut p.families[id].waits;
                let (x, y) = (waits[i].by, waits[j].by);
                (waits[i].by, waits[j].by) = (y, x);
            });
            self.add(Kind::SwapWaits, format!("{a} and {b} trade proxies and scopes"), |p| {
                let waits = &mut p.families[id].waits;
                let (x, y) = ((waits[i].proxy, waits[i].scope), (waits[j].proxy, waits[j].scope));
                (waits[i].proxy, waits[i].scope) = y;
                (waits[j].proxy, waits[j].scope) = x;
            });
        }
    }

    /// All tasks of a role on one CTA, also in the other order of families.
    fn ctas(&mut self) {
        for (id, role) in self.plan.roles.iter().filter(|r| r.1.ctas > 0) {
            self.add(Kind::FewerCtas, format!("{id} {} has one CTA", role.kind.name()), |p| {
                p.roles[id].ctas = 1;
            });
            let mut mine = self.plan.families.iter().filter(|x| x.1.role == id).map(|x| x.0);
            let (Some(first), Some(last)) = (mine.next(), mine.next_back()) else { continue };
            let name = format!("{id} {} has one CTA, {last} before {first}", role.kind.name());
            self.add(Kind::FewerCtas, name, |p| {
                p.roles[id].ctas = 1;
                let (a, b) = (p.families[first].clone(), p.families[last].clone());
                (p.families[first], p.families[last]) = (b, a);
            });
        }
    }

    /// The announcement of an epoch, and everything that waits for it, are gone.
    fn entered(&mut self) {
        let named = self.plan.signals.iter().find(|s| s.1.name == "entered").map(|s| s.0);
        let Some(entered) = named else { return };
        self.add(Kind::DropEntered, "nobody waits for `entered`".into(), |p| {
            for (_, x) in p.families.iter_mut() {
                x.waits.retain(|w| w.signal != entered);
            }
        });
        let ids: Vec<FamId> = self.plan.families.keys().collect();
        for id in ids {
            if self.plan.families[id].waits.iter().any(|w| w.signal == entered) {
                self.add(Kind::DropEntered, format!("{id} does not wait for `entered`"), |p| {
                    p.families[id].waits.retain(|w| w.signal != entered);
                });
            }
        }
    }
}
