//! Tensors as `.npy` files, version 1.0 of NumPy's format:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use crate::{
    failure::{Failure, Kind, Result},
    output::{make_folder, write_file},
};
use mk::abi::DType;
use mk_harness::Held;
use serde_json::{Value, json};
use std::path::Path;

/// The header's length, magic and all, is a multiple of this.
const ALIGN: usize = 64;
const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// Writes tensors as `NAME.rankR.npy`, inputs into a folder of their own, and says which.
pub fn write(dir: &Path, tensors: impl IntoIterator<Item = Result<Held>>) -> Result<Vec<Value>> {
    let mut files = Vec::new();
    for held in tensors {
        let held = held?;
        let plain = |c: char| c == '_' || c.is_ascii_alphanumeric();
        if held.name.is_empty() || !held.name.chars().all(plain) {
            let what =
                format!("the tensor {:?} cannot be written to a file of its name", held.name);
            return Err(Failure::with_help(
                Kind::File,
                what,
                "use letters, digits and `_` in the plan",
            ));
        }
        let folder = if held.input { dir.join("inputs") } else { dir.to_path_buf() };
        make_folder(&folder)?;
        let path = folder.join(format!("{}.rank{}.npy", held.name, held.rank));
        write_file(&path, &encode(&held))?;
        files.push(json!({
            "file": path,
            "tensor": held.name,
            "rank": held.rank,
            "input": held.input,
            "shape": held.shape,
            "dtype": held.dtype.name(),
        }));
    }
    Ok(files)
}

/// Values of types that NumPy does not have are written as float32, which holds them exactly.
fn encode(held: &Held) -> Vec<u8> {
    let written = if held.dtype.format().numpy.is_some() { held.dtype } else { DType::F32 };
    let (descr, bytes) = (written.format().numpy.unwrap_or(""), written.to_bytes(&held.values));
    let extents: String = held.shape.iter().map(|n| format!("{n}, ")).collect();
    let shape = match held.shape.len() {
        1 => extents.trim_end().to_string(),
        _ => extents.trim_end_matches(", ").to_string(),
    };
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // A line break ends it; blanks before that fill it up.
    let before = MAGIC.len() + 2;
    let length = (before + header.len() + 1).next_multiple_of(ALIGN) - before;
    let mut file = MAGIC.to_vec();
    // Eight extents of 20 digits are shorter than 65,536 bytes.
    file.extend((length as u16).to_le_bytes());
    file.extend(format!("{header:<width$}\n", width = length - 1).as_bytes());
    file.extend(bytes);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(shape: &[u64], dtype: DType, values: &[f32]) -> Held {
        let (name, shape) = ("x".to_string(), shape.to_vec());
        Held { name, rank: 0, input: false, shape, dtype, values: values.to_vec() }
    }

    fn header(file: &[u8]) -> String {
        assert_eq!(&file[..8], MAGIC);
        let length = u16::from_le_bytes([file[8], file[9]]) as usize;
        assert_eq!((10 + length) % ALIGN, 0);
        String::from_utf8(file[10..10 + length].to_vec()).unwrap()
    }

    #[test]
    fn headers_are_as_numpy_writes_them() {
        let file = encode(&held(&[2, 3], DType::Bf16, &[1.0, -2.5, 0.0, 3.0, 4.0, 5.0]));
        let text = header(&file);
        let want = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        assert!(text.starts_with(want) && text.ends_with('\n'), "{text}");
        assert_eq!(file.len(), 10 + text.len() + 24);
        assert_eq!(file[10 + text.len() + 4..][..4], (-2.5f32).to_le_bytes());
        let text = header(&encode(&held(&[7], DType::F32, &[0.0; 7])));
        assert!(text.contains("'shape': (7,), "), "{text}");
        let text = header(&encode(&held(&[], DType::F32, &[0.0])));
        assert!(text.contains("'shape': (), "), "{text}");
        let text = header(&encode(&held(&[0, 5], DType::F16, &[])));
        assert!(text.contains("'<f2'") && text.contains("'shape': (0, 5), "), "{text}");
    }

    #[test]
    fn halves_are_two_bytes_of_the_same_value() {
        let file = encode(&held(&[2], DType::F16, &[1.5, f32::INFINITY]));
        assert_eq!(file[file.len() - 4..], [0x00, 0x3e, 0x00, 0x7c]);
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["../x", "", "a/b", "a b"] {
            let held = Held { name: name.into(), ..held(&[1], DType::F32, &[0.0]) };
            assert!(write(Path::new("nowhere"), [Ok(held)]).is_err(), "{name}");
        }
    }
}
