//! Words of the text format.

use super::error::{ReadError, Result};

/// A word and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'s> {
    pub text: &'s str,
    pub kind: Kind,
    /// Byte offset in the source.
    pub at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Letters, digits and `_`, beginning with a letter or `_`.
    Word,
    /// The same behind a `$`, which is not part of the text: the name of a dimension, whatever else the word means.
    Name,
    /// Digits, or `0x` and hex digits.
    Number,
    /// A quoted string, quotes included.
    Text,
    /// One operator.
    Sign,
    /// End of a line.
    Newline,
    End,
}

/// Longest first.
const SIGNS: &[&str] = &[
    "..=", "+=", ">=", "<=", "==", "+", "-", "*", "/", "%", "<", "=", "(", ")", "[", "]", "{", "}",
    ",", ":", "@",
];

/// Length of the word that a text begins with.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

pub(crate) fn lex(source: &str) -> Result<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        let first = rest.as_bytes()[0];
        let (kind, len) = match first {
            b' ' | b'\t' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if rest.starts_with("//") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'\n' => (Kind::Newline, 1),
            b'"' => {
                let end = rest[1..].find(['"', '\n']).filter(|i| rest.as_bytes()[1 + i] == b'"');
                let Some(end) = end else {
                    return Err(ReadError::new(
                        source,
                        at,
                        "the string has no closing quote on its line",
                    ));
                };
                (Kind::Text, end + 2)
            }
            c if c.is_ascii_digit() => (
                Kind::Number,
                rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len()),
            ),
            c if c.is_ascii_alphabetic() || c == b'_' => (Kind::Word, word(rest)),
            b'$' if word(&rest[1..]) > 0 => {
                at += 1;
                (Kind::Name, word(&rest[1..]))
            }
            _ => match SIGNS.iter().find(|s| rest.starts_with(**s)) {
                Some(sign) => (Kind::Sign, sign.len()),
                None => {
                    return Err(ReadError::new(source, at, "this character means nothing here"));
                }
            },
        };
        tokens.push(Token { text: &source[at..at + len], kind, at });
        at += len;
    }
    tokens.push(Token { text: "", kind: Kind::Newline, at: source.len() });
    tokens.push(Token { text: "", kind: Kind::End, at: source.len() });
    Ok(tokens)
}
