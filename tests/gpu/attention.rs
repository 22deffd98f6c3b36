//! Attention on one rank, and over keys that other ranks push, against f64 on the CPU.

#[path = "../../mk-codegen/tests/common/attention.rs"]
mod plans;

use crate::{rig::alone, scenario::Res, shared_world};
use mk::{
    emit,
    plan::Plan,
    runtime::{
        DeviceTensor, Instance, InstanceOptions, RankTensors, Stream, StreamRef, World,
        jit::{self, JitOptions},
    },
    valid,
};
use plans::{Attention, BASE};

/// Values that 16 bits of either type hold: few sixteenths.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // The sum of some is close to a normal distribution.
        let parts = [20, 28, 36, 44, 52].map(|at| f64::from((self.0 >> at) as u8 & 31) - 15.5);
        (parts.iter().sum::<f64>() / 1.25).round() / 16.0
    }
}

fn to_bits(dtype: &str, x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    if dtype == "bf16" {
        return (bits >> 16) as u16;
    }
    if x == 0.0 {
        return 0;
    }
    let exponent = ((bits >> 23) & 0xff) as i32 - 127 + 15;
    ((bits >> 16 & 0x8000) | (exponent as u32) << 10 | (bits >> 13 & 0x3ff)) as u16
}

fn from_bits(dtype: &str, bits: u16) -> f64 {
    if dtype == "bf16" {
        return f64::from(f32::from_bits(u32::from(bits) << 16));
    }
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), bits & 0x3ff);
    let size = match exponent {
        31 => f64::NAN,
        0 => f64::from(fraction) * 2f64.powi(-24),
        e => (1024.0 + f64::from(fraction)) * 2f64.powi(e - 25),
    };
    if sign == 1 { -size } else { size }
}

/// `[batch, rows, heads, dim]`.
struct Tensor {
    values: Vec<f64>,
    shape: [usize; 4],
}

impl Tensor {
    fn random(shape: [u32; 4], seed: u64) -> Tensor {
        let shape = shape.map(|n| n as usize);
        let mut random = Random(seed.wrapping_mul(0x9e3779b97f4a7c15) ^ 77);
        let values = (0..shape.iter().product()).map(|_| random.next()).collect();
        Tensor { values, shape }
    }

    fn row(&self, b: usize, row: usize, head: usize) -> &[f64] {
        let [_, rows, heads, dim] = self.shape;
        let at = ((b * rows + row) * heads + head) * dim;
        &self.values[at..at + dim]
    }

    fn bytes(&self, dtype: &str) -> Vec<u8> {
        self.values.iter().flat_map(|x| to_bits(dtype, *x).to_le_bytes()).collect()
    }
}

struct Ranks {
    a: Attention,
    instance: Instance,
    streams: Vec<Stream>,
    /// By rank: q, k, v, o, lse.
    tensors: Vec<Vec<DeviceTensor>>,
}

impl Ranks {
    fn new(a: Attention, world: &World) -> Res<Ranks> {
        let plan: Plan = a.text().parse()?;
        valid::verify(&plan).map_err(|e| e.to_string())?;
        let source = emit::emit(&plan)?;
        let compiled = jit::compile(&source, &JitOptions::default())?;
        // NaN where nobody wrote.
        let options = InstanceOptions { poison: Some(0xFF), ..InstanceOptions::default() };
        let instance = Instance::bind(world, &source, &compiled, &options)?;
        let mut tensors = Vec::new();
        for rank in world.local_ranks() {
            let shapes = &source.ranks[rank as usize].tensor_shapes;
            let new = |(arg, shape): (&mk::abi::TensorArg, &Vec<u64>)| {
                DeviceTensor::new(world, rank, arg.dtype, shape)
            };
            let all = source.tensors.iter().zip(shapes).map(new);
            tensors.push(all.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Ranks { a, instance, streams: Stream::per_rank(world)?, tensors })
    }

    fn launch(&mut self) -> Res<()> {
        for t in self.tensors.iter().flat_map(|all| &all[3..]) {
            t.poison()?;
        }
        let streams: Vec<StreamRef> = self.streams.iter().map(Stream::as_ref).collect();
        let args: Vec<_> = self.tensors.iter().map(RankTensors::new).collect();
        self.instance.launch(&streams, &args)?;
        Ok(self.instance.synchronize()?)
    }

    fn results(&self) -> Res<Vec<[Vec<u8>; 2]>> {
        let of = |all: &Vec<DeviceTensor>| -> Res<[Vec<u8>; 2]> {
            Ok([all[3].buffer().download()?, all[4].buffer().download()?])
        };
        self.tensors.iter().map(of).collect()
    }

    /// Fresh inputs, two launches, which agree to the bit, and the comparison of every tile.
    fn step(&mut self, seed: u64) -> Res<(f64, f64)> {
        let Attention { dtype, batch, seq, heads, groups, dim, ranks, .. } = self.a;
        let mut inputs = Vec::new();
        for rank in 0..ranks {
            let new = |n: u64, h| {
                Tensor::random([batch, seq, h, dim], (seed * 64 + u64::from(rank)) * 3 + n)
            };
            let all = [new(0, heads), new(1, groups), new(2, groups)];
            for (t, values) in self.tensors[rank as usize].iter().zip(&all) {
                t.buffer().upload(&values.bytes(dtype))?;
            }
            inputs.push(all);
        }
        self.launch()?;
        let results = self.results()?;
        self.launch()?;
        if results != self.results()? {
            return Err("two launches differ".into());
        }
        let mut worst = (0.0_f64, 0.0_f64);
        for (rank, [o, lse]) in results.iter().enumerate() {
            for b in 0..batch as usize {
                for h in 0..heads as usize {
                    self.compare(&inputs, [rank, b, h], o, lse, &mut worst)?;
                }
            }
        }
        Ok(worst)
    }

    fn compare(
        &self,
        inputs: &[[Tensor; 3]],
        [rank, b, h]: [usize; 3],
        o: &[u8],
        lse: &[u8],
        worst: &mut (f64, f64),
    ) -> Res<()> {
        let Attention { dtype, seq, heads, groups, dim, causal, .. } = self.a;
        let (seq, heads, dim) = (seq as usize, heads as usize, dim as usize);
        let g = h / (heads / groups as usize);
        let scale = f64::from(1.0 / (dim as f32).sqrt());
        let (mut error, mut norm) = (0.0, 0.0);
        for row in 0..seq {
            let q = inputs[rank][0].row(b, row, h);
            let mut scores = Vec::new();
            for (source, [_, k, _]) in inputs.iter().enumerate() {
                for key in 0..seq {
                    let seen =
                        !causal || source * seq + key + self.a.ahead as usize <= rank * seq + row;
                    let dot: f64 = q.iter().zip(k.row(b, key, g)).map(|(x, y)| x * y).sum();
                    scores.push(if seen { dot * scale } else { f64::NEG_INFINITY });
                }
            }
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let nothing = most == f64::NEG_INFINITY;
            let weight = |s: &f64| if nothing { 0.0 } else { (s - most).exp() };
            let weights: Vec<_> = scores.iter().map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let mut expected = vec![0.0; dim];
            for (i, w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
                let v = inputs[i / seq][2].row(b, i % seq, g);
                expected.iter_mut().zip(v).for_each(|(x, v)| *x += w / sum * v);
            }
            let at = ((b * seq + row) * heads + h) * dim;
            for (d, x) in expected.iter().enumerate() {
                let i = 2 * (at + d);
                let found = from_bits(dtype, u16::from_le_bytes([o[i], o[i + 1]]));
                error += (found - x).powi(2);
                norm += x.powi(2);
            }
            let i = 4 * ((b * heads + h) * seq + row);
            let found = f32::from_le_bytes([lse[i], lse[i + 1], lse[i + 2], lse[i + 3]]);
            let apart = match nothing {
                true if found == f32::NEG_INFINITY => 0.0,
                true => f64::INFINITY,
                false => (f64::from(found) - (most + sum.ln())).abs(),
            };
            if apart.is_nan() || apart > 1e-4 {
                return Err(format!("rank {rank}, [{b}, {h}, {row}]: lse is {apart} off").into());
            }
            worst.1 = worst.1.max(apart);
            if row % 128 == 127 || row + 1 == seq {
                let relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
                if relative.is_nan() || relative > 4e-3 {
                    let what = format!("rank {rank}, [{b}, {h}], rows to {row}: {relative} off");
                    return Err(what.into());
                }
                worst.0 = worst.0.max(relative);
                (error, norm) = (0.0, 0.0);
            }
        }
        Ok(())
    }
}

#[test]
fn attention_is_right() -> Res<()> {
    let _alone = alone();
    let small = Attention { batch: 1, seq: 300, heads: 4, groups: 4, ..BASE };
    let cases = [
        ("full", small),
        ("batches, 176 keys, dynamic", Attention { batch: 2, keys: 176, dynamic: true, ..small }),
        ("causal, f16, GQA", Attention { causal: true, dtype: "f16", groups: 2, ..small }),
        ("heads of 64, 176 keys", Attention { dim: 64, keys: 176, groups: 1, ..small }),
        (
            "heads of 64, causal, 192 queries",
            Attention { dim: 64, causal: true, seq: 257, queries: 192, dynamic: true, ..small },
        ),
        ("2 ranks", Attention { ranks: 2, ..small }),
        (
            "2 ranks, causal",
            Attention { ranks: 2, causal: true, groups: 2, dynamic: true, ..small },
        ),
        ("rows that see nothing", Attention { causal: true, ahead: 140, dynamic: true, ..small }),
        ("3 ranks, heads of 64", Attention { ranks: 3, dim: 64, keys: 176, ..small }),
        ("4 ranks", Attention { ranks: 4, keys: 176, dynamic: true, seq: 129, ..small }),
        ("4 ranks, causal", Attention { ranks: 4, causal: true, seq: 200, ..small }),
    ];
    for (name, a) in cases {
        let Some(world) = shared_world("attention_is_right", a.ranks as usize) else {
            return Ok(());
        };
        // More tiles than CTAs.
        let ctas = world.sm_budget(0).min(if a.ranks == 1 { 5 } else { 12 });
        let mut ranks = Ranks::new(Attention { ctas, ..a }, &world)?;
        for seed in 1..=3 {
            let (o, lse) = ranks.step(seed).map_err(|e| format!("{name}, {seed}: {e}"))?;
            println!("ok {name}, launch {seed}: {o:.2e} in a tile, lse {lse:.1e}");
        }
    }
    Ok(())
}
