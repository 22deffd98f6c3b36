//! The template engine, with the templates of all leaves.

use super::{arch::Arch, error::Result};
use minijinja::{Environment, UndefinedBehavior, syntax::SyntaxConfig};

const KERNEL: &str = include_str!("../../templates/kernel.cu.j2");

/// Jinja's own delimiters clash with inline PTX and with CUDA's attributes.
pub(super) fn environment(arch: &Arch) -> Result<Environment<'static>> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder()
            .block_delimiters("@%", "%@")
            .variable_delimiters("@{", "}@")
            .comment_delimiters("@#", "#@")
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true)
            .build()?,
    );
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.add_template("kernel", KERNEL)?;
    for (name, text) in arch.all_leaves().flat_map(|l| l.texts) {
        env.add_template(name, text)?;
    }
    Ok(env)
}
