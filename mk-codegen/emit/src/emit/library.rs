//! The device library: real CUDA headers ahead of every generated kernel, in a fixed order. A kernel has those that it
//! uses.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

pub use super::{arch::SM90_LIBRARY as FILES, nodes::Nodes};

/// What a traced kernel has beside [`FILES`].
pub const TRACE: (&str, &str) = ("sync/trace.cuh", include_str!("../../templates/sync/trace.cuh"));

/// How the line that says the size of a traced kernel's rings begins.
pub(super) const RECORDS: &str = "constexpr u32 kTraceRecords = ";

/// Line that ends the library in a generated kernel.
pub const END: &str = mk_abi::KernelSource::LIBRARY_END;

/// Words behind which a line names what it declares.
const KEYWORDS: [&str; 4] = ["struct", "class", "enum", "using"];

/// The whole library, with the structs that the host shares.
pub fn text() -> String {
    text_of(FILES, None, Nodes::ONE, false)
}

/// What stands before a kernel's own part: the files of an architecture's library that it uses, with tracing into rings
/// of so many records, over nodes; whether indices of thread and CTA are read anew at each use.
pub(super) fn text_for(
    generated: &str,
    files: &[(&'static str, &'static str)],
    trace_records: Option<u32>,
    nodes: Nodes,
    anew: bool,
) -> String {
    let structs = mk_abi::device::cuda_declarations();
    let traced = trace_records.map_or("", |_| TRACE.1);
    text_of(&used(files, &[generated, &structs, traced]), trace_records, nodes, anew)
}

fn text_of(files: &[(&str, &str)], trace_records: Option<u32>, nodes: Nodes, anew: bool) -> String {
    let mut out = format!("constexpr bool kIndicesAnew = {anew};\n\n");
    for (path, body) in files {
        // The structs that the host shares use the scalar names, and are used from here on.
        if *path == "sync/context.cuh" {
            out.push_str("// ---- structs shared with the host ----\n");
            out.push_str(&mk_abi::device::cuda_declarations());
            out.push_str(&nodes.text());
            out.push('\n');
        }
        out.push_str(&format!("// ---- {path} ----\n{body}\n"));
    }
    if let Some(records) = trace_records {
        let (path, body) = TRACE;
        let structs = mk_abi::device::cuda_trace_declarations();
        out.push_str(&format!("// ---- {path} ----\n{RECORDS}{records};\n{structs}\n{body}\n"));
    }
    out.push_str(END);
    out
}

/// The files that these texts use, and what those use: a file is used where a name that it declares is.
fn used<'f>(files: &[(&'f str, &'static str)], texts: &[&str]) -> Vec<(&'f str, &'static str)> {
    let of: Vec<_> = files.iter().map(|(_, body)| names(body)).collect();
    let mut takes: Vec<bool> = files.iter().map(|(path, _)| *path == "sync/context.cuh").collect();
    let known: HashSet<&str> = of.iter().flat_map(|names| &names.declared).copied().collect();
    let words = texts.iter().flat_map(|t| identifiers(t));
    let mut open: BTreeSet<&str> = words.filter(|word| known.contains(word)).collect();
    // Behind every file stands what uses it.
    for i in (0..files.len()).rev() {
        takes[i] |= of[i].declared.iter().any(|name| open.contains(name));
        if takes[i] {
            open.extend(&of[i].mentioned);
        }
    }
    files.iter().zip(takes).filter(|(_, takes)| *takes).map(|(file, _)| *file).collect()
}

struct Names {
    declared: BTreeSet<&'static str>,
    mentioned: BTreeSet<&'static str>,
}

/// The names in a header. Each is read once in a process.
fn names(body: &'static str) -> Arc<Names> {
    static READ: Mutex<BTreeMap<(usize, usize), Arc<Names>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let names = || {
        let declared = body.lines().filter_map(declared).collect();
        Arc::new(Names { declared, mentioned: identifiers(body).collect() })
    };
    read.entry((body.as_ptr() as usize, body.len())).or_insert_with(names).clone()
}

/// The name that a line declares, if it stands outside of all braces: such lines begin in the first column.
fn declared(line: &str) -> Option<&str> {
    if let Some(macro_) = line.strip_prefix("#define ") {
        return identifiers(macro_).next();
    }
    let line = line.strip_prefix("template ").map_or(line, behind_angles);
    if !line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return None;
    }
    let mut words = identifiers(line).skip_while(|word| !KEYWORDS.contains(word));
    if let Some(name) = words.find(|w| !KEYWORDS.contains(w) && *w != "alignas" && !is_number(w)) {
        return Some(name);
    }
    let head = line.split(['(', '=', '{', ';', '[']).next().unwrap_or("");
    identifiers(head).last()
}

/// What stands behind the parameters of a template.
fn behind_angles(line: &str) -> &str {
    let mut depth = 0;
    for (i, c) in line.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return line[i + 1..].trim_start();
        }
    }
    ""
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// The words of a text, but for those in comments and strings.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().filter_map(|line| line.split("//").next());
    code.flat_map(|line| line.split('"').step_by(2))
        .flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_declare_names() {
        let cases = [
            ("constexpr u32 kEntries = 16;  // of an expert", Some("kEntries")),
            ("struct ListTask {", Some("ListTask")),
            ("struct alignas(16) Vec {", Some("Vec")),
            ("enum class Reader : u32 { Generic, Async };", Some("Reader")),
            ("template <u32 kA, class B = C<u32>>", None),
            ("template <u32 kA> MK_DEVICE void post(const Context& ctx) {", Some("post")),
            ("MK_DEVICE constexpr u32 bytes(u32 rows) { return rows; }", Some("bytes")),
            ("#define MK_DEVICE __device__ __forceinline__", Some("MK_DEVICE")),
            ("  u32 inner = 3;", None),
            ("// constexpr u32 kNone = 1;", None),
            ("}", None),
        ];
        for (line, name) in cases {
            assert_eq!(declared(line), name, "{line}");
        }
    }

    #[test]
    fn every_file_declares_something() {
        for (path, body) in FILES {
            assert!(!names(body).declared.is_empty(), "{path}");
        }
    }

    #[test]
    fn a_kernel_has_what_it_uses() {
        let paths = |text| used(FILES, &[text]).into_iter().map(|f| f.0).collect::<Vec<_>>();
        assert!(paths("").len() < 12, "{:?}", paths(""));
        let gemm = paths("sm90_gemm_loader<Config>(ctx);");
        assert!(gemm.contains(&"tile/gemm_loader.cuh") && gemm.contains(&"ptx/tma.cuh"));
        assert!(!gemm.contains(&"comm/route.cuh") && !gemm.contains(&"tile/attend_dq.cuh"));
    }
}
