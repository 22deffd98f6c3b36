//! CUDA text to listings, each text once: what was compiled is kept in `target/sass`.

use super::listing::Listing;
use crate::{
    run::{Result, cargo, read, step, target},
    setup,
};
use std::{
    collections::{BTreeSet, HashMap},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// The machine code of every text.
pub fn listings<'a>(texts: &[&'a str]) -> Result<HashMap<&'a str, Listing>> {
    if texts.is_empty() {
        return Ok(HashMap::new());
    }
    let folder = target().join("sass/code").join(setup::versions());
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut units = Vec::new();
    for text in texts.iter().collect::<BTreeSet<_>>() {
        let source = folder.join(format!("{:016x}.cu", hash(text)));
        units.push((*text, source));
    }
    let mut missing = Vec::new();
    for (text, source) in &units {
        let known = source.with_extension("sass").exists()
            && fs::read_to_string(source).is_ok_and(|t| t == *text);
        if !known {
            fs::write(source, text).map_err(|e| format!("{}: {e}", source.display()))?;
            missing.push(source.clone());
        }
    }
    if !missing.is_empty() {
        disassemble(&folder, &missing)?;
    }
    let read = |(text, source): (&'a str, PathBuf)| {
        let path = source.with_extension("sass");
        let sass = read(&path)?;
        Ok((text, Listing::parse(&sass)))
    };
    units.into_iter().map(read).collect()
}

fn disassemble(folder: &Path, sources: &[PathBuf]) -> Result<()> {
    let example = ["run", "--quiet", "--package", "mk-runtime", "--example", "disassemble", "--"];
    let mut command = cargo(&example);
    step(&format!("compiling {} kernels", sources.len()), command.arg(folder).args(sources))
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
