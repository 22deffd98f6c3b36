//! What `--ptxas-options=-v` says: registers, stack, spills, shared memory, barriers, warnings.

/// What the assembler says of a translation unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entry points.
    pub entries: Vec<EntryReport>,
    /// Device functions that were not inlined.
    pub functions: Vec<EntryReport>,
    /// Warnings of the compiler and of the assembler.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// The entry point of this name.
    pub fn entry(&self, name: &str) -> Option<&EntryReport> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// Everything that has a stack: entry points, then functions.
    pub fn all(&self) -> impl Iterator<Item = &EntryReport> {
        self.entries.iter().chain(&self.functions)
    }
}

/// Resources of one entry point or function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryReport {
    /// Symbol.
    pub name: String,
    /// Registers per thread (at entry, where `setmaxnreg` changes them).
    pub registers: u32,
    /// Local memory per thread, in bytes.
    pub stack_bytes: u32,
    /// Spilled stores per thread, in bytes.
    pub spill_store_bytes: u32,
    /// Spilled loads per thread, in bytes.
    pub spill_load_bytes: u32,
    /// Static shared memory per CTA, in bytes.
    pub smem_static_bytes: u32,
    /// Hardware barriers per CTA (16 when one is named dynamically).
    pub barriers: u32,
}

impl EntryReport {
    /// Whether registers went to local memory.
    pub fn spills(&self) -> bool {
        self.spill_store_bytes > 0 || self.spill_load_bytes > 0
    }
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// `C7510` (ptxas) or `177-D` (front end); empty where there is none.
    pub code: String,
    /// The message.
    pub text: String,
}

impl Warning {
    /// Whether wgmma was serialised (C7510 to C7516) or setmaxnreg ignored (C7508).
    pub fn is_serialisation(&self) -> bool {
        matches!(
            self.code.as_str(),
            "C7508" | "C7510" | "C7511" | "C7512" | "C7513" | "C7514" | "C7515" | "C7516"
        ) || self.text.contains("wgmma.mma_async instructions are serialized")
            || self.text.contains("'setmaxnreg' ignored")
    }
}

/// Parses NVRTC's program log. Lines that are not known are passed over.
pub(super) fn parse(log: &str) -> Report {
    let mut report = Report::default();
    // The function that `Function properties` announced, for the line after it.
    let mut described: Option<String> = None;
    for line in log.lines() {
        if let Some(message) = line.strip_prefix("ptxas") {
            let Some((_, message)) = message.split_once([':', '.']) else {
                continue;
            };
            let message = message.trim();
            if let Some(w) = coded(message) {
                report.warnings.push(w);
            } else if let Some(rest) = message.strip_prefix("Compiling entry function '") {
                if let Some((name, _)) = rest.split_once('\'') {
                    report
                        .entries
                        .push(EntryReport { name: name.into(), ..EntryReport::default() });
                }
            } else if let Some(name) = message.strip_prefix("Function properties for ") {
                described = Some(name.trim().into());
            } else if message.contains("bytes stack frame") {
                if let Some(name) = described.take() {
                    let target = target(&mut report, &name);
                    for (n, what) in items(message) {
                        match what {
                            "bytes stack frame" => target.stack_bytes = n,
                            "bytes spill stores" => target.spill_store_bytes = n,
                            "bytes spill loads" => target.spill_load_bytes = n,
                            _ => {}
                        }
                    }
                }
            } else if let Some(used) = message.strip_prefix("Used ")
                && let Some(entry) = report.entries.last_mut()
            {
                for (n, what) in items(used) {
                    match what {
                        "registers" => entry.registers = n,
                        "barriers" => entry.barriers = n,
                        "bytes smem" => entry.smem_static_bytes = n,
                        "bytes cumulative stack size" => {
                            entry.stack_bytes = entry.stack_bytes.max(n);
                        }
                        _ => {}
                    }
                }
            }
        } else if let Some((_, rest)) = line.split_once(": warning ") {
            let (code, text) =
                rest.strip_prefix('#').and_then(|r| r.split_once(": ")).unwrap_or(("", rest));
            report.warnings.push(Warning { code: code.into(), text: text.trim().into() });
        }
    }
    report
}

fn target<'a>(report: &'a mut Report, name: &str) -> &'a mut EntryReport {
    if let Some(i) = report.entries.iter().position(|e| e.name == name) {
        return &mut report.entries[i];
    }
    let i = report.functions.len();
    report.functions.push(EntryReport { name: name.into(), ..EntryReport::default() });
    &mut report.functions[i]
}

/// `(C7510) text`.
fn coded(message: &str) -> Option<Warning> {
    let (code, text) = message.strip_prefix('(')?.split_once(')')?;
    code.starts_with('C').then(|| Warning { code: code.into(), text: text.trim().into() })
}

/// `168 registers, used 16 barriers, 1024 bytes smem` as numbers and words.
fn items(text: &str) -> impl Iterator<Item = (u32, &str)> {
    text.split(',').filter_map(|item| {
        let item = item.trim();
        let item = item.strip_prefix("used ").unwrap_or(item);
        let (n, what) = item.split_once(' ')?;
        Some((n.parse().ok()?, what.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Logs of NVRTC 13.0.88.
    const CLEAN: &str = "\
ptxas info    : 28 bytes gmem
ptxas info    : Compiling entry function 'gemm_bf16' for 'sm_90a'
ptxas info    : Function properties for gemm_bf16
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1024 bytes smem
ptxas info    : Compile time = 149.173 ms
";
    const BAD: &str = "\
k.cu(3): warning #177-D: variable \"x\" was declared but never referenced
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7517) warpgroup.wait is injected in around line 42 by compiler to allow use of registers defined by GMMA in function 'serialised'
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'serialised'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     6560 bytes stack frame, 6508 bytes spill stores, 16632 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 6560 bytes cumulative stack size
ptxas info    : Compile time = 1174.809 ms
ptxas info    : Compiling entry function 'withcall' for 'sm_90a'
ptxas info    : Function properties for withcall
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compile time = 3.826 ms
ptxas info    : Function properties for _Z6calleePf
ptxas         .     0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
";

    #[test]
    fn a_clean_log_gives_the_figures() {
        let report = parse(CLEAN);
        assert!(report.warnings.is_empty());
        assert_eq!(
            report.entry("gemm_bf16"),
            Some(&EntryReport {
                name: "gemm_bf16".into(),
                registers: 168,
                barriers: 16,
                smem_static_bytes: 1024,
                ..EntryReport::default()
            })
        );
    }

    #[test]
    fn spills_and_warnings_are_found() {
        let report = parse(BAD);
        let codes: Vec<(&str, bool)> =
            report.warnings.iter().map(|w| (&*w.code, w.is_serialisation())).collect();
        assert_eq!(codes, [("177-D", false), ("C7508", true), ("C7517", false), ("C7511", true)]);
        let spill = report.entry("spill").cloned().unwrap_or_default();
        assert_eq!(
            (spill.stack_bytes, spill.spill_store_bytes, spill.spill_load_bytes),
            (6560, 6508, 16632)
        );
        assert_eq!(spill.registers, 32);
        assert!(report.entry("withcall").is_some_and(|e| !e.spills()));
        assert_eq!(report.functions[0].name, "_Z6calleePf");
        assert!(report.functions[0].spills());
    }

    #[test]
    fn nonsense_is_passed_over() {
        assert_eq!(parse("ptxas\nptxas info : Used x registers\n: warning \n").entries.len(), 0);
    }
}
