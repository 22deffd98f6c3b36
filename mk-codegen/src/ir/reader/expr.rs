//! Expressions. What is read is kept as written: nothing is folded, so that printing gives the same text.

use super::{
    ReadError,
    cursor::{Cursor, Scope},
    lexer::Kind,
};
use crate::ir::{BinOp, DimId, Entity, Expr, TabId, plan::Plan};

/// Nesting depth that is read.
const MAX_DEPTH: usize = 100;

const COMPARE: &[(&str, BinOp)] = &[("<", BinOp::Lt), ("<=", BinOp::Le), ("==", BinOp::Eq)];
const SUM: &[(&str, BinOp)] = &[("+", BinOp::Add), ("-", BinOp::Sub)];
const PRODUCT: &[(&str, BinOp)] = &[("*", BinOp::Mul), ("/", BinOp::Div), ("%", BinOp::Mod)];

fn bin(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Bin(op, Box::new(a), Box::new(b))
}

impl Cursor<'_> {
    pub fn expr(&mut self, plan: &Plan, scope: &Scope) -> Result<Expr, ReadError> {
        self.comparison(plan, scope, 0)
    }

    fn comparison(&mut self, plan: &Plan, scope: &Scope, depth: usize) -> Result<Expr, ReadError> {
        if depth > MAX_DEPTH {
            return Err(self.error_here("the expression is nested too deeply"));
        }
        let a = self.chain(SUM, plan, scope, depth)?;
        match COMPARE.iter().find(|(sign, _)| self.eat_sign(sign)) {
            Some((_, op)) => Ok(bin(*op, a, self.chain(SUM, plan, scope, depth)?)),
            None => Ok(a),
        }
    }

    fn chain(
        &mut self,
        level: &[(&str, BinOp)],
        plan: &Plan,
        scope: &Scope,
        depth: usize,
    ) -> Result<Expr, ReadError> {
        let is_sum = level[0].1 == BinOp::Add;
        let next = |c: &mut Self| {
            if is_sum { c.chain(PRODUCT, plan, scope, depth) } else { c.atom(plan, scope, depth) }
        };
        let mut e = next(self)?;
        // A long chain builds a deep tree, which evaluation and dropping walk recursively.
        for _ in 0..MAX_DEPTH {
            match level.iter().find(|(sign, _)| self.eat_sign(sign)) {
                Some((_, op)) => e = bin(*op, e, next(self)?),
                None => return Ok(e),
            }
        }
        Err(self.error_here("the expression is too long"))
    }

    fn atom(&mut self, plan: &Plan, scope: &Scope, depth: usize) -> Result<Expr, ReadError> {
        if self.eat_sign("(") {
            let e = self.comparison(plan, scope, depth + 1)?;
            self.sign(")")?;
            return Ok(e);
        }
        match self.peek().kind {
            Kind::Number => Ok(Expr::Const(self.number()?)),
            Kind::Sign if self.peek().text == "-" => Ok(Expr::Const(self.signed()?)),
            Kind::Word => self.name(plan, scope, depth),
            _ => Err(self.expected("an expression")),
        }
    }

    fn name(&mut self, plan: &Plan, scope: &Scope, depth: usize) -> Result<Expr, ReadError> {
        let error = self
            .expected(&format!("a name in scope ({}), a dimension or a function", scope.known()));
        let name = self.word()?;
        if let Some(var) = scope.get(name) {
            return Ok(Expr::Var(var));
        }
        if let Some((id, _)) = plan.dims.iter().find(|(_, d)| d.name == name) {
            return Ok(Expr::Dim(id));
        }
        let mut args = |n: usize| -> Result<Vec<Expr>, ReadError> {
            self.sign("(")?;
            let mut list = Vec::with_capacity(n);
            for i in 0..n {
                list.push(self.comparison(plan, scope, depth + 1)?);
                self.sign(if i + 1 < n { "," } else { ")" })?;
            }
            Ok(list)
        };
        let op = match name {
            "min" => BinOp::Min,
            "max" => BinOp::Max,
            "and" => BinOp::And,
            "select" => {
                let [c, a, b]: [Expr; 3] = args(3)?.try_into().map_err(|_| error)?;
                return Ok(Expr::Select(Box::new([c, a, b])));
            }
            _ => return self.table(name, error, plan, scope, depth),
        };
        let [a, b]: [Expr; 2] = args(2)?.try_into().map_err(|_| error)?;
        Ok(bin(op, a, b))
    }

    fn table(
        &mut self,
        name: &str,
        error: ReadError,
        plan: &Plan,
        scope: &Scope,
        depth: usize,
    ) -> Result<Expr, ReadError> {
        let id = |prefix: &str| name.strip_prefix(prefix).and_then(|d| d.parse::<u32>().ok());
        if let Some(n) = id(DimId::PREFIX) {
            return Ok(Expr::Dim(DimId::new(n as usize)));
        }
        let Some(n) = id(TabId::PREFIX) else {
            return Err(error);
        };
        self.sign("[")?;
        let mut index = Vec::new();
        loop {
            index.push(self.comparison(plan, scope, depth + 1)?);
            if !self.eat_sign(",") {
                self.sign("]")?;
                return Ok(Expr::Table(TabId::new(n as usize), index));
            }
        }
    }
}
