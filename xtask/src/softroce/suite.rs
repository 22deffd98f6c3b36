//! The tests that run in the VM: which, how, and whether nothing was left out.

use super::{packages::Unpacked, vm::Outcome};
use crate::run::{Result, cargo, quiet};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A test binary: its package, its name, and the tests of it that need the device.
struct Tests {
    package: &'static str,
    name: &'static str,
    filters: &'static [&'static str],
    /// Fewest tests that match them.
    least: usize,
}

const TESTS: &[Tests] = &[
    Tests {
        package: "mk-harness",
        name: "network",
        filters: &["two_processes_over_verbs"],
        least: 2,
    },
    Tests {
        package: "mk-runtime",
        name: "transport",
        // Each rank in a process of its own, as on machines.
        filters: &["verbs_faults::", "verbs_in_order_processes::", "verbs_striped_processes::"],
        least: 35,
    },
];

/// Builds the binaries, one for each entry.
pub fn build(unpacked: &Unpacked) -> Result<Vec<PathBuf>> {
    let binaries =
        TESTS.iter().map(|tests| build_one(unpacked, tests)).collect::<Result<Vec<_>>>()?;
    binaries.iter().try_for_each(|binary| starts_without_libraries(binary))?;
    Ok(binaries)
}

/// A program with the feature starts on a machine with neither libibverbs nor libfabric: it is linked with none of
/// them.
fn starts_without_libraries(binary: &Path) -> Result<()> {
    let linked = quiet(Command::new("ldd").arg(binary))?;
    let forbidden = ["libibverbs", "libfabric", "libefa", "libmlx5"];
    if let Some(line) = linked.lines().find(|l| forbidden.iter().any(|f| l.contains(f))) {
        return Err(format!("{} does not start without {}", binary.display(), line.trim()));
    }
    quiet(Command::new(binary).arg("--list").env_remove("LD_LIBRARY_PATH")).map(drop)
}

fn build_one(unpacked: &Unpacked, tests: &Tests) -> Result<PathBuf> {
    eprintln!("==> building {} of {} with feature verbs", tests.name, tests.package);
    let args = ["test", "--package", tests.package, "--features", "verbs", "--test", tests.name];
    let mut command = cargo(&args);
    unpacked.build(&mut command)?;
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let out = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    if !out.status.success() {
        return Err(format!("building {} failed ({})", tests.name, out.status));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let mut binaries = text.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of = message["target"]["name"] == tests.name && message["profile"]["test"] == true;
        message["executable"].as_str().filter(|_| of).map(PathBuf::from)
    });
    binaries.next_back().ok_or_else(|| format!("cargo built no test binary {}", tests.name))
}

/// What the VM runs: every binary, whatever those before it said. A test that lacks the device fails
/// (`MK_REQUIRE_RDMA`).
pub fn script(binaries: &[PathBuf], filter: &[String]) -> String {
    let mut out =
        String::from("export RUST_BACKTRACE=1 MK_REQUIRE_RDMA=1 MK_PATIENCE=5\nstatus=0\n");
    for (tests, binary) in TESTS.iter().zip(binaries) {
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        let filters: Vec<String> = match filter {
            [] => tests.filters.iter().map(|f| (*f).to_string()).collect(),
            some => some.to_vec(),
        };
        let quoted: Vec<String> =
            filters.iter().map(|f| format!("'{}'", f.replace('\'', ""))).collect();
        out += &format!(
            "say() {{ echo \"## [$(cut -d' ' -f1 /proc/uptime)] $*\"; }}\nsay '{}: {}'\n",
            tests.package, tests.name
        );
        out += &format!("{name} --test-threads=1 --nocapture {} || status=$?\n", quoted.join(" "));
    }
    out + "exit $status\n"
}

/// Whether all passed, and all were there.
pub fn judge(outcome: &Outcome, binaries: &[PathBuf], whole: bool) -> Result<()> {
    let passed: Vec<usize> = outcome.log.lines().filter_map(passed).collect();
    if outcome.status != 0 {
        return Err(format!("tests in the VM failed (status {})", outcome.status));
    }
    if passed.len() != binaries.len() {
        return Err(format!("{} of {} test binaries came to an end", passed.len(), binaries.len()));
    }
    if outcome.log.contains("SKIPPED ") {
        return Err("a test in the VM was skipped".into());
    }
    if passed.iter().sum::<usize>() == 0 {
        return Err("no test in the VM has such a name".into());
    }
    let few = TESTS.iter().zip(passed).find(|(tests, n)| whole && *n < tests.least);
    if let Some((tests, n)) = few {
        let Tests { name, least, .. } = tests;
        return Err(format!("{n} tests of {name} ran, and there are {least} at least"));
    }
    Ok(())
}

/// `test result: ok. 3 passed; …`
fn passed(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("test result: ok. ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_out_in_silence() {
        let binaries = [PathBuf::from("/x/network-1"), PathBuf::from("/x/transport-1")];
        let least = TESTS[1].least;
        let outcome = |status, log: &str| Outcome { status, log: log.into() };
        let line = |n: usize| {
            let one = |n| format!("test result: ok. {n} passed; 0 failed; 0 ignored\n");
            one(TESTS[0].least) + &one(n)
        };
        let right = outcome(0, &line(least));
        assert_eq!(judge(&right, &binaries, true), Ok(()));
        assert!(judge(&outcome(101, &line(least)), &binaries, true).is_err());
        assert!(judge(&outcome(0, ""), &binaries, true).is_err());
        assert!(judge(&outcome(0, &line(least - 1)), &binaries, true).is_err());
        assert_eq!(judge(&outcome(0, &line(1)), &binaries, false), Ok(()));
        let skipped = format!("SKIPPED transport::a: needs an RDMA device\n{}", line(least));
        assert!(judge(&outcome(0, &skipped), &binaries, true).is_err());
    }

    #[test]
    fn the_vm_runs_all_of_them() {
        let text = script(&[PathBuf::from("/x/network-1"), PathBuf::from("/x/transport-1")], &[]);
        assert!(
            text.contains("transport-1 --test-threads=1") && text.contains("MK_REQUIRE_RDMA=1")
        );
        let one = script(&[PathBuf::from("/x/transport-1")], &["a_wrong_key".into()]);
        assert!(one.contains("'a_wrong_key'") && !one.contains("verbs_striped"));
    }
}
