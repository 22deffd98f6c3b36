//! A disassembled kernel in a form that does not depend on names: nvdisasm's text without addresses and symbols.

use std::collections::HashMap;

/// Instructions, and what the loader is told beside them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Registers, threads, bytes of shared memory, of parameters and of constants, by name.
    facts: Vec<String>,
    instructions: Vec<String>,
}

/// Attributes of a kernel that are compared; others are offsets of instructions, or of symbols.
const ATTRIBUTES: &[&str] = &[
    "EIATTR_REGCOUNT",
    "EIATTR_FRAME_SIZE",
    "EIATTR_MAX_THREADS",
    "EIATTR_REQNTID",
    "EIATTR_CTA_PER_CLUSTER",
    "EIATTR_CBANK_PARAM_SIZE",
    "EIATTR_NUM_BARRIERS",
];

/// The bank of addresses of variables: the code's uses of it are resolved to what the variables hold.
const ADDRESSES: &str = ".nv.constant4";

impl Listing {
    /// Reads the output of `nvdisasm`, all sections of it.
    pub fn parse(text: &str) -> Listing {
        let sections = Sections::read(text);
        let mut facts = sections.facts.clone();
        facts.sort();
        // Labels have numbers in the order of the code.
        let numbers: HashMap<&str, String> = sections
            .code
            .iter()
            .filter_map(|line| line.strip_suffix(':'))
            .enumerate()
            .map(|(n, label)| (label, format!("L{n}")))
            .collect();
        let instructions = sections
            .code
            .iter()
            .map(|line| match line.strip_suffix(':') {
                Some(label) => format!("{}:", numbers[label]),
                None => sections.resolve(&renamed(line, &numbers)),
            })
            .collect();
        Listing { facts, instructions }
    }

    /// How many instructions there are.
    pub fn instructions(&self) -> usize {
        self.instructions.iter().filter(|i| !i.ends_with(':')).count()
    }

    /// The first place where two kernels differ; `None` where they are the same.
    pub fn first_difference(&self, other: &Listing) -> Option<String> {
        if self == other {
            return None;
        }
        // A label more shifts the numbers of all behind it: what differs in more than them is the cause.
        let place = first(&self.instructions, &other.instructions, |line| bare(line).to_string())
            .or_else(|| first(&self.instructions, &other.instructions, str::to_string));
        let counts = match (self.instructions(), other.instructions()) {
            (a, b) if a == b => format!("{a} instructions each"),
            (a, b) => format!("{a} instructions became {b}"),
        };
        Some(match place {
            Some((at, a, b)) => format!("{counts}; line {at}: `{a}` became `{b}`"),
            None => {
                let (_, a, b) = first(&self.facts, &other.facts, str::to_string)?;
                format!("{counts}; `{a}` became `{b}`")
            }
        })
    }
}

/// The first place, counted from 1, at which two texts differ in a form of their lines.
fn first(
    a: &[String],
    b: &[String],
    form: impl Fn(&str) -> String,
) -> Option<(usize, String, String)> {
    const END: &str = "(end)";
    let line = |lines: &[String], at: usize| lines.get(at).cloned().unwrap_or_else(|| END.into());
    (0..a.len().max(b.len()))
        .map(|at| (at + 1, line(a, at), line(b, at)))
        .find(|(_, x, y)| form(x) != form(y))
}

/// An instruction without the labels that it names.
fn bare(line: &str) -> &str {
    if line.ends_with(':') { ":" } else { line.split("`(").next().unwrap_or(line) }
}

/// The sections that decide what a kernel does.
#[derive(Default)]
struct Sections {
    /// Instructions, and labels that end in a colon.
    code: Vec<String>,
    facts: Vec<String>,
    /// What variables hold, by symbol.
    data: HashMap<String, String>,
    /// The variable of each entry of the bank of addresses.
    addresses: HashMap<u64, String>,
}

impl Sections {
    fn read(text: &str) -> Sections {
        let mut out = Sections::default();
        let (mut section, mut symbol, mut attribute) = ("", "", None);
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix(".section") {
                section = rest.trim().split(',').next().unwrap_or("");
                (symbol, attribute) = ("", None);
            } else if let Some(name) = line.strip_prefix("//----- nvinfo : ") {
                attribute = ATTRIBUTES.iter().find(|a| **a == name);
            } else if let Some(label) = line.strip_suffix(':') {
                symbol = label;
                if section.starts_with(".text") && !label.starts_with(".text") {
                    out.code.push(line.to_string());
                }
            } else if let Some((address, content)) = addressed(line) {
                let content = content.trim_end_matches(';').trim();
                if section.starts_with(".text") {
                    out.code.push(content.to_string());
                } else if section == ADDRESSES {
                    if let Some(name) = content.strip_prefix(".dword") {
                        out.addresses.insert(address, name.trim().to_string());
                    }
                } else if section.starts_with(".nv.constant") {
                    out.facts.push(format!("{section} {address:x}: {content}"));
                } else if section.starts_with(".nv.info") {
                    // Names and offsets of symbols are not numbers.
                    if let (Some(a), Some((_, number))) = (attribute, content.split_once("\t0x")) {
                        out.facts.push(format!("{a} {number}"));
                    }
                } else if section == ".nv.global.init" {
                    let held = out.data.entry(symbol.to_string()).or_default();
                    held.push_str(content);
                }
            } else if let Some(bytes) = line.strip_prefix(".zero") {
                if section == ".nv.global" {
                    out.data.insert(symbol.to_string(), format!("zero {}", bytes.trim()));
                } else if !section.starts_with(".nv.shared.reserved") {
                    out.facts.push(format!("{section}: {} bytes", bytes.trim()));
                }
            }
        }
        out
    }

    /// `c[0x4][0x28]` as what the variable holds whose address is there.
    fn resolve(&self, instruction: &str) -> String {
        const BANK: &str = "c[0x4][0x";
        let mut out = String::new();
        let mut rest = instruction;
        while let Some((before, after)) = rest.split_once(BANK) {
            let (offset, behind) = after.split_once(']').unwrap_or((after, ""));
            let held = u64::from_str_radix(offset, 16)
                .ok()
                .and_then(|at| self.addresses.get(&at))
                .map(|name| self.data.get(name).unwrap_or(name));
            match held {
                Some(held) => out.push_str(&format!("{before}c[0x4][={held}]")),
                None => out.push_str(&format!("{before}{BANK}{offset}]")),
            }
            rest = behind;
        }
        out + rest
    }
}

/// `/*0120*/ TEXT`.
fn addressed(line: &str) -> Option<(u64, &str)> {
    let (address, content) = line.strip_prefix("/*")?.split_once("*/")?;
    Some((u64::from_str_radix(address, 16).ok()?, content.trim()))
}

/// An instruction with the numbers of the labels that it names, which stand as `` `(.L_x_3) ``.
fn renamed(instruction: &str, numbers: &HashMap<&str, String>) -> String {
    let mut out = String::new();
    let mut rest = instruction;
    while let Some((before, after)) = rest.split_once("`(") {
        let (label, behind) = after.split_once(')').unwrap_or((after, ""));
        let name = numbers.get(label).map_or(label, String::as_str);
        out.push_str(&format!("{before}`({name})"));
        rest = behind;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel with a table in the bank of addresses, by the names of its symbols and one of its instructions.
    fn text(symbol: &str, label: &str, value: &str, instruction: &str) -> String {
        format!(
            "\
	.section	.nv.info,\"\",@\"SHT_CUDA_INFO\"
	//----- nvinfo : EIATTR_REGCOUNT
        /*0004*/ 	.word	index@({symbol})
        /*0008*/ 	.word	0x000000a8
	.section	.nv.constant4,\"a\",@progbits
.nv.constant4:
        /*0000*/ 	.dword	unused_{symbol}
        /*0008*/ 	.dword	{symbol}
	.section	.text.mk_kernel,\"ax\",@progbits
        .global         mk_kernel
mk_kernel:
.text.mk_kernel:
        /*0000*/                   LDC.64 R4, c[0x4][0x8] ;
{label}:
        /*0010*/              @!P0 {instruction} ;
        /*0020*/                   BRA `({label}) ;
        /*0030*/                   EXIT;
	.section	.nv.global.init,\"aw\",@progbits
	.type		{symbol},@object
{symbol}:
        /*0000*/ 	.byte	{value}
	.section	.nv.shared.mk_kernel,\"aw\",@nobits
	.zero		2048
"
        )
    }

    #[test]
    fn names_and_addresses_do_not_count() {
        let one = Listing::parse(&text("kA", ".L_x_1", "0x01, 0x00", "IADD3 R2, R2, 0x1, RZ"));
        let two =
            Listing::parse(&text("_ZN3fooE", ".L_x_9", "0x01, 0x00", "IADD3 R2, R2, 0x1, RZ"));
        assert_eq!(one.first_difference(&two), None);
        assert_eq!(one.instructions(), 4);
        assert_eq!(one.facts, [".nv.shared.mk_kernel: 2048 bytes", "EIATTR_REGCOUNT 000000a8"]);
    }

    #[test]
    fn an_instruction_a_table_and_a_size_count() {
        let add = "IADD3 R2, R2, 0x1, RZ";
        let base = text("kA", ".L_x_1", "0x01, 0x00", add);
        let one = Listing::parse(&base);
        let differs = |other: &str| one.first_difference(&Listing::parse(other)).expect("differs");
        let how = differs(&text("kA", ".L_x_1", "0x01, 0x00", "IADD3 R2, R2, 0x2, RZ"));
        assert!(how.contains("4 instructions each") && how.contains("0x2, RZ"), "{how}");
        let how = differs(&text("kA", ".L_x_1", "0x02, 0x00", add));
        assert!(how.contains("c[0x4][=.byte\t0x02, 0x00]"), "{how}");
        assert!(differs(&base.replace("2048", "4096")).contains("4096 bytes"));
        assert!(differs(&base.replace("000a8", "000a0")).contains("REGCOUNT"));
        let longer = base.replace("        /*0030*/", "        /*0028*/ NOP ;\n        /*0030*/");
        assert!(differs(&longer).contains("4 instructions became 5"));
    }
}
