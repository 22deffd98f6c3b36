//! Machine code as text, for tests and for the curious: counts of the instructions that matter.

use super::find::{project_roots, site_packages, toolkits};
use crate::{Error, Result, env};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Number of times that each opcode occurs: `HGMMA` (wgmma), `UTMALDG` (TMA load), `UTMASTG` (TMA store), …
/// Modifiers (`.64x256x16`) are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SassCounts {
    opcodes: BTreeMap<String, u32>,
}

impl SassCounts {
    /// How often an opcode occurs.
    pub fn get(&self, opcode: &str) -> u32 {
        self.opcodes.get(opcode).copied().unwrap_or(0)
    }

    /// All opcodes, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.opcodes.iter().map(|(k, v)| (k.as_str(), *v))
    }
}

/// Finds `nvdisasm`: in `.nvrtc`, Python's site-packages, `PATH` or a CUDA toolkit.
pub fn find_nvdisasm() -> Option<PathBuf> {
    let wheel = |root: PathBuf| root.join("nvidia/cu13/bin/nvdisasm");
    project_roots()
        .into_iter()
        .map(wheel)
        .chain(env::executable_path().into_iter().map(|p| p.join("nvdisasm")))
        .chain(site_packages().into_iter().map(wheel))
        .chain(toolkits().into_iter().map(|t| t.join("bin/nvdisasm")))
        .find(|p| p.is_file())
}

/// The SASS of a CUBIN.
///
/// # Errors
/// [`Error::ToolMissing`] without `nvdisasm`, [`Error::ToolFailed`] when it refuses the CUBIN.
pub fn disassemble(cubin: &[u8]) -> Result<String> {
    const TOOL: &str = "nvdisasm";
    let tool = find_nvdisasm().ok_or(Error::ToolMissing {
        tool: TOOL,
        get: "`cargo xtask setup`, or `pip install nvidia-cuda-nvdisasm`",
    })?;
    let failed = |what: String| Error::ToolFailed { tool: TOOL, what };
    // nvdisasm reads files only.
    let (path, mut file) = temp_file(&failed)?;
    let written = file.write_all(cubin);
    drop(file);
    let output = written
        .and_then(|()| Command::new(tool).arg("-c").arg(&path).stdin(Stdio::null()).output());
    // Best effort: the system's temporary directory is cleaned by others too.
    let _ = std::fs::remove_file(&path);
    let output = output.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn temp_file(failed: &impl Fn(String) -> Error) -> Result<(PathBuf, std::fs::File)> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    let path = std::env::temp_dir().join(format!("mk-{}-{now:x}.cubin", std::process::id()));
    // `create_new`: never follow a link that somebody else left there.
    let file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|e| failed(e.to_string()))?;
    Ok((path, file))
}

/// Counts the opcodes of [`disassemble`]'s text.
pub fn count_sass(sass: &str) -> SassCounts {
    let mut counts = SassCounts::default();
    for line in sass.lines() {
        // `        /*0120*/              @!P0 UTMALDG.2D [UR8], [UR4] ;`
        let Some((address, rest)) =
            line.trim_start().strip_prefix("/*").and_then(|l| l.split_once("*/"))
        else {
            continue;
        };
        if address.is_empty() || !address.chars().all(|c| c.is_ascii_hexdigit()) {
            continue;
        }
        let opcode = rest.split_whitespace().find(|w| !w.starts_with('@'));
        if let Some(opcode) = opcode {
            let name = opcode.split(['.', ';']).next().unwrap_or(opcode);
            if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                *counts.opcodes.entry(name.into()).or_insert(0) += 1;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::count_sass;

    #[test]
    fn opcodes_are_counted_without_guards_and_modifiers() {
        let counts = count_sass(
            "\
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0120*/              @!P0 UTMALDG.2D [UR8], [UR4] ;
        /*0130*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0140*/               @P1 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
.L_x_1:
        /*0150*/                   EXIT;
",
        );
        assert_eq!(
            (counts.get("HGMMA"), counts.get("UTMALDG"), counts.get("EXIT"), counts.get("FFMA")),
            (2, 1, 1, 0)
        );
    }
}
