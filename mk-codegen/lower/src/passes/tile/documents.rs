//! Documents of packed sequences: a table of which rows of the other side each row of a side meets. Tasks make it from
//! where the caller says that documents begin, in the launch; tiles mask by it, and go through no other blocks.
//!
//! Over a ring, another one says which ranks meet which chunks of the other side. All ranks have the same one: an owner
//! pushes a chunk where its entry is 1, and tiles read it there.

use crate::passes::{
    draft::{Draft, FlowId, Source, read, write},
    shape::{attention::Attention, chunks::Chunks, ranks::block_rows},
    strategies::push_chunks::Meets,
};
use mk_plan::{
    Access, BufId, Expr, Leaf, Mask, Operand, Point, Side, TabId, Table, TableSource, Tabulate,
    Tabulation, Var,
};

/// Rows of a task.
const ROWS: i32 = 1024;

/// The table in memory, and the flow that says that it is there.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    memory: BufId,
    built: FlowId,
}

/// Where documents begin: a table of the caller's.
fn begins(
    draft: &mut Draft,
    a: &Attention,
    rows: i32,
    inputs: &[BufId],
) -> Option<(TabId, BufId, i32)> {
    let (param, documents) = a.documents.as_ref()?;
    let (given, n) = (inputs[*param], documents.widest(0));
    let known = draft.plan.tables.iter().find(|(_, t)| t.stored == Some(given)).map(|(id, _)| id);
    let of = known.unwrap_or_else(|| {
        draft.plan.tables.push(Table {
            name: "documents".into(),
            shape: vec![n as u32],
            source: TableSource::Runtime { min: 0, max: rows },
            stored: Some(given),
            routed: None,
        })
    });
    // A table's extents are numbers.
    draft.plan.buffers[given].shape = vec![n.into()];
    Some((of, given, n))
}

/// Of an attention of documents over a ring, which ranks meet which chunks of the other side: `own` are the side's,
/// which stay where they are.
pub(super) fn meets(
    draft: &mut Draft,
    a: &Attention,
    (side, own): (Side, &Chunks),
    other: &Chunks,
    inputs: &[BufId],
) -> Option<Meets> {
    let same = |c: &Chunks| (c.count, c.per_rank, c.rows, c.whole.value);
    if same(own) != same(other) || !own.cut() {
        return None;
    }
    let (tokens, mask) = (own.whole.value, a.scores.mask);
    let (of, given, n) = begins(draft, a, tokens, inputs)?;
    let [places, parts] = [own.group.size, own.count];
    let source = TableSource::Meets { of, side, mask, rows: own.rows };
    let (table, memory) = draft.table("meets", &[places, parts], source, None);
    let whole = vec![(0.into(), places.into()), (0.into(), parts.into())];
    let touched = vec![
        read(Operand::Src, given, vec![(0.into(), n.into())]),
        write(Operand::Dst, memory, whole.clone()),
    ];
    let of = Tabulation::Meets { rows: tokens as u32, part: own.rows as u32, side, mask };
    let leaf = Leaf::Tabulate(Tabulate { of });
    let one = vec![("i", 1.into())];
    let built = draft.filled(("meets", "met"), leaf, one, 1.into(), touched);
    let entries = Source::behind(read(Operand::Tab, memory, whole), built, vec![0.into()]);
    Some(Meets { table, entries })
}

/// The table of a side, of an attention of documents: of the whole sequence, of which a rank makes the rows of its own
/// chunks.
pub(super) fn bounds(
    draft: &mut Draft,
    a: &Attention,
    (side, chunks): (Side, &Chunks),
    inputs: &[BufId],
) -> Option<Bounds> {
    let (rows, mask) = (chunks.whole.value, a.scores.mask);
    let (of, given, n) = begins(draft, a, rows, inputs)?;
    let source = TableSource::Bounds { of, side, mask };
    let (_, memory) = draft.table("bounds", &[rows, 2], source, None);
    let tasks = (chunks.rows + ROWS - 1) / ROWS;
    let [half, i] = match chunks.per_rank {
        1 => [Expr::Const(0), Var::domain(0).into()],
        _ => [0, 1].map(|n| Expr::from(Var::domain(n))),
    };
    let chunk = chunks.own(&half);
    let len = match chunks.cut() {
        true => chunks.len(&mut draft.extents, &chunk),
        false => rows.into(),
    };
    let own = (chunks.first(&chunk) + i.clone() * ROWS, block_rows(len, i, ROWS));
    let touched = vec![
        read(Operand::Src, given, vec![(0.into(), n.into())]),
        write(Operand::Dst, memory, vec![own, (0.into(), 2.into())]),
    ];
    let of = Tabulation::Bounds { rows: rows as u32, side, mask };
    let leaf = Leaf::Tabulate(Tabulate { of });
    let mut domain = vec![("i", tasks.into())];
    if chunks.per_rank > 1 {
        domain.insert(0, ("half", chunks.per_rank.into()));
    }
    let count = (tasks * chunks.per_rank).into();
    let built = draft.filled(("bounds", "bounded"), leaf, domain, count, touched);
    Some(Bounds { memory, built })
}

impl Bounds {
    /// What a tile of these rows of the sequence reads: who brings blocks waits, and those who mask come behind it.
    pub fn sources(&self, rows: &(Expr, Expr)) -> [Source; 2] {
        let of = |operand| read(operand, self.memory, vec![rows.clone(), (0.into(), 2.into())]);
        let bounds = Access { at: Point::Inner, ..of(Operand::Bounds) };
        [Source::behind(of(Operand::Span), self.built, vec![0.into()]), bounds.into()]
    }
}

/// How tiles of an attention mask.
pub(super) fn mask(a: &Attention) -> Mask {
    if a.documents.is_some() { Mask::Bounds } else { a.scores.mask }
}
