//! Lists of pipelines: a file with a command line on each line.

use crate::{
    failure::{Failure, Kind, Result},
    options::PipelineArgs,
    source,
};
use clap::Parser;
use std::path::Path;

/// One line of a list.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
pub struct Line {
    #[command(flatten)]
    pub pipeline: PipelineArgs,
    /// As on the command line, for this pipeline alone.
    #[arg(long = "try", value_name = "SETTING=A,B", value_parser = values)]
    pub tries: Vec<(String, Vec<String>)>,
}

/// Reads a list.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = source::read(path)?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let failed = |e: String| {
            let what = format!("{}, line {}: {e}", path.display(), number + 1);
            Failure::new(Kind::CommandLine, what)
        };
        lines.extend(parse(line).map_err(failed)?);
    }
    Ok(lines)
}

/// Reads a line; an empty one is none.
pub fn parse(line: &str) -> Result<Option<Line>, String> {
    let words = split(line)?;
    if words.is_empty() {
        return Ok(None);
    }
    Line::try_parse_from(words).map(Some).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string()
    })
}

/// Words of a line, as a shell would see them: quotes keep blanks, # begins a comment.
fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match quote {
        None => Ok(words),
        Some(q) => Err(format!("a {q} is not closed")),
    }
}

/// The values of a setting, as `--try` has them.
pub fn values(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, list) = text.split_once('=').ok_or("write it as intra_comm_sms=8,16")?;
    let values: Vec<String> = list.split(',').map(|v| v.trim().to_string()).collect();
    match name.trim() {
        "" => Err("write it as intra_comm_sms=8,16".into()),
        name if values.iter().all(|v| !v.is_empty()) => Ok((name.into(), values)),
        name => Err(format!("`{name}` has an empty value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words() {
        let line = r#"  "gather(a) -> gemm(b)" --shape a=8x4 'x y'  # a comment"#;
        assert_eq!(split(line).unwrap(), ["gather(a) -> gemm(b)", "--shape", "a=8x4", "x y"]);
        assert_eq!(split("# nothing").unwrap(), Vec::<String>::new());
        assert!(split("\"open").is_err());
        assert!(parse(line).is_err() && parse("  ").is_ok_and(|l| l.is_none()));
        let line = parse("'gather(a)' --shape a=8x4 --try chunk_bytes=1,2").unwrap().unwrap();
        assert_eq!(line.tries, [("chunk_bytes".to_string(), vec!["1".to_string(), "2".into()])]);
    }

    #[test]
    fn values_of_a_setting() {
        assert!(values("block=128x128x64,128x256x64").is_ok_and(|(_, v)| v.len() == 2));
        assert!(values("block=").is_err() && values("block").is_err() && values("=1").is_err());
    }
}
