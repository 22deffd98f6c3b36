//! The numeric formats of tensors, in one table. What differs from format to format is a column: a reader asks for it,
//! and names no format. docs/add-a-dtype.md says what a new row takes elsewhere.

mod curve;
mod float;

pub use curve::Curve;
pub use float::Float;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The name in pipelines, plans and messages.
    pub name: &'static str,
    /// Bits of an element, a multiple of eight.
    pub bits: u32,
    /// What they mean; `None` of integers.
    pub float: Option<Float>,
    /// What tensor cores add products of two such operands in; `None` where no leaf multiplies them.
    pub accumulator: Option<DType>,
    /// Whether elementwise operations and sums over ranks compute with its values; else they are stored, moved and
    /// cast.
    pub computes: bool,
    /// Its name in `Dtype` of `templates/ptx/types.cuh`; `None` where no leaf makes it of f32.
    pub cuda: Option<&'static str>,
    /// What tensor maps take it for.
    pub map: MapType,
    /// Its name in torch.
    pub torch: &'static str,
    /// NumPy's descriptor of it, little-endian; `None` where NumPy has none.
    pub numpy: Option<&'static str>,
}

/// What a tensor map takes an element for (CUDA driver API, `CUtensorMapDataType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the driver's own names")]
pub enum MapType {
    Uint8,
    Bfloat16,
    Float16,
    Float32,
    Int32,
    Int64,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $dtype:ident { $($column:tt)* },)*) => {
        /// Element type of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DType { $($(#[$doc])* $dtype,)* }

        const TABLE: &[Format] = &[$(Format { $($column)* },)*];

        impl DType {
            /// Every dtype, in the order in which messages list them.
            pub const ALL: [DType; TABLE.len()] = [$(DType::$dtype,)*];
        }
    };
}

dtypes! {
    /// bfloat16, 8 exponent bits and 7 mantissa bits.
    Bf16 {
        name: "bf16", bits: 16, float: ieee(8, 7), accumulator: Some(DType::F32), computes: true,
        cuda: Some("Bf16"), map: MapType::Bfloat16, torch: "bfloat16", numpy: None,
    },
    /// IEEE binary16.
    F16 {
        name: "f16", bits: 16, float: ieee(5, 10), accumulator: Some(DType::F32), computes: true,
        cuda: Some("F16"), map: MapType::Float16, torch: "float16", numpy: Some("<f2"),
    },
    /// IEEE binary32: results of `cast(f32)`, partial sums, weights of tokens.
    F32 {
        name: "f32", bits: 32, float: ieee(8, 23), accumulator: None, computes: true,
        cuda: Some("F32"), map: MapType::Float32, torch: "float32", numpy: Some("<f4"),
    },
    /// OCP FP8 with 4 exponent bits: numbers up to 448, and no infinity.
    E4m3 {
        name: "e4m3", bits: 8, float: saturating(4, 3), accumulator: Some(DType::F32), computes: false,
        cuda: Some("E4m3"), map: MapType::Uint8, torch: "float8_e4m3fn", numpy: None,
    },
    /// OCP FP8 with 5 exponent bits.
    E5m2 {
        name: "e5m2", bits: 8, float: ieee(5, 2), accumulator: Some(DType::F32), computes: false,
        cuda: Some("E5m2"), map: MapType::Uint8, torch: "float8_e5m2", numpy: None,
    },
    /// 32-bit signed integer (rows of experts, experts of tokens, tables).
    I32 {
        name: "i32", bits: 32, float: None, accumulator: None, computes: false,
        cuda: None, map: MapType::Int32, torch: "int32", numpy: Some("<i4"),
    },
    /// 64-bit signed integer (experts of tokens).
    I64 {
        name: "i64", bits: 64, float: None, accumulator: None, computes: false,
        cuda: None, map: MapType::Int64, torch: "int64", numpy: Some("<i8"),
    },
}

const fn saturating(exponent: u32, mantissa: u32) -> Option<Float> {
    Some(Float { exponent, mantissa, infinite: false })
}

const fn ieee(exponent: u32, mantissa: u32) -> Option<Float> {
    Some(Float { exponent, mantissa, infinite: true })
}

/// Bytes of operands of attention, and of results that leave shared memory in panels.
pub const HALF_BYTES: u32 = 2;

/// Bytes of what they are added in, of statistics and logarithms.
pub const F32_BYTES: u32 = DType::F32.size_bytes() as u32;

impl DType {
    /// Its row of the table.
    #[inline]
    pub const fn format(self) -> &'static Format {
        &TABLE[self as usize]
    }

    /// The name in pipelines, plans and messages.
    pub const fn name(self) -> &'static str {
        self.format().name
    }

    /// Reads back what [`DType::name`] gives.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Size of one element, in bytes.
    #[inline]
    pub const fn size_bytes(self) -> u64 {
        self.format().bits as u64 / 8
    }

    /// Whether its values are integers, which nothing computes with.
    pub const fn is_integer(self) -> bool {
        self.format().float.is_none()
    }

    /// Whether its values are floats that are stored, moved and cast, and of which elementwise operations compute
    /// nothing.
    pub const fn is_storage(self) -> bool {
        !self.is_integer() && !self.format().computes
    }

    /// Whether tensor cores multiply it.
    pub const fn multiplies(self) -> bool {
        self.format().accumulator.is_some()
    }

    /// Whether an operand of tensor cores has less than 16 bits: it is then read along K only, and its sums are
    /// promoted.
    pub const fn is_narrow(self) -> bool {
        self.multiplies() && self.format().bits < 16
    }

    /// The value that memory of this type holds after `x` was stored to it: the nearest, ties to even.
    #[inline]
    pub fn round(self, x: f32) -> f32 {
        match self.format().float {
            Some(float) if self.format().bits < 32 => float.decode(float.encode(x)),
            Some(_) => x,
            None => x.round_ties_even(),
        }
    }

    /// The factor of a block of values whose largest magnitude has these bits of an f32, and whether values over it fit
    /// this type: the magnitude over the largest number, 1 of zeros. A NaN, whose bits are above all others', stays
    /// one.
    pub fn factor(self, magnitude: u32) -> f32 {
        let largest = self.format().float.map_or(1.0, Float::largest);
        if magnitude == 0 { 1.0 } else { f32::from_bits(magnitude) / largest }
    }

    /// What memory holds of values, each rounded; integers are cut off, and end where their type does.
    pub fn to_bytes(self, values: &[f32]) -> Vec<u8> {
        let Format { bits, float, .. } = *self.format();
        let most = i64::MAX >> (64 - bits);
        let code = |x: f32| match float {
            Some(float) => float.encode(x).into(),
            None => (x as i64).clamp(!most, most) as u64,
        };
        let size = self.size_bytes() as usize;
        values.iter().flat_map(|x| code(*x).to_le_bytes().into_iter().take(size)).collect()
    }

    /// The values that memory holds.
    pub fn from_bytes(self, bytes: &[u8]) -> impl Iterator<Item = f32> {
        let Format { bits, float, .. } = *self.format();
        bytes.chunks_exact(self.size_bytes() as usize).map(move |element| {
            let code = element.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte));
            match float {
                Some(float) => float.decode(code as u32),
                None => ((code << (64 - bits)) as i64 >> (64 - bits)) as f32,
            }
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
