//! Attention, of which there is no pipeline yet: the fixtures against softmax as it is written. Gated rows with
//! weights, which no pipeline of few operations has, against the operations.

use super::{
    algebra::{Algebra, Block, Numbers},
    attend::{Attention, Scored},
    budget::Budget,
    cells::{Cells, Lines},
    dims::Tensor,
    error::Result,
    launch::{self, Scaled},
    links,
    number::Pair,
    program::{swiglu, swiglu_grad},
    tile::Tile,
    unroll,
};
use mk_plan::{BufId, Entity, Mask, Plan, Points, Space, TableSet};

const RANKS: usize = 4;
const REGISTERS: &str = include_str!("../../../../tests/plans/ring_attention_registers.plan");
const SCRATCH: &str = include_str!("../../../../tests/plans/ring_attention_scratch.plan");

/// First row and rows of a rank.
fn rows(rank: usize) -> (i32, i32) {
    let at = |rank: usize| (rank as i32 * 40).min(150);
    (at(rank), at(rank + 1) - at(rank))
}

/// An element of `q`, `k` or `v`, by its place in the scaled whole.
fn input(numbers: &mut Numbers, buffer: usize, at: [usize; 3]) -> Pair {
    numbers.input(&Block { tensor: buffer, group: 0, rank: None, cells: Vec::new() }, &at)
}

/// Results of all rows, `[rows, heads, elements]`, as attention is defined: all keys at once.
fn defined(numbers: &mut Numbers, extents: [usize; 3], causal: bool) -> Vec<Pair> {
    let [m, heads, d] = extents;
    let mut out = vec![Pair::ZERO; m * heads * d];
    for h in 0..heads {
        let [q, k, v] = [0, 1, 2].map(|b| Tile {
            rows: m,
            cols: d,
            data: (0..m * d).map(|i| input(numbers, b, [i / d, h, i % d])).collect(),
        });
        let mut state = Attention::new(numbers, m, d);
        let scores = Scored::of(0x3e35_04f3, Mask::Full, None);
        state.step(numbers, [&q, &k, &v], scores, |i| 0..if causal { i + 1 } else { m });
        for (i, x) in state.output(numbers).into_iter().enumerate() {
            out[(i / d * heads + h) * d + i % d] = x;
        }
    }
    out
}

/// Elements of `o` that differ from the definition, and how many there are.
fn wrong(text: &str, causal: bool) -> Result<(usize, usize)> {
    let plan: Plan = text.parse().expect("a plan");
    plan.check_structure().expect("a plan");
    let tables = TableSet::new(&plan, |_, _| Vec::new());
    let unrolled = unroll::unroll(&Points::new(&plan, &tables), 1, unroll::Moved::Numbers)?;
    let mut lines = Lines::default();
    let whole = [150, 2, 32].map(|n| lines.line(n));
    let mut first = Vec::new();
    for (b, shapes) in unrolled.shapes.iter().enumerate() {
        for (rank, shape) in shapes.iter().enumerate() {
            let own: Vec<u32> = shape.iter().map(|n| lines.line(*n)).collect();
            first.push(own[0]);
            let (base, len) = rows(rank);
            // `q`, `k`, `v` and `o` are the first four.
            for (d, (at, n)) in [(base, len), (0, 2), (0, 32)].into_iter().enumerate() {
                if b < 4 {
                    lines.link((own[d], 0, n), (whole[d], at, n));
                }
            }
        }
    }
    let line_of = |slab: u32| {
        let slab = &unrolled.slabs[slab as usize];
        first[slab.buffer.index() * RANKS + slab.rank]
    };
    let sequence = lines.line(0);
    if causal {
        lines.link((sequence, 0, 150), (whole[0], 0, 150));
    }
    links::tasks(&mut lines, &unrolled, line_of, sequence)?;
    let budget = Budget::of(&unrolled);
    let cells = lines.cells(budget.cuts)?;
    let mut numbers = Numbers::new(1);
    let given = |numbers: &mut Numbers, slab: u32| {
        let slab = unrolled.slabs[slab as usize];
        (plan.buffers[slab.buffer].space == Space::In).then(|| {
            let (shape, places) = part(&cells, whole, slab.rank);
            let of = |at: &[usize; 3]| input(numbers, slab.buffer.index(), *at);
            Scaled::given(shape, places.iter().map(of).collect())
        })
    };
    let places = (line_of, sequence);
    let memory = launch::run(&mut numbers, &unrolled, &cells, places, budget.work, given)?;
    let extents = whole.map(|l| cells.extent(l));
    let want = defined(&mut numbers, extents, causal);
    let (mut wrong, mut all) = (0, 0);
    for (slab, memory) in unrolled.slabs.iter().zip(&memory) {
        if slab.buffer != BufId::new(3) {
            continue;
        }
        for (x, [i, h, e]) in memory.data.iter().zip(part(&cells, whole, slab.rank).1) {
            all += 1;
            wrong += usize::from(*x != want[(i * extents[1] + h) * extents[2] + e]);
        }
    }
    Ok((wrong, all))
}

/// Scaled extents of a rank's rows, and the places of its elements in the scaled whole.
fn part(cells: &Cells, whole: [u32; 3], rank: usize) -> (Vec<usize>, Vec<[usize; 3]>) {
    let (base, len) = rows(rank);
    let (from, to) = (cells.at(whole[0], base), cells.at(whole[0], base + len));
    let (heads, d) = (cells.extent(whole[1]), cells.extent(whole[2]));
    let row = move |i| (0..heads).flat_map(move |h| (0..d).map(move |e| [i, h, e]));
    (vec![to - from, heads, d], (from..to).flat_map(row).collect())
}

fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no `{from}`");
    text.replace(from, to)
}

/// Each rank's rows and those of each step at their places in the sequence, and later keys masked.
fn causal(text: &str, step: &str) -> String {
    let masked = changed(text, "mask=full", "mask=causal");
    let at = "position q rank * 40 + i * 16\n  position k (rank + 4 - s) % 4 * 40\n  ";
    changed(&masked, step, &format!("{step}\n  {at}"))
}

#[test]
fn rings_of_attention_are_softmax() {
    for (text, step) in
        [(REGISTERS, "inner s in 4"), (SCRATCH, "for s in 4\n  for h in 2\n  for i in 3")]
    {
        let (bad, all) = wrong(text, false).expect("is evaluated");
        assert!(bad == 0 && all > 50, "{bad} of {all}");
        let masked = causal(text, step);
        assert_eq!(wrong(&masked, true).expect("is evaluated").0, 0);
        // Each mask is wrong where the other is meant.
        assert!(wrong(&masked, false).expect("is evaluated").0 > 0);
        assert!(wrong(text, true).expect("is evaluated").0 > 0);
        for shifted in ["rank * 40 + i * 16 + 1", "rank * 40 + i * 15"] {
            let other = changed(&masked, "rank * 40 + i * 16\n", &format!("{shifted}\n"));
            assert!(wrong(&other, true).expect("is evaluated").0 > 0, "{shifted}");
        }
    }
}

#[test]
fn rings_that_read_elsewhere_are_not() {
    let rejected = |text: &str, from: &str, to: &str| {
        let found = wrong(&changed(text, from, to), false);
        assert!(!matches!(found, Ok((0, _))), "`{to}`: {found:?}");
    };
    rejected(
        SCRATCH,
        "access k: read buf4 @ rank [s : 1, 0 : 1",
        "access k: read buf4 @ rank [s : 1, 1 : 1",
    );
    rejected(
        SCRATCH,
        "access v: read buf4 @ rank [s : 1",
        "access v: read buf4 @ rank [max(s, 1) - 1 : 1",
    );
    rejected(
        SCRATCH,
        "access k: read buf4 @ rank [s : 1",
        "access k: read buf4 @ (rank + 1) % 4 [s : 1",
    );
    rejected(SCRATCH, "h : 1, 0 : 2] version s at start", "1 - h : 1, 0 : 2] version s at start");
    rejected(
        SCRATCH,
        "h : 1, 0 : 32] version s at start when 0 < s",
        "1 - h : 1, 0 : 32] version s at start when 0 < s",
    );
    rejected(SCRATCH, "version s at start when 0 < s", "version s at start when 1 < s");
    rejected(SCRATCH, "0x3e3504f3", "0x3e3504f4");
    rejected(REGISTERS, "0x3e3504f3", "0xbe3504f3");
    rejected(REGISTERS, "inner s in 4", "inner s in 3");
}

/// Six rows with weights, and elements of what their weights have as gradients, with nothing behind the last.
const GATED: &str = r#"
plan "gated"
mesh world=1
target sm_90a
buffer buf0 "u" in bf16[6, 40]
buffer buf1 "h" in bf16[6, 2, 40]
buffer buf2 "g" in f32[6, 1]
buffer buf3 "dh" out bf16[6, 2, 40]
buffer buf4 "y" out bf16[6, 40]
buffer buf5 "dg" scratch f32[6]
buffer buf6 "picked" out f32[4, 2]
role role0 compute ctas 1

family fam0 "grad" role0 {
  leaf swiglu_grad_tile
  for b in 2
  inner q in 4
  access src: read buf0 @ rank [b * 4 + q : 1, 0 : 40] at inner when b * 4 + q < 6
  access e0: read buf1 @ rank [b * 4 + q : 1, 0 : 2, 0 : 40] at inner when b * 4 + q < 6
  access w: read buf2 @ rank [b * 4 + q : 1, 0 : 1] at inner when b * 4 + q < 6
  access dst: write buf3 @ rank [b * 4 + q : 1, 0 : 2, 0 : 40] at inner when b * 4 + q < 6
  access e1: write buf4 @ rank [b * 4 + q : 1, 0 : 40] at inner when b * 4 + q < 6
  access e2: write buf5 @ rank [b * 4 + q : 1] at inner when b * 4 + q < 6
}

family fam1 "pick" role0 {
  leaf pick_tile
  for i in 1
  inner q in 4
  access src: read buf5 @ rank [q * 2 + j : 1] at inner each j in 2 when q * 2 + j < 6
  access dst: write buf6 @ rank [q : 1, j : 1] at inner each j in 2
}
"#;

#[test]
fn gated_rows_with_weights_are_what_operations_make() {
    let plan: Plan = GATED.parse().expect("a plan");
    plan.check_structure().expect("a plan");
    let tables = TableSet::new(&plan, |_, _| Vec::new());
    let unrolled = unroll::unroll(&Points::new(&plan, &tables), 1, unroll::Moved::Numbers);
    let unrolled = unrolled.expect("unrolls");
    let mut lines = Lines::default();
    let own: Vec<Vec<u32>> = unrolled
        .shapes
        .iter()
        .map(|shapes| shapes[0].iter().map(|n| lines.line(*n)).collect())
        .collect();
    let line_of = |slab: u32| own[unrolled.slabs[slab as usize].buffer.index()][0];
    let sequence = lines.line(0);
    links::tasks(&mut lines, &unrolled, line_of, sequence).expect("links");
    let budget = Budget::of(&unrolled);
    let cells = lines.cells(budget.cuts).expect("cells");
    let mut numbers = Numbers::new(1);
    let tensor = |numbers: &mut Numbers, b: usize| {
        let shape: Vec<usize> = own[b].iter().map(|l| cells.extent(*l)).collect();
        let of = |i| input(numbers, b, [i, 0, 0]);
        Tensor { data: (0..shape.iter().product()).map(of).collect(), shape }
    };
    let given = |numbers: &mut Numbers, slab: u32| {
        let b = unrolled.slabs[slab as usize].buffer;
        (plan.buffers[b].space == Space::In).then(|| {
            let made = tensor(numbers, b.index());
            Scaled::given(made.shape, made.data)
        })
    };
    let places = (line_of, sequence);
    let memory = launch::run(&mut numbers, &unrolled, &cells, places, budget.work, given);
    let memory = memory.expect("is evaluated");
    let [u, h, g] = [0, 1, 2].map(|b| tensor(&mut numbers, b));
    let (rows, columns) = (u.shape[0], u.shape[1]);
    assert!(rows == 6 && (2..40).contains(&columns) && h.shape == [6, 2, columns]);
    let weighed = |numbers: &mut Numbers, x: &Tensor<Pair>| {
        let of = |(i, x): (usize, &Pair)| numbers.mul(*x, g.data[i / columns]);
        Tensor { shape: x.shape.clone(), data: x.data.iter().enumerate().map(of).collect() }
    };
    let (d, y) = (weighed(&mut numbers, &u), swiglu(&mut numbers, &h));
    let sums = u.data.chunks(columns).zip(y.data.chunks(columns));
    let sums: Vec<Pair> = sums.map(|(u, y)| numbers.dot(u, y)).collect();
    let picked = [&sums[..], &[Pair::ZERO; 2]].concat();
    let want = [
        (3, swiglu_grad(&mut numbers, &d, &h).data),
        (4, weighed(&mut numbers, &y).data),
        (5, sums),
        (6, picked),
    ];
    for (b, want) in want {
        let slab = unrolled.slabs.iter().position(|s| s.buffer == BufId::new(b));
        assert_eq!(memory[slab.expect("memory")].data, want, "buf{b}");
    }
}
