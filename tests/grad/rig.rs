//! A pipeline and its backward, derived, cut into steps and run step by step on the CPU executor.

use crate::eval::eval;
use mk::{
    Bound, Program,
    build::Composition,
    cut::{Step, cut},
    emit,
    function::{Signature, Sizes},
    settings::Config,
    sim, simulate,
    syntax::{
        DType, Op, ValueId,
        grad::{Gradient, Input, Saves, Source, grad},
    },
    tune::{self, Conditions, Fuse},
};
use mk_harness::Layout;
use std::collections::BTreeMap;

/// Pseudo-random numbers that 16 bits hold exactly.
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bits = (self.0 >> 40) as f64 / (1u64 << 24) as f64;
        ((bits - 0.5) * 64.0).round() / 16.0
    }

    /// `n` of them, between -2 and 2, divided by a power of two near `by`.
    pub fn list(&mut self, n: usize, by: f64) -> Vec<f64> {
        let by = by.log2().round().exp2();
        (0..n).map(|_| self.next() / by).collect()
    }
}

/// Axes of a mesh and the ranks along each; none of ranks in a row.
pub type Mesh = Vec<(String, u32)>;

/// What a rank of `ranks` has of a value of this global shape.
fn layout(
    (program, mesh): (&Program, &Mesh),
    (id, shape): (ValueId, &[u64]),
    ranks: usize,
    rank: usize,
) -> Layout {
    let placement = &program.ty(id).expect("a value").placement;
    let of = |name: &String| {
        let at = mesh.iter().position(|(axis, _)| axis == name)?;
        let behind: usize = mesh[at + 1..].iter().map(|(_, n)| *n as usize).product();
        let size = mesh[at].1 as usize;
        Some((size, rank / behind % size))
    };
    let along = program.mesh_axes().iter().map(|name| of(name).unwrap_or((ranks, rank)));
    let along: Vec<(usize, usize)> = along.collect();
    let place = along.iter().fold(0, |place, (size, at)| place * size + at);
    let sizes: Vec<usize> = along.iter().map(|(size, _)| *size).collect();
    Layout::over(shape, placement, &sizes, place)
}

/// A pipeline with sizes.
pub struct Sized {
    pub program: Program,
    pub bound: Bound,
    pub mesh: Mesh,
}

impl Sized {
    pub fn new(program: Program, dims: &BTreeMap<String, u64>) -> Sized {
        let known = |n: &&String| program.symbol(n).is_some();
        let dims = dims.iter().filter(|(n, _)| known(n)).map(|(n, v)| (n.clone(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        Sized { program, bound, mesh: Mesh::new() }
    }

    pub fn shape(&self, id: ValueId) -> Vec<usize> {
        self.bound.shape(id).expect("a value").iter().map(|n| *n as usize).collect()
    }

    pub fn layout(&self, id: ValueId, ranks: usize, rank: usize) -> Layout {
        let shape = self.bound.shape(id).expect("a value");
        layout((&self.program, &self.mesh), (id, shape), ranks, rank)
    }

    pub fn eval(&self, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        eval(&self.program, &|id| self.shape(id), inputs)
    }

    /// What each rank holds of a value, of which `contributions` are the ranks' parts if it is a sum.
    pub fn scatter(&self, id: ValueId, contributions: &[Vec<f64>], ranks: usize) -> Vec<Vec<f64>> {
        let one = |rank: usize| {
            let whole = &contributions[rank % contributions.len()];
            let layout = self.layout(id, ranks, rank);
            let width: usize = self.shape(id)[1..].iter().product();
            let columns = layout.columns();
            let rows = layout.rows();
            rows.flat_map(|r| columns.iter().map(move |c| whole[r * width + c])).collect()
        };
        (0..ranks).map(one).collect()
    }
}

/// The derived programs with their sizes.
pub struct Derived {
    pub forward: Sized,
    pub backward: Option<Sized>,
    pub gradient: Gradient,
}

pub fn derive(program: &Program, dims: &BTreeMap<String, u64>, saves: Saves) -> Derived {
    let gradient = grad(program, None, saves).expect("has a backward");
    Derived {
        forward: Sized::new(gradient.forward.clone(), dims),
        backward: gradient.backward.clone().map(|b| Sized::new(b, dims)),
        gradient,
    }
}

impl Derived {
    /// On a mesh.
    pub fn on(mut self, mesh: &Mesh) -> Derived {
        self.forward.mesh = mesh.clone();
        self.backward.iter_mut().for_each(|b| b.mesh = mesh.clone());
        self
    }

    /// The gradients in f64, of whole values: `given` are those of results, `forward` all values of the forward.
    pub fn gradients(&self, given: &[Vec<f64>], forward: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let values = self.backward.as_ref().map(|b| {
            let inputs = self.gradient.inputs.iter().zip(b.program.tensors());
            let inputs: Vec<Vec<f64>> = inputs
                .map(|(input, tensor)| match *input {
                    Input::Gradient(i) => given[i].clone(),
                    Input::Parameter(i) | Input::Main(i) => forward[i].clone(),
                    Input::Saved(i) => forward[self.forward.program.results()[i].index()].clone(),
                    Input::Ones => vec![1.0; b.shape(tensor.id).iter().product()],
                })
                .collect();
            b.eval(&inputs)
        });
        let result = |i: usize| {
            let b = self.backward.as_ref().expect("a backward");
            values.as_ref().expect("a backward")[b.program.results()[i].index()].clone()
        };
        let one = |(_, source): &(usize, Source)| match *source {
            Source::Given(i) => given[i].clone(),
            Source::Result(i) | Source::Row(i) => result(i),
            Source::Rows(_) => unreachable!("no experts"),
        };
        self.gradient.gradients.iter().map(one).collect()
    }
}

pub type Held = BTreeMap<(usize, ValueId), Vec<f32>>;

/// Runs a program step by step; `held` has the parameters, by rank, and then all results of steps.
pub fn run_steps(sized: &Sized, ranks: usize, held: &mut Held, counts: &mut [usize; 2]) {
    let steps = cut(&sized.program, &sized.bound, ranks as u32, &sized.mesh).expect("can be cut");
    for step in &steps {
        let is_view = step.program.nodes().iter().any(|n| n.op == Op::View);
        if !step.is_kernel && !is_view {
            println!("TORCH {}", step.text.replace("\n", " "));
        }
        if !is_view {
            counts[usize::from(!step.is_kernel)] += 1;
        }
        run_step(sized, step, ranks, held);
    }
}

fn run_step(sized: &Sized, step: &Step, ranks: usize, held: &mut Held) {
    if !step.is_kernel {
        for rank in 0..ranks {
            let inputs = step.inputs.iter().map(|id| held[&(rank, *id)].clone());
            let inputs: Vec<Vec<f64>> =
                inputs.map(|list| list.into_iter().map(f64::from).collect()).collect();
            // Values of the step, as values of the pipeline.
            let local = |id: ValueId| {
                let dims: BTreeMap<String, u64> = sized_symbols(sized);
                let made =
                    step.program.bind(&keep(&step.program, dims), &BTreeMap::new()).expect("binds");
                let shape = made.shape(id).expect("a value").to_vec();
                let on = (&step.program, &sized.mesh);
                let shape = layout(on, (id, &shape), ranks, rank).shape();
                shape.into_iter().map(|n| n as usize).collect()
            };
            let values = eval(&step.program, &local, &inputs);
            for (id, of) in step.results.iter().zip(step.program.results()) {
                let dtype = step.program.ty(*of).expect("a value").dtype;
                let list = values[of.index()].iter().map(|x| round(dtype, *x)).collect();
                held.insert((rank, *id), list);
            }
        }
        return;
    }
    let (n_ranks, mesh) = (ranks as u32, &sized.mesh);
    let signature = Signature::on(step.program.clone(), n_ranks, mesh, Sizes::default());
    let signature = signature.expect("a signature");
    let shapes: BTreeMap<String, Vec<u64>> = step
        .inputs
        .iter()
        .zip(step.program.tensors())
        .map(|(id, tensor)| {
            let mut shape = sized.bound.shape(*id).expect("a value").to_vec();
            if step.flat.contains(id) {
                let last = shape.pop().expect("columns");
                *shape.last_mut().expect("dimensions") *= last;
            }
            (tensor.name.clone(), shape)
        })
        .collect();
    let bound = step.program.bind(&BTreeMap::new(), &shapes).expect("binds");
    let config = Config { ranks: n_ranks, mesh: mesh.clone(), ..Config::default() };
    let terms = Conditions { config: &config, fuse: Fuse::Always, overlap: false, search: None };
    let choice = tune::settle(&step.program, &bound, &terms);
    let made = Composition::new(&step.program, &bound, &choice, emit::Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", step.text));
    let inputs: Vec<Vec<Vec<f32>>> = (0..ranks)
        .map(|rank| step.inputs.iter().map(|id| held[&(rank, *id)].clone()).collect())
        .collect();
    let outputs = simulate(&signature, &bound, &made, &inputs, &sim::Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", step.text));
    for (rank, list) in outputs.into_iter().enumerate() {
        for (id, values) in step.results.iter().zip(list) {
            held.insert((rank, *id), values);
        }
    }
}

fn sized_symbols(sized: &Sized) -> BTreeMap<String, u64> {
    let symbols = sized.program.symbols().iter().zip(sized.bound.sizes());
    symbols.map(|(s, n)| (s.name.clone(), *n)).collect()
}

fn keep(program: &Program, dims: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    dims.into_iter().filter(|(n, _)| program.symbol(n).is_some()).collect()
}

pub fn round(dtype: DType, x: f64) -> f32 {
    dtype.round(x as f32)
}
