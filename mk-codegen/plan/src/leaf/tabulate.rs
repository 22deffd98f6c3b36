//! Tables that a kernel fills.

use super::{Mask, Record};
use crate::{
    axis::Axis,
    contract::{Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Copier, Mode, Operand, Proxy, RoutePart, Side},
    text::{Cursor, Result},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Which table a task fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tabulation {
    /// The rows of groups, cut into blocks ([`TableSource::Blocks`](crate::TableSource::Blocks)): `src` has the rows of
    /// each group, `dst` group and rows of each block. Negative rows, and more blocks than `dst` has room for, end the
    /// launch.
    Blocks {
        /// Rows of a block.
        rows: u32,
    },
    /// Where the rows of groups begin, each in blocks of its own ([`TableSource::Prefix`](crate::TableSource::Prefix)):
    /// `src` has the rows of each group, `dst` the first row of each, and the one behind all of them.
    Begins {
        /// Rows of a block.
        rows: u32,
    },
    /// Which rows of the other side rows meet ([`TableSource::Bounds`](crate::TableSource::Bounds)): `src` says where
    /// documents begin, `dst` has some of the rows. Numbers that no documents have end the launch
    /// ([`check_documents`](crate::check_documents)).
    Bounds {
        /// Rows of the sequence.
        rows: u32,
        /// Whose rows these are.
        side: Side,
        /// Which pairs of a document meet.
        mask: Mask,
    },
    /// Which parts of the other side places meet ([`TableSource::Meets`](crate::TableSource::Meets)): `src` says where
    /// documents begin, `dst` has all places and parts. Who makes bounds looks whether documents are any.
    Meets {
        /// Rows of the sequence.
        rows: u32,
        /// Rows of a part.
        part: u32,
        /// Whose rows a place has.
        side: Side,
        /// Which pairs of a document meet.
        mask: Mask,
    },
    /// What follows from a routing ([`Routing`](crate::Routing)), chunk by chunk of tokens. Experts that there are not,
    /// -1 aside, or that a token names twice, and more blocks on a rank than there are, end the launch.
    ///
    /// | part | `src` | `dst` |
    /// | --- | --- | --- |
    /// | lists | experts of a chunk, `[tokens, slots]` | its list |
    /// | wanted | experts of a chunk, `[tokens, slots]` | for each of its tokens 1 if the rank has one of them, else 0; 0 behind them |
    /// | counts | all lists, `[chunks, width]` | rows of the rank's experts; where rows of each chunk begin, `[chunks + 1, experts]`; group and rows of each block |
    /// | sources | group and rows of some blocks; all lists; where their rows begin | the token in each row of these blocks |
    /// | slots | experts of all tokens; group and rows of some blocks; the token in each of their rows | which slot of its token each row is |
    /// | places | experts of a chunk; its list; where its rows begin, `[1, experts]` | rank and row of each, `[tokens, slots, 2]`, of no expert 0; 1 for each that has a row, `[tokens, slots]` |
    /// | places, some dropped | the same; the last row of where rows begin, `[1, experts]` | the same, of dropped ones that of the expert's first row |
    /// | dropped | all lists; where their rows begin | rows of the rank's tokens that are not kept, `[1]` |
    /// | leaving | experts of a chunk, `[tokens, slots]` | how many of its tokens each node has an expert of, and 1 of none, `[1, nodes]`; these tokens, numbered in the chunk, of each node, `[1, nodes, width]`, and 0 behind them |
    /// | coming | the same | how many of its tokens each node has an expert of, and 1 of none, `[1, nodes]`; the number of each token among those that the rank's node has an expert of, `[1, width]`, of others 0 |
    /// | places of a node | the same | the same; an expert of another node is none, and of none the rank is the node's first |
    Route {
        /// What `dst` has.
        part: RoutePart,
        /// Experts of the world.
        experts: u32,
        /// Ranks that share them, and the tokens.
        ranks: u32,
        /// How far these are apart.
        #[serde(default = "crate::plan::one", skip_serializing_if = "crate::plan::is_one")]
        stride: u32,
        /// Rows of a block.
        rows: u32,
        /// Blocks that a rank has room for.
        blocks: u32,
        /// Rows of an expert that are kept, the first ones; 0: all of them.
        keep: u32,
        /// Ranks of a node: of places, whose experts alone there are; 0: all ranks are one.
        local: u32,
    },
}

/// Fills a table: integers from integers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tabulate {
    /// Which one.
    pub of: Tabulation,
}

impl Tabulation {
    /// The ranks that share the experts of a routing.
    pub fn over(&self) -> Option<Axis> {
        match *self {
            Tabulation::Route { ranks, stride, .. } => Some(Axis { stride, size: ranks }),
            _ => None,
        }
    }
}

impl Tabulate {
    pub(super) fn read_blocks(c: &mut Cursor<'_>) -> Result<Tabulate> {
        Ok(Tabulate { of: Tabulation::Blocks { rows: c.setting("rows")? } })
    }

    pub(super) fn read_begins(c: &mut Cursor<'_>) -> Result<Tabulate> {
        Ok(Tabulate { of: Tabulation::Begins { rows: c.setting("rows")? } })
    }

    pub(super) fn read_bounds(c: &mut Cursor<'_>) -> Result<Tabulate> {
        let side = c.named(Side::NAMES, Side::from_name)?;
        let mask = Mask::read(c)?;
        Ok(Tabulate { of: Tabulation::Bounds { rows: c.setting("rows")?, side, mask } })
    }

    pub(super) fn read_meets(c: &mut Cursor<'_>) -> Result<Tabulate> {
        let side = c.named(Side::NAMES, Side::from_name)?;
        let mask = Mask::read(c)?;
        let [rows, part] = [c.setting("rows")?, c.setting("part")?];
        Ok(Tabulate { of: Tabulation::Meets { rows, part, side, mask } })
    }

    pub(super) fn read_route(c: &mut Cursor<'_>) -> Result<Tabulate> {
        c.keyword("part")?;
        c.sign("=")?;
        let part = c.named(RoutePart::NAMES, RoutePart::from_name)?;
        let [experts, ranks] = [c.setting("experts")?, c.setting("ranks")?];
        let stride = if c.peek().text == "stride" { c.setting("stride")? } else { 1 };
        let [rows, blocks] = [c.setting("rows")?, c.setting("blocks")?];
        let keep = if c.peek().text == "keep" { c.setting("keep")? } else { 0 };
        let local = if c.peek().text == "local" { c.setting("local")? } else { 0 };
        let of = Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local };
        Ok(Tabulate { of })
    }
}

impl Record for Tabulate {
    fn name(&self) -> &'static str {
        match self.of {
            Tabulation::Blocks { .. } => "tabulate_blocks",
            Tabulation::Begins { .. } => "tabulate_begins",
            Tabulation::Bounds { .. } => "tabulate_bounds",
            Tabulation::Meets { .. } => "tabulate_meets",
            Tabulation::Route { .. } => "tabulate_route",
        }
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (part, experts, [ranks, stride], rows, blocks, keep, local) = match self.of {
            Tabulation::Blocks { rows } | Tabulation::Begins { rows } => {
                return write!(f, " rows={rows}");
            }
            Tabulation::Bounds { rows, side, mask } => {
                return write!(f, " {side} mask={mask} rows={rows}");
            }
            Tabulation::Meets { rows, part, side, mask } => {
                return write!(f, " {side} mask={mask} rows={rows} part={part}");
            }
            Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local } => {
                (part, experts, [ranks, stride], rows, blocks, keep, local)
            }
        };
        write!(f, " part={part} experts={experts} ranks={ranks}")?;
        if stride != 1 {
            write!(f, " stride={stride}")?;
        }
        write!(f, " rows={rows} blocks={blocks}")?;
        if keep != 0 {
            write!(f, " keep={keep}")?;
        }
        if local != 0 { write!(f, " local={local}") } else { Ok(()) }
    }

    fn contract(&self) -> Contract {
        let op = |o, mode| OperandSpec::new(o, mode, Copier, Proxy::Generic, Arity::Many);
        Contract::of_one(Copier, vec![op(Operand::Src, Mode::Read), op(Operand::Dst, Mode::Write)])
    }

    fn types(&self) -> Vec<OneType> {
        use RoutePart::{Coming, Leaving, Lists, Places, Slots, Wanted};
        let part = match self.of {
            Tabulation::Route { part, .. } => Some(part),
            _ => None,
        };
        let ids = matches!(part, Some(Lists | Wanted | Places | Slots | Leaving | Coming));
        let first = ids.then_some(Elements::Experts);
        vec![
            OneType { first, ..OneType::new(&[Operand::Src], Elements::I32) },
            OneType::new(&[Operand::Dst], Elements::I32),
        ]
    }
}
