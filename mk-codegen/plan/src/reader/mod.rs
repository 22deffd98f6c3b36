//! The text format, reading side. `//` begins a comment; a statement is a line.
//!
//! The reader checks syntax, names and ids; [`Plan::check_structure`] checks the rest.

mod family;

use super::{
    axis::Axis,
    entity::*,
    leaf::Mask,
    names::{RoutePart, Side},
    plan::*,
    text::{Cursor, ReadError, Result, Scope, lex},
};
use mk_abi::DType;
use std::str::FromStr;

/// Longest text that is read.
const MAX_BYTES: usize = 16 << 20;

impl FromStr for Plan {
    type Err = ReadError;

    fn from_str(source: &str) -> Result<Plan> {
        // Editors of some systems write it.
        let source = source.strip_prefix('\u{feff}').unwrap_or(source);
        if source.len() > MAX_BYTES {
            return Err(ReadError::new(source, 0, "the text is longer than 16 MiB"));
        }
        let tokens = lex(source)?;
        let mut c = Cursor::new(source, &tokens);
        let mut plan = Plan::default();
        let mut heads: Vec<&str> = Vec::new();
        loop {
            c.skip_newlines();
            if c.at_end() {
                break;
            }
            let word = c.peek().text;
            if HEADS.contains(&word) || word == "nic" {
                if heads.contains(&word) {
                    return Err(c.expected(&format!("no second `{word}` line")));
                }
                heads.push(word);
            }
            statement(&mut c, &mut plan)?;
        }
        match HEADS.iter().find(|h| !heads.contains(h)) {
            None => Ok(plan),
            Some(missing) => {
                let message = format!("a plan needs a `{missing}` line");
                Err(ReadError::new(source, source.len(), message))
            }
        }
    }
}

/// Lines that a plan has exactly once.
const HEADS: &[&str] = &["plan", "mesh", "target"];

const STATEMENTS: &[&str] =
    &["plan", "mesh", "target", "nic", "dim", "table", "buffer", "signal", "role", "family"];

fn statement(c: &mut Cursor<'_>, plan: &mut Plan) -> Result<()> {
    match c.one_of(STATEMENTS)? {
        "plan" => plan.name = c.text()?,
        "mesh" => {
            while !c.at_newline() {
                let axis = c.word()?.to_string();
                c.sign("=")?;
                plan.mesh.axes.push((axis, c.number()?));
            }
        }
        "target" => plan.target = c.word()?.to_string(),
        "nic" => {
            let ordering = match c.one_of(&["in_order", "unordered"])? {
                "in_order" => NicOrdering::InOrder,
                _ => NicOrdering::Unordered,
            };
            let local = if c.peek().text == "local" { Some(c.setting("local")?) } else { None };
            let fifo = c.setting("fifo")?;
            let lanes = if c.peek().text == "lanes" { c.setting("lanes")? } else { 1 };
            plan.nic = Some(Nic { ordering, local, fifo, lanes });
        }
        "dim" => {
            c.id::<DimId>(plan.dims.len())?;
            let name = c.name()?;
            c.sign("=")?;
            let value = c.number()?;
            let (mut runtime_max, mut may_be_zero) = (None, false);
            if c.eat_word("runtime") {
                may_be_zero = c.peek().text == "0";
                match may_be_zero {
                    true => {
                        c.number::<i32>()?;
                        c.sign("..=")?;
                    }
                    false => c.sign("<=")?,
                }
                runtime_max = Some(c.number()?);
            }
            let id =
                plan.dims.push(Dim { name: name.to_string(), value, runtime_max, may_be_zero });
            c.declare_dim(name, id);
        }
        "table" => table(c, plan)?,
        "buffer" => {
            c.id::<BufId>(plan.buffers.len())?;
            let token = c.peek();
            let name = c.text()?;
            if !c.declare_buffer(&name) {
                let what = format!("another buffer is named {name:?} already: use another name");
                return Err(c.error_at(token, what));
            }
            let space = c.named(Space::NAMES, Space::from_name)?;
            let shared = c.eat_word("shared");
            let dtype = c.named(&DType::ALL.map(DType::name), DType::from_name)?;
            let shape = c.bracketed(&Scope::plan())?;
            let pitch = if c.eat_word("pitch") { Some(c.expr(&Scope::plan())?) } else { None };
            let own_rows = c.eat_word("own");
            plan.buffers.push(Buffer { name, space, shared, own_rows, dtype, shape, pitch });
        }
        "signal" => {
            c.id::<SigId>(plan.signals.len())?;
            let name = c.text()?;
            let net = c.eat_word("net");
            let shape = c.bracketed(&Scope::plan())?;
            plan.signals.push(Signal { name, net, shape });
        }
        "role" => {
            c.id::<RoleId>(plan.roles.len())?;
            let kind = c.named(RoleKind::NAMES, RoleKind::from_name)?;
            c.keyword("ctas")?;
            plan.roles.push(Role { kind, ctas: c.number()? });
        }
        _ => return family::family(c, plan),
    }
    c.newline()
}

fn table(c: &mut Cursor<'_>, plan: &mut Plan) -> Result<()> {
    c.id::<TabId>(plan.tables.len())?;
    let name = c.text()?;
    c.sign("[")?;
    let mut shape = Vec::new();
    while !c.eat_sign("]") {
        shape.push(c.number()?);
        if !c.eat_sign(",") {
            c.sign("]")?;
            break;
        }
    }
    let source =
        match c.one_of(&["const", "runtime", "prefix", "blocks", "bounds", "meets", "places"])? {
            "const" => {
                let mut values = Vec::new();
                while !c.at_newline() && !matches!(c.peek().text, "in" | "routed") {
                    values.push(c.signed()?);
                }
                TableSource::Const(values)
            }
            "runtime" => {
                let min = c.signed()?;
                c.sign("..=")?;
                TableSource::Runtime { min, max: c.signed()? }
            }
            "prefix" => {
                let of = c.reference::<TabId>()?;
                c.keyword("align")?;
                TableSource::Prefix { of, align: c.number()? }
            }
            "blocks" => {
                let of = c.reference::<TabId>()?;
                c.keyword("rows")?;
                TableSource::Blocks { of, rows: c.number()? }
            }
            "bounds" => {
                let of = c.reference::<TabId>()?;
                let side = c.named(Side::NAMES, Side::from_name)?;
                TableSource::Bounds { of, side, mask: Mask::read(c)? }
            }
            "meets" => {
                let of = c.reference::<TabId>()?;
                let side = c.named(Side::NAMES, Side::from_name)?;
                let mask = Mask::read(c)?;
                c.keyword("rows")?;
                TableSource::Meets { of, side, mask, rows: c.number()? }
            }
            _ => TableSource::Places { of: c.reference::<TabId>()? },
        };
    let routed = match c.eat_word("routed") {
        true => {
            let ids = c.reference::<TabId>()?;
            let part = c.named(RoutePart::NAMES, RoutePart::from_name)?;
            c.keyword("rows")?;
            let rows = c.number()?;
            let keep = if c.eat_word("keep") { c.number()? } else { 0 };
            let local = if c.eat_word("local") { c.number()? } else { 0 };
            let along = match c.eat_word("ranks") {
                true => {
                    let size = c.number()?;
                    c.keyword("stride")?;
                    Some(Axis { stride: c.number()?, size })
                }
                false => None,
            };
            Some(Routed { ids, part, rows, keep, local, along })
        }
        false => None,
    };
    let stored = if c.eat_word("in") { Some(c.reference::<BufId>()?) } else { None };
    plan.tables.push(Table { name, shape, source, stored, routed });
    Ok(())
}
