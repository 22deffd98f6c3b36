//! Task families as CUDA: how a task's number becomes coordinates.

use super::{context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Each, Entity, Expr, Family, Var};

impl Emitter<'_> {
    /// The struct that decodes a family's tasks.
    pub fn family(&self, s: Slice) -> Value {
        let f = &self.plan.families[s.id];
        let order: Vec<Expr> = if f.order.is_empty() { nested(f) } else { f.order.clone() };
        let vars: Vec<_> = f
            .domain
            .iter()
            .zip(&order)
            .map(|((name, _), e)| context! { name => name.clone(), expr => self.c(f, None, e) })
            .collect();
        context! { id => s.id.index(), name => f.name.clone(), first => s.first, tasks => s.tasks, vars }
    }

    /// The values that hooks of every leaf need of a family: its number, its tasks' numbers in the role, its
    /// coordinates.
    pub fn slice(&self, s: Slice) -> Value {
        let f = &self.plan.families[s.id];
        let names: Vec<_> = f.domain.iter().map(|(n, _)| n.clone()).collect();
        context! { id => s.id.index(), first => s.first, end => s.first + s.tasks, names }
    }

    /// Members of a task that hooks are handed, each an expression of the task's coordinates.
    pub fn scalars<'e>(
        &self,
        f: &Family,
        scalars: impl IntoIterator<Item = (&'static str, &'e Expr)>,
    ) -> Vec<Value> {
        let say = |(name, e): (_, &Expr)| context! { name, value => self.c(f, None, e) };
        scalars.into_iter().map(say).collect()
    }

    /// When an access is made, as C.
    /// That parts meet is asked apart from it, or known.
    pub fn condition(&self, f: &Family, a: &Access) -> String {
        let each: Option<&Each> = a.each.as_ref();
        let when = self.plan.beside_meeting(a.when.as_ref());
        when.map_or("true".into(), |w| self.c(f, each, w))
    }
}

/// Nested loops, last variable fastest, as expressions over `t`. Extents do not depend on other variables here.
fn nested(f: &Family) -> Vec<Expr> {
    let t = Expr::from(Var::LINEAR);
    let mut inner = Expr::Const(1);
    let mut out = Vec::new();
    for (d, (_, extent)) in f.domain.iter().enumerate().rev() {
        let e = t.clone() / inner.clone();
        // The outermost needs no modulus.
        out.push(if d == 0 { e } else { e % extent.clone() });
        inner = inner * extent.clone();
    }
    out.reverse();
    out
}
