//! Every environment variable that this crate reads: [`VARIABLES`].

use crate::Error;
use std::path::PathBuf;

/// Every environment variable that mk reads, and its meaning: what `mk --help` lists.
pub const VARIABLES: &[(&str, &str)] = &[
    ("MK_NVRTC_DIR", "directory that holds libnvrtc.so.13"),
    ("MK_CACHE_DIR", "directory of compiled kernels and tuning results"),
    ("MK_FABRIC_DIR", "directory that holds libfabric.so.1"),
    (
        "XDG_CACHE_HOME, HOME",
        "where they are kept if MK_CACHE_DIR is not set: in mk, or in .cache/mk",
    ),
    ("CUDA_HOME, CUDA_PATH", "CUDA toolkits in which NVRTC and nvdisasm are searched"),
    ("VIRTUAL_ENV, CONDA_PREFIX", "Python environments in which they are searched"),
    ("LD_LIBRARY_PATH, PATH", "where NVRTC, and where nvdisasm, is searched after that"),
    ("RANK, WORLD_SIZE", "this process in a world of processes; set by torchrun"),
    ("LOCAL_RANK, LOCAL_WORLD_SIZE", "the same on this host"),
    ("MASTER_ADDR, MASTER_PORT", "which run it belongs to; nothing connects to that port"),
    ("TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT", "the same"),
    ("CUDA_LAUNCH_BLOCKING", "refused: ranks wait for each other inside their kernels"),
];

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn path_list(name: &str) -> Vec<PathBuf> {
    std::env::var_os(name).map_or_else(Vec::new, |v| {
        std::env::split_paths(&v).filter(|p| !p.as_os_str().is_empty()).collect()
    })
}

/// `MK_NVRTC_DIR`.
pub(crate) fn nvrtc_dir() -> Option<PathBuf> {
    path("MK_NVRTC_DIR")
}

/// `MK_FABRIC_DIR`.
pub(crate) fn fabric_dir() -> Option<PathBuf> {
    path("MK_FABRIC_DIR")
}

/// The directories of `LD_LIBRARY_PATH`.
pub(crate) fn library_path() -> Vec<PathBuf> {
    path_list("LD_LIBRARY_PATH")
}

/// The active Python environments: `VIRTUAL_ENV`, `CONDA_PREFIX`.
pub(crate) fn python_prefixes() -> Vec<PathBuf> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect()
}

/// The directories of `PATH`.
pub(crate) fn executable_path() -> Vec<PathBuf> {
    path_list("PATH")
}

/// CUDA toolkits that the environment names: `CUDA_HOME`, `CUDA_PATH`.
pub(crate) fn cuda_homes() -> Vec<PathBuf> {
    ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect()
}

/// `MK_CACHE_DIR`, else `$XDG_CACHE_HOME/mk`, else `$HOME/.cache/mk`.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    path("MK_CACHE_DIR")
        .or_else(|| path("XDG_CACHE_HOME").map(|d| d.join("mk")))
        .or_else(|| path("HOME").map(|d| d.join(".cache/mk")))
}

/// Whether the driver was told to make every launch synchronous.
pub(crate) fn launch_blocking() -> bool {
    std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|v| !v.is_empty() && v != "0")
}

/// What a launcher such as torchrun tells each process that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launcher {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) local_rank: u32,
    /// The same in all processes of a run, and in no others on this host.
    pub(crate) run: String,
}

/// The launcher's variables; refused when one is missing, makes no sense, or says that there are several hosts.
pub(crate) fn launcher() -> Result<Launcher, Error> {
    parse_launcher(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn parse_launcher(get: impl Fn(&'static str) -> Option<String>) -> Result<Launcher, Error> {
    let refuse = |variable, value: Option<String>, what: String| {
        Err(Error::Environment { variable, value, what })
    };
    let text = |variable| match get(variable) {
        Some(value) if !value.is_empty() => Ok(value),
        value => refuse(variable, value, "a value is needed".into()).map(|()| String::new()),
    };
    let number = |variable| -> Result<u32, Error> {
        let value = text(variable)?;
        value.parse().or_else(|_| {
            refuse(variable, Some(value), "a whole number is needed".into()).map(|()| 0)
        })
    };
    let most = mk_abi::device::MAX_RANKS as u32;
    let world_size = number("WORLD_SIZE")?;
    if !(1..=most).contains(&world_size) {
        let what = format!("a world has 1 to {most} ranks");
        refuse("WORLD_SIZE", Some(world_size.to_string()), what)?;
    }
    let rank = number("RANK")?;
    if rank >= world_size {
        let what = format!("it must be below WORLD_SIZE, which is {world_size}");
        refuse("RANK", Some(rank.to_string()), what)?;
    }
    let local_world_size = number("LOCAL_WORLD_SIZE")?;
    if local_world_size != world_size {
        return Err(Error::SeveralHosts {
            what: format!("LOCAL_WORLD_SIZE is {local_world_size} and WORLD_SIZE is {world_size}"),
        });
    }
    let local_rank = number("LOCAL_RANK")?;
    if local_rank >= local_world_size {
        let what = format!("it must be below LOCAL_WORLD_SIZE, which is {local_world_size}");
        refuse("LOCAL_RANK", Some(local_rank.to_string()), what)?;
    }
    let port = text("MASTER_PORT")?;
    if port.parse::<u16>().is_err() {
        refuse("MASTER_PORT", Some(port.clone()), "a port number is needed".into())?;
    }
    // The launcher's own store listens at this address, so that no two runs on a host share it; a restart keeps it.
    let run = [
        text("MASTER_ADDR")?,
        port,
        get("TORCHELASTIC_RUN_ID").unwrap_or_default(),
        get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default(),
    ];
    Ok(Launcher { rank, world_size, local_rank, run: run.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[(&str, &str)] = &[
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];

    fn with(name: &str, value: Option<&str>) -> Result<Launcher, Error> {
        parse_launcher(|n| match value {
            value if n == name => value.map(str::to_string),
            _ => GOOD.iter().find(|(k, _)| *k == n).map(|(_, v)| v.to_string()),
        })
    }

    fn refusal(name: &str, value: Option<&str>) -> String {
        with(name, value).map_or_else(|e| e.to_string(), |l| format!("accepted {l:?}"))
    }

    #[test]
    fn what_torchrun_sets_is_accepted() {
        let launcher = with("", None).unwrap();
        assert_eq!((launcher.rank, launcher.world_size, launcher.local_rank), (1, 4, 1));
        assert_ne!(launcher.run, with("TORCHELASTIC_RESTART_COUNT", Some("1")).unwrap().run);
        assert_ne!(launcher.run, with("MASTER_PORT", Some("29501")).unwrap().run);
        assert_eq!(launcher.run, with("RANK", Some("2")).unwrap().run);
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        assert_eq!(
            refusal("RANK", None),
            "RANK is not set: a value is needed; a launcher such as torchrun sets it"
        );
        assert!(refusal("RANK", Some("4")).starts_with("RANK is `4`: it must be below WORLD_SIZE"));
        assert!(refusal("RANK", Some("-1")).starts_with("RANK is `-1`: a whole number"));
        assert!(
            refusal("WORLD_SIZE", Some("0")).starts_with("WORLD_SIZE is `0`: a world has 1 to")
        );
        assert!(refusal("LOCAL_RANK", Some("7")).starts_with("LOCAL_RANK is `7`"));
        assert!(refusal("MASTER_PORT", Some("http")).starts_with("MASTER_PORT is `http`"));
        assert!(refusal("MASTER_ADDR", Some("")).starts_with("MASTER_ADDR is ``"));
    }

    #[test]
    fn several_hosts_are_refused() {
        let refused = with("LOCAL_WORLD_SIZE", Some("2"));
        assert!(matches!(refused, Err(Error::SeveralHosts { .. })));
    }
}
