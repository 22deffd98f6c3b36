//! What launchers tell the processes that they start: torchrun, srun, mpirun, or variables of our own.

use crate::{Error, Result};

/// A process's place in its run.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) local_rank: u32,
    pub(crate) local_world_size: u32,
    /// The same in all processes of a run, and in no others on this host.
    pub(crate) run: String,
    /// Host and port where rank 0 meets those of other hosts, or which variable would say it.
    pub(crate) meet: Result<(String, u16)>,
}

/// The variables of a launcher: rank, number of ranks, and both on this host.
struct Names {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const fn names([rank, size, local_rank, local_size]: [&'static str; 4]) -> Names {
    Names { rank, size, local_rank, local_size }
}

/// A launcher's variables are all taken, or none. Own ones come first; a job of Slurm may have an mpirun inside: that
/// of Open MPI, or of MPICH.
const ALL: [Names; 5] = [
    names(["MK_RANK", "MK_WORLD_SIZE", "MK_LOCAL_RANK", "MK_LOCAL_WORLD_SIZE"]),
    TORCH,
    names([
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ]),
    names(["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    names(["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
];
const TORCH: Names = names(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]);

pub(crate) type Get<'a> = &'a dyn Fn(&'static str) -> Option<String>;

fn refuse<T>(variable: &'static str, value: Option<String>, what: &str) -> Result<T> {
    Err(Error::Environment { variable, value, what: what.into() })
}

fn text(get: Get<'_>, variable: &'static str) -> Result<String> {
    match get(variable) {
        Some(value) if !value.is_empty() => Ok(value),
        value => refuse(variable, value, "a value is needed"),
    }
}

fn number(get: Get<'_>, variable: &'static str) -> Result<u32> {
    let value = text(get, variable)?;
    value.parse().or_else(|_| refuse(variable, Some(value), "a whole number is needed"))
}

/// A process's place by its variables, as `get` reads them.
pub(crate) fn parse(get: Get<'_>) -> Result<Launcher> {
    let set = |names: &&Names| get(names.rank).is_some_and(|v| !v.is_empty());
    let names = ALL.iter().find(set).unwrap_or(&TORCH);
    let most = mk_abi::device::MAX_RANKS as u32;
    let world_size = number(get, names.size)?;
    if !(1..=most).contains(&world_size) {
        let what = format!("a world has 1 to {most} ranks");
        return refuse(names.size, Some(world_size.to_string()), &what);
    }
    let rank = number(get, names.rank)?;
    if rank >= world_size {
        let what = format!("it must be below {}, which is {world_size}", names.size);
        return refuse(names.rank, Some(rank.to_string()), &what);
    }
    let local_world_size = match names.local_size {
        "SLURM_STEP_TASKS_PER_NODE" => tasks_per_node(get)?,
        name => number(get, name)?,
    };
    if local_world_size == 0 || !world_size.is_multiple_of(local_world_size) {
        let what = format!("hosts have as many ranks each, of {world_size} in all");
        return refuse(names.local_size, Some(local_world_size.to_string()), &what);
    }
    let local_rank = number(get, names.local_rank)?;
    if local_rank >= local_world_size {
        let what = format!("it must be below {}, which is {local_world_size}", names.local_size);
        return refuse(names.local_rank, Some(local_rank.to_string()), &what);
    }
    let (run, meet) = (run(get, names)?, meet(get, names));
    Ok(Launcher { rank, world_size, local_rank, local_world_size, run, meet })
}

/// `4(x2)`, `4` or `4,4`: as many tasks on each host.
fn tasks_per_node(get: Get<'_>) -> Result<u32> {
    let variable = "SLURM_STEP_TASKS_PER_NODE";
    let value = text(get, variable)?;
    let counts = value.split(',').map(|part| {
        let (count, times) = part.split_once('(').unwrap_or((part, "x1)"));
        let whole = times.strip_prefix('x').and_then(|t| t.strip_suffix(')')?.parse::<u32>().ok());
        count.parse::<u32>().ok().filter(|_| whole.is_some())
    });
    match counts.collect::<Option<Vec<u32>>>() {
        Some(counts) if counts.iter().all(|n| *n == counts[0]) => Ok(counts[0]),
        Some(_) => refuse(variable, Some(value), "every host must have as many tasks"),
        None => refuse(variable, Some(value), "numbers of tasks are needed, as in 4(x2)"),
    }
}

/// What no other run on this host has.
fn run(get: Get<'_>, names: &Names) -> Result<String> {
    if let Some(meet) = get("MK_MEET").filter(|v| !v.is_empty()) {
        let again = get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
        return Ok(format!("{meet}/{again}"));
    }
    let two = |a, b| -> Result<String> { Ok([text(get, a)?, text(get, b)?].join("/")) };
    match names.rank {
        "SLURM_PROCID" => two("SLURM_JOB_ID", "SLURM_STEP_ID"),
        "OMPI_COMM_WORLD_RANK" => text(get, "PMIX_NAMESPACE"),
        "RANK" => {
            let port = text(get, "MASTER_PORT")?;
            if port.parse::<u16>().is_err() {
                return refuse("MASTER_PORT", Some(port), "a port number is needed");
            }
            // The launcher's own store listens at this address, so that no two runs on a host share it; a restart keeps
            // it.
            let more = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];
            let more = more.map(|name| get(name).unwrap_or_default());
            Ok([text(get, "MASTER_ADDR")?, port, more.join("/")].join("/"))
        }
        _ => refuse("MK_MEET", None, "HOST:PORT is needed, where rank 0 meets the others"),
    }
}

fn meet(get: Get<'_>, names: &Names) -> Result<(String, u16)> {
    if let Some(value) = get("MK_MEET").filter(|v| !v.is_empty()) {
        let parts = value.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = port.parse::<u16>().ok().filter(|p| *p > 0)?;
            (!host.is_empty()).then(|| (host.to_string(), port))
        });
        return match parts {
            Some(parts) => Ok(parts),
            None => refuse("MK_MEET", Some(value), "HOST:PORT is needed"),
        };
    }
    match names.rank {
        "RANK" => {
            let port = text(get, "MASTER_PORT")?;
            match port.parse::<u16>().ok().and_then(|p| p.checked_add(1)) {
                Some(port) => Ok((text(get, "MASTER_ADDR")?, port)),
                None => {
                    refuse("MASTER_PORT", Some(port), "the next port is needed; or set MK_MEET")
                }
            }
        }
        "SLURM_PROCID" => {
            let job = number(get, "SLURM_JOB_ID")?;
            let step = number(get, "SLURM_STEP_ID")?;
            // Below the ephemeral ports.
            let port = 20_000 + (job.wrapping_mul(31).wrapping_add(step) % 10_000) as u16;
            Ok((first_host(&text(get, "SLURM_STEP_NODELIST")?), port))
        }
        _ => refuse("MK_MEET", None, "HOST:PORT is needed, where rank 0 meets the others"),
    }
}

/// The first of `gpu[003-006,9],other`: `gpu003`.
fn first_host(list: &str) -> String {
    let Some((name, rest)) = list.split_once('[') else {
        return list.split(',').next().unwrap_or(list).to_string();
    };
    if let Some((first, _)) = name.split_once(',') {
        return first.to_string();
    }
    let end = rest.find([',', '-', ']']).unwrap_or(rest.len());
    let behind = rest.split_once(']').map_or("", |(_, behind)| behind);
    let behind = behind.split(',').next().unwrap_or("");
    format!("{name}{}{behind}", &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    type Given = &'static [(&'static str, &'static str)];

    const TORCHRUN: Given = &[
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];
    const SRUN: Given = &[
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
        ("SLURM_STEP_NODELIST", "gpu[003-004]"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
    ];
    const MPIRUN: Given = &[
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "prterun-1"),
    ];
    const HYDRA: Given = &[
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
        ("MK_MEET", "head:7000"),
    ];

    fn with(given: Given, name: &str, value: Option<&str>) -> Result<Launcher> {
        parse(&|n| match value {
            value if n == name => value.map(str::to_string),
            _ => given.iter().find(|(k, _)| *k == n).map(|(_, v)| v.to_string()),
        })
    }

    fn refusal(name: &str, value: Option<&str>) -> String {
        with(TORCHRUN, name, value).map_or_else(|e| e.to_string(), |l| format!("accepted {l:?}"))
    }

    fn place(launcher: &Launcher) -> [u32; 4] {
        [launcher.rank, launcher.world_size, launcher.local_rank, launcher.local_world_size]
    }

    #[test]
    fn what_launchers_set_is_accepted() {
        let torch = with(TORCHRUN, "", None).unwrap();
        assert_eq!(place(&torch), [1, 4, 1, 4]);
        assert_eq!(torch.meet.unwrap(), ("127.0.0.1".to_string(), 29501));
        let of = |name, value| with(TORCHRUN, name, Some(value)).unwrap();
        assert_ne!(torch.run, of("TORCHELASTIC_RESTART_COUNT", "1").run);
        assert_ne!(torch.run, of("MASTER_PORT", "29501").run);
        assert_eq!(torch.run, of("RANK", "2").run);
        assert_eq!(place(&of("LOCAL_WORLD_SIZE", "2")), [1, 4, 1, 2]);
        let slurm = with(SRUN, "", None).unwrap();
        assert_eq!(place(&slurm), [5, 8, 1, 4]);
        let (host, port) = slurm.meet.unwrap();
        assert!(host == "gpu003" && (20_000..30_000).contains(&port), "{host}:{port}");
        assert_ne!(slurm.run, with(SRUN, "SLURM_STEP_ID", Some("1")).unwrap().run);
        let mpi = with(MPIRUN, "", None).unwrap();
        assert_eq!(place(&mpi), [3, 4, 1, 2]);
        assert!(mpi.meet.unwrap_err().to_string().starts_with("MK_MEET is not set: HOST:PORT"));
        let hydra = with(HYDRA, "", None).unwrap();
        assert_eq!((place(&hydra), hydra.meet.unwrap()), ([3, 4, 1, 2], ("head".into(), 7000)));
        // Own ones come first, and are all there.
        let own = with(TORCHRUN, "MK_RANK", Some("0")).map(|l| l.rank).unwrap_err().to_string();
        assert!(own.starts_with("MK_WORLD_SIZE is not set"), "{own}");
    }

    #[test]
    fn hosts_are_read_from_lists() {
        let of = |list| first_host(list);
        assert_eq!(of("gpu[003-006,9],other"), "gpu003");
        assert_eq!(of("a,b[1-2]"), "a");
        assert_eq!(of("gpu7"), "gpu7");
        assert_eq!(of("rack[1,3]-gpu,x"), "rack1-gpu");
        let tasks = |text| with(SRUN, "SLURM_STEP_TASKS_PER_NODE", Some(text));
        assert_eq!(tasks("4,4").unwrap().local_world_size, 4);
        assert!(tasks("4,2").unwrap_err().to_string().contains("as many tasks"));
        assert!(tasks("4(y2)").unwrap_err().to_string().contains("as in 4(x2)"));
    }

    #[test]
    fn a_missing_variable_names_the_launcher_that_sets_it() {
        const OWN: Given = &[("MK_RANK", "0"), ("MK_WORLD_SIZE", "2"), ("MK_MEET", "head:7000")];
        for (given, variable, by) in [
            (OWN, "MK_LOCAL_WORLD_SIZE", "no launcher sets it: give MK_RANK"),
            (TORCHRUN, "LOCAL_RANK", "a launcher such as torchrun sets it"),
            (SRUN, "SLURM_LOCALID", "srun sets it"),
            (SRUN, "SLURM_JOB_ID", "srun sets it"),
            (MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI's mpirun sets it"),
            (MPIRUN, "PMIX_NAMESPACE", "Open MPI's mpirun sets it"),
            (HYDRA, "MPI_LOCALNRANKS", "MPICH"),
            (HYDRA, "MK_MEET", "set it by hand"),
        ] {
            let error = with(given, variable, Some("")).unwrap_err().to_string();
            assert!(error.starts_with(variable) && error.contains(by), "{error}");
        }
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
        assert!(refusal("LOCAL_WORLD_SIZE", Some("3")).contains("hosts have as many ranks each"));
        assert!(refusal("LOCAL_WORLD_SIZE", Some("0")).contains("hosts have as many ranks each"));
        assert!(refusal("LOCAL_RANK", Some("7")).starts_with("LOCAL_RANK is `7`"));
        assert!(refusal("MASTER_PORT", Some("http")).starts_with("MASTER_PORT is `http`"));
        assert!(refusal("MASTER_ADDR", Some("")).starts_with("MASTER_ADDR is ``"));
        for bad in ["head", "head:", ":80", "head:0", "head:http"] {
            let meet = with(TORCHRUN, "MK_MEET", Some(bad)).unwrap().meet;
            assert!(meet.unwrap_err().to_string().starts_with("MK_MEET is"), "{bad}");
        }
        let six = with(TORCHRUN, "MK_MEET", Some("[fe80::1]:80")).unwrap().meet;
        assert_eq!(six.unwrap(), ("fe80::1".to_string(), 80));
        assert!(with(TORCHRUN, "MASTER_PORT", Some("65535")).unwrap().meet.is_err());
    }
}
