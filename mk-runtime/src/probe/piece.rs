//! Sizes of bulk copies.

/// The size of a bulk copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// 2 KiB.
    K2,
    /// 4 KiB.
    K4,
    /// 8 KiB.
    K8,
    /// 16 KiB.
    K16,
}

impl Piece {
    /// All of them, from the smallest.
    pub const ALL: [Piece; 4] = [Piece::K2, Piece::K4, Piece::K8, Piece::K16];

    /// Size in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Piece::K2 => 2 << 10,
            Piece::K4 => 4 << 10,
            Piece::K8 => 8 << 10,
            Piece::K16 => 16 << 10,
        }
    }
}
