//! Index expressions as C. The kernel contains exactly what the verifier evaluated.

use super::{
    expr::{BinOp, Expr, Var},
    plan::{Each, Family, Plan},
    range::Ranges,
};

/// Definitions that printed expressions may use. Valid C and CUDA once `MK_FN` is defined as the function qualifiers.
pub const C_PRELUDE: &str = "\
// Division and modulus round towards negative infinity; the divisor is positive.
MK_FN int floor_div(int a, int b) { return a / b - (a % b < 0); }
MK_FN int floor_mod(int a, int b) { int r = a % b; return r < 0 ? r + b : r; }
MK_FN int min_i(int a, int b) { return a < b ? a : b; }
MK_FN int max_i(int a, int b) { return a > b ? a : b; }
";

/// Prints expressions of one scope as C.
pub struct CPrinter<'a> {
    plan: &'a Plan,
    family: Option<&'a Family>,
    each: Option<&'a str>,
    ranges: Ranges<'a>,
}

impl<'a> CPrinter<'a> {
    /// For the expressions of a family, or of the plan itself.
    pub fn new(plan: &'a Plan, family: Option<&'a Family>) -> Self {
        CPrinter { plan, family, each: None, ranges: Ranges::new(plan, family) }
    }

    /// With the variable of an `each` in scope.
    pub fn with_each(self, each: Option<&'a Each>) -> Self {
        let ranges = self.ranges.with_each(each.map(|e| &e.extent));
        CPrinter { ranges, each: each.map(|e| e.var.as_str()), ..self }
    }

    /// The expression. Dimension `M` prints as the constant `kDim_M`, variables as `rank`, `epoch`, `t` and the names
    /// of the family.
    pub fn print(&self, e: &Expr) -> String {
        self.go(e, 0)
    }

    fn go(&self, e: &Expr, outer: u8) -> String {
        match e {
            Expr::Const(c) if *c == i32::MIN => "(-2147483647 - 1)".into(),
            Expr::Const(c) if *c < 0 && outer > 0 => format!("({c})"),
            Expr::Const(c) => c.to_string(),
            Expr::Dim(d) => {
                self.plan.dims.get(*d).map_or_else(|| d.to_string(), |x| format!("kDim_{}", x.name))
            }
            Expr::Var(v) => self.var(*v),
            Expr::Table(t, index) => {
                let shape = self.plan.tables.get(*t).map_or(&[][..], |x| &x.shape);
                let mut flat = String::new();
                for (i, e) in index.iter().enumerate() {
                    let term = self.go(e, 3);
                    flat = if i == 0 {
                        term
                    } else {
                        format!("({flat}) * {} + {term}", shape.get(i).unwrap_or(&1))
                    };
                }
                format!("{t}[{flat}]")
            }
            Expr::Select(c) => {
                format!("({} ? {} : {})", self.go(&c[0], 1), self.go(&c[1], 1), self.go(&c[2], 1))
            }
            Expr::Bin(op, a, b) => self.bin(*op, a, b, outer),
        }
    }

    fn bin(&self, op: BinOp, a: &Expr, b: &Expr, outer: u8) -> String {
        let (text, level) = match op {
            BinOp::Lt => ("<", 1),
            BinOp::Le => ("<=", 1),
            BinOp::Eq => ("==", 1),
            BinOp::Add => ("+", 2),
            BinOp::Sub => ("-", 2),
            BinOp::Mul => ("*", 3),
            // C rounds towards zero: the same only where the dividend is not negative.
            BinOp::Div if self.ranges.of(a).min >= 0 => ("/", 3),
            BinOp::Mod if self.ranges.of(a).min >= 0 => ("%", 3),
            BinOp::Div => return format!("floor_div({}, {})", self.go(a, 0), self.go(b, 0)),
            BinOp::Mod => return format!("floor_mod({}, {})", self.go(a, 0), self.go(b, 0)),
            BinOp::Min => return format!("min_i({}, {})", self.go(a, 0), self.go(b, 0)),
            BinOp::Max => return format!("max_i({}, {})", self.go(a, 0), self.go(b, 0)),
            BinOp::And => return format!("({} != 0 && {} != 0)", self.go(a, 2), self.go(b, 2)),
        };
        let left = self.go(a, if level == 1 { 2 } else { level });
        let inner = format!("{left} {text} {}", self.go(b, level + 1));
        if level < outer || (level == 1 && outer == 1) { format!("({inner})") } else { inner }
    }

    fn var(&self, v: Var) -> String {
        match v {
            Var::RANK => "rank".into(),
            Var::EPOCH => "epoch".into(),
            Var::LINEAR => "t".into(),
            Var::EACH => self.each.unwrap_or("each").into(),
            Var::INNER => {
                self.family.and_then(|f| f.inner.as_ref()).map_or("inner".into(), |i| i.0.clone())
            }
            Var(slot) => {
                let i = usize::from(slot - Var::DOMAIN);
                self.family
                    .and_then(|f| f.domain.get(i))
                    .map_or(format!("v{slot}"), |d| d.0.clone())
            }
        }
    }
}
