//! Which keys a query attends to.

use crate::{
    contract::{Arity, OperandSpec},
    names::{
        Agent::{Consumers, Loader},
        Mode, Operand, Point, Proxy,
    },
    text::{Cursor, Result},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Which keys a query attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mask {
    /// All of them.
    #[default]
    Full,
    /// Those at its own position of the sequence and before. Positions are the family's
    /// ([`Positions`](crate::Positions)).
    Causal,
    /// So many of those, its own the last of them.
    Window(u32),
    /// Those between two numbers that an operand has of each row of a tile ([`Operand::Bounds`]).
    Bounds,
}

impl Mask {
    /// Of a pipeline that is causal, or has a window, or neither.
    pub fn of(causal: bool, window: Option<u32>) -> Mask {
        match window {
            Some(keys) if causal => Mask::Window(keys),
            _ if causal => Mask::Causal,
            _ => Mask::Full,
        }
    }

    /// Keys that a query sees, where there is a bound.
    pub fn window(self) -> Option<u32> {
        match self {
            Mask::Window(keys) => Some(keys),
            Mask::Full | Mask::Causal | Mask::Bounds => None,
        }
    }

    /// Bytes of shared memory that a tile of so many rows takes for it: two bounds of each, and two of all.
    pub(super) fn smem_bytes(self, rows: u32) -> u32 {
        if self == Mask::Bounds { rows.saturating_add(1).saturating_mul(8) } else { 0 }
    }

    /// Where in a task its operands are read: who masks reads bounds behind who brings the tile.
    pub(super) fn points(self) -> Vec<(Operand, &'static [Point])> {
        let point = |o: OperandSpec| match o.agent {
            Loader => (o.operand, &[Point::Start][..]),
            _ => (o.operand, &[Point::Inner][..]),
        };
        self.operands().into_iter().map(point).collect()
    }

    /// The operands that it takes, with who reads them.
    pub(super) fn operands(self) -> Vec<OperandSpec> {
        if self != Mask::Bounds {
            return Vec::new();
        }
        [(Operand::Span, Loader), (Operand::Bounds, Consumers)]
            .map(|(o, by)| OperandSpec::new(o, Mode::Read, by, Proxy::Generic, Arity::One))
            .to_vec()
    }

    pub(crate) fn read(c: &mut Cursor<'_>) -> Result<Mask> {
        let token = c.peek();
        match c.choice("mask", &["full", "causal", "window", "bounds"])? {
            "bounds" => Ok(Mask::Bounds),
            "full" => Ok(Mask::Full),
            "causal" => Ok(Mask::Causal),
            _ => match c.setting("keys")? {
                0 => Err(c.error_at(token, "a window has 1 key or more")),
                keys if keys > i32::MAX as u32 => {
                    Err(c.error_at(token, format!("a window has {} keys or fewer", i32::MAX)))
                }
                keys => Ok(Mask::Window(keys)),
            },
        }
    }
}

/// As the text format has it.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Mask::Full => f.write_str("full"),
            Mask::Causal => f.write_str("causal"),
            Mask::Bounds => f.write_str("bounds"),
            Mask::Window(keys) => write!(f, "window keys={keys}"),
        }
    }
}
