//! `cargo xtask sass OLD [NEW]`: whether two revisions generate the same machine code.
//!
//! A change of names, of comments or of the order of definitions leaves the text of a kernel different and its
//! instructions equal. Kernels whose text differs in more than comments are compiled to sm_90a by NVRTC as the JIT does
//! it, disassembled and compared instruction by instruction. No GPU is needed.

mod compile;
mod listing;
mod side;
mod strip;

use crate::run::Result;
use clap::Args;
use listing::Listing;
use side::{Kernels, Side};
use std::{collections::BTreeSet, fmt};

/// What to compare.
#[derive(Args)]
pub struct SassArgs {
    /// A git revision, `OLD..NEW`, or a folder of .cu files
    old: String,
    /// The same [default: the working tree]
    new: Option<String>,
    /// Only kernels whose name contains this (repeatable)
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Every pipeline and variant of the tests, also those without a CUDA snapshot
    #[arg(long)]
    all: bool,
    /// A kernel that NEW no longer has, and need not have (repeatable)
    #[arg(long, value_name = "NAME")]
    removed: Vec<String>,
}

/// How the kernels of one name compare.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The text is the same but for comments.
    SameText,
    /// The text differs, the instructions do not.
    SameCode {
        instructions: usize,
    },
    /// The first difference.
    Differs(String),
    OnlyOld,
    OnlyNew,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::SameText => write!(f, "equal (text)"),
            Outcome::SameCode { instructions } => write!(f, "equal ({instructions} instructions)"),
            Outcome::Differs(how) => write!(f, "DIFFERS: {how}"),
            Outcome::OnlyOld => write!(f, "only in OLD"),
            Outcome::OnlyNew => write!(f, "only in NEW"),
        }
    }
}

/// Prints a table, a line for each kernel.
///
/// # Errors
/// Kernels that differ or are gone; revisions that do not build; kernels that do not compile.
pub fn sass(args: &SassArgs) -> Result<()> {
    crate::setup::setup()?;
    let (old, new) = match (args.old.split_once(".."), &args.new) {
        (Some(_), Some(_)) => return Err(format!("{} names both sides already", args.old)),
        (Some((old, "")), None) => (Side::of(old)?, Side::Tree(side::working_tree())),
        (Some((old, new)), None) => (Side::of(old)?, Side::of(new)?),
        (None, Some(new)) => (Side::of(&args.old)?, Side::of(new)?),
        (None, None) => (Side::of(&args.old)?, Side::Tree(side::working_tree())),
    };
    let mut snapshots: BTreeSet<String> = old.snapshots()?;
    snapshots.extend(new.snapshots()?);
    let named = |name: &String| args.only.is_empty() || args.only.iter().any(|t| name.contains(t));
    let all = args.all || snapshots.is_empty();
    let keep = |mut kernels: Kernels| {
        kernels.retain(|name, _| named(name) && (all || snapshots.contains(name)));
        kernels
    };
    let (mut old, mut new) = (keep(old.kernels()?), keep(new.kernels()?));
    for text in old.values_mut().chain(new.values_mut()) {
        *text = strip::without_comments(text);
    }
    let table = compare(&old, &new)?;
    if table.is_empty() {
        return Err("no kernel has such a name".into());
    }
    report(&table, &args.removed)
}

/// The outcome for every name, in order.
fn compare(old: &Kernels, new: &Kernels) -> Result<Vec<(String, Outcome)>> {
    let differ: Vec<_> = old
        .iter()
        .filter_map(|(name, text)| new.get(name).map(|other| (text, other)))
        .filter(|(text, other)| text != other)
        .flat_map(|(text, other)| [text.as_str(), other.as_str()])
        .collect();
    let listings = compile::listings(&differ)?;
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let outcome = |name: &String| match (old.get(name), new.get(name)) {
        (Some(_), None) => Outcome::OnlyOld,
        (None, _) => Outcome::OnlyNew,
        (Some(text), Some(other)) if text == other => Outcome::SameText,
        (Some(text), Some(other)) => {
            let (one, two) = (&listings[text.as_str()], &listings[other.as_str()]);
            difference(one, two)
        }
    };
    Ok(names.into_iter().map(|name| (name.clone(), outcome(name))).collect())
}

fn difference(old: &Listing, new: &Listing) -> Outcome {
    match old.first_difference(new) {
        None => Outcome::SameCode { instructions: old.instructions() },
        Some(how) => Outcome::Differs(how),
    }
}

fn report(table: &[(String, Outcome)], removed: &[String]) -> Result<()> {
    let width = table.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, outcome) in table {
        println!("{name:width$}  {outcome}");
    }
    let count = |is: fn(&Outcome) -> bool| table.iter().filter(|(_, o)| is(o)).count();
    let equal = count(|o| matches!(o, Outcome::SameText | Outcome::SameCode { .. }));
    let differ = count(|o| matches!(o, Outcome::Differs(_)));
    let added = count(|o| *o == Outcome::OnlyNew);
    let gone = count(|o| *o == Outcome::OnlyOld);
    println!("{equal} equal, {differ} differ, {gone} only in OLD, {added} only in NEW");
    let unexpected: Vec<_> = table
        .iter()
        .filter(|(name, o)| *o == Outcome::OnlyOld && !removed.contains(name))
        .map(|(name, _)| name.as_str())
        .collect();
    match (differ, unexpected.as_slice()) {
        (0, []) => Ok(()),
        (0, names) => Err(format!(
            "NEW has no {}; if that is meant, say `--removed NAME` for each",
            names.join(", ")
        )),
        (n, _) => Err(format!("the machine code of {n} kernels differs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(of: &[(&str, &str)]) -> Kernels {
        of.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    }

    #[test]
    fn equal_texts_are_not_compiled() {
        let old = kernels(&[("a", "x"), ("b", "x")]);
        let new = kernels(&[("a", "x"), ("c", "x")]);
        let table = compare(&old, &new).expect("nothing is compiled");
        let outcomes: Vec<_> = table.into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(outcomes, [Outcome::SameText, Outcome::OnlyOld, Outcome::OnlyNew]);
    }

    #[test]
    fn a_kernel_that_is_gone_is_an_error_unless_it_was_removed() {
        let table = [("a".to_string(), Outcome::OnlyOld), ("b".to_string(), Outcome::OnlyNew)];
        let error = report(&table, &[]).expect_err("a is gone");
        assert!(error.contains("NEW has no a"), "{error}");
        report(&table, &["a".to_string()]).expect("it may be gone");
        report(&[("a".to_string(), Outcome::Differs("x".into()))], &[]).expect_err("differs");
    }
}
