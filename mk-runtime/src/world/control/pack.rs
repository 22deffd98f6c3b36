//! Fields of a message, little-endian, lengths first. What another process sent is never trusted to be whole.

/// Writes fields.
#[derive(Default)]
pub(crate) struct Pack {
    bytes: Vec<u8>,
}

impl Pack {
    pub(crate) fn u64(mut self, value: u64) -> Pack {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(self, value: &[u8]) -> Pack {
        let mut this = self.u64(value.len() as u64);
        this.bytes.extend_from_slice(value);
        this
    }

    /// A text, cut to what a message may hold.
    pub(crate) fn text(self, value: &str) -> Pack {
        const MOST: usize = 4096;
        let cut = value.char_indices().map(|(at, _)| at).take_while(|at| *at <= MOST).last();
        let end = if value.len() <= MOST { value.len() } else { cut.unwrap_or(0) };
        self.bytes(&value.as_bytes()[..end])
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads fields; `None` when there are not as many bytes.
pub(crate) struct Unpack<'a> {
    rest: &'a [u8],
}

impl<'a> Unpack<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Unpack<'a> {
        Unpack { rest: bytes }
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*head))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u64()?).ok()?;
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes().map(|b| String::from_utf8_lossy(b).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_lies_do_not() {
        let message = Pack::default().u64(7).text("seven").bytes(&[1, 2]).done();
        let mut fields = Unpack::new(&message);
        assert_eq!(fields.u64(), Some(7));
        assert_eq!(fields.text().as_deref(), Some("seven"));
        assert_eq!(fields.bytes(), Some(&[1u8, 2][..]));
        assert_eq!(fields.u64(), None);
        let lie = Pack::default().u64(u64::MAX).done();
        assert_eq!(Unpack::new(&lie).bytes(), None);
        let long = "ä".repeat(5000);
        let message = Pack::default().text(&long).done();
        let cut = Unpack::new(&message).text().unwrap();
        assert!(cut.len() <= 4096 && cut.len() > 4090 && long.starts_with(&cut));
    }
}
