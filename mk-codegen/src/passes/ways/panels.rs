//! Panels: the columns of rows that go between nodes, cut so that a block of rows leaves piece by piece, behind its own tiles.
//!
//! A message is one piece of memory, and waits for all tiles in it. Of whole rows, all tiles of a row of tiles; a group of row blocks is
//! then sent at once, behind its last column. So what is sent lies as `[panels, rows, width]`.

use crate::ir::Expr;
use crate::passes::shape::tensor::Tensor;

/// Bytes of a message, at most and at least where tiles allow it: of smaller ones a network card has too many, larger ones leave later.
const MESSAGE_BYTES: [i64; 2] = [64 << 10, 256 << 10];

/// How columns are cut.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Panels {
    pub count: i32,
    /// Tiles side by side in a panel.
    pub tiles: i32,
    /// Columns of a panel, where there are several.
    width: i32,
}

impl Panels {
    /// One panel of all columns, in tiles of so many.
    pub fn one(out: &Tensor, columns: i32) -> Panels {
        let n = out.shape[1].capacity();
        Panels { count: 1, tiles: (n + columns - 1) / columns.max(1), width: n }
    }

    /// Panels of whole tiles of `rows` by `columns`, all as wide; one of all columns, where there are none such.
    pub fn new(out: &Tensor, [rows, columns]: [i32; 2], most_bytes: u32) -> Panels {
        let n = out.shape[1].capacity();
        let whole = Panels::one(out, columns);
        let across = whole.tiles;
        if out.shape[1].runtime_max.is_some() || n % columns.max(1) != 0 {
            return whole;
        }
        let tile = i64::from(rows) * i64::from(columns) * out.dtype.size_bytes() as i64;
        let most = MESSAGE_BYTES[1].min(i64::from(most_bytes));
        let fits = |tiles: &i32| {
            let bytes = i64::from(*tiles) * tile;
            across % tiles == 0 && (bytes <= most || *tiles == 1) && bytes >= MESSAGE_BYTES[0]
        };
        let widest = (1..across).filter(fits).max();
        widest.map_or(whole, |tiles| Panels {
            count: across / tiles,
            tiles,
            width: tiles * columns,
        })
    }

    /// Columns of a panel, of rows of `n`.
    pub fn width(self, n: &Expr) -> Expr {
        if self.count == 1 { n.clone() } else { self.width.into() }
    }

    /// The panel of column block `j`.
    pub fn of(self, j: Expr) -> Expr {
        match (self.count, self.tiles) {
            (1, _) => 0.into(),
            (_, 1) => j,
            (_, tiles) => j / tiles,
        }
    }

    /// Columns of one tile: panel, and columns in it.
    pub fn within(self, (base, len): (Expr, Expr)) -> [(Expr, Expr); 2] {
        match self.count {
            1 => [(0.into(), 1.into()), (base, len)],
            _ => [(base.clone() / self.width, 1.into()), (base % self.width, len)],
        }
    }

    /// All of panel `q`, in memory that is cut so.
    pub fn whole(self, q: Expr, n: &Expr) -> [(Expr, Expr); 2] {
        [(q, 1.into()), (0.into(), self.width(n))]
    }

    /// The columns of panel `q`, in memory of whole rows.
    pub fn columns(self, q: Expr, n: &Expr) -> (Expr, Expr) {
        match self.count {
            1 => (0.into(), n.clone()),
            _ => (q * self.width, self.width.into()),
        }
    }
}
