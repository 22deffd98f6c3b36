//! Many launches of the layer of experts and of its gradients, each with another routing: tables that kernels leave
//! behind, tokens that travel, and bits.

use crate::{
    experts::{FORMS, Kernel, LAYER, WEIGHED, WEIGHTS, kernel_on, options},
    rig::{alone, in_parallel},
    shared_world,
};
use mk::{
    abi::{DType, TensorDirection},
    plan::{RoutePart, Routing},
    runtime::{DeviceTensor, Instance, RankTensors, Stream, TensorRef, World},
};
use mk_harness::{Case, Held, gpu::Session};

/// Gradients of experts' matrices.
const MATRICES: &str =
    "fn matrices(ids: i32[T, K] @ shard(0), a: bf16[R, F] @ shard(0), b: bf16[R, H] @ shard(0)) {
    a -> ragged(ids) -> grouped_wgrad(b, experts = E)
}";

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

    /// Bits of all results, but for rows of experts that no token is.
    fn bits_of_rows(&self, held: Vec<Held>) -> Vec<Vec<u32>> {
        let ids = held.iter().filter(|h| h.input && h.name == "ids");
        let ids: Vec<i32> = ids.flat_map(|h| h.values.iter().map(|x| *x as i32)).collect();
        let (own, rows) = (self.all[2] as usize / self.ranks, self.all[3] as usize * 128);
        let of = |h: Held| {
            let mut there = vec![h.shape.first() != Some(&(rows as u64)); h.shape[0] as usize];
            let mut first = 0;
            for n in self.routing(&ids).table(RoutePart::Counts, h.rank, own) {
                there.iter_mut().skip(first).take(n as usize).for_each(|there| *there = true);
                first += (n as usize).next_multiple_of(128);
            }
            let columns = (h.values.len() / there.len().max(1)).max(1);
            let rows = h.values.chunks(columns).zip(there).filter(|(_, there)| *there);
            rows.flat_map(|(row, _)| row.iter().map(|x| x.to_bits())).collect()
        };
        held.into_iter().filter(|h| !h.input).map(of).collect()
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

/// Worlds that share GPUs, with sizes for them; none where there is no GPU.
fn worlds(test: &str) -> Option<Vec<(World, Sizes)>> {
    let each = [(1u64, 8, 16), (2, 2, 8), (3, 3, 9), (4, 8, 32), (8, 2, 16)];
    let world = |(ranks, slots, experts): (u64, u64, u64)| {
        let world = shared_world(test, ranks as usize)?;
        let (tokens, own) = (70 * ranks + 1, experts / ranks);
        let blocks = tokens * slots.min(own) / 128 + own + 1;
        Some((world, Sizes { ranks: ranks as usize, all: [tokens, slots, experts, blocks] }))
    };
    each.into_iter().map(world).collect()
}

/// Two kernels of a text with other CTAs, for each world.
fn two_of_each<'c>(
    text: &str,
    cases: &'c [(World, Sizes)],
) -> Vec<(&'c (World, Sizes), Vec<Kernel>)> {
    let each: Vec<_> = cases.iter().flat_map(|case| [(case, 0), (case, 3)]).collect();
    let mut kernels =
        in_parallel(&each, |((world, s), free)| kernel_on(text, world, s.all, *free)).into_iter();
    cases.iter().map(|case| (case, kernels.by_ref().take(2).collect())).collect()
}

/// The second with delays.
fn sessions<'k>(kernels: &'k [Kernel], world: &World, ranks: usize) -> Vec<Session<'k>> {
    let session = |(k, chaos): (&'k Kernel, u64)| {
        let case = Case { program: &k.program, bound: &k.bound, ranks };
        let s = Session::bind(world, case, &k.source, &k.compiled, &options(chaos), 5);
        s.unwrap_or_else(|e| panic!("{e}"))
    };
    kernels.iter().zip([0, 20]).map(session).collect()
}

/// Launches, captured from the second launch on, and gives what ranks hold then.
fn launched(s: &mut Session<'_>, launch: u64, what: &str) -> Vec<Held> {
    s.route(FORMS[launch as usize % FORMS.len()]);
    let mut step = || {
        s.fill(launch)?;
        if launch == 2 {
            s.capture()?;
        }
        s.launch()?;
        s.held().collect::<Result<Vec<_>, _>>()
    };
    step().unwrap_or_else(|e| panic!("{what}: {e}"))
}

fn accepted(sessions: &[Session<'_>], what: &str) {
    for s in sessions {
        let tolerance = s.tolerance().unwrap_or_else(|e| panic!("{e}"));
        for norms in s.norms().unwrap_or_else(|e| panic!("{e}")) {
            assert!(tolerance.accepts(&norms), "{what}: {}", tolerance.beside(&norms));
        }
    }
}

/// Gradients of rows, weights and matrices: captured, with delays, on other CTAs the same bits.
#[test]
fn two_hundred_gradients() {
    let _gpus = alone();
    let Some(cases) = worlds("two_hundred_gradients") else { return };
    for text in [WEIGHED, WEIGHTS, MATRICES] {
        for ((world, sizes), kernels) in two_of_each(text, &cases) {
            let ranks = sizes.ranks;
            let mut sessions = sessions(&kernels, world, ranks);
            let name = kernels[0].program.name();
            for launch in 1..=LAUNCHES {
                let what = format!("{name} on {ranks} ranks, launch {launch}");
                let mut held = sessions.iter_mut().map(|s| launched(s, launch, &what));
                let bits: Vec<_> = held.by_ref().map(|held| sizes.bits_of_rows(held)).collect();
                assert!(bits[0] == bits[1], "{what}: other CTAs change the result");
                if launch % 50 == 1 {
                    accepted(&sessions, &what);
                }
            }
            println!("ok {LAUNCHES} launches of {name} on {ranks} ranks");
        }
    }
}

/// Rows that tokens are differ where one bit does; those of none may.
#[test]
fn rows_of_no_token_are_not_compared() {
    // One expert, which two of the two blocks' rows belong to.
    let sizes = Sizes { ranks: 1, all: [2, 1, 1, 2] };
    let of = |name: &str, input, shape: &[u64], values| Held {
        name: name.into(),
        rank: 0,
        input,
        shape: shape.to_vec(),
        dtype: DType::F32,
        values,
    };
    let bits = |changed: usize| {
        let mut rows = vec![1.0; 512];
        rows[changed] = 2.0;
        let ids = of("ids", true, &[2, 1], vec![0.0; 2]);
        sizes.bits_of_rows(vec![ids, of("rows", false, &[256, 2], rows)])
    };
    assert_eq!(bits(4), bits(511));
    assert_ne!(bits(3), bits(511));
}

/// Two kernels with other CTAs, launched side by side: captured, with delays, no memory reset between launches.
#[test]
fn two_hundred_routings() {
    let _gpus = alone();
    let Some(cases) = worlds("two_hundred_routings") else { return };
    for ((world, sizes), kernels) in two_of_each(LAYER, &cases) {
        let ranks = sizes.ranks;
        let mut sessions = sessions(&kernels, world, ranks);
        for launch in 1..=LAUNCHES {
            let what = format!("{ranks} ranks, launch {launch}");
            let mut bits = Vec::new();
            for (s, k) in sessions.iter_mut().zip(&kernels) {
                let (ids, results) = sorted(launched(s, launch, &what).into_iter());
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
                accepted(&sessions, &what);
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
