//! Expressions. What is read is kept as written: nothing is folded, so that printing gives the same text.

use super::{
    cursor::{Cursor, Scope},
    error::Result,
    lexer::{Kind, Token},
};
use crate::{
    entity::{DimId, Entity, TabId},
    expr::{BinOp, Expr},
};

/// Words of expressions and lines that are not read as names of dimensions.
pub(crate) const MEANT: &[&str] = &["rank", "epoch", "t", "min", "max", "select", "and", "each"];

/// Brackets in brackets that are read.
const MAX_BRACKETS: usize = 100;
/// Most operations between the root of an expression and a leaf: everything that walks one is recursive, and has to do
/// with the 2 MiB of a thread's stack. A sum of products of 100 terms each has room.
const MAX_DEPTH: usize = 200;

const COMPARE: &[(&str, BinOp)] = &[("<", BinOp::Lt), ("<=", BinOp::Le), ("==", BinOp::Eq)];
const SUM: &[(&str, BinOp)] = &[("+", BinOp::Add), ("-", BinOp::Sub)];
const PRODUCT: &[(&str, BinOp)] = &[("*", BinOp::Mul), ("/", BinOp::Div), ("%", BinOp::Mod)];

/// An expression, and how many operations deep it is.
struct Deep {
    expr: Expr,
    depth: usize,
}

impl From<Expr> for Deep {
    fn from(expr: Expr) -> Deep {
        Deep { expr, depth: 0 }
    }
}

impl Cursor<'_> {
    pub fn expr(&mut self, scope: &Scope<'_>) -> Result<Expr> {
        Ok(self.comparison(scope, 0)?.expr)
    }

    /// One operation on top of what is `depth` deep.
    fn over(&self, depth: usize, expr: Expr) -> Result<Deep> {
        if depth < MAX_DEPTH {
            return Ok(Deep { expr, depth: depth + 1 });
        }
        Err(self.error_here(format!(
            "the expression is too deep: at most {MAX_DEPTH} operations on each other's results, each term of a sum \
             or product being one"
        )))
    }

    fn bin(&self, op: BinOp, a: Deep, b: Deep) -> Result<Deep> {
        self.over(a.depth.max(b.depth), Expr::Bin(op, Box::new(a.expr), Box::new(b.expr)))
    }

    fn comparison(&mut self, scope: &Scope<'_>, brackets: usize) -> Result<Deep> {
        if brackets > MAX_BRACKETS {
            return Err(self.error_here("the expression is nested too deeply"));
        }
        let a = self.chain(SUM, scope, brackets)?;
        match COMPARE.iter().find(|(sign, _)| self.eat_sign(sign)) {
            Some((_, op)) => {
                let b = self.chain(SUM, scope, brackets)?;
                self.bin(*op, a, b)
            }
            None => Ok(a),
        }
    }

    fn chain(&mut self, level: &[(&str, BinOp)], scope: &Scope<'_>, depth: usize) -> Result<Deep> {
        let is_sum = level[0].1 == BinOp::Add;
        let next = |c: &mut Self| {
            if is_sum { c.chain(PRODUCT, scope, depth) } else { c.atom(scope, depth) }
        };
        let mut e = next(self)?;
        while let Some((_, op)) = level.iter().find(|(sign, _)| self.eat_sign(sign)) {
            let term = next(self)?;
            e = self.bin(*op, e, term)?;
        }
        Ok(e)
    }

    fn atom(&mut self, scope: &Scope<'_>, brackets: usize) -> Result<Deep> {
        if self.eat_sign("(") {
            let e = self.comparison(scope, brackets + 1)?;
            self.sign(")")?;
            return Ok(e);
        }
        match self.peek().kind {
            Kind::Number => Ok(Expr::Const(self.number()?).into()),
            Kind::Sign if self.peek().text == "-" => Ok(Expr::Const(self.signed()?).into()),
            Kind::Word => self.named_value(scope, brackets),
            Kind::Name => {
                let token = self.peek();
                let name = self.name()?;
                let dim = self.dim(name).ok_or_else(|| self.expected_at(token, "a dimension"))?;
                Ok(Expr::Dim(dim).into())
            }
            _ => Err(self.expected("an expression")),
        }
    }

    fn named_value(&mut self, scope: &Scope<'_>, brackets: usize) -> Result<Deep> {
        let token = self.peek();
        let name = self.word()?;
        if let Some(var) = scope.get(name) {
            return Ok(Expr::Var(var).into());
        }
        if let Some(id) = self.dim(name).filter(|_| !MEANT.contains(&name)) {
            return Ok(Expr::Dim(id).into());
        }
        let op = match name {
            "min" => BinOp::Min,
            "max" => BinOp::Max,
            "and" => BinOp::And,
            "select" => {
                let c = self.argument("(", scope, brackets)?;
                let a = self.argument(",", scope, brackets)?;
                let b = self.argument(",", scope, brackets)?;
                self.sign(")")?;
                let depth = c.depth.max(a.depth).max(b.depth);
                return self.over(depth, Expr::Select(Box::new([c.expr, a.expr, b.expr])));
            }
            _ => return self.table(token, scope, brackets),
        };
        let a = self.argument("(", scope, brackets)?;
        let b = self.argument(",", scope, brackets)?;
        self.sign(")")?;
        self.bin(op, a, b)
    }

    /// An argument of a function, and the sign before it.
    fn argument(&mut self, sign: &str, scope: &Scope<'_>, brackets: usize) -> Result<Deep> {
        self.sign(sign)?;
        self.comparison(scope, brackets + 1)
    }

    fn table(&mut self, name: &Token<'_>, scope: &Scope<'_>, brackets: usize) -> Result<Deep> {
        let id = |prefix| name.text.strip_prefix(prefix).and_then(|d| d.parse::<u32>().ok());
        if let Some(n) = id(DimId::PREFIX) {
            return Ok(Expr::Dim(DimId::new(n as usize)).into());
        }
        let Some(n) = id(TabId::PREFIX) else {
            let known = scope.known();
            let what = format!("a name in scope ({known}), a dimension or a function");
            return Err(self.expected_at(name, &what));
        };
        self.sign("[")?;
        let (mut index, mut depth) = (Vec::new(), 0);
        loop {
            let e = self.comparison(scope, brackets + 1)?;
            depth = e.depth.max(depth);
            index.push(e.expr);
            if !self.eat_sign(",") {
                self.sign("]")?;
                return self.over(depth, Expr::Table(TabId::new(n as usize), index));
            }
        }
    }
}
