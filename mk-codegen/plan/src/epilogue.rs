//! Elementwise tails of GEMMs and sums.

use super::{
    names::{Mode, Operand},
    text::{Cursor, Result},
};
use mk_dtype::{Curve, DType};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// An elementwise operation on the accumulator of a GEMM, or on a sum, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EpilogueOp {
    /// Adds a row vector `[n]`.
    Bias,
    /// Multiplies by the matrix `[m, n]`.
    Mul,
    /// Adds the matrix `[m, n]`.
    Add,
    /// Multiplies by `silu` of the matrix `[m, n]`.
    MulSilu,
    /// Multiplies by a number, given by its f32 bits.
    Scale(u32),
    /// Nothing: a `cast` to f32, the accumulator's own type.
    Widen,
    /// `silu(gate) * up`, `[m, 2, n] -> [m, n]`. Comes first, but for factors, a `Bias` and a `Save`: `b` is then
    /// `[k, 2, n]`, and a tile of it has half its columns from each.
    Swiglu,
    /// Multiplies each row by its number of the f32 vector `[m]`. Comes first, as does the next.
    ScaleRows,
    /// Multiplies each column by its number of the f32 vector `[n]`.
    ScaleColumns,
    /// Multiplies the sum of each 128 of K of each row by its number of the f32 matrix `[k / 128, m]`, before it is
    /// added to the others. Comes first, as do those before and the next.
    ScaleSteps,
    /// The same of each 128 columns, by the f32 matrix `[n / 128, k / 128]`.
    ScaleBlocks,
    /// Nothing; writes what there is to the matrix `[m, n]` (before `Swiglu` to `[m, 2, n]`), rounded to its dtype.
    Save,
    /// Nothing; operations from here to the next `Save` work on a copy of the tile, and those behind that go on with it
    /// as it is here.
    Keep,
    /// Adds what has been summed so far, or other ranks' parts of a sum: each `[m, n]` of the result's dtype. Comes
    /// last.
    Carry,
    /// Divides each 128 columns of a row by their factor, which `QuantTile` defines, and writes factors to the f32
    /// matrix `[n / 128, m]`. Comes last; the result has this dtype.
    Quantize(DType),
    /// Rounds to a dtype and back: what a `cast` inside the chain does.
    #[serde(untagged, with = "rounds")]
    Round(DType),
    /// Applies a curve.
    #[serde(untagged, with = "curves")]
    Curve(Curve),
    /// Multiplies by the slope of a curve at the matrix `[m, n]`.
    #[serde(untagged, with = "slopes")]
    Slope(Curve),
}

/// Curves in JSON by the names of their variants, and their slopes as these and `Grad`.
macro_rules! curves_in_json {
    ($module:ident, $format:literal) => {
        mod $module {
            use super::Curve;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub fn serialize<S: Serializer>(curve: &Curve, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&format!($format, curve))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Curve, D::Error> {
                let text = String::deserialize(d)?;
                let found = Curve::ALL.into_iter().find(|curve| text == format!($format, curve));
                found.ok_or_else(|| {
                    D::Error::custom(format!("`{text}` is no operation of an epilogue"))
                })
            }
        }
    };
}

curves_in_json!(curves, "{:?}");
curves_in_json!(slopes, "{:?}Grad");

/// Roundings in JSON: `"RoundBf16"` and so on.
mod rounds {
    use super::{DType, EpilogueOp};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(to: &DType, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("Round{to:?}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<DType, D::Error> {
        let text = String::deserialize(d)?;
        let found = DType::ALL.into_iter().find(|to| text == format!("Round{to:?}"));
        let unknown = || D::Error::custom(format!("`{text}` is no operation of an epilogue"));
        found.filter(|to| EpilogueOp::rounds_to(*to)).ok_or_else(unknown)
    }
}

impl EpilogueOp {
    /// Whether there is a rounding to this type: f32 is the accumulator's own.
    pub fn rounds_to(to: DType) -> bool {
        to.format().float.is_some() && to != DType::F32
    }

    /// How the operation touches an operand of its own, if it has one.
    pub fn operand(self) -> Option<Mode> {
        match self {
            EpilogueOp::Bias
            | EpilogueOp::ScaleRows
            | EpilogueOp::ScaleColumns
            | EpilogueOp::ScaleSteps
            | EpilogueOp::ScaleBlocks
            | EpilogueOp::Mul
            | EpilogueOp::Add
            | EpilogueOp::MulSilu
            | EpilogueOp::Slope(_) => Some(Mode::Read),
            EpilogueOp::Save | EpilogueOp::Quantize(_) => Some(Mode::Write),
            _ => None,
        }
    }
}

/// The gradient of what `swiglu` takes, `[m, n] -> [m, 2, n]`, with gates and ups as the operands of `MulSilu` and the
/// slope of silu (gates) and `Mul` (ups): gradients of ups are saved, and those of gates are the result.
pub const SWIGLU_GRAD: [EpilogueOp; 5] = [
    EpilogueOp::Keep,
    EpilogueOp::MulSilu,
    EpilogueOp::Save,
    EpilogueOp::Slope(Curve::Silu),
    EpilogueOp::Mul,
];

/// Whether the result is `[m, 2, n]`, C being its first half and a save its second.
pub fn halves(epilogue: &[EpilogueOp]) -> bool {
    epilogue.ends_with(&SWIGLU_GRAD)
}

/// Whether each copy of a tile that an epilogue works on ends where it is saved.
pub(super) fn keeps_end(epilogue: &[EpilogueOp]) -> bool {
    let mut kept = false;
    for op in epilogue {
        match op {
            EpilogueOp::Save => kept = false,
            EpilogueOp::Keep | EpilogueOp::Swiglu | EpilogueOp::Carry if kept => return false,
            EpilogueOp::Keep => kept = true,
            _ => {}
        }
    }
    !kept
}

impl EpilogueOp {
    /// Whether it multiplies rows, or columns, by factors of their own.
    pub fn scales(self) -> bool {
        self.scales_side().is_some()
    }

    /// Whether it multiplies rows (0) or columns (1) by factors of their own.
    fn scales_side(self) -> Option<usize> {
        match self {
            EpilogueOp::ScaleRows | EpilogueOp::ScaleSteps => Some(0),
            EpilogueOp::ScaleColumns | EpilogueOp::ScaleBlocks => Some(1),
            _ => None,
        }
    }

    /// Whether these are factors of rows.
    pub fn scales_rows(self) -> bool {
        self.scales_side() == Some(0)
    }

    /// Whether its factors are of steps along K, and so of what a step adds.
    pub fn scales_steps(self) -> bool {
        matches!(self, EpilogueOp::ScaleSteps | EpilogueOp::ScaleBlocks)
    }

    /// The dimension that its vector lies along, if its operand is one.
    pub fn vector(self) -> Option<usize> {
        match self {
            EpilogueOp::ScaleRows => Some(0),
            EpilogueOp::Bias | EpilogueOp::ScaleColumns => Some(1),
            _ => None,
        }
    }
}

/// Whether factors of rows and columns come before everything else, each once.
pub(super) fn scales_first(epilogue: &[EpilogueOp]) -> bool {
    let n = epilogue.iter().take_while(|op| op.scales()).count();
    let (first, rest) = epilogue.split_at(n);
    let twice = n > 2 || n == 2 && first[0].scales_side() == first[1].scales_side();
    !twice && !rest.iter().any(|op| op.scales())
}

/// Whether sums of steps along K have factors of their own.
pub fn scales_steps(epilogue: &[EpilogueOp]) -> bool {
    epilogue.iter().any(|op| op.scales_steps())
}

/// The type of eight bits that a result is quantised to, if it is.
pub fn quantized(epilogue: &[EpilogueOp]) -> Option<DType> {
    epilogue.iter().find_map(|op| match op {
        EpilogueOp::Quantize(to) => Some(*to),
        _ => None,
    })
}

/// How many factors come first.
fn scales(epilogue: &[EpilogueOp]) -> usize {
    epilogue.iter().take_while(|op| op.scales()).count()
}

/// How many operations come before gates: factors, and vectors that are added to gates and ups. Each has an operand.
fn before_gates(epilogue: &[EpilogueOp]) -> usize {
    let n = scales(epilogue);
    n + usize::from(epilogue.get(n) == Some(&EpilogueOp::Bias))
}

/// How many operations are applied before everything else, where each operand is loaded once: factors, and vectors of
/// gates and ups.
pub fn applied_first(epilogue: &[EpilogueOp]) -> usize {
    if gated(epilogue) { before_gates(epilogue) } else { scales(epilogue) }
}

/// Whether columns of a GEMM's operand B come in pairs of gate and up.
pub fn gated(epilogue: &[EpilogueOp]) -> bool {
    let behind = &epilogue[before_gates(epilogue)..];
    matches!(behind, [EpilogueOp::Swiglu, ..] | [EpilogueOp::Save, EpilogueOp::Swiglu, ..])
}

/// The operand that is added to gates and ups, `[2, n]`, if one is.
pub fn gate_bias(epilogue: &[EpilogueOp]) -> Option<Operand> {
    let n = scales(epilogue);
    EPILOGUE_OPERANDS.get(n).copied().filter(|_| gated(epilogue) && before_gates(epilogue) > n)
}

/// Whether the first save of the epilogue takes gates and ups, as `swiglu` takes them.
pub fn saves_gates(epilogue: &[EpilogueOp]) -> bool {
    matches!(&epilogue[before_gates(epilogue)..], [EpilogueOp::Save, EpilogueOp::Swiglu, ..])
}

/// The operand that takes gates and ups, if one does: behind those of factors and vectors.
pub fn gates_operand(epilogue: &[EpilogueOp]) -> Option<Operand> {
    EPILOGUE_OPERANDS.get(before_gates(epilogue)).copied().filter(|_| saves_gates(epilogue))
}

/// Whether sums that a tile goes on with are added behind its last step: an elementwise operation of its own comes
/// before.
pub fn carry_last(epilogue: &[EpilogueOp]) -> bool {
    let carries = epilogue.contains(&EpilogueOp::Carry);
    carries && epilogue.iter().any(|op| !matches!(op, EpilogueOp::Carry | EpilogueOp::Widen))
}

/// Operands of an epilogue, in the order of its operations that have one.
pub const EPILOGUE_OPERANDS: [Operand; 4] = [Operand::E0, Operand::E1, Operand::E2, Operand::E3];

/// The operations of an epilogue that have an operand, with it.
pub fn named_operands(epilogue: &[EpilogueOp]) -> impl Iterator<Item = (EpilogueOp, Operand)> {
    let ops = epilogue.iter().copied().filter(|op| op.operand().is_some());
    ops.zip(EPILOGUE_OPERANDS)
}

/// The operation of an epilogue whose operand this is.
pub fn of_epilogue(epilogue: &[EpilogueOp], operand: Operand) -> Option<EpilogueOp> {
    named_operands(epilogue).find(|(_, o)| *o == operand).map(|(op, _)| op)
}

pub(super) fn write_epilogue(f: &mut Formatter<'_>, epilogue: &[EpilogueOp]) -> fmt::Result {
    if epilogue.is_empty() {
        return Ok(());
    }
    let ops: Vec<_> = epilogue.iter().map(epilogue_text).collect();
    write!(f, " epilogue={}", ops.join(","))
}

/// Operations without a setting, in the order in which messages name them.
const PLAIN: [(&str, EpilogueOp); 13] = [
    ("bias", EpilogueOp::Bias),
    ("scale_rows", EpilogueOp::ScaleRows),
    ("scale_columns", EpilogueOp::ScaleColumns),
    ("scale_steps", EpilogueOp::ScaleSteps),
    ("scale_blocks", EpilogueOp::ScaleBlocks),
    ("mul", EpilogueOp::Mul),
    ("add", EpilogueOp::Add),
    ("widen", EpilogueOp::Widen),
    ("swiglu", EpilogueOp::Swiglu),
    ("mul_silu", EpilogueOp::MulSilu),
    ("save", EpilogueOp::Save),
    ("keep", EpilogueOp::Keep),
    ("carry", EpilogueOp::Carry),
];

pub(super) fn epilogue_text(op: &EpilogueOp) -> String {
    match op {
        EpilogueOp::Curve(curve) => curve.name().into(),
        EpilogueOp::Slope(curve) => curve.grad().into(),
        EpilogueOp::Scale(bits) => format!("scale:0x{bits:08x}"),
        EpilogueOp::Round(to) => format!("round_{to}"),
        EpilogueOp::Quantize(to) => format!("quantize_{to}"),
        _ => PLAIN.iter().find(|(_, plain)| plain == op).map_or("", |(name, _)| name).into(),
    }
}

/// `epilogue=bias,gelu`, if it is there.
pub(super) fn read_epilogue(c: &mut Cursor<'_>) -> Result<Vec<EpilogueOp>> {
    let mut epilogue = Vec::new();
    if c.eat_word("epilogue") {
        c.sign("=")?;
        loop {
            let rounds = DType::ALL.into_iter().filter(|to| EpilogueOp::rounds_to(*to));
            let quantized = DType::ALL.into_iter().filter(|to| to.is_narrow());
            let quantized = quantized.map(EpilogueOp::Quantize);
            let rounds = rounds.map(EpilogueOp::Round).chain(quantized);
            let curves =
                Curve::ALL.into_iter().flat_map(|c| [EpilogueOp::Curve(c), EpilogueOp::Slope(c)]);
            let plain = PLAIN.into_iter().map(|(_, op)| op);
            let ops = plain.chain(rounds).chain(curves);
            let ops: Vec<_> = ops.map(|op| (epilogue_text(&op), op)).collect();
            let mut names: Vec<_> = ops.iter().map(|(name, _)| name.as_str()).collect();
            // Behind `add`.
            names.insert(7, "scale");
            let name = c.one_of(&names)?;
            epilogue.push(match ops.iter().find(|(n, _)| n == name) {
                Some((_, op)) => *op,
                None => {
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
