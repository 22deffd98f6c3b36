//! The reference as pages: rustdoc, and the Python module by pydoc, behind one index.

use crate::{
    python,
    run::{Result, cargo, root, step, target},
};
use std::{fs, path::Path, process::Command};

/// Modules of the Python reference that need nothing, and those that need torch.
const MODULES: &[&str] = &["mk"];
const WITH_TORCH: &[&str] = &["mk.nn", "mk.inductor"];

/// Builds `target/site/index.html` with what it links to.
pub fn site() -> Result<()> {
    let site = target().join("site");
    python::fresh(&site)?;
    step("the Rust reference", &mut cargo(&["doc", "--quiet", "--workspace", "--no-deps"]))?;
    python::copy(&target().join("doc"), &site.join("rust"))?;
    let package = python::package()?;
    let pages = site.join("python");
    python::fresh(&pages)?;
    let venv = target().join("torch-venv/bin/python3");
    let with_torch = venv.exists();
    let interpreter = if with_torch { venv.as_path() } else { Path::new("python3") };
    let modules: Vec<&str> = match with_torch {
        true => [MODULES, WITH_TORCH].concat(),
        false => MODULES.to_vec(),
    };
    let mut pydoc = Command::new(interpreter);
    pydoc.args(["-m", "pydoc", "-w"]).args(&modules);
    pydoc.env("PYTHONPATH", package).current_dir(&pages);
    step("the Python reference", &mut pydoc)?;
    let item = |(name, place): (&str, String)| format!("<li><a href=\"{place}\">{name}</a></li>\n");
    let rust = [("mk, the crate", "rust/mk/index.html".to_string())].into_iter();
    let all = rust.chain(modules.iter().map(|m| (*m, format!("python/{m}.html"))));
    let page = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>mk: reference</title>\n<h1>mk: \
         reference</h1>\n<ul>\n{}</ul>\n",
        all.map(item).collect::<String>()
    );
    let index = site.join("index.html");
    for place in page.split("href=\"").skip(1).filter_map(|p| p.split('"').next()) {
        if !site.join(place).exists() {
            return Err(format!("{} links to {place}, which was not made", index.display()));
        }
    }
    fs::write(&index, page).map_err(|e| format!("{}: {e}", index.display()))?;
    if !with_torch {
        eprintln!(
            "    without torch: no pages of {}; `cargo xtask torch` installs it",
            WITH_TORCH.join(", ")
        );
    }
    println!("{}", index.strip_prefix(root()).unwrap_or(&index).display());
    Ok(())
}
