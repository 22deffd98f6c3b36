//! Index expressions: the arithmetic that the verifier and the CPU executor evaluate and the kernel contains.
//!
//! Values are 32-bit signed integers, as in the kernel. `/` and `%` round towards negative infinity and need a
//! positive divisor. Evaluation fails where the kernel's arithmetic would overflow or divide by zero, so that a plan
//! that evaluates everywhere means the same in both worlds.

use super::entity::{DimId, TabId};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, Unexpected},
};
use std::{borrow::Cow, ops};
use thiserror::Error;

/// A binary operator. Comparisons give 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    /// Floor division.
    Div,
    /// Floor modulus: the result has the sign of the divisor, which is positive.
    Mod,
    Min,
    Max,
    Lt,
    Le,
    Eq,
    /// 1 if both are not 0.
    And,
}

/// A variable of the scope in which an expression stands. Slots are fixed, so that evaluation is an array look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u8);

impl Var {
    /// The rank that runs the task.
    pub const RANK: Var = Var(0);
    /// The launch, counted from 1.
    pub const EPOCH: Var = Var(1);
    /// Linear index of the task in its family, in `order` expressions only.
    pub const LINEAR: Var = Var(2);
    /// The variable bound by `each`.
    pub const EACH: Var = Var(3);
    /// The variable of the inner loop.
    pub const INNER: Var = Var(4);
    /// First variable of the family's domain.
    pub const DOMAIN: u8 = 5;

    /// The i-th variable of the family's domain.
    pub const fn domain(i: usize) -> Var {
        Var(Self::DOMAIN + i as u8)
    }
}

/// `rank`, `epoch`, `t`, `each`, `inner`, `loop0`, `loop1`, …
impl Serialize for Var {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match *self {
            Var::RANK => s.serialize_str("rank"),
            Var::EPOCH => s.serialize_str("epoch"),
            Var::LINEAR => s.serialize_str("t"),
            Var::EACH => s.serialize_str("each"),
            Var::INNER => s.serialize_str("inner"),
            Var(slot) => s.collect_str(&format_args!("loop{}", slot - Var::DOMAIN)),
        }
    }
}

impl<'de> Deserialize<'de> for Var {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Var, D::Error> {
        let text = <Cow<'_, str>>::deserialize(d)?;
        let domain = |n: &str| n.parse().ok().filter(|n: &u8| *n <= u8::MAX - Var::DOMAIN);
        Ok(match &*text {
            "rank" => Var::RANK,
            "epoch" => Var::EPOCH,
            "t" => Var::LINEAR,
            "each" => Var::EACH,
            "inner" => Var::INNER,
            other => match other.strip_prefix("loop").and_then(domain) {
                Some(n) => Var::domain(usize::from(n)),
                None => {
                    let what = "a variable: rank, epoch, t, each, inner, loop0, loop1, …";
                    return Err(D::Error::invalid_value(Unexpected::Str(other), &what));
                }
            },
        })
    }
}

/// An integer expression over ranks, tile coordinates, dimensions and tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Expr {
    /// A constant.
    Const(i32),
    /// A dimension symbol.
    Dim(DimId),
    /// A variable.
    Var(Var),
    /// An operation on two values.
    Bin(BinOp, Box<Expr>, Box<Expr>),
    /// `select(c, a, b)`: `a` if `c` is not 0, else `b`. Only the chosen side is evaluated.
    Select(Box<[Expr; 3]>),
    /// A look-up.
    Table(TabId, Vec<Expr>),
}

/// Why an expression has no value at a point.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum EvalError {
    #[error("{0} {sym} {2} does not fit in 32 bits", sym = .1.symbol())]
    Overflow(i64, BinOp, i64),
    #[error("division of {0} by {1}: the divisor must be positive")]
    Divisor(i64, i64),
    #[error("{table} has no entry {index:?}")]
    Table { table: TabId, index: Vec<i64> },
    #[error("variable {0:?} is not bound here")]
    Unbound(Var),
    #[error("{0} has no value")]
    Dim(DimId),
    #[error("rank {rank} is outside the mesh of {world}")]
    Rank { rank: i64, world: i64 },
}

/// Values for everything that an expression can name.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Value of each dimension symbol.
    pub dims: &'a [i64],
    /// Value of each variable, by slot.
    pub vars: &'a [i64],
    /// Contents of the tables, as this rank sees them.
    pub tables: &'a dyn Fn(TabId, &[i64]) -> Option<i64>,
}

/// The look-up of a plan without tables.
pub fn no_tables(_: TabId, _: &[i64]) -> Option<i64> {
    None
}

impl Expr {
    /// `min(self, other)`.
    pub fn min(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Min, self, other.into())
    }
    /// `max(self, other)`.
    pub fn max(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Max, self, other.into())
    }
    /// `self < other`.
    pub fn lt(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Lt, self, other.into())
    }
    /// `self <= other`.
    pub fn le(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Le, self, other.into())
    }
    /// `self == other`.
    pub fn equals(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Eq, self, other.into())
    }
    /// `self / other`, rounded up. Neither may be negative.
    pub fn ceil_div(self, other: i32) -> Expr {
        (self + (other - 1)) / other
    }
    /// `select(self, yes, no)`.
    pub fn select(self, yes: impl Into<Expr>, no: impl Into<Expr>) -> Expr {
        Expr::Select(Box::new([self, yes.into(), no.into()]))
    }

    /// An operation, with constants folded and neutral elements dropped where the value cannot change.
    pub fn bin(op: BinOp, a: Expr, b: Expr) -> Expr {
        use Expr::Const;
        match (op, &a, &b) {
            (_, Const(x), Const(y)) => {
                if let Ok(v) = apply(op, i64::from(*x), i64::from(*y)) {
                    return Const(v as i32);
                }
            }
            (BinOp::Mul, Const(0), _) | (BinOp::Mod, _, Const(1)) => return Const(0),
            (BinOp::Add, Const(0), _) | (BinOp::Mul, Const(1), _) => return b,
            (BinOp::Add | BinOp::Sub, _, Const(0)) | (BinOp::Mul | BinOp::Div, _, Const(1)) => {
                return a;
            }
            _ => {}
        }
        Expr::Bin(op, Box::new(a), Box::new(b))
    }

    /// The value at a point.
    ///
    /// # Errors
    /// Where the kernel's 32-bit arithmetic would overflow, divide by a number that is not positive, or read outside a
    /// table.
    pub fn eval(&self, env: &Env<'_>) -> Result<i64, EvalError> {
        self.value(env.dims, env.vars, &env.tables).map_or_else(|| self.judge(env), Ok)
    }

    /// As [`Expr::eval`], without saying why there is no value: proofs evaluate millions of expressions that have one.
    pub fn value(
        &self,
        dims: &[i64],
        vars: &[i64],
        tables: &impl Fn(TabId, &[i64]) -> Option<i64>,
    ) -> Option<i64> {
        match self {
            Expr::Const(c) => Some(i64::from(*c)),
            Expr::Dim(d) => {
                use super::entity::Entity;
                dims.get(d.index()).copied()
            }
            Expr::Var(v) => vars.get(v.0 as usize).copied(),
            Expr::Bin(op, a, b) => {
                value(*op, a.value(dims, vars, tables)?, b.value(dims, vars, tables)?)
            }
            Expr::Select(c) => {
                let side = if c[0].value(dims, vars, tables)? != 0 { &c[1] } else { &c[2] };
                side.value(dims, vars, tables)
            }
            Expr::Table(t, index) => {
                // One with more dimensions is looked up where reasons are found.
                let mut few = [0; 4];
                let at = few.get_mut(..index.len())?;
                for (at, e) in at.iter_mut().zip(index) {
                    *at = e.value(dims, vars, tables)?;
                }
                tables(*t, at)
            }
        }
    }

    /// The value, or why there is none.
    fn judge(&self, env: &Env<'_>) -> Result<i64, EvalError> {
        match self {
            Expr::Const(c) => Ok(i64::from(*c)),
            Expr::Dim(d) => {
                use super::entity::Entity;
                env.dims.get(d.index()).copied().ok_or(EvalError::Dim(*d))
            }
            Expr::Var(v) => env.vars.get(v.0 as usize).copied().ok_or(EvalError::Unbound(*v)),
            Expr::Bin(op, a, b) => apply(*op, a.judge(env)?, b.judge(env)?),
            Expr::Select(c) => {
                if c[0].judge(env)? != 0 {
                    c[1].judge(env)
                } else {
                    c[2].judge(env)
                }
            }
            Expr::Table(t, index) => {
                let index = index.iter().map(|e| e.judge(env)).collect::<Result<Vec<_>, _>>()?;
                (env.tables)(*t, &index).ok_or(EvalError::Table { table: *t, index })
            }
        }
    }

    /// Calls `f` on this expression and everything inside it.
    pub fn visit(&self, f: &mut dyn FnMut(&Expr)) {
        f(self);
        match self {
            Expr::Const(_) | Expr::Dim(_) | Expr::Var(_) => {}
            Expr::Bin(_, a, b) => {
                a.visit(f);
                b.visit(f);
            }
            Expr::Select(c) => c.iter().for_each(|e| e.visit(f)),
            Expr::Table(_, index) => index.iter().for_each(|e| e.visit(f)),
        }
    }

    /// Whether `f` holds for this expression or for anything inside it.
    pub fn any(&self, f: impl Fn(&Expr) -> bool) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= f(e));
        found
    }

    /// Whether the expression looks up a table for which `f` holds.
    pub fn any_table(&self, f: impl Fn(TabId) -> bool) -> bool {
        self.any(|e| matches!(e, Expr::Table(t, _) if f(*t)))
    }

    /// Whether the expression names the variable.
    pub fn mentions(&self, var: Var) -> bool {
        self.any(|e| *e == Expr::Var(var))
    }

    /// Whether the expression names the dimension.
    pub fn names_dim(&self, dim: DimId) -> bool {
        self.any(|e| *e == Expr::Dim(dim))
    }

    /// Whether the expression looks anything up.
    pub fn has_table(&self) -> bool {
        self.any_table(|_| true)
    }
}

impl BinOp {
    /// The value of the operation on two 32-bit values.
    ///
    /// # Errors
    /// Where the result does not fit in 32 bits, or a divisor is not positive.
    pub fn apply(self, a: i64, b: i64) -> Result<i64, EvalError> {
        apply(self, a, b)
    }

    /// How it is written in the text format.
    pub fn symbol(self) -> &'static str {
        match self {
            BinOp::Add => "+",
            BinOp::Sub => "-",
            BinOp::Mul => "*",
            BinOp::Div => "/",
            BinOp::Mod => "%",
            BinOp::Min => "min",
            BinOp::Max => "max",
            BinOp::Lt => "<",
            BinOp::Le => "<=",
            BinOp::Eq => "==",
            BinOp::And => "and",
        }
    }
}

fn apply(op: BinOp, a: i64, b: i64) -> Result<i64, EvalError> {
    value(op, a, b).ok_or(match op {
        BinOp::Div | BinOp::Mod if b <= 0 => EvalError::Divisor(a, b),
        _ => EvalError::Overflow(a, op, b),
    })
}

fn value(op: BinOp, a: i64, b: i64) -> Option<i64> {
    let value = match op {
        BinOp::Add => a + b,
        BinOp::Sub => a - b,
        BinOp::Mul => a * b,
        BinOp::Div | BinOp::Mod if b <= 0 => return None,
        BinOp::Div => a.div_euclid(b),
        BinOp::Mod => a.rem_euclid(b),
        BinOp::Min => a.min(b),
        BinOp::Max => a.max(b),
        BinOp::Lt => i64::from(a < b),
        BinOp::Le => i64::from(a <= b),
        BinOp::Eq => i64::from(a == b),
        BinOp::And => i64::from(a != 0 && b != 0),
    };
    // Operands are in range by induction, so the 64-bit result is exact.
    i32::try_from(value).is_ok().then_some(value)
}

impl From<i32> for Expr {
    fn from(v: i32) -> Expr {
        Expr::Const(v)
    }
}
impl From<Var> for Expr {
    fn from(v: Var) -> Expr {
        Expr::Var(v)
    }
}
impl From<DimId> for Expr {
    fn from(v: DimId) -> Expr {
        Expr::Dim(v)
    }
}
impl From<&Expr> for Expr {
    fn from(v: &Expr) -> Expr {
        v.clone()
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident) => {
        impl<R: Into<Expr>> ops::$trait<R> for Expr {
            type Output = Expr;
            fn $method(self, rhs: R) -> Expr {
                Expr::bin(BinOp::$op, self, rhs.into())
            }
        }
    };
}
operator!(Add, add, Add);
operator!(Sub, sub, Sub);
operator!(Mul, mul, Mul);
operator!(Div, div, Div);
operator!(Rem, rem, Mod);
