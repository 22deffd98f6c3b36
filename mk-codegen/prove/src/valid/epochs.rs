//! After how many epochs a plan repeats.
//!
//! The epoch is device state and counts without end, so an expression may look at it only through its remainder:
//! `(epoch + anything) % n` with a constant `n`, where what is divided is a sum. Then everything repeats after
//! the least common multiple of these `n`, and a proof for that many consecutive epochs, from any base, is a proof for
//! all. Any other mention is a violation of rule 6.

use super::report::Violation;
use mk_plan::{BinOp, Expr, Plan, Var};

/// Longest period that is unrolled.
pub const MAX_PERIOD: u32 = 16;

/// The slot period of a plan, 1 if nothing depends on the epoch.
pub(super) fn period(plan: &Plan) -> Result<u32, Vec<Violation>> {
    let mut period = 1u64;
    let mut errors = Vec::new();
    for (id, x) in plan.families.iter() {
        for e in x.expressions() {
            if !e.mentions(Var::EPOCH) {
                continue;
            }
            if !walk(plan, e, &mut period) || period > u64::from(MAX_PERIOD) {
                errors.push(Violation::Capacity {
                    place: format!("{id} {:?}", x.name),
                    message: format!(
                        "`{}`: use the epoch only as `epoch % n`, with periods of at most {MAX_PERIOD} epochs together",
                        plan.text(Some(x), None, e)
                    ),
                });
                break;
            }
        }
    }
    if errors.is_empty() { Ok(period as u32) } else { Err(errors) }
}

/// Whether every mention is under a remainder; multiplies the periods up.
fn walk(plan: &Plan, e: &Expr, period: &mut u64) -> bool {
    match e {
        Expr::Var(v) => *v != Var::EPOCH,
        Expr::Const(_) | Expr::Dim(_) => true,
        Expr::Bin(BinOp::Mod, a, n) if linear(a) && a.mentions(Var::EPOCH) => {
            let n = match &**n {
                Expr::Const(n) => i64::from(*n),
                Expr::Dim(d) => plan
                    .dims
                    .get(*d)
                    .filter(|d| d.runtime_max.is_none())
                    .map_or(0, |d| i64::from(d.value)),
                _ => 0,
            };
            let Some(n) = u64::try_from(n).ok().filter(|n| (1..=u64::from(MAX_PERIOD)).contains(n))
            else {
                return false;
            };
            *period = (*period / gcd(*period, n)).saturating_mul(n);
            true
        }
        Expr::Bin(_, a, b) => walk(plan, a, period) && walk(plan, b, period),
        Expr::Select(c) => c.iter().all(|e| walk(plan, e, period)),
        Expr::Table(_, index) => index.iter().all(|e| walk(plan, e, period)),
    }
}

/// Largest constant beside the epoch: what is divided must fit 32 bits in epochs that nobody unrolls.
const MAX_OFFSET: u32 = 1 << 20;

/// Sums keep remainders; anything else must not mention the epoch. (Products do, too, but they leave 32 bits after some
/// epochs.)
fn linear(e: &Expr) -> bool {
    match e {
        Expr::Var(_) => true,
        Expr::Const(c) => c.unsigned_abs() <= MAX_OFFSET,
        Expr::Bin(BinOp::Add | BinOp::Sub, a, b) => linear(a) && linear(b),
        e => !e.mentions(Var::EPOCH),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<u32> {
        let plan: Plan = format!(
            "plan \"p\"\nmesh world=1\ntarget sm_90a\ntable tab0 \"t\" [9] const 1 2 3 4 5 6 7 8 9\n\
             signal sig0 \"s\" [99]\nrole role0 compute ctas 1\nfamily fam0 \"f\" role0 {{\n  leaf signal\n  \
             post e0 sig0[{text}] @ rank += 1 by lead after program_order scope gpu at start\n}}\n"
        )
        .parse()
        .expect("a plan");
        period(&plan).ok()
    }

    #[test]
    fn only_remainders_of_the_epoch_repeat() {
        assert_eq!(of("rank"), Some(1));
        assert_eq!(of("epoch % 2"), Some(2));
        assert_eq!(of("(epoch + rank * 3) % 2 + epoch % 3"), Some(6));
        assert_eq!(of("tab0[epoch % 4]"), Some(4));
        assert_eq!(of("epoch"), None);
        assert_eq!(of("epoch / 2 % 2"), None);
        assert_eq!(of("epoch * 268435457 % 2"), None);
        assert_eq!(of("(epoch + 2147483640) % 2"), None);
        assert_eq!(of("epoch % 17"), None);
        assert_eq!(of("epoch % 0"), None);
    }
}
