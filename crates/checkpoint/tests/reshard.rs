//! Saved by some ranks, loaded by others.
#![allow(clippy::unwrap_used)] // helpers of tests, which the lint's exception does not cover

mod common;

use common::{TempDir, World, common_state, local, save_one, specs, value};
use ferrotron_base::{DType, ShardBox, ShardSpec};
use ferrotron_checkpoint::{Checkpoint, Entry, Error, Kind, Save, SaveOptions};

/// 2 tensor ranks x 2 optimizer ranges, and others, read as 1, 3, 4 ranks and more: every element is the right one.
#[test]
fn any_layout_loads_as_any_other() {
    for (tp, dp) in [(2, 1), (2, 2), (1, 3), (4, 1)] {
        let dir = TempDir::new();
        World { tp, dp, version: 1 }.save(&dir, 10, "a", &SaveOptions::default()).unwrap();
        let ckpt = Checkpoint::open(&*dir, None).unwrap();
        for (tp, dp) in [(1, 1), (2, 1), (3, 1), (4, 1), (1, 4), (3, 2), (12, 2)] {
            World { tp, dp, version: 1 }.check(&ckpt).unwrap();
        }
    }
}

/// Column boxes in scrambled order with a range that cuts rows: still each element where it belongs.
#[test]
fn odd_boxes_and_ranges() {
    let dir = TempDir::new();
    World { tp: 2, dp: 2, version: 5 }.save(&dir, 1, "a", &SaveOptions::default()).unwrap();
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    let boxes = vec![
        ShardBox { start: vec![3, 20], len: vec![4, 9] },
        ShardBox { start: vec![0, 0], len: vec![1, 48] },
        ShardBox { start: vec![7, 47], len: vec![1, 1] },
    ];
    let spec = ShardSpec { name: "proj.weight".into(), global: vec![8, 48], boxes };
    let mut got = vec![0.0; 70];
    ckpt.read_f32(&spec, 10..80, Kind::ExpAvg, &mut got).unwrap();
    assert_eq!(got, &local(Kind::ExpAvg, &spec, 5)[10..80]);
}

/// A tensor longer than the planning window and the read buffer, in interleaved columns.
#[test]
fn large_tensors_cross_windows() {
    let dir = TempDir::new();
    let global = [1500usize, 1000];
    let half = |t: usize| ShardSpec {
        name: "w".into(),
        global: global.to_vec(),
        boxes: vec![ShardBox { start: vec![0, t * 500], len: vec![1500, 500] }],
    };
    let save = Save::begin(&*dir, 1, "a", SaveOptions::default()).unwrap();
    for t in 0..2 {
        let spec = half(t);
        let data = local(Kind::Param, &spec, 0);
        save.write_shard(t, vec![Entry::f32(Kind::Param, spec, &data)]).unwrap();
    }
    save.commit(common_state(1, 2, 1), 0..2).unwrap();
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    let whole = ShardSpec::whole("w", &global);
    let mut got = vec![0.0; whole.local_numel()];
    ckpt.read_f32(&whole, 0..got.len(), Kind::Param, &mut got).unwrap();
    assert!(got == local(Kind::Param, &whole, 0));
    let rows = ShardSpec { boxes: vec![ShardBox::rows(&global, 700, 800)], ..whole };
    let mut got = vec![0.0; rows.local_numel()];
    ckpt.read_f32(&rows, 0..got.len(), Kind::Param, &mut got).unwrap();
    assert!(got == local(Kind::Param, &rows, 0));
}

/// More shards than files are kept open: each holds one row.
#[test]
fn many_shards() {
    let dir = TempDir::new();
    let row =
        |r: usize| ShardSpec { name: "w".into(), global: vec![300, 4], boxes: vec![ShardBox::rows(&[300, 4], r, 1)] };
    let save = Save::begin(&*dir, 1, "a", SaveOptions::default()).unwrap();
    for r in 0..300 {
        let data = local(Kind::Param, &row(r), 2);
        save.write_shard(r, vec![Entry::f32(Kind::Param, row(r), &data)]).unwrap();
    }
    save.commit(common_state(1, 300, 1), 0..300).unwrap();
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    ckpt.verify().unwrap();
    let whole = ShardSpec::whole("w", &[300, 4]);
    let mut got = vec![0.0; 1200];
    ckpt.read_f32(&whole, 0..1200, Kind::Param, &mut got).unwrap();
    assert_eq!(got, local(Kind::Param, &whole, 2));
}

#[test]
fn the_first_missing_element_is_named() {
    let dir = TempDir::new();
    let w = World { tp: 2, dp: 1, version: 0 };
    let save = Save::begin(&*dir, 1, "a", SaveOptions::default()).unwrap();
    w.write_rank(&save, 0).unwrap();
    save.commit(common_state(1, 2, 1), [0]).unwrap();
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    for (name, want) in [
        ("embedding.weight", vec![24, 0]),
        ("qkv.weight", vec![24, 0]),
        ("proj.weight", vec![0, 24]),
        ("conv.weight", vec![0, 6, 0]),
    ] {
        let spec = specs(0, 1).into_iter().find(|s| s.name == name).unwrap();
        let mut out = vec![0.0; spec.local_numel()];
        let err = ckpt.read_f32(&spec, 0..out.len(), Kind::Param, &mut out).unwrap_err();
        let Error::MissingElement { index, .. } = &err else { panic!("{err}") };
        assert_eq!(index, &want, "{err}");
        assert!(err.to_string().contains(name), "{err}");
    }
    // What rank 0 held is there, and so are the replicas.
    for spec in specs(0, 2) {
        let mut out = vec![0.0; spec.local_numel()];
        ckpt.read_f32(&spec, 0..out.len(), Kind::Param, &mut out).unwrap();
    }
}

/// Megatron pads the vocabulary by the tensor-parallel size: rows may be more or fewer, columns may not.
#[test]
fn padded_vocabulary() {
    let dir = TempDir::new();
    let saved = ShardSpec::whole("embedding.weight", &[6, 3]);
    save_one(&dir, &saved, DType::F32, &common::bytes_of(&local(Kind::Param, &saved, 0)));
    let ckpt = Checkpoint::open(&*dir, None).unwrap();
    let read = |global: &[usize], first: usize, rows: usize| {
        let boxes = vec![ShardBox::rows(global, first, rows)];
        let spec = ShardSpec { name: "embedding.weight".into(), global: global.to_vec(), boxes };
        let mut out = common::bytes_of(&vec![-1.0; rows * global[1]]);
        ckpt.read_rows_into(&spec, 0..rows * global[1], Kind::Param, DType::F32, &mut out)
            .map(|()| out.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>())
    };
    let want = |flat: std::ops::Range<usize>, pad: usize| -> Vec<f32> {
        let there = flat.map(|i| value(Kind::Param, "embedding.weight", 0, i));
        there.chain(std::iter::repeat_n(-1.0, pad)).collect()
    };
    assert_eq!(read(&[8, 3], 4, 4).unwrap(), want(12..18, 6));
    assert_eq!(read(&[8, 3], 6, 2).unwrap(), want(0..0, 6));
    assert_eq!(read(&[4, 3], 0, 4).unwrap(), want(0..12, 0));
    assert!(matches!(read(&[8, 4], 0, 8), Err(Error::ShapeMismatch { .. })));
    let spec = ShardSpec::whole("embedding.weight", &[8, 3]);
    let err = ckpt.read_into(&spec, 0..24, Kind::Param, DType::F32, &mut [0; 96]).unwrap_err();
    assert!(matches!(err, Error::ShapeMismatch { .. }), "{err}");
}
