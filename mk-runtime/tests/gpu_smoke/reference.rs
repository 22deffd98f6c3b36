//! The reference kernels against plain f64 arithmetic on the host.

use crate::{alone, world_on};
use mk_abi::DType;
use mk_dtype::Curve;
use mk_runtime::gpu::{DeviceTensor, Event, Stream};
use mk_runtime::reference::{MapOp, Operand, Reference, random_value};
use mk_runtime::world::World;

fn setup() -> Option<(World, Reference)> {
    let world = world_on(&[0])?;
    let reference = Reference::new(&world, &crate::common::jit_options()).unwrap();
    Some((world, reference))
}

fn tensor(world: &World, dtype: DType, shape: &[u64]) -> DeviceTensor {
    DeviceTensor::zeros(world, 0, dtype, shape).unwrap()
}

#[test]
fn random_inputs_are_the_hosts() {
    let _alone = alone();
    let Some((world, reference)) = setup() else {
        return;
    };
    let x = tensor(&world, DType::F32, &[1000, 33]);
    reference.fill_random(&x, 42, 0.5).unwrap();
    let host: Vec<f32> = (0..33_000).map(|i| random_value(42, i, 0.5)).collect();
    assert_eq!(x.download_f32().unwrap(), host);
    let y = tensor(&world, DType::Bf16, &[1000, 33]);
    reference.fill_random(&y, 42, 0.5).unwrap();
    let z = DeviceTensor::from_f32(&world, 0, DType::Bf16, &[1000, 33], &host).unwrap();
    assert_eq!(y.download_f32().unwrap(), z.download_f32().unwrap());
    let i = tensor(&world, DType::I32, &[4]);
    assert!(reference.fill_random(&i, 1, 1.0).is_err());
}

#[test]
fn gemm_equals_f64_on_the_host() {
    let _alone = alone();
    let Some((world, reference)) = setup() else {
        return;
    };
    for (m, n, k) in [(1, 1, 1), (128, 128, 16), (130, 257, 77), (64, 200, 300)] {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                let shape = |r, c, t| if t { [c, r] } else { [r, c] };
                let a = tensor(&world, dtype, &shape(m, k, ta));
                let b = tensor(&world, dtype, &shape(k, n, tb));
                reference.fill_random(&a, 1, 1.0).unwrap();
                reference.fill_random(&b, 2, 1.0).unwrap();
                let c = tensor(&world, DType::F32, &[m, n]);
                c.poison().unwrap();
                let operand = |x, t| if t { Operand::t(x) } else { Operand::new(x) };
                reference.gemm(&c, operand(&a, ta), operand(&b, tb), false).unwrap();
                reference.gemm(&c, operand(&a, ta), operand(&b, tb), true).unwrap();
                let (ha, hb, hc) = (
                    a.download_f32().unwrap(),
                    b.download_f32().unwrap(),
                    c.download_f32().unwrap(),
                );
                let at = |x: &[f32], r: u64, c: u64, rows: u64, cols: u64, t: bool| {
                    f64::from(x[if t { c * rows + r } else { r * cols + c } as usize])
                };
                for i in 0..m {
                    for j in 0..n {
                        let sum: f64 =
                            (0..k).map(|l| at(&ha, i, l, m, k, ta) * at(&hb, l, j, k, n, tb)).sum();
                        let got = f64::from(hc[(i * n + j) as usize]);
                        assert!(
                            (got - 2.0 * sum).abs() < 1e-4,
                            "{dtype} {m} {n} {k} {ta} {tb} at {i}, {j}: {got} and {}",
                            2.0 * sum
                        );
                    }
                }
            }
        }
    }
    let a = tensor(&world, DType::F32, &[2, 3]);
    let error = reference.gemm(&a, Operand::new(&a), Operand::new(&a), false);
    assert!(error.is_err());
}

#[test]
fn elementwise_operations_equal_the_host() {
    let _alone = alone();
    let Some((world, reference)) = setup() else {
        return;
    };
    let shape = [37, 2, 50];
    let (a, b) = (tensor(&world, DType::F32, &shape), tensor(&world, DType::F32, &shape));
    reference.fill_random(&a, 3, 4.0).unwrap();
    reference.fill_random(&b, 4, 4.0).unwrap();
    let bias = tensor(&world, DType::F32, &[50]);
    reference.fill_random(&bias, 5, 1.0).unwrap();
    let (ha, hb, hbias) =
        (a.download_f32().unwrap(), b.download_f32().unwrap(), bias.download_f32().unwrap());
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let check = |op, second: Option<&DeviceTensor>, f: &dyn Fn(usize) -> f64| {
        let out = tensor(&world, DType::F32, &shape);
        reference.map(op, &out, &a, second).unwrap();
        for (i, got) in out.download_f32().unwrap().into_iter().enumerate() {
            assert!((f64::from(got) - f(i)).abs() < 1e-5, "{op:?} at {i}");
        }
    };
    let x = |i: usize| f64::from(ha[i]);
    check(MapOp::Cast, None, &x);
    check(MapOp::Curve(Curve::Relu), None, &|i| x(i).max(0.0));
    check(MapOp::Curve(Curve::Silu), None, &|i| silu(x(i)));
    check(MapOp::Scale(0.25), None, &|i| 0.25 * x(i));
    check(MapOp::Add, Some(&b), &|i| x(i) + f64::from(hb[i]));
    check(MapOp::Mul, Some(&b), &|i| x(i) * f64::from(hb[i]));
    check(MapOp::Bias, Some(&bias), &|i| x(i) + f64::from(hbias[i % 50]));
    check(MapOp::Curve(Curve::GeluTanh), None, &|i| {
        let v = x(i);
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
        0.5 * v * (1.0 + inner.tanh())
    });
    let out = tensor(&world, DType::F32, &[37, 50]);
    reference.map(MapOp::Swiglu, &out, &a, None).unwrap();
    for (i, got) in out.download_f32().unwrap().into_iter().enumerate() {
        let at = i / 50 * 100 + i % 50;
        assert!((f64::from(got) - silu(x(at)) * x(at + 50)).abs() < 1e-4);
    }
    assert!(reference.map(MapOp::Add, &out, &a, None).is_err());
    assert!(reference.map(MapOp::Curve(Curve::Relu), &out, &a, None).is_err());
}

#[test]
fn error_norms_find_one_bad_element() {
    let _alone = alone();
    let Some((world, reference)) = setup() else {
        return;
    };
    let (rows, cols) = (300u64, 500u64);
    let x = tensor(&world, DType::F32, &[rows, cols]);
    reference.fill_random(&x, 9, 1.0).unwrap();
    let y = tensor(&world, DType::F32, &[rows, cols]);
    y.copy_from(&x).unwrap();
    let norm = reference.error(&y, &x, None).unwrap();
    assert_eq!((norm.global, norm.worst_tile, norm.nonfinite), (0.0, 0.0, 0));
    let mut values = x.download_f32().unwrap();
    values[(290 * cols + 400) as usize] += 10.0;
    y.upload_f32(&values).unwrap();
    let norm = reference.error(&y, &x, None).unwrap();
    println!("{norm:?}");
    assert_eq!(norm.worst_at, (2, 3));
    assert!(norm.worst_tile > 3.0 * norm.global && norm.global > 0.0);
    // Of values in [-1, 1), whose mean square is 1/3.
    assert!((norm.worst_element - 10.0 * 3f64.sqrt()).abs() < 2.0);
    values[0] = f32::NAN;
    y.upload_f32(&values).unwrap();
    let norm = reference.error(&y, &x, None).unwrap();
    assert_eq!((norm.nonfinite, norm.worst_at), (1, (0, 0)));
    assert!(norm.global.is_infinite());
    // Beyond the range of f16 in both.
    let want = tensor(&world, DType::F32, &[rows, cols]);
    want.upload_f32(&vec![1e6; (rows * cols) as usize]).unwrap();
    let half = tensor(&world, DType::F16, &[rows, cols]);
    half.upload_f32(&vec![f32::INFINITY; (rows * cols) as usize]).unwrap();
    assert_eq!(reference.error(&half, &want, None).unwrap().nonfinite, 0);
    half.upload_f32(&vec![f32::NEG_INFINITY; (rows * cols) as usize]).unwrap();
    assert_eq!(reference.error(&half, &want, None).unwrap().nonfinite, rows * cols);
}

#[test]
fn a_large_gemm_takes_a_reasonable_time() {
    let _alone = alone();
    let Some((world, reference)) = setup() else {
        return;
    };
    let n = 4096;
    let (a, b) = (tensor(&world, DType::Bf16, &[n, n]), tensor(&world, DType::Bf16, &[n, n]));
    reference.fill_random(&a, 1, 1.0).unwrap();
    reference.fill_random(&b, 2, 1.0).unwrap();
    let c = tensor(&world, DType::F32, &[n, n]);
    let stream = Stream::new(&world, 0).unwrap();
    let (start, end) = (Event::new(&world, 0).unwrap(), Event::new(&world, 0).unwrap());
    start.record(stream.as_ref()).unwrap();
    reference.gemm(&c, Operand::new(&a), Operand::new(&b), false).unwrap();
    end.record(stream.as_ref()).unwrap();
    end.synchronize().unwrap();
    let ms = start.elapsed_ms(&end).unwrap();
    println!("{n}^3 in {ms} ms: {} TFLOP/s", 2e-9 * (n as f64).powi(3) / f64::from(ms));
    assert!(ms < 5000.0);
}
