//! Bounds of an expression over everything that its variables can be.

use super::{
    entity::TabId,
    expr::{BinOp, Expr, Var},
    plan::{Family, Plan, TableSource},
};

/// An inclusive interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Least value.
    pub min: i64,
    /// Greatest value.
    pub max: i64,
}

impl Range {
    /// One value.
    pub const fn point(v: i64) -> Range {
        Range { min: v, max: v }
    }
    fn hull(values: impl IntoIterator<Item = i64>) -> Range {
        values.into_iter().fold(Range { min: i64::MAX, max: i64::MIN }, |r, v| Range {
            min: r.min.min(v),
            max: r.max.max(v),
        })
    }
}

/// What is known of each variable.
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    plan: &'a Plan,
    vars: Vec<Range>,
}

const ANY: Range = Range { min: i32::MIN as i64, max: i32::MAX as i64 };
const NATURAL: Range = Range { min: 0, max: i32::MAX as i64 };

impl<'a> Ranges<'a> {
    /// Bounds for the expressions of a family, or of the plan itself.
    pub fn new(plan: &'a Plan, family: Option<&Family>) -> Ranges<'a> {
        let world = i64::from(plan.mesh.size());
        let mut ranges = Ranges {
            plan,
            vars: vec![Range { min: 0, max: world - 1 }, NATURAL, NATURAL, NATURAL, NATURAL],
        };
        if let Some(family) = family {
            for (_, extent) in &family.domain {
                let r = ranges.below(extent);
                ranges.vars.push(r);
            }
            if let Some((_, extent)) = &family.inner {
                ranges.vars[Var::INNER.0 as usize] = ranges.below(extent);
            }
        }
        ranges
    }

    /// The same with the variable of an `each` bound.
    pub fn with_each(mut self, extent: Option<&Expr>) -> Ranges<'a> {
        if let Some(extent) = extent {
            self.vars[Var::EACH.0 as usize] = self.below(extent);
        }
        self
    }

    /// What a loop variable below `extent` can be.
    fn below(&self, extent: &Expr) -> Range {
        Range { min: 0, max: (self.of(extent).max - 1).max(0) }
    }

    fn table(&self, id: TabId) -> Range {
        let Some(table) = self.plan.tables.get(id) else {
            return ANY;
        };
        match &table.source {
            TableSource::Const(values) => Range::hull(values.iter().map(|v| i64::from(*v))),
            TableSource::Runtime { min, max } => {
                Range { min: i64::from(*min), max: i64::from(*max) }
            }
            TableSource::Meets { .. } => Range { min: 0, max: 1 },
            TableSource::Prefix { .. }
            | TableSource::Blocks { .. }
            | TableSource::Bounds { .. }
            | TableSource::Places { .. } => NATURAL,
        }
    }

    /// Bounds of an expression, not always tight; they may lie outside 32 bits where the expression can overflow.
    pub fn of(&self, e: &Expr) -> Range {
        match e {
            Expr::Const(c) => Range::point(i64::from(*c)),
            Expr::Dim(d) => self.plan.dims.get(*d).map_or(ANY, |dim| match dim.runtime_max {
                Some(max) => Range { min: dim.least().into(), max: i64::from(max) },
                None => Range::point(i64::from(dim.value)),
            }),
            Expr::Var(v) => self.vars.get(v.0 as usize).copied().unwrap_or(ANY),
            Expr::Table(t, _) => self.table(*t),
            Expr::Select(c) => {
                let (a, b) = (self.of(&c[1]), self.of(&c[2]));
                match self.of(&c[0]) {
                    Range { min: 0, max: 0 } => b,
                    Range { min, max } if min > 0 || max < 0 => a,
                    _ => Range { min: a.min.min(b.min), max: a.max.max(b.max) },
                }
            }
            Expr::Bin(op, a, b) => binary(*op, self.of(a), self.of(b)),
        }
    }
}

fn binary(op: BinOp, a: Range, b: Range) -> Range {
    let truth = |yes: bool, no: bool| Range { min: i64::from(yes), max: i64::from(!no) };
    match op {
        BinOp::Add => Range { min: a.min.saturating_add(b.min), max: a.max.saturating_add(b.max) },
        BinOp::Sub => Range { min: a.min.saturating_sub(b.max), max: a.max.saturating_sub(b.min) },
        BinOp::Mul => Range::hull(
            [(a.min, b.min), (a.min, b.max), (a.max, b.min), (a.max, b.max)]
                .map(|(x, y)| x.saturating_mul(y)),
        ),
        BinOp::Div => {
            let d = [b.min.max(1), b.max.max(1)];
            Range::hull([a.min, a.max].into_iter().flat_map(|x| d.map(|y| x.div_euclid(y))))
        }
        BinOp::Mod if a.min >= 0 && b.min > a.max => a,
        BinOp::Mod => Range { min: 0, max: (b.max - 1).max(0) },
        BinOp::Min => Range { min: a.min.min(b.min), max: a.max.min(b.max) },
        BinOp::Max => Range { min: a.min.max(b.min), max: a.max.max(b.max) },
        BinOp::Lt => truth(a.max < b.min, a.min >= b.max),
        BinOp::Le => truth(a.max <= b.min, a.min > b.max),
        BinOp::Eq => truth(a.min == a.max && a == b, a.max < b.min || b.max < a.min),
        BinOp::And => Range { min: 0, max: 1 },
    }
}
