//! Plain safetensors files: against the reference implementation, and hostile ones.
#![allow(clippy::unwrap_used)] // helpers of tests, which the lint's exception does not cover

mod common;

use std::path::Path;

use common::TempDir;
use ferrotron_base::DType;
use ferrotron_checkpoint::safetensors::{TensorSource, write_file};
use ferrotron_checkpoint::{Error, Result, SafetensorsFile, Source};
use half::{bf16, f16};
use proptest::prelude::*;

/// A file written by Python (initial weights of a small GPT), read here and by the reference implementation.
#[test]
fn golden_file_reads_as_the_reference_reads_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gpt_init.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = SafetensorsFile::open(&path).unwrap();
    assert_eq!(ours.tensors().len(), reference.len());
    assert_eq!(ours.tensors().len(), 28);
    for name in ours.names() {
        let want = reference.tensor(name).unwrap();
        assert_eq!(ours.shape(name).unwrap(), want.shape(), "{name}");
        let got: Vec<u8> = ours.read_f32(name).unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(got == want.data(), "{name}");
    }
    // Sum in f64 by Python's struct module: a reference that shares no code with either reader. f32 inputs, so the
    // two sums differ by the order of at most 4096 f64 additions.
    let sum: f64 = ours.read_f32("decoder.layers.0.mlp.linear_fc1.weight").unwrap().iter().map(|&x| f64::from(x)).sum();
    assert!((sum - -4.465364099716226).abs() < 1e-12, "{sum}");
    assert!(matches!(ours.read_f32("lm_head.weight"), Err(Error::NoSuchTensor { .. })));
}

fn source<'a>(name: &str, dtype: DType, shape: &[usize], data: &'a [u8]) -> TensorSource<'a> {
    TensorSource { name: name.into(), dtype, shape: shape.to_vec(), data: Source::Bytes(data) }
}

#[test]
fn written_files_read_back_here_and_in_the_reference() {
    let dir = TempDir::new();
    let path = dir.join("w.safetensors");
    let x: Vec<f32> = (0..300_000).map(|i| i as f32 * 0.25 - 7.0).collect();
    let b: Vec<u8> = x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let h: Vec<u8> = x.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let i: Vec<u8> = (0..10i64).flat_map(|v| (v - 5).to_le_bytes()).collect();
    let f32_source =
        TensorSource { name: "f".into(), dtype: DType::F32, shape: vec![300, 1000], data: Source::F32(&x) };
    let tensors = vec![
        source("odd \"name\"\n", DType::U8, &[3], b"abc"),
        f32_source,
        source("b", DType::BF16, &[300_000], &b),
        source("h", DType::F16, &[1, 300_000], &h),
        source("i", DType::I64, &[10], &i),
        source("nothing", DType::F32, &[4, 0], &[]),
    ];
    let (len, checksum) = write_file(&path, &[("format", "pt")], tensors).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(len, bytes.len() as u64);
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.tensor("b").unwrap().data(), b);
    assert_eq!(reference.tensor("odd \"name\"\n").unwrap().data(), b"abc");
    let ours = SafetensorsFile::open(&path).unwrap();
    assert_eq!(ours.checksum().unwrap(), checksum);
    assert_eq!(ours.metadata()["format"], "pt");
    assert_eq!(ours.names().collect::<Vec<_>>(), ["odd \"name\"\n", "f", "b", "h", "i", "nothing"]);
    assert!(ours.read_f32("f").unwrap() == x);
    assert!(ours.read_f32("b").unwrap() == x.iter().map(|&v| bf16::from_f32(v).to_f32()).collect::<Vec<_>>());
    assert!(ours.read_f32("h").unwrap() == x.iter().map(|&v| f16::from_f32(v).to_f32()).collect::<Vec<_>>());
    assert_eq!(ours.read_i64("i").unwrap(), (-5..5).collect::<Vec<_>>());
    assert_eq!(ours.read_f32("nothing").unwrap(), [0f32; 0]);
    assert!(matches!(ours.read_f32("i"), Err(Error::NoConversion { .. })));
    let mut part = [0; 8];
    ours.read_into("f", 299_998, DType::F32, &mut part).unwrap();
    assert_eq!(part[4..], x[299_999].to_le_bytes());
    assert!(matches!(ours.read_into("f", 299_999, DType::F32, &mut part), Err(Error::BadEntry { .. })));
    assert!(matches!(ours.read_into("f", usize::MAX, DType::F32, &mut part), Err(Error::BadEntry { .. })));
}

fn open(dir: &Path, header_len: u64, json: &[u8], data: &[u8]) -> Result<SafetensorsFile> {
    let path = dir.join("x.safetensors");
    std::fs::write(&path, [&header_len.to_le_bytes(), json, data].concat()).unwrap();
    SafetensorsFile::open(&path)
}

#[test]
fn hostile_headers() {
    let dir = TempDir::new();
    let max = u64::MAX;
    let check = |json: &str, data: usize| open(&dir, json.len() as u64, json.as_bytes(), &vec![0; data]);
    check(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   "#, 8).unwrap();
    check(r#"{"a":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}}"#, 8).unwrap();
    check("{}", 0).unwrap();
    for (why, json, data) in [
        ("not JSON", "nonsense".into(), 0),
        ("an array", "[]".into(), 0),
        ("nested", "[".repeat(100_000), 0),
        ("nested in metadata", format!(r#"{{"__metadata__":{}"#, r#"{"a":"#.repeat(100_000)), 0),
        ("trailing", "{}{}".into(), 0),
        ("unclaimed data", "{}".into(), 1),
        ("too short", r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.into(), 7),
        ("too long", r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.into(), 9),
        ("gap before", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#.into(), 8),
        ("size differs", r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#.into(), 8),
        ("backwards", r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[8,0]}}"#.into(), 8),
        ("overflow", format!(r#"{{"a":{{"dtype":"F32","shape":[{max},{max}],"data_offsets":[0,4]}}}}"#), 4),
        ("hidden overflow", format!(r#"{{"a":{{"dtype":"F32","shape":[0,{max},8],"data_offsets":[0,0]}}}}"#), 0),
        ("negative", r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#.into(), 4),
        ("fraction", r#"{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}"#.into(), 4),
        ("unknown type", r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#.into(), 4),
        ("unknown field", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#.into(), 4),
        ("missing field", r#"{"a":{"dtype":"F32","data_offsets":[0,4]}}"#.into(), 4),
        ("three offsets", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}"#.into(), 4),
        (
            "overlap",
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#
                .into(),
            6,
        ),
        (
            "twice",
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#
                .into(),
            8,
        ),
        ("metadata numbers", r#"{"__metadata__":{"a":1}}"#.into(), 0),
        ("too many dims", format!(r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#, "1,".repeat(40)), 1),
    ] {
        let got = check(&json, data);
        assert!(matches!(got, Err(Error::Damaged { .. })), "{why}: {got:?}");
    }
    for len in [3, 1 << 20, 1 << 40, u64::MAX] {
        assert!(matches!(open(&dir, len, b"{}", b""), Err(Error::Damaged { .. })), "header length {len}");
    }
    std::fs::write(dir.join("short"), [1, 2, 3]).unwrap();
    assert!(matches!(SafetensorsFile::open(dir.join("short")), Err(Error::Damaged { .. })));
    assert!(matches!(SafetensorsFile::open(&*dir), Err(Error::Damaged { .. })), "a folder");
    assert!(matches!(SafetensorsFile::open(dir.join("none")), Err(Error::Io { .. })));
}

#[test]
fn types_without_arithmetic_are_listed_but_not_read() {
    let dir = TempDir::new();
    let json = br#"{"mask":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}"#;
    let f = open(&dir, json.len() as u64, json, &[1, 0, 1, 1]).unwrap();
    assert_eq!((f.tensor("mask").unwrap().dtype_name, f.tensor("mask").unwrap().dtype), ("BOOL", None));
    let err = f.read_f32("mask").unwrap_err();
    assert!(err.to_string().contains("BOOL"), "{err}");
}

/// Fragments that headers are made of, in random order: deeper than random bytes get.
fn header() -> impl Strategy<Value = String> {
    let number = prop_oneof![0u64..20, Just(u64::MAX), Just(1 << 62), any::<u64>()];
    let dtype = prop_oneof![Just("F32"), Just("BF16"), Just("U8"), Just("I64"), Just("Q4"), Just("BOOL")];
    let tensor = ("[a-c]", dtype, prop::collection::vec(number.clone(), 0..4), number.clone(), number);
    prop::collection::vec(tensor, 0..5).prop_map(|tensors| {
        let one = |(n, d, s, a, b): &(String, &str, Vec<u64>, u64, u64)| {
            format!(r#""{n}":{{"dtype":"{d}","shape":{s:?},"data_offsets":[{a},{b}]}}"#)
        };
        format!("{{{}}}", tensors.iter().map(one).collect::<Vec<_>>().join(","))
    })
}

fn read_all(f: &SafetensorsFile) {
    for t in f.tensors() {
        assert!(t.bytes <= f.file_len());
        match f.read_f32(&t.name) {
            Ok(x) => assert_eq!(x.len(), t.numel()),
            Err(e) => assert!(matches!(e, Error::NoConversion { .. }), "{e}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_headers_never_panic(json in header(), data in 0usize..40) {
        let dir = TempDir::new();
        if let Ok(f) = open(&dir, json.len() as u64, json.as_bytes(), &vec![0; data]) {
            read_all(&f);
        }
    }

    /// What we accept, the reference accepts too: we are never the laxer one.
    #[test]
    fn edited_files_never_panic(edits in prop::collection::vec((any::<u16>(), any::<u8>()), 1..4), cut in 0usize..40) {
        let dir = TempDir::new();
        let path = dir.join("w.safetensors");
        let tensors = vec![source("a", DType::F32, &[2, 3], &[1; 24]), source("b", DType::BF16, &[5], &[2; 10])];
        write_file(&path, &[], tensors).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, new) in edits {
            let at = at as usize % bytes.len();
            bytes[at] = new;
        }
        if cut > 30 {
            bytes.truncate(bytes.len() - (cut - 30));
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(f) = SafetensorsFile::open(&path) {
            read_all(&f);
            prop_assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok());
        }
    }
}
