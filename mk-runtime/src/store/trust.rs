//! Whose files are believed: those of this user, or of root, that nobody else may write.
//!
//! A kernel from a cache runs on the GPU with the process's rights, and a kept proof stands for a proof. Digests inside
//! a file are no secret: whoever may write it can make them fit.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// Whether a file or directory is this user's alone to write, and why not.
pub(super) fn own(meta: &Metadata) -> Result<(), String> {
    judge(meta.uid(), meta.mode(), nix::unistd::geteuid().as_raw())
}

/// By owner and access bits.
fn judge(owner: u32, mode: u32, user: u32) -> Result<(), String> {
    if owner != user && owner != 0 {
        return Err(format!(
            "it belongs to user {owner}, who could have written anything; this process is user {user}"
        ));
    }
    let others = match (mode & 0o002 != 0, mode & 0o020 != 0) {
        (true, _) => "everybody",
        (false, true) => "its group",
        (false, false) => return Ok(()),
    };
    Err(format!("{others} may write it (access {:03o}): `chmod go-w` it", mode & 0o777))
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn only_what_nobody_else_may_write_is_believed() {
        for (owner, mode) in [(7, 0o700), (7, 0o755), (7, 0o100_644), (0, 0o755)] {
            assert_eq!(judge(owner, mode, 7), Ok(()), "{owner} {mode:o}");
        }
        for (owner, mode, why) in [
            (8, 0o700, "belongs to user 8"),
            (7, 0o777, "everybody may write it (access 777)"),
            (7, 0o702, "everybody"),
            (7, 0o1777, "everybody"),
            (0, 0o1777, "everybody"),
            (7, 0o770, "its group may write it"),
            (7, 0o100_664, "its group"),
        ] {
            let said = judge(owner, mode, 7).expect_err(why);
            assert!(said.contains(why), "{owner} {mode:o}: {said}");
        }
        // Root believes nobody but itself.
        assert!(judge(7, 0o700, 0).is_err());
    }
}
