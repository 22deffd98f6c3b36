//! `family fam0 "name" role0 { … }`.

use crate::{
    entity::*,
    expr::{Expr, Var},
    leaf::Leaf,
    names::{Agent, Mode, Operand, Point, Proxy},
    plan::{Scope as Reach, *},
    text::{Cursor, Result, Scope},
};

const LINES: &[&str] =
    &["leaf", "for", "order", "schedule", "inner", "position", "edge", "access", "wait", "post"];

pub(super) fn family(c: &mut Cursor<'_>, plan: &mut Plan) -> Result<()> {
    c.id::<FamId>(plan.families.len())?;
    let name = c.text()?;
    let role = c.reference::<RoleId>()?;
    let mut x = Family {
        name,
        role,
        leaf: Leaf::Signal,
        domain: vec![],
        order: vec![],
        schedule: Schedule::Static,
        inner: None,
        positions: None,
        accesses: vec![],
        waits: vec![],
        posts: vec![],
        edges: vec![],
    };
    let mut scope = Scope::family();
    let mut once: Vec<&str> = Vec::new();
    c.sign("{")?;
    c.newline()?;
    loop {
        c.skip_newlines();
        let token = c.peek();
        if c.eat_sign("}") {
            if !once.contains(&"leaf") {
                return Err(c.error_at(token, "a family needs a `leaf` line"));
            }
            break;
        }
        if let Some(head) = ["leaf", "schedule"].into_iter().find(|head| token.text == *head) {
            if once.contains(&head) {
                return Err(c.expected(&format!("no second `{head}` line")));
            }
            once.push(head);
        }
        line(c, &mut x, &mut scope)?;
        c.newline()?;
    }
    plan.families.push(x);
    c.newline()
}

fn line<'a>(c: &mut Cursor<'a>, x: &mut Family, scope: &mut Scope<'a>) -> Result<()> {
    match c.one_of(LINES)? {
        "leaf" => x.leaf = Leaf::read(c)?,
        "for" => {
            let name = c.word()?;
            c.keyword("in")?;
            x.domain.push((name.to_string(), c.expr(scope)?));
            if x.domain.len() > 16 {
                return Err(c.error_here("a family has at most 16 loop variables"));
            }
            scope.bind(name, Var::domain(x.domain.len() - 1));
        }
        "order" => {
            let Some((name, _)) = x.domain.get(x.order.len()) else {
                return Err(c.error_here("there is no loop variable left to order"));
            };
            c.keyword(name)?;
            c.sign("=")?;
            x.order.push(c.expr(&Scope::family().with("t", Var::LINEAR))?);
        }
        "schedule" => {
            x.schedule = match c.one_of(&["static", "dynamic"])? {
                "dynamic" => Schedule::Dynamic,
                _ => Schedule::Static,
            };
        }
        "inner" => {
            if x.inner.is_some() {
                return Err(c.error_here("a family has one inner loop"));
            }
            let name = c.word()?;
            c.keyword("in")?;
            x.inner = Some((name.to_string(), c.expr(scope)?));
            scope.bind(name, Var::INNER);
        }
        "position" => {
            c.keyword("q")?;
            let q = c.expr(scope)?;
            c.newline()?;
            c.skip_newlines();
            c.keyword("position")?;
            c.keyword("k")?;
            let k = c.expr(scope)?;
            if x.positions.replace(Positions { q, k }).is_some() {
                return Err(c.error_here("a family has one pair of `position` lines"));
            }
        }
        "edge" => {
            let edge = c.reference::<EdgeId>()?;
            x.edges.push(InternalEdge { edge, name: c.word()?.to_string() });
        }
        "access" => x.accesses.push(access(c, scope)?),
        "wait" => x.waits.push(wait(c, scope)?),
        _ => x.posts.push(post(c, scope)?),
    }
    Ok(())
}

/// `at … each … when …`; the variable of `each` was bound by [`look_ahead`].
fn tail(
    c: &mut Cursor<'_>,
    outer: &Scope<'_>,
    inner: &Scope<'_>,
) -> Result<(Point, Option<Each>, Option<Expr>)> {
    c.keyword("at")?;
    let at = c.named(Point::NAMES, Point::from_name)?;
    let mut each = None;
    if c.eat_word("each") {
        let var = c.word()?.to_string();
        c.keyword("in")?;
        each = Some(Each { var, extent: c.expr(outer)? });
    }
    let when = if c.eat_word("when") { Some(c.expr(inner)?) } else { None };
    Ok((at, each, when))
}

/// The scope of a line that may end in `each p in …`: the variable is used before it is named.
fn look_ahead<'a>(c: &Cursor<'a>, scope: &Scope<'a>) -> Scope<'a> {
    match c.each_on_line() {
        Some(name) => scope.with(name, Var::EACH),
        None => scope.clone(),
    }
}

fn access(c: &mut Cursor<'_>, outer: &Scope<'_>) -> Result<Access> {
    let scope = &look_ahead(c, outer);
    let operand = c.named(Operand::NAMES, Operand::from_name)?;
    c.sign(":")?;
    let mode = c.named(Mode::NAMES, Mode::from_name)?;
    let buffer = c.reference::<BufId>()?;
    c.sign("@")?;
    let rank = c.expr(scope)?;
    c.sign("[")?;
    let mut region = Vec::new();
    loop {
        let base = c.expr(scope)?;
        c.sign(":")?;
        region.push((base, c.expr(scope)?));
        if !c.eat_sign(",") {
            break;
        }
    }
    c.sign("]")?;
    let version = if c.eat_word("version") { c.expr(scope)? } else { Expr::Const(0) };
    let (at, each, when) = tail(c, outer, scope)?;
    Ok(Access { operand, mode, buffer, rank, region, version, at, each, when })
}

fn agent(c: &mut Cursor<'_>) -> Result<Agent> {
    c.keyword("by")?;
    c.named(Agent::NAMES, Agent::from_name)
}

fn wait(c: &mut Cursor<'_>, outer: &Scope<'_>) -> Result<Wait> {
    let scope = &look_ahead(c, outer);
    let edge = c.reference::<EdgeId>()?;
    let signal = c.reference::<SigId>()?;
    let index = c.bracketed(scope)?;
    c.sign(">=")?;
    let count = c.expr(scope)?;
    let lag = if c.eat_word("lag") { c.number()? } else { 0 };
    let by = agent(c)?;
    c.keyword("for")?;
    let proxy = c.named(Proxy::NAMES, Proxy::from_name)?;
    c.keyword("scope")?;
    let reach = c.named(Reach::NAMES, Reach::from_name)?;
    let (at, each, when) = tail(c, outer, scope)?;
    Ok(Wait { edge, signal, index, count, lag, by, proxy, scope: reach, at, each, when })
}

fn post(c: &mut Cursor<'_>, outer: &Scope<'_>) -> Result<Post> {
    let scope = &look_ahead(c, outer);
    let edge = c.reference::<EdgeId>()?;
    let signal = c.reference::<SigId>()?;
    let index = c.bracketed(scope)?;
    c.sign("@")?;
    let rank = c.expr(scope)?;
    c.sign("+=")?;
    let add = c.expr(scope)?;
    let by = agent(c)?;
    c.keyword("after")?;
    let after = c.named(Completion::NAMES, Completion::from_name)?;
    c.keyword("scope")?;
    let reach = c.named(Reach::NAMES, Reach::from_name)?;
    let (at, each, when) = tail(c, outer, scope)?;
    Ok(Post { edge, signal, index, rank, add, by, after, scope: reach, at, each, when })
}
