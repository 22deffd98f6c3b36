//! Weights in eight bits against the host's arithmetic.

use crate::{alone, common::jit_options, world_on};
use mk_abi::DType;
use mk_runtime::Error;
use mk_runtime::gpu::{DeviceTensor, Stream};
use mk_runtime::reference::random_value;
use mk_runtime::weights::{Weight, Weights};

const BLOCK: usize = 128;

/// Elements of very different magnitudes, by block: zeros, of both signs, one with a NaN and one with an infinity among
/// them.
fn elements(matrices: usize, rows: usize, columns: usize) -> Vec<f32> {
    let at = |i: usize| {
        let (row, column) = (i / columns % rows, i % columns);
        let block = i / columns / rows * 31 + row / BLOCK * 7 + column / BLOCK;
        let x = random_value(5, i as u64, 1.0);
        match (block % 8, row % BLOCK, column % BLOCK) {
            (1, ..) => 0.0,
            (2, 3, 5) => f32::NAN,
            (3, 4, 1) => f32::INFINITY,
            (4, ..) => x * 3e38,
            (5, ..) => x * 1e-38,
            (6, ..) => x * 1e-3,
            (7, row, column) if (row + column) % 3 == 0 => -0.0,
            _ => x,
        }
    };
    (0..matrices * rows * columns).map(|i| DType::Bf16.round(at(i))).collect()
}

#[test]
fn weights_are_quantised_as_they_lie_and_turned() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let weights = Weights::new(0, &jit_options()).unwrap();
    let stream = Stream::new(&world, 0).unwrap();
    let sizes: [[usize; 3]; 4] = [[1, 128, 128], [3, 272, 200], [2, 8, 1032], [1, 1288, 1024]];
    for [z, m, k] in sizes {
        let of = |dtype, a: usize, b: usize| {
            let tensor = DeviceTensor::zeros(&world, 0, dtype, &[z as u64, a as u64, b as u64]);
            let tensor = tensor.unwrap();
            tensor.poison().unwrap();
            tensor
        };
        let (r, c) = (m.div_ceil(BLOCK), k.div_ceil(BLOCK));
        let x = of(DType::Bf16, m, k);
        let host = elements(z, m, k);
        x.upload_f32(&host).unwrap();
        let values = [of(DType::E4m3, m, k), of(DType::E4m3, k, m)];
        let factors = [of(DType::F32, r, c), of(DType::F32, c, r)];
        let ptr = |t: &DeviceTensor| t.as_arg().ptr();
        let weight = Weight {
            x: ptr(&x),
            values: ptr(&values[0]),
            factors: ptr(&factors[0]),
            turned: ptr(&values[1]),
            turned_factors: ptr(&factors[1]),
            matrices: z as u64,
            rows: m as u64,
            columns: k as u64,
        };
        // SAFETY: the tensors are of these sizes, and outlive the stream's work.
        unsafe { weights.quantize(weight, stream.as_ref()) }.unwrap();
        stream.synchronize().unwrap();
        let values = values.map(|t| t.download_f32().unwrap());
        let factors = factors.map(|t| t.download_f32().unwrap());
        for i in 0..z {
            for (row, column) in (0..r).flat_map(|row| (0..c).map(move |column| (row, column))) {
                let block = (row * BLOCK..m.min((row + 1) * BLOCK)).flat_map(|a| {
                    (column * BLOCK..k.min((column + 1) * BLOCK)).map(move |b| (a, b))
                });
                let at = |(a, b)| host[(i * m + a) * k + b];
                let most = block.clone().map(|e| at(e).abs().to_bits()).max().unwrap();
                let factor = DType::E4m3.factor(most);
                let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
                let what = format!("{z} of {m} x {k}: block {row}, {column} of {i}");
                assert!(same(factors[0][(i * r + row) * c + column], factor), "{what}");
                assert!(same(factors[1][(i * c + column) * r + row], factor), "{what}");
                for (a, b) in block {
                    let want = DType::E4m3.round(at((a, b)) / factor);
                    let found = [values[0][(i * m + a) * k + b], values[1][(i * k + b) * m + a]];
                    assert!(
                        found.iter().all(|x| same(*x, want)),
                        "{what}, {a}, {b}: {found:?}, {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn weights_of_odd_sizes_and_places_are_refused() {
    let _alone = alone();
    let Some(world) = world_on(&[0]) else { return };
    let stream = Stream::new(&world, 0).unwrap();
    let weights = Weights::new(0, &jit_options()).unwrap();
    let weight = Weight {
        x: 0,
        values: 0,
        factors: 0,
        turned: 0,
        turned_factors: 0,
        matrices: 1,
        rows: 12,
        columns: 16,
    };
    for wrong in
        [weight, Weight { rows: 16, x: 8, ..weight }, Weight { rows: 16, turned: 4, ..weight }]
    {
        // SAFETY: nothing is launched.
        let refused = unsafe { weights.quantize(wrong, stream.as_ref()) };
        assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    }
}
