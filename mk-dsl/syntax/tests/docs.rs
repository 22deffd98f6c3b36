//! The examples in `docs/dsl.md` are pipelines.

use mk_syntax::Program;

#[test]
fn the_documented_items_check() {
    let docs = include_str!("../../../docs/dsl.md");
    let blocks: Vec<&str> = docs.split("```").skip(1).step_by(2).collect();
    let items = blocks.iter().filter_map(|block| block.strip_prefix("text\n"));
    let items: Vec<&str> =
        items.filter(|b| b.starts_with("pub fn") || b.starts_with("// C")).collect();
    assert_eq!(items.len(), 2);
    for item in items {
        Program::parse(item).unwrap();
    }
}

/// The table of bare chains: `chain   name: placement   name: placement`.
#[test]
fn the_documented_placements_are_inferred() {
    let docs = include_str!("../../../docs/dsl.md");
    let (_, table) = docs.split_once("So:\n\n```text\n").unwrap();
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
    assert_eq!(n_placements, 13);
}
