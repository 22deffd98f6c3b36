//! Codecs beside `half`'s, and beside tables of what torch makes of every code and of f32 at the edges.

use half::{bf16, f16};
use mk_dtype::DType;
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// The code of a value.
fn code(dtype: DType, x: f32) -> u64 {
    dtype.to_bytes(&[x]).iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte))
}

/// Floats everywhere: random bits, every power of two, and what is beside each number and each tie of a narrow format.
fn floats() -> Vec<f32> {
    let mut random = SmallRng::seed_from_u64(1);
    let mut all: Vec<f32> = (0..200_000).map(|_| f32::from_bits(random.random())).collect();
    for dtype in [DType::Bf16, DType::F16, DType::E4m3, DType::E5m2] {
        let size = dtype.size_bytes() as usize;
        let codes = (0..1u32 << (8 * size).min(15)).flat_map(|c| c.to_le_bytes()[..size].to_vec());
        let numbers: Vec<f32> = dtype.from_bytes(&codes.collect::<Vec<_>>()).collect();
        for pair in numbers.windows(2) {
            let tie = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
            for x in [pair[0], tie] {
                let beside =
                    [x, f32::from_bits(x.to_bits() + 1), f32::from_bits(x.to_bits().max(1) - 1)];
                all.extend(beside.iter().flat_map(|x| [*x, -*x]));
            }
        }
    }
    all.extend([
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
    ]);
    all
}

#[test]
fn halves_are_those_of_the_crate_half() {
    for x in floats() {
        let (b, h) = (bf16::from_f32(x), f16::from_f32(x));
        if x.is_nan() {
            assert!(DType::Bf16.round(x).is_nan() && DType::F16.round(x).is_nan());
            continue;
        }
        assert_eq!(code(DType::Bf16, x), b.to_bits().into(), "{x:e}");
        assert_eq!(code(DType::F16, x), h.to_bits().into(), "{x:e}");
        assert_eq!(DType::Bf16.round(x).to_bits(), b.to_f32().to_bits(), "{x:e}");
        assert_eq!(DType::F16.round(x).to_bits(), h.to_f32().to_bits(), "{x:e}");
        assert_eq!((DType::F32.round(x), code(DType::F32, x)), (x, x.to_bits().into()));
    }
}

/// The numbers of a table in a test file: lines of hexadecimal columns, behind comments.
fn table(text: &str) -> Vec<Vec<u32>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let number = |word| u32::from_str_radix(word, 16).unwrap();
    lines.map(|line| line.split(' ').map(number).collect()).collect()
}

#[test]
fn codes_of_eight_bits_are_torchs() {
    let lines = table(include_str!("float8_codes.txt"));
    assert_eq!(lines.len(), 256);
    for line in lines {
        for (dtype, want) in [DType::E4m3, DType::E5m2].into_iter().zip(&line[1..]) {
            let value = dtype.from_bytes(&[line[0] as u8]).next().unwrap();
            assert_eq!(value.to_bits(), *want, "{dtype} {:02x}", line[0]);
            // And back; of several NaNs, to one.
            match value.is_nan() {
                true => assert!(dtype.round(value).is_nan()),
                false => assert_eq!(code(dtype, value), line[0].into(), "{dtype}"),
            }
        }
    }
}

#[test]
fn casts_to_eight_bits_are_torchs() {
    let lines = table(include_str!("float8_casts.txt"));
    assert!(lines.len() > 3000);
    for line in lines {
        let x = f32::from_bits(line[0]);
        for (dtype, want) in [DType::E4m3, DType::E5m2].into_iter().zip(&line[1..]) {
            assert_eq!(code(dtype, x), u64::from(*want), "{dtype} of {x:e} ({:08x})", line[0]);
        }
    }
}

/// The nearest by search among all numbers, which knows nothing of exponents.
#[test]
fn casts_to_eight_bits_are_to_the_nearest() {
    for dtype in [DType::E4m3, DType::E5m2] {
        let codes: Vec<u8> = (0..128).collect();
        let numbers: Vec<f64> =
            dtype.from_bytes(&codes).map(f64::from).filter(|x| x.is_finite()).collect();
        let end = dtype.format().float.unwrap().end();
        for x in floats().into_iter().filter(|x| f64::from(x.abs()) < end) {
            let at = f64::from(x.abs());
            let above = numbers.partition_point(|n| *n < at).min(numbers.len() - 1);
            let below = above.saturating_sub(1);
            let (down, up) = (at - numbers[below], numbers[above] - at);
            let nearest = if down < up || down == up && below % 2 == 0 { below } else { above };
            let sign = u64::from(x.to_bits() >> 31) << 7;
            assert_eq!(code(dtype, x), sign | nearest as u64, "{dtype} of {x:e}");
        }
    }
}

#[test]
fn integers_end_where_their_type_does() {
    assert_eq!(
        DType::I32.to_bytes(&[3e9, -3e9, 2.7]),
        [255, 255, 255, 127, 0, 0, 0, 128, 2, 0, 0, 0]
    );
    let values = [1.0, -5.0, 1048576.0, -9e18];
    for (dtype, n) in [(DType::I32, 3), (DType::I64, 4)] {
        let bytes = dtype.to_bytes(&values[..n]);
        assert_eq!(dtype.from_bytes(&bytes).collect::<Vec<_>>(), values[..n]);
    }
    assert_eq!(DType::I32.round(2.5), 2.0);
}

#[test]
fn names_are_read_back() {
    for dtype in DType::ALL {
        assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        assert!(dtype.format().bits % 8 == 0 && dtype.size_bytes() > 0);
        assert_eq!(dtype.is_narrow(), dtype.is_storage() && dtype.multiplies());
    }
    assert_eq!(
        DType::ALL.len(),
        DType::ALL.iter().map(|d| d.name()).collect::<std::collections::BTreeSet<_>>().len()
    );
    assert_eq!(DType::from_name("f8"), None);
}
