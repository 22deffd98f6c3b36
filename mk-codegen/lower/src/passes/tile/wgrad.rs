//! Gradients of matrices of experts: tiles of each, summed over the rows that the expert has.
//!
//! Tables say where an expert's rows begin, and how many there are. Rows behind the last one, up to the end of its
//! block, have no value: the consumers of a tile's last step read zeros in their place. An expert without rows makes
//! one step of those.

use super::{
    blocks::{self, Begins, Blocks},
    tiler::{Tiler, Value},
};
use crate::passes::{
    draft::{Source, read, write},
    error::{LowerError, internal, unsupported},
    shape::{grouped::Wgrad, ranks::block_rows},
};
use mk_plan::{
    ALayout, Access, BLayout, EPILOGUE_OPERANDS, Expr, Leaf, MmaTile, Operand, Point, RoleKind,
    Schedule, Space, Store, Var, mma_swaps, mma_three_by_rows,
};

/// The tiles of all matrices.
///
/// # Errors
/// For tiles with swapped operands; [`LowerError::Internal`] for rows that nobody counts.
pub(super) fn families<'k>(t: &mut Tiler<'k>, w: &Wgrad) -> Result<Value<'k>, LowerError> {
    let Some(Value::Ragged(ragged)) = t.made.get(w.ragged) else {
        return Err(internal("the rows of experts are not counted"));
    };
    let blocks = ragged.blocks;
    // Operand A lies along M, which fills the rows of wgmmas.
    let [m, n, _] = t.config.block;
    if mma_swaps([m, n]) || mma_three_by_rows([m, n]) {
        let why = format!("tiles of {m} x {n} multiply with operands swapped, or of three");
        return Err(unsupported(
            "grouped_wgrad",
            why,
            "set `block=128x128x64`, or another of 128 rows",
        ));
    }
    let begins = match &ragged.begins {
        Some(begins) => *begins,
        None => blocks::begins(&mut t.draft, blocks),
    };
    let name = match t.kernel.wgrads().count() {
        0 | 1 => "wgrad".to_string(),
        _ => format!("wgrad{}", w.result + 1),
    };
    tiles(t, w, &name, begins, blocks);
    if let Some(Value::Ragged(ragged)) = t.made.get_mut(w.ragged) {
        ragged.begins = Some(begins);
    }
    Ok(Value::Result)
}

fn tiles(t: &mut Tiler<'_>, w: &Wgrad, name: &str, begins: Begins, blocks: Blocks) {
    let (counts, counted) = blocks.counts;
    let (params, out) = (&t.kernel.params, &t.kernel.results[w.result].out);
    let (config, draft) = (t.config, &mut t.draft);
    let [m, n, _] = config.block;
    let tile = MmaTile {
        block: config.block,
        stages: config.stages_on(draft.target, false),
        a_layout: ALayout::Km,
        b_layout: BLayout::Kn,
        shifted: false,
        store: Store::Tma,
        consumers: config.consumers,
        cluster: 1,
        multicast: [1, 1],
        epilogue: w.epilogue.clone(),
    };
    let (height, width) = (m as i32, n as i32);
    let [experts, rows, columns] = [0, 1, 2].map(|d| out.widest(d));
    let [down, across] = [(rows, height), (columns, width)].map(|(n, of)| (n + of - 1) / of);
    let [e, i, j] = [0, 1, 2].map(|n| Expr::from(Var::domain(n)));
    let all = params[w.x].widest(0);
    let begin = Expr::Table(begins.table, vec![e.clone()]);
    // No routing has more rows than there are, and proofs need not know it.
    let count = Expr::Table(counts, vec![e.clone()]).min(Expr::Const(all) - begin.clone());
    let depth = (begin, count);
    let [m, n] = [1, 2].map(|d| draft.own(out, d));
    let down_rows = (i.clone() * height, block_rows(m, i, height));
    let cols = (j.clone() * width, block_rows(n, j, width));
    let tab = |memory, behind: i32| {
        read(Operand::Tab, memory, vec![(Expr::Const(0), Expr::Const(experts + behind))])
    };
    let a = read(Operand::A, t.params[w.x], vec![depth.clone(), down_rows.clone()]);
    let b = read(Operand::B, t.params[w.dy], vec![depth, cols.clone()]);
    let mut mine = down_rows;
    if !out.even(0) {
        // Of the last ranks there may be fewer experts: a tile of one behind the last has no rows.
        mine.1 = mine.1.min((draft.own(out, 0) - e.clone()) * rows);
    }
    let made = vec![(e, 1.into()), mine, cols];
    let mut touched: Vec<Source> = vec![
        Source::behind(tab(begins.memory, 1), begins.built, vec![0.into()]),
        match draft.plan.buffers[counted].space {
            Space::In => tab(counted, 0).into(),
            _ => Source::behind(tab(counted, 0), blocks.built, vec![0.into()]),
        },
        a.into(),
        b.into(),
    ];
    for (extra, operand) in w.extras.iter().zip(EPILOGUE_OPERANDS) {
        let region = read(operand, t.params[*extra], made.clone());
        touched.push(Access { at: Point::End, ..region }.into());
    }
    touched.push(write(Operand::C, t.results[w.result], made).into());
    let domain = vec![("e", experts.into()), ("i", down.into()), ("j", across.into())];
    let leaf = Leaf::MmaTile(tile);
    let family = draft.family(name, RoleKind::Compute, leaf, domain, vec![], touched);
    // Experts have more rows or fewer.
    draft.plan.families[family].schedule = Schedule::Dynamic;
}
