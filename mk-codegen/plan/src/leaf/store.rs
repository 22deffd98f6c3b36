//! How results leave a CTA.

use crate::text::{Cursor, Result};
use serde::{Deserialize, Serialize};

/// How a tile is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Store {
    /// Through shared memory and TMA: the pitch is a multiple of 16 bytes.
    Tma,
    /// By ordinary stores: any pitch.
    Direct,
}

impl Store {
    /// The name in the text format.
    pub(super) fn name(self) -> &'static str {
        match self {
            Store::Tma => "tma",
            Store::Direct => "direct",
        }
    }

    pub(super) fn read(c: &mut Cursor<'_>) -> Result<Store> {
        let name = c.choice("store", &["tma", "direct"])?;
        Ok(if name == "tma" { Store::Tma } else { Store::Direct })
    }
}
