//! One side of a comparison: a revision, the working tree, or a folder.

use crate::run::{Result, cargo, entries, read, root, step, target};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// CUDA texts by name.
pub type Kernels = BTreeMap<String, String>;

/// What writes the kernels of a revision that has no such example yet.
const EXAMPLE: &str = include_str!("../../../mk-codegen/examples/kernels.rs");
const EXAMPLE_PATH: &str = "mk-codegen/examples/kernels.rs";
const SNAPSHOTS: &str = "mk-codegen/tests/snapshots";

/// Where kernels come from.
pub enum Side {
    /// Complete CUDA files.
    Folder(PathBuf),
    /// A checkout of the repository.
    Tree(Tree),
}

/// A checkout, and where what it leaves is kept.
pub struct Tree {
    root: PathBuf,
    out: PathBuf,
    /// A revision does not change: what it left the last time is right.
    fixed: bool,
}

/// The checkout that this command runs in.
pub fn working_tree() -> Tree {
    Tree { root: root(), out: target().join("sass/working"), fixed: false }
}

impl Side {
    /// A folder if there is one of that name, else a git revision.
    pub fn of(name: &str) -> Result<Side> {
        let folder = Path::new(name);
        if folder.is_dir() {
            return Ok(Side::Folder(folder.to_path_buf()));
        }
        revision(name).map(Side::Tree)
    }

    /// Every kernel of this side.
    pub fn kernels(&self) -> Result<Kernels> {
        match self {
            Side::Folder(folder) => cuda_files(folder),
            Side::Tree(tree) => tree.kernels(),
        }
    }

    /// Names of the kernels that have a snapshot; none for a folder.
    pub fn snapshots(&self) -> Result<BTreeSet<String>> {
        let Side::Tree(tree) = self else { return Ok(BTreeSet::new()) };
        let folder = tree.root.join(SNAPSHOTS);
        let names = entries(&folder)?;
        let name = |path: &PathBuf| {
            let file = path.file_name()?.to_string_lossy().into_owned();
            Some(file.strip_suffix(".snap")?.split_once("__cuda_")?.1.to_string())
        };
        Ok(names.iter().filter_map(name).collect())
    }
}

impl Tree {
    fn kernels(&self) -> Result<Kernels> {
        let folder = self.out.join("kernels");
        if !(self.fixed && folder.exists()) {
            let example = self.root.join(EXAMPLE_PATH);
            if !example.exists() {
                create(example.parent().unwrap_or(&self.root))?;
                fs::write(&example, EXAMPLE).map_err(|e| format!("{}: {e}", example.display()))?;
            }
            let args = ["build", "--quiet", "--package", "mk-codegen", "--example", "kernels"];
            self.build("the emitter", &args)?;
            let part = self.out.join("kernels.part");
            for stale in [&part, &folder].into_iter().filter(|f| f.exists()) {
                fs::remove_dir_all(stale).map_err(|e| format!("{}: {e}", stale.display()))?;
            }
            create(&part)?;
            let mut write = Command::new(target().join("debug/examples/kernels"));
            step("emitting kernels", write.arg(&part))?;
            fs::rename(&part, &folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        cuda_files(&folder)
    }

    /// Builds in this checkout, with the build folder of the working tree: packages of others are built once.
    fn build(&self, what: &str, args: &[&str]) -> Result<()> {
        create(&self.out)?;
        let mut command = cargo(args);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", target());
        step(&format!("building {what} of {}", self.root.display()), &mut command)
    }
}

/// The files of a revision, unpacked below `target/sass`.
fn revision(name: &str) -> Result<Tree> {
    let commit = format!("{name}^{{commit}}");
    let parse = git(&["rev-parse", "--verify", "--quiet", &commit]).output();
    let output = parse.map_err(|e| format!("git cannot be run: {e}"))?;
    let id = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if !output.status.success() || id.is_empty() {
        return Err(format!("{name} is neither a folder nor a revision"));
    }
    let out = target().join("sass").join(&id);
    let tree = out.join("tree");
    if !tree.exists() {
        let part = out.join("tree.part");
        if part.exists() {
            fs::remove_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
        }
        create(&part)?;
        let mut archive = git(&["archive", &id]).stdout(Stdio::piped()).spawn();
        let stdout = archive.as_mut().ok().and_then(|child| child.stdout.take());
        let (Ok(archive), Some(stdout)) = (&mut archive, stdout) else {
            return Err("git archive does not start".into());
        };
        step(
            &format!("unpacking {name}"),
            Command::new("tar").arg("-x").arg("-C").arg(&part).stdin(stdout),
        )?;
        let status = archive.wait().map_err(|e| format!("git archive: {e}"))?;
        if !status.success() {
            return Err(format!("git archive {id} failed ({status})"));
        }
        own_version(&part.join("Cargo.toml"), &id)?;
        fs::rename(&part, &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    }
    Ok(Tree { root: tree, out, fixed: true })
}

/// Gives the packages of a checkout a version of their own. Cargo tells packages at the same place in two workspaces
/// apart by nothing else, and by the age of their files would take what it has built of one for the other's.
fn own_version(manifest: &Path, id: &str) -> Result<()> {
    let failed = |e: std::io::Error| format!("{}: {e}", manifest.display());
    let text = fs::read_to_string(manifest).map_err(failed)?;
    let (before, package) = text
        .split_once("[workspace.package]\nversion = \"")
        .ok_or_else(|| format!("{}: no version of the workspace's packages", manifest.display()))?;
    let (version, after) = package
        .split_once('"')
        .ok_or_else(|| format!("{}: the version does not end", manifest.display()))?;
    let own = format!("{before}[workspace.package]\nversion = \"{version}+{id}\"{after}");
    fs::write(manifest, own).map_err(failed)
}

fn git(args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(args).current_dir(root());
    command
}

fn cuda_files(folder: &Path) -> Result<Kernels> {
    let mut out = Kernels::new();
    for path in entries(folder)? {
        if path.extension().is_some_and(|e| e == "cu") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = read(&path)?;
            out.insert(name, text);
        }
    }
    if out.is_empty() {
        return Err(format!("{} has no .cu files", folder.display()));
    }
    Ok(out)
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}
