use super::*;
use crate::{
    build::{self, Lowered},
    choice::{Cache, Choice, Conditions, Fuse},
};
use mk_codegen::{
    cost::{DeviceModel, Gpu},
    emit,
    settings::Config,
};
use mk_runtime::store::Kind;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const NAMED: &str =
    "pub fn product(a: bf16[256, 128], b: bf16[128, 256]) -> bf16[256, 256] { gemm(a, b) }";

fn read(text: &str) -> (Program, Bound) {
    let program = Program::parse(text).expect("a pipeline");
    let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("sizes");
    (program, bound)
}

fn config() -> Config {
    Config { ranks: 1, ..Config::default() }
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        Dir(std::env::temp_dir().join(format!("mk-kept-{name}-{}", std::process::id())))
    }

    fn shelf(&self, compiler: u8) -> Shelf {
        let store = Store::open(Some(&self.0)).expect("a store");
        Shelf { store, compiler: [compiler; 32] }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A pipeline with all that decides its proof.
#[derive(Clone)]
struct Case {
    text: &'static str,
    config: Config,
    emission: emit::Options,
    compiler: u8,
}

impl Case {
    fn new() -> Case {
        Case { text: NAMED, config: config(), emission: emit::Options::default(), compiler: 1 }
    }

    fn lowered(&self) -> Lowered {
        let (program, bound) = read(self.text);
        build::lower(&program, &bound, &self.config, self.emission).expect("a plan")
    }

    /// Whether a kept proof was taken.
    fn is_kept(&self, dir: &Dir, lowered: &Lowered) -> bool {
        let (program, bound) = read(self.text);
        let proofs = Proofs { shelf: Some(dir.shelf(self.compiler)) };
        let Lowered { plan, source, .. } = lowered;
        let proved = proofs.prove(&program, &bound, &self.config, self.emission, plan, source);
        let proved = proved.expect("a proof");
        assert!(proved.proof.pairs > 0 && proved.proof.plan == lowered.plan.name);
        proved.is_kept
    }

    fn key(&self, dir: &Dir) -> Key {
        let (program, bound) = read(self.text);
        dir.shelf(self.compiler).proof_key(&program, &bound, &self.config, self.emission)
    }

    fn entry(&self, dir: &Dir) -> PathBuf {
        dir.shelf(self.compiler).store.entry(Kind::Proof, &self.key(dir))
    }
}

#[test]
fn a_proof_is_taken_by_the_same_plan_of_the_same_compiler_only() {
    let dir = Dir::new("same");
    let case = Case::new();
    let lowered = case.lowered();
    assert!(!case.is_kept(&dir, &lowered), "nothing is there");
    assert!(case.is_kept(&dir, &lowered) && case.is_kept(&dir, &case.lowered()));

    let narrow = Config { block: [128, 128, 64], stages: Some(3), ..config() };
    let others = [
        ("the compiler", Case { compiler: 2, ..case.clone() }),
        ("a setting", Case { config: narrow, ..case.clone() }),
        ("emission", Case { emission: emit::Options { trace: true }, ..case.clone() }),
        (
            "a size",
            Case {
                text: "pub fn product(a: bf16[512, 128], b: bf16[128, 256]) -> bf16[512, 256] { gemm(a, b) }",
                ..case.clone()
            },
        ),
        (
            "a name",
            Case {
                text: "pub fn produce(a: bf16[256, 128], b: bf16[128, 256]) -> bf16[256, 256] { gemm(a, b) }",
                ..case.clone()
            },
        ),
        (
            "an operation",
            Case {
                text: "pub fn product(a: bf16[256, 128], b: bf16[128, 256]) -> bf16[256, 256] { gemm(a, b) -> relu }",
                ..case.clone()
            },
        ),
    ];
    for (what, other) in others {
        let plan = other.lowered();
        assert!(!other.is_kept(&dir, &plan), "{what}");
        assert!(other.is_kept(&dir, &plan), "{what}, again");
    }
    // Figures of the machine that plans are made for.
    let (program, bound) = read(NAMED);
    let machine =
        |text: &str| dir.shelf(1).proof_key_on(&program, &bound, &case.config, case.emission, text);
    let target = format!("{:?}", mk_codegen::target::by_name(&case.config.target));
    assert_eq!(machine(&target), case.key(&dir));
    assert_ne!(machine(&target.replace("sms: 132", "sms: 131")), case.key(&dir));
}

#[test]
fn one_byte_of_plan_kernel_or_entry_is_proved_anew() {
    let dir = Dir::new("byte");
    let case = Case::new();
    let lowered = case.lowered();
    case.is_kept(&dir, &lowered);
    let mut plan = lowered.clone();
    plan.plan.name.push('x');
    let mut kernel = lowered.clone();
    kernel.source.cuda.push(' ');
    let mut grid = lowered.clone();
    grid.source.grid += 1;
    for (what, other) in [("the plan", plan), ("the kernel", kernel), ("its launch", grid)] {
        assert!(!case.is_kept(&dir, &other), "{what}");
        // Which is now the one that is kept, and not the first.
        assert!(case.is_kept(&dir, &other), "{what}, again");
        assert!(!case.is_kept(&dir, &lowered), "{what}, the first");
    }
    let entry = case.entry(&dir);
    let sound = fs::read(&entry).expect("an entry");
    for at in (0..sound.len()).step_by(13).chain([sound.len() - 1]) {
        let mut bad = sound.clone();
        bad[at] ^= 1;
        fs::write(&entry, bad).expect("written");
        assert!(!case.is_kept(&dir, &lowered), "flipped at {at}");
        assert!(case.is_kept(&dir, &lowered), "made again after {at}");
    }
    for length in [0, 8, 80, sound.len() / 2, sound.len() - 1] {
        fs::write(&entry, &sound[..length]).expect("written");
        assert!(!case.is_kept(&dir, &lowered), "cut at {length}");
    }
    // Sealed as it should be, with a text that is no record, or one of another plan.
    let store = dir.shelf(1).store;
    let record =
        String::from_utf8(store.read(Kind::Proof, &case.key(&dir)).expect("kept")).expect("text");
    for (from, to) in [
        ("proved and evaluated 1", "proved and evaluated 0"),
        ("proved and evaluated 1\n", ""),
        ("plan ", "plan 0"),
        ("kernel ", "kernel 0"),
        ("\"pairs\"", "\"pears\""),
        ("}\n", "}\n\n"),
        ("}\n", "}"),
    ] {
        assert!(record.contains(from), "{record}");
        store.write(Kind::Proof, &case.key(&dir), record.replace(from, to).as_bytes());
        assert!(!case.is_kept(&dir, &lowered), "{from:?} is {to:?}");
    }
}

#[test]
fn what_others_could_have_written_is_not_taken() {
    let dir = Dir::new("others");
    let case = Case::new();
    let lowered = case.lowered();
    case.is_kept(&dir, &lowered);
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
    };
    mode(&case.entry(&dir), 0o666);
    assert!(!case.is_kept(&dir, &lowered));
    assert!(case.is_kept(&dir, &lowered), "written anew");
    // In a directory of everybody's nothing is taken, and nothing is left.
    mode(&dir.0, 0o777);
    let jit = JitOptions { cache_dir: Some(dir.0.clone()), ..JitOptions::default() };
    assert!(Shelf::open(&jit, Prove::Cached).is_none());
    mode(&dir.0, 0o700);
    assert!(Shelf::open(&jit, Prove::Cached).is_some());
    assert!(Shelf::open(&jit, Prove::Always).is_none());
    assert!(Shelf::open(&JitOptions { use_cache: false, ..jit }, Prove::Cached).is_none());
}

/// The place of the cache in a child process of a test, and nowhere else.
fn child() -> Option<PathBuf> {
    std::env::var_os("MK_TEST_KEPT").map(PathBuf::from)
}

#[test]
fn child_proves() {
    let Some(dir) = child() else { return };
    let jit = JitOptions { cache_dir: Some(dir), ..JitOptions::default() };
    let proofs = Proofs::new(&jit, Prove::Cached);
    let (case, (program, bound)) = (Case::new(), read(NAMED));
    for _ in 0..20 {
        let Lowered { plan, source, .. } = case.lowered();
        let proved = proofs.prove(&program, &bound, &case.config, case.emission, &plan, &source);
        println!("MESSAGE {}", proved.expect("a proof").is_kept);
    }
}

#[test]
fn processes_may_prove_at_once_and_the_next_one_need_not() {
    let dir = Dir::new("processes");
    let start = || {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "kept::tests::child_proves", "--nocapture"]);
        command.env("MK_TEST_KEPT", &dir.0).stdout(std::process::Stdio::piped());
        command.spawn().expect("starts")
    };
    let children: Vec<_> = (0..2).map(|_| start()).collect();
    let said = |child: std::process::Child| {
        let output = child.wait_with_output().expect("ends");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    for child in children {
        assert!(said(child).contains("MESSAGE true"));
    }
    let next = said(start());
    assert!(next.contains("MESSAGE true") && !next.contains("MESSAGE false"), "{next}");
    let left = fs::read_dir(&dir.0).expect("a directory").flatten();
    let names: Vec<_> = left.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    assert!(names.len() == 1 && names[0].ends_with(".proof"), "{names:?}");
}

#[test]
fn a_rank_takes_the_proof_of_the_same_plan_only() {
    let (program, bound) = read(NAMED);
    let lowered = Case::new().lowered();
    let Lowered { plan, source, .. } = &lowered;
    let proved = Proofs::none()
        .prove(&program, &bound, &config(), emit::Options::default(), plan, source)
        .expect("a proof");
    let heard = Proved::read(&proved.write()).expect("a record");
    assert_eq!(heard, Proved { is_kept: true, time: Duration::ZERO, ..proved.clone() });
    assert_eq!(proved.write().lines().count(), Proved::LINES);
    assert_eq!(heard.digests, Digests::of(&lowered.plan, &lowered.source));
}

#[test]
fn a_choice_is_taken_on_the_same_terms_only() {
    let dir = Dir::new("choice");
    let jit = JitOptions { cache_dir: Some(dir.0.clone()), ..JitOptions::default() };
    let cache = Cache::new(&jit).expect("a cache");
    let (program, bound) = read(NAMED);
    let given = config();
    let h200 = Gpu::from("NVIDIA H200");
    let settle = |compiler, gpu: &Gpu, fuse, overlap| {
        let search = Some((gpu, Some(&cache)));
        let terms = Conditions { config: &given, fuse, overlap, search };
        let shelf = dir.shelf(compiler);
        let key = shelf.choice_key(&program, &bound, &terms, gpu, Some(&cache));
        let choices = Choices { shelf: Some(shelf.clone()) };
        (choices.settle(&program, &bound, &terms), shelf, key)
    };
    let (first, shelf, key) = settle(1, &h200, Fuse::Auto, false);
    let text = shelf.store.read(Kind::Choice, &key).expect("kept");
    assert_eq!(first.write(&program, &bound).as_bytes(), text);
    // Something else in its place is what is taken: nothing was searched.
    let mark = Config { block: [128, 128, 64], ..given.clone() };
    let marked = Choice { configs: vec![mark.clone()], ..first.clone() };
    assert_ne!(first.configs, marked.configs, "find another mark");
    let keep_mark =
        || shelf.store.write(Kind::Choice, &key, marked.write(&program, &bound).as_bytes());
    keep_mark();
    assert_eq!(settle(1, &h200, Fuse::Auto, false).0.configs[0].block, mark.block);
    // Another compiler, GPU, or question searches.
    let h100 = Gpu::from("NVIDIA H100 80GB HBM3");
    for (what, (_, _, other)) in [
        ("compiler", settle(2, &h200, Fuse::Auto, false)),
        ("GPU", settle(1, &h100, Fuse::Auto, false)),
        ("fuse", settle(1, &h200, Fuse::Always, false)),
        ("overlap", settle(1, &h200, Fuse::Auto, true)),
    ] {
        assert_ne!(other, key, "{what}");
    }
    // So do figures of this GPU that are installed, and a winner that was measured.
    let mut model = DeviceModel::h200().clone();
    cache.store_model(&model).expect("stored");
    assert_eq!(settle(1, &h200, Fuse::Auto, false).2, key, "the same figures");
    model.launch_s *= 2.0;
    cache.store_model(&model).expect("stored");
    assert_ne!(settle(1, &h200, Fuse::Auto, false).2, key, "other figures");
    fs::remove_dir_all(dir.0.join("tune")).expect("removed");
    keep_mark();
    let winner = crate::choice::Winner { config: first.configs[0].clone(), ms: 1.0 };
    let tuned = crate::choice::Key::new(&program, &bound, 1, &given.target, &h200.name);
    cache.store(&tuned, &winner).expect("stored");
    let (measured, _, other) = settle(1, &h200, Fuse::Auto, false);
    assert_ne!(other, key, "a winner");
    assert_eq!(measured.configs[0].block, winner.config.block);
    // What is no choice is searched again.
    fs::remove_dir_all(dir.0.join("tune")).expect("removed");
    shelf.store.write(Kind::Choice, &key, b"fused asked - -\nconfig nonsense=1");
    assert_eq!(settle(1, &h200, Fuse::Auto, false).0.configs, first.configs);
}
