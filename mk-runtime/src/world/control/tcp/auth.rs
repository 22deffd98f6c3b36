//! Who knows the token: HMAC-SHA-256 (RFC 2104) over both ends' nonces, one answer for each end, and a key for what
//! follows.

use sha2::{Digest, Sha256};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use crate::{Error, Result};

/// Bytes of an answer, and of a frame's tag.
pub(super) const TAG: usize = 32;
const BLOCK: usize = 64;
/// A token that is shorter can be guessed.
const LEAST: usize = 16;

/// The secret of a run. Its text shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// A secret that all processes of the run have.
    ///
    /// # Errors
    /// [`Error::Shape`] for fewer than 16 bytes.
    pub fn new(secret: &[u8]) -> Result<Token> {
        if secret.len() < LEAST {
            let what = format!("a token of {} bytes can be guessed: take {LEAST}", secret.len());
            return Err(Error::Shape { what });
        }
        Ok(Token(secret.to_vec()))
    }

    /// The content of a file, without white space at its end.
    ///
    /// # Errors
    /// [`Error::System`] where it cannot be read, and where others than its owner may read it; as [`Token::new`].
    pub fn from_file(path: &Path) -> Result<Token> {
        let failed = |what: String| Error::System {
            call: "open",
            what: format!("{}: {what}", path.display()),
        };
        let mut file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
        let meta = file.metadata().map_err(|e| failed(e.to_string()))?;
        let mode = std::os::unix::fs::MetadataExt::mode(&meta);
        if mode & 0o077 != 0 {
            return Err(failed("others may read this token: chmod 600".into()));
        }
        let mut text = Vec::new();
        file.by_ref().take(4096).read_to_end(&mut text).map_err(|e| failed(e.to_string()))?;
        Token::new(text.trim_ascii_end())
    }

    /// For processes of one host that nobody else reaches: what tells runs apart, and is no secret.
    ///
    /// # Errors
    /// [`Error::Shape`] for an address that other hosts reach.
    pub fn of_run(run: &str, address: IpAddr) -> Result<Token> {
        if !address.is_loopback() {
            let what =
                format!("{address} can be reached from other hosts: give it a file with a token");
            return Err(Error::Shape { what });
        }
        Ok(Token(Sha256::digest(run).to_vec()))
    }

    /// The secret of a world's connections, by what its processes have said to each other; where they have a token,
    /// nobody else can know it.
    pub(in crate::world) fn of_world(token: Option<&Token>, said: &[[u8; 32]]) -> Token {
        let key = token.map_or(&[][..], |token| &token.0);
        let parts: Vec<&[u8]> =
            std::iter::once(&b"world"[..]).chain(said.iter().map(|s| &s[..])).collect();
        Token(hmac(key, &parts).to_vec())
    }

    /// What shows that one knows the token, of something that was never used before.
    pub(in crate::world) fn knows(&self, salt: &[u8; 32]) -> [u8; TAG] {
        hmac(&self.0, &[b"knows", salt])
    }

    /// What two ends make of the token, by what a newcomer has said and the nonce of rank 0.
    pub(super) fn session(&self, greeting: &[u8], nonce: &[u8]) -> Session {
        Session { secret: hmac(&self.0, &[b"session", greeting, nonce]) }
    }
}

/// A connection's secret.
pub(super) struct Session {
    secret: [u8; TAG],
}

impl Session {
    /// What a rank shows: nobody who lacks the token can.
    pub(super) fn shows(&self, rank: u32) -> [u8; TAG] {
        hmac(&self.secret, &[b"shows", &rank.to_le_bytes()])
    }

    pub(super) fn is_shown(&self, rank: u32, shown: &[u8]) -> bool {
        same(&self.shows(rank), shown)
    }

    pub(super) fn key(&self) -> Key {
        Key(hmac(&self.secret, &[b"frames"]))
    }
}

/// The key of a connection's frames.
pub(super) struct Key([u8; TAG]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// The tag of a direction's frame.
    pub(super) fn tag(&self, direction: u8, number: u64, bytes: &[u8]) -> [u8; TAG] {
        hmac(&self.0, &[&[direction], &number.to_le_bytes(), bytes])
    }

    pub(super) fn is_tag(&self, direction: u8, number: u64, bytes: &[u8], tag: &[u8]) -> bool {
        same(&self.tag(direction, number, bytes), tag)
    }
}

/// Whether two texts are the same, in a time that says nothing of where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

/// Bytes that nobody has seen before.
pub(in crate::world) fn nonce() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes))?;
    Ok(bytes)
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; TAG] {
    let mut block = [0; BLOCK];
    match key.len() <= BLOCK {
        true => block[..key.len()].copy_from_slice(key),
        false => block[..TAG].copy_from_slice(&Sha256::digest(key)),
    }
    let pad = |with: u8| Sha256::new().chain_update(block.map(|b| b ^ with));
    let inner = parts.iter().fold(pad(0x36), |hash, part| hash.chain_update(part)).finalize();
    pad(0x5c).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, cases 1, 2 and 6.
    #[test]
    fn published_values() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (key, data, expected) in [
            (
                vec![0x0b; 20],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hex(&hmac(&key, &[data])), expected);
            let (a, b) = data.split_at(3);
            assert_eq!(hex(&hmac(&key, &[a, b])), expected);
        }
    }

    #[test]
    fn tokens_are_secrets() {
        assert!(Token::new(b"short").is_err());
        let token = Token::new(b"a secret of a run").unwrap();
        assert_eq!(format!("{token:?}"), "Token(…)");
        let error = Token::of_run("run", [10, 0, 0, 1].into()).unwrap_err().to_string();
        assert!(error.contains("a file with a token"), "{error}");
        Token::of_run("run", [127, 0, 0, 1].into()).unwrap();
    }

    #[test]
    fn a_file_is_its_owners() {
        let path = std::env::temp_dir().join(format!("mk-token-{}", std::process::id()));
        std::fs::write(&path, "sixteen bytes or more\n").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap();
        };
        mode(0o644);
        assert!(Token::from_file(&path).unwrap_err().to_string().contains("chmod 600"));
        mode(0o600);
        assert_eq!(Token::from_file(&path).unwrap(), Token::new(b"sixteen bytes or more").unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(Token::from_file(&path).is_err());
    }
}
