//! Many launches of the layer of experts, each with another routing: tables that kernels leave behind, tokens that travel, and bits.

use crate::{
    experts::{FORMS, Kernel, LAYER, kernel_on, options},
    rig::{alone, in_parallel},
    shared_world,
};
use mk::{
    abi::{DType, TensorDirection},
    plan::{RoutePart, Routing},
    runtime::{DeviceTensor, Instance, RankTensors, Stream, TensorRef},
};
use mk_harness::{Case, Held, gpu::Session};

/// Columns of a token.
const WIDE: usize = 136;
const LAUNCHES: u64 = 200;

/// Where a buffer of the plan begins in its memory.
fn offset(k: &Kernel, name: &str) -> usize {
    let line = k.source.cuda.lines().find(|line| {
        line.starts_with("constexpr u64 kBuf") && line.contains(&format!("// \"{name}\","))
    });
    let number = line.and_then(|line| line.split(['=', ';']).nth(1));
    number.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("no buffer {name:?}"))
}

fn integers(bytes: &[u8], at: usize, n: usize) -> Vec<i32> {
    let words = bytes[at..at + 4 * n].chunks_exact(4);
    words.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Tokens, slots, experts and blocks of a rank; on so many ranks.
#[derive(Clone, Copy)]
struct Sizes {
    ranks: usize,
    all: [u64; 4],
}

impl Sizes {
    fn tokens(&self) -> usize {
        (self.all[0] as usize).div_ceil(self.ranks)
    }

    /// Room for the tokens of a rank where they are fetched to.
    fn room(&self) -> usize {
        self.tokens().next_multiple_of(16)
    }

    fn routing<'a>(&self, ids: &'a [i32]) -> Routing<'a> {
        let [slots, experts] = [1, 2].map(|i| self.all[i] as usize);
        Routing {
            ids,
            slots,
            experts: experts as i32,
            ranks: self.ranks,
            rows: 128,
            keep: 0,
            local: 0,
        }
    }

    /// Tables that a rank's scratch has, as the Rust builder makes them.
    fn tables_are_right(&self, k: &Kernel, scratch: &[u8], rank: usize, ids: &[i32], what: &str) {
        let [tokens, slots, experts, blocks] = self.all.map(|n| n as usize);
        let own = (tokens.saturating_sub(rank * self.tokens())).min(self.tokens());
        let mut tables = vec![
            ("counts", RoutePart::Counts, experts / self.ranks),
            ("sources", RoutePart::Sources, blocks * 128),
            ("places", RoutePart::Places, own * slots * 2),
        ];
        if self.ranks > 1 {
            tables.push(("wanted", RoutePart::Wanted, self.ranks * self.room()));
        }
        for (name, part, n) in tables {
            let found = integers(scratch, offset(k, name), n);
            assert!(found == self.routing(ids).table(part, rank, n), "{what}, rank {rank}: {name}");
        }
    }

    /// Tokens of other ranks that a rank has an expert of, once each.
    fn travelling(&self, rank: usize, ids: &[i32]) -> Vec<bool> {
        let wanted = self.routing(ids).table(RoutePart::Wanted, rank, self.ranks * self.room());
        let home = |i: usize| i / self.room();
        wanted.iter().enumerate().map(|(i, w)| *w != 0 && home(i) != rank).collect()
    }
}

fn sorted(held: impl Iterator<Item = Held>) -> (Vec<i32>, Vec<Vec<u32>>) {
    let (mut ids, mut results) = (Vec::new(), Vec::new());
    for h in held {
        match h.input {
            true if h.name == "ids" => ids.extend(h.values.iter().map(|x| *x as i32)),
            true => {}
            false => results.push(h.values.iter().map(|x| x.to_bits()).collect()),
        }
    }
    (ids, results)
}

/// Two kernels with other CTAs, launched side by side: captured, with delays, no memory reset between launches.
#[test]
fn two_hundred_routings() {
    let _gpus = alone();
    let mut cases = Vec::new();
    for (ranks, slots, experts) in [(1u64, 8, 16), (2, 2, 8), (3, 3, 9), (4, 8, 32), (8, 2, 16)] {
        let world = shared_world("two_hundred_routings", ranks as usize);
        let Some(world) = world else { return };
        let (tokens, own) = (70 * ranks + 1, experts / ranks);
        let blocks = tokens * slots.min(own) / 128 + own + 1;
        let sizes = Sizes { ranks: ranks as usize, all: [tokens, slots, experts, blocks] };
        cases.push((world.clone(), sizes, 0));
        cases.push((world, sizes, 3));
    }
    let kernels = in_parallel(&cases, |(world, s, free)| kernel_on(LAYER, world, s.all, *free));
    for (two, kernels) in cases.chunks(2).zip(kernels.chunks(2)) {
        let (world, sizes, _) = &two[0];
        let ranks = sizes.ranks;
        let mut sessions: Vec<Session<'_>> = Vec::new();
        for (k, chaos) in kernels.iter().zip([0, 20]) {
            let case = Case { program: &k.program, bound: &k.bound, ranks };
            let s = Session::bind(world, case, &k.source, &k.compiled, &options(chaos), 5);
            sessions.push(s.unwrap_or_else(|e| panic!("{e}")));
        }
        for launch in 1..=LAUNCHES {
            let form = FORMS[launch as usize % FORMS.len()];
            let what = format!("{ranks} ranks, launch {launch}, {form}");
            let mut bits = Vec::new();
            for (s, k) in sessions.iter_mut().zip(kernels) {
                s.route(form);
                let mut step = || {
                    s.fill(launch)?;
                    if launch == 2 {
                        s.capture()?;
                    }
                    s.launch()
                };
                step().unwrap_or_else(|e| panic!("{what}: {e}"));
                let held: Result<Vec<_>, _> = s.held().collect();
                let (ids, results) = sorted(held.unwrap_or_else(|e| panic!("{e}")).into_iter());
                bits.push(results);
                for rank in 0..ranks {
                    let instance = s.instance();
                    let scratch = instance.scratch(rank as u32).unwrap_or_else(|e| panic!("{e}"));
                    sizes.tables_are_right(k, &scratch, rank, &ids, &what);
                    if launch > 1 || ranks == 1 {
                        continue;
                    }
                    // Rows that are not poison came over the link.
                    let n = ranks * sizes.room() * WIDE * 2;
                    let at = offset(k, "tokens") as u64;
                    let tokens = instance.symmetric().download(rank as u32, at, n as u64);
                    let tokens = tokens.unwrap_or_else(|e| panic!("{e}"));
                    let came = |row: &[u8]| row.iter().any(|b| *b != 0xff);
                    let rows = tokens.chunks_exact(2 * WIDE).enumerate();
                    let came: Vec<bool> =
                        rows.map(|(i, row)| i / sizes.room() != rank && came(row)).collect();
                    assert!(came == sizes.travelling(rank, &ids), "{what}: tokens that came");
                }
            }
            assert!(bits[0] == bits[1], "{what}: other CTAs change the result");
            if launch % 50 == 1 {
                for s in &sessions {
                    let tolerance = s.tolerance().unwrap_or_else(|e| panic!("{e}"));
                    for norms in s.norms().unwrap_or_else(|e| panic!("{e}")) {
                        assert!(tolerance.accepts(&norms), "{what}: {}", tolerance.beside(&norms));
                    }
                }
            }
        }
        println!("ok {LAUNCHES} launches on {ranks} ranks");
    }
}

/// What no launch can have leaves the memory beside the results as it was.
#[test]
fn memory_beside_the_results() {
    let _gpus = alone();
    let Some(world) = shared_world("memory_beside_the_results", 2) else { return };
    let k = kernel_on(LAYER, &world, [600, 2, 4, 6], 0);
    // By turns; two experts for all, which take more blocks than there are; and one that there is not.
    for (form, fails) in [(0, false), (1, true), (2, true)] {
        let instance = Instance::bind(&world, &k.source, &k.compiled, &options(0));
        let mut instance = instance.unwrap_or_else(|e| panic!("{e}"));
        let streams = Stream::per_rank(&world).unwrap_or_else(|e| panic!("{e}"));
        let refs: Vec<_> = streams.iter().map(Stream::as_ref).collect();
        let (mut all, mut args) = (Vec::new(), Vec::new());
        for rank in world.local_ranks() {
            let mut places = Vec::new();
            for (arg, shape) in
                k.source.tensors.iter().zip(&k.source.ranks[rank as usize].tensor_shapes)
            {
                let is_out = arg.direction == TensorDirection::Out;
                // As much before and behind it.
                let mut shape = shape.clone();
                shape[0] *= if is_out { 3 } else { 1 };
                let t = DeviceTensor::zeros(&world, rank, arg.dtype, &shape);
                let t = t.unwrap_or_else(|e| panic!("{e}"));
                if arg.dtype == DType::I32 {
                    let n = t.elements() as i32;
                    let id = |i: i32| match form {
                        0 => i % 4,
                        1 => i % 2,
                        _ => {
                            if (rank, i) == (1, n - 1) {
                                1 << 20
                            } else {
                                i % 4
                            }
                        }
                    };
                    let ids: Vec<i32> = (0..n).map(id).collect();
                    t.upload_i32(&ids).unwrap_or_else(|e| panic!("{e}"));
                }
                if is_out {
                    t.poison().unwrap_or_else(|e| panic!("{e}"));
                    let bytes = t.elements() / 3 * 2;
                    // SAFETY: the middle third of a tensor that outlives the launch.
                    places.push(unsafe { TensorRef::from_raw(t.as_arg().ptr() + bytes, bytes) });
                } else {
                    places.push(t.as_arg());
                }
                all.push((is_out, t));
            }
            args.push(RankTensors::from(places));
        }
        instance.launch(&refs, &args).unwrap_or_else(|e| panic!("{e}"));
        let ended = instance.synchronize();
        assert_eq!(ended.is_err(), fails, "{ended:?}");
        for (_, t) in all.iter().filter(|(is_out, _)| *is_out) {
            let values = t.download_f32().unwrap_or_else(|e| panic!("{e}"));
            let third = values.len() / 3;
            let beside = values[..third].iter().chain(&values[2 * third..]);
            assert!(beside.into_iter().all(|x| x.is_nan()), "form {form}");
            let written = values[third..2 * third].iter().filter(|x| !x.is_nan()).count();
            assert!(fails || written == third, "form {form}: {written} of {third}");
        }
    }
}
