//! The value of an index expression as a function of the run-time dimension: exact, in linear pieces.

use super::domain::{Line, Places, Run, cut};
use mk_plan::{BinOp, DimId, EvalError, Expr, Points};
use std::cell::Cell;

/// A part of a function's domain on which it is linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::valid) struct Piece {
    pub run: u32,
    pub lo: i64,
    pub hi: i64,
    pub line: Line,
}

/// Why an expression is not a function in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::valid) enum Stop {
    /// With this value of the dimension it has no value, or one that breaks a rule.
    At(i64),
    /// It would be with steps this many times as long.
    Refine(i64),
    /// Its pieces are not linear.
    Curved,
    /// Looking at it takes too long.
    Work,
}

/// Most pieces that a quotient, a remainder or a look-up is cut into.
const MAX_CUTS: i64 = 1 << 10;

/// Most operations that are evaluated for one cell.
pub(in crate::valid) const MAX_WORK: u64 = 1 << 28;
/// Lines that begin further off are too steep for sums of them to be sure of 64 bits.
const MAX_AT_ZERO: i64 = 1 << 60;

/// Evaluates expressions for all values of one dimension.
pub(in crate::valid) struct Functions<'p> {
    pub points: &'p Points<'p>,
    pub dim: DimId,
    /// All runs; functions are asked for some of them.
    pub runs: &'p [Run],
    /// Operations evaluated so far.
    pub work: Cell<u64>,
}

impl Functions<'_> {
    /// The value on some places, in order, and joined where neighbours are on one line.
    pub fn of(
        &self,
        rank: usize,
        vars: &[i64],
        e: &Expr,
        places: &[Places],
    ) -> Result<Vec<Piece>, Stop> {
        let mut out = Vec::new();
        for p in places {
            let from = out.len();
            self.eval(rank, vars, e, *p, &mut out)?;
            join(&mut out, from);
        }
        Ok(out)
    }

    /// The value of the dimension at a place.
    pub fn value(&self, run: u32, k: i64) -> i64 {
        self.runs[run as usize].value(k)
    }

    fn eval(
        &self,
        rank: usize,
        vars: &[i64],
        e: &Expr,
        p: Places,
        out: &mut Vec<Piece>,
    ) -> Result<(), Stop> {
        self.work.set(self.work.get() + 1);
        if self.work.get() > MAX_WORK {
            return Err(Stop::Work);
        }
        let mut push = |line: Line| {
            out.push(Piece { run: p.run, lo: p.lo, hi: p.hi, line });
            Ok(())
        };
        match e {
            Expr::Const(c) => push(Line::constant(i64::from(*c))),
            Expr::Dim(d) if *d == self.dim => {
                let run = &self.runs[p.run as usize];
                push(Line { at_zero: run.first, slope: run.step })
            }
            Expr::Dim(d) => match self.points.plan.dims.get(*d) {
                Some(d) => push(Line::constant(i64::from(d.value))),
                None => Err(Stop::At(self.value(p.run, p.lo))),
            },
            Expr::Var(v) => match vars.get(usize::from(v.0)) {
                Some(v) => push(Line::constant(*v)),
                None => Err(Stop::At(self.value(p.run, p.lo))),
            },
            Expr::Bin(op, a, b) => {
                let (mut left, mut right) = (Vec::new(), Vec::new());
                self.eval(rank, vars, a, p, &mut left)?;
                for a in left {
                    right.clear();
                    let places = Places { run: p.run, lo: a.lo, hi: a.hi };
                    self.eval(rank, vars, b, places, &mut right)?;
                    for b in &right {
                        let places = Places { run: p.run, lo: b.lo, hi: b.hi };
                        self.apply(*op, a.line, b.line, places, out)?;
                    }
                }
                Ok(())
            }
            Expr::Select(c) => {
                let mut cond = Vec::new();
                self.eval(rank, vars, &c[0], p, &mut cond)?;
                for c0 in cond {
                    for ((lo, hi), zero) in zeros(c0.line, c0.lo, c0.hi) {
                        let side = if zero { &c[2] } else { &c[1] };
                        self.eval(rank, vars, side, Places { run: p.run, lo, hi }, out)?;
                    }
                }
                Ok(())
            }
            Expr::Table(table, index) => self.look_up(rank, vars, *table, index, p, out),
        }
    }

    fn look_up(
        &self,
        rank: usize,
        vars: &[i64],
        table: mk_plan::TabId,
        index: &[Expr],
        p: Places,
        out: &mut Vec<Piece>,
    ) -> Result<(), Stop> {
        // Ranges on which all of the index is constant.
        let mut parts: Vec<((i64, i64), Vec<i64>)> = vec![((p.lo, p.hi), Vec::new())];
        for e in index {
            let mut next = Vec::new();
            for ((lo, hi), known) in parts {
                let mut pieces = Vec::new();
                self.eval(rank, vars, e, Places { run: p.run, lo, hi }, &mut pieces)?;
                for i in pieces {
                    let with = |value| [&known[..], &[value]].concat();
                    if i.line.slope == 0 {
                        next.push(((i.lo, i.hi), with(i.line.at_zero)));
                    } else if i.hi - i.lo < MAX_CUTS {
                        next.extend((i.lo..=i.hi).map(|k| ((k, k), with(i.line.at(k)))));
                    } else {
                        return Err(Stop::Curved);
                    }
                }
            }
            parts = next;
        }
        for ((lo, hi), index) in parts {
            let Some(value) = self.points.look_up(rank, table, &index) else {
                return Err(Stop::At(self.value(p.run, lo)));
            };
            out.push(Piece { run: p.run, lo, hi, line: Line::constant(value) });
        }
        Ok(())
    }

    fn apply(
        &self,
        op: BinOp,
        a: Line,
        b: Line,
        p: Places,
        out: &mut Vec<Piece>,
    ) -> Result<(), Stop> {
        let Places { run, lo, hi } = p;
        if lo == hi {
            let value = op
                .apply(a.at(lo), b.at(lo))
                .map_err(|_: EvalError| Stop::At(self.value(run, lo)))?;
            out.push(Piece { run, lo, hi, line: Line::constant(value) });
            return Ok(());
        }
        let from = out.len();
        let mut push = |lo, hi, line| out.push(Piece { run, lo, hi, line });
        let mut choose = |which: Vec<((i64, i64), bool)>, yes: Line, no: Line| {
            for ((lo, hi), is) in which {
                push(lo, hi, if is { yes } else { no });
            }
        };
        let (one, none) = (Line::constant(1), Line::constant(0));
        let (above, up) = (b.minus(a), Line::constant(1));
        match op {
            BinOp::Add => push(lo, hi, a.plus(b)),
            BinOp::Sub => push(lo, hi, a.minus(b)),
            BinOp::Mul if b.slope == 0 => push(lo, hi, a.times(b.at_zero).ok_or(Stop::Curved)?),
            BinOp::Mul if a.slope == 0 => push(lo, hi, b.times(a.at_zero).ok_or(Stop::Curved)?),
            BinOp::Mul => return Err(Stop::Curved),
            BinOp::Div | BinOp::Mod if b.slope == 0 => {
                self.divide(op, a, b.at_zero, p, &mut push)?;
            }
            BinOp::Div | BinOp::Mod => return Err(Stop::Curved),
            BinOp::Min => choose(cut(lo, hi, above.positive(lo, hi)), a, b),
            BinOp::Max => choose(cut(lo, hi, above.positive(lo, hi)), b, a),
            BinOp::Lt => choose(cut(lo, hi, above.positive(lo, hi)), one, none),
            BinOp::Le => choose(cut(lo, hi, above.plus(up).positive(lo, hi)), one, none),
            BinOp::Eq => choose(zeros(above, lo, hi), one, none),
            BinOp::And => {
                for ((lo, hi), zero) in zeros(a, lo, hi) {
                    match zero {
                        true => push(lo, hi, none),
                        false => zeros(b, lo, hi).into_iter().for_each(|((lo, hi), zero)| {
                            push(lo, hi, if zero { none } else { one });
                        }),
                    }
                }
            }
        }
        // A line leaves 32 bits at one of its ends first.
        for piece in &out[from..] {
            for k in [piece.lo, piece.hi] {
                if i32::try_from(piece.line.at(k)).is_err() {
                    return Err(Stop::At(self.value(run, k)));
                }
            }
            if piece.line.at_zero.abs() > MAX_AT_ZERO {
                return Err(Stop::Curved);
            }
        }
        Ok(())
    }

    /// `a / d` or `a % d`, rounded down.
    fn divide(
        &self,
        op: BinOp,
        a: Line,
        d: i64,
        p: Places,
        push: &mut dyn FnMut(i64, i64, Line),
    ) -> Result<(), Stop> {
        if d <= 0 {
            return Err(Stop::At(self.value(p.run, p.lo)));
        }
        let result = |quotient: Line| match op {
            BinOp::Div => Ok(quotient),
            _ => quotient.times(d).map(|whole| a.minus(whole)).ok_or(Stop::Curved),
        };
        if a.slope % d == 0 {
            let quotient = Line { at_zero: a.at_zero.div_euclid(d), slope: a.slope / d };
            push(p.lo, p.hi, result(quotient)?);
            return Ok(());
        }
        let [first, last] = [p.lo, p.hi].map(|k| a.at(k).div_euclid(d));
        let cuts = (last - first).abs() + 1;
        let factor = d / gcd(a.slope.abs(), d);
        if cuts > factor.min(MAX_CUTS) {
            return Err(Stop::Refine(factor));
        }
        let mut lo = p.lo;
        while lo <= p.hi {
            // As far as the quotient stays.
            let quotient = a.at(lo).div_euclid(d);
            let stays = match a.slope > 0 {
                true => Line::constant((quotient + 1) * d).minus(a),
                false => a.minus(Line::constant(quotient * d - 1)),
            };
            let hi = stays.positive(lo, p.hi).map_or(lo, |r| r.1);
            push(lo, hi, result(Line::constant(quotient))?);
            lo = hi + 1;
        }
        Ok(())
    }
}

/// Ranges of `lo..=hi`, in order, and whether the line is 0 there.
fn zeros(line: Line, lo: i64, hi: i64) -> Vec<((i64, i64), bool)> {
    if line.slope == 0 {
        return vec![((lo, hi), line.at_zero == 0)];
    }
    cut(lo, hi, line.zero().filter(|k| (lo..=hi).contains(k)).map(|k| (k, k)))
}

/// Joins neighbours that lie on one line.
fn join(pieces: &mut Vec<Piece>, from: usize) {
    let mut kept = from;
    for i in from..pieces.len() {
        let next = pieces[i];
        if kept > from {
            let last = &mut pieces[kept - 1];
            if [next.lo, next.hi].iter().all(|k| last.line.at(*k) == next.line.at(*k)) {
                last.hi = next.hi;
                continue;
            }
            if last.lo == last.hi && next.line.at(last.lo) == last.line.at(last.lo) {
                *last = Piece { lo: last.lo, ..next };
                continue;
            }
        }
        pieces[kept] = next;
        kept += 1;
    }
    pieces.truncate(kept);
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{super::domain::Domain, *};
    use mk_plan::{Entity, Env, Plan, TableSet, no_tables};
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    const MAX: i64 = 60;

    fn random(rng: &mut SmallRng, depth: u32) -> Expr {
        use BinOp::{Add, And, Div, Eq, Le, Lt, Max, Min, Mod, Mul, Sub};
        if depth == 0 || rng.random_range(0..5) == 0 {
            return match rng.random_range(0..2) {
                0 => Expr::Dim(DimId::new(0)),
                _ => Expr::Const(rng.random_range(-9..30)),
            };
        }
        let mut part = || Box::new(random(rng, depth - 1));
        let (a, b, c) = (part(), part(), part());
        let ops = [Add, Sub, Mul, Div, Mod, Min, Max, Lt, Le, Eq, And];
        match rng.random_range(0..ops.len() + 1) {
            n if n == ops.len() => Expr::Select(Box::new([*a, *b, *c])),
            // Most divisors are numbers.
            n if matches!(ops[n], Div | Mod) && rng.random_range(0..8) > 0 => {
                Expr::Bin(ops[n], a, Box::new(Expr::Const(rng.random_range(1..12))))
            }
            n => Expr::Bin(ops[n], a, b),
        }
    }

    /// Pieces have the value of the expression at each value of the dimension; where it has none, that is said.
    #[test]
    fn pieces_are_the_expression() {
        let plan: Plan = "plan \"p\"\nmesh world=1\ntarget sm_90a\ndim dim0 M = 60 runtime <= 60\n"
            .parse()
            .expect("a plan");
        let tables = TableSet::default();
        let points = Points::new(&plan, &tables);
        let mut rng = SmallRng::seed_from_u64(7);
        let (mut whole, mut wrong, mut curved, mut pieces_of) = (0, 0, 0, 0);
        for _ in 0..20_000 {
            let e = random(&mut rng, 4);
            let value = |m: i64| e.eval(&Env { dims: &[m], vars: &[0], tables: &no_tables }).ok();
            let mut domain = Domain::up_to(MAX);
            let pieces = loop {
                let dim = DimId::new(0);
                let runs = &domain.runs;
                let f = Functions { points: &points, dim, runs, work: Cell::new(0) };
                let places: Vec<Places> =
                    (0..).zip(runs).map(|(run, r)| Places { run, lo: 0, hi: r.n - 1 }).collect();
                match f.of(0, &[0], &e, &places) {
                    Err(Stop::Refine(factor)) => {
                        domain = domain.refined(factor, 1 << 10).expect("few");
                    }
                    other => break other,
                }
            };
            match pieces {
                Ok(pieces) => {
                    let mut seen = 0;
                    for p in &pieces {
                        for k in p.lo..=p.hi {
                            let m = domain.runs[p.run as usize].value(k);
                            assert_eq!(Some(p.line.at(k)), value(m), "M = {m}: {e:?}");
                            seen += 1;
                        }
                    }
                    assert_eq!(seen, MAX, "{e:?}");
                    whole += 1;
                    pieces_of += pieces.len();
                }
                Err(Stop::At(m)) => {
                    assert_eq!(value(m), None, "M = {m}: {e:?}");
                    wrong += 1;
                }
                Err(_) => curved += 1,
            }
        }
        println!("{whole} in {pieces_of} pieces, {wrong} without a value, {curved} curved");
        assert!(whole > 10_000 && wrong > 100 && curved > 100, "{whole}, {wrong}, {curved}");
    }
}
