//! The text format, writing side. `reader` reads it back: printing what was read gives the same text.

use super::{
    axis::Axis,
    entity::FamId,
    expr::{BinOp, Expr, Var},
    leaf::Leaf,
    names::Point,
    plan::*,
    text::MEANT,
};
use std::fmt::{self, Display, Formatter, Write};

/// An expression with the names of its scope.
pub struct ExprText<'a> {
    /// The plan, for dimension names.
    pub plan: &'a Plan,
    /// The family whose variables the expression may name.
    pub family: Option<&'a Family>,
    /// The name bound by `each`.
    pub each: Option<&'a str>,
    /// The expression.
    pub expr: &'a Expr,
}

impl Display for ExprText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write(f, self.expr, 0)
    }
}

/// Binding strength: comparisons 1, sums 2, products 3.
fn infix(op: BinOp) -> Option<(&'static str, u8)> {
    match op {
        BinOp::Lt => Some(("<", 1)),
        BinOp::Le => Some(("<=", 1)),
        BinOp::Eq => Some(("==", 1)),
        BinOp::Add => Some(("+", 2)),
        BinOp::Sub => Some(("-", 2)),
        BinOp::Mul => Some(("*", 3)),
        BinOp::Div => Some(("/", 3)),
        BinOp::Mod => Some(("%", 3)),
        BinOp::Min | BinOp::Max | BinOp::And => None,
    }
}

/// A dimension's name: behind a `$` where the word alone means something else.
struct DimText<'a>(&'a str);

impl Display for DimText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if MEANT.contains(&self.0) {
            f.write_char('$')?;
        }
        f.write_str(self.0)
    }
}

impl ExprText<'_> {
    fn write(&self, f: &mut Formatter<'_>, e: &Expr, outer: u8) -> fmt::Result {
        match e {
            Expr::Const(c) if *c < 0 && outer > 0 => write!(f, "({c})"),
            Expr::Const(c) => write!(f, "{c}"),
            Expr::Dim(d) => match self.plan.dims.get(*d) {
                Some(dim) => write!(f, "{}", DimText(&dim.name)),
                None => write!(f, "{d}"),
            },
            Expr::Var(v) => self.var(f, *v),
            Expr::Bin(op, a, b) => match infix(*op) {
                Some((text, level)) => {
                    let open = level < outer || (level == outer && level == 1);
                    if open {
                        f.write_char('(')?;
                    }
                    // Left-associative; comparisons do not chain.
                    self.write(f, a, if level == 1 { 2 } else { level })?;
                    write!(f, " {text} ")?;
                    self.write(f, b, level + 1)?;
                    if open { f.write_char(')') } else { Ok(()) }
                }
                None => {
                    let name = match op {
                        BinOp::Min => "min",
                        BinOp::Max => "max",
                        _ => "and",
                    };
                    self.call(f, name, &[a, b])
                }
            },
            Expr::Select(c) => self.call(f, "select", &[&c[0], &c[1], &c[2]]),
            Expr::Table(t, index) => {
                write!(f, "{t}[")?;
                self.list(f, index.iter())?;
                f.write_char(']')
            }
        }
    }

    fn call(&self, f: &mut Formatter<'_>, name: &str, args: &[&Expr]) -> fmt::Result {
        write!(f, "{name}(")?;
        self.list(f, args.iter().copied())?;
        f.write_char(')')
    }

    fn list<'e>(&self, f: &mut Formatter<'_>, all: impl Iterator<Item = &'e Expr>) -> fmt::Result {
        for (i, e) in all.enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            self.write(f, e, 0)?;
        }
        Ok(())
    }

    fn var(&self, f: &mut Formatter<'_>, v: Var) -> fmt::Result {
        match v {
            Var::RANK => f.write_str("rank"),
            Var::EPOCH => f.write_str("epoch"),
            Var::LINEAR => f.write_str("t"),
            Var::EACH => f.write_str(self.each.unwrap_or("?each")),
            Var::INNER => f.write_str(
                self.family
                    .and_then(|x| x.inner.as_ref())
                    .map_or("?inner", |(name, _)| name.as_str()),
            ),
            Var(slot) => {
                let i = usize::from(slot - Var::DOMAIN);
                f.write_str(
                    self.family
                        .and_then(|x| x.domain.get(i))
                        .map_or("?", |(name, _)| name.as_str()),
                )
            }
        }
    }
}

impl Plan {
    /// An expression of a family (or of the plan, if `None`), with its names.
    pub fn text<'a>(
        &'a self,
        family: Option<&'a Family>,
        each: Option<&'a Each>,
        expr: &'a Expr,
    ) -> ExprText<'a> {
        ExprText { plan: self, family, each: each.map(|e| e.var.as_str()), expr }
    }

    fn exprs(&self, family: Option<&Family>, each: Option<&Each>, list: &[Expr]) -> String {
        list.iter().map(|e| self.text(family, each, e).to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {:?}", self.name)?;
        let axes: Vec<_> = self.mesh.axes.iter().map(|(n, s)| format!("{n}={s}")).collect();
        writeln!(f, "mesh {}", axes.join(" "))?;
        writeln!(f, "target {}", self.target)?;
        if let Some(nic) = self.nic {
            let ordering =
                if nic.ordering == NicOrdering::InOrder { "in_order" } else { "unordered" };
            write!(f, "nic {ordering}")?;
            nic.local.map_or(Ok(()), |local| write!(f, " local={local}"))?;
            write!(f, " fifo={}", nic.fifo)?;
            match nic.lanes {
                1 => writeln!(f)?,
                lanes => writeln!(f, " lanes={lanes}")?,
            }
        }
        for (id, d) in self.dims.iter() {
            write!(f, "dim {id} {} = {}", DimText(&d.name), d.value)?;
            match d.runtime_max {
                Some(max) if d.may_be_zero => writeln!(f, " runtime 0..={max}")?,
                Some(max) => writeln!(f, " runtime <= {max}")?,
                None => writeln!(f)?,
            }
        }
        for (id, t) in self.tables.iter() {
            let shape: Vec<_> = t.shape.iter().map(u32::to_string).collect();
            write!(f, "table {id} {:?} [{}] ", t.name, shape.join(", "))?;
            match &t.source {
                TableSource::Const(values) => {
                    f.write_str("const")?;
                    values.iter().try_for_each(|v| write!(f, " {v}"))?;
                }
                TableSource::Runtime { min, max } => write!(f, "runtime {min}..={max}")?,
                TableSource::Prefix { of, align } => write!(f, "prefix {of} align {align}")?,
                TableSource::Blocks { of, rows } => write!(f, "blocks {of} rows {rows}")?,
                TableSource::Bounds { of, side, mask } => {
                    write!(f, "bounds {of} {side} mask={mask}")?;
                }
                TableSource::Meets { of, side, mask, rows } => {
                    write!(f, "meets {of} {side} mask={mask} rows {rows}")?;
                }
                TableSource::Places { of } => write!(f, "places {of}")?,
            }
            if let Some(r) = t.routed {
                write!(f, " routed {} {} rows {}", r.ids, r.part, r.rows)?;
                if r.keep != 0 {
                    write!(f, " keep {}", r.keep)?;
                }
                if r.local != 0 {
                    write!(f, " local {}", r.local)?;
                }
                if let Some(Axis { stride, size }) = r.along {
                    write!(f, " ranks {size} stride {stride}")?;
                }
            }
            match t.stored {
                Some(buffer) => writeln!(f, " in {buffer}")?,
                None => writeln!(f)?,
            }
        }
        for (id, b) in self.buffers.iter() {
            let shared = if b.shared { " shared" } else { "" };
            let shape = self.exprs(None, None, &b.shape);
            write!(f, "buffer {id} {:?} {}{shared} {}[{shape}]", b.name, b.space.name(), b.dtype)?;
            if let Some(pitch) = &b.pitch {
                write!(f, " pitch {}", self.text(None, None, pitch))?;
            }
            writeln!(f, "{}", if b.own_rows { " own" } else { "" })?;
        }
        for (id, s) in self.signals.iter() {
            let net = if s.net { "net " } else { "" };
            writeln!(f, "signal {id} {:?} {net}[{}]", s.name, self.exprs(None, None, &s.shape))?;
        }
        for (id, r) in self.roles.iter() {
            writeln!(f, "role {id} {} ctas {}", r.kind.name(), r.ctas)?;
        }
        for id in self.families.keys() {
            self.write_family(f, id)?;
        }
        Ok(())
    }
}

impl Plan {
    fn write_family(&self, f: &mut Formatter<'_>, id: FamId) -> fmt::Result {
        let x = &self.families[id];
        let e = |expr| self.text(Some(x), None, expr);
        writeln!(f, "\nfamily {id} {:?} {} {{", x.name, x.role)?;
        writeln!(f, "  leaf {}", LeafText(&x.leaf))?;
        for (name, extent) in &x.domain {
            writeln!(f, "  for {name} in {}", e(extent))?;
        }
        for (i, order) in x.order.iter().enumerate() {
            let name = x.domain.get(i).map_or("?", |d| d.0.as_str());
            writeln!(f, "  order {name} = {}", e(order))?;
        }
        if x.schedule == Schedule::Dynamic {
            writeln!(f, "  schedule dynamic")?;
        }
        if let Some((name, extent)) = &x.inner {
            writeln!(f, "  inner {name} in {}", e(extent))?;
        }
        if let Some(Positions { q, k }) = &x.positions {
            writeln!(f, "  position q {}", e(q))?;
            writeln!(f, "  position k {}", e(k))?;
        }
        for edge in &x.edges {
            writeln!(f, "  edge {} {}", edge.edge, edge.name)?;
        }
        for a in &x.accesses {
            self.write_access(f, x, a)?;
        }
        for w in &x.waits {
            self.write_wait(f, x, w)?;
        }
        for p in &x.posts {
            self.write_post(f, x, p)?;
        }
        writeln!(f, "}}")
    }

    fn write_access(&self, f: &mut Formatter<'_>, x: &Family, a: &Access) -> fmt::Result {
        let e = |expr| self.text(Some(x), a.each.as_ref(), expr);
        write!(f, "  access {}: {} {} @ {} [", a.operand, a.mode.name(), a.buffer, e(&a.rank))?;
        for (i, (base, len)) in a.region.iter().enumerate() {
            write!(f, "{}{} : {}", if i > 0 { ", " } else { "" }, e(base), e(len))?;
        }
        f.write_char(']')?;
        if a.version != Expr::Const(0) {
            write!(f, " version {}", e(&a.version))?;
        }
        self.write_tail(f, x, a.at, a.each.as_ref(), a.when.as_ref())
    }

    fn write_wait(&self, f: &mut Formatter<'_>, x: &Family, w: &Wait) -> fmt::Result {
        let index = self.exprs(Some(x), w.each.as_ref(), &w.index);
        let count = self.text(Some(x), w.each.as_ref(), &w.count);
        write!(f, "  wait {} {}[{index}] >= {count}", w.edge, w.signal)?;
        if w.lag > 0 {
            write!(f, " lag {}", w.lag)?;
        }
        write!(f, " by {} for {} scope {}", w.by, w.proxy.name(), w.scope.name())?;
        self.write_tail(f, x, w.at, w.each.as_ref(), w.when.as_ref())
    }

    fn write_post(&self, f: &mut Formatter<'_>, x: &Family, p: &Post) -> fmt::Result {
        let index = self.exprs(Some(x), p.each.as_ref(), &p.index);
        let e = |expr| self.text(Some(x), p.each.as_ref(), expr);
        write!(f, "  post {} {}[{index}] @ {} += {}", p.edge, p.signal, e(&p.rank), e(&p.add))?;
        write!(f, " by {} after {} scope {}", p.by, p.after.name(), p.scope.name())?;
        self.write_tail(f, x, p.at, p.each.as_ref(), p.when.as_ref())
    }

    fn write_tail(
        &self,
        f: &mut Formatter<'_>,
        x: &Family,
        at: Point,
        each: Option<&Each>,
        when: Option<&Expr>,
    ) -> fmt::Result {
        write!(f, " at {}", at.name())?;
        if let Some(each) = each {
            write!(f, " each {} in {}", each.var, self.text(Some(x), None, &each.extent))?;
        }
        if let Some(when) = when {
            write!(f, " when {}", self.text(Some(x), each, when))?;
        }
        writeln!(f)
    }
}

/// A leaf with its settings, as in the text format.
struct LeafText<'a>(&'a Leaf);

impl Display for LeafText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())?;
        self.0.settings(f)
    }
}
