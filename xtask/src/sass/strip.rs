//! CUDA text without comments and without the lines that they leave empty.

/// How the line begins that holds a kernel's compiler options: a comment that is kept.
pub const OPTIONS: &str = "// options: ";

/// The text without comments, indentation and empty lines. Strings are left as they are; a first line with compiler
/// options is kept.
pub fn without_comments(text: &str) -> String {
    let (options, body) = match text.strip_prefix(OPTIONS) {
        Some(rest) => rest.split_once('\n').unwrap_or((rest, "")),
        None => ("", text),
    };
    let mut out = format!("{OPTIONS}{options}\n");
    for line in code(body).lines().map(str::trim).filter(|l| !l.is_empty()) {
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// What the scanner is inside of.
enum Inside {
    Code,
    Line,
    Block,
    /// A string or character literal, by its quote.
    Literal(char),
}

fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = Inside::Code;
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        match inside {
            Inside::Code if c == '/' && next == Some('/') => inside = Inside::Line,
            Inside::Code if c == '/' && next == Some('*') => {
                chars.next();
                inside = Inside::Block;
            }
            Inside::Code => {
                // `1'000` is a number.
                if c == '"' || c == '\'' && !before.is_ascii_alphanumeric() {
                    inside = Inside::Literal(c);
                }
                out.push(c);
            }
            Inside::Line if c == '\n' => {
                inside = Inside::Code;
                out.push(c);
            }
            Inside::Block if c == '*' && next == Some('/') => {
                chars.next();
                inside = Inside::Code;
                out.push(' ');
            }
            Inside::Line | Inside::Block => {}
            Inside::Literal(quote) => {
                out.push(c);
                if c == '\\' {
                    out.extend(chars.next());
                } else if c == quote {
                    inside = Inside::Code;
                }
            }
        }
        before = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::without_comments;

    #[test]
    fn strings_and_numbers_keep_what_looks_like_a_comment() {
        let text = "// options: -a\n// plan\n  f(\"// \\\" x\");  // why\n\n/* two\nlines */ int x = 1'000; char c = '\"'; // y\n";
        let want = "// options: -a\nf(\"// \\\" x\");\nint x = 1'000; char c = '\"';\n";
        assert_eq!(without_comments(text), want);
        assert_eq!(without_comments("x // y"), "// options: \nx\n");
        assert_eq!(without_comments(want), want);
    }
}
