//! Every index, description, blend and sample of Megatron's golden runs, to the bit.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Scratch, config, golden, i64s, read_json};
use ferrotron_data::{Cache, DataConfig, DataSource, Dataset, GptDataset, Sample, SplitDataset, build_datasets};
use serde_json::Value;

/// Prefixes are part of the descriptions, so the files must be found under the names that Megatron was given.
fn enter_data_folder() {
    std::env::set_current_dir(golden("data")).unwrap();
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned()).collect()
}

fn golden_config(file: &Value, cache: Cache) -> DataConfig {
    let given = &file["config"];
    let flag = |name: &str, default: bool| given.get(name).map_or(default, |v| v.as_bool().unwrap());
    let seed = given["seed"].as_u64().unwrap() as u32;
    let mut config = config(&[], "", given["seq"].as_u64().unwrap() as usize, seed);
    config.source = match given.get("per") {
        Some(per) => {
            let lists: Vec<_> = per.as_array().unwrap().iter().map(|l| (!l.is_null()).then(|| words(l))).collect();
            DataSource::PerSplit(lists.try_into().unwrap())
        }
        None => {
            DataSource::Shared { paths: words(&given["blend"]), split: given["split"].as_str().unwrap().to_owned() }
        }
    };
    for (requested, size) in config.requested.iter_mut().zip(file["sizes"].as_array().unwrap()) {
        *requested = size.as_u64();
    }
    config.gpt.add_extra_token = flag("extra", true);
    config.gpt.drop_last_partial_validation_sequence = flag("drop", true);
    let rules = &mut config.gpt.rules;
    rules.pad = given.get("pad").map(|v| v.as_i64().unwrap() as i32);
    (rules.reset_position_ids, rules.reset_attention_mask) = (flag("rp", false), flag("ra", false));
    rules.eod_mask_loss = flag("em", false);
    config.cache = cache;
    config
}

fn check_gpt(d: &GptDataset, expected: &Value, what: &str) {
    assert_eq!(d.len(), expected["len"].as_u64().unwrap() as usize, "{what}");
    assert_eq!(d.description(), expected["description"].as_str().unwrap(), "{what}");
    let range = i64s(&expected["indices_range"]);
    assert_eq!(d.documents(), range[0] as usize..range[1] as usize, "{what}");
    assert_eq!(d.tokens_per_epoch(), expected["tokens_per_epoch"].as_u64().unwrap(), "{what}");
    assert_eq!(d.epochs(), expected["num_epochs"].as_u64().unwrap(), "{what}");
    if let Some(last) = expected.get("final_epoch") {
        let sans = last["samples_sans_final"].as_u64();
        assert_eq!(d.separate_final_epoch(), sans.filter(|_| last["separate"].as_bool().unwrap()), "{what}");
    }
    let documents: Vec<i64> = d.document_index().iter().map(i64::from).collect();
    assert_eq!(documents, i64s(&expected["document_index"]["values"]), "{what}");
    let rows = expected["sample_index"]["values"].as_array().unwrap();
    assert_eq!(rows.len(), d.len() + 1, "{what}");
    for (i, row) in rows.iter().map(i64s).enumerate() {
        assert_eq!(d.sample_row(i), Some((row[0], row[1])), "{what} row {i}");
    }
    let shuffle = i64s(&expected["shuffle_index"]["values"]);
    assert_eq!((0..d.len()).map(|i| d.shuffled(i).unwrap() as i64).collect::<Vec<_>>(), shuffle, "{what}");
}

/// Megatron's [S, S] mask, row by row, from segments.
fn allowed_rows(starts: &[i32], s: usize) -> Vec<String> {
    let row = |i: usize| {
        let start = starts.iter().rev().find(|start| **start as usize <= i).copied().unwrap();
        (0..s).map(|j| if (start as usize..=i).contains(&j) { '1' } else { '0' }).collect()
    };
    (0..s).map(row).collect()
}

/// Returns the number of masks compared.
fn check_samples(d: &SplitDataset, expected: &Value, resets_attention: bool, what: &str) -> usize {
    let mut sample = Sample::default();
    let mut masks = 0;
    for want in expected["samples"].as_array().unwrap() {
        let i = want["i"].as_u64().unwrap() as usize;
        d.get(i, &mut sample).unwrap();
        let what = format!("{what} sample {i}");
        let tokens: Vec<i64> = sample.tokens.iter().map(|&t| t.into()).collect();
        let s = tokens.len();
        assert_eq!(tokens, i64s(&want["tokens"]), "{what}");
        assert_eq!(i64::from(sample.labels[s - 1]), want["last_label"].as_i64().unwrap(), "{what}");
        assert_eq!(sample.labels[..s - 1], sample.tokens[1..], "{what}");
        let masked = want.get("loss_mask_zero_at").map(i64s).unwrap_or_default();
        let weight = |i: usize| if masked.contains(&(i as i64)) { 0.0 } else { 1.0 };
        assert_eq!(sample.loss_mask, (0..s).map(weight).collect::<Vec<f32>>(), "{what}");
        let positions = want.get("position_ids").map_or((0..s as i64).collect(), i64s);
        assert_eq!(sample.position_ids.iter().map(|&p| p.into()).collect::<Vec<i64>>(), positions, "{what}");
        if let Some(rows) = want.get("attention_allowed_rows") {
            assert_eq!(allowed_rows(&sample.segment_starts, s), words(rows), "{what}");
            masks += 1;
        } else if !resets_attention {
            assert_eq!(sample.segment_starts, [0], "{what}");
        }
        assert_eq!(sample.member as u64, want.get("dataset_id").map_or(0, |k| k.as_u64().unwrap()), "{what}");
    }
    masks
}

#[test]
fn every_golden_run() {
    enter_data_folder();
    let (mut files, mut splits, mut masks) = (0, 0, 0);
    for entry in std::fs::read_dir(golden("gpt")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let file = read_json(&format!("gpt/{name}"));
        let scratch = Scratch::new();
        let config = golden_config(&file, Cache::Dir(scratch.0.clone()));
        let resets = config.gpt.rules.reset_attention_mask;
        // The first pass builds and saves, the second reads what was saved.
        for pass in ["built", "cached"] {
            let built = build_datasets(&config).unwrap();
            assert_eq!(built.notices, [""; 0], "{name} {pass}");
            for (split, dataset) in [("train", built.train), ("valid", built.valid), ("test", built.test)] {
                let expected = &file["splits"][split];
                let what = format!("{name} {split} {pass}");
                let Some(dataset) = dataset else {
                    assert!(expected.is_null(), "{what}");
                    continue;
                };
                assert_eq!(dataset.description(), expected["description"].as_str().unwrap(), "{what}");
                match &*dataset {
                    SplitDataset::Gpt(d) => check_gpt(d, expected, &what),
                    SplitDataset::Blend(blend) => {
                        assert_eq!(blend.len(), expected["len"].as_u64().unwrap() as usize, "{what}");
                        let members = expected["datasets"].as_array().unwrap();
                        assert_eq!(blend.members().len(), members.len());
                        for (member, expected) in blend.members().iter().zip(members) {
                            check_gpt(member, expected, &what);
                        }
                        let from = i64s(&expected["dataset_index"]["values"]).into_iter();
                        let sources = from.zip(i64s(&expected["dataset_sample_index"]["values"]));
                        for (i, (k, sample)) in sources.enumerate() {
                            assert_eq!(blend.source(i), Some((k as usize, sample as usize)), "{what} {i}");
                        }
                    }
                }
                masks += check_samples(&dataset, expected, resets, &what);
                splits += 1;
            }
            assert_eq!(scratch.names(), words(&file["cache_files"]), "{name}: names of the cache files");
            for cached in scratch.names().iter().filter(|n| n.ends_with("description.txt")) {
                let text = std::fs::read(scratch.file(cached)).unwrap();
                assert!(!text.ends_with(b"\n"), "Megatron writes no newline");
            }
        }
        check_element_types(&scratch, &file);
        files += 1;
    }
    // Guards against a folder that lost its files.
    assert_eq!((files, splits, masks), (21, 2 * 36, 2 * 15));
}

/// The `.npy` headers carry the element types that Megatron's arrays have.
fn check_element_types(scratch: &Scratch, file: &Value) {
    let numpy = |descr: &str| match descr {
        "<i2" => "int16",
        "<i4" => "int32",
        "<u4" => "uint32",
        "<i8" => "int64",
        _ => "unknown",
    };
    for (split, expected) in file["splits"].as_object().unwrap() {
        for array in ["document_index", "sample_index", "shuffle_index", "dataset_index", "dataset_sample_index"] {
            let Some(dtype) = expected.get(array).map(|a| a["dtype"].as_str().unwrap()) else { continue };
            let class = expected["kind"].as_str().unwrap();
            let name = format!("{}-{class}-{split}-{array}.npy", expected["hash"].as_str().unwrap());
            let bytes = std::fs::read(scratch.file(&name)).unwrap();
            let header = String::from_utf8_lossy(&bytes[10..128]);
            let descr = header.split('\'').nth(3).unwrap();
            assert_eq!(numpy(descr), dtype, "{name}");
        }
    }
}
