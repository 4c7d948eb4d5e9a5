//! The index cache: reused when sound, rebuilt with a notice when not, never trusted.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{Scratch, config, golden};
use ferrotron_data::{Cache, DataConfig, Dataset, Datasets, Sample, build_datasets};

/// A copy of a golden dataset in its own folder: its cache may lie beside it.
fn copied(scratch: &Scratch, name: &str) -> String {
    for extension in ["bin", "idx"] {
        fs::copy(golden(&format!("data/{name}.{extension}")), scratch.file(&format!("{name}.{extension}"))).unwrap();
    }
    scratch.file(name).to_str().unwrap().to_owned()
}

fn samples(datasets: &Datasets) -> Vec<Sample> {
    let train = datasets.train.as_ref().unwrap();
    let get = |i| {
        let mut sample = Sample::default();
        train.get(i, &mut sample).unwrap();
        sample
    };
    (0..train.len()).map(get).collect()
}

fn blended(scratch: &Scratch, cache: &Scratch) -> DataConfig {
    let (a, b) = (copied(scratch, "a_u16"), copied(scratch, "b_i32"));
    let mut config = config(&["0.3", &a, "0.7", &b], "100", 32, 7);
    config.requested = [Some(120), None, None];
    config.cache = Cache::Dir(cache.0.clone());
    config
}

#[test]
fn any_damaged_cache_file_is_rebuilt_with_a_notice() {
    let (scratch, cache) = (Scratch::new(), Scratch::new());
    let config = blended(&scratch, &cache);
    let first = build_datasets(&config).unwrap();
    assert_eq!(first.notices, [""; 0]);
    let expected = samples(&first);
    drop(first);
    let names = cache.names();
    assert_eq!(names.len(), 2 * 4 + 3);
    for name in &names {
        let path = cache.file(name);
        let sound = fs::read(&path).unwrap();
        let mut flipped = sound.clone();
        // In the elements of an array (headers are 128 bytes), or in the text of a description.
        let at = sound.len() - 20;
        flipped[at] ^= 1;
        let mut cut = sound.clone();
        cut.truncate(sound.len() - 1);
        for (what, damaged) in [("flipped", flipped), ("cut", cut), ("emptied", Vec::new())] {
            fs::write(&path, damaged).unwrap();
            let again = build_datasets(&config).unwrap();
            assert_eq!(again.notices.len(), 1, "{name} {what}: {:?}", again.notices);
            assert!(
                again.notices[0].contains(name.as_str()) && again.notices[0].contains("rebuilt"),
                "{:?}",
                again.notices
            );
            assert!(samples(&again) == expected, "{name} {what}");
            drop(again);
            assert!(fs::read(&path).unwrap() == sound, "{name} {what}: the rebuilt file is the old one");
        }
        fs::remove_file(&path).unwrap();
        let again = build_datasets(&config).unwrap();
        // Without a description there is no cache; an array missing beside one is damage.
        assert_eq!(again.notices.len(), usize::from(!name.ends_with("description.txt")), "{name}");
        assert!(samples(&again) == expected && fs::read(&path).unwrap() == sound, "{name} removed");
    }
    assert_eq!(cache.names(), names, "no temporary file stays");
}

/// The name does not cover the extra token (as in Megatron): such a cache must not be used.
#[test]
fn a_cache_of_another_extra_token_setting_is_not_used() {
    let (scratch, cache) = (Scratch::new(), Scratch::new());
    let mut config = config(&[&copied(&scratch, "b_i32")], "100", 7, 7);
    let expected = samples(&build_datasets(&config).unwrap());
    config.cache = Cache::Dir(cache.0.clone());
    config.gpt.add_extra_token = false;
    build_datasets(&config).unwrap();
    config.gpt.add_extra_token = true;
    let built = build_datasets(&config).unwrap();
    assert!(built.notices[0].contains("sample_index.npy"), "{:?}", built.notices);
    assert!(samples(&built) == expected);
}

#[test]
fn the_default_place_is_beside_the_data() {
    let scratch = Scratch::new();
    let prefix = copied(&scratch, "a_u16");
    let mut config = config(&[&prefix], "100", 32, 7);
    config.cache = Cache::BesideData;
    build_datasets(&config).unwrap();
    let names = fs::read_dir(scratch.file("a_u16/cache/GPTDataset_indices")).unwrap().count();
    assert_eq!(names, 4);
}

#[test]
fn a_place_that_cannot_be_written_is_a_notice() {
    let (scratch, cache) = (Scratch::new(), Scratch::new());
    let mut config = config(&[&copied(&scratch, "a_u16")], "100", 32, 7);
    let expected = samples(&build_datasets(&config).unwrap());
    fs::write(cache.file("file"), "").unwrap();
    config.cache = Cache::Dir(cache.file("file"));
    let built = build_datasets(&config).unwrap();
    assert!(built.notices.iter().any(|n| n.contains("not cached")), "{:?}", built.notices);
    assert!(samples(&built) == expected);
}
