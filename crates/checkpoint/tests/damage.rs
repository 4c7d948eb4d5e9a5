//! Truncated, corrupted and forged files: an error, never a panic, never memory for what a file only claims.
#![allow(clippy::unwrap_used)] // helpers of tests, which the lint's exception does not cover

mod common;

use std::path::Path;

use common::{TempDir, World, names};
use ferrotron_base::ShardSpec;
use ferrotron_checkpoint::checksum::Checksum;
use ferrotron_checkpoint::{Checkpoint, Error, Kind, Result, SaveOptions};
use proptest::prelude::*;

const WORLD: World = World { tp: 2, dp: 1, version: 1 };

fn load(root: &Path) -> Result<()> {
    let ckpt = Checkpoint::open(root, None)?;
    ckpt.verify()?;
    WORLD.check(&ckpt)
}

fn saved() -> TempDir {
    let dir = TempDir::new();
    WORLD.save(&dir, 1, "a", &SaveOptions::default()).unwrap();
    load(&dir).unwrap();
    dir
}

/// One flipped bit in any file: found. Every byte of the manifest, every third of the others (which ones shifts by file).
#[test]
fn flipped_bits_are_found() {
    let dir = saved();
    let folder = dir.join("iter_0000001");
    for (i, name) in names(&folder).iter().enumerate() {
        let path = folder.join(name);
        let good = std::fs::read(&path).unwrap();
        let step = if name == "manifest.json" { 1 } else { 3 };
        for at in (i % step..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bad).unwrap();
            let found = Checkpoint::open(&*dir, None).and_then(|c| c.verify());
            assert!(found.is_err(), "{name}: flipped bit in byte {at} was not noticed");
        }
        std::fs::write(&path, &good).unwrap();
    }
    load(&dir).unwrap();
}

/// Every file, cut at many lengths, with a byte too many, or gone.
#[test]
fn every_truncation_is_found() {
    let dir = saved();
    let folder = dir.join("iter_0000001");
    for name in names(&folder) {
        let path = folder.join(&name);
        let good = std::fs::read(&path).unwrap();
        for len in (0..good.len()).step_by(97).chain([7, 8, 9, good.len() - 1]) {
            std::fs::write(&path, &good[..len]).unwrap();
            assert!(load(&dir).is_err(), "{name} of {len} bytes");
        }
        std::fs::write(&path, [good.as_slice(), b" "].concat()).unwrap();
        assert!(load(&dir).is_err(), "{name} with a byte more");
        std::fs::remove_file(&path).unwrap();
        assert!(load(&dir).is_err(), "{name} gone");
        std::fs::write(&path, &good).unwrap();
    }
}

/// Shards of two saves do not mix, though each is whole in itself.
#[test]
fn shards_of_another_save_are_refused() {
    let (dir, other) = (saved(), TempDir::new());
    World { version: 2, ..WORLD }.save(&other, 1, "a", &SaveOptions::default()).unwrap();
    let copy = |name: &str| std::fs::copy(other.join("iter_0000001").join(name), dir.join("iter_0000001").join(name));
    copy("shard_00001.safetensors").unwrap();
    assert!(matches!(load(&dir), Err(Error::Damaged { .. })), "same length, other content");
    copy("shard_00001.json").unwrap();
    assert!(matches!(Checkpoint::open(&*dir, None), Err(Error::Damaged { .. })));
}

/// A forger who knows the checksum: bodies that are consistent with it but not with sense.
#[test]
fn forged_indices_are_refused() {
    let max = usize::MAX.to_string();
    for (from, to) in [
        (r#""global":[8,48]"#, format!(r#""global":[{max},48]"#)),
        (r#""global":[8,48]"#, r#""global":[8]"#.into()),
        (r#""global":[8,48]"#, r#""global":[7,48]"#.into()),
        (r#""start":[0,0],"len":[8,24]"#, format!(r#""start":[0,{max}],"len":[8,24]"#)),
        (r#""start":[0,0],"len":[8,24]"#, r#""start":[0],"len":[8]"#.into()),
        (r#""range":[0,192]"#, format!(r#""range":[{max},192]"#)),
        (r#""range":[0,192]"#, r#""range":[1,192]"#.into()),
        (r#""range":[0,192]"#, r#""range":[0,191]"#.into()),
        (r#""range":[0,192]"#, r#""range":[-1,192]"#.into()),
        (r#""dtype":"F32""#, r#""dtype":"BF16""#.into()),
        (r#""dtype":"F32""#, r#""dtype":"F31""#.into()),
        (r#""kind":"param""#, r#""kind":"parameter""#.into()),
        (r#""key":"param/proj.weight""#, r#""key":"param/norm.weight""#.into()),
        (r#""rank":0"#, r#""rank":1"#.into()),
        (r#""rank":0"#, r#""rank":0,"rank":0"#.into()),
        (r#""entries":["#, r#""more":1,"entries":["#.into()),
    ] {
        let dir = saved();
        let folder = dir.join("iter_0000001");
        let path = folder.join("shard_00000.json");
        let old = std::fs::read_to_string(&path).unwrap();
        assert!(old.contains(from), "{from} in {old}");
        let new = reseal(&old.replacen(from, &to, 1));
        std::fs::write(&path, &new).unwrap();
        let manifest = folder.join("manifest.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let sum = |t: &str| Checksum::of(t.as_bytes()).to_string();
        std::fs::write(&manifest, reseal(&text.replace(&sum(&old), &sum(&new)))).unwrap();
        let err = load(&dir).expect_err(&to);
        assert!(matches!(err, Error::Damaged { .. } | Error::NoSuchTensor { .. }), "{to}: {err}");
        assert!(!err.to_string().contains("truncated or edited"), "{to} must be found by its own check, not by: {err}");
    }
}

#[test]
fn forged_manifests_are_refused() {
    for (from, to) in [
        ("shard_00000.safetensors", "../../other.safetensors"),
        ("shard_00001.json", "shard_00000.json"),
        ("\"rank\": 1", "\"rank\": 0"),
        ("\"rank\": 1", "\"rank\": 2"),
        ("\"iteration\": 1,", "\"iteration\": 2,"),
        ("\"iteration\": 1,", "\"iteration\": -1,"),
        ("\"iteration\": 1,", ""),
        ("\"bytes\": ", "\"bytes\": 1"),
    ] {
        let dir = saved();
        let path = dir.join("iter_0000001/manifest.json");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        std::fs::write(&path, reseal(&text.replacen(from, to, 1))).unwrap();
        assert!(matches!(load(&dir), Err(Error::Damaged { .. } | Error::Io { .. })), "{to}");
    }
    // JSON that nests without end must not end the process.
    let dir = saved();
    std::fs::write(dir.join("iter_0000001/manifest.json"), "[".repeat(1 << 20)).unwrap();
    assert!(load(&dir).is_err());
}

/// Puts the right checksum over a changed body.
fn reseal(text: &str) -> String {
    let at = text.find("\"body\":").unwrap() + 7;
    let body = &text.trim_end()[at..text.trim_end().len() - 1];
    let sum = text.find("xxh64:").unwrap();
    let mut out = text.to_owned();
    out.replace_range(sum..sum + 22, &Checksum::of(body.as_bytes()).to_string());
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Several random edits at once, in any file, with the checksum of the envelope repaired: no panic, and whatever
    /// still loads is right in its shape.
    #[test]
    fn random_edits_never_panic(file in 0usize..5, edits in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        let dir = saved();
        let folder = dir.join("iter_0000001");
        let path = folder.join(&names(&folder)[file]);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, new) in edits {
            let at = at as usize % bytes.len();
            bytes[at] = new;
        }
        if let Ok(text) = str::from_utf8(&bytes)
            && text.contains("\"body\":") && text.contains("xxh64:") && text.len() > 200 && text.is_ascii()
        {
            bytes = reseal(text).into_bytes();
        }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(ckpt) = Checkpoint::open(&*dir, None) {
            let _ = ckpt.verify();
            for s in ckpt.stored() {
                let spec = ShardSpec::whole(s.name, s.global);
                let n: usize = spec.local_numel();
                if n <= 4096 {
                    let _ = ckpt.read_f32(&spec, 0..n, Kind::Param, &mut vec![0.0; n]);
                }
            }
        }
    }
}
