//! `family fam0 "name" role0 { … }`.

use super::{
    ReadError,
    cursor::{Cursor, Scope},
};
use crate::{
    ALayout, BLayout, BufId, Carry, Consumers, CopyVia, EdgeId, EpilogueOp, FamId, GradOf, Leaf,
    Mask, RoleId, SigId, Store, Tabulation,
    leaf::{Agent, Operand},
    plan::*,
};
use crate::{Expr, Scope as Reach, Var};

const LINES: &[&str] =
    &["leaf", "for", "order", "schedule", "inner", "position", "edge", "access", "wait", "post"];

pub(super) fn family(c: &mut Cursor<'_>, plan: &mut Plan) -> Result<(), ReadError> {
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

fn line<'a>(c: &mut Cursor<'a>, x: &mut Family, scope: &mut Scope<'a>) -> Result<(), ReadError> {
    match c.one_of(LINES)? {
        "leaf" => x.leaf = leaf(c)?,
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

fn leaf(c: &mut Cursor<'_>) -> Result<Leaf, ReadError> {
    const NAMES: &[&str] = &[
        "signal",
        "enter",
        "copy_tile",
        "mma_tile",
        "reduce_tile",
        "attend_tile",
        "stats_tile",
        "attend_dq_tile",
        "attend_dkv_tile",
        "nic_send",
        "host_copy",
        "tabulate_blocks",
        "tabulate_route",
    ];
    Ok(match c.one_of(NAMES)? {
        "signal" => Leaf::Signal,
        "enter" => Leaf::Enter,
        "reduce_tile" => Leaf::ReduceTile { epilogue: epilogue(c)? },
        "nic_send" => Leaf::NicSend,
        "host_copy" => Leaf::HostCopy,
        "tabulate_route" => {
            c.keyword("part")?;
            c.sign("=")?;
            let part = super::part(c)?;
            let [experts, ranks] = [c.setting("experts")?, c.setting("ranks")?];
            let [rows, blocks] = [c.setting("rows")?, c.setting("blocks")?];
            let keep = if c.peek().text == "keep" { c.setting("keep")? } else { 0 };
            Leaf::Tabulate { of: Tabulation::Route { part, experts, ranks, rows, blocks, keep } }
        }
        "tabulate_blocks" => Leaf::Tabulate { of: Tabulation::Blocks { rows: c.setting("rows")? } },
        "copy_tile" => {
            let via = match choice(c, "via", &["bulk", "ldst", "gather"])? {
                "bulk" => CopyVia::Bulk,
                "gather" => CopyVia::Gather,
                _ => CopyVia::Ldst,
            };
            Leaf::CopyTile { via, stages: stages(c)? }
        }
        "attend_tile" => {
            let block = block(c)?;
            let carry = match choice(c, "carry", &["registers", "scratch"])? {
                "registers" => Carry::Registers,
                _ => Carry::Scratch,
            };
            let (scale, stages) = (c.setting("scale")?, stages(c)?);
            Leaf::AttendTile { block, carry, scale, stages, mask: mask(c)?, store: store(c)? }
        }
        "stats_tile" => Leaf::StatsTile { block: block(c)? },
        name @ ("attend_dq_tile" | "attend_dkv_tile") => {
            let of = if name == "attend_dq_tile" { GradOf::Queries } else { GradOf::Keys };
            let (block, scale) = (block(c)?, c.setting("scale")?);
            Leaf::AttendGradTile { of, block, scale, stages: stages(c)?, mask: mask(c)? }
        }
        _ => mma(c)?,
    })
}

fn mask(c: &mut Cursor<'_>) -> Result<Mask, ReadError> {
    Ok(if choice(c, "mask", &["full", "causal"])? == "full" { Mask::Full } else { Mask::Causal })
}

/// `block=128x256x64`, or as many sides as a leaf has.
fn block<const N: usize>(c: &mut Cursor<'_>) -> Result<[u32; N], ReadError> {
    c.keyword("block")?;
    c.sign("=")?;
    // `128x256x64` is one word to the lexer.
    let sides = c.peek().text.split('x').filter_map(|s| s.parse().ok());
    let block = <[u32; N]>::try_from(sides.collect::<Vec<u32>>()).ok();
    let Some(block) = block.filter(|b| b.iter().all(|s| (1..=1024).contains(s))) else {
        return Err(c.expected(match N {
            2 => "a tile such as `128x64`, each side from 1 to 1024",
            _ => "a tile such as `128x256x64`, each side from 1 to 1024",
        }));
    };
    c.bump();
    Ok(block)
}

fn store(c: &mut Cursor<'_>) -> Result<Store, ReadError> {
    Ok(if choice(c, "store", &["tma", "direct"])? == "tma" { Store::Tma } else { Store::Direct })
}

fn mma(c: &mut Cursor<'_>) -> Result<Leaf, ReadError> {
    let block = block(c)?;
    let stages = stages(c)?;
    let mut a_layout = ALayout::Mk;
    if c.eat_word("a") {
        c.sign("=")?;
        if c.one_of(&["mk", "km"])? == "km" {
            a_layout = ALayout::Km;
        }
    }
    let b_layout = if choice(c, "b", &["kn", "nk"])? == "kn" { BLayout::Kn } else { BLayout::Nk };
    let store = store(c)?;
    let mut consumers = Consumers::Cooperative;
    if c.eat_word("consumers") {
        c.sign("=")?;
        c.keyword("ping_pong")?;
        consumers = Consumers::PingPong;
    }
    let cluster = if c.eat_word("cluster") {
        c.sign("=")?;
        c.number()?
    } else {
        1
    };
    let multicast = if c.eat_word("multicast") {
        c.sign("=")?;
        let sides = c.peek().text.split('x').filter_map(|s| s.parse().ok());
        let sides = <[u32; 2]>::try_from(sides.collect::<Vec<u32>>()).ok();
        let Some(sides) = sides.filter(|s| s.iter().all(|n| (1..=8).contains(n))) else {
            return Err(c.expected("CTAs below and beside, such as `2x1`, each from 1 to 8"));
        };
        c.bump();
        sides
    } else {
        [1, 1]
    };
    let epilogue = epilogue(c)?;
    Ok(Leaf::MmaTile {
        block,
        stages,
        a_layout,
        b_layout,
        store,
        consumers,
        cluster,
        multicast,
        epilogue,
    })
}

/// `epilogue=bias,gelu`, if it is there.
fn epilogue(c: &mut Cursor<'_>) -> Result<Vec<EpilogueOp>, ReadError> {
    let mut epilogue = Vec::new();
    if c.eat_word("epilogue") {
        c.sign("=")?;
        loop {
            const OPS: &[&str] = &[
                "bias",
                "gelu",
                "silu",
                "relu",
                "gelu_tanh",
                "gelu_grad",
                "gelu_tanh_grad",
                "silu_grad",
                "relu_grad",
                "mul",
                "add",
                "scale",
                "round_bf16",
                "round_f16",
                "widen",
                "swiglu",
                "mul_silu",
                "save",
                "keep",
                "carry",
            ];
            epilogue.push(match c.one_of(OPS)? {
                "bias" => EpilogueOp::Bias,
                "gelu" => EpilogueOp::Gelu,
                "silu" => EpilogueOp::Silu,
                "relu" => EpilogueOp::Relu,
                "gelu_tanh" => EpilogueOp::GeluTanh,
                "gelu_grad" => EpilogueOp::GeluGrad,
                "gelu_tanh_grad" => EpilogueOp::GeluTanhGrad,
                "silu_grad" => EpilogueOp::SiluGrad,
                "relu_grad" => EpilogueOp::ReluGrad,
                "mul" => EpilogueOp::Mul,
                "add" => EpilogueOp::Add,
                "round_bf16" => EpilogueOp::RoundBf16,
                "round_f16" => EpilogueOp::RoundF16,
                "widen" => EpilogueOp::Widen,
                "swiglu" => EpilogueOp::Swiglu,
                "mul_silu" => EpilogueOp::MulSilu,
                "save" => EpilogueOp::Save,
                "keep" => EpilogueOp::Keep,
                "carry" => EpilogueOp::Carry,
                _ => {
                    c.sign(":")?;
                    EpilogueOp::Scale(c.number()?)
                }
            });
            if !c.eat_sign(",") {
                break;
            }
        }
    }
    Ok(epilogue)
}

fn choice(
    c: &mut Cursor<'_>,
    name: &str,
    words: &[&'static str],
) -> Result<&'static str, ReadError> {
    c.keyword(name)?;
    c.sign("=")?;
    c.one_of(words)
}

fn stages(c: &mut Cursor<'_>) -> Result<u32, ReadError> {
    let token = c.peek();
    let n = c.setting("stages")?;
    if (1..=64).contains(&n) {
        return Ok(n);
    }
    Err(c.error_at(token, "`stages` is a number from 1 to 64"))
}

/// `at … each … when …`; the variable of `each` was bound by [`look_ahead`].
fn tail(
    c: &mut Cursor<'_>,
    outer: &Scope<'_>,
    inner: &Scope<'_>,
) -> Result<(Point, Option<Each>, Option<Expr>), ReadError> {
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

fn access(c: &mut Cursor<'_>, outer: &Scope<'_>) -> Result<Access, ReadError> {
    let scope = &look_ahead(c, outer);
    let operands: Vec<_> = Operand::ALL.iter().map(|o| o.name()).collect();
    let operand = c.named(&operands, Operand::from_name)?;
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

fn agent(c: &mut Cursor<'_>) -> Result<Agent, ReadError> {
    let agents: Vec<_> = Agent::ALL.iter().map(|a| a.name()).collect();
    c.keyword("by")?;
    c.named(&agents, Agent::from_name)
}

fn wait(c: &mut Cursor<'_>, outer: &Scope<'_>) -> Result<Wait, ReadError> {
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

fn post(c: &mut Cursor<'_>, outer: &Scope<'_>) -> Result<Post, ReadError> {
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
