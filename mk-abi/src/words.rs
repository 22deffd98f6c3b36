//! Numbers in messages.

/// `1 rank`, `3 ranks`, `2 launches`: a number and its noun, of which the singular is given.
pub fn count(n: impl TryInto<u64>, noun: &str) -> String {
    // What does not fit is not one.
    let n = n.try_into().unwrap_or(u64::MAX);
    let plural = match noun {
        _ if n == 1 => "",
        "epoch" => "s",
        noun if noun.ends_with("ch") || noun.ends_with('s') || noun.ends_with('x') => "es",
        _ => "s",
    };
    format!("{n} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1u32, "rank"), "1 rank");
        assert_eq!(count(0usize, "rank"), "0 ranks");
        assert_eq!(count(3u64, "launch"), "3 launches");
        assert_eq!(count(2u32, "epoch"), "2 epochs");
        assert_eq!(count(2i32, "access"), "2 accesses");
        assert_eq!(count(1i32, "access"), "1 access");
    }
}
