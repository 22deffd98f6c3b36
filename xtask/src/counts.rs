//! Tests that passed, failed and were skipped, and why.

use crate::run::{Pulse, Result, target};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};

/// What runs tests for which something is missing, by a word of it. Some needs name it themselves.
const RUNS: [(&str, &str); 7] = [
    ("transformers", "`cargo xtask torch --all` runs them"),
    ("torchtitan", "`cargo xtask torch --all` runs them"),
    ("megatron-core", "`cargo xtask torch --all` runs them"),
    ("nbclient", "`cargo xtask torch --all` runs them"),
    ("GPU", "`cargo test --workspace` runs them on a machine with GPUs (docs/tested.md)"),
    ("torch", "`cargo xtask torch` runs them"),
    ("c++", "install a C++ compiler"),
];

/// What test runs say in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    passed: usize,
    failed: usize,
    /// By reason, the tests that were skipped.
    skipped: BTreeMap<String, BTreeSet<String>>,
}

impl Counts {
    /// The file where tests say that they are skipped, empty.
    ///
    /// # Errors
    /// Where an older one stays.
    pub fn begin_skips(&self) -> Result<PathBuf> {
        let list = target().join("skipped.txt");
        match fs::remove_file(&list) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{}: {e}", list.display()))
            }
            _ => Ok(list),
        }
    }

    /// Counts what that file says.
    pub fn end_skips(&mut self, list: &Path) {
        if let Ok(text) = fs::read_to_string(list) {
            text.lines().for_each(|line| self.read_skip(line));
        }
    }

    /// Counts what an executable says; whether tests failed there.
    pub fn read_results(&mut self, text: &str) -> bool {
        let before = self.failed;
        text.lines().for_each(|line| self.read_result(line));
        self.failed > before
    }

    /// `test result: ok. 3 passed; 1 failed; …`, as libtest has it.
    fn read_result(&mut self, line: &str) {
        let Some((_, rest)) = line.split_once("test result: ") else { return };
        let number = |what: &str| {
            let part = rest.split([';', '.']).map(str::trim).find(|p| p.ends_with(what))?;
            part.split(' ').next()?.parse::<usize>().ok()
        };
        self.passed += number("passed").unwrap_or(0);
        self.failed += number("failed").unwrap_or(0);
    }

    /// `SKIPPED <test>: <reason>`, as `mk-skip` has it.
    fn read_skip(&mut self, line: &str) {
        let Some((test, why)) = line.strip_prefix("SKIPPED ").and_then(|l| l.split_once(": "))
        else {
            return;
        };
        self.skipped.entry(why.into()).or_default().insert(test.into());
    }

    /// Runs Python's unittest, whose report stands on stderr.
    pub fn run_python(&mut self, title: &str, command: &mut Command) -> Result<()> {
        eprintln!("==> {title}");
        let begin = Instant::now();
        let _pulse = Pulse::of(title, Arc::default());
        let out = command.output().map_err(|e| format!("{title}: cannot run {command:?}: {e}"))?;
        let text = String::from_utf8_lossy(&out.stderr);
        eprint!("{text}");
        print!("{}", String::from_utf8_lossy(&out.stdout));
        if !self.read_unittest(&text) || (!out.status.success() && self.failed == 0) {
            return Err(format!("{title} failed ({})", out.status));
        }
        eprintln!("    {title}: {:.1} s", begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// `Ran 7 tests in …`, then `OK` or `FAILED (failures=1, errors=2)`.
    fn read_unittest(&mut self, text: &str) -> bool {
        let ran =
            text.lines().find_map(|l| l.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
        let Some(ran): Option<usize> = ran else { return false };
        let last = text.lines().rev().find(|l| l.starts_with("FAILED")).unwrap_or_default();
        let numbers = last.split(['(', ',', ')']).filter_map(|p| p.trim().split_once('='));
        let failed = numbers.filter(|(what, _)| ["failures", "errors"].contains(what));
        let failed = failed.filter_map(|(_, n)| n.parse::<usize>().ok()).sum::<usize>();
        self.passed += ran.saturating_sub(failed);
        self.failed += failed;
        // `test_x (module.Class.test_x) ... skipped 'why'`, where a line of documentation may stand in between.
        let mut test = "";
        for line in text.lines() {
            if line.starts_with("test_") {
                test = line.split_once('(').and_then(|(_, l)| l.split(')').next()).unwrap_or(line);
            }
            if let Some((_, why)) = line.split_once("... skipped ") {
                let why = why.trim_matches(['\'', '"']).to_string();
                self.skipped.entry(why).or_default().insert(test.into());
            }
        }
        true
    }

    /// Says what was skipped and why; the last line has the numbers.
    ///
    /// # Errors
    /// Where a test failed.
    pub fn finish(&self) -> Result<()> {
        print!("{}", self.skips());
        println!("{}", self.line());
        if self.failed == 0 { Ok(()) } else { Err("tests failed".into()) }
    }

    /// What was skipped, by what is missing, with the command that runs it.
    fn skips(&self) -> String {
        // `needs a GPU: no driver` and `needs a GPU: another_test` lack one thing.
        let mut groups = BTreeMap::<&str, (BTreeSet<&str>, BTreeSet<&str>)>::new();
        for (why, tests) in &self.skipped {
            let (need, detail) = why.split_once(": ").unwrap_or((why, ""));
            let (details, all) = groups.entry(need).or_default();
            details.insert(detail);
            all.extend(tests.iter().map(String::as_str));
        }
        let mut text = String::new();
        for (need, (details, tests)) in groups {
            // One that holds for all tests is worth saying.
            let detail = match details.iter().collect::<Vec<_>>().as_slice() {
                [detail] if !detail.is_empty() => format!(" ({detail})"),
                _ => String::new(),
            };
            let runs = RUNS.iter().find(|(what, _)| need.contains(what));
            let runs = runs.map_or_else(String::new, |(_, how)| format!("; {how}"));
            text += &format!("skipped, {need}{detail}: {}{runs}\n", n_tests(tests.len()));
            text += &tests.iter().map(|test| format!("    {test}\n")).collect::<String>();
        }
        text
    }

    /// Where nothing may be missing but what `optional` names.
    ///
    /// # Errors
    /// Where a test failed or was skipped, or none ran.
    pub fn all_ran(&self, optional: &[&str]) -> Result<()> {
        self.finish()?;
        let skipped = self.skipped.keys().all(|why| optional.contains(&why.as_str()));
        match self.passed > 0 && skipped {
            true => Ok(()),
            false => Err("tests were skipped that shall run here".into()),
        }
    }

    /// `N passed, F failed, K skipped`. To libtest, a test that is skipped has passed.
    fn line(&self) -> String {
        let skipped: BTreeSet<_> = self.skipped.values().flatten().collect();
        let passed = self.passed.saturating_sub(skipped.len());
        format!("{passed} passed, {} failed, {} skipped", self.failed, skipped.len())
    }
}

fn n_tests(n: usize) -> String {
    format!("{n} test{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_grouped_by_what_is_missing() {
        let mut counts = Counts::default();
        for line in [
            "SKIPPED gpu::a: needs a GPU: no driver",
            "SKIPPED gpu::b: needs a GPU: b: no driver",
            "SKIPPED faults::c: needs 2 GPUs: c",
            "SKIPPED faults::d: needs 2 GPUs: d",
            "SKIPPED host::e: needs `c++`: no C++ compiler",
        ] {
            counts.read_skip(line);
        }
        counts.read_unittest("test_op (t.Op.test_op) ... skipped 'torch is not installed'\nRan 1 test in 0.1s\n\nOK\n");
        let gpus = "`cargo test --workspace` runs them on a machine with GPUs (docs/tested.md)";
        assert_eq!(
            counts.skips(),
            format!(
                "skipped, needs 2 GPUs: 2 tests; {gpus}\n    faults::c\n    faults::d\n\
                 skipped, needs `c++` (no C++ compiler): 1 test; install a C++ compiler\n    host::e\n\
                 skipped, needs a GPU: 2 tests; {gpus}\n    gpu::a\n    gpu::b\n\
                 skipped, torch is not installed: 1 test; `cargo xtask torch` runs them\n    t.Op.test_op\n"
            )
        );
    }

    #[test]
    fn results_and_skips_are_counted() {
        let mut counts = Counts::default();
        for line in [
            "running 4 tests",
            "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 1.20s",
        ] {
            counts.read_result(line);
        }
        // A test that lacks two things is one test.
        counts.read_skip("SKIPPED gpu::a: needs a GPU: no driver");
        counts.read_skip("SKIPPED gpu::a: needs a GPU: no driver");
        counts.read_skip("SKIPPED gpu::a: needs `c++`");
        counts.read_skip("SKIPPED gpu::b: needs a GPU: no driver");
        assert!(counts.read_unittest("Ran 5 tests in 0.1s\n\nOK\n"));
        assert_eq!(counts.line(), "9 passed, 1 failed, 2 skipped");
        let ran = Counts { passed: 3, ..Counts::default() };
        assert!(ran.all_ran(&[]).is_ok() && Counts::default().all_ran(&[]).is_err());
        let skipped = BTreeMap::from([("no torch".to_string(), BTreeSet::new())]);
        let some = Counts { passed: 3, skipped, ..Counts::default() };
        assert!(some.all_ran(&["no wheel"]).is_err() && some.all_ran(&["no torch"]).is_ok());
        assert!(counts.read_unittest("Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=2)\n"));
        assert_eq!(counts.line(), "11 passed, 4 failed, 2 skipped");
        let skips = "test_op (t.Op.test_op)\nOne operator. ... skipped 'torch is not there'\nRan 1 test in 0.1s\n\nOK (skipped=1)\n";
        assert!(counts.read_unittest(skips));
        assert_eq!(counts.line(), "11 passed, 4 failed, 3 skipped");
        assert!(counts.skipped["torch is not there"].contains("t.Op.test_op"));
        assert!(!counts.read_unittest("Traceback"));
        assert_eq!(counts.skipped["needs a GPU: no driver"].len(), 2);
        assert!(counts.finish().is_err());
    }
}
