use super::*;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

const KEY: Key = Key([7; 32]);
const OTHER: Key = Key([9; 32]);

fn body() -> Vec<u8> {
    (0..=255u8).cycle().take(5000).collect()
}

/// A store in a folder of its own.
fn scratch(name: &str) -> (Store, PathBuf) {
    let dir = std::env::temp_dir().join(format!("mk-store-{name}-{}", std::process::id()));
    (Store::open(Some(&dir)).unwrap(), dir)
}

#[test]
fn an_item_reads_back_as_its_kind_and_under_its_key() {
    let (store, dir) = scratch("reads");
    for kind in Kind::ALL {
        assert_eq!(store.read(kind, &KEY), None);
        store.write(kind, &KEY, &body());
        assert_eq!(store.read(kind, &KEY), Some(body()), "{kind}");
        assert_eq!(store.read(kind, &OTHER), None);
        let file = fs::read(store.entry(kind, &KEY)).unwrap();
        for other in Kind::ALL.into_iter().filter(|k| *k != kind) {
            assert!(decode(&file, other, &KEY).is_err(), "{kind} as {other}");
        }
    }
    let kept = count(&dir);
    let expected = |kind| Kept { kind, files: 1, bytes: (HEAD + body().len()) as u64 };
    assert_eq!(kept, Kind::ALL.map(expected));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn no_torn_flipped_or_longer_file_is_accepted() {
    let kind = Kind::Proof;
    let file = encode(&body(), kind, &KEY);
    for cut in [0, 7, 8, 39, 40, 71, 72, 79, 80, 92, file.len() - 1] {
        assert!(decode(&file[..cut], kind, &KEY).is_err(), "cut at {cut}");
    }
    for at in 0..file.len() {
        let mut bad = file.clone();
        bad[at] ^= 1;
        assert!(decode(&bad, kind, &KEY).is_err(), "flipped at {at}");
    }
    let long = [&file[..], &[0]].concat();
    assert!(decode(&long, kind, &KEY).is_err());
}

#[test]
fn a_file_copied_over_another_is_not_taken_for_it() {
    let (store, dir) = scratch("copied");
    let kind = Kind::Kernel;
    store.write(kind, &KEY, &body());
    fs::copy(store.entry(kind, &KEY), store.entry(kind, &OTHER)).unwrap();
    assert_eq!(store.read(kind, &OTHER), None);
    let file = fs::read(store.entry(kind, &KEY)).unwrap();
    assert_eq!(decode(&file, kind, &OTHER), Err("it is the file of another key"));
    // Nor with the other key written into it.
    let mut forged = file;
    forged[8..40].copy_from_slice(&OTHER.0);
    assert_eq!(decode(&forged, kind, &OTHER), Err("it is damaged"));
    store.remember("one", "12.9");
    fs::copy(store.memo("one"), store.memo("two")).unwrap();
    assert_eq!((store.recall("one").as_deref(), store.recall("two")), (Some("12.9"), None));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn only_regular_files_of_some_size_are_read() {
    let (store, dir) = scratch("kinds");
    let entry = store.entry(Kind::Proof, &KEY);
    let says = |entry: &Path| read_file(entry).unwrap_err().to_string();
    let make: [(&str, &dyn Fn()); 4] = [
        ("an endless file", &|| symlink("/dev/zero", &entry).unwrap()),
        ("a fifo", &|| {
            let made = std::process::Command::new("mkfifo").arg(&entry).status().unwrap();
            assert!(made.success());
        }),
        ("a directory", &|| fs::create_dir(&entry).unwrap()),
        ("a large file", &|| create(&entry).unwrap().set_len(MAX_BYTES + 1).unwrap()),
    ];
    for (what, make) in make {
        make();
        assert_eq!(store.read(Kind::Proof, &KEY), None, "{what}");
        let why = says(&entry);
        assert!(why.contains("regular file") || why.contains("larger than"), "{what}: {why}");
        let folder = entry.is_dir() && !entry.is_symlink();
        let temp = dir.join("temp");
        fs::write(&temp, "x").unwrap();
        // Only this entry is lost, or it is replaced: the cache is as usable as before.
        store.replace(&temp, &entry).unwrap();
        assert!(!temp.exists(), "{what}");
        assert_eq!(entry.is_dir(), folder, "{what}");
        if folder { fs::remove_dir(&entry) } else { fs::remove_file(&entry) }.unwrap();
    }
    // A link to an item of the same key is one.
    store.write(Kind::Proof, &KEY, &body());
    fs::rename(&entry, dir.join("elsewhere")).unwrap();
    symlink(dir.join("elsewhere"), &entry).unwrap();
    assert_eq!(store.read(Kind::Proof, &KEY), Some(body()));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_others_may_write_is_not_believed() {
    let (store, dir) = scratch("others");
    let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, DIR_MODE);
    store.remember("stamp", "12.9");
    for kind in Kind::ALL {
        store.write(kind, &KEY, &body());
        let entry = store.entry(kind, &KEY);
        for bad in [0o666, 0o664, 0o602] {
            mode(&entry, bad).unwrap();
            assert_eq!(store.read(kind, &KEY), None, "{kind} {bad:o}");
        }
        // It is made again, and is the user's alone.
        store.write(kind, &KEY, &body());
        assert_eq!(store.read(kind, &KEY), Some(body()), "{kind}");
        if nix::unistd::geteuid().is_root() {
            chown(&entry, Some(12345), None).unwrap();
            assert_eq!(store.read(kind, &KEY), None, "{kind} of another user");
        }
    }
    mode(&store.memo("stamp"), 0o666).unwrap();
    assert_eq!(store.recall("stamp"), None);
    for bad in [0o777, 0o770, 0o1777] {
        mode(&dir, bad).unwrap();
        assert!(Store::open(Some(&dir)).is_none(), "{bad:o}");
        let said = probe(Some(dir.clone())).unwrap_err().to_string();
        assert!(said.contains("may write it") && said.contains("chmod go-w"), "{said}");
    }
    mode(&dir, 0o755).unwrap();
    assert!(Store::open(Some(&dir)).is_some());
    if nix::unistd::geteuid().is_root() {
        chown(&dir, Some(12345), None).unwrap();
        assert!(Store::open(Some(&dir)).is_none());
        let said = probe(Some(dir.clone())).unwrap_err().to_string();
        assert!(said.contains("belongs to user 12345"), "{said}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_probe_finds_what_is_wrong_and_leaves_nothing() {
    let dir = std::env::temp_dir().join(format!("mk-probe-{}", std::process::id()));
    assert_eq!(probe(Some(dir.clone())).unwrap(), dir);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::remove_dir_all(&dir).unwrap();
    let says = |dir: Option<&str>| probe(dir.map(PathBuf::from)).unwrap_err().to_string();
    assert!(says(None).contains("neither MK_CACHE_DIR nor"));
    let none = says(Some("/proc/no/such/place"));
    assert!(none.contains("/proc/no/such/place") && none.contains("creating it failed"), "{none}");
    // A directory in which nothing can be written, whoever asks.
    let locked = says(Some("/proc/self"));
    assert!(locked.contains("writing a file of 1 MiB failed"), "{locked}");
    assert!(locked.contains("set MK_CACHE_DIR"), "{locked}");
}

#[test]
fn fields_of_a_key_do_not_meet() {
    let keys = [Key::of(["ab", "c"]), Key::of(["a", "bc"]), Key::of(["abc"]), Key::of(["abc", ""])];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|b| a != b));
    }
    assert_eq!(Key::of(["ab", "c"]), Key::of([&b"ab"[..], b"c"]));
}
