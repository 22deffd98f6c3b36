//! Exchanges of parts of the sequence for heads, or of heads for parts of the sequence, of the caller's tensors.
//!
//! Ranks push what others want into workspace, head by head and piece by piece, with a word for each source, batch and
//! head, and copy what arrives to the caller; own heads of the own part go there at once.

use super::tiler::{Tiler, Value};
use crate::passes::{
    draft::{Draft, Flow, Source, Writer, one, read, write},
    error::LowerError,
    shape::{chunks::Chunks, kernel::AllToAll, ranks::block_rows, tensor::aligned},
    strategies::{deliver::mapped, gather},
};
use mk_plan::{Access, Expr, Operand, RoleKind, Space, Var};

/// Where the rows of a piece are: of the side of parts of the sequence, and of that of heads.
struct Side {
    rows: (Expr, Expr),
    head: Expr,
}

/// The families of such an exchange.
///
/// # Errors
/// For ranks on several nodes.
pub(super) fn families<'k>(t: &mut Tiler<'k>, x: &AllToAll) -> Result<Value<'k>, LowerError> {
    let (from, out) = (t.params[x.param], t.results[x.result]);
    let (config, draft) = (t.config, &mut t.draft);
    let group = mapped(draft.along(x.axis), "all_to_all")?;
    let of = &x.shared;
    let chunks = Chunks::of(&mut draft.extents, of, 1);
    let [batch, wide] = [0, 3].map(|d| draft.dim(&of.shape[d]));
    let heads = of.shape[2].value / group.size;
    let columns = (Expr::Const(0), wide.clone());
    let elements = of.shape[3].value;
    let row_bytes = (elements as u64 * of.dtype.size_bytes()).max(1);
    let height = chunks.height(row_bytes, config.chunk_bytes);
    let pieces = (chunks.rows + height - 1) / height;
    let bulk = aligned(elements, of.dtype.size_bytes()) == elements;
    let leaf = gather::copy_leaf(bulk, config);
    // The registers of an attention leave none to copies.
    let beside = t.kernel.attention().is_some();
    let collects = if beside { RoleKind::IntraComm } else { RoleKind::Compute };

    // Of the part that place `part` has, those heads that place `by` has: where they are, by parts and by heads.
    let piece = |draft: &mut Draft, part: &Expr, by: &Expr, h: &Expr, p: &Expr| {
        let len = chunks.len(&mut draft.extents, part);
        let rows = block_rows(len, p.clone(), height);
        let at = p.clone() * height;
        let in_part =
            Side { rows: (at.clone(), rows.clone()), head: by.clone() * heads + h.clone() };
        let in_all = Side { rows: (chunks.first(part) + at, rows), head: h.clone() };
        [in_part, in_all]
    };
    let region =
        |b: &Expr, side: &Side| vec![one(b), side.rows.clone(), one(&side.head), columns.clone()];
    let place = group.place();

    let copy_own = |draft: &mut Draft| {
        let [b, h, p] = [0, 1, 2].map(|i| Expr::from(Var::domain(i)));
        let mut own = piece(draft, &place, &place, &h, &p);
        if x.back {
            own.reverse();
        }
        let touched = vec![
            read(Operand::Src, from, region(&b, &own[0])),
            write(Operand::Dst, out, region(&b, &own[1])),
        ];
        let domain = vec![("b", batch.clone()), ("h", heads.into()), ("p", pieces.into())];
        draft.family("copy.own", collects, leaf.clone(), domain, vec![], touched);
    };
    if group.size == 1 {
        copy_own(draft);
        return Ok(Value::Result);
    }

    let shape = vec![group.size.into(), batch.clone(), heads.into(), chunks.rows.into(), wide];
    let all = draft.buffer(&format!("{}_all", of.name), Space::Workspace, of.dtype, shape, None);
    let domain = || {
        vec![
            ("b", batch.clone()),
            ("h", heads.into()),
            ("s", (group.size - 1).into()),
            ("p", pieces.into()),
        ]
    };
    let [b, h, s, p] = [0, 1, 2, 3].map(|i| Expr::from(Var::domain(i)));
    let (to, rank) = (group.place_after(s.clone() + 1), group.rank_after(s.clone() + 1));
    let arrives = |source: &Expr, rows: &(Expr, Expr)| {
        vec![one(source), one(&b), one(&h), rows.clone(), columns.clone()]
    };
    let [in_part, in_all] = match x.back {
        false => piece(draft, &place, &to, &h, &p),
        true => piece(draft, &to, &place, &h, &p),
    };
    let sent = if x.back { &in_all } else { &in_part };
    let src = read(Operand::Src, from, region(&b, sent));
    let dst = write(Operand::Dst, all, arrives(&place, &in_part.rows));
    let touched = vec![src, Access { rank: rank.clone(), ..dst }];
    let push = draft.family("push", RoleKind::IntraComm, leaf.clone(), domain(), vec![], touched);
    let word = vec![place.clone(), b.clone(), h.clone()];
    let pushed = Writer::new(push, Operand::Dst, word).on(rank);
    let shape = vec![group.size.into(), batch.clone(), heads.into()];
    let arrived = draft.flow(Flow::new("arrived", shape, pieces.into(), vec![pushed]));

    copy_own(draft);
    let source = group.place_after(s + 1);
    let [in_part, in_all] = match x.back {
        false => piece(draft, &source, &place, &h, &p),
        true => piece(draft, &place, &source, &h, &p),
    };
    let src = read(Operand::Src, all, arrives(&source, &in_part.rows));
    let src = Source::behind(src, arrived, vec![source, b.clone(), h.clone()]);
    let kept = if x.back { &in_part } else { &in_all };
    let dst = write(Operand::Dst, out, region(&b, kept));
    let touched = vec![src, dst.into()];
    draft.family("copy.peers", collects, leaf, domain(), vec![], touched);
    Ok(Value::Result)
}
