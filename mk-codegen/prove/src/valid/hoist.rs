//! Lines with what their repetitions share evaluated once.
//!
//! A line is repeated by `each`, or by the inner loop of its task. What names neither, and looks nothing up, has one
//! value in all repetitions: it becomes a variable behind those of the task's domain. Look-ups stay where they are,
//! since a task has to read what it looks up, and no more.

use mk_plan::{Access, Each, Expr, Family, Point, Post, Var, Wait};

/// A line, and the values of its further variables.
pub(super) struct Hoisted<T> {
    pub line: T,
    pub values: Vec<Expr>,
}

/// The lines of a family that are repeated.
pub(super) struct Lines {
    pub accesses: Vec<Option<Hoisted<Access>>>,
    pub waits: Vec<Option<Hoisted<Wait>>>,
    pub posts: Vec<Option<Hoisted<Post>>>,
}

impl Lines {
    /// All as they are.
    pub fn as_they_are(x: &Family) -> Lines {
        Lines {
            accesses: x.accesses.iter().map(|_| None).collect(),
            waits: x.waits.iter().map(|_| None).collect(),
            posts: x.posts.iter().map(|_| None).collect(),
        }
    }

    pub fn of(x: &Family) -> Lines {
        let first = usize::from(Var::DOMAIN) + x.domain.len();
        let accesses = x.accesses.iter().map(|a| hoisted(first, a, (a.at, &a.each), access));
        let waits = x.waits.iter().map(|w| hoisted(first, w, (w.at, &w.each), wait));
        let posts = x.posts.iter().map(|p| hoisted(first, p, (p.at, &p.each), post));
        Lines { accesses: accesses.collect(), waits: waits.collect(), posts: posts.collect() }
    }
}

fn hoisted<T: Clone>(
    first: usize,
    line: &T,
    (at, each): (Point, &Option<Each>),
    all: fn(&mut T) -> Vec<&mut Expr>,
) -> Option<Hoisted<T>> {
    if each.is_none() && at != Point::Inner {
        return None;
    }
    let (mut line, mut values) = (line.clone(), Vec::new());
    for e in all(&mut line) {
        *e = apart(e, first, &mut values);
    }
    (!values.is_empty()).then_some(Hoisted { line, values })
}

fn access(a: &mut Access) -> Vec<&mut Expr> {
    let region = a.region.iter_mut().flat_map(|(base, len)| [base, len]);
    let each = a.each.as_mut().map(|e| &mut e.extent);
    region.chain([&mut a.rank, &mut a.version]).chain(&mut a.when).chain(each).collect()
}

fn wait(w: &mut Wait) -> Vec<&mut Expr> {
    let each = w.each.as_mut().map(|e| &mut e.extent);
    w.index.iter_mut().chain([&mut w.count]).chain(&mut w.when).chain(each).collect()
}

fn post(p: &mut Post) -> Vec<&mut Expr> {
    let each = p.each.as_mut().map(|e| &mut e.extent);
    let own = [&mut p.add, &mut p.rank];
    p.index.iter_mut().chain(own).chain(&mut p.when).chain(each).collect()
}

/// An expression with variables in the place of all that has one value in a task.
fn apart(e: &Expr, first: usize, values: &mut Vec<Expr>) -> Expr {
    let changes = |e: &Expr| matches!(e, Expr::Var(Var::EACH | Var::INNER) | Expr::Table(..));
    match e {
        Expr::Const(_) | Expr::Var(_) | Expr::Dim(_) => e.clone(),
        _ if !e.any(changes) => {
            let known = values.iter().position(|v| v == e);
            let at = known.unwrap_or(values.len());
            let Ok(slot) = u8::try_from(first + at) else { return e.clone() };
            if known.is_none() {
                values.push(e.clone());
            }
            Expr::Var(Var(slot))
        }
        Expr::Bin(op, a, b) => {
            let [a, b] = [a, b].map(|e| Box::new(apart(e, first, values)));
            Expr::Bin(*op, a, b)
        }
        Expr::Select(c) => {
            Expr::Select(Box::new(std::array::from_fn(|i| apart(&c[i], first, values))))
        }
        Expr::Table(t, index) => {
            Expr::Table(*t, index.iter().map(|e| apart(e, first, values)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::valid::{TableKind, sample_tables};
    use mk_plan::{Plan, Points, Task};

    /// Each expression of a line has the value of that of the plan, or none where it has none, in every repetition.
    fn alike<T: Clone>(
        (points, task, inner): (&Points<'_>, &Task, i64),
        (line, hoisted): (&T, &Option<Hoisted<T>>),
        (at, each): (Point, Option<&Each>),
        all: fn(&mut T) -> Vec<&mut Expr>,
    ) -> u64 {
        let Some(hoisted) = hoisted else { return 0 };
        let values = hoisted.values.iter().map(|e| points.eval(task, e).ok());
        let Some(values) = values.collect::<Option<Vec<_>>>() else { return 0 };
        let (mut own, mut other, mut n) = (line.clone(), hoisted.line.clone(), 0);
        let (own, other) = (all(&mut own), all(&mut other));
        for step in 0..if at == Point::Inner { inner } else { 1 } {
            let mut here = task.clone();
            here.vars[usize::from(Var::INNER.0)] = step;
            let repeats = each.map_or(Ok(1), |e| points.eval(&here, &e.extent)).expect("an extent");
            for i in 0..repeats {
                here.vars[usize::from(Var::EACH.0)] = i;
                let mut more = here.clone();
                more.vars.extend(&values);
                for (a, b) in own.iter().zip(&other) {
                    assert_eq!(points.eval(&here, a).ok(), points.eval(&more, b).ok(), "{a:?}");
                    n += 1;
                }
            }
        }
        n
    }

    #[test]
    fn repetitions_have_the_values_of_the_plan() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/plans");
        let files = std::fs::read_dir(folder).expect("plans").flatten().map(|f| f.path());
        let files = files.filter(|f| f.extension().is_some_and(|e| e == "plan"));
        let (mut plans, mut looked) = (0, 0);
        for file in files {
            let text = std::fs::read_to_string(&file).expect("text");
            let Ok(plan) = text.parse::<Plan>() else { continue };
            plans += 1;
            let tables = sample_tables(&plan, TableKind::Random(1));
            let points = Points::new(&plan, &tables);
            for (id, x) in plan.families.iter() {
                let lines = Lines::of(x);
                for rank in 0..plan.mesh.size() as usize {
                    for task in points.tasks(id, rank, 1).expect("tasks") {
                        let at = (&points, &task, points.inner(&task).expect("an extent"));
                        for (a, h) in x.accesses.iter().zip(&lines.accesses) {
                            looked += alike(at, (a, h), (a.at, a.each.as_ref()), access);
                        }
                        for (w, h) in x.waits.iter().zip(&lines.waits) {
                            looked += alike(at, (w, h), (w.at, w.each.as_ref()), wait);
                        }
                        for (p, h) in x.posts.iter().zip(&lines.posts) {
                            looked += alike(at, (p, h), (p.at, p.each.as_ref()), post);
                        }
                    }
                }
            }
        }
        assert!(plans >= 8 && looked > 1_000, "{plans} plans, {looked} values");
    }
}
