//! What is saved is what is loaded; folders, tracker, retention, and what is not there.
#![allow(clippy::unwrap_used)] // helpers of tests, which the lint's exception does not cover

mod common;

use std::num::NonZeroU64;
use std::path::Path;

use common::{TempDir, World, bytes_of, common_state, names, save_one};
use ferrotron_base::{DType, ShardSpec};
use ferrotron_checkpoint::{
    Checkpoint, Entry, Error, Foreign, Kind, SafetensorsFile, Save, SaveOptions, Source, Step, layout,
};
use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::json;

const WORLD: World = World { tp: 2, dp: 2, version: 3 };

fn options() -> SaveOptions {
    SaveOptions::default()
}

#[test]
fn folders_are_megatrons() {
    let dir = TempDir::new();
    let done = WORLD.save(&dir, 1000, "a", &options()).unwrap();
    assert_eq!(done.folder, dir.join("iter_0001000"));
    assert!(done.not_deleted.is_empty());
    assert_eq!(names(&dir), ["iter_0001000", "latest_checkpointed_iteration.txt"]);
    assert_eq!(std::fs::read(dir.join("latest_checkpointed_iteration.txt")).unwrap(), b"1000");
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    assert_eq!(ckpt.common(), &common_state(1000, 2, 2));
    assert_eq!(ckpt.shards(), 4);
    ckpt.verify().unwrap();
    let all: Vec<_> = ckpt.stored().map(|s| (s.kind, s.name.to_owned(), s.pieces)).collect();
    assert_eq!(all.len(), 21);
    // sorted; 2 tensor ranks hold it, in 2 ranges each for the optimizer
    assert_eq!(all[0], (Kind::Param, "conv.weight".into(), 2));
    assert_eq!(all[7], (Kind::ExpAvg, "conv.weight".into(), 4));
    WORLD.check(&ckpt).unwrap();
}

/// The same state gives the same bytes, whatever the temporary names were.
#[test]
fn saves_are_reproducible() {
    let (a, b) = (TempDir::new(), TempDir::new());
    WORLD.save(&a, 7, "first", &options()).unwrap();
    WORLD.save(&b, 7, "second", &options()).unwrap();
    let files = names(&a.join("iter_0000007"));
    assert_eq!(files.len(), 9);
    for f in files {
        let read = |d: &Path| std::fs::read(d.join("iter_0000007").join(&f)).unwrap();
        assert!(read(&a) == read(&b), "{f}");
    }
}

#[test]
fn shards_are_safetensors_that_others_read() {
    let dir = TempDir::new();
    World { tp: 1, dp: 1, version: 0 }.save(&dir, 1, "a", &options()).unwrap();
    let bytes = std::fs::read(dir.join("iter_0000001/shard_00000.safetensors")).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let t = reference.tensor("param/conv.weight").unwrap();
    assert_eq!(t.shape(), [6, 12, 5]);
    assert_eq!(reference.tensor("param/scale").unwrap().shape(), [0usize; 0]);
    let spec = ShardSpec::whole("conv.weight", &[6, 12, 5]);
    assert_eq!(t.data(), bytes_of(&common::local(Kind::Param, &spec, 0)));
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!((8 + header) % 64, 0);
}

#[test]
fn types_convert_on_load() {
    let x: Vec<f32> = (0..3000).map(|i| (i as f32 - 1500.0) * 0.37).collect();
    let spec = ShardSpec::whole("w", &[3000]);
    let as_bf16: Vec<u8> = x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let as_f16: Vec<u8> = x.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let widened: Vec<u8> = x.iter().flat_map(|&v| bf16::from_f32(v).to_f32().to_le_bytes()).collect();
    for (stored, data, wanted, want) in [
        (DType::F32, bytes_of(&x), DType::BF16, as_bf16.clone()),
        (DType::F32, bytes_of(&x), DType::F16, as_f16),
        (DType::BF16, as_bf16, DType::F32, widened),
    ] {
        let dir = TempDir::new();
        save_one(&dir, &spec, stored, &data);
        let ckpt = Checkpoint::open(&*dir, None).unwrap();
        let mut out = vec![0; want.len()];
        ckpt.read_into(&spec, 0..3000, Kind::Param, wanted, &mut out).unwrap();
        assert!(out == want, "{stored} to {wanted}");
        let err = ckpt.read_into(&spec, 0..3000, Kind::Param, DType::I32, &mut vec![0; 12000]).unwrap_err();
        assert!(matches!(err, Error::NoConversion { .. }), "{err}");
    }
}

/// Data that a device delivers piece by piece, longer than the writer's buffer.
#[test]
fn filled_entries_stream() {
    let dir = TempDir::new();
    let n = 700_001;
    let spec = ShardSpec::whole("w", &[n]);
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let bytes = bytes_of(&x);
    let mut largest = 0;
    let save = Save::begin(&*dir, 1, "a", options()).unwrap();
    let fill = Source::Fill(Box::new(|at, buf| {
        largest = largest.max(buf.len());
        buf.copy_from_slice(&bytes[at..at + buf.len()]);
        Ok(())
    }));
    let entry = Entry { kind: Kind::Master, spec: spec.clone(), range: 0..n, dtype: DType::F32, data: fill };
    save.write_shard(0, vec![entry]).unwrap();
    save.commit(common_state(1, 1, 1), [0]).unwrap();
    assert_eq!(largest, 1 << 20);
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    ckpt.verify().unwrap();
    let mut got = vec![0.0; n];
    ckpt.read_f32(&spec, 0..n, Kind::Master, &mut got).unwrap();
    assert!(got == x);

    let save = Save::begin(&*dir, 2, "a", options()).unwrap();
    let fill = Source::Fill(Box::new(|_, _| Err("device lost".into())));
    let err = save.write_shard(0, vec![Entry { kind: Kind::Master, spec, range: 0..n, dtype: DType::F32, data: fill }]);
    assert!(err.unwrap_err().to_string().contains("device lost"));
}

#[test]
fn entries_that_contradict_themselves() {
    let dir = TempDir::new();
    let save = Save::begin(&*dir, 1, "a", options()).unwrap();
    let spec = ShardSpec::whole("w", &[4]);
    let x = [0.0; 4];
    let short = Entry::f32(Kind::Param, spec.clone(), &x[..3]);
    let beyond = Entry { range: 2..6, ..Entry::f32(Kind::Param, spec.clone(), &x) };
    let wrong_type = Entry { dtype: DType::BF16, ..Entry::f32(Kind::Param, spec.clone(), &x) };
    for e in [short, beyond, wrong_type] {
        let err = save.write_shard(0, vec![e]).unwrap_err();
        assert!(matches!(err, Error::BadEntry { .. }), "{err}");
    }
    let twice = vec![Entry::f32(Kind::Param, spec.clone(), &x), Entry::f32(Kind::Param, spec, &x)];
    assert!(matches!(save.write_shard(0, twice), Err(Error::BadEntry { .. })));
    assert!(matches!(Save::begin(&*dir, 1, "../x", options()), Err(Error::BadEntry { .. })));
    let Err(err) = save.commit(common_state(1, 1, 1), [0]) else { panic!("committed without a shard") };
    assert!(matches!(err, Error::MissingShard { rank: 0, .. }), "{err}");
}

#[test]
fn requests_that_contradict_themselves() {
    let dir = TempDir::new();
    save_one(&dir, &ShardSpec::whole("w", &[2, 2]), DType::F32, &[0; 16]);
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    let w = ShardSpec::whole("w", &[2, 2]);
    let read = |spec: &ShardSpec, range, kind, n: usize| ckpt.read_into(spec, range, kind, DType::F32, &mut vec![0; n]);
    assert!(matches!(read(&w, 0..4, Kind::Param, 12), Err(Error::BadEntry { .. })));
    assert!(matches!(read(&w, 0..5, Kind::Param, 20), Err(Error::BadEntry { .. })));
    assert!(matches!(read(&w, 0..4, Kind::ExpAvg, 16), Err(Error::MissingTensor { kind: Kind::ExpAvg, .. })));
    assert!(matches!(read(&ShardSpec::whole("v", &[4]), 0..4, Kind::Param, 16), Err(Error::MissingTensor { .. })));
    assert!(matches!(read(&ShardSpec::whole("w", &[4]), 0..4, Kind::Param, 16), Err(Error::ShapeMismatch { .. })));
    let mut bad = w.clone();
    bad.boxes[0].start[1] = 1;
    assert!(matches!(read(&bad, 0..4, Kind::Param, 16), Err(Error::BadEntry { .. })));
    read(&w, 0..4, Kind::Param, 16).unwrap();
    read(&w, 4..4, Kind::Param, 0).unwrap();
}

#[test]
fn which_checkpoint_is_loaded() {
    let dir = TempDir::new();
    let missing = dir.join("nowhere");
    assert!(matches!(Checkpoint::open(&*dir, None), Err(Error::NothingToLoad { dir: d }) if d == *dir));
    assert!(matches!(Checkpoint::open(&missing, None), Err(Error::NothingToLoad { .. })));
    for n in [5, 10] {
        WORLD.save(&dir, n, "a", &options()).unwrap();
    }
    assert_eq!(Checkpoint::open(&*dir, None).unwrap().common().iteration, 10);
    assert_eq!(Checkpoint::open(&*dir, Some(5)).unwrap().common().iteration, 5);
    let err = Checkpoint::open(&*dir, Some(7)).unwrap_err().to_string();
    assert!(err.contains("iter_0000007") && err.contains("iter_0000005, iter_0000010"), "{err}");

    let tracker = dir.join(layout::TRACKER);
    std::fs::write(&tracker, "5\n").unwrap(); // some editors add the newline
    assert_eq!(Checkpoint::open(&*dir, None).unwrap().common().iteration, 5);
    std::fs::rename(dir.join("iter_0000010"), dir.join("release")).unwrap();
    std::fs::write(&tracker, "release").unwrap();
    assert_eq!(layout::resolve(&dir, None).unwrap().0, Step::Release);
    assert_eq!(Checkpoint::open(&*dir, None).unwrap().common().iteration, 10);
    for bad in ["", "ten", "-5", "+5", "5.0", "99999999999999999999999", &"5".repeat(65)] {
        std::fs::write(&tracker, bad).unwrap();
        let err = Checkpoint::open(&*dir, None).unwrap_err();
        assert!(matches!(err, Error::BadTracker { .. } | Error::Damaged { .. }), "{bad:?}: {err}");
    }
    // A folder under the name of another iteration is not believed.
    std::fs::rename(dir.join("iter_0000005"), dir.join("iter_0000006")).unwrap();
    assert!(matches!(Checkpoint::open(&*dir, Some(6)), Err(Error::Damaged { .. })));
}

#[test]
fn retention_is_megatrons() {
    let dir = TempDir::new();
    let keep = SaveOptions { retain_interval: NonZeroU64::new(20), ..options() };
    for n in [10, 20, 30, 40, 50] {
        WORLD.save(&dir, n, "a", &keep).unwrap();
    }
    assert_eq!(names(&dir), ["iter_0000020", "iter_0000040", "iter_0000050", layout::TRACKER]);
}

#[test]
fn a_checkpoint_is_replaced() {
    let dir = TempDir::new();
    WORLD.save(&dir, 10, "a", &options()).unwrap();
    let other = World { version: 4, ..WORLD };
    other.save(&dir, 10, "b", &options()).unwrap();
    assert_eq!(names(&dir), ["iter_0000010", layout::TRACKER]);
    other.check(&Checkpoint::open(&*dir, None).unwrap()).unwrap();
    // Another program's checkpoint under that name is never deleted.
    std::fs::create_dir_all(dir.join("iter_0000020/mp_rank_00")).unwrap();
    WORLD.save(&dir, 20, "c", &options()).unwrap();
    WORLD.save(&dir, 30, "d", &options()).unwrap();
    assert!(dir.join("iter_0000020.kept-c/mp_rank_00").is_dir());
}

/// Left-overs of killed runs go; names that this program does not give stay.
#[test]
fn only_our_leftovers_are_cleaned() {
    let dir = TempDir::new();
    for name in
        ["iter_0000003.tmp-dead", "iter_0000004.tmp-drop-x", "iter_0000003.tmp-mine.bak", "iter_3.tmp-x", "notes"]
    {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join(format!("{}.tmp-dead", layout::TRACKER)), "3").unwrap();
    WORLD.save(&dir, 5, "a", &options()).unwrap();
    assert_eq!(names(&dir), ["iter_0000003.tmp-mine.bak", "iter_0000005", "iter_3.tmp-x", layout::TRACKER, "notes"]);
}

#[test]
fn foreign_checkpoints_are_named() {
    let cases: [(Foreign, &[(&str, &str)]); 5] = [
        (Foreign::MegatronTorch, &[("iter_0000003/mp_rank_00/model_optim_rng.pt", "x")]),
        (
            Foreign::MegatronTorchDist,
            &[
                ("iter_0000003/metadata.json", r#"{"sharded_backend": "torch_dist"}"#),
                ("iter_0000003/__0_0.distcp", ""),
            ],
        ),
        (Foreign::TorchDcp, &[("iter_0000003/.metadata", "x"), ("iter_0000003/__0_0.distcp", "")]),
        (Foreign::DeepSpeed, &[("global_step3/mp_rank_00_model_states.pt", "x"), ("latest", "global_step3")]),
        (Foreign::HuggingFace, &[("config.json", "{}"), ("model.safetensors.index.json", "{}")]),
    ];
    for (want, files) in cases {
        for tracker in [true, false] {
            let dir = TempDir::new();
            for (name, text) in files {
                std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
                std::fs::write(dir.join(name), text).unwrap();
            }
            let in_iteration = files[0].0.starts_with("iter");
            if tracker {
                std::fs::write(dir.join(layout::TRACKER), "3").unwrap();
            } else if in_iteration {
                continue; // without a tracker Megatron finds nothing there either
            }
            let err = Checkpoint::open(&*dir, None).unwrap_err();
            assert!(matches!(&err, Error::Foreign { format, .. } if *format == want), "{want:?}: {err}");
            let text = err.to_string();
            let planned = matches!(want, Foreign::TorchDcp | Foreign::DeepSpeed);
            let remedy = if planned { "planned" } else { "--pretrained-checkpoint" };
            assert!(text.contains("manifest.json") && text.contains(remedy), "{text}");
        }
    }
}

/// A later program's manifest says so, instead of "unknown field".
#[test]
fn newer_versions_are_named() {
    let dir = TempDir::new();
    WORLD.save(&dir, 1, "a", &options()).unwrap();
    let path = dir.join("iter_0000001/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"version\":1", "\"version\":2", 1)).unwrap();
    let err = Checkpoint::open(&*dir, None).unwrap_err();
    assert!(matches!(err, Error::NewerVersion { found: 2, supported: 1, .. }), "{err}");
}

#[test]
fn empty_shards_and_empty_tensors() {
    let dir = TempDir::new();
    let empty = ShardSpec::whole("none", &[0, 5]);
    let save = Save::begin(&*dir, 1, "a", options()).unwrap();
    save.write_shard(0, vec![]).unwrap();
    save.write_shard(1, vec![Entry::f32(Kind::Param, empty.clone(), &[])]).unwrap();
    save.commit(common_state(1, 1, 2), [1, 0]).unwrap();
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    ckpt.verify().unwrap();
    ckpt.read_f32(&empty, 0..0, Kind::Param, &mut []).unwrap();
    let file = SafetensorsFile::open(dir.join("iter_0000001/shard_00000.safetensors")).unwrap();
    assert_eq!(file.tensors().len(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Numbers of the common state keep their bits.
    #[test]
    fn common_numbers_keep_their_bits(floats in prop::collection::vec(any::<f64>(), 16), ints in any::<[u64; 4]>()) {
        let dir = TempDir::new();
        let save = Save::begin(&*dir, 1, "a", options()).unwrap();
        save.write_shard(0, vec![]).unwrap();
        let mut state = common_state(1, 1, 1);
        state.consumed_samples = ints[0];
        let finite: Vec<f64> = floats.into_iter().filter(|x| x.is_finite()).collect();
        state.state.insert("floats".into(), json!(finite));
        state.state.insert("ints".into(), json!(ints));
        save.commit(state.clone(), [0]).unwrap();
        let ckpt = Checkpoint::open(&*dir, None).unwrap();
        prop_assert_eq!(ckpt.common(), &state);
        let back = ckpt.common().state["floats"].as_array().unwrap();
        for (a, b) in back.iter().zip(&finite) {
            prop_assert_eq!(a.as_f64().unwrap().to_bits(), b.to_bits());
        }
    }
}
