//! `mk grad`.

use crate::{
    failure::{Failure, Kind, Result},
    options::PipelineArgs,
    output::print,
    pipeline::{bind, parse},
};
use mk::{
    Bound, Program, cut,
    syntax::{
        Dim, Excerpt, Op,
        grad::{Gradient, Input, Keep, Saves, Source, grad},
    },
};
use std::collections::BTreeMap;

/// Options of `mk grad`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// What forward saves, beside values before an activation: gathered inputs and activations (all), activations
    /// (shard: inputs are gathered again), gathered inputs (pre: activations are computed again), or neither (least)
    #[arg(long, value_enum, default_value_t = Save::All)]
    save: Save,
    /// The parameters of which gradients are wanted, by name; all unless given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    wanted: Vec<String>,
    /// Print one text for each kernel, in the order of launches, instead of one for all; needs sizes
    #[arg(long)]
    kernels: bool,
}

/// What forward saves.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Save {
    All,
    Shard,
    Pre,
    Least,
}

/// Prints the texts of forward and backward, with what the backward's parameters and results are.
pub fn run(args: &Args) -> Result<()> {
    let (program, _) = parse(&args.pipeline)?;
    let program = &program;
    let again = |yes| if yes { Keep::Again } else { Keep::Saved };
    let saves = Saves {
        gathered: again(matches!(args.save, Save::Shard | Save::Least)),
        activations: again(matches!(args.save, Save::Pre | Save::Least)),
    };
    let position = |name: &String| {
        program.tensors().iter().position(|t| t.name == *name).ok_or_else(|| {
            let names: Vec<_> = program.tensors().iter().map(|t| t.name.as_str()).collect();
            let help = format!("use {}", names.join(", "));
            Failure::usage(format!("there is no parameter `{name}`"), help)
        })
    };
    let wanted: Vec<usize> = args.wanted.iter().map(position).collect::<Result<_, _>>()?;
    let wanted = (!wanted.is_empty()).then_some(wanted.as_slice());
    let made =
        grad(program, wanted, saves).map_err(|e| Failure::new(Kind::Unsupported, e.to_string()))?;
    let bound = match (args.kernels, bind(&args.pipeline)) {
        (true, bound) => Some(bound?),
        // Without sizes there are none to be handed on.
        (false, bound) => bound.ok(),
    };
    let sizes = bound.map_or_else(BTreeMap::new, |of| sizes(program, &of.bound));
    let mut shown = sizes.clone();
    let mut texts = vec![text(&made.forward, &sizes, &mut shown, args)?];
    if let Some(backward) = &made.backward {
        texts.push(text(backward, &sizes, &mut shown, args)?);
    }
    let list: Vec<_> = shown.iter().map(|(name, n)| format!("{name} = {n}")).collect();
    let head = match list.is_empty() {
        true => String::new(),
        false => format!("// {}\n\n", list.join(", ")),
    };
    print(format_args!("{head}{}\n{}\n", texts.join("\n"), legend(program, &made)))
}

/// The symbols of the pipeline; those of derived ones are the same.
fn sizes(program: &Program, bound: &Bound) -> BTreeMap<String, u64> {
    let symbols = program.symbols().iter().zip(bound.sizes());
    symbols.map(|(s, n)| (s.name.clone(), *n)).collect()
}

/// A program, or its kernels. Of kernels, `shown` gets the columns of `[M, G, N]` that they take as a matrix.
fn text(
    program: &Program,
    sizes: &BTreeMap<String, u64>,
    shown: &mut BTreeMap<String, u64>,
    args: &Args,
) -> Result<String> {
    if !args.kernels {
        return Ok(Excerpt::whole(program).text());
    }
    let known = sizes.iter().filter(|(name, _)| program.symbol(name).is_some());
    let known = known.map(|(name, n)| (name.clone(), *n)).collect();
    let bound = program
        .bind(&known, &BTreeMap::new())
        .map_err(|e| Failure::new(Kind::Unsupported, e.to_string()))?;
    let mesh = args.pipeline.axes();
    let over = (args.pipeline.ranks(), args.pipeline.nodes.unwrap_or(1));
    let steps = cut::cut_over(program, &bound, over, &mesh)
        .map_err(|e| Failure::new(Kind::Unsupported, e.to_string()))?;
    for step in steps.iter().filter(|s| s.is_kernel) {
        for (tensor, id) in step.program.tensors().iter().zip(&step.inputs) {
            let flat = program.ty(*id).filter(|_| step.flat.contains(id));
            if let (Some(Dim::Sym(name)), Some(ty)) = (tensor.ty.dims.last(), flat) {
                let sizes = ty.dims.iter().rev().take(2).map(|dim| match dim {
                    Dim::Sym(symbol) => bound.sizes()[symbol.index()],
                    Dim::Lit(n) => *n,
                });
                shown.insert(step.program.symbols()[name.index()].name.clone(), sizes.product());
            }
        }
    }
    let one = |step: &cut::Step| match step.is_kernel {
        true => step.text.clone(),
        false => {
            let lines: Vec<_> = step.text.lines().map(|line| format!("// {line}")).collect();
            let view = step.program.nodes().iter().any(|n| n.op == Op::View);
            let what = if view { "the same memory" } else { "element by element" };
            format!("// Between kernels, {what}:\n{}\n", lines.join("\n"))
        }
    };
    Ok(steps.iter().map(one).collect::<Vec<_>>().join("\n"))
}

/// What parameters and results of the backward are, a line each.
fn legend(program: &Program, made: &Gradient) -> String {
    let result = |i: usize| program.result_names().get(i).map_or("?", String::as_str);
    let mut lines = Vec::new();
    let tensors = made.backward.iter().flat_map(|b| b.tensors());
    for (input, tensor) in made.inputs.iter().zip(tensors) {
        let what = match *input {
            Input::Gradient(i) => format!("the gradient of `{}`", result(i)),
            Input::Parameter(_) => continue,
            Input::Saved(i) => format!("result {i} of forward"),
            Input::Ones => "ones".into(),
            Input::Main(i) => format!("the f32 gradient of {} so far", program.tensors()[i].name),
        };
        lines.push(format!("// {}: {what}", tensor.name));
    }
    for (parameter, source) in &made.gradients {
        let name = program.tensors().get(*parameter).map_or("?", |t| t.name.as_str());
        lines.push(match *source {
            Source::Result(i) => format!("// gradient of `{name}`: result {i} of backward"),
            Source::Row(i) => {
                format!("// gradient of `{name}`: row 0 of result {i} of backward")
            }
            Source::Rows(i) => {
                format!("// gradient of `{name}`: row 0 of each matrix of result {i} of backward")
            }
            Source::Given(i) => format!("// gradient of `{name}`: that of `{}`", result(i)),
        });
    }
    lines.join("\n")
}
