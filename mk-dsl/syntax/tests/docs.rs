//! The examples in `docs/dsl.md` are pipelines. (Those in Rust are doc tests of the crate `mk`.)

use mk_syntax::Program;

const DOCS: &str = include_str!("../../../docs/dsl.md");

/// The fenced blocks: what follows the fence, and the text.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let fenced = DOCS.split("```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').unwrap()).collect()
}

#[test]
fn every_documented_pipeline_checks() {
    let pipelines = blocks().into_iter().filter(|(language, _)| *language == "mk");
    let mut n_pipelines = 0;
    for (_, text) in pipelines {
        Program::parse(text).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}"));
        n_pipelines += 1;
    }
    assert!(n_pipelines >= 15, "{n_pipelines}");
}

/// Every operation of the language has an example.
#[test]
fn every_operation_has_an_example() {
    let pipelines = blocks().into_iter().filter(|(language, _)| *language == "mk");
    let pipelines: Vec<Program> =
        pipelines.map(|(_, text)| Program::parse(text).unwrap()).collect();
    for op in [
        "gather",
        "gemm",
        "reduce_scatter",
        "all_reduce",
        "bias",
        "gelu",
        "silu",
        "relu",
        "swiglu",
        "mul",
        "add",
        "scale",
        "cast",
    ] {
        let has = |p: &Program| p.nodes().iter().any(|node| node.op.name() == op);
        assert!(pipelines.iter().any(has), "no example of {op}");
    }
}

/// The block after a wrong pipeline is what is said of it.
#[test]
fn documented_mistakes_are_reported_so() {
    let blocks = blocks();
    let mut n_mistakes = 0;
    for pair in blocks.windows(2) {
        if let [("mk-wrong", text), (_, said)] = pair {
            let mistakes = Program::parse(text).unwrap_err().to_string();
            assert_eq!(mistakes, said.trim_end());
            n_mistakes += 1;
        }
    }
    assert_eq!(n_mistakes, 1);
}

/// The table of bare chains: `chain   name: placement   name: placement`.
#[test]
fn the_documented_placements_are_inferred() {
    let (_, table) = DOCS.split_once("So:\n\n```text\n").unwrap();
    let (table, _) = table.split_once("```").unwrap();
    let mut program: Option<Program> = None;
    let mut n_placements = 0;
    for column in table.split('\n').flat_map(|line| line.split("  ")) {
        let column = column.trim();
        if let Some((name, placement)) = column.split_once(": ") {
            let program = program.as_ref().unwrap();
            let ty = program.show_type(&program.tensor(name).unwrap().ty);
            assert!(ty.ends_with(&format!("] @ {placement}")), "{name}: {placement}, found {ty}");
            n_placements += 1;
        } else if !column.is_empty() {
            program = Some(Program::parse(column).unwrap());
        }
    }
    assert_eq!(n_placements, 18);
}
